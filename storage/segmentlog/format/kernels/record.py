"""One record, or one message of magic 0 or 1: parse it, and name its fault.

The fields of magic 2::

    length | attributes | timestamp delta | offset delta | key length | key | value length | value
    varint | 1 byte     | varlong         | varint       | varint     |     | varint       |
    | header count | key length | key | value length | value | …
      varint         varint             varint

`parse_record` checks everything and names each fault.  `parse_quickly` checks only for the usual
form, and leaves every other record to `parse_record`.  `parse_any` takes records of all formats,
for compaction.
"""

from segmentlog.format.kernels import layout
from segmentlog.format.kernels import status as st
from segmentlog.format.kernels.crc32c import byte_tables, checksum_by_table
from segmentlog.format.kernels.memory import Bytes, Int64s, Int64Table, load_i32, load_i64, load_u8
from segmentlog.format.kernels.varint import (
    INT_STOPS,
    LONG_STOPS,
    read_varint,
    read_varint_quick,
    read_varlong,
)
from segmentlog.native import inlined, internal, kernel

_LARGEST_OFFSET = 2**63 - 1
_TABLES = byte_tables(0xEDB88320)  # the checksum of zlib, IEEE 802.3


@internal
def _crc32(buf: Bytes, start: int, end: int) -> int:
    return int(checksum_by_table(buf, start, end, _TABLES))


@inlined
def message_body(buf: Bytes, position: int) -> tuple[int, int, int, int]:
    """Key length, key position, value length and value position of a sound message."""
    key_at = position + layout.LEGACY_KEY_AT[load_u8(buf, position + layout.MAGIC_AT)]
    key_length = load_i32(buf, key_at)
    value_at = key_at + 4 + max(key_length, 0)
    return key_length, key_at + 4, load_i32(buf, value_at), value_at + 4


@internal
def check_message(buf: Bytes, position: int, end: int) -> int:
    """The fault of the message of magic 0 or 1 in ``buf[position:end]``, or `OK`.

    Parameters
    ----------
    buf : uint8 array, shape (n_bytes,); read only
    position, end : half-open byte range, by the message's size; ``end <= n_bytes`` and at least 26
        bytes from `position`, checked by the caller
    """
    stored = load_i32(buf, position + layout.LEGACY_CRC_AT) & 0xFFFFFFFF
    if _crc32(buf, position + layout.MAGIC_AT, end) != stored:
        return st.BAD_CRC
    magic = load_u8(buf, position + layout.MAGIC_AT)
    key_at = position + layout.LEGACY_KEY_AT[magic]
    if key_at + 8 > end:
        return st.BAD_LENGTH
    key_length = load_i32(buf, key_at)
    value_at = key_at + 4 + max(key_length, 0)
    if value_at + 4 > end:
        return st.BAD_KEY_LENGTH
    value_length = load_i32(buf, value_at)
    value_end = value_at + 4 + max(value_length, 0)
    if value_end > end:
        return st.BAD_VALUE_LENGTH
    return st.OK if value_end == end else st.TRAILING_BYTES


@internal
def _check_inner(buf: Bytes, position: int, end: int, previous: int) -> tuple[int, int]:
    """Status of the message at `position` inside a wrapper that ends at `end`, and its end."""
    if position + layout.LOG_OVERHEAD + layout.MIN_LEGACY_LENGTH > end:
        return st.MESSAGE_CUT_SHORT, end
    size = load_i32(buf, position + layout.BATCH_LENGTH_AT)
    after = position + layout.LOG_OVERHEAD + size
    if size < layout.MIN_LEGACY_LENGTH:
        return st.BAD_LENGTH, end
    if after > end:
        return st.MESSAGE_CUT_SHORT, end
    if load_u8(buf, position + layout.MAGIC_AT) >= layout.FIRST_BATCH_MAGIC:
        return st.BAD_INNER_MAGIC, end
    if load_u8(buf, position + layout.LEGACY_ATTRIBUTES_AT) & layout.CODEC_MASK != 0:
        return st.NESTED_WRAPPER, end
    offset = load_i64(buf, position)
    if offset <= previous:
        return st.INNER_OFFSET_OUTSIDE, end
    status = check_message(buf, position, after)
    return st.BAD_INNER_CRC if status == st.BAD_CRC else status, after


