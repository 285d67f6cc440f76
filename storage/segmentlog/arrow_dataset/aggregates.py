"""Records per interval of time.

`count_by_headers` decodes few batches.  The header of a batch has the number of its records, the
timestamp of the first one and the largest timestamp.  If both lie in one interval, the records are
counted there, and the batch is not decoded.  Of other batches the timestamps are decoded.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from segmentlog.arguments import instance_of
from segmentlog.errors import OptionError
from segmentlog.format.kernels import layout
from segmentlog.format.records.decoder import tell_their_rows
from segmentlog.log.batches import walk_batches
from segmentlog.model import IsolationLevel, OffsetRange, ScanPolicy, TopicPartition
from segmentlog.reads.listed import retry_if_relisted
from segmentlog.reads.log import Log
from segmentlog.reads.scan import scan_slice

_Int64s = NDArray[np.int64]

#: Numbers of records by the number of the interval since 1970.
Counts = dict[int, int]

#: If more than this part of a window's batches have to be decoded, all of them are: a read of many
#: short ranges takes longer.
_MOST_SINGLE = 1 / 8
_MILLISECOND = timedelta(milliseconds=1)


def interval_milliseconds(interval: timedelta) -> int:
    """Milliseconds of an interval."""
    accepted = "give a timedelta of whole milliseconds, such as timedelta(minutes=1)"
    instance_of("interval", interval, timedelta, accepted)
    if interval <= timedelta() or interval % _MILLISECOND:
        raise OptionError("interval", str(interval), accepted)
    return interval // _MILLISECOND


def count_rows(batches: Iterator[pa.RecordBatch], interval_ms: int, counts: Counts) -> None:
    """Add the rows of `batches`, whose only column is ``timestamp``, to `counts`."""
    for batch in batches:
        times = batch.column(0).cast(pa.int64()).to_numpy() // 1000  # Arrow's are microseconds
        _add(counts, times // interval_ms, np.ones_like(times))


def _add(counts: Counts, intervals: _Int64s, numbers: _Int64s) -> None:
    found, which = np.unique(intervals, return_inverse=True)
    sums = np.zeros(len(found), np.int64)
    np.add.at(sums, which, numbers)
    for interval, n_records in zip(found.tolist(), sums.tolist(), strict=True):
        counts[interval] = counts.get(interval, 0) + n_records


def count_by_headers(
    log: Log, offsets: OffsetRange, interval_ms: int, policy: ScanPolicy
) -> Counts:
    """Records of one partition by interval."""
    counts, ranges = _count_headers(log, offsets, interval_ms, policy)
    log.check_topic(offsets)
    for start, end in ranges:
        for log_slice in log.slices(start, end):
            batches = scan_slice(log_slice, columns=["timestamp"], policy=policy)
            count_rows(batches, interval_ms, counts)
    return counts


@retry_if_relisted
def _count_headers(
    log: Log, offsets: OffsetRange, interval_ms: int, policy: ScanPolicy
) -> tuple[Counts, list[tuple[int, int]]]:
    """The counts that headers contain, and the ranges of offsets that have to be decoded."""
    decided: list[tuple[_Int64s, _Int64s]] = []  # intervals, and numbers of records
    ranges: list[tuple[int, int]] = []
    reached = start = max(offsets.start_offset, log.log_start_offset)
    wanted = OffsetRange(start, offsets.end_offset)
    reads_all = policy.isolation_level == IsolationLevel.READ_UNCOMMITTED
    for walked in walk_batches(log.untorn_segments, start):
        headers = walked.scanned.headers
        if reached >= wanted.end_offset:  # a wrapper's base offset may be that of its last record
            break
        # A wrapper does not contain its first offset: it is after the batch before.
        begins = np.concatenate([[reached], headers[:-1, layout.LAST_OFFSET] + 1])
        if (headers[1:, layout.BASE_OFFSET] < begins[1:]).any() or (
            reached > start and headers[0, layout.BASE_OFFSET] < reached
        ):
            # A segment may have been merged with those that a copy still has, or an offset is
            # wrong, which no checksum covers: a read tells which.
            return {}, [wanted]
        reached = walked.next_offset
        has_records = headers[:, layout.ATTRIBUTES] & layout.CONTROL_MASK == 0
        is_legacy = headers[:, layout.ATTRIBUTES] & layout.LEGACY_MASK != 0
        has_records &= (headers[:, layout.RECORDS_COUNT] != 0) | is_legacy
        headers, begins = headers[has_records], begins[has_records]
        is_decided = _is_decided(headers, wanted, interval_ms)
        is_decided &= tell_their_rows(headers, policy.max_inflated_batch_bytes)
        is_decided &= reads_all | (headers[:, layout.ATTRIBUTES] & layout.TRANSACTIONAL_MASK == 0)
        if np.count_nonzero(~is_decided) > _MOST_SINGLE * len(headers):
            is_decided[:] = False
        counted = headers[is_decided]
        intervals = counted[:, layout.MAX_TIMESTAMP] // interval_ms
        decided.append((intervals, counted[:, layout.RECORDS_COUNT]))
        ends = np.minimum(headers[:, layout.LAST_OFFSET] + 1, wanted.end_offset)
        for begin, end in np.column_stack([begins, ends])[~is_decided].tolist():
            if ranges and ranges[-1][1] == begin:
                ranges[-1] = (ranges[-1][0], end)
            elif begin < end:
                ranges.append((begin, end))
    counts: Counts = {}
    if decided:  # at once: small segments would take longer to add up than to read
        intervals, numbers = map(np.concatenate, zip(*decided, strict=True))
        _add(counts, intervals, numbers)
    return counts, ranges


def _is_decided(headers: _Int64s, offsets: OffsetRange, interval_ms: int) -> NDArray[np.bool_]:
    """Whether all records of a batch are counted in one interval; never of magic 0 and 1."""
    # The base timestamp is the first record's, unless it is a delete horizon (KIP-534). If the
    # timestamps are append times, all are the largest.
    attributes = headers[:, layout.ATTRIBUTES]
    newest = headers[:, layout.MAX_TIMESTAMP]
    is_append_time = attributes & layout.TIMESTAMP_TYPE_MASK != 0
    first = np.where(is_append_time, newest, headers[:, layout.BASE_TIMESTAMP])
    is_known = is_append_time | (attributes & layout.DELETE_HORIZON_MASK == 0)
    is_known &= attributes & layout.LEGACY_MASK == 0
    is_whole = headers[:, layout.BASE_OFFSET] >= offsets.start_offset
    is_whole &= headers[:, layout.LAST_OFFSET] < offsets.end_offset
    is_in_order = (first >= layout.SMALLEST_MS) & (first <= newest)
    is_in_order &= newest <= layout.LARGEST_MS
    is_in_one = first // interval_ms == newest // interval_ms
    return np.asarray(is_known & is_whole & is_in_order & is_in_one)


def counts_table(counts: Sequence[tuple[TopicPartition, Counts]], interval_ms: int) -> pa.Table:
    """``topic``, ``partition``, ``timestamp`` of intervals with records, and ``count``."""
    rows = [
        (topic, partition, 1000 * interval_ms * interval, n_records)
        for (topic, partition), found in counts
        for interval, n_records in sorted(found.items())
    ]
    topics, partitions, times, numbers = zip(*rows, strict=True) if rows else ((),) * 4
    return pa.table(
        {
            "topic": pa.array(topics, pa.string()),
            "partition": pa.array(partitions, pa.int32()),
            "timestamp": pa.array(times, pa.timestamp("us", "UTC")),
            "count": pa.array(numbers, pa.int64()),
        }
    )
