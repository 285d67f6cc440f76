"""``segmentlog grep`` against grep on the same values, as lines of a file."""

import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from measure import Row, compare
from query_data import QueryData
from typer.testing import CliRunner

import segmentlog
from segmentlog.tools.cli import app

__all__ = ["search"]

_PATTERN, _TEXT = 'cents":99999[0-9]', 'cents":99999'
_C = os.environ | {"LC_ALL": "C"}  # grep is quickest without a locale


def _lines(n_records: int) -> list[bytes]:
    """Values of about 85 bytes; one in 100,000 has the pattern."""
    rng = random.Random(1)
    return [
        b'{"order":%d,"customer":"customer-%02d","cents":%d,"note":"%016x"}'
        % (i, i % 77, rng.randrange(10**6), rng.getrandbits(64))
        for i in range(n_records)
    ]


def _ours(directory: Path, *pattern: str) -> Callable[[], tuple[int, ...]]:
    def run() -> tuple[int, ...]:
        done = CliRunner().invoke(app, ["grep", "-c", *pattern, str(directory), "--value"])
        return (int(done.stdout),)

    return run


def _theirs(command: str) -> Callable[[], tuple[int, ...]]:
    def run() -> tuple[int, ...]:
        done = subprocess.run(
            ["sh", "-c", command], env=_C, capture_output=True, text=True, check=False
        )
        return (int(done.stdout),)

    return run


def _on_one_core(run: Callable[[], tuple[int, ...]]) -> Callable[[], tuple[int, ...]]:
    """Also of the processes that it starts."""

    def alone() -> tuple[int, ...]:
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(cores)})
        try:
            return run()
        finally:
            os.sched_setaffinity(0, cores)

    return alone


def search(data: QueryData, rounds: int) -> list[Row]:
    """A regular expression in values, uncompressed and with zstd; the interpreter has started."""
    scratch = data.directory("search")
    lines = _lines(data.n_small)
    file = scratch / "lines"
    file.write_bytes(b"\n".join(lines) + b"\n")
    subprocess.run(["zstd", "-q", "-3", str(file), "-o", f"{file}.zst"], check=True)
    rows = []
    for codec, pattern, command, against, goal, bound in (
        (
            segmentlog.Codec.ZSTD,
            (_PATTERN,),
            f"zstd -dc {file}.zst | grep -c '{_PATTERN}'",
            "`zstd -dc \\| grep`",
            "≥ 1.0",
            "inflating",
        ),
        (
            segmentlog.Codec.NONE,
            (_PATTERN,),
            f"grep -c '{_PATTERN}' {file}",
            "`grep`",
            "≥ 0.6",
            "the copy out of the page cache, and the checksum",
        ),
        (
            segmentlog.Codec.NONE,
            ("-F", _TEXT),
            f"grep -cF '{_TEXT}' {file}",
            "`grep -F`, one core each",
            "≥ 0.6",
            "the copy out of the page cache, and the checksum",
        ),
    ):
        config = segmentlog.ProducerConfig(codec=codec)
        directory = scratch / codec.name
        if not directory.exists():
            with segmentlog.open_writer(directory, "lines", config=config) as writer:
                writer.append(pa.table({"value": lines}))
        contestants = {"ours": _ours(directory, *pattern), "theirs": _theirs(command)}
        if "one core" in against:
            contestants = {name: _on_one_core(each) for name, each in contestants.items()}
        results = compare(contestants, rounds)
        ours, theirs = results["ours"], results["theirs"]
        n_bytes = file.stat().st_size
        detail = (
            f"{n_bytes / ours.median / 1e6:.0f} against {n_bytes / theirs.median / 1e6:.0f} MB/s "
            f"of values; ±{ours.spread:.0%}, ±{theirs.spread:.0%}; bound by {bound}"
        )
        work = f"`segmentlog grep`, {codec.name.lower()}"
        rows.append(Row(work, against, goal, f"{theirs.median / ours.median:.2f}", detail))
    return rows