@kernel
def resolve_wrappers(inflated: Bytes, headers: Int64Table) -> tuple[int, int]:
    """Check the messages inside inflated wrappers, count them, and find their offsets.

    The last message inside has the wrapper's offset.  Offsets are absolute inside a wrapper of
    magic 0, and relative inside a wrapper of magic 1.  Some producers left a wrapper's offset at
    0: then the offsets inside are taken as they are (``AbstractLegacyRecordBatch``).

    Parameters
    ----------
    inflated : uint8 array; ``RECORDS_START`` and ``RECORDS_END`` of wrappers point into it
    headers : int64 array, shape (n_batches, `layout.N_HEADER_COLUMNS`); rows of wrappers get
        their ``RECORDS_COUNT``, ``BASE_OFFSET``, ``LAST_OFFSET`` and ``OFFSET_SHIFT``

    Returns
    -------
    status : `OK`, or the fault of the wrapper in `row`
    row : of `headers`
    """
    for row in range(headers.shape[0]):
        attributes = headers[row, layout.ATTRIBUTES]
        if attributes & layout.LEGACY_MASK == 0 or attributes & layout.CODEC_MASK == 0:
            continue
        at, end = headers[row, layout.RECORDS_START], headers[row, layout.RECORDS_END]
        first = last = -1
        count = 0
        while at < end:
            status, after = _check_inner(inflated, at, end, last)
            if status != st.OK:
                return status, row
            last = load_i64(inflated, at)
            first = last if count == 0 else first
            count += 1
            at = after
        if count == 0:
            return st.EMPTY_WRAPPER, row
        wrapper_offset, shift = headers[row, layout.LAST_OFFSET], 0
        if attributes & layout.NO_TIMESTAMP_MASK != 0:
            if last != wrapper_offset:
                return st.INNER_OFFSET_OUTSIDE, row
        elif wrapper_offset != 0:
            shift = wrapper_offset - last
            if shift < 0:
                return st.INNER_OFFSET_OUTSIDE, row
        if last + shift == _LARGEST_OFFSET:
            return st.INNER_OFFSET_OUTSIDE, row
        if first + shift < headers[row, layout.BASE_OFFSET]:
            return st.OFFSETS_GO_BACK, row
        headers[row, layout.RECORDS_COUNT] = count
        headers[row, layout.BASE_OFFSET] = first + shift
        headers[row, layout.LAST_OFFSET] = last + shift
        headers[row, layout.OFFSET_SHIFT] = shift
    return st.OK, 0


@internal
def _skip_headers(buf: Bytes, at: int, end: int, count: int) -> tuple[int, int]:
    """Walk `count` record headers; return the status, and the position after them."""
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


@internal
def judge(buf: Bytes, at: int, end: int) -> int:
    """The fault of a record that did not add up, or `OK` if it merely has headers."""
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


