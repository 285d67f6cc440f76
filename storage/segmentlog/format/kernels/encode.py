"""Columns to record batches: cut the rows into batches, write them, and seal the batches.

The lengths of a row's fields are measured before (`source.measure_rows`).  So the length of a
record is known before the record is written, and so is whether it still fits.
"""

from segmentlog.format.kernels import layout
from segmentlog.format.kernels import status as st
from segmentlog.format.kernels.crc32c import crc32c
from segmentlog.format.kernels.memory import (
    COPY_SLACK,
    MOST_WIDE_BYTES,
    Bytes,
    Int64s,
    Int64Table,
    copy_bytes,
    copy_wide,
    load_i64,
    load_item,
    prefetch,
    store_i16,
    store_i32,
    store_i64,
    store_u8,
    store_u64,
)
from segmentlog.format.kernels.source import BinaryArrays, SourceArrays, is_null, length_of
from segmentlog.format.kernels.varint import varint_bytes, varint_word, write_varint
from segmentlog.native import inlined, internal, kernel

# Columns of the table of batches, after those of `layout`.
FIRST_ROW = layout.N_HEADER_COLUMNS  #: position in `rows` of a batch's first record
MAX_TIMESTAMP_OFFSET = FIRST_ROW + 1  #: offset of the first record with the largest timestamp
N_BATCH_COLUMNS = FIRST_ROW + 2

#: Most bytes that a record takes alone in a batch, besides `SourceArrays.row_bytes`: batch
#: header, length, attributes, deltas (``DefaultRecordBatch.estimateBatchSizeUpperBound``).
MOST_OVERHEAD = layout.HEADER_BYTES + 5 + 1 + 10 + 5

_LARGEST_I32 = 2**31 - 1
_LARGEST_I64 = 2**63 - 1
_NO_TIMESTAMP = -1
_AHEAD = 16  #: rows whose keys and values are prefetched before they are written
_FAR_AHEAD = 32  #: rows whose bounds are prefetched, before the keys and values need them
#: At this distance of a partition's rows, the processor does not prefetch bounds by itself.
_SPARSE = 6


@inlined
def _put_quickly(out: Bytes, to: int, column: BinaryArrays, row: int) -> int:
    """Write a value that has `COPY_SLACK` bytes after it; return the position after it."""
    start = load_item(column.ends, row)
    length = load_item(column.ends, row + 1) - start
    if is_null(column.valid, column.first_bit + row):
        store_u8(out, to, 1)
        return to + 1
    word, n_bytes = varint_word(length << 1)
    store_u64(out, to, word)
    to += n_bytes
    if length <= MOST_WIDE_BYTES:
        copy_wide(out, to, column.data, start, length)
    else:
        copy_bytes(out, to, column.data, start, length)
    return to + length


@inlined
def _put_headers_quickly(out: Bytes, to: int, source: SourceArrays, row: int) -> None:
    """Write the headers of a record, all of which have `COPY_SLACK` bytes after them."""
    if is_null(source.list_valid, source.list_first_bit + row):
        store_u8(out, to, 0)
        return
    start, end = load_item(source.list_ends, row), load_item(source.list_ends, row + 1)
    word, n_bytes = varint_word((end - start) << 1)
    store_u64(out, to, word)
    to += n_bytes
    for i in range(start, end):
        to = _put_quickly(out, to, source.header_keys, i)
        to = _put_quickly(out, to, source.header_values, i)


@inlined
def _prefetch_row(source: SourceArrays, row: int) -> None:
    """Ask for a row's key and for what `copy_wide` reads of most values."""
    prefetch(source.keys.data, load_item(source.keys.ends, row))
    start = load_item(source.values.ends, row)
    prefetch(source.values.data, start)
    prefetch(source.values.data, start + 64)
    prefetch(source.values.data, start + 127)  # three lines, unless the value begins a line


@inlined
def _prefetch_bounds(source: SourceArrays, row: int) -> None:
    """Ask for what is read of a row before its key and value."""
    prefetch(source.keys.ends, row)
    prefetch(source.values.ends, row)
    prefetch(source.timestamps, row)
    prefetch(source.row_bytes, row)


