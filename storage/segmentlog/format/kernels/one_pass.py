"""Bytes of a log to columns in one pass: each batch is checked, and its records are written.

The two passes of `segmentlog.format.kernels.scan` and `segmentlog.format.kernels.decode` read
every byte twice, and by the second time it has left the caches.  Here the checksum of a batch
brings its bytes into the cache, and the records are written next.

This pass takes only usual batches: of magic 2, sound, with all records in the wanted range.
Before any other batch it stops, and leaves the batch to the two passes, which name each fault.

`decode_windows` decodes a file one window of bytes after the other, without a return to the
interpreter.  It is one of two kernels that do I/O: it calls ``pread`` by its address, because the
threads of a scan lose most of their time where they hand the interpreter's lock over, and a window
of a scan needs the lock three times: to read, to decode, and to move the bytes that are left over.
An error or the end of the file goes back to the caller, who reads again, and names the fault.  So
does a batch that is larger than the buffer.
"""

from segmentlog.format.kernels import layout
from segmentlog.format.kernels import status as st
from segmentlog.format.kernels.crc32c import crc32c
from segmentlog.format.kernels.decode import clear_bit
from segmentlog.format.kernels.inflate import inflate
from segmentlog.format.kernels.memory import (
    COPY_SLACK,
    MOST_WIDE_BYTES,
    Bytes,
    Int32s,
    Int64s,
    call_5,
    copy_bytes,
    copy_wide,
    load_i16,
    load_i32,
    load_i64,
    load_item,
    load_u8,
    prefetch,
    store_item,
)
from segmentlog.format.kernels.output import (
    BYTE_LIMIT,
    DETAIL,
    DETAIL_2,
    KEY_BYTES,
    KEY_NULLS,
    LEAVES_HEADERS_OUT,
    N_ROWS,
    ROW_LIMIT,
    TIMESTAMP_TYPE,
    USED_BYTES,
    VALUE_BYTES,
    VALUE_NULLS,
    PlainArrays,
)
from segmentlog.format.kernels.record import judge
from segmentlog.format.kernels.scan import LARGEST_OFFSET, SMALLEST_RECORD_BYTES
from segmentlog.format.kernels.varint import INT_STOPS, LONG_STOPS, read_groups_quick, signed
from segmentlog.native import inlined, internal, kernel

LINE_BYTES = 64
_LEAST_AHEAD, _MOST_AHEAD = 4 << 10, 32 << 10
_OUTPUT_AHEAD = 4 << 10  # the values of an Arrow batch are larger than the second cache


@inlined
def distance(n_bytes: int) -> int:
    """How far ahead of the records of a batch of `n_bytes` to ask for memory.

    The next batch, probably of the same size, arrives while the records of this one are written,
    so that its checksum does not wait.
    """
    return min(max(n_bytes, _LEAST_AHEAD), _MOST_AHEAD)


@inlined
def _open(buf: Bytes, at: int, end: int) -> tuple[bool, int, int, int, int]:
    """The first fields of the record at byte `at`.

    One check, that the record ends at or before `end`, replaces a check of each varint: `end` has
    slack after it, so no read from inside the record leaves the buffer.

    Returns whether they lie inside the record, the position after the record, its timestamp delta
    and its offset delta as groups of `read_groups_quick`, and the position after these.
    """
    length, body = read_groups_quick(buf, at, INT_STOPS)
    record_end = body + (length >> 1)
    if length & 1 or record_end > end:
        return False, 0, 0, 0, 0
    delta_ms, after = read_groups_quick(buf, body + 1, LONG_STOPS)
    if after > record_end:
        return False, 0, 0, 0, 0
    delta, after = read_groups_quick(buf, after, INT_STOPS)
    return after <= record_end, record_end, delta_ms, delta, after


