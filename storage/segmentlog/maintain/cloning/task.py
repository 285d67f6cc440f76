"""The tasks of a clone: each stages some of its rows, perhaps in a process of its own.

If the partitions of records change, all partitions of the source are cut at the same times into
windows, which can be read side by side.  A window begins in each partition at the first record of
its time or later.  So all records before it are older, and the windows, each merged by time, are
together the timeline of all partitions (`segmentlog.arrow_dataset.log_scanner`).

Groups skip nothing in a clone, and repeat as little as possible.  A group has read each partition
of the source up to some offset.  In each partition of the clone, it goes on at the first record
that it has not read.  Of the records after that one, it reads those that it knows once more: it
has one place in a partition, and not one for each old partition.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from segmentlog.arrow_dataset.bounds import DatasetBounds, PartitionBounds
from segmentlog.arrow_dataset.log_dataset import LogDataset
from segmentlog.format.kernels.memory import Int32s, Int64s
from segmentlog.format.records.columns import with_times
from segmentlog.format.records.encoder import cast_column
from segmentlog.maintain.cloning.cloned_rows import COLUMNS, Changes, Cloned, RowMaker, RowRules
from segmentlog.maintain.offset_map import map_piece
from segmentlog.model import (
    LARGEST_LONG,
    IsolationLevel,
    OffsetRange,
    ReadUpTo,
)
from segmentlog.reads.ordered_reads import n_threads_of, read_in_order
from segmentlog.writes.job import WriteJob
from segmentlog.writes.stager import group_rows

if TYPE_CHECKING:
    from segmentlog.writes.staged_files import TaskExtents

_MOST_LOOKUPS = 4096  #: of a time in a partition


class CloneTask(NamedTuple):
    """Some rows of a clone, which one process stages.  It is picklable if the transform is.

    `number`: the place of its rows among those of all tasks.  `windows`: which it reads, in their
    order.  `job`: None in a dry run.  `group_offsets`: of the groups, as `group_table` has them.
    `map_directory`: where the task writes its piece of the offset map; None without a map.
    """

    number: int
    windows: tuple[DatasetBounds, ...]
    rules: RowRules
    job: WriteJob | None
    group_offsets: Int64s
    map_directory: str | None = None


class TaskOutcome(NamedTuple):
    """What a task has staged, and what it has met.

    `starts`, `ends`: the old offset of the first record of each partition, and that after the
    last, if partitions are kept; shape (n_target,).
    """

    number: int
    extents: "TaskExtents | None"
    groups: "GroupPlaces"
    starts: Int64s
    ends: Int64s
    changes: Changes
    unknown_ids: tuple[int, ...]
    is_misplaced: bool


def run_task(
    task: CloneTask,
    *,
    commits_here: bool = False,
    on_records: Callable[[int], object] = lambda _: None,
    on_misplaced: Callable[[], object] = lambda: None,
    on_cloned: Callable[[Cloned, Int64s], object] | None = None,
) -> TaskOutcome:
    """Stage the rows of a task; one that fails leaves no file.

    `commits_here`: see `WriteJob.stager`.  `on_records`: called with the number of records of each
    batch that is read.  `on_misplaced`: called once, as soon as a key may be in two partitions.
    `on_cloned`: called with the rows, and their numbers in their new partitions.
    """
    if task.map_directory is not None:
        with map_piece(task.map_directory, task.number) as piece:
            topic = task.rules.topic
            keeps_offsets = task.job is not None and task.job.config.use_offsets

            def note(made: Cloned, numbers: Int64s) -> None:
                offsets = made.offsets if keeps_offsets else numbers
                piece.add(topic, made.partitions, made.offsets, made.targets, offsets)

            return run_task(task._replace(map_directory=None), on_cloned=note)
    rules = task.rules
    maker = RowMaker(rules, task.number)
    places = GroupPlaces(task.group_offsets, rules.n_target)
    starts: Int64s = np.full(rules.n_target, LARGEST_LONG)
    ends: Int64s = np.zeros(rules.n_target, np.int64)
    stager = None
    if task.job is not None:
        stager = task.job.stager(task.number, commits_here=commits_here)
    was_misplaced = False
    batches = _batches(task.windows, merges=not rules.keeps_partitions)
    try:
        for batch in batches if rules.transform else map(with_times, batches):
            made = maker.make(batch)
            if maker.is_misplaced and not was_misplaced:
                was_misplaced = True
                on_misplaced()
            numbers = places.numbers(made.targets)
            places.add(made.partitions, made.offsets, made.targets, numbers)
            if rules.keeps_partitions and len(made.offsets):
                # Without a merge, the rows of a batch are of one partition.
                partition = made.targets[0]
                starts[partition] = min(starts[partition], made.offsets[0])
                ends[partition] = made.offsets[-1] + 1
            if on_cloned is not None:
                on_cloned(made, numbers)
            if stager is not None:
                at = made.rows.schema.get_field_index("partition")
                stager.add(made.rows.set_column(at, "partition", pa.array(made.targets)))
            on_records(batch.num_rows)
        extents = None if stager is None else stager.finish()
        if task.job is not None:
            task.job.check_begun()
    except BaseException:
        if stager is not None:
            stager.discard()
        raise
    return TaskOutcome(
        task.number,
        extents,
        places,
        starts,
        ends,
        maker.changes,
        tuple(sorted(maker.unknown_ids)),
        maker.is_misplaced,
    )


def keys_of(windows: Sequence[DatasetBounds], rules: RowRules) -> Iterator[pa.RecordBatch]:
    """The keys of the clone, with the old partition and offset; each batch is of one partition."""
    maker = RowMaker(rules)
    needs_all = rules.changes_rows or rules.key_schema_ids
    columns = COLUMNS if needs_all else ("key", "partition", "offset")
    for window in windows:
        for batch in LogDataset(window, include_headers=True).scanner(columns).to_batches():
            rows = maker.changed(batch) if needs_all else batch
            yield pa.RecordBatch.from_pydict(
                {
                    "key": cast_column("key", rows["key"], pa.binary()),
                    "partition": rows["partition"],
                    "offset": rows["offset"],
                }
            )


def _batches(windows: Sequence[DatasetBounds], *, merges: bool) -> Iterator[pa.RecordBatch]:
    """The rows of windows, one after the other; each by time, or by partition and offset."""

    def read(window: DatasetBounds) -> Iterator[pa.RecordBatch]:
        rows = LogDataset(window, include_headers=True)
        return rows.scanner(COLUMNS, order="timestamp", use_threads=False).to_batches()

    if merges and any(len(each.partitions) > 1 for each in windows):
        yield from read_in_order(
            [partial(read, each) for each in windows], n_threads_of(use_threads=True)
        )
        return
    for each in windows:
        yield from LogDataset(each, include_headers=True).scanner(COLUMNS).to_batches()


class GroupPlaces:
    """The places of groups in the rows of one task.

    `offsets`: int64 array, shape (n_groups, n_source): the next offset of each group in each
    partition of the source.  `n_target`: partitions of the clone.

    `first`: int64 array, shape (n_groups, n_target): the number of the first row of a partition
    that the group has not read, counted in the task; -1 for none.  `n_read`: number of rows that
    it has read, of the same shape.  `counts`: int64 array, shape (n_target,): all rows.
    """

    def __init__(self, offsets: Int64s, n_target: int) -> None:
        self._offsets = offsets
        self._n_source = offsets.shape[1]
        self.counts: Int64s = np.zeros(n_target, np.int64)
        self.first: Int64s = np.full((len(offsets), n_target), -1, np.int64)
        self.n_read: Int64s = np.zeros((len(offsets), n_target), np.int64)

    def numbers(self, targets: Int32s) -> Int64s:
        """The number of each row within its new partition; int64 array, shape (n_rows,).

        The rows are counted by `add`.
        """
        order, starts = group_rows(targets, len(self.counts))
        numbers: Int64s = np.empty(len(targets), np.int64)
        lengths = np.diff(starts)
        numbers[order] = np.arange(len(order)) + np.repeat(self.counts - starts[:-1], lengths)
        return numbers

    def add(self, partitions: Int32s, offsets: Int64s, targets: Int32s, numbers: Int64s) -> None:
        """Take rows, in their order."""
        counts = np.bincount(targets, minlength=len(self.counts))
        self.counts += counts
        if not len(self._offsets) or not len(targets):
            return
        order, starts = group_rows(partitions, self._n_source)
        there = np.flatnonzero(np.diff(starts))
        least, most = offsets[order[starts[there]]], offsets[order[starts[there + 1] - 1]]
        of_groups = self._offsets[:, there]
        has_read_all = (of_groups > most).all(axis=1)
        has_read_none = (of_groups <= least).all(axis=1)
        self.n_read[has_read_all] += counts
        if has_read_none.any():
            self._go_on(np.flatnonzero(has_read_none), targets, numbers)
        for group in np.flatnonzero(~(has_read_all | has_read_none)).tolist():
            is_read = offsets < self._offsets[group][partitions]
            self.n_read[group] += np.bincount(targets[is_read], minlength=len(self.counts))
            self._go_on(np.array([group]), targets[~is_read], numbers[~is_read])

    def _go_on(self, groups: NDArray[np.int64], targets: Int32s, numbers: Int64s) -> None:
        """Note the first of these rows in each partition, for groups that have no place there."""
        known = self.first[groups]
        if (known >= 0).all():
            return
        there, at = np.unique(targets, return_index=True)
        found = known[:, there]
        known[:, there] = np.where(found < 0, numbers[at], found)
        self.first[groups] = known


def time_windows(bounds: DatasetBounds, n_bytes: int) -> list[DatasetBounds]:
    """The partitions, cut at the same times, into windows of about `n_bytes` of log.

    Raises `CorruptLogError`, `UnsupportedFormatError` or `LogChangedError` if it cannot be read.
    """
    whole = [each.log.slices(*each.offsets) for each in bounds.partitions]
    total = sum(piece.n_bytes for pieces in whole for piece in pieces)
    n_partitions = max(len(bounds.partitions), 1)
    n_windows = min(total // n_bytes, _MOST_LOOKUPS // n_partitions)
    if n_windows < 2:
        return [bounds]
    times = sorted(
        (newest, piece.n_bytes)
        for each, pieces in zip(bounds.partitions, whole, strict=True)
        # In each partition as many pieces: all end at other times, although they grow alike.
        for piece in each.log.slices(
            *each.offsets, max(sum(one.n_bytes for one in pieces) // n_windows // 2, 1)
        )
        if (newest := each.log.newest_timestamp(piece)) is not None
    )
    cut_times, so_far = list[int](), 0
    for time, length in times:
        so_far += length
        if so_far * n_windows >= total * (len(cut_times) + 1):
            cut_times.append(time)
    cut_times = sorted({*cut_times[:-1]})
    cuts = [_cuts(each, cut_times, bounds) for each in bounds.partitions]
    return [
        bounds._replace(
            partitions=tuple(
                PartitionBounds(each.log, ranges[number])
                for each, ranges in zip(bounds.partitions, cuts, strict=True)
                if ranges[number].start_offset < ranges[number].end_offset
            )
        )
        for number in range(len(cut_times) + 1)
    ]


def _cuts(
    partition: PartitionBounds, times: list[int], bounds: DatasetBounds
) -> list[OffsetRange]:
    """The offsets of a partition in each window."""
    start, end = partition.offsets
    ranges = []
    for time in times:
        found = partition.log.offset_for_timestamp(
            time,
            ReadUpTo.LOG_END,
            IsolationLevel.READ_UNCOMMITTED,
            bounds.policy.on_corrupt_batch,
        )
        bound = end if found is None else min(max(found.offset, start), end)
        ranges.append(OffsetRange(start, bound))
        start = bound
    return [*ranges, OffsetRange(start, end)]
