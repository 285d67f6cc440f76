"""The bounds of a dataset, and the slices between them that may hold rows that a filter keeps.

A partition of a dataset has the offsets that it had when the dataset was opened.

Arrow has no way to look into an expression from Python.  But it simplifies a filter by what is
known of a fragment's rows, to leave out files of a partitioned dataset.  So partitions and slices
are presented as files of such a dataset, which nobody opens, and Arrow determines which of them
remain.  The filter itself is evaluated on every row that is read.  Narrowing only saves reading.
"""

import logging
import threading
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import fs

from segmentlog.arguments import instance_of, refused
from segmentlog.cluster.replicated import ReplicatedDirectory, open_replicas
from segmentlog.errors import (
    OffsetOutOfRangeError,
    OptionError,
    SegmentLogError,
    StreamOffsetError,
)
from segmentlog.format.kernels import layout
from segmentlog.format.records.columns import record_schema
from segmentlog.model import (
    LARGEST_LONG,
    LEAST_LONG,
    LogSlice,
    OffsetRange,
    ReadUpTo,
    ScanPolicy,
    TimestampRange,
    TopicPartition,
)
from segmentlog.read_options import DatasetOptions
from segmentlog.reads.choose import gone, report_missing
from segmentlog.reads.diskless import report_diskless
from segmentlog.reads.listed import cut_by_file
from segmentlog.reads.log import Log, find_bounds, in_milliseconds
from segmentlog.reads.log_directory import LogDirectory, open_log_dir
from segmentlog.reads.ordered_reads import cut_for_threads
from segmentlog.reads.stream_checkpoint import CheckpointOffsets, made_again
from segmentlog.store.system_errors import is_of_one, storage_error

logger = logging.getLogger(__name__)

_SCHEMA = record_schema(include_headers=True)
_FORMAT = ds.IpcFileFormat()
_MOST_FILES = 1_000  # that a filter is compared with, one by one
_MOST_TIGHTENED = 16  # slices whose ends are found exactly, which takes some milliseconds each
_LEAST_TIGHTENED = 1_000  # offsets; fewer are read quickly
_WRONG_OFFSETS = (OffsetOutOfRangeError, StreamOffsetError)  # that the caller gave
_BEFORE_ALL = pa.scalar(LEAST_LONG, _SCHEMA.field("timestamp").type)


