"""Messages of magic 0 and 1: check one, and the set of messages inside a compressed one."""

from segmentlog.format.kernels import layout
from segmentlog.format.kernels import status as st
from segmentlog.format.kernels.crc32c import byte_tables, checksum_by_table
from segmentlog.format.kernels.memory import Bytes, Int64Table, load_i32, load_i64, load_u8
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
