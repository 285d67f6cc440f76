"""Columns to record batches in two passes: cut the rows into batches, then write them.

The first pass measures every record and notes its size, so that the batches' sizes are known and
memory is allocated once.  It also checks every row; the second pass writes what it has let through.
"""

from segmentlog.kernels import layout
from segmentlog.kernels import status as st
from segmentlog.kernels._jit import inlined, kernel
from segmentlog.kernels.crc32c import crc32c
from segmentlog.kernels.memory import (
    COPY_SLACK,
    MOST_WIDE_BYTES,
    Bytes,
    Int32s,
    Int64s,
    copy_bytes,
    copy_wide,
    load_i64,
    store_i16,
    store_i32,
    store_i64,
    store_u8,
)
from segmentlog.kernels.source import OUTSIDE, BinaryArrays, SourceArrays, is_null, length_of
from segmentlog.kernels.varint import varint_bytes, write_varint

__all__ = [
    "FIRST_ROW",
    "MAX_TIMESTAMP_OFFSET",
    "N_BATCH_COLUMNS",
    "assign_offsets",
    "cut_batches",
    "fill_batches",
    "seal_batches",
]

# Columns of the table of batches, behind those of `layout`.
FIRST_ROW = layout.N_HEADER_COLUMNS  #: position in `rows` of a batch's first record
MAX_TIMESTAMP_OFFSET = FIRST_ROW + 1  #: offset of the first record with the largest timestamp
N_BATCH_COLUMNS = FIRST_ROW + 2

#: Most bytes of length, attributes and deltas of a record (``DefaultRecord``).
_MAX_RECORD_OVERHEAD = 21
_LARGEST_I32 = 2**31 - 1
_LARGEST_I64 = 2**63 - 1
#: A body that is larger could not be a record of any batch, whose length has 32 bits.
_MOST_BODY_BYTES = _LARGEST_I32 - layout.HEADER_BYTES - _MAX_RECORD_OVERHEAD
_NO_TIMESTAMP = -1


@kernel
def _headers_bytes(source: SourceArrays, row: int) -> tuple[int, int]:
    """Status, and the bytes of a record's headers with their count and lengths."""
    if is_null(source.list_valid, source.list_first_bit + row):
        return st.OK, 1
    start, end = int(source.list_ends[row]), int(source.list_ends[row + 1])
    n_headers = min(source.header_keys.ends.shape[0], source.header_values.ends.shape[0]) - 1
    if not 0 <= start <= end <= n_headers:
        return st.BAD_BOUNDS, 0
    n_bytes = varint_bytes(end - start)
    for i in range(start, end):
        key, value = length_of(source.header_keys, i), length_of(source.header_values, i)
        if key == OUTSIDE or value == OUTSIDE:
            return st.BAD_BOUNDS, 0
        if key < 0:
            return st.NULL_HEADER_KEY, 0
        n_bytes += varint_bytes(key) + key + varint_bytes(value) + max(value, 0)
    return st.OK, n_bytes


@inlined
def _fields_bytes(source: SourceArrays, row: int) -> tuple[int, int]:
    """Status, and the bytes of a record's key, value and headers with their lengths."""
    key, value = length_of(source.keys, row), length_of(source.values, row)
    if key == OUTSIDE or value == OUTSIDE:
        return st.BAD_BOUNDS, 0
    n_bytes = varint_bytes(key) + max(key, 0) + varint_bytes(value) + max(value, 0)
    if source.list_ends.shape[0] == 0:
        return st.OK, n_bytes + 1
    status, n_header_bytes = _headers_bytes(source, row)
    return status, n_bytes + n_header_bytes