class PartitionBounds:
    """One partition, and its offsets to read."""

    def __init__(self, log: Log, offsets: OffsetRange) -> None:
        self.log = log
        self.offsets = offsets
        # Scans of several threads share a dataset: both are read and filled under the lock, so the
        # first of them cuts and looks up for all.
        self._slices: dict[bool, list[LogSlice]] = {}
        self._newest: dict[LogSlice, int | None] = {}
        self._lock = threading.Lock()

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition."""
        return self.log.topic_partition

    def slices(self, *, is_last: bool) -> list[LogSlice]:
        """The offsets, cut into pieces that can be read side by side; cut at the first call."""
        # `is_last`: whether a query reads no partition after this one; see `cut_for_threads`.
        with self._lock:
            if is_last not in self._slices:
                cut = self.log.slices
                self._slices[is_last] = cut_for_threads(cut, self.offsets, is_last=is_last)
            return self._slices[is_last]

    def cut(self, log_slice: LogSlice, n_bytes: int) -> list[LogSlice]:
        """A slice of this partition in smaller pieces."""
        with self._lock:
            return self.log.slices(*log_slice.offsets, n_bytes)

    def newest_timestamp(self, log_slice: LogSlice) -> int | None:
        """`Log.newest_timestamp` of a slice, looked up once."""
        with self._lock:
            if log_slice not in self._newest:
                newest = self.log.newest_timestamp(log_slice)
                self.log.check_topic(log_slice.offsets)
                self._newest[log_slice] = newest
            return self._newest[log_slice]


class DatasetBounds(NamedTuple):
    """Partitions in order, and how they are read; `opens` opens their directories again."""

    paths: tuple[str, ...]
    partitions: tuple[PartitionBounds, ...]
    policy: ScanPolicy
    opens: Callable[..., LogDirectory] = open_log_dir

    def __reduce__(self) -> tuple[object, ...]:
        """The offsets travel: the directory is opened again where they arrive."""
        # Topic ids travel with them: offsets mean nothing in a topic that was created again.
        ranges = {each.topic_partition: each.offsets for each in self.partitions}
        ids = {each.topic_partition: each.log.known_topic_id for each in self.partitions}
        return _open_again, (self.paths, ranges, self.policy, ids, self.opens)

    def slices(
        self,
        expression: pc.Expression | None,
        timestamps: TimestampRange | None = None,
        schema: pa.Schema = _SCHEMA,
    ) -> Iterator[LogSlice]:
        """Slices that may hold rows for which `expression` is true, in the order of their rows.

        `schema`: of the rows.
        """
        condition = None if expression is None else _Condition.of(expression, schema)
        partitions = [each for each in self.partitions if each.offsets[0] < each.offsets[1]]
        if condition is not None:
            whole = [LogSlice(*each.topic_partition, *each.offsets, ()) for each in partitions]
            partitions = [partitions[i] for i in _remaining(whole, condition)]
        for partition in partitions:
            slices = partition.slices(is_last=partition is partitions[-1])
            if condition is not None:
                slices = [slices[i] for i in _remaining(slices, condition)]
                if timestamps is not None:
                    # A comparison of numbers takes a hundredth of what Arrow takes to simplify a
                    # filter.
                    newest = [(each, partition.newest_timestamp(each)) for each in slices]
                    slices = [
                        each for each, at in newest if at is None or at >= timestamps.start_ms
                    ]
                if slices:
                    slices = _narrow_slices(partition, slices, condition)
            yield from slices


def _open_again(
    paths: tuple[str, ...],
    ranges: Mapping[TopicPartition, OffsetRange],
    policy: ScanPolicy,
    ids: Mapping[TopicPartition, str],
    opens: Callable[..., LogDirectory],
) -> DatasetBounds:
    directory = opens(*paths)
    partitions = tuple(
        reopened(directory, each, offsets, ids[each]) for each, offsets in ranges.items()
    )
    return DatasetBounds(paths, partitions, policy, opens)


def reopened(
    directory: LogDirectory, topic_partition: TopicPartition, offsets: OffsetRange, topic_id: str
) -> PartitionBounds:
    """A partition with its bounds, in another process; `LogChangedError` if its topic is new."""
    log = directory.log(*topic_partition)
    log.known_topic_id = topic_id
    log.check_topic(offsets)
    return PartitionBounds(log, offsets)


def find_dataset_bounds(
    directory: LogDirectory,
    topics: Collection[str] | None,
    options: DatasetOptions,
    *,
    policy: ScanPolicy,
    unread: dict[TopicPartition, SegmentLogError] | None = None,
    has_option: bool = True,
) -> DatasetBounds:
    """Find the bounds of all partitions now; errors: `segmentlog.dataset`.

    `options`: checked; `policy` has some of them.
    `unread`: gets the partitions whose bounds cannot be found, which then end nothing.
    `has_option`: whether the user can set `fail_on_data_loss`.
    """
    until, last = options.get("until"), options.get("last")
    # Of one moment in all partitions.
    since_ms, until_ms = in_milliseconds(options.get("since"), until)
    read_up_to = ReadUpTo(options["read_up_to"])
    fail_on_data_loss = options["fail_on_data_loss"]
    starting_offsets = _given(options.get("starting_offsets"))
    ending_offsets = _given(options.get("ending_offsets"))
    # One without offsets is that of a query that has read nothing, and is an end, too.
    is_place = isinstance(ending_offsets, CheckpointOffsets)
    named = {"starting_offsets": starting_offsets, "ending_offsets": ending_offsets}
    for option, given in named.items():
        accepted = "give offsets by topic and partition: {('orders', 0): 5}"
        instance_of(option, given, Mapping, accepted)
        for each in given:
            instance_of(option, each, tuple, accepted)
            if len(each) != 2:
                raise refused(option, each, accepted)
    missing = directory.missing_partitions(topics)
    option = "fail_on_data_loss=False" if has_option else ""
    if unread is None or not fail_on_data_loss:
        report_missing(missing, option, fail_on_data_loss=fail_on_data_loss)
    else:
        unread.update({each.topic_partition: gone(each) for each in missing})
    chosen = _choose(directory, topics, named, unread or ())

    def check_end(topic_partitions: Collection[TopicPartition]) -> None:
        to_latest = [
            each
            for each in topic_partitions
            if until is None and each not in ending_offsets and not is_place
        ]
        report_diskless(directory, to_latest, option, fail_on_data_loss=fail_on_data_loss)

    def warn_of_ends() -> None:
        directory.end_offsets(
            [each for each in chosen if each not in (unread or ())],
            read_up_to,
            policy.isolation_level,
            policy.on_corrupt_batch,
            fail_on_data_loss=fail_on_data_loss,
        )

    def bounds_of(topic_partition: TopicPartition) -> PartitionBounds:
        log = directory.log(*topic_partition)
        for option, given in named.items():
            _check_topic(log, option, given, fail_on_data_loss=fail_on_data_loss)
        start, end = starting_offsets.get(topic_partition), ending_offsets.get(topic_partition)
        # The query has read nothing of a partition that its checkpoint lacks.
        if end is None and is_place:
            end = log.log_start_offset if start is None else start
        offsets = find_bounds(
            log,
            start,
            end,
            since_ms=since_ms if start is None else None,
            until_ms=until_ms if end is None else None,
            last=last if start is None else None,
            read_up_to=read_up_to,
            isolation_level=policy.isolation_level,
            on_corrupt_batch=policy.on_corrupt_batch,
            fail_on_data_loss=fail_on_data_loss,
        )
        return PartitionBounds(log, offsets)

    partitions = []
    if unread is None:
        check_end(chosen)
        warn_of_ends()
        partitions = [bounds_of(each) for each in chosen]
    else:
        for each in chosen:
            try:
                check_end([each])
                partitions.append(bounds_of(each))
            except (SegmentLogError, OSError) as failure:
                error = failure if isinstance(failure, SegmentLogError) else storage_error(failure)
                if isinstance(error, _WRONG_OFFSETS) or not is_of_one(error):
                    raise error from None
                unread[each] = error
        warn_of_ends()
    opens: Callable[..., LogDirectory] = open_log_dir
    if isinstance(directory, ReplicatedDirectory):
        included = directory.include_deleted_topics
        opens = partial(open_replicas, include_deleted_topics=included)
    return DatasetBounds(directory.paths, tuple(partitions), policy, opens)


def _given(offsets: Mapping[tuple[str, int], int] | None) -> Mapping[tuple[str, int], int]:
    """Offsets that were given, of whatever type: a table has no truth value."""
    return {} if offsets is None else offsets


def _check_topic(
    log: Log, option: str, given: Mapping[tuple[str, int], int], *, fail_on_data_loss: bool
) -> None:
    """Refuse offsets of a checkpoint in a topic that was created again, or say so."""
    each, at = log.topic_partition, given.get(log.topic_partition)
    then = getattr(given, "topic_ids", {}).get(each.topic)
    if at is None or not (reason := made_again(log.known_topic_id, then)):
        return
    if fail_on_data_loss:
        remedy = f"and {reason}: give other {option}; fail_on_data_loss=False reads it"
        raise StreamOffsetError(str(each), at, at, remedy)
    logger.warning("%s: offset %d is that of a checkpoint, and %s", each, at, reason)


def _choose(
    directory: LogDirectory,
    topics: Collection[str] | None,
    named: Mapping[str, Iterable[tuple[str, int]]],
    missing: Collection[TopicPartition],
) -> list[TopicPartition]:
    """Partitions of `topics`; those that an option names have to be among them, or `missing`."""
    there = directory.topics(internal=topics is not None)
    for topic in topics or ():
        if topic not in there:
            directory.log(topic, 0)  # raises
    names = sorted(there if topics is None else set(topics))
    chosen = [TopicPartition(topic, each) for topic in names for each in there[topic]]
    known = {*chosen, *missing}
    for option, partitions in named.items():
        for topic, partition in partitions:
            if (topic, partition) not in known:
                directory.log(topic, partition)
                accepted = f"topics are {', '.join(names)}"
                raise OptionError(option, f"{topic}-{partition}", accepted)
    return chosen


class _NoFiles(fs.FileSystemHandler):  # type: ignore[misc]
    """A file system without files: it refuses whatever Arrow's own scan asks for."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _NoFiles)

    __hash__ = fs.FileSystemHandler.__hash__

    def get_type_name(self) -> str:
        return "segmentlog"

    def normalize_path(self, path: str) -> str:
        return path

    def _refuse(self, *_: Any) -> NoReturn:  # noqa: ANN401
        reason = (
            "Arrow's C++ cannot read a log dataset; pass it dataset.scanner(…).to_reader(), or "
            "dataset.to_table(…)"
        )
        raise pa.ArrowNotImplementedError(reason)

    copy_file = create_dir = delete_dir = delete_dir_contents = delete_file = _refuse
    delete_root_dir_contents = get_file_info = get_file_info_selector = move = _refuse
    open_append_stream = open_input_file = open_input_stream = open_output_stream = _refuse


