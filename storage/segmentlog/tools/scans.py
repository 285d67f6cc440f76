"""Records of partitions for commands that show records: slices read side by side, past damage."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from segmentlog.errors import CorruptLogError
from segmentlog.model import LogSlice, OffsetRange, OnCorruptBatch, ScanPolicy
from segmentlog.reads.log import Log
from segmentlog.tools.failures import Failed


def cut(log: Log, offsets: OffsetRange, *, is_last: bool = True) -> list[LogSlice]:
    """The slices of a range of offsets, small enough for threads to read side by side."""
    from segmentlog.reads.ordered_reads import cut_for_threads

    if offsets.start_offset >= offsets.end_offset:
        return []
    return cut_for_threads(log.slices, offsets, is_last=is_last)


def scan(
    log_slice: LogSlice, columns: Sequence[str], policy: ScanPolicy, failed: Failed
) -> Iterator[pa.RecordBatch]:
    """Rows of a slice; damaged batches are left out, and a warning names their offsets.

    A read that skips damage checks each batch twice, so it begins at the first damaged batch.

    `columns`: names of columns, with ``offset`` among them.  `failed`: gets the partition if it
    has damage.
    """
    from segmentlog.reads.scan import scan_slice  # the compiled kernels load here

    next_offset = log_slice.start_offset
    try:
        for rows in scan_slice(log_slice, columns=columns, policy=policy):
            if rows.num_rows:
                next_offset = _last_offset(rows) + 1
            yield rows
    except CorruptLogError:
        failed.add(log_slice.topic_partition)
        rest = log_slice._replace(start_offset=max(next_offset, log_slice.start_offset))
        skips = policy._replace(on_corrupt_batch=OnCorruptBatch.SKIP)
        yield from scan_slice(rest, columns=columns, policy=skips)


def _last_offset(rows: pa.RecordBatch) -> int:
    offset: int = rows.column("offset")[-1].as_py()
    return offset
