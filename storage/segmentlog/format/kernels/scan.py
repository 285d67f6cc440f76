"""Walk the batches of a buffer: lengths, checksums and header fields of many batches a call."""

from segmentlog.format.kernels import layout
from segmentlog.format.kernels import status as st
from segmentlog.format.kernels.crc32c import crc32c
from segmentlog.format.kernels.memory import (
    Bytes,
    Int64s,
    Int64Table,
    load_i16,
    load_i32,
    load_i64,
    load_u8,
)
from segmentlog.format.kernels.record import check_message, message_body
from segmentlog.native import inlined, internal, kernel

LARGEST_OFFSET = 2**63 - 1
SMALLEST_RECORD_BYTES = 7
_ZSTD = 4


@kernel
def scan_batches(
    buf: Bytes, start: int, end: int, next_offset: int, headers: Int64Table
) -> tuple[int, int, int]:
    """Fill `headers` with the batches that lie whole in ``buf[start:end]``, and check each.

    The checks are: the length, the magic, the checksum, rising offsets, and that the record count
    fits the bytes.  The count of a compressed batch is checked later, once it is inflated.  A
    message of magic 0 or 1 is a batch of its own.

    Parameters
    ----------
    buf : uint8 array, shape (n_bytes,); read only
    start, end : half-open byte range; ``end <= n_bytes``, checked by the caller
    next_offset : the first batch's base offset must not be below it
    headers : int64 array, shape (n_rows, `layout.N_HEADER_COLUMNS`); written

    Returns
    -------
    status : `OK` at the end of the buffer, `TABLE_FULL`, `NEED_MORE`, or the fault of the batch at
        `position`
    position : byte after the last good batch
    n_batches : number of rows of `headers` that were filled
    """
    position, n_batches = start, 0
    while position < end:
        if n_batches == headers.shape[0]:
            return st.TABLE_FULL, position, n_batches
        status, magic, batch_end = _measure(buf, position, end)
        if status == st.BAD_MAGIC:
            status = _judge_magic(buf, position, next_offset)
        elif status == st.OK and magic < layout.FIRST_BATCH_MAGIC:
            status = _read_message(buf, position, batch_end, next_offset, headers, n_batches)
        elif status == st.OK:
            status = _read_header(buf, position, batch_end, next_offset, headers, n_batches)
        if status != st.OK:
            return status, position, n_batches
        next_offset = headers[n_batches, layout.LAST_OFFSET] + 1
        position = batch_end
        n_batches += 1
    return st.OK, position, n_batches


@inlined
def _measure(buf: Bytes, position: int, end: int) -> tuple[int, int, int]:
    """Whether a batch lies whole before `end`; its magic, and the byte after it."""
    if position + layout.MAGIC_PREFIX_BYTES > end:
        return st.NEED_MORE, 0, 0
    length = load_i32(buf, position + layout.BATCH_LENGTH_AT)
    magic = load_u8(buf, position + layout.MAGIC_AT)
    batch_end = position + layout.LOG_OVERHEAD + length
    status = st.OK
    if length < layout.MIN_LENGTHS[min(magic, layout.NEWEST_MAGIC)]:
        status = st.BAD_LENGTH
    elif magic > layout.NEWEST_MAGIC:
        status = st.BAD_MAGIC
    elif batch_end > end:
        status = st.NEED_MORE
    return status, magic, batch_end


@internal
def _judge_magic(buf: Bytes, position: int, next_offset: int) -> int:
    """Whether a batch of unknown magic is of a newer format, or not a batch at all.

    In a newer format, offsets would also rise, and stay within the span of one segment.
    """
    base_offset = load_i64(buf, position + layout.BASE_OFFSET_AT)
    if next_offset >= 0 and (
        base_offset < next_offset or base_offset - next_offset >= layout.SEGMENT_OFFSETS
    ):
        return st.NO_BATCH
    return st.BAD_MAGIC


@inlined
def put_header(
    headers: Int64s,
    row: int,
    position: int,
    size: int,
    first: int,
    last: int,
    attributes: int,
    first_ms: int,
    max_ms: int,
    producer_id: int,
    count: int,
) -> None:
    """Fill a row of the table of headers; the place of the records is that of magic 2."""
    headers[row, layout.POSITION] = position
    headers[row, layout.SIZE] = size
    headers[row, layout.BASE_OFFSET] = first
    headers[row, layout.LAST_OFFSET] = last
    headers[row, layout.ATTRIBUTES] = attributes
    headers[row, layout.BASE_TIMESTAMP] = first_ms
    headers[row, layout.MAX_TIMESTAMP] = max_ms
    headers[row, layout.PRODUCER_ID] = producer_id
    headers[row, layout.RECORDS_COUNT] = count
    headers[row, layout.RECORDS_START] = position + layout.HEADER_BYTES
    headers[row, layout.RECORDS_END] = position + size


