"""A read of a tier with damaged objects gives all rows or an error."""

import os
import random
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiven_plugin import AivenPlugin
from flipping import Rows, outcome, plant, taken
from tiers import TOPIC_ID, copy_segment, remove_local

import segmentlog
from segmentlog.errors import SegmentLogError
from segmentlog.log.listing import list_segments

COLUMNS = ["offset", "timestamp", "value"]


class Tier(NamedTuple):
    """A log whose first segments are in a tier, and its rows.

    Attributes
    ----------
    root : of the objects.
    options : that read the log with its tier, and those that read the tier alone.
    rows : of the log, and of the tier.
    """

    root: Path
    options: tuple[dict[str, Any], dict[str, Any]]
    rows: tuple[Rows, Rows]

    def wrong(self) -> list[str]:
        """Reads that give neither all rows nor an error."""
        found = []
        for place, options, rows in zip(("log", "tier"), self.options, self.rows, strict=True):
            for name, (expected, how) in _reads(rows).items():
                read = outcome(partial(_scan, options, **how))
                if not isinstance(read, str) and read != expected:
                    offsets = [row[0] for row in read]
                    found.append(f"{place}, {name}: offsets {offsets}")
        return found


def _reads(rows: Rows) -> dict[str, tuple[Rows, dict[str, Any]]]:
    """The expected rows of some reads, and the arguments."""
    middle, last = len(rows) // 2, len(rows) - 5
    return {
        "all": (rows, {}),
        "committed": (rows, {"isolation_level": "read_committed"}),
        "range": (rows[middle : middle + 9], {"start_offset": middle, "end_offset": middle + 9}),
        "end": (rows[last:], {"start_offset": last}),
        "since": (rows[middle:], {"since": rows[middle][1]}),
    }


def _local_tier(partition: Path, root: Path) -> dict[str, Any]:
    bases = [each.base_offset for each in list_segments(str(partition))]
    for base, end in pairwise(bases):
        copy_segment(partition, root, base, end)
    return {"remote_storage": root}


def _aiven_tier(partition: Path, root: Path) -> dict[str, Any]:
    AivenPlugin(root, "", 300, False, None).copy_partition(partition, TOPIC_ID)
    return {"remote_storage": root, "remote_storage_layout": "aiven"}


LAYOUTS: dict[str, Callable[[Path, Path], dict[str, Any]]] = {
    "local": _local_tier,
    "aiven": _aiven_tier,
}


@pytest.fixture(params=LAYOUTS)
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> Tier:
    """Three of four segments are in the tier."""
    log = plant(tmp_path / "logs", "four segments", has_indexes=True, has_checkpoints=True)
    (log.partition / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC_ID}\n")
    (log.partition / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    root = tmp_path / "tier"
    alone = LAYOUTS[request.param](log.partition, root)
    bases = sorted(log.segments)
    remove_local(log.partition, *bases[:-1])
    here = {"path": log.directory, **alone}
    return Tier(root, (here, alone), (log.rows, log.rows[: bases[-1]]))


def _scan(options: dict[str, Any], **how: Any) -> Rows:
    given = {key: value for key, value in options.items() if key != "path"}
    paths = [options["path"]] if "path" in options else []
    log = segmentlog.open_log_dir(*paths, **given).log("t", 0)
    return taken(log.scan(columns=COLUMNS, use_threads=False, **how))


def objects(tier: Tier) -> list[Path]:
    """All objects that are not empty."""
    return sorted(each for each in tier.root.rglob("*") if each.is_file() and each.stat().st_size)


@contextmanager
def holding(path: Path, data: bytes) -> Iterator[None]:
    """A file with other bytes."""
    kept = path.read_bytes()
    path.write_bytes(data)
    yield
    path.write_bytes(kept)


def flipped(path: Path, bit: int) -> bytes:
    """The bytes of a file with one other bit."""
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    return bytes(data)


def is_hidden(path: Path, bit: int) -> bool:
    """Whether a bit is in the base offset of the last batch of a tier.

    No checksum covers it.  Without a log directory, nothing shows where the log ends.
    """
    size = path.stat().st_size
    begin = size - size // 6  # a segment has six batches
    is_last = path.suffix == ".log" and f"{36:020d}" in path.name
    return is_last and begin <= bit // 8 < begin + 8


def seed() -> int:
    """CI flips the same bits in each run. Other runs flip new ones."""
    return 0 if os.environ.get("CI") == "true" else random.SystemRandom().randrange(10**9)


def test_an_undamaged_tier_is_read_whole(tier: Tier) -> None:
    """The other tests compare with these rows."""
    for options, rows in zip(tier.options, tier.rows, strict=True):
        for expected, how in _reads(rows).values():
            assert expected == _scan(options, **how)


def test_a_flipped_bit_of_an_object(tier: Tier) -> None:
    """A random bit of each object is flipped, and one in the last entry of each index."""
    number = seed()
    rng = random.Random(number)
    for path in objects(tier):
        size = path.stat().st_size
        for bit in {rng.randrange(8 * size), 8 * rng.randrange(max(size - 8, 0), size)}:
            if is_hidden(path, bit):
                continue
            with holding(path, flipped(path, bit)):
                assert [] == tier.wrong(), (number, path.name, bit)


def test_a_cut_object(tier: Tier) -> None:
    """Half of an object, one byte fewer, or none are left."""
    for path in objects(tier):
        data = path.read_bytes()
        for n_bytes in (0, len(data) // 2, len(data) - 1):
            with holding(path, data[:n_bytes]):
                assert [] == tier.wrong(), (path.name, n_bytes)


@pytest.mark.slow
@pytest.mark.parametrize(
    "n_bytes",
    [1 << 40, 150 << 20],
    ids=["TiB", "150 MiB"],
)
def test_a_large_sparse_object(tier: Tier, n_bytes: int) -> None:
    """No read, and no verification, takes memory in proportion to its size."""
    for path in objects(tier):
        data = path.read_bytes()
        with path.open("ab") as file:
            file.truncate(n_bytes)
        tracemalloc.start()
        assert [] == tier.wrong(), path.name
        with suppress(SegmentLogError):
            segmentlog.verify(**tier.options[0])
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 100 << 20, path.name
        path.write_bytes(data)


def test_an_object_with_the_bytes_of_another(tier: Tier) -> None:
    """Each log is replaced by each other one."""
    logs = [each for each in objects(tier) if each.suffix == ".log"]
    for path in logs:
        for other in logs:
            with holding(path, other.read_bytes()):
                assert [] == tier.wrong() or path == other, (path.name, other.name)


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_each_bit_of_each_object(tier: Tier) -> None:
    """All bits but those of records, of which one bit of each byte is flipped."""
    for path in objects(tier):
        for bit in range(0, 8 * path.stat().st_size, int(os.environ.get("FLIPS_EVERY", "1"))):
            if is_hidden(path, bit):
                continue
            if path.suffix == ".log" and bit // 8 % 136 >= 61 and bit % 8 != bit // 8 % 8:
                continue
            with holding(path, flipped(path, bit)):
                assert [] == tier.wrong(), (path.name, bit)