@kernel
def _cut_batch(
    source: SourceArrays, rows: Int64s, offsets: Int64s, batch_size: int, max_bytes: int,
    batch: Int64s, sizes: Int32s,
) -> tuple[int, int]:  # fmt: skip
    """Put rows from ``batch[FIRST_ROW]`` on into one batch while they fit.

    The limit is that of ``ProducerBatch``: `batch_size`, or what the first record takes at the
    most (``DefaultRecordBatch.estimateBatchSizeUpperBound``), if that is more.

    Returns the status, and the position in `rows` of the first that is not in it, or is wrong.
    """
    first = at = batch[FIRST_ROW]
    size, limit, previous, base_offset, base_ms = layout.HEADER_BYTES, batch_size, -1, 0, 0
    max_ms, max_ms_offset = _NO_TIMESTAMP, 0
    while at < rows.shape[0]:
        row, offset = rows[at], offsets[at]
        if not 0 <= row < source.timestamps.shape[0]:
            return st.BAD_ROW, at
        ms = source.timestamps[row]
        status, n_bytes = _fields_bytes(source, row)
        if ms < _NO_TIMESTAMP:
            status = st.BAD_TIMESTAMP
        elif offset <= previous or offset == _LARGEST_I64:
            status = st.BAD_OFFSET
        elif n_bytes > _MOST_BODY_BYTES:
            batch[layout.SIZE] = layout.HEADER_BYTES + _MAX_RECORD_OVERHEAD + n_bytes
            status = st.RECORD_TOO_LARGE
        if status != st.OK:
            return status, at
        if at == first:
            base_offset, base_ms, max_ms, max_ms_offset = offset, ms, ms, offset
            limit = max(limit, layout.HEADER_BYTES + _MAX_RECORD_OVERHEAD + n_bytes)
            limit = min(limit, max_bytes)
        elif offset - base_offset > _LARGEST_I32 or (base_ms < 0 and ms == _LARGEST_I64):
            break
        n_bytes += 1 + varint_bytes(ms - base_ms) + varint_bytes(offset - base_offset)
        behind = size + varint_bytes(n_bytes) + n_bytes
        if behind > limit:
            if at == first:
                batch[layout.SIZE] = behind
                return st.RECORD_TOO_LARGE, at
            break
        if ms > max_ms:
            max_ms, max_ms_offset = ms, offset
        sizes[at] = n_bytes
        size, previous = behind, offset
        at += 1
    batch[layout.SIZE] = size
    batch[layout.BASE_OFFSET], batch[layout.LAST_OFFSET] = base_offset, previous
    batch[layout.BASE_TIMESTAMP], batch[layout.MAX_TIMESTAMP] = base_ms, max_ms
    batch[layout.RECORDS_COUNT] = at - first
    batch[MAX_TIMESTAMP_OFFSET] = max_ms_offset
    return st.OK, at


@kernel
def cut_batches(
    source: SourceArrays, rows: Int64s, offsets: Int64s, begin: int, batch_size: int,
    max_bytes: int, table: Int64s, sizes: Int32s,
) -> tuple[int, int, int]:  # fmt: skip
    """Divide rows into batches, check them, and measure their records.

    A batch ends before the row that would make it larger than `batch_size`, or whose offset or
    timestamp is too far from the batch's first; a row that is larger is alone in its batch.

    Parameters
    ----------
    source : the columns; read only
    rows : int64 array, shape (n,); rows of `source` in the order in which they are written
    offsets : int64 array, shape (n,); the offset of each, not negative and rising
    begin : position in `rows` to begin at
    batch_size : bytes of a batch, its header included, before compression
    max_bytes : what no batch may be larger than, even with one record
    table : int64 array, shape (n_batches, `N_BATCH_COLUMNS`); written: size, offsets, timestamps,
        record count, and the columns behind those of `layout`
    sizes : int32 array, shape (n,); written: bytes of each record behind its length

    Returns
    -------
    status : `OK` when all rows are in batches, `TABLE_FULL`, or what is wrong with a row; with
        `RECORD_TOO_LARGE` the next line of `table` has the size of its batch
    position : of the next row in `rows`, or of the wrong one
    n_batches : lines of `table` that are filled
    """
    at, n_batches = begin, 0
    while at < rows.shape[0]:
        if n_batches == table.shape[0]:
            return st.TABLE_FULL, at, n_batches
        batch = table[n_batches]
        batch[FIRST_ROW] = at
        if at > 0 and offsets[at] <= offsets[at - 1]:
            return st.BAD_OFFSET, at, n_batches
        status, at = _cut_batch(source, rows, offsets, batch_size, max_bytes, batch, sizes)
        if status != st.OK:
            return status, at, n_batches
        n_batches += 1
    return st.OK, at, n_batches


@inlined
def _put(out: Bytes, at: int, column: BinaryArrays, row: int) -> int:
    """Write one value behind its length; the position behind it."""
    length = length_of(column, row)
    at = write_varint(out, at, length)
    if length <= 0:
        return at
    start = int(column.ends[row])
    if length <= MOST_WIDE_BYTES and start + length + COPY_SLACK <= column.data.shape[0]:
        copy_wide(out, at, column.data, start, length)
    else:
        copy_bytes(out, at, column.data, start, length)
    return at + length


@kernel
def _put_headers(out: Bytes, at: int, source: SourceArrays, row: int) -> int:
    """Write the headers of a record; the position behind them."""
    if is_null(source.list_valid, source.list_first_bit + row):
        store_u8(out, at, 0)
        return at + 1
    start, end = int(source.list_ends[row]), int(source.list_ends[row + 1])
    at = write_varint(out, at, end - start)
    for i in range(start, end):
        at = _put(out, at, source.header_keys, i)
        at = _put(out, at, source.header_values, i)
    return at


