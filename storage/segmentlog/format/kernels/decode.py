"""Records to columns in one pass: parse, and copy keys, values and headers to their places.

Outputs are allocated for an upper bound (the bytes of the records) and filled as far as they
reach, so nothing is measured first and nothing grows.  When an output is full, the state holds
the position of the next record, and the next call continues there with fresh outputs.

Two loops do the same.  `_fill_quickly` takes whole batches of plain records, which nearly all
batches are.  It leaves everything else to `_fill_carefully`, which handles headers, ranges and
full outputs, and names every kind of damage.  Messages of magic 0 and 1 have a third loop.
"""

from segmentlog.format.kernels import layout
from segmentlog.format.kernels import status as st
from segmentlog.format.kernels.memory import (
    COPY_SLACK,
    MOST_WIDE_BYTES,
    Bytes,
    Int32s,
    Int64s,
    Int64Table,
    copy_bytes,
    copy_wide,
    load_i32,
    load_i64,
    load_u8,
)
from segmentlog.format.kernels.output import (
    BATCH,
    BYTE_LIMIT,
    DETAIL,
    DETAIL_2,
    HEADER_KEY_BYTES,
    HEADER_LIMIT,
    HEADER_VALUE_BYTES,
    HEADER_VALUE_NULLS,
    KEY_BYTES,
    KEY_NULLS,
    LIST_NULLS,
    N_HEADERS,
    N_ROWS,
    NEXT_BYTE,
    PREVIOUS_DELTA,
    RECORD,
    ROW_LIMIT,
    USED_BYTES,
    VALUE_BYTES,
    VALUE_NULLS,
    ColumnArrays,
)
from segmentlog.format.kernels.record import message_body, parse_quickly, parse_record
from segmentlog.format.kernels.varint import read_varint
from segmentlog.native import inlined, internal, kernel


@inlined
def clear_bit(bitmap: Bytes, i: int) -> None:
    """Make row `i` null."""
    bitmap[i >> 3] &= 0xFF ^ (1 << (i & 7))


@inlined
def _put(
    row: int,
    source: Bytes,
    at: int,
    length: int,
    to: int,
    target: Bytes,
    ends: Int32s,
    valid: Bytes,
) -> int:
    """Write one key or value, null if `length` is negative; return the end of its bytes."""
    if length < 0:
        clear_bit(valid, row)
    elif length <= MOST_WIDE_BYTES and at + length + COPY_SLACK <= source.shape[0]:
        copy_wide(target, to, source, at, length)
        to += length
    else:
        copy_bytes(target, to, source, at, length)
        to += length
    ends[row + 1] = to
    return to


@internal
def _put_headers(buf: Bytes, at: int, end: int, columns: ColumnArrays, state: Int64s) -> None:
    """Write record headers that `record.judge` has found sound; `at` is after their count."""
    i, to_key, to_value = state[N_HEADERS], state[HEADER_KEY_BYTES], state[HEADER_VALUE_BYTES]
    while at < end:
        length, at = read_varint(buf, at, end)
        copy_bytes(columns.header_keys, to_key, buf, at, length)
        at += length
        to_key += length
        length, at = read_varint(buf, at, end)
        if length < 0:
            clear_bit(columns.header_value_valid, i)
            state[HEADER_VALUE_NULLS] += 1
        else:
            copy_bytes(columns.header_values, to_value, buf, at, length)
            at += length
            to_value += length
        i += 1
        columns.header_key_ends[i] = to_key
        columns.header_value_ends[i] = to_value
    state[N_HEADERS], state[HEADER_KEY_BYTES], state[HEADER_VALUE_BYTES] = i, to_key, to_value


