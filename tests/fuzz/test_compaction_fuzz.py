"""A damaged log is never compacted without an error.

The error names the place, and no file changes.
"""

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dirty_logs import Kind, dirty_log, write_segments

import segmentlog
from segmentlog.errors import CorruptLogError, SegmentLogError, UnsupportedFormatError
from segmentlog.testing.codecs import GZIP, LZ4, NONE, SNAPPY, ZSTD

NOW_MS = 1_800_000_000_000
SETTINGS = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
KINDS = {
    "plain": Kind(n_batches=40),
    "transactions": Kind(n_batches=60, producers=2),
    "codecs": Kind(n_batches=40, codecs=(NONE, GZIP, SNAPPY, LZ4, ZSTD)),
    "old formats": Kind(n_batches=40, magics=(0, 1, 2), codecs=(NONE, GZIP, LZ4)),
}
#: Fields of a batch that its checksum does not cover, and that no reader can check alone.
UNCHECKED = (*range(8), *range(12, 16))
UNCHECKED_OLD = tuple(range(8))

#: Damages the bytes of a file whose batches begin at given positions, and returns the place.
Damage = Callable[[random.Random, bytearray, list[int]], int]


def flip(draw: random.Random, data: bytearray, begins: list[int]) -> int:
    begin = draw.choice(begins)
    end = next((each for each in begins if each > begin), len(data))
    unchecked = UNCHECKED if data[begin + 16] == 2 else UNCHECKED_OLD
    at = draw.choice([each for each in range(begin, end) if each - begin not in unchecked])
    data[at] ^= 1 << draw.randrange(8)
    return at


def zero(draw: random.Random, data: bytearray, begins: list[int]) -> int:
    at = draw.choice(begins)
    data[at : at + draw.randrange(30, 200)] = bytes(len(data[at : at + 30]))
    return at


def cut(draw: random.Random, data: bytearray, begins: list[int]) -> int:
    at = draw.choice([each for each in range(1, len(data)) if each not in begins])
    del data[at:]
    return at


def garbage(draw: random.Random, data: bytearray, begins: list[int]) -> int:
    at = draw.choice([*begins, len(data)])
    data[at:at] = draw.randbytes(draw.randrange(18, 100))
    return at


def repeat(draw: random.Random, data: bytearray, begins: list[int]) -> int:
    """Repeat a batch, so that its offsets are below those before it."""
    begin = draw.choice(begins)
    end = next((each for each in begins if each > begin), len(data))
    data[end:end] = data[begin:end]
    return end


DAMAGES: tuple[Damage, ...] = (flip, flip, flip, zero, cut, garbage, repeat)


def begins_of(data: bytes | bytearray) -> Iterator[int]:
    at = 0
    while at < len(data):
        yield at
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(
    "n_runs", [8, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_a_damaged_batch_stops_the_compaction(tmp_path: Path, name: str, n_runs: int) -> None:
    """Any kind of damage is found in any segment that the compaction reads."""
    made, n_before_it = tmp_path / "made", 0
    for run in range(n_runs):
        draw = random.Random(f"{name} {run}")
        if run % 20 == 0:
            shutil.rmtree(made, ignore_errors=True)
            write_segments(made / "t-0", dirty_log(run, KINDS[name], NOW_MS), NOW_MS)
            (made / ".kafka_cleanshutdown").touch()
            reached = compacted_to(Path(shutil.copytree(made, tmp_path / "sound")))
            shutil.rmtree(tmp_path / "sound")
        directory = Path(shutil.copytree(made, tmp_path / "damaged"))
        logs = sorted((directory / "t-0").glob("*.log"))
        path = draw.choice([each for each in logs if int(each.stem) < reached])
        data = bytearray(path.read_bytes())
        damage = draw.choice(DAMAGES)
        begins = [*begins_of(data)]
        at = damage(draw, data, begins)
        path.write_bytes(data)
        # Headers are checked before checksums: a wrong length leads to bytes that are no header.
        is_length = damage is flip and any(8 <= at - each < 12 for each in begins)
        before = logs_of(directory)
        told = f"{name} {run}: {damage.__name__} {path.name} at {at}"
        error = error_of(directory)
        if error is None:  # a batch that now seems to open a transaction ends the pass before it
            n_before_it += 1
            assert data == path.read_bytes(), told
            shutil.rmtree(directory)
            continue
        assert isinstance(error, CorruptLogError | UnsupportedFormatError), f"{told}: {error!r}"
        assert str(path) == os.fspath(error.path), told
        assert error.position <= at or is_length, f"{told}: {error}"
        assert before == logs_of(directory), told
        assert not (directory / "cleaner-offset-checkpoint").exists(), told
        shutil.rmtree(directory)
    assert n_before_it <= 1 + n_runs / 50


def error_of(directory: Path) -> SegmentLogError | None:
    try:
        segmentlog.compact(directory, settings=SETTINGS, now_ms=NOW_MS)
    except SegmentLogError as error:
        return error
    return None


def compacted_to(directory: Path) -> int:
    """The offset that a compaction of the sound log reaches. An open transaction may limit it."""
    assert error_of(directory) is None
    checkpoint = (directory / "cleaner-offset-checkpoint").read_text().split()
    return int(checkpoint[-1])


def logs_of(directory: Path) -> dict[str, bytes]:
    """All logs, including those that are put aside."""
    return {path.name: path.read_bytes() for path in (directory / "t-0").glob("*.log*")}