@inlined
def parse_record(
    buf: Bytes, at: int, end: int
) -> tuple[int, tuple[int, int, int, int, int, int, int, int, int, int]]:
    """Fields of the record at byte `at`, checked to lie inside ``buf[at:end]``.

    Returns the status, and the fields: position after the record, its length, timestamp delta,
    offset delta, key length, key position, value length, value position, number of headers and
    their position.
    """
    length, body = read_varint(buf, at, end)
    record_end = body + length
    status = st.OK
    if body > end:
        status = st.BAD_VARINT
    elif length < 0 or record_end > end:
        status = st.RECORD_TOO_LONG
    if status != st.OK:
        return status, (at, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    delta_ms, at = read_varlong(buf, body + 1, record_end)
    delta, at = read_varint(buf, at, record_end)
    key_length, key_at = read_varint(buf, at, record_end)
    value_length, value_at = read_varint(buf, key_at + max(key_length, 0), record_end)
    n_headers, headers_at = read_varint(buf, value_at + max(value_length, 0), record_end)
    if n_headers != 0 or headers_at != record_end:
        status = judge(buf, body, record_end)
    return status, (
        record_end,
        length,
        delta_ms,
        delta,
        key_length,
        key_at,
        value_length,
        value_at,
        n_headers,
        headers_at,
    )


@inlined
def parse_quickly(buf: Bytes, at: int, end: int) -> tuple[bool, int, int, int, int, int, int, int]:
    """Fields of the record at byte `at`, if it has no headers and adds up.

    One check, that the record ends at or before `end`, replaces a check of each varint: `end` has
    slack after it, so no read from inside the record leaves the buffer.

    Returns whether it adds up, the position after the record, timestamp delta, offset delta,
    key length, key position, value length and value position.
    """
    length, body = read_varint_quick(buf, at, INT_STOPS)
    record_end = body + length
    if length < 0 or record_end > end:
        return False, 0, 0, 0, 0, 0, 0, 0
    delta_ms, after = read_varint_quick(buf, body + 1, LONG_STOPS)
    if after > record_end:
        return False, 0, 0, 0, 0, 0, 0, 0
    delta, after = read_varint_quick(buf, after, INT_STOPS)
    if after > record_end:
        return False, 0, 0, 0, 0, 0, 0, 0
    key_length, key_at = read_varint_quick(buf, after, INT_STOPS)
    after = key_at + max(key_length, 0)
    if after > record_end:
        return False, 0, 0, 0, 0, 0, 0, 0
    value_length, value_at = read_varint_quick(buf, after, INT_STOPS)
    after = value_at + max(value_length, 0)
    adds_up = after + 1 == record_end and load_u8(buf, after) == 0
    return adds_up, record_end, delta_ms, delta, key_length, key_at, value_length, value_at


@internal
def parse_any(
    source: Bytes, header: Int64s, at: int
) -> tuple[int, tuple[int, int, int, int, int, int, int, int, int]]:
    """Fields of the record at byte `at` of a batch.

    Messages of magic 0 and 1 have been checked by `scan_batches` or `resolve_wrappers`.

    Parameters
    ----------
    source : uint8 array; holds the records of the batch
    header : int64 array, shape (`layout.N_HEADER_COLUMNS`,); of the batch
    at : where the record begins; below ``header[RECORDS_END]``

    Returns
    -------
    status : `OK`, or the fault of the record
    fields : position after the record, offset, timestamp in epoch milliseconds, key length, key
        position, value length, value position, number of headers and their position; a negative
        length stands for null
    """
    status = st.OK
    is_append_time = header[layout.ATTRIBUTES] & layout.TIMESTAMP_TYPE_MASK != 0
    if header[layout.ATTRIBUTES] & layout.LEGACY_MASK != 0:
        after = at + layout.LOG_OVERHEAD + load_i32(source, at + layout.BATCH_LENGTH_AT)
        offset = load_i64(source, at) + header[layout.OFFSET_SHIFT]
        ms = -1
        if load_u8(source, at + layout.MAGIC_AT) != 0:
            ms = load_i64(source, at + layout.LEGACY_TIMESTAMP_AT)
        key_length, key_at, value_length, value_at = message_body(source, at)
        n_headers, headers_at = 0, after
    else:
        status, fields = parse_record(source, at, header[layout.RECORDS_END])
        (
            after,
            _,
            ms,
            offset,
            key_length,
            key_at,
            value_length,
            value_at,
            n_headers,
            headers_at,
        ) = fields
        offset += header[layout.BASE_OFFSET]
        ms += header[layout.BASE_TIMESTAMP]
    if is_append_time:
        ms = header[layout.MAX_TIMESTAMP]
    return status, (
        after,
        offset,
        ms,
        key_length,
        key_at,
        value_length,
        value_at,
        n_headers,
        headers_at,
    )
