"""Operations on a recorded log directory: each once, or several in turn.

One more is a function that takes a `Run`, begins its job, does its work and notes how it ended,
and a row of `OPERATIONS`.
"""

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from crashing import CALLS, Crash, Forward, around_calls, crash_at, refuse_copies

import segmentlog
from crash_disk.runs import (
    INDEX_INTERVAL_BYTES,
    N_PARTITIONS,
    TOPIC,
    Run,
    read,
    recover_as_a_writer,
    values_of,
    write_job,
)
from segmentlog.errors import CommitInDoubtError, SyncFailedError, UnknownTopicOrPartitionError
from segmentlog.maintain.health.mend import RecoveryKind
from segmentlog.maintain.recover_directory import DirectoryRecovery
from segmentlog.txn.change import take

Operation = Callable[[Run], None]

_TWO = {0: 4, 1: 2}
#: Enough rows for three segments.
ROLLING = {0: 40, 1: 2}


def writes(run: Run, rows: Mapping[int, int] = _TWO, **how: Any) -> None:
    """Write a job, which is acknowledged."""
    job = run.begin(rows, **how)
    write_job(run.directory, job)
    run.end(job, is_committed=True, is_at_rest=True)


def moves(run: Run) -> None:
    """Write a job of which files are moved into the logs."""
    writes(run, {0: 2, 1: 15}, value_bytes=9000)
    moved = [call for call in run.recorder.calls if "rename" in call and ".stage " in call]
    assert len(moved) > 1


def deletes(run: Run) -> None:
    """Delete the topic with all of its records, if it exists."""
    job = run.begin({}, overwrites=True)
    with contextlib.suppress(UnknownTopicOrPartitionError):
        segmentlog.delete_topic(run.directory, TOPIC)
    run.end(job, is_committed=True, is_at_rest=True)


def retains(run: Run) -> None:
    """Remove expired segments: all of them expire, because their timestamps are of 1970."""
    job = run.begin({}, overwrites=True)
    segmentlog.retain(
        run.directory,
        settings={"index.interval.bytes": str(INDEX_INTERVAL_BYTES)},
        kafka_defaults=True,
    )
    run.end(job, is_committed=True, is_at_rest=True)


def retains_by_size(run: Run) -> None:
    """Write a job that begins a segment, and remove the segment of the jobs before it."""
    writes(run, {0: 4})
    number = run.jobs[-1].number
    size = (run.directory / f"{TOPIC}-0" / f"{20:020d}.log").stat().st_size
    job = run.begin({}, first_left={0: number})
    removed = segmentlog.retain(
        run.directory, settings={"retention.ms": "-1", "retention.bytes": str(size)}
    )
    assert [(0, 0, 20)] == [each[1:4] for each in removed if each.partition == 0]
    assert {0} == {each.partition for each in removed}
    run.end(job, is_committed=True, is_at_rest=True)


def deletes_records(run: Run) -> None:
    """Delete the records of one partition, to its end."""
    job = run.begin({}, first_left={0: run.jobs[-1].number + 1})
    segmentlog.delete_records(run.directory, TOPIC, 0, offset=-1)
    run.end(job, is_committed=True, is_at_rest=True)


def compacts(run: Run) -> None:
    """Compact partition 0, whose closed segments keep the last row of each key.

    Nothing is done where segments of the other one are closed: a crash between the two partitions
    leaves one of them compacted.
    """
    bases = [
        sorted(int(path.stem) for path in (run.directory / f"{TOPIC}-{i}").glob("*.log"))
        for i in range(N_PARTITIONS)
    ]
    if [1] != [len(each) for each in bases[1:]]:
        return
    job = run.begin({}, leaves={0: _last_of_keys(run)})
    _compact(run.directory, job.config.topic_config.segment_bytes)
    run.end(job, is_committed=True, is_at_rest=True)


def _last_of_keys(run: Run) -> list[int]:
    """The values of partition 0 that a compaction of its closed segments leaves."""
    log = segmentlog.open_log_dir(run.directory).log(TOPIC, 0)
    active = log.segments[-1].base_offset
    rows = log.scan(columns=["offset", "key", "value"]).read_all().to_pylist()
    last = {row["key"]: row["offset"] for row in rows if row["offset"] < active}
    return [
        int(row["value"][-9:])
        for row in rows
        if row["offset"] >= active or (row["key"] and row["offset"] == last[row["key"]])
    ]


def _compact(directory: Path, segment_bytes: int) -> None:
    settings = {
        "cleanup.policy": "compact",
        "segment.bytes": str(segment_bytes),
        "index.interval.bytes": str(INDEX_INTERVAL_BYTES),
        "min.cleanable.dirty.ratio": "0",
    }
    done = segmentlog.compact(directory, settings=settings)
    assert [0] * len(done) == [each.partition for each in done]