@inlined
def _write_quickly(
    source: SourceArrays,
    rows: Int64s,
    offsets: Int64s,
    batch: Int64s,
    at: int,
    to: int,
    end: int,
    out: Bytes,
) -> tuple[int, int]:
    """Write rows of a batch up to the first unusual one; return where that is.

    A row is unusual if a field is so close to the end of its column that whole vectors cannot be
    copied, if its offset or timestamp is very far from the batch's first, or if it is wrong.
    """
    base_offset, base_ms = int(batch[layout.BASE_OFFSET]), int(batch[layout.BASE_TIMESTAMP])
    max_ms, max_ms_offset = int(batch[layout.MAX_TIMESTAMP]), int(batch[MAX_TIMESTAMP_OFFSET])
    keys, values, n_rows = source.keys, source.values, source.n_wide_rows
    while at < rows.shape[0]:
        row, offset = load_item(rows, at), load_item(offsets, at)
        if not 0 <= row < n_rows:
            break
        if at + _AHEAD < rows.shape[0]:
            next_row = load_item(rows, at + _AHEAD)
            if next_row != row + _AHEAD and 0 <= next_row < n_rows:
                _prefetch_row(source, next_row)
        if at + _FAR_AHEAD < rows.shape[0]:
            far_row = load_item(rows, at + _FAR_AHEAD)
            if far_row - row >= _SPARSE * _FAR_AHEAD:
                _prefetch_bounds(source, far_row)
        ms, n_bytes = load_item(source.timestamps, row), load_item(source.row_bytes, row)
        ms_groups = ((ms - base_ms) << 1) ^ ((ms - base_ms) >> 63)
        delta_groups = (offset - base_offset) << 1
        if ms_groups >> 56 != 0 or delta_groups >> 32 != 0 or n_bytes < 0:
            break
        ms_word, ms_bytes = varint_word(ms_groups)
        delta_word, delta_bytes = varint_word(delta_groups)
        n_bytes += 1 + ms_bytes + delta_bytes
        word, length_bytes = varint_word(n_bytes << 1)
        after = to + length_bytes + n_bytes
        if after > end:
            break
        store_u64(out, to, word)  # and the attributes, which are 0
        to += length_bytes + 1
        store_u64(out, to, ms_word)
        to += ms_bytes
        store_u64(out, to, delta_word)
        to = _put_quickly(out, to + delta_bytes, keys, row)
        to = _put_quickly(out, to, values, row)
        if source.list_ends.shape[0] > 0:
            _put_headers_quickly(out, to, source, row)
        else:
            store_u8(out, to, 0)
        to = after
        if ms > max_ms:
            max_ms, max_ms_offset = ms, offset
        at += 1
    batch[layout.MAX_TIMESTAMP], batch[MAX_TIMESTAMP_OFFSET] = max_ms, max_ms_offset
    return at, to


@internal
def _put(out: Bytes, to: int, column: BinaryArrays, row: int) -> int:
    """Write any value after its length; return the position after it."""
    length = length_of(column, row)
    to = write_varint(out, to, length)
    if length <= 0:
        return to
    copy_bytes(out, to, column.data, int(column.ends[row]), length)
    return to + length


@internal
def _put_headers(out: Bytes, to: int, source: SourceArrays, row: int) -> int:
    """Write the headers of a record, which end it; return the position after them."""
    if source.list_ends.shape[0] == 0 or is_null(source.list_valid, source.list_first_bit + row):
        store_u8(out, to, 0)
        return to + 1
    start, end = int(source.list_ends[row]), int(source.list_ends[row + 1])
    to = write_varint(out, to, end - start)
    for i in range(start, end):
        to = _put(out, to, source.header_keys, i)
        to = _put(out, to, source.header_values, i)
    return to