@inlined
def _has_headers(buf: Bytes, at: int, value_end: int, record_end: int) -> bool:
    """Whether the record at byte `at` is sound, and merely has headers after its value."""
    if value_end > record_end:
        return False  # `judge` drops bits of a length that the quick varint keeps
    _, body = read_groups_quick(buf, at, INT_STOPS)
    return judge(buf, body, record_end) == st.OK


@inlined
def usual_record(
    buf: Bytes, at: int, end: int, previous: int, takes_headers: bool
) -> tuple[bool, int, int, int, int, int, int, int]:
    """The fields of the record at byte `at`; `previous` is the offset delta of the one before.

    `takes_headers`: whether it may have headers, which are left out.

    Returns whether it is sound, the position after it, its timestamp delta and its offset delta,
    length and position of its key, and of its value.  Deltas and lengths are groups of
    `read_groups_quick`; an odd length is a null.
    """
    is_sound, record_end, delta_ms, delta, after = _open(buf, at, end)
    if not is_sound or delta <= previous or delta & 1:
        return False, 0, 0, 0, 0, 0, 0, 0
    key, key_at = read_groups_quick(buf, after, INT_STOPS)
    after = key_at if key & 1 else key_at + (key >> 1)
    if after > record_end:
        return False, 0, 0, 0, 0, 0, 0, 0
    value, value_at = read_groups_quick(buf, after, INT_STOPS)
    after = value_at if value & 1 else value_at + (value >> 1)
    adds_up = after + 1 == record_end and load_u8(buf, after) == 0
    is_usual = adds_up or (takes_headers and _has_headers(buf, at, after, record_end))
    return is_usual, record_end, delta_ms, delta, key, key_at, value, value_at


@inlined
def _put(
    row: int,
    source: Bytes,
    at: int,
    groups: int,
    to: int,
    target: Bytes,
    ends: Int32s,
    valid: Bytes,
) -> int:
    """`decode._put` for a length as groups, from a source that has slack."""
    if groups & 1:
        clear_bit(valid, row)
    else:
        length = groups >> 1
        if length <= MOST_WIDE_BYTES:
            copy_wide(target, to, source, at, length)
        else:
            copy_bytes(target, to, source, at, length)
        to += length
    store_item(ends, row + 1, to)
    return to


@inlined
def _fill(
    buf: Bytes, at: int, end: int, count: int, columns: PlainArrays, state: Int64s
) -> tuple[int, int, int, int, int]:
    """Write all records of one batch.

    Offsets and timestamps get deltas, as groups; `_add_bases` makes values of them.

    The caller has checked that the records fit the output, and that the buffer has slack after
    `end`.

    Returns the last offset delta, or -1 if one of the records is unusual; and the new values of
    `KEY_BYTES`, `VALUE_BYTES`, `KEY_NULLS` and `VALUE_NULLS`.
    """
    keys, key_ends, key_valid = columns.keys, columns.key_ends, columns.key_valid
    values, value_ends, value_valid = columns.values, columns.value_ends, columns.value_valid
    want_key, want_value = key_ends.shape[0] > 0, value_ends.shape[0] > 0
    row, to_key, to_value = int(state[N_ROWS]), int(state[KEY_BYTES]), int(state[VALUE_BYTES])
    key_nulls, value_nulls = int(state[KEY_NULLS]), int(state[VALUE_NULLS])
    previous, stop, ahead = -1, row + count, distance(end - at)
    takes_headers = state[LEAVES_HEADERS_OUT] != 0
    while row < stop:
        prefetch(buf, at + ahead)
        prefetch(buf, at + ahead + LINE_BYTES)
        is_usual, record_end, delta_ms, delta, key, key_at, value, value_at = usual_record(
            buf, at, end, previous, takes_headers
        )
        if not is_usual:
            return -1, 0, 0, 0, 0
        store_item(columns.offsets, row, delta)
        store_item(columns.timestamps, row, delta_ms)
        if want_key:
            to_key = _put(row, buf, key_at, key, to_key, keys, key_ends, key_valid)
            key_nulls += key & 1
        if want_value:
            prefetch(values, to_value + _OUTPUT_AHEAD)
            prefetch(values, to_value + _OUTPUT_AHEAD + LINE_BYTES)
            to_value = _put(row, buf, value_at, value, to_value, values, value_ends, value_valid)
            value_nulls += value & 1
        row += 1
        previous = delta
        at = record_end
    return previous >> 1 if at == end else -1, to_key, to_value, key_nulls, value_nulls