def follows(
    run: Run,
    rows: Mapping[int, int] = _TWO,
    *,
    erases_one: bool = False,
    is_compacted: bool = False,
) -> None:
    """Mirror a directory that is a job ahead, or whose records were erased or compacted."""
    leaves: dict[int, list[int]] = {}
    if is_compacted:
        leaves[0] = _last_of_keys(run)
    if erases_one:
        writes(run, {0: 3}, n_keys=7)
        leaves[0], key = _without_a_key(run)
    job = run.begin({} if leaves else rows, leaves=leaves, is_exchanged=bool(leaves))
    outside = Path(tempfile.mkdtemp())
    source = outside / run.directory.name  # so that its calls count as those of other writes
    with pytest.MonkeyPatch.context() as patch:
        refuse_copies(patch)
        shutil.copytree(run.directory, source)
        if erases_one:
            segmentlog.erase(source, key, TOPIC)
        elif is_compacted:
            _compact(source, segment_bytes=1 << 20)  # the closed segments become one
        else:
            write_job(source, job)
        segmentlog.mirror(source, to=run.directory)
    for each in sorted(outside.rglob("*"), reverse=True):  # `rmtree` opens by descriptors
        each.rmdir() if each.is_dir() else each.unlink()
    outside.rmdir()
    run.end(job, is_committed=True, is_at_rest=True)


def erases(run: Run) -> None:
    """Write a job, and erase and purge a key that one of its records has, and no other record.

    The record is in the active segment, so the log begins a new segment first.  Records of several
    segments would go one segment after the other, which is more than before or after.
    """
    writes(run, {0: 3}, n_keys=7)
    left, key = _without_a_key(run)
    job = run.begin({}, leaves={0: left})
    (done,) = segmentlog.erase(run.directory, key, TOPIC, purge=True)
    assert (0, 1) == (done.partition, done.records)
    run.end(job, is_committed=True, is_at_rest=True)


def _without_a_key(run: Run) -> tuple[list[int], bytes]:
    """The values of partition 0 without those of a key that one record has, and the key."""
    log = segmentlog.open_log_dir(run.directory).log(TOPIC, 0)
    rows = log.scan(columns=["key", "value"]).read_all().to_pylist()
    keys = [row["key"] for row in rows]
    key = next(each for each in reversed(keys) if keys.count(each) == 1)
    return [int(row["value"][-9:]) for row in rows if row["key"] != key], key


def dies(
    run: Run, number: int, rows: Mapping[int, int] = _TWO, again: int | None = None, **how: Any
) -> None:
    """A job whose process dies after this number of calls; then the next writer recovers.

    With `again` that one is gone after so many calls as well, and another one recovers.
    """
    job = run.begin(rows, **how)
    with pytest.MonkeyPatch.context() as patch:
        crash_at(patch, number)
        try:
            write_job(run.directory, job)
        except Crash:
            run.is_disturbed = True
    if again is not None:
        with pytest.MonkeyPatch.context() as patch:
            crash_at(patch, again)
            with contextlib.suppress(Crash):
                recover_as_a_writer(run.directory)
    recover_as_a_writer(run.directory)
    run.end(job, is_committed=values_of([*run.jobs, job]) == read(run.directory))


def fails(run: Run, number: int, rows: Mapping[int, int] = _TWO, **how: Any) -> None:
    """A job in which one call fails, after this number of calls; it continues as errors allow."""
    job = run.begin(rows, **how)
    n_made = 0

    def around(name: str, forward: Forward) -> object:
        nonlocal n_made
        n_made += 1
        if n_made == number + 1:
            run.is_disturbed = True
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)
        return forward()

    with pytest.MonkeyPatch.context() as patch:
        around_calls(patch, CALLS, around)
        try:
            write_job(run.directory, job)
        except CommitInDoubtError:  # it stays undecided
            return
        except (OSError, SyncFailedError):
            is_committed = False
        else:
            is_committed = True
    run.end(job, is_committed=is_committed)


def recovers(run: Run) -> None:
    """Recover as the command ``recover`` does."""
    run.begin_recovery()
    with take(str(run.directory), 60) as held:
        done = [*DirectoryRecovery(held, INDEX_INTERVAL_BYTES).run()]
    assert done[-1].kind is RecoveryKind.MARKED_CLEAN
    run.end_recovery()


OPERATIONS: Mapping[str, Operation] = {
    "append": partial(writes, rows={0: 4}),
    "append to two partitions": writes,
    "append that rolls": partial(writes, rows=ROLLING),
    "append that moves files": moves,
    "overwrite": partial(writes, overwrites=True),
    "delete the topic": deletes,
    "retain": retains,
}
