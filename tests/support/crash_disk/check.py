"""Whether a directory that a power cut has left keeps our promises."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import segmentlog
from crash_disk.runs import (
    N_PARTITIONS,
    TOPIC,
    Job,
    Promise,
    has_topic,
    outcome,
    read,
    values_of,
    write_job,
)
from segmentlog.format.kernels import layout
from segmentlog.format.names import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)
from segmentlog.log.batches import walk_batches
from segmentlog.log.checkpoint import read_offsets
from segmentlog.log.producer_snapshot import list_snapshots, read_snapshot, snapshot_path
from segmentlog.log.swaps import finish_swaps
from segmentlog.maintain.verification.findings import Finding, FindingKind
from segmentlog.maintain.verification.verify_log import LogCheck
from segmentlog.txn.guard import list_guards

#: The job of the writer that comes after the power cut.
_NEXT = Job(99, {0: 3, 1: 3})

#: Bytes that an earlier crash may have left after a log's end; they are cut off, and kept aside.
AFTER_THE_LOG = b"torn" * 9

#: By the next compaction, and by the next mirror.
_WRITTEN_OVER = (f"{CLEANER_OFFSET_CHECKPOINT}.tmp", "segmentlog.mirrored.tmp")
#: Endings of files that a dead job may leave; they are swept after a week.
_SWEPT_LATER = (".job", ".stage")


class BrokenPromiseError(AssertionError):
    """A broken promise: who has noticed, and what."""

    def __init__(self, who: str, what: str) -> None:
        super().__init__(who, what)
        self.who, self.what = who, what

    def __str__(self) -> str:
        return f"{self.who}: {self.what}"


def check(directory: Path, promise: Promise) -> None:
    """Look at a directory as it is, let the next writer work, and look again.

    Raises `BrokenPromiseError` if a job is missing, half there or there twice, before or after; if
    anything does not fit together or is left over; if the next writer does not get its own rows
    in.
    """
    with _noticed_by("a reader"):
        seen = read(directory)
        jobs = outcome(promise, seen)
    with _noticed_by("a reader up to the log end"):
        to_the_end = read(directory, read_up_to=segmentlog.ReadUpTo.LOG_END)
        assert seen == to_the_end, f"sees {to_the_end}, not {seen}"
    with _noticed_by("a broker"):
        _start_as_a_broker(directory, promise)
    with _noticed_by("the next writer"):
        write_job(directory, _NEXT)
    with _noticed_by("a reader after recovery"):
        after = read(directory)
        if any(job.is_exchanged for job in promise.outcomes[-1]):
            # It was decided, and the next writer has exchanged the files.
            jobs = next(
                (each for each in promise.outcomes if values_of([*each, _NEXT]) == after), jobs
            )
        expected = values_of([*jobs, _NEXT])
        assert after == expected, f"sees {after}, not {expected}"
    with _noticed_by("the next compaction"):
        read_offsets(str(directory), CLEANER_OFFSET_CHECKPOINT)
    with _noticed_by("verify"):
        _assert_sound(directory, jobs)
    with _noticed_by("a look at the names"):
        left = _left_over(directory)
        assert [] == left, left
    with _noticed_by("a look at what was cut off"):
        cut = {path.read_bytes() for path in directory.rglob("*.broken")}
        assert cut <= {AFTER_THE_LOG}, cut


def check_unsynced(directory: Path, promise: Promise) -> None:
    """Check a directory in which a job was not synced, and a part of it is lost.

    Synced records are there, and a first part of the others. Nothing claims more records.
    """
    with _noticed_by("a broker"):
        _start_as_a_broker(directory, promise)
    with _noticed_by("the next writer"):
        write_job(directory, _NEXT)
    with _noticed_by("a reader after recovery"):
        after = read(directory)
        synced = [job for job in promise.acknowledged if job.flush]
        most, least = values_of(promise.outcomes[-1]), values_of(synced)
        for partition, values in after.items():
            own = _NEXT.values(partition)
            kept = values[: -len(own)]
            assert values == [*kept, *own], values
            assert most[partition][: len(kept)] == kept, kept
            assert least[partition] == kept[: len(least[partition])], kept
    with _noticed_by("verify"):
        _assert_sound(directory, promise.outcomes[-1])
    with _noticed_by("a look at the names"):
        left = _left_over(directory)
        assert [] == left, left


@contextmanager
def _noticed_by(who: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        what = str(error) if type(error) is AssertionError else repr(error)
        raise BrokenPromiseError(who, what.split("\nassert")[0]) from error


def _start_as_a_broker(directory: Path, promise: Promise) -> None:
    """If no guard keeps a broker out, all that is written about the logs must be true.

    A broker that finds the mark of a clean stop trusts every file.  It has to find it, and its
    recovery points, where a job that was synced is acknowledged: it reads all logs otherwise.
    Before all this it finishes or undoes a compaction.
    """
    if not has_topic(directory):
        return
    if not promise.is_at_rest and _swapped(directory):
        seen = read(directory)
        with tempfile.TemporaryDirectory(dir=directory.parent) as copy:
            started = shutil.copytree(directory, Path(copy) / directory.name)
            for each in started.glob(f"{TOPIC}-*"):
                finish_swaps(str(each))
            assert not _swapped(started)
            assert seen == read(started), f"serves {read(started)}, readers saw {seen}"
            _start_as_a_broker(started, promise)
        return
    guards = list_guards(str(directory))
    assert not (guards and promise.is_at_rest), f"is kept out by {guards[0].path}"
    is_marked = (directory / CLEAN_SHUTDOWN_FILE).exists()
    if not guards and is_marked:
        found = _findings(directory, promise.outcomes[-1])
        assert [] == found, f"trusts files in which verify finds {found}"
        _assert_snapshots_are_true(directory)
    if promise.is_at_rest:
        assert promise.was_clean == is_marked, f"the mark of a clean stop: {is_marked}"
    if promise.is_at_rest and is_marked:
        points = read_offsets(str(directory), RECOVERY_POINT_CHECKPOINT)
        opened = segmentlog.open_log_dir(directory)
        ends = {each: opened.log(*each).log_end_offset for each in opened.topic_partitions()}
        assert ends == points, f"recovers from {points}, the logs end at {ends}"


def _swapped(directory: Path) -> list[Path]:
    """Files of an unfinished compaction."""
    return [*directory.rglob("*.swap"), *directory.rglob("*.cleaned")]


def _assert_snapshots_are_true(directory: Path) -> None:
    """A snapshot has every producer below its offset, with its last batch there.

    A log of producers has one: a broker that finds none does not look at the batches.
    """
    opened = segmentlog.open_log_dir(directory)
    for topic_partition in opened.topic_partitions():
        log = opened.log(*topic_partition)
        batches = [
            (producer_id, last_offset)
            for walked in walk_batches(log.segments, 0)
            for producer_id, last_offset in walked.scanned.headers[
                :, [layout.PRODUCER_ID, layout.LAST_OFFSET]
            ].tolist()
            if producer_id >= 0
        ]
        offsets = list_snapshots(log.path)
        assert offsets or not batches, f"forgets the producers of {topic_partition}"
        for offset in offsets:
            assert offset <= log.log_end_offset, f"{offset} is beyond the log end"
            known = read_snapshot(snapshot_path(log.path, offset))
            found = {each.producer_id: each.last_offset for each in known}
            expected = {each: last for each, last in batches if last < offset}
            assert expected == found, f"believes {found} of {topic_partition} at {offset}"


def _findings(directory: Path, jobs: Sequence[Job]) -> list[Finding]:
    """The findings of verify, without the gaps that a compaction among the jobs leaves."""
    opened = segmentlog.open_log_dir(directory)
    return [
        finding
        for topic_partition in opened.topic_partitions()
        for finding in LogCheck(opened.log(*topic_partition)).findings()
        if finding.kind is not FindingKind.OFFSET_GAP or not any(job.leaves for job in jobs)
    ]


def _assert_sound(directory: Path, jobs: Sequence[Job]) -> None:
    """There are no findings, not even a gap, and the topic has all of its partitions."""
    found = _findings(directory, jobs)
    assert [] == found, found
    _assert_snapshots_are_true(directory)
    topics = segmentlog.open_log_dir(directory).topics()
    assert {TOPIC: [*range(N_PARTITIONS)]} == topics, topics


def _left_over(directory: Path) -> list[str]:
    """Names that must not exist at the end."""
    names = [str(path.relative_to(directory)) for path in directory.rglob("*")]
    ours = [name for name in names if name.startswith("segmentlog.")]
    stay = {"segmentlog.state", "segmentlog.mirrored", "segmentlog.mirrored.tmp"}
    left = [name for name in ours if not name.endswith(_SWEPT_LATER) and name not in stay]
    rest = [name for name in names if name.endswith((".tmp", ".swap", ".cleaned"))]
    return left + [name for name in rest if name not in _WRITTEN_OVER]