@inlined
def _fill_narrow(
    buf: Bytes, at: int, end: int, count: int, columns: PlainArrays, state: Int64s
) -> int:
    """`_fill` without keys and values: their bytes are not read."""
    row, previous, ahead = int(state[N_ROWS]), -1, distance(end - at)
    stop = row + count
    while row < stop:
        prefetch(buf, at + ahead)
        prefetch(buf, at + ahead + LINE_BYTES)
        is_sound, record_end, delta_ms, delta, _ = _open(buf, at, end)
        if not is_sound or delta <= previous or delta & 1:
            return -1
        store_item(columns.offsets, row, delta)
        store_item(columns.timestamps, row, delta_ms)
        row += 1
        previous = delta
        at = record_end
    return previous >> 1 if at == end else -1


@inlined
def _add_bases(
    row: int,
    stop: int,
    base_offset: int,
    base_ms: int,
    ms_mask: int,
    scale: int,
    columns: PlainArrays,
) -> bool:
    """Make offsets and timestamps of the deltas of a batch; False if a timestamp is too far off.

    This is a separate loop because it can then take many rows at a time.
    """
    n_far = 0
    while row < stop:
        ms = base_ms + (signed(load_item(columns.timestamps, row)) & ms_mask)
        near = min(max(ms, layout.SMALLEST_MS), layout.LARGEST_MS)
        n_far += near != ms
        store_item(columns.timestamps, row, near * scale)
        offset = base_offset + (load_item(columns.offsets, row) >> 1)
        store_item(columns.offsets, row, offset)
        row += 1
    return n_far == 0


@inlined
def measure(buf: Bytes, position: int, end: int) -> tuple[int, int]:
    """`OK` and the end of the batch of magic 2 at `position`, if it is whole and has slack."""
    if position + layout.MAGIC_PREFIX_BYTES > end:
        return st.NEED_MORE, position
    length = load_i32(buf, position + layout.BATCH_LENGTH_AT)
    magic = load_u8(buf, position + layout.MAGIC_AT)
    if magic != layout.MAGIC or length < layout.MIN_BATCH_LENGTH:
        return st.UNUSUAL, position
    batch_end = position + layout.LOG_OVERHEAD + length
    if batch_end > end:
        return st.NEED_MORE, position
    if batch_end + COPY_SLACK > buf.shape[0]:
        return st.UNUSUAL, position
    return st.OK, batch_end


@inlined
def usual_header(
    buf: Bytes, position: int, batch_end: int, next_offset: int, range_end: int
) -> tuple[bool, int, int, int, int]:
    """Whether a batch has a usual header; its attributes, count, base offset and last delta."""
    attributes = load_i16(buf, position + layout.ATTRIBUTES_AT)
    count = load_i32(buf, position + layout.RECORDS_COUNT_AT)
    base_offset = load_i64(buf, position + layout.BASE_OFFSET_AT)
    last_delta = load_i32(buf, position + layout.LAST_OFFSET_DELTA_AT)
    least = count * SMALLEST_RECORD_BYTES
    if attributes & layout.CODEC_MASK != 0:
        least = min(count, 1)
    is_usual = not (
        base_offset < next_offset
        or last_delta < 0
        or count < 0
        or count > last_delta + 1
        or least > batch_end - position - layout.HEADER_BYTES
        or base_offset > LARGEST_OFFSET - 1 - last_delta
        or base_offset + last_delta >= range_end
    )
    return is_usual, attributes, count, base_offset, last_delta