@kernel
def fill_batches(
    source: SourceArrays, rows: Int64s, offsets: Int64s, sizes: Int32s, table: Int64s, out: Bytes
) -> None:
    """Write the records of batches that `cut_batches` has measured.

    Parameters
    ----------
    source, rows, offsets, sizes : as `cut_batches` has seen and written them; read only
    table : int64 array, shape (n_batches, `N_BATCH_COLUMNS`); read only; ``RECORDS_START`` says
        where in `out`
    out : uint8 array; written; has `COPY_SLACK` bytes behind the last record
    """
    has_headers = source.list_ends.shape[0] > 0
    for number in range(table.shape[0]):
        batch = table[number]
        to = batch[layout.RECORDS_START]
        base_offset, base_ms = batch[layout.BASE_OFFSET], batch[layout.BASE_TIMESTAMP]
        first = batch[FIRST_ROW]
        for at in range(first, first + batch[layout.RECORDS_COUNT]):
            row = rows[at]
            to = write_varint(out, to, sizes[at])
            store_u8(out, to, 0)
            to = write_varint(out, to + 1, source.timestamps[row] - base_ms)
            to = write_varint(out, to, offsets[at] - base_offset)
            to = _put(out, to, source.keys, row)
            to = _put(out, to, source.values, row)
            if has_headers:
                to = _put_headers(out, to, source, row)
            else:
                store_u8(out, to, 0)
                to += 1


@kernel
def seal_batches(buf: Bytes, table: Int64s) -> None:
    """Write the headers of batches whose records are there, with their checksums.

    Leader epoch is 0, and the fields of idempotent producers are -1.

    Parameters
    ----------
    buf : uint8 array; written; the caller has checked that it holds every batch of `table`
    table : int64 array, shape (n_batches, at least `layout.N_HEADER_COLUMNS`); read only
    """
    for number in range(table.shape[0]):
        batch = table[number]
        at = batch[layout.POSITION]
        base_offset = batch[layout.BASE_OFFSET]
        store_i64(buf, at + layout.BASE_OFFSET_AT, base_offset)
        store_i32(buf, at + layout.BATCH_LENGTH_AT, batch[layout.SIZE] - layout.LOG_OVERHEAD)
        store_i32(buf, at + layout.LEADER_EPOCH_AT, 0)
        store_u8(buf, at + layout.MAGIC_AT, layout.MAGIC)
        store_i16(buf, at + layout.ATTRIBUTES_AT, batch[layout.ATTRIBUTES])
        store_i32(buf, at + layout.LAST_OFFSET_DELTA_AT, batch[layout.LAST_OFFSET] - base_offset)
        store_i64(buf, at + layout.BASE_TIMESTAMP_AT, batch[layout.BASE_TIMESTAMP])
        store_i64(buf, at + layout.MAX_TIMESTAMP_AT, batch[layout.MAX_TIMESTAMP])
        store_i64(buf, at + layout.PRODUCER_ID_AT, -1)
        store_i16(buf, at + layout.PRODUCER_EPOCH_AT, -1)
        store_i32(buf, at + layout.BASE_SEQUENCE_AT, -1)
        store_i32(buf, at + layout.RECORDS_COUNT_AT, batch[layout.RECORDS_COUNT])
        crc = crc32c(buf, at + layout.ATTRIBUTES_AT, at + batch[layout.SIZE])
        store_i32(buf, at + layout.CRC_AT, crc)


@kernel
def assign_offsets(buf: Bytes, positions: Int64s, base_offset: int, leader_epoch: int) -> int:
    """Move batches to where the log ends, in place; their checksums do not cover it.

    As ``LogValidator`` does for batches that need no other change.

    Parameters
    ----------
    buf : uint8 array; read and written
    positions : int64 array, shape (n_batches,); bytes at which batches begin
    base_offset : what is added to the base offset of each
    leader_epoch : of the partition

    Returns
    -------
    n_batches : how many were changed; fewer than all if the next one's header is not in `buf`
    """
    for number in range(positions.shape[0]):
        at = positions[number]
        if at < 0 or at + layout.HEADER_BYTES > buf.shape[0]:
            return number
        store_i64(buf, at + layout.BASE_OFFSET_AT, load_i64(buf, at) + base_offset)
        store_i32(buf, at + layout.LEADER_EPOCH_AT, leader_epoch)
    return positions.shape[0]
