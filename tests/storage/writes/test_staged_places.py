"""Batches are staged for their place in the log, and rewritten only if the log has changed."""

import dataclasses
import os
from pathlib import Path

import pyarrow as pa
import pytest
from large_writes import LARGE, pieces, staged, wide_rows
from plain_writes import numbers, write
from soundness import assert_tidy

import segmentlog
from segmentlog import Producer
from segmentlog.format.topic_config import TopicConfig
from segmentlog.log.checkpoint import read_leader_epochs, write_leader_epochs
from segmentlog.writes.job import WriteJob
from segmentlog.writes.staged_files import TaskExtents

LONG_AGO = 1_600_000_000_000_000_000


def age(directory: Path) -> None:
    """Give all staged files an old time, so that a later write shows."""
    for path in directory.glob("*.stage"):
        os.utime(path, ns=(LONG_AGO, LONG_AGO))


def untouched(directory: Path, partition: int = 0) -> list[int]:
    """Base offsets of the segments that no commit has written to since `age`."""
    segments = segmentlog.open_log_dir(directory).log("t", partition).segments
    return [
        each.base_offset for each in segments if Path(each.path).stat().st_mtime_ns == LONG_AGO
    ]


def set_epoch(directory: Path, epoch: int, start: int) -> None:
    """Give the partition a new leader epoch."""
    path = str(directory / "t-0" / "leader-epoch-checkpoint")
    write_leader_epochs(path, [*read_leader_epochs(path), (epoch, start)])


def epochs(directory: Path) -> dict[int, set[int]]:
    """Leader epochs in the headers of each segment, by its base offset."""
    found: dict[int, set[int]] = {}
    for segment in segmentlog.open_log_dir(directory).log("t", 0).segments:
        data, at = Path(segment.path).read_bytes(), 0
        seen = found.setdefault(segment.base_offset, set())
        while at < len(data):
            seen.add(int.from_bytes(data[at + 12 : at + 16], "big"))
            at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    return found


def staged_place(job: WriteJob) -> tuple[int, int]:
    """The offset and the leader epoch for which a task stages a file of its own."""
    stager = job.stager(0)
    stager.add(wide_rows(0, 700))
    (extent,) = stager.finish()
    assert extent.file.is_own
    return extent.file.offset, extent.file.leader_epoch


def place(directory: Path) -> tuple[int, int]:
    """The place that a task of a new job takes for the end of the log."""
    job = staged(directory)[0]
    found = staged_place(job)
    job.abort()
    return found


def test_the_end_of_a_log_and_its_epoch(tmp_path: Path) -> None:
    """Checkpoints give the places.

    A missing or damaged checkpoint gives none.
    """
    assert (0, 0) == place(tmp_path)
    write(tmp_path, wide_rows(0, 7))
    assert (7, 0) == place(tmp_path)
    set_epoch(tmp_path, 5, 7)
    write(tmp_path, wide_rows(7, 1))
    assert (8, 5) == place(tmp_path)
    job, _ = staged(tmp_path)
    (tmp_path / "replication-offset-checkpoint").write_text("0\n1\nt 0 9999999999999999999\n")
    assert (0, 0) == staged_place(job)
    (tmp_path / "replication-offset-checkpoint").write_text("nonsense")
    assert (0, 0) == staged_place(job)
    job.abort()


def test_a_partition_of_one_task_is_staged_in_its_place(tmp_path: Path) -> None:
    """The files follow the end of the log and each other, with the epoch of the leader."""
    write(tmp_path, *pieces(0, 50), config=LARGE)
    set_epoch(tmp_path, 7, 50)
    job, extents = staged(tmp_path, [*pieces(50, 9000)])
    age(tmp_path)
    job.commit([TaskExtents.of(extents)])

    moved = untouched(tmp_path)
    assert len(moved) > 2
    assert {50, *moved} == {each for each in epochs(tmp_path) if each}
    assert {0: {0}} | {each: {7} for each in moved} == epochs(tmp_path)
    assert [*range(9050)] == numbers(tmp_path)[0]
    assert_tidy(tmp_path)


@pytest.mark.parametrize("change", ["end", "epoch", "both"])
def test_a_log_that_has_grown_since(tmp_path: Path, change: str) -> None:
    """Another job has committed, or the leader has changed, so the batches are rewritten."""
    write(tmp_path, *pieces(0, 50), config=LARGE)
    set_epoch(tmp_path, 7, 50)
    job, extents = staged(tmp_path, [*pieces(150, 9000)])
    age(tmp_path)
    between = 0 if change == "epoch" else 100
    write(tmp_path, *pieces(50, between), config=LARGE)
    if change != "end":
        set_epoch(tmp_path, 9, 50 + between)
    job.commit([TaskExtents.of(extents)])

    assert [] == untouched(tmp_path)
    found = epochs(tmp_path)
    assert {7 if change == "end" else 9} == found.pop(max(found))
    assert [*range(50 + between), *range(150, 9150)] == numbers(tmp_path)[0]
    assert_tidy(tmp_path)


