"""Records to columns in one pass: parse, and copy keys, values and headers to their places.

::

    length | attributes | timestamp delta | offset delta | key length | key | value length | value
    varint | 1 byte     | varlong         | varint       | varint     |     | varint       |
    | header count | key length | key | value length | value | …
      varint         varint             varint

Outputs are allocated for an upper bound (the bytes of the records) and filled as far as they
reach, so nothing is measured first and nothing grows.  Where the output is full, `State` says
which record comes next, and the next call goes on there with fresh outputs.
"""

from typing import NamedTuple

from segmentlog.kernels import layout
from segmentlog.kernels import status as st
from segmentlog.kernels._jit import inlined, kernel
from segmentlog.kernels.memory import (
    COPY_SLACK,
    MOST_WIDE_BYTES,
    Bytes,
    Int32s,
    Int64s,
    copy_bytes,
    copy_wide,
    load_u8,
)
from segmentlog.kernels.varint import read_varint, read_varint_quick, read_varlong

__all__ = ["N_STATE", "ColumnArrays", "fill_records"]

# What `fill_records` keeps between calls, in an int64 array: where it stands in the input …
BATCH = 0  #: row of the header table
RECORD = 1  #: records of that batch that are done
NEXT_BYTE = 2  #: first byte of the next record
PREVIOUS_DELTA = 3  #: offset delta of the record before, -1 at the start of a batch
# … and how full the output is, which the caller sets to zero for each new output.
N_ROWS = 4
USED_BYTES = 5  #: record bytes taken so far; keys, values and headers together are no more
KEY_BYTES = 6
KEY_NULLS = 7
VALUE_BYTES = 8
VALUE_NULLS = 9
LIST_NULLS = 10
N_HEADERS = 11
HEADER_KEY_BYTES = 12
HEADER_VALUE_BYTES = 13
HEADER_VALUE_NULLS = 14
# The room that the output has, set by the caller.
ROW_LIMIT = 15
BYTE_LIMIT = 16
HEADER_LIMIT = 17
#: With `OUTPUT_FULL`, the bytes of the record that did not fit, and its number of headers; with
#: `TIMESTAMP_OVERFLOW` the record's offset, and its timestamp.
DETAIL = 18
DETAIL_2 = 19
N_STATE = 20

