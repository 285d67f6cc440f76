"""The records at the end of a copy: how many, and their times, by the headers of their batches.

Headers are enough, unless a message has magic 0 or 1, a header is damaged, or the offset lies
inside a batch.  Then the records are read.  Checksums are not verified otherwise: a tail may be
terabytes long.
"""

from typing import NamedTuple

import numpy as np

from segmentlog.errors import CorruptLogError
from segmentlog.format.kernels import layout
from segmentlog.log.batches import walk_batches
from segmentlog.model import LARGEST_LONG, OnCorruptBatch, ReadUpTo
from segmentlog.reads.log import Log

_COLUMNS = ["timestamp"]
_NEVER = LARGEST_LONG


class Tail(NamedTuple):
    """The records of a log at and after an offset."""

    n_records: int  # without end markers
    #: the least time with which a batch begins, and the greatest time of a record (epoch
    #: milliseconds); None if no record has a time
    first_timestamp_ms: int | None
    last_timestamp_ms: int | None


def tail_of(log: Log, start_offset: int) -> Tail:
    """The records at and after an offset."""
    n_records, first, last = 0, _NEVER, -1
    try:
        for walked in walk_batches(log.untorn_segments, start_offset):
            headers = walked.scanned.headers
            is_legacy = headers[:, layout.ATTRIBUTES] & layout.LEGACY_MASK != 0
            if is_legacy.any() or headers[0, layout.BASE_OFFSET] < start_offset:
                return _read(log, start_offset)
            headers = headers[headers[:, layout.ATTRIBUTES] & layout.CONTROL_MASK == 0]
            n_records += int(headers[:, layout.RECORDS_COUNT].sum())
            largest = headers[:, layout.MAX_TIMESTAMP]
            # A batch with the time of its append has this time for all records.  The base
            # timestamp of a compacted batch may be the time at which its tombstones go.
            has_other = layout.TIMESTAMP_TYPE_MASK | layout.DELETE_HORIZON_MASK
            is_other = headers[:, layout.ATTRIBUTES] & has_other != 0
            begins = np.where(is_other, largest, headers[:, layout.BASE_TIMESTAMP])
            first = int(begins[begins >= 0].min(initial=first))
            last = int(largest.max(initial=last))
    except CorruptLogError:
        return _read(log, start_offset)
    return Tail(n_records, None if first == _NEVER else first, None if last < 0 else last)


def _read(log: Log, start_offset: int) -> Tail:
    """The tail by its records; damaged batches are left out."""
    import pyarrow.compute as pc  # takes long, and is seldom needed

    n_records, times = 0, []
    with log.scan(
        start_offset,
        log.log_end_offset,
        columns=_COLUMNS,
        read_up_to=ReadUpTo.LOG_END,
        on_corrupt_batch=OnCorruptBatch.SKIP,
    ) as batches:
        for batch in batches:
            n_records += batch.num_rows
            column = batch.column(0).cast("int64")
            bounds = pc.min_max(column.filter(pc.greater_equal(column, 0))).as_py()
            times += [each // 1000 for each in bounds.values() if each is not None]
    return Tail(n_records, min(times, default=None), max(times, default=None))