@internal
def _read_header(
    buf: Bytes, position: int, batch_end: int, next_offset: int, headers: Int64s, row: int
) -> int:
    """Copy the fields of one header into `row`, and return whether they are plausible."""
    stored = load_i32(buf, position + layout.CRC_AT) & 0xFFFFFFFF
    if crc32c(buf, position + layout.ATTRIBUTES_AT, batch_end) != stored:
        return st.BAD_CRC
    base_offset = load_i64(buf, position + layout.BASE_OFFSET_AT)
    delta = load_i32(buf, position + layout.LAST_OFFSET_DELTA_AT)
    count = load_i32(buf, position + layout.RECORDS_COUNT_AT)
    attributes = load_i16(buf, position + layout.ATTRIBUTES_AT) & 0xFF
    if base_offset < next_offset:
        return st.OFFSETS_GO_BACK
    if delta < 0 or base_offset > LARGEST_OFFSET - 1 - delta:
        return st.BAD_OFFSET_DELTA
    n_bytes = batch_end - position - layout.HEADER_BYTES
    if count < 0 or count > delta + 1:
        return st.BAD_RECORDS_COUNT
    least = count * SMALLEST_RECORD_BYTES
    if attributes & layout.CODEC_MASK != 0:
        least = min(count, 1)
    if least > n_bytes:
        return st.BAD_RECORDS_COUNT
    put_header(
        headers,
        row,
        position,
        batch_end - position,
        base_offset,
        base_offset + delta,
        attributes,
        load_i64(buf, position + layout.BASE_TIMESTAMP_AT),
        load_i64(buf, position + layout.MAX_TIMESTAMP_AT),
        load_i64(buf, position + layout.PRODUCER_ID_AT),
        count,
    )
    return st.OK


@internal
def _read_message(
    buf: Bytes, position: int, batch_end: int, next_offset: int, headers: Int64s, row: int
) -> int:
    """Copy the fields of a message of magic 0 or 1, and return whether they are plausible."""
    status = check_message(buf, position, batch_end)
    if status != st.OK:
        return status
    offset = load_i64(buf, position + layout.BASE_OFFSET_AT)
    if offset < next_offset:
        return st.OFFSETS_GO_BACK
    if offset == LARGEST_OFFSET:
        return st.BAD_OFFSET_DELTA
    stored = load_u8(buf, position + layout.LEGACY_ATTRIBUTES_AT)
    attributes = (stored & layout.CODEC_MASK) | layout.LEGACY_MASK
    timestamp = -1
    if load_u8(buf, position + layout.MAGIC_AT) == 0:
        attributes |= layout.NO_TIMESTAMP_MASK
    else:
        attributes |= stored & layout.TIMESTAMP_TYPE_MASK
        timestamp = load_i64(buf, position + layout.LEGACY_TIMESTAMP_AT)
    start, end, count, first = position, batch_end, 1, offset
    if stored & layout.CODEC_MASK == _ZSTD:
        return st.CODEC_TOO_NEW
    if stored & layout.CODEC_MASK != 0:
        _, _, length, start = message_body(buf, position)
        if length < 0:
            return st.WRAPPER_WITHOUT_VALUE
        count, first = 0, max(next_offset, 0)
    put_header(
        headers,
        row,
        position,
        batch_end - position,
        first,
        offset,
        attributes,
        timestamp,
        timestamp,
        -1,
        count,
    )
    headers[row, layout.RECORDS_START], headers[row, layout.RECORDS_END] = start, end
    headers[row, layout.OFFSET_SHIFT] = 0
    return st.OK


@kernel
def select_batches(headers: Int64Table, range_start: int, range_end: int) -> tuple[int, int, int]:
    """Move the batches that can hold rows of a range of offsets to the front of the table.

    Control batches, batches outside the range, and batches that compaction has emptied are left
    out.  Emptied batches have no bytes after their header.

    Parameters
    ----------
    headers : int64 array, shape (n_batches, `layout.N_HEADER_COLUMNS`); read and written
    range_start, range_end : half-open range of offsets

    Returns
    -------
    n_batches : how many are left
    any_attributes, all_attributes : the attributes of these, joined by "or" and by "and"
    """
    n_batches, any_attributes, all_attributes = 0, 0, 0xFFFF
    for row in range(headers.shape[0]):
        attributes = headers[row, layout.ATTRIBUTES]
        is_message = attributes & layout.LEGACY_MASK != 0
        if (
            attributes & layout.CONTROL_MASK != 0
            or headers[row, layout.LAST_OFFSET] < range_start
            or headers[row, layout.BASE_OFFSET] >= range_end
            or (headers[row, layout.SIZE] == layout.HEADER_BYTES and not is_message)
        ):
            continue
        if n_batches != row:
            for column in range(layout.N_HEADER_COLUMNS):
                headers[n_batches, column] = headers[row, column]
        any_attributes |= attributes
        all_attributes &= attributes
        n_batches += 1
    return n_batches, any_attributes, all_attributes


@kernel
def measure_batches(headers: Int64Table) -> tuple[int, int]:
    """Records of all batches together, and bytes of their records."""
    n_records = n_bytes = 0
    for row in range(headers.shape[0]):
        n_records += headers[row, layout.RECORDS_COUNT]
        n_bytes += headers[row, layout.RECORDS_END] - headers[row, layout.RECORDS_START]
    return n_records, n_bytes