_LARGEST_MS = (2**63 - 1) // 1000
_SMALLEST_MS = -((2**63) // 1000)


class ColumnArrays(NamedTuple):
    """Where one Arrow batch's columns are written; arrays of length 0 are columns not wanted.

    Bitmaps (``…_valid``) come with every bit set; a null clears its bit.  ``…_ends`` are Arrow's
    bounds of shape (n_rows + 1,), whose entry 0 the caller has set to 0.  ``keys``, ``values``,
    ``header_keys`` and ``header_values`` have room for `COPY_SLACK` bytes behind their capacity.
    """

    offsets: Int64s
    timestamps: Int64s
    key_ends: Int32s
    key_valid: Bytes
    keys: Bytes
    value_ends: Int32s
    value_valid: Bytes
    values: Bytes
    list_ends: Int32s
    list_valid: Bytes
    header_key_ends: Int32s
    header_keys: Bytes
    header_value_ends: Int32s
    header_value_valid: Bytes
    header_values: Bytes


@inlined
def _clear_bit(bitmap: Bytes, i: int) -> None:
    bitmap[i >> 3] &= ~(1 << (i & 7))


@inlined
def _put(
    row: int, source: Bytes, at: int, length: int, to: int,
    target: Bytes, ends: Int32s, valid: Bytes,
) -> int:  # fmt: skip
    """Write one key or value, null when `length` is negative; the end of the bytes written."""
    if length < 0:
        _clear_bit(valid, row)
    elif length <= MOST_WIDE_BYTES and at + length + COPY_SLACK <= source.shape[0]:
        copy_wide(target, to, source, at, length)
        to += length
    else:
        copy_bytes(target, to, source, at, length)
        to += length
    ends[row + 1] = to
    return to


@kernel
def _skip_headers(buf: Bytes, at: int, end: int, count: int) -> tuple[int, int]:
    """Walk `count` record headers; the status, and the position behind them."""
    if count < 0 or count > (end - at) // 2:
        return st.BAD_HEADERS_COUNT, at
    for _ in range(count):
        length, at = read_varint(buf, at, end)
        if length < 0 or at + length > end:
            return st.BAD_HEADER_KEY, at
        length, at = read_varint(buf, at + length, end)
        if length > 0:
            at += length
        if at > end:
            return st.BAD_HEADER_VALUE, at
    return st.OK, at


@kernel
def _judge(buf: Bytes, at: int, end: int) -> int:
    """What is wrong with a record that did not add up, or `OK` if it only has headers."""
    _, at = read_varlong(buf, at + 1, end)
    _, at = read_varint(buf, at, end)
    if at > end:
        return st.BAD_VARINT
    for bad_length in (st.BAD_KEY_LENGTH, st.BAD_VALUE_LENGTH):
        length, at = read_varint(buf, at, end)
        if at > end:
            return st.BAD_VARINT
        if length > 0:
            at += length
        if at > end:
            return bad_length
    count, at = read_varint(buf, at, end)
    if at > end:
        return st.BAD_VARINT
    status, at = _skip_headers(buf, at, end, count)
    if status == st.OK and at != end:
        return st.RECORD_LENGTH_MISMATCH
    return status


@kernel
def _fill_headers(buf: Bytes, at: int, end: int, columns: ColumnArrays, state: Int64s) -> None:
    """Write the record headers that `_judge` has found sound; `at` is behind the header count."""
    i, to_key, to_value = state[N_HEADERS], state[HEADER_KEY_BYTES], state[HEADER_VALUE_BYTES]
    while at < end:
        length, at = read_varint(buf, at, end)
        copy_bytes(columns.header_keys, to_key, buf, at, length)
        at += length
        to_key += length
        length, at = read_varint(buf, at, end)
        if length < 0:
            _clear_bit(columns.header_value_valid, i)
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
def _parse_record(
    buf: Bytes, at: int, end: int
) -> tuple[int, int, int, int, int, int, int, int, int, int, int]:
    """Fields of the record at byte `at`, checked to lie inside ``buf[at:end]``.

    Returns status, position behind the record, its length, timestamp delta, offset delta, key
    length, key position, value length, value position, number of headers and their position.
    """
    length, body = read_varint(buf, at, end)
    record_end = body + length
    status = st.OK
    if body > end:
        status = st.BAD_VARINT
    elif length < 0 or record_end > end:
        status = st.RECORD_TOO_LONG
    if status != st.OK:
        return status, at, 0, 0, 0, 0, 0, 0, 0, 0, 0
    delta_ms, at = read_varlong(buf, body + 1, record_end)
    delta, at = read_varint(buf, at, record_end)
    key_length, key_at = read_varint(buf, at, record_end)
    value_length, value_at = read_varint(buf, key_at + max(key_length, 0), record_end)
    n_headers, headers_at = read_varint(buf, value_at + max(value_length, 0), record_end)
    if n_headers != 0 or headers_at != record_end:
        status = _judge(buf, body, record_end)
    return (
        status, record_end, length, delta_ms, delta,
        key_length, key_at, value_length, value_at, n_headers, headers_at,
    )  # fmt: skip


@inlined
def _fill_quickly(
    buf: Bytes, header: Int64s, scale: int, columns: ColumnArrays, state: Int64s
) -> None:
    """Write records of one batch while nothing is unusual about them, and stop where it is.

    The caller has checked that the whole batch is asked for and fits the output.  Left to
    `_fill_carefully`: records with headers, the last few of a buffer, and all that is wrong.
    One check a record (that it ends well inside the buffer) stands for those of its varints.
    """
    base_offset, base_ms = header[layout.BASE_OFFSET], header[layout.BASE_TIMESTAMP]
    ms_mask = -1
    if header[layout.ATTRIBUTES] & layout.TIMESTAMP_TYPE_MASK != 0:
        base_ms, ms_mask = header[layout.MAX_TIMESTAMP], 0
    end = min(header[layout.RECORDS_END], buf.shape[0] - COPY_SLACK)
    n_records = header[layout.RECORDS_COUNT]
    record, at, previous = state[RECORD], state[NEXT_BYTE], state[PREVIOUS_DELTA]
    row, to_key, to_value = state[N_ROWS], state[KEY_BYTES], state[VALUE_BYTES]
    offsets, timestamps = columns.offsets, columns.timestamps
    keys, key_ends, key_valid = columns.keys, columns.key_ends, columns.key_valid
    values, value_ends, value_valid = columns.values, columns.value_ends, columns.value_valid
    want_key, want_value = key_ends.shape[0] > 0, value_ends.shape[0] > 0
    want_offset, want_timestamp = offsets.shape[0] > 0, timestamps.shape[0] > 0
    while record < n_records and at < end:
        length, body = read_varint_quick(buf, at)
        record_end = body + length
        if length < 0 or record_end > end:
            break
        delta_ms, behind = read_varint_quick(buf, body + 1)
        if behind > record_end:
            break
        delta, behind = read_varint_quick(buf, behind)
        if behind > record_end:
            break
        key_length, key_at = read_varint_quick(buf, behind)
        behind = key_at + max(key_length, 0)
        if behind > record_end:
            break
        value_length, value_at = read_varint_quick(buf, behind)
        behind = value_at + max(value_length, 0)
        ms = base_ms + (delta_ms & ms_mask)
        if (
            behind + 1 != record_end or load_u8(buf, behind) != 0
            or delta <= previous or ms > _LARGEST_MS or ms < _SMALLEST_MS
        ):  # fmt: skip
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


@kernel
def _fill_carefully(
    buf: Bytes, header: Int64s, range_start: int, range_end: int, scale: int,
    columns: ColumnArrays, state: Int64s,
) -> int:  # fmt: skip
    """Write the records of one batch from where `state` stands; its status."""
    base_offset, base_ms = header[layout.BASE_OFFSET], header[layout.BASE_TIMESTAMP]
    last_delta = header[layout.LAST_OFFSET] - base_offset
    is_append_time = header[layout.ATTRIBUTES] & layout.TIMESTAMP_TYPE_MASK != 0
    n_records, end = header[layout.RECORDS_COUNT], header[layout.RECORDS_END]
    record, at, previous = state[RECORD], state[NEXT_BYTE], state[PREVIOUS_DELTA]
    row, used, to_key, to_value = (
        state[N_ROWS],
        state[USED_BYTES],
        state[KEY_BYTES],
        state[VALUE_BYTES],
    )
    row_limit, byte_limit = state[ROW_LIMIT], state[BYTE_LIMIT]
    key_nulls = value_nulls = 0
    want_key, want_value = columns.key_ends.shape[0] > 0, columns.value_ends.shape[0] > 0
    want_headers = columns.list_ends.shape[0] > 0
    offsets, timestamps = columns.offsets, columns.timestamps
    keys, key_ends, key_valid = columns.keys, columns.key_ends, columns.key_valid
    values, value_ends, value_valid = columns.values, columns.value_ends, columns.value_valid
    want_offset, want_timestamp = offsets.shape[0] > 0, timestamps.shape[0] > 0
    status = st.OK
    while record < n_records:
        (
            status, record_end, length, delta_ms, delta,
            key_length, key_at, value_length, value_at, n_headers, headers_at,
        ) = _parse_record(buf, at, end)  # fmt: skip
        if status != st.OK:
            break
        if delta <= previous or delta > last_delta:
            status = st.RECORD_OFFSET_OUTSIDE
            break
        offset = base_offset + delta
        if range_start <= offset < range_end:
            if row == row_limit or used + length > byte_limit:
                status = st.OUTPUT_FULL
                state[DETAIL], state[DETAIL_2] = length, n_headers
                break
            if want_headers:
                if state[N_HEADERS] + n_headers > state[HEADER_LIMIT]:
                    status = st.OUTPUT_FULL
                    state[DETAIL], state[DETAIL_2] = length, n_headers
                    break
                if n_headers == 0:
                    _clear_bit(columns.list_valid, row)
                    state[LIST_NULLS] += 1
                else:
                    _fill_headers(buf, headers_at, record_end, columns, state)
                columns.list_ends[row + 1] = state[N_HEADERS]
            if want_offset:
                offsets[row] = offset
            if want_timestamp:
                ms = header[layout.MAX_TIMESTAMP] if is_append_time else base_ms + delta_ms
                if scale != 1 and (ms > _LARGEST_MS or ms < _SMALLEST_MS):
                    status = st.TIMESTAMP_OVERFLOW
                    state[DETAIL], state[DETAIL_2] = offset, ms
                    break
                timestamps[row] = ms * scale
            if want_key:
                to_key = _put(
                    row, buf, key_at, key_length, to_key,
                    keys, key_ends, key_valid,
                )  # fmt: skip
                key_nulls += key_length < 0
            if want_value:
                to_value = _put(
                    row, buf, value_at, value_length, to_value,
                    values, value_ends, value_valid,
                )  # fmt: skip
                value_nulls += value_length < 0
            used += length
            row += 1
        previous = delta
        at = record_end
        record += 1
    state[RECORD], state[NEXT_BYTE], state[PREVIOUS_DELTA] = record, at, previous
    state[N_ROWS], state[USED_BYTES], state[KEY_BYTES], state[VALUE_BYTES] = (
        row,
        used,
        to_key,
        to_value,
    )
    state[KEY_NULLS] += key_nulls
    state[VALUE_NULLS] += value_nulls
    if status == st.OK and at != end:
        return st.TRAILING_BYTES
    return status


@kernel
def fill_records(
    window: Bytes, inflated: Bytes, headers: Int64s, range_start: int, range_end: int,
    scale: int, columns: ColumnArrays, state: Int64s,
) -> int:  # fmt: skip
    """Append to `columns` the records of `headers`, from where `state` stands.

    Parameters
    ----------
    window : uint8 array; holds the records of uncompressed batches; read only
    inflated : uint8 array; holds those of compressed ones, already inflated; read only
    headers : int64 array, shape (n_batches, `layout.N_HEADER_COLUMNS`), as `scan_batches` fills
        it; ``RECORDS_START`` and ``RECORDS_END`` point into `inflated` for compressed batches
    range_start, range_end : half-open range of offsets; records outside are left out
    scale : what a millisecond is multiplied with: 1000 for microseconds, or 1
    columns : the outputs; written
    state : int64 array, shape (N_STATE,); read and written

    Returns
    -------
    status : `OK` when all batches are done; `OUTPUT_FULL`; or what is wrong with the batch that
        ``state[BATCH]`` names
    """
    while state[BATCH] < headers.shape[0]:
        header = headers[state[BATCH]]
        if state[RECORD] < 0:
            state[RECORD], state[PREVIOUS_DELTA] = 0, -1
            state[NEXT_BYTE] = header[layout.RECORDS_START]
        source = window if header[layout.ATTRIBUTES] & layout.CODEC_MASK == 0 else inflated
        n_left = header[layout.RECORDS_COUNT] - state[RECORD]
        if (
            range_start <= header[layout.BASE_OFFSET] and header[layout.LAST_OFFSET] < range_end
            and state[N_ROWS] + n_left <= state[ROW_LIMIT]
            and state[USED_BYTES] + header[layout.RECORDS_END] - state[NEXT_BYTE] <= state[BYTE_LIMIT]
            and columns.list_ends.shape[0] == 0
        ):  # fmt: skip
            _fill_quickly(source, header, scale, columns, state)
        if (
            state[RECORD] == header[layout.RECORDS_COUNT]
            and state[NEXT_BYTE] == header[layout.RECORDS_END]
        ):
            state[BATCH] += 1
            state[RECORD] = -1
            continue
        status = _fill_carefully(source, header, range_start, range_end, scale, columns, state)
        if status != st.OK:
            return status
        state[BATCH] += 1
        state[RECORD] = -1
    return st.OK