@internal
def _write_carefully(
    source: SourceArrays,
    rows: Int64s,
    offsets: Int64s,
    batch: Int64s,
    at: int,
    to: int,
    end: int,
    out: Bytes,
) -> tuple[int, int]:
    """Write one row, if the batch takes it; the status, and the position after it in `out`.

    The status is `BATCH_FULL` where the row belongs to the next batch; with that, the position is
    where the record would have ended, or -1 if it is too far from the batch's first.
    """
    row, offset = rows[at], offsets[at]
    if not 0 <= row < source.timestamps.shape[0]:
        return st.BAD_ROW, to
    ms, n_bytes = source.timestamps[row], source.row_bytes[row]
    if n_bytes < 0:
        return st.BAD_TIMESTAMP if ms < _NO_TIMESTAMP else st.NULL_HEADER_KEY, to
    base_ms, delta = batch[layout.BASE_TIMESTAMP], offset - batch[layout.BASE_OFFSET]
    if delta > _LARGEST_I32 or (base_ms < 0 and ms == _LARGEST_I64):
        return st.BATCH_FULL, -1
    n_bytes += 1 + varint_bytes(ms - base_ms) + varint_bytes(delta)
    after = to + varint_bytes(n_bytes) + n_bytes
    if after > end:
        return st.BATCH_FULL, after
    to = write_varint(out, to, n_bytes)
    store_u8(out, to, 0)
    to = write_varint(out, to + 1, ms - base_ms)
    to = write_varint(out, to, delta)
    to = _put(out, to, source.keys, row)
    to = _put(out, to, source.values, row)
    if ms > batch[layout.MAX_TIMESTAMP]:
        batch[layout.MAX_TIMESTAMP], batch[MAX_TIMESTAMP_OFFSET] = ms, offset
    return st.OK, _put_headers(out, to, source, row)


@internal
def _seal(buf: Bytes, batch: Int64s) -> None:
    """Write the header of a batch: leader epoch 0, the fields of idempotent producers -1."""
    at, base_offset = batch[layout.POSITION], batch[layout.BASE_OFFSET]
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


@internal
def _write_batch(
    source: SourceArrays,
    rows: Int64s,
    offsets: Int64s,
    first: int,
    batch_size: int,
    max_bytes: int,
    attributes: int,
    append_time_ms: int,
    batch: Int64s,
    out: Bytes,
) -> tuple[int, int]:
    """Write rows from `first` on to byte ``batch[POSITION]``, as many as one batch takes.

    Returns the status, and the position in `rows` of the first row that is not in the batch.
    """
    row = rows[first]
    if not 0 <= row < source.timestamps.shape[0]:
        return st.BAD_ROW, first
    start, at = int(batch[layout.POSITION]), first
    to = start + layout.HEADER_BYTES
    batch[layout.BASE_OFFSET], batch[layout.BASE_TIMESTAMP] = offsets[at], source.timestamps[row]
    batch[layout.MAX_TIMESTAMP], batch[MAX_TIMESTAMP_OFFSET] = _NO_TIMESTAMP, offsets[at]
    row_bytes = int(source.row_bytes[row])
    limit = start + min(max(batch_size, MOST_OVERHEAD + row_bytes), max_bytes)
    end = min(limit, out.shape[0] - COPY_SLACK)
    while at < rows.shape[0]:
        at, to = _write_quickly(source, rows, offsets, batch, at, to, end, out)
        if at == rows.shape[0]:
            break
        status, after = _write_carefully(source, rows, offsets, batch, at, to, end, out)
        if status == st.BATCH_FULL:
            if end < after <= limit:
                return st.OUTPUT_FULL, first
            if at == first:
                batch[layout.SIZE] = after - start
                return st.RECORD_TOO_LARGE, at
            break
        if status != st.OK:
            return status, at
        to = after
        at += 1
    batch[layout.LAST_OFFSET] = offsets[at - 1]
    batch[layout.RECORDS_START], batch[layout.RECORDS_END] = start + layout.HEADER_BYTES, to
    batch[layout.SIZE], batch[layout.RECORDS_COUNT] = to - start, at - first
    batch[FIRST_ROW] = first
    batch[layout.ATTRIBUTES], batch[layout.PRODUCER_ID] = attributes, -1
    batch[layout.OFFSET_SHIFT] = 0
    if attributes & layout.TIMESTAMP_TYPE_MASK:
        batch[layout.MAX_TIMESTAMP] = append_time_ms
    if attributes & layout.TIMESTAMP_TYPE_MASK or batch[layout.MAX_TIMESTAMP] < 0:
        batch[MAX_TIMESTAMP_OFFSET] = batch[layout.LAST_OFFSET]
    if attributes & layout.CODEC_MASK == 0:
        _seal(out, batch)  # while it is in the processor's caches
    return st.OK, at


