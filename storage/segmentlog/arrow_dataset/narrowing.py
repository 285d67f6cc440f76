"""The partitions and slices that may hold rows that a filter keeps.

Arrow has no way to look into an expression from Python.  But it simplifies a filter by what is
known of a fragment's rows, to leave out files of a partitioned dataset.  So partitions and slices
are presented as files of such a dataset, which nobody opens, and Arrow determines which of them
remain.

The filter itself is evaluated on every row that is read.  Narrowing only saves reading.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import fs

from segmentlog.arrow_dataset.snapshot import PartitionSnapshot, Snapshot
from segmentlog.format.kernels import layout
from segmentlog.format.records.schema import record_schema
from segmentlog.model import BYTES_OR_TEXT, LARGEST_LONG, LEAST_LONG, LogSlice, TimestampRange
from segmentlog.reads.plan import cut_by_file

_SCHEMA = record_schema(include_headers=True)
_TEXT_SCHEMA = record_schema(include_headers=True, text=BYTES_OR_TEXT)
_FORMAT = ds.IpcFileFormat()
_MOST_FILES = 1_000  # that a filter is compared with, one by one
_MOST_TIGHTENED = 16  # slices whose ends are found exactly, which takes some milliseconds each
_LEAST_TIGHTENED = 1_000  # offsets; fewer are read quickly
_BEFORE_ALL = pa.scalar(LEAST_LONG, _SCHEMA.field("timestamp").type)


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


def narrow(
    snapshot: Snapshot, condition: pc.Expression | None, timestamps: TimestampRange | None = None
) -> Iterator[LogSlice]:
    """Slices that may hold rows for which `condition` is true, in the order of their rows."""
    partitions = [each for each in snapshot.partitions if each.offsets[0] < each.offsets[1]]
    if condition is not None:
        whole = [LogSlice(*each.topic_partition, *each.offsets, ()) for each in partitions]
        guarantees = [slice_guarantee(each) for each in whole]
        partitions = [partitions[i] for i in _may_match(guarantees, condition)]
    for partition in partitions:
        slices = partition.slices(is_last=partition is partitions[-1])
        if condition is not None:
            slices = _by_offset(slices, condition)
            if timestamps is not None:
                # A comparison of numbers takes a hundredth of what Arrow takes to simplify a
                # filter.
                newest = [(each, partition.newest_timestamp(each)) for each in slices]
                slices = [each for each, at in newest if at is None or at >= timestamps.start_ms]
            if slices:
                slices = _narrow_slices(partition, slices, condition)
        yield from slices


def timestamp_range(condition: pc.Expression | None) -> TimestampRange | None:
    """Times of all rows for which `condition` can be true; None if it bounds no times."""
    # Timestamps of records are whole milliseconds, so the range is found by bisection over these.
    # The scan leaves out batches of other times, as far as their headers show them.
    timestamp, kind = pc.field("timestamp"), _BEFORE_ALL.type
    if condition is None or len(_may_match(
        [timestamp <= _BEFORE_ALL, timestamp >= pa.scalar(LARGEST_LONG, kind)], condition
    )) == 2:  # fmt: skip
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
    partition: PartitionSnapshot, slices: Sequence[LogSlice], condition: pc.Expression
) -> list[LogSlice]:
    """Slices that remain; of slices with small segments, the segments that remain."""
    # A slice of which every segment remains is not divided: it is quicker to read as a whole.
    divided = [[each] for each in slices]
    if sum(len(each.files) for each in slices) <= _MOST_FILES:
        divided = [cut_by_file(each) for each in slices]
    parts = [part for each in divided for part in each]
    remaining = {*_by_time(partition, _by_offset(parts, condition), condition)}
    kept = []
    for whole, its_parts in zip(slices, divided, strict=True):
        its_remaining = [each for each in its_parts if each in remaining]
        kept += [whole] if len(its_remaining) == len(its_parts) else its_remaining
    if len(kept) > _MOST_TIGHTENED:
        return kept
    return [each for one in kept for each in _tighten(partition, one, condition)]


def _tighten(
    partition: PartitionSnapshot, log_slice: LogSlice, condition: pc.Expression
) -> list[LogSlice]:
    """The part of a slice that remains by its offsets, unless it is nearly the whole."""
    start, end = log_slice.offsets

    def can_match(first: int, after: int) -> bool:
        part = log_slice._replace(start_offset=first, end_offset=after)
        return bool(_may_match([slice_guarantee(part)], condition))

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


def _by_offset(slices: Sequence[LogSlice], condition: pc.Expression) -> list[LogSlice]:
    return [slices[i] for i in _may_match([slice_guarantee(each) for each in slices], condition)]


def _by_time(
    partition: PartitionSnapshot, slices: Sequence[LogSlice], condition: pc.Expression
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


def _may_match(guarantees: Sequence[pc.Expression], condition: pc.Expression) -> list[int]:
    """Indexes of the guarantees under which `condition` can be true, in order."""
    fragments: list[Any] = [
        _FORMAT.make_fragment(str(i), filesystem=NO_FILES, partition_expression=each)
        for i, each in enumerate(guarantees)
    ]
    files = ds.FileSystemDataset(fragments, _SCHEMA, _FORMAT, NO_FILES)
    try:
        found = list(files.get_fragments(filter=condition))
    except pa.ArrowNotImplementedError:  # a function of text: the dataset has keys as strings
        files = ds.FileSystemDataset(fragments, _TEXT_SCHEMA, _FORMAT, NO_FILES)
        found = list(files.get_fragments(filter=condition))
    return sorted(int(each.path) for each in found)