def test_the_second_task_of_a_partition_is_moved_after_the_first(tmp_path: Path) -> None:
    """Both tasks stage for the same place.

    Only the second task's file of that partition is rewritten.
    """
    write(tmp_path, *pieces(0, 50), *pieces(0, 50, 1), num_partitions=2, config=LARGE)
    job, extents = staged(
        tmp_path, [*pieces(50, 3300)], [*pieces(3350, 3300), *pieces(50, 3300, 1)]
    )
    age(tmp_path)
    job.commit([TaskExtents.of(extents)])

    assert ([50], [50]) == (untouched(tmp_path), untouched(tmp_path, 1))
    assert {0: [*range(6650)], 1: [*range(3350)]} == numbers(tmp_path)
    assert_tidy(tmp_path)


def test_the_attempt_that_is_committed_counts(tmp_path: Path) -> None:
    """Two attempts of a task stage for the same place, and one of them is committed there."""
    write(tmp_path, *pieces(0, 50), config=LARGE)
    job, (*both,) = staged(tmp_path, [*pieces(50, 3300)], [*pieces(50, 3300)])
    names = [each.file.name for each in both]
    (second,) = {name.split(".")[3] for name in names} - {names[0].split(".")[3]}
    age(tmp_path)
    mine = [each for each in both if each.file.name.split(".")[3] == second]
    job.commit([TaskExtents.of(mine)])

    assert [50] == untouched(tmp_path)
    assert [*range(3350)] == numbers(tmp_path)[0]
    assert_tidy(tmp_path)


def test_records_that_replace_the_earlier_ones_are_in_their_place(tmp_path: Path) -> None:
    """The offsets of an overwrite follow those of the deleted records."""
    write(tmp_path, *pieces(0, 50), config=LARGE)
    job, extents = staged(tmp_path, [*pieces(50, 3000)], deletes_records=True)
    age(tmp_path)
    job.commit([TaskExtents.of(extents)])

    assert [50] == untouched(tmp_path)
    assert [*range(50, 3050)] == numbers(tmp_path)[0]
    assert 50 == segmentlog.open_log_dir(tmp_path).log("t", 0).log_start_offset
    assert_tidy(tmp_path)


@pytest.mark.parametrize("epoch", [0, 7])
def test_records_that_keep_their_offsets_have_the_epoch(tmp_path: Path, epoch: int) -> None:
    """Their offsets never change. The epoch is that of the log that they are written to."""
    write(tmp_path, *pieces(0, 50), config=LARGE)
    if epoch:
        set_epoch(tmp_path, epoch, 50)
    kept = [
        batch.append_column("offset", pa.array(range(at, at + batch.num_rows), pa.int64()))
        for batch, at in zip(pieces(50, 2800), range(1000, 3800, 700), strict=True)
    ]
    config = dataclasses.replace(LARGE, use_offsets=True)
    job, extents = staged(tmp_path, kept, config=config)
    age(tmp_path)
    job.commit([TaskExtents.of(extents)])

    assert [1000] == untouched(tmp_path)
    assert {epoch} == epochs(tmp_path)[1000]
    assert [*range(2850)] == numbers(tmp_path)[0]
    assert_tidy(tmp_path)


def test_a_log_that_has_become_shorter(tmp_path: Path) -> None:
    """The topic was deleted and created again, so the batches get lower offsets."""
    write(tmp_path, *pieces(0, 500), config=LARGE)
    job, extents = staged(tmp_path, [*pieces(10, 4000)])
    segmentlog.delete_topic(tmp_path, "t")
    write(tmp_path, *pieces(0, 10), config=LARGE)
    job.commit([TaskExtents.of(extents)])

    assert [*range(4010)] == numbers(tmp_path)[0]
    assert_tidy(tmp_path)


def test_a_file_that_is_copied_leaves_its_place(tmp_path: Path) -> None:
    """Segments that roll by time are copied, whatever their place was."""
    config = dataclasses.replace(
        LARGE,
        topic_config=TopicConfig(segment_bytes=400_000, segment_ms=1_000_000),
        use_timestamps=True,
    )
    kind = pa.timestamp("us", "UTC")
    days = [
        batch.append_column("timestamp", pa.array([n * 10**15] * batch.num_rows, kind))
        for n, batch in enumerate(pieces(150, 4000), 2)
    ]
    write(tmp_path, *pieces(0, 50), config=LARGE)
    job, extents = staged(tmp_path, days, config=config)
    write(tmp_path, *pieces(50, 100), config=LARGE)
    job.commit([TaskExtents.of(extents)])

    assert [*range(4150)] == numbers(tmp_path)[0]
    assert len(segmentlog.open_log_dir(tmp_path).log("t", 0).segments) > 4
    assert_tidy(tmp_path)


def test_batches_of_a_producer_that_are_repeated(tmp_path: Path) -> None:
    """The log has some batches of a large file. The other batches are staged again, and follow."""
    write(tmp_path, *pieces(0, 50), config=LARGE)
    set_epoch(tmp_path, 7, 50)
    for first, n_rows in ((0, 1400), (0, 3500), (0, 3500)):
        with segmentlog.open_writer(
            tmp_path, "t", config=LARGE, producer=Producer(1, 0, first)
        ) as writer:
            for batch in pieces(50 + first, n_rows):
                writer.append(batch)
            writer.flush()
            (answer,) = writer.appended
        assert (50, 49 + n_rows) == (answer.base_offset, answer.last_offset)

    assert [*range(3550)] == numbers(tmp_path)[0]
    assert_tidy(tmp_path)