@kernel
def write_batches(
    source: SourceArrays,
    rows: Int64s,
    offsets: Int64s,
    begin: int,
    batch_size: int,
    max_bytes: int,
    attributes: int,
    append_time_ms: int,
    table: Int64Table,
    out: Bytes,
    to: int,
) -> tuple[int, int, int]:
    """Write rows as records of batches with their headers; with a codec, gaps for the headers.

    A batch ends where ``ProducerBatch`` ends it: before the row that would make it larger than
    `batch_size`, or than the upper bound of its first record, if that is more
    (``DefaultRecordBatch.estimateBatchSizeUpperBound``).  It also ends before a row whose offset
    or timestamp is too far from those of its first row.

    Parameters
    ----------
    source : the columns; read only
    rows : int64 array, shape (n,); rows of `source` in the order in which they are written
    offsets : int64 array, shape (n,); the offset of each; not negative and rising, checked by
        the caller
    begin : position in `rows` to begin at
    batch_size : bytes of a batch, its header included
    max_bytes : the limit of a batch's size, even with one record
    attributes : of every batch; its codec is for `seal_batches`, when the records are compressed
    append_time_ms : largest timestamp of every batch, if the attributes make it the time of
        appending
    table : int64 array, shape (n_lines, `N_BATCH_COLUMNS`); written
    out : uint8 array; written, up to `COPY_SLACK` bytes before its end
    to : byte of `out` at which the first batch begins

    Returns
    -------
    status : `OK` when all rows are written, `TABLE_FULL`, `OUTPUT_FULL`, or the fault of a row;
        with `RECORD_TOO_LARGE` the next line of `table` has the size of its batch
    position : in `rows`, of the first row of the next batch, or of the wrong row
    n_batches : lines of `table` that are filled
    """
    at, n_batches = begin, 0
    while at < rows.shape[0]:
        if n_batches == table.shape[0]:
            return st.TABLE_FULL, at, n_batches
        table[n_batches, layout.POSITION] = to
        status, at = _write_batch(
            source,
            rows,
            offsets,
            at,
            batch_size,
            max_bytes,
            attributes,
            append_time_ms,
            table[n_batches],
            out,
        )
        if status != st.OK:
            return status, at, n_batches
        to = int(table[n_batches, layout.RECORDS_END])
        n_batches += 1
    return st.OK, at, n_batches


@kernel
def seal_batches(buf: Bytes, table: Int64Table) -> None:
    """Write the headers, with checksums, of batches whose records are written.

    Parameters
    ----------
    buf : uint8 array; written; the caller has checked that it holds every batch of `table`
    table : int64 array, shape (n_batches, at least `layout.N_HEADER_COLUMNS`); read only
    """
    for number in range(table.shape[0]):
        _seal(buf, table[number])


@kernel
def assign_offsets(buf: Bytes, positions: Int64s, base_offset: int, leader_epoch: int) -> int:
    """Give batches the offsets and the epoch of a log, in place; no checksum covers these fields.

    As ``LogValidator`` does for batches that need no other change.

    Parameters
    ----------
    buf : uint8 array; read and written
    positions : int64 array, shape (n_batches,); bytes at which batches begin
    base_offset : is added to the base offset of each
    leader_epoch : of the partition

    Returns
    -------
    n_batches : number of batches changed; fewer than all if the next header is not in `buf`
    """
    for number in range(positions.shape[0]):
        at = positions[number]
        if at < 0 or at + layout.HEADER_BYTES > buf.shape[0]:
            return number
        store_i64(buf, at + layout.BASE_OFFSET_AT, load_i64(buf, at) + base_offset)
        store_i32(buf, at + layout.LEADER_EPOCH_AT, leader_epoch)
    return len(positions)
