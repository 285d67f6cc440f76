"""Logs in other places than one directory, files that change meanwhile, and full disks."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tiers import copy_segment, written

import segmentlog
from segmentlog.audits import comparison, spill, table_offsets
from segmentlog.errors import StorageError
from segmentlog.testing.kafka_log import KafkaLog


def rows_of(*offsets: int) -> pa.Table:
    """A table with rows of one partition."""
    return pa.table({"partition": pa.array([0] * len(offsets)), "offset": offsets})


def ranges(audit: segmentlog.Audit, finding: str) -> list[tuple[int, int]]:
    return [
        (each["start_offset"], each["end_offset"])
        for each in audit.ranges(finding).read_all().to_pylist()
    ]


def test_a_log_that_begins_in_a_tier(tmp_path: Path) -> None:
    """Segments that are only in the tier count, and the missing records come from there."""
    partition, tier = written(tmp_path / "logs", 3, 10), tmp_path / "tier"
    for number in range(2):
        copy_segment(partition, tier, 10 * number, 10 * number + 10)
        for path in partition.glob(f"{10 * number:020d}.*"):
            path.unlink()

    table = rows_of(*range(7), *range(8, 25))
    audit = segmentlog.audit(tmp_path / "logs", "t", table, remote_storage=tier)

    assert [(7, 8), (25, 30)] == ranges(audit, "missing")
    assert [b"0-7", b"2-5"] == audit.missing(["value"]).read_all()["value"].to_pylist()[:2]


def test_a_log_in_an_object_store(tmp_path: Path) -> None:
    """Its batches are those of the commits."""
    path = f"bucket+file://{tmp_path}/bucket"
    for number in range(3):
        with segmentlog.open_writer(path, "t", num_partitions=1) as writer:
            writer.append(pa.table({"value": [b"%d-%d" % (number, i) for i in range(4)]}))

    audit = segmentlog.audit(path, "t", rows_of(0, 1, 2, 3, 5, 5, 12))

    assert [(4, 5), (6, 12)] == ranges(audit, "missing")
    assert ([(5, 6)], [(12, 13)]) == (ranges(audit, "duplicates"), ranges(audit, "nonexistent"))
    assert 7 == audit.missing().read_all().num_rows


def test_disks_of_one_broker(tmp_path: Path) -> None:
    """Each disk has some of the partitions."""
    for disk in range(2):
        KafkaLog(tmp_path / f"disk{disk}").write("t", [b"v"] * 3, partition=0)
    os.rename(tmp_path / "disk1" / "t-0", tmp_path / "disk1" / "t-1")
    for place in tmp_path.glob("disk*/*checkpoint"):
        place.unlink()
    disks = segmentlog.open_log_dir(tmp_path / "disk0", tmp_path / "disk1")

    audit = segmentlog.audit(disks, "t", pa.table({"partition": [0, 1, 1], "offset": [0, 1, 2]}))

    assert [(1, 3), (0, 1)] == ranges(audit, "missing")


def test_replicas_of_a_cluster() -> None:
    """The copies of several brokers are one log."""
    brokers = Path(__file__).parents[3] / "examples" / "brokers"
    opened = segmentlog.open_replicas(*sorted(brokers.glob("b*")))
    every = pa.concat_tables(
        [
            segmentlog.read(opened, topic, columns=["topic", "partition", "offset"])
            for topic in opened.topics()
        ]
    )

    audit = segmentlog.audit(opened, list(opened.topics()), every.slice(1))

    assert (1, 0) == (audit.count("missing"), audit.count("nonexistent"))
    assert every.slice(0, 1).equals(audit.missing(every.column_names).read_all())


def test_compaction_while_the_log_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Findings are those of the compacted log: what is missing there is missing for certain."""
    log = KafkaLog(tmp_path)
    for _ in range(3):
        log.write("t", [{"key": "a", "value": b"v"}, {"key": "b", "value": b"v"}])
    contents, attempts = comparison.log_contents, []

    def compacting(*arguments: Any) -> Iterator[Any]:
        attempts.append(arguments)
        yield from contents(*arguments)
        if len(attempts) == 1:
            log.compact("t")

    monkeypatch.setattr(comparison, "log_contents", compacting)
    audit = segmentlog.audit(log, "t", rows_of(0, 5))

    assert 2 == len(attempts)
    assert [(4, 5)] == ranges(audit, "missing")
    assert ([(0, 1)], [(1, 4)]) == (ranges(audit, "removed"), ranges(audit, "possibly_missing"))
    assert 1 == audit.missing().read_all().num_rows


def test_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither rows nor ranges are lost in silence: the error names the directory."""
    log = KafkaLog(tmp_path / "logs")
    log.write("t", [b"v"] * 50)
    monkeypatch.setattr(table_offsets, "_MOST_COLLECTED", 4)
    monkeypatch.setattr(table_offsets, "_MOST_IN_MEMORY", 4)
    of_ranges = spill._MOST_IN_MEMORY
    written, room = os.pwrite, 100

    def full(descriptor: int, data: bytes, at: int) -> int:
        if at + len(data) <= room:
            return written(descriptor, data, at)
        if at >= room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written(descriptor, memoryview(data)[: room - at], at)

    place = tmp_path / "spill"
    place.mkdir()
    table = rows_of(*np.random.default_rng(1).permutation(range(0, 50, 2)).tolist())
    monkeypatch.setattr(os, "pwrite", full)
    for limit in (of_ranges, 0):
        monkeypatch.setattr(spill, "_MOST_IN_MEMORY", limit)
        with pytest.raises(StorageError, match="No space left on device") as caught:
            segmentlog.audit(log, "t", table, spill_directory=place)
        assert str(place) == caught.value.filename
    assert not [*place.iterdir()]