@inlined
def _fill_quickly(
    buf: Bytes, header: Int64s, scale: int, columns: ColumnArrays, state: Int64s
) -> None:
    """Write records of one batch up to the first unusual one.

    The caller has checked that the whole batch is wanted and fits the output.
    """
    base_offset, base_ms = int(header[layout.BASE_OFFSET]), int(header[layout.BASE_TIMESTAMP])
    ms_mask = -1
    if header[layout.ATTRIBUTES] & layout.TIMESTAMP_TYPE_MASK != 0:
        base_ms, ms_mask = int(header[layout.MAX_TIMESTAMP]), 0
    end = min(header[layout.RECORDS_END], buf.shape[0] - COPY_SLACK)
    n_records, last_delta = header[layout.RECORDS_COUNT], header[layout.LAST_OFFSET] - base_offset
    record, at, previous = int(state[RECORD]), int(state[NEXT_BYTE]), int(state[PREVIOUS_DELTA])
    row, to_key, to_value = int(state[N_ROWS]), int(state[KEY_BYTES]), int(state[VALUE_BYTES])
    offsets, timestamps = columns.offsets, columns.timestamps
    keys, key_ends, key_valid = columns.keys, columns.key_ends, columns.key_valid
    values, value_ends, value_valid = columns.values, columns.value_ends, columns.value_valid
    want_key, want_value = key_ends.shape[0] > 0, value_ends.shape[0] > 0
    want_offset, want_timestamp = offsets.shape[0] > 0, timestamps.shape[0] > 0
    while record < n_records and at < end:
        adds_up, record_end, delta_ms, delta, key_length, key_at, value_length, value_at = (
            parse_quickly(buf, at, end)
        )
        ms = base_ms + (delta_ms & ms_mask)
        in_order = previous < delta <= last_delta
        if not adds_up or not in_order or ms > layout.LARGEST_MS or ms < layout.SMALLEST_MS:
            break
        if want_offset:
            offsets[row] = base_offset + delta
        if want_timestamp:
            timestamps[row] = ms * scale
        if want_key:
            to_key = _put(row, buf, key_at, key_length, to_key, keys, key_ends, key_valid)
            state[KEY_NULLS] += key_length < 0
        if want_value:
            to_value = _put(
                row, buf, value_at, value_length, to_value, values, value_ends, value_valid
            )
            state[VALUE_NULLS] += value_length < 0
        row += 1
        previous = delta
        at = record_end
        record += 1
    state[USED_BYTES] += at - state[NEXT_BYTE]
    state[RECORD], state[NEXT_BYTE], state[PREVIOUS_DELTA] = record, at, previous
    state[N_ROWS], state[KEY_BYTES], state[VALUE_BYTES] = row, to_key, to_value


@inlined
def _put_record(
    buf: Bytes,
    fields: tuple[int, ...],
    ms: int,
    offset: int,
    scale: int,
    columns: ColumnArrays,
    state: Int64s,
) -> int:
    """Write one record that `parse_record` has found sound, if there is room for it."""
    record_end, length, _, _, key_length, key_at, value_length, value_at, n_headers, at = fields
    row = state[N_ROWS]
    want_headers = columns.list_ends.shape[0] > 0
    state[DETAIL], state[DETAIL_2] = length, n_headers
    if row == state[ROW_LIMIT] or state[USED_BYTES] + length > state[BYTE_LIMIT]:
        return st.OUTPUT_FULL
    if want_headers and state[N_HEADERS] + n_headers > state[HEADER_LIMIT]:
        return st.OUTPUT_FULL
    if columns.timestamps.shape[0] > 0:
        if scale != 1 and (ms > layout.LARGEST_MS or ms < layout.SMALLEST_MS):
            state[DETAIL], state[DETAIL_2] = offset, ms
            return st.TIMESTAMP_OVERFLOW
        columns.timestamps[row] = ms * scale
    if columns.offsets.shape[0] > 0:
        columns.offsets[row] = offset
    if columns.key_ends.shape[0] > 0:
        state[KEY_BYTES] = _put(
            row,
            buf,
            key_at,
            key_length,
            state[KEY_BYTES],
            columns.keys,
            columns.key_ends,
            columns.key_valid,
        )
        state[KEY_NULLS] += key_length < 0
    if columns.value_ends.shape[0] > 0:
        state[VALUE_BYTES] = _put(
            row,
            buf,
            value_at,
            value_length,
            state[VALUE_BYTES],
            columns.values,
            columns.value_ends,
            columns.value_valid,
        )
        state[VALUE_NULLS] += value_length < 0
    if want_headers:
        if n_headers == 0:
            clear_bit(columns.list_valid, row)
            state[LIST_NULLS] += 1
        else:
            _put_headers(buf, at, record_end, columns, state)
        columns.list_ends[row + 1] = state[N_HEADERS]
    state[USED_BYTES] += length
    state[N_ROWS] += 1
    return st.OK