@inlined
def _room_for(count: int, n_bytes: int, attributes: int, state: Int64s) -> int:
    """`OK` if the output takes this many records and bytes, and their timestamp type."""
    if count * SMALLEST_RECORD_BYTES > n_bytes:
        return st.UNUSUAL
    state[DETAIL], state[DETAIL_2] = count, n_bytes
    n_rows = state[N_ROWS]
    if n_rows > 0 and attributes & layout.TIMESTAMP_TYPE_MASK != state[TIMESTAMP_TYPE]:
        return st.OUTPUT_FULL
    if n_rows + count > state[ROW_LIMIT] or state[USED_BYTES] + n_bytes > state[BYTE_LIMIT]:
        return st.OUTPUT_FULL
    return st.OK


@inlined
def _fill_batch(
    buf: Bytes,
    at: int,
    end: int,
    base_offset: int,
    last_delta: int,
    count: int,
    base_ms: int,
    attributes: int,
    scale: int,
    columns: PlainArrays,
    state: Int64s,
) -> bool:
    """Write the records in ``buf[at:end]``; False if one of them is unusual."""
    timestamp_type = attributes & layout.TIMESTAMP_TYPE_MASK
    ms_mask = -1 if timestamp_type == 0 else 0
    to_key, to_value, key_nulls, value_nulls = 0, 0, 0, 0
    if columns.key_ends.shape[0] == 0 and columns.value_ends.shape[0] == 0:
        last = _fill_narrow(buf, at, end, count, columns, state)
    else:
        last, to_key, to_value, key_nulls, value_nulls = _fill(buf, at, end, count, columns, state)
    row = int(state[N_ROWS])
    if not 0 <= last <= last_delta or not _add_bases(
        row, row + count, base_offset, base_ms, ms_mask, scale, columns
    ):
        return False
    state[TIMESTAMP_TYPE] = timestamp_type
    state[USED_BYTES] += end - at
    state[N_ROWS], state[KEY_BYTES], state[VALUE_BYTES] = row + count, to_key, to_value
    state[KEY_NULLS], state[VALUE_NULLS] = key_nulls, value_nulls
    return True


@inlined
def _take(
    buf: Bytes,
    position: int,
    batch_end: int,
    base_offset: int,
    last_delta: int,
    count: int,
    attributes: int,
    scale: int,
    most_inflated: int,
    codecs: Int64s,
    scratch: Bytes,
    needle: Int64s,
    columns: PlainArrays,
    state: Int64s,
) -> int:
    """Write the records of the batch at `position`, inflated if need be; the status."""
    source, at, end = buf, position + layout.HEADER_BYTES, batch_end
    if attributes & layout.CODEC_MASK != 0:
        status, end = inflate(buf, at, batch_end, attributes, most_inflated, codecs, scratch)
        if status == st.OK:
            if not has_needle(scratch, 0, end, needle):
                return st.OK
            status = _room_for(count, end, attributes, state)
        elif status == st.CODEC_NEEDED:
            state[DETAIL] = attributes & layout.CODEC_MASK
        if status != st.OK:
            return status
        source, at = scratch, 0
    base_ms = load_i64(buf, position + layout.BASE_TIMESTAMP_AT)
    if attributes & layout.TIMESTAMP_TYPE_MASK != 0:
        base_ms = load_i64(buf, position + layout.MAX_TIMESTAMP_AT)
    is_usual = _fill_batch(
        source, at, end, base_offset, last_delta, count, base_ms, attributes, scale, columns, state
    )
    return st.OK if is_usual else st.UNUSUAL


# The int64 array of bytes that are searched for.
NEEDLE_MEMMEM = 0  #: address of ``memmem``; 0 if nothing is searched for
NEEDLE_AT = 1  #: address of the bytes
NEEDLE_BYTES = 2  #: their number
N_NEEDLE_COLUMNS = 3


