"""Compaction of a log in an object store: joins small extents, and keeps the last of each key.

There is no lock: the steps are commits (`segmentlog.bucket.rewriting`), and no append fails
because of them.  First the runs of small extents of all topics are joined.  Then the topics whose
``cleanup.policy`` has ``compact`` are cleaned, by the rules for directories
(`segmentlog.maintain.compaction.clean_partition`).  Each extent counts as a closed segment, and
ages count by the clock of the store.

A partition is the work of one task, here or in another process, and has data objects of its own.
A task that finds other extents than were planned gives its partition up: another compaction, a
retention or a mirror was quicker, and nothing is lost.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from secrets import token_hex
from typing import Any, NamedTuple, TypeAlias

from segmentlog.bucket.clients import objects_at
from segmentlog.bucket.commits import COMPACTION
from segmentlog.bucket.data_objects import MOST_EXTENT_BYTES
from segmentlog.bucket.disk import bucket_disk, inode_of
from segmentlog.bucket.extents import PartitionLog, PlacedExtent
from segmentlog.bucket.rewriting import (
    Exchange,
    ExtentWriter,
    Replacement,
    is_rewritable,
    merge_runs,
    small_runs,
)
from segmentlog.bucket.sequence import opened_at, sequence_at
from segmentlog.bucket.upkeep import time_of_store
from segmentlog.cluster.directory_settings import (
    OF_COMPACTION,
    DirectorySettings,
    partitions_for_upkeep,
)
from segmentlog.errors import SegmentLogError
from segmentlog.log.indexes import AbortedTransaction
from segmentlog.maintain.compaction.clean_partition import CleaningPass
from segmentlog.maintain.compaction.compact import (
    CleanerConfig,
    CompactedPartition,
    CompactionSettings,
    LogToClean,
    find_cleanable,
    logs_to_clean,
)
from segmentlog.model import TopicPartition
from segmentlog.reads.log_directory import open_log_dir
from segmentlog.store.paths import BucketLocation, parse_bucket
from segmentlog.store.system_errors import Failures, storage_errors

#: Partitions that take part in one commit have so many bytes together; a larger one is alone.
_COMMIT_BYTES = 4 << 30

_NO_LIMIT = 2**62


class RewriteTask(NamedTuple):
    """A partition of which extents are to be written again; it can be pickled."""

    root: str  # the path of the log
    job: str  # whose commit names the new objects
    number: int  # of the partition in the job
    at: TopicPartition
    runs: tuple[tuple[PlacedExtent, ...], ...]  # that are joined; none if keys are compacted
    cleaner: CleanerConfig
    log: LogToClean | None = None  # what is compacted by key

    @property
    def n_bytes(self) -> int:
        """Bytes that are read."""
        return self.log.n_bytes if self.log else sum(e.size for run in self.runs for e in run)


class Rewritten(NamedTuple):
    """What a task has written."""

    exchanges: list[Exchange]
    done: CompactedPartition  # once they are part of the log

    @classmethod
    def of(
        cls, exchanges: Iterable[Sequence[Sequence[Sequence[Any]]]], done: Sequence[Any]
    ) -> "Rewritten":
        """What JSON has made lists of."""

        def extents(rows: Sequence[Sequence[Any]]) -> tuple[PlacedExtent, ...]:
            return tuple(PlacedExtent(*row) for row in rows)

        made = [Exchange(extents(old), extents(new)) for old, new in exchanges]
        return cls(made, CompactedPartition(*done))


#: None if the extents of the partition have changed meanwhile, or nothing was left to do.
Outcome: TypeAlias = Rewritten | SegmentLogError | None

#: Carries out tasks, each in any process; gives the outcome of each.
Run: TypeAlias = Callable[[Sequence[RewriteTask]], Iterable[tuple[RewriteTask, Outcome]]]


def compact_in_store(
    location: BucketLocation, given: CompactionSettings, run: Run | None = None
) -> list[CompactedPartition]:
    """Compact a log in an object store; see `segmentlog.compact`.

    `run`: carries out the tasks; by default they follow each other in this process.
    """
    failures, done = Failures(given.on_failure), dict[TopicPartition, CompactedPartition]()
    with storage_errors(location.root):
        job = _Compaction(location, given, run or _run_here(given), failures)
        for each in job.merged():
            done[TopicPartition(*each[:2])] = each
        for each in job.cleaned():
            at = TopicPartition(*each[:2])
            done[at] = _both(done[at], each) if at in done else each
    failures.end()
    return [done[at] for at in sorted(done)]


def _both(first: CompactedPartition, then: CompactedPartition) -> CompactedPartition:
    """The result of two steps in one partition: the second has read what the first has written."""
    if not then.n_passes:  # of a dry run
        return then
    dirty = then if first.first_dirty_offset < 0 else first
    return then._replace(
        first_dirty_offset=dirty.first_dirty_offset,
        dirty_ratio=dirty.dirty_ratio,
        n_passes=then.n_passes + (first.n_passes if first.first_dirty_offset >= 0 else 0),
        segments_before=then.segments_before + first.segments_before - first.segments_after,
        bytes_before=then.bytes_before + first.bytes_before - first.bytes_after,
        records_before=then.records_before + first.records_before - first.records_after,
        records_without_key=then.records_without_key + max(first.records_without_key, 0),
    )


class _Compaction:
    def __init__(
        self, location: BucketLocation, given: CompactionSettings, run: Run, failures: Failures
    ) -> None:
        self._location, self._given, self._run = location, given, run
        self._failures, self._root = failures, location.root
        self._sequence = opened_at(location)
        has_settings = bool(given.settings)
        self._partitions = partitions_for_upkeep(
            self._root, given.topics, has_settings=has_settings
        )
        self._known = DirectorySettings.read(
            self._root,
            given.settings,
            given.metadata,
            given.server_properties,
            topics=given.topics,
            needs=OF_COMPACTION,
        )
        now_ms = given.now_ms
        if now_ms is None and given.dry_run:  # which writes nothing
            now_ms = int(time.time() * 1000)
        self._cleaner = CleanerConfig(
            given.dedupe_buffer_bytes,
            given.load_factor,
            given.producer_expiration_ms,
            time_of_store(self._sequence) if now_ms is None else now_ms,
            keeps_last_batch=True,
        )

    def merged(self) -> Iterator[CompactedPartition]:
        """Join small extents."""
        state = self._sequence.refresh()
        found = {
            at: small_runs(at, state.logs[at], self._known.config(at.topic))
            for at in self._partitions
            if at in state.logs
        }
        tasks = [
            RewriteTask(self._root, "", 0, at, tuple(runs), self._cleaner)
            for at, runs in found.items()
            if runs
        ]
        if self._given.dry_run:
            yield from (_merged(each, None) for each in tasks)
        else:
            yield from self._carried_out(tasks)

    def cleaned(self) -> Iterator[CompactedPartition]:
        """Keep the last record of each key, in as many passes as its keys need."""
        left = self._partitions
        while left:
            due = self._due(left)
            if self._given.dry_run:
                yield from (each.summary for each in due)
                return
            if due:
                self._sequence.refuse_features(self._sequence.known, [COMPACTION])
            tasks = [
                RewriteTask(self._root, "", 0, each.topic_partition, (), self._cleaner, each)
                for each in due
            ]
            ends, left = {each.topic_partition: each.end_offset for each in due}, []
            for each in self._carried_out(tasks):
                yield each
                at = TopicPartition(*each[:2])
                if each.clean_to < ends[at]:
                    left.append(at)

    def _due(self, partitions: Sequence[TopicPartition]) -> list[LogToClean]:
        state = self._sequence.refresh()
        own = [at for at in partitions if at in state.logs and is_rewritable(state.logs[at])]
        cleaned = {at: state.logs[at].cleaned_to for at in own if state.logs[at].cleaned_to >= 0}
        now_ms = self._cleaner.now_ms
        logs = logs_to_clean(self._root, own, self._known.config, cleaned, now_ms, self._failures)
        return [
            each
            for each in logs
            if each.is_due and str(each.topic_partition) not in self._failures.errors
        ]

    def _carried_out(self, tasks: Sequence[RewriteTask]) -> Iterator[CompactedPartition]:
        """Run tasks, and commit what they have written; the results of those that are done."""
        begin = 0
        while begin < len(tasks):
            end, n_bytes = begin, 0
            for task in tasks[begin:]:
                n_bytes += task.n_bytes
                if n_bytes > _COMMIT_BYTES and end > begin:
                    break
                end += 1
            job = token_hex(8)
            part = [
                each._replace(job=job, number=number)
                for number, each in enumerate(tasks[begin:end])
            ]
            yield from self._committed(job, part)
            begin = end

    def _committed(self, job: str, tasks: Sequence[RewriteTask]) -> Iterator[CompactedPartition]:
        found = dict[TopicPartition, Rewritten]()
        for task, outcome in self._run(tasks):
            if isinstance(outcome, SegmentLogError):
                self._failures.add(task.at, outcome)
            elif outcome is not None and outcome.exchanges:
                found[task.at] = outcome
        if not found:
            return
        exchanges = {at: each.exchanges for at, each in found.items()}
        cleaned = {at: each.done.clean_to for at, each in found.items() if each.done.clean_to >= 0}
        done = Replacement(self._location, job, exchanges, cleaned).commit()
        yield from (found[at].done for at in sorted(done))


def _run_here(given: CompactionSettings) -> Run:
    def run(tasks: Sequence[RewriteTask]) -> Iterator[tuple[RewriteTask, Outcome]]:
        for each in tasks:
            given.on_log(str(each.at))
            yield each, rewrite_task(each, given.on_phase)

    return run


def rewrite_task(task: RewriteTask, on_phase: Callable[[str], object] = lambda _: None) -> Outcome:
    """Write what is to take the place of extents of a partition; errors are the outcome, too."""
    location, _ = parse_bucket(task.root)
    sequence = sequence_at(location)
    before = sequence.refresh().logs.get(task.at)
    try:
        with storage_errors(task.root):
            return _merge(location, task, on_phase) if task.runs else _clean(task, on_phase)
    except SegmentLogError as error:
        return error if _has_all(sequence.refresh().logs.get(task.at), before) else None


def _has_all(log: PartitionLog | None, before: PartitionLog | None) -> bool:
    """Whether a partition still has all its extents: an error is about them."""
    if log is None or before is None:
        return False
    n, starts = before.n_extents, log.extents.columns["start"]
    return log.objects[:n] == before.objects and starts[:n] == before.column("start")


def _merge(
    location: BucketLocation, task: RewriteTask, on_phase: Callable[[str], object]
) -> Rewritten:
    n_extents = sum(map(len, task.runs))
    on_phase(f"{task.at}: joins {n_extents} segments")
    exchanges = merge_runs(location, task.job, task.number, task.runs)
    return Rewritten(exchanges, _merged(task, exchanges))


def _merged(task: RewriteTask, exchanges: Sequence[Exchange] | None) -> CompactedPartition:
    """The result of joining extents, or of a dry run."""
    old = [each for run in task.runs for each in run]
    found = CompactedPartition(
        *task.at,
        -1,
        -1,
        0.0,
        segments_before=len(old),
        bytes_before=sum(each.size for each in old),
    )
    if exchanges is None:
        return found
    new = [each for exchange in exchanges for each in exchange.new]
    return found._replace(
        n_passes=1,
        segments_after=len(new),
        bytes_after=sum(each.size for each in new),
        records_before=sum(each.n_records for each in old),
        records_after=sum(each.n_records for each in new),
        records_without_key=0,
    )


def _clean(task: RewriteTask, on_phase: Callable[[str], object]) -> Rewritten | None:
    """One pass over the cleanable part of a log."""
    location, _ = parse_bucket(task.root)
    planned, at = task.log, task.at
    log = open_log_dir(task.root).log(*at)
    mine = bucket_disk(task.root).state.logs.get(at) or PartitionLog()
    if planned is None:
        return None
    config = replace(
        planned.config, segment_bytes=MOST_EXTENT_BYTES, segment_index_bytes=_NO_LIMIT
    )
    dirty = find_cleanable(log, planned.checkpoint, config, task.cleaner.now_ms)
    if not dirty.is_due:
        return None
    one = CleaningPass(log, dirty, task.cleaner, (), on_phase)
    bases = mine.extents.columns["base_offset"]
    old = mine.placed(at, 0, bisect_left(bases, one.clean_to, 0, mine.n_extents))
    by_base = {each.base_offset: each for each in old}
    # A segment without bytes stands at a log start at which compaction has left nothing.
    segments = [each for each in one.cleaned if each.size]
    if [each.inode for each in segments] != [inode_of(each) for each in old] or not old:
        return None
    writer = ExtentWriter(objects_at(location), task.job, task.number, at)
    new = []
    try:
        for i, group in enumerate(one.groups):
            on_phase(f"{at}: writes segment {i + 1} of {len(one.groups)}")
            kept = [each for each in one.cleaned[group] if each.size]
            if not kept:
                continue
            writer.begin(kept[0].base_offset)
            aborted: list[AbortedTransaction] = []
            for each in kept:
                end_offset = by_base[each.base_offset].end_offset
                for data, lines in one.cleaner.kept_of(each, end_offset, aborted):
                    writer.append(data, lines)
            if (extent := writer.end(end_offset, aborted)) is not None:
                new.append(extent)
        writer.flush()
    finally:
        writer.close()
    return Rewritten([Exchange(tuple(old), tuple(new))], one.done([each.size for each in new]))