@internal
def _fill_carefully(
    buf: Bytes,
    header: Int64s,
    range_start: int,
    range_end: int,
    scale: int,
    columns: ColumnArrays,
    state: Int64s,
) -> int:
    """Write the records of one batch from where `state` stands; its status."""
    base_offset, end = header[layout.BASE_OFFSET], header[layout.RECORDS_END]
    last_delta = header[layout.LAST_OFFSET] - base_offset
    is_append_time = header[layout.ATTRIBUTES] & layout.TIMESTAMP_TYPE_MASK != 0
    while state[RECORD] < header[layout.RECORDS_COUNT]:
        status, fields = parse_record(buf, state[NEXT_BYTE], end)
        if status != st.OK:
            return status
        delta_ms, delta = fields[2], fields[3]
        if delta <= state[PREVIOUS_DELTA] or delta > last_delta:
            return st.RECORD_OFFSET_OUTSIDE
        offset = base_offset + delta
        if range_start <= offset < range_end:
            ms = header[layout.BASE_TIMESTAMP] + delta_ms
            if is_append_time:
                ms = header[layout.MAX_TIMESTAMP]
            status = _put_record(buf, fields, ms, offset, scale, columns, state)
            if status != st.OK:
                return status
        state[PREVIOUS_DELTA] = delta
        state[NEXT_BYTE] = fields[0]
        state[RECORD] += 1
    return st.OK if state[NEXT_BYTE] == end else st.TRAILING_BYTES


@internal
def _fill_messages(
    buf: Bytes,
    header: Int64s,
    range_start: int,
    range_end: int,
    scale: int,
    columns: ColumnArrays,
    state: Int64s,
) -> int:
    """Write messages of magic 0 and 1 that `scan_batches` or `resolve_wrappers` has checked."""
    is_append_time = header[layout.ATTRIBUTES] & layout.TIMESTAMP_TYPE_MASK != 0
    while state[RECORD] < header[layout.RECORDS_COUNT]:
        at = state[NEXT_BYTE]
        size = load_i32(buf, at + layout.BATCH_LENGTH_AT)
        after = at + layout.LOG_OVERHEAD + size
        offset = load_i64(buf, at) + header[layout.OFFSET_SHIFT]
        if range_start <= offset < range_end:
            ms = -1
            if load_u8(buf, at + layout.MAGIC_AT) != 0:
                ms = load_i64(buf, at + layout.LEGACY_TIMESTAMP_AT)
                if is_append_time:
                    ms = header[layout.MAX_TIMESTAMP]
            key_length, key_at, value_length, value_at = message_body(buf, at)
            fields = after, size, 0, 0, key_length, key_at, value_length, value_at, 0, after
            status = _put_record(buf, fields, ms, offset, scale, columns, state)
            if status != st.OK:
                return status
        state[NEXT_BYTE] = after
        state[RECORD] += 1
    return st.OK


@kernel
def fill_records(
    window: Bytes,
    inflated: Bytes,
    headers: Int64Table,
    range_start: int,
    range_end: int,
    scale: int,
    columns: ColumnArrays,
    state: Int64s,
) -> int:
    """Append to `columns` the records of `headers`, from where `state` stands.

    Parameters
    ----------
    window : uint8 array; holds the records of uncompressed batches; read only
    inflated : uint8 array; holds the inflated records of compressed batches; read only
    headers : int64 array, shape (n_batches, `layout.N_HEADER_COLUMNS`), as `scan_batches` fills
        it; ``RECORDS_START`` and ``RECORDS_END`` point into `inflated` for compressed batches
    range_start, range_end : half-open range of offsets; records outside are left out
    scale : units of the timestamps in a millisecond: 1000 for microseconds, or 1
    columns : the outputs; written
    state : int64 array, shape (N_STATE,); read and written

    Returns
    -------
    status : `OK` when all batches are done; `OUTPUT_FULL`; or the fault of the batch that
        ``state[BATCH]`` names
    """
    while state[BATCH] < headers.shape[0]:
        header = headers[state[BATCH]]
        if state[RECORD] < 0:
            state[RECORD], state[PREVIOUS_DELTA] = 0, -1
            state[NEXT_BYTE] = header[layout.RECORDS_START]
        source = window if header[layout.ATTRIBUTES] & layout.CODEC_MASK == 0 else inflated
        if header[layout.ATTRIBUTES] & layout.LEGACY_MASK != 0:
            status = _fill_messages(source, header, range_start, range_end, scale, columns, state)
        else:
            n_left = header[layout.RECORDS_COUNT] - state[RECORD]
            bytes_left = header[layout.RECORDS_END] - state[NEXT_BYTE]
            if (
                range_start <= header[layout.BASE_OFFSET]
                and header[layout.LAST_OFFSET] < range_end
                and state[N_ROWS] + n_left <= state[ROW_LIMIT]
                and state[USED_BYTES] + bytes_left <= state[BYTE_LIMIT]
                and columns.list_ends.shape[0] == 0
            ):
                _fill_quickly(source, header, scale, columns, state)
            status = _fill_carefully(source, header, range_start, range_end, scale, columns, state)
        if status != st.OK:
            return status
        state[BATCH] += 1
        state[RECORD] = -1
    return st.OK