@inlined
def has_needle(buf: Bytes, at: int, end: int, needle: Int64s) -> bool:
    """Whether ``buf[at:end]`` has the bytes; True if nothing is searched for."""
    if needle[NEEDLE_MEMMEM] == 0:
        return True
    found = call_5(
        needle[NEEDLE_MEMMEM],
        buf.ctypes.data + at,
        end - at,
        needle[NEEDLE_AT],
        needle[NEEDLE_BYTES],
        0,
    )
    return found != 0


@inlined
def has_right_checksum(buf: Bytes, position: int, batch_end: int) -> bool:
    """Whether the bytes of a batch are those that were written."""
    stored = load_i32(buf, position + layout.CRC_AT) & 0xFFFFFFFF
    return crc32c(buf, position + layout.ATTRIBUTES_AT, batch_end) == stored


@inlined
def _is_of_other_times(
    buf: Bytes, position: int, attributes: int, first_ms: int, last_ms: int
) -> bool:
    """Whether the header alone shows that no record of a batch has a time in the range."""
    newest = load_i64(buf, position + layout.MAX_TIMESTAMP_AT)
    return newest < first_ms or (attributes & layout.TIMESTAMP_TYPE_MASK != 0 and newest > last_ms)


@internal
def decode_batches(
    buf: Bytes, start: int, end: int, next_offset: int, range_start: int, range_end: int,
    first_ms: int, last_ms: int, scale: int, most_inflated: int, codecs: Int64s, scratch: Bytes,
    needle: Int64s, columns: PlainArrays, state: Int64s,
) -> tuple[int, int, int]:  # fmt: skip
    """Append to `columns` the records of usual batches from byte `start` on.

    Control batches, batches that compaction has emptied, batches below the range or of other
    times, and batches without the bytes of `needle` are skipped, once their checksum is verified.

    Parameters
    ----------
    buf : uint8 array, shape (n_bytes,); read only
    start, end : half-open byte range that begins at a batch; ``end <= n_bytes``, checked by the
        caller
    next_offset : the first batch's base offset must not be below it
    range_start, range_end : half-open range of offsets, which no usual batch crosses; to take the
        batch in which its range begins, the caller lowers `range_start`: scans of other batches
        took 4 % longer when this kernel let that batch pass
    first_ms, last_ms : closed range of timestamps in milliseconds; all records of a batch are
        written unless its header shows that none of them has a time in the range
    scale : units of the timestamps in a millisecond: 1000 for microseconds, or 1
    most_inflated : bytes that one batch may inflate to
    codecs, scratch : see `segmentlog.format.kernels.inflate.inflate`
    needle : int64 array, shape (`N_NEEDLE_COLUMNS`,): bytes that a batch has if its records matter
    columns : the outputs; written
    state : int64 array, shape (N_STATE,); the fill of the output; read and written

    Returns
    -------
    status : `OK` at the end of the range; `NEED_MORE` before a batch that is not whole;
        `OUTPUT_FULL` before a batch that does not fit, with its records in ``state[DETAIL]`` and
        its bytes in ``state[DETAIL_2]``, or that has another timestamp type; `CODEC_NEEDED`, with
        the codec in ``state[DETAIL]``; `SCRATCH_FULL`; `UNUSUAL`
    position : byte after the last batch taken
    next_offset : offset after it
    """
    position = start
    while position < end:
        status, batch_end = measure(buf, position, end)
        if status != st.OK:
            return status, position, next_offset
        records_at = position + layout.HEADER_BYTES
        is_usual, attributes, count, base_offset, last_delta = usual_header(
            buf, position, batch_end, next_offset, range_end
        )
        if not is_usual:
            return st.UNUSUAL, position, next_offset
        last_offset = base_offset + last_delta
        is_left_out = (
            last_offset < range_start
            or attributes & layout.CONTROL_MASK != 0
            or batch_end == records_at
            or _is_of_other_times(buf, position, attributes, first_ms, last_ms)
        )
        if not is_left_out:
            if base_offset < range_start:
                return st.UNUSUAL, position, next_offset
            if attributes & layout.CODEC_MASK == 0:
                status = _room_for(count, batch_end - records_at, attributes, state)
                if status != st.OK:
                    return status, position, next_offset
        if not has_right_checksum(buf, position, batch_end):
            return st.UNUSUAL, position, next_offset
        if not is_left_out and attributes & layout.CODEC_MASK == 0:
            is_left_out = not has_needle(buf, records_at, batch_end, needle)
        if not is_left_out:
            status = _take(
                buf, position, batch_end, base_offset, last_delta, count, attributes, scale,
                most_inflated, codecs, scratch, needle, columns, state,
            )  # fmt: skip
            if status != st.OK:
                return status, position, next_offset
        next_offset = last_offset + 1
        position = batch_end
    return st.OK, position, next_offset