#: The file system of datasets whose files nobody opens.
NO_FILES = fs.PyFileSystem(_NoFiles())


class _Condition(NamedTuple):
    """A condition, and the columns that it can be about."""

    expression: pc.Expression
    schema: pa.Schema

    @classmethod
    def of(cls, expression: pc.Expression, schema: pa.Schema) -> "_Condition":
        """The condition of rows of a schema, whose timestamps may be integers."""
        at = schema.get_field_index("timestamp")
        return cls(expression, schema if at < 0 else schema.set(at, _SCHEMA.field("timestamp")))


def timestamp_range(
    expression: pc.Expression | None, schema: pa.Schema = _SCHEMA
) -> TimestampRange | None:
    """Times of all rows for which `expression` can be true; None if it bounds no times.

    `schema`: of the rows.
    """
    # Timestamps of records are whole milliseconds, so the range is found by bisection over these.
    # The scan leaves out batches of other times, as far as their headers show them.
    if expression is None:
        return None
    condition = _Condition.of(expression, schema)
    timestamp, kind = pc.field("timestamp"), _BEFORE_ALL.type
    ends = [timestamp <= _BEFORE_ALL, timestamp >= pa.scalar(LARGEST_LONG, kind)]
    if len(_may_match(ends, condition)) == len(ends):
        return None

    def begins_by(timestamp_ms: int) -> bool:
        newest = pa.scalar(1000 * timestamp_ms, kind)
        return bool(_may_match([timestamp <= newest], condition))

    def ends_before(timestamp_ms: int) -> bool:
        oldest = pa.scalar(1000 * timestamp_ms, kind)
        return not _may_match([timestamp >= oldest], condition)

    times = range(layout.SMALLEST_MS, layout.LARGEST_MS)
    first = bisect_left(times, True, key=begins_by)
    after = bisect_left(times, True, key=ends_before)
    if first == len(times):  # it is true for no row at all
        return None
    start_ms = times[first] if first else LEAST_LONG
    end_ms = times[after] if after < len(times) else LARGEST_LONG
    return TimestampRange(start_ms, end_ms)


def slice_guarantee(log_slice: LogSlice) -> pc.Expression:
    """Condition that all rows of a slice fulfil."""
    start, end = (pa.scalar(each, pa.int64()) for each in log_slice.offsets)
    offset = pc.field("offset")
    return (
        (pc.field("topic") == pa.scalar(log_slice.topic, pa.string()))
        & (pc.field("partition") == pa.scalar(log_slice.partition, pa.int32()))
        & (offset >= start)
        & (offset < end)
    )


def _narrow_slices(
    partition: PartitionBounds, slices: Sequence[LogSlice], condition: _Condition
) -> list[LogSlice]:
    """Slices that remain; of slices with small segments, the segments that remain."""
    # A slice of which every segment remains is not divided: it is quicker to read as a whole.
    divided = [[each] for each in slices]
    if sum(len(each.files) for each in slices) <= _MOST_FILES:
        divided = [cut_by_file(each) for each in slices]
    parts = [part for each in divided for part in each]
    parts = [parts[i] for i in _remaining(parts, condition)]
    remaining = {*_by_time(partition, parts, condition)}
    kept = []
    for whole, its_parts in zip(slices, divided, strict=True):
        its_remaining = [each for each in its_parts if each in remaining]
        kept += [whole] if len(its_remaining) == len(its_parts) else its_remaining
    if len(kept) > _MOST_TIGHTENED:
        return kept
    return [each for one in kept for each in _tighten(partition, one, condition)]