# The int64 array of a window.
WINDOW_END = 0  #: end of the bytes in the buffer
WINDOW_POSITION = 1  #: byte of the file that the first byte of the buffer is
WINDOW_FILE_END = 2  #: byte of the file at which reading ends
WINDOW_DESCRIPTOR = 3  #: of the open file
WINDOW_PREAD = 4  #: address of ``pread``; 0 if only the caller can read
N_WINDOW_COLUMNS = 5


@internal
def read_on(buf: Bytes, position: int, window: Int64s) -> bool:
    """Move the bytes from `position` on to the front, and read on; False if nothing was tried."""
    held = window[WINDOW_END] - position
    file_position = window[WINDOW_POSITION] + position
    wanted = min(buf.shape[0] - COPY_SLACK, window[WINDOW_FILE_END] - file_position)
    if window[WINDOW_PREAD] == 0 or position == 0 or held >= wanted:
        return False
    moved = 0
    while moved < held:  # in pieces, because source and target may overlap
        n_bytes = min(position, held - moved)
        copy_bytes(buf, moved, buf, position + moved, n_bytes)
        moved += n_bytes
    n_read = call_5(
        window[WINDOW_PREAD],
        window[WINDOW_DESCRIPTOR],
        buf.ctypes.data + held,
        wanted - held,
        file_position + held,
        0,
    )
    window[WINDOW_POSITION] = file_position
    window[WINDOW_END] = held + max(n_read, 0)
    return True


@kernel
def decode_windows(
    buf: Bytes, start: int, next_offset: int, range_start: int, range_end: int, first_ms: int,
    last_ms: int, scale: int, most_inflated: int, codecs: Int64s, scratch: Bytes,
    needle: Int64s, columns: PlainArrays, state: Int64s, window: Int64s,
) -> tuple[int, int, int]:  # fmt: skip
    """`decode_batches` for a window that moves over a file.

    Parameters
    ----------
    buf : uint8 array, shape (n_bytes,); written if ``window[WINDOW_PREAD]`` is not 0
    start : byte of `buf` at which a batch begins
    window : int64 array, shape (`N_WINDOW_COLUMNS`,); read, and written when the window moves;
        `WINDOW_END` is not below `start`
    next_offset, range_start, range_end, first_ms, last_ms, scale, most_inflated, codecs, scratch,
    needle, columns, state : see `decode_batches`

    Returns
    -------
    status, position, next_offset : see `decode_batches`; `OK` and `NEED_MORE` at the end of the
        file's range, or where the caller has to read
    """
    position = start
    while True:
        status, position, next_offset = decode_batches(
            buf, position, window[WINDOW_END], next_offset, range_start, range_end, first_ms,
            last_ms, scale, most_inflated, codecs, scratch, needle, columns, state,
        )  # fmt: skip
        is_empty = status == st.OK or status == st.NEED_MORE
        if not is_empty or not read_on(buf, position, window):
            return status, position, next_offset
        position = 0