def _tighten(
    partition: PartitionBounds, log_slice: LogSlice, condition: _Condition
) -> list[LogSlice]:
    """The part of a slice that remains by its offsets, unless it is nearly the whole."""
    start, end = log_slice.offsets

    def can_match(first: int, after: int) -> bool:
        part = log_slice._replace(start_offset=first, end_offset=after)
        return bool(_remaining([part], condition))

    quarter = (end - start) // 4
    if quarter < _LEAST_TIGHTENED // 4 or (
        can_match(start, start + quarter) and can_match(end - quarter, end)
    ):
        return [log_slice]
    # The more offsets, the sooner one of them matches: both ends are found by bisection.
    ends = range(start + 1, end + 1)
    first = start + bisect_left(ends, True, key=lambda each: can_match(start, each))
    starts = range(first + 1, end)
    after = first + 1 + bisect_left(starts, True, key=lambda each: not can_match(each, end))
    tight = log_slice._replace(start_offset=first, end_offset=after)
    return partition.cut(tight, 0)


def _remaining(slices: Sequence[LogSlice], condition: _Condition) -> list[int]:
    """Indexes of the slices that may hold rows for which `condition` is true."""
    return _may_match([slice_guarantee(each) for each in slices], condition)


def _by_time(
    partition: PartitionBounds, slices: Sequence[LogSlice], condition: _Condition
) -> list[LogSlice]:
    """Slices that remain by their largest timestamps."""
    # Times are read from the disk.  They can only help if the filter leaves out rows that are
    # older than all times.
    guarantees = [slice_guarantee(each) for each in slices]
    oldest = [each & (pc.field("timestamp") <= _BEFORE_ALL) for each in guarantees]
    if len(_may_match(oldest, condition)) == len(slices):
        return list(slices)
    timed = []
    for log_slice, guarantee in zip(slices, guarantees, strict=True):
        newest = partition.newest_timestamp(log_slice)
        if newest is not None and newest <= layout.LARGEST_MS:
            newest_time = pa.scalar(1000 * newest, _BEFORE_ALL.type)
            guarantee &= pc.field("timestamp") <= newest_time  # noqa: PLW2901
        timed.append(guarantee)
    return [slices[i] for i in _may_match(timed, condition)]


def _may_match(guarantees: Sequence[pc.Expression], condition: _Condition) -> list[int]:
    """Indexes of the guarantees under which `condition` can be true, in order."""
    fragments: list[Any] = [
        _FORMAT.make_fragment(str(i), filesystem=NO_FILES, partition_expression=each)
        for i, each in enumerate(guarantees)
    ]
    files = ds.FileSystemDataset(fragments, condition.schema, _FORMAT, NO_FILES)
    found = files.get_fragments(filter=condition.expression)
    return sorted(int(each.path) for each in found)
