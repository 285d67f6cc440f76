"""Bytes of a log to columns in one pass: each batch is checked, and its records are written.

The two passes of `segmentlog.kernels.scan` and `segmentlog.kernels.decode` read every byte twice,
and what lies between has pushed it out of the caches.  Here the checksum of a batch brings its
bytes into the cache, and the records are written next.

This pass takes only usual batches: of magic 2, sound, with all records in the wanted range.
Before any other batch it stops, and leaves the batch to the two passes, which name each fault.
"""

from segmentlog.kernels import layout
from segmentlog.kernels import status as st
from segmentlog.kernels._jit import inlined, kernel
from segmentlog.kernels.crc32c import crc32c
from segmentlog.kernels.inflate import inflate
from segmentlog.kernels.memory import (
    COPY_SLACK,
    Bytes,
    Int64s,
    load_i16,
    load_i32,
    load_i64,
    load_u8,
    prefetch,
)
from segmentlog.kernels.output import (
    BYTE_LIMIT,
    DETAIL,
    DETAIL_2,
    KEY_BYTES,
    KEY_NULLS,
    N_ROWS,
    ROW_LIMIT,
    TIMESTAMP_TYPE,
    USED_BYTES,
    VALUE_BYTES,
    VALUE_NULLS,
    PlainArrays,
    put,
)
from segmentlog.kernels.record import judge, parse_quickly
from segmentlog.kernels.scan import LARGEST_OFFSET, SMALLEST_RECORD_BYTES
from segmentlog.kernels.varint import INT_STOPS, LONG_STOPS, read_varint_quick

__all__ = ["decode_batches"]

_LARGEST_MS = (2**63 - 1) // 1000
_SMALLEST_MS = -((2**63) // 1000)
_LINE_BYTES = 64
_LEAST_AHEAD, _MOST_AHEAD = 4 << 10, 32 << 10


@inlined
def _distance(n_bytes: int) -> int:
    """How far ahead of the records of a batch of `n_bytes` to ask for memory.

    The next batch, probably of the same size, arrives while the records of this one are written,
    so that its checksum does not wait.
    """
    return min(max(n_bytes, _LEAST_AHEAD), _MOST_AHEAD)


@inlined
def _fill(
    buf: Bytes, at: int, end: int, count: int, base_offset: int, last_delta: int,
    base_ms: int, ms_mask: int, scale: int, columns: PlainArrays, state: Int64s,
) -> bool:  # fmt: skip
    """Write all records of one batch; False, and `state` as before, if one of them is unusual.

    The caller has checked that the records fit the output, and that the buffer has slack behind
    `end`.
    """
    offsets, timestamps = columns.offsets, columns.timestamps
    keys, key_ends, key_valid = columns.keys, columns.key_ends, columns.key_valid
    values, value_ends, value_valid = columns.values, columns.value_ends, columns.value_valid
    want_key, want_value = key_ends.shape[0] > 0, value_ends.shape[0] > 0
    want_offset, want_timestamp = offsets.shape[0] > 0, timestamps.shape[0] > 0
    row, to_key, to_value = state[N_ROWS], state[KEY_BYTES], state[VALUE_BYTES]
    key_nulls, value_nulls = state[KEY_NULLS], state[VALUE_NULLS]
    start, previous, stop, ahead = at, -1, row + count, _distance(end - at)
    while row < stop and at < end:
        prefetch(buf, at + ahead)
        prefetch(buf, at + ahead + _LINE_BYTES)
        adds_up, record_end, delta_ms, delta, key_length, key_at, value_length, value_at = (
            parse_quickly(buf, at, end)
        )
        ms = base_ms + (delta_ms & ms_mask)
        in_order = previous < delta <= last_delta
        if not in_order or ms > _LARGEST_MS or ms < _SMALLEST_MS:
            return False
        if not adds_up:  # it may merely have headers
            if value_at == 0 or value_at + max(value_length, 0) > record_end:
                return False  # `judge` drops bits of a length that the quick varint keeps
            _, body = read_varint_quick(buf, at, INT_STOPS)
            if judge(buf, body, record_end) != st.OK:
                return False
        if want_offset:
            offsets[row] = base_offset + delta
        if want_timestamp:
            timestamps[row] = ms * scale
        if want_key:
            to_key = put(row, buf, key_at, key_length, to_key, keys, key_ends, key_valid)
            key_nulls += key_length < 0
        if want_value:
            to_value = put(
                row, buf, value_at, value_length, to_value, values, value_ends, value_valid
            )
            value_nulls += value_length < 0
        row += 1
        previous = delta
        at = record_end
    if row != stop or at != end:
        return False
    state[USED_BYTES] += end - start
    state[N_ROWS], state[KEY_BYTES], state[VALUE_BYTES] = row, to_key, to_value
    state[KEY_NULLS], state[VALUE_NULLS] = key_nulls, value_nulls
    return True


@inlined
def _fill_narrow(
    buf: Bytes, at: int, end: int, count: int, base_offset: int, last_delta: int,
    base_ms: int, ms_mask: int, scale: int, columns: PlainArrays, state: Int64s,
) -> bool:  # fmt: skip
    """`_fill` where neither keys nor values are wanted: their bytes are not looked at."""
    offsets, timestamps = columns.offsets, columns.timestamps
    want_offset, want_timestamp = offsets.shape[0] > 0, timestamps.shape[0] > 0
    row, start, previous, ahead = state[N_ROWS], at, -1, _distance(end - at)
    stop = row + count
    while row < stop and at < end:
        prefetch(buf, at + ahead)
        prefetch(buf, at + ahead + _LINE_BYTES)
        length, body = read_varint_quick(buf, at, INT_STOPS)
        record_end = body + length
        if length < 0 or record_end > end:
            return False
        delta_ms, behind = read_varint_quick(buf, body + 1, LONG_STOPS)
        if behind > record_end:
            return False
        delta, behind = read_varint_quick(buf, behind, INT_STOPS)
        ms = base_ms + (delta_ms & ms_mask)
        in_order = previous < delta <= last_delta
        if behind > record_end or not in_order or ms > _LARGEST_MS or ms < _SMALLEST_MS:
            return False
        if want_offset:
            offsets[row] = base_offset + delta
        if want_timestamp:
            timestamps[row] = ms * scale
        row += 1
        previous = delta
        at = record_end
    if row != stop or at != end:
        return False
    state[USED_BYTES] += end - start
    state[N_ROWS] = row
    return True


@inlined
def _measure(buf: Bytes, position: int, end: int) -> tuple[int, int]:
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
def _room_for(count: int, n_bytes: int, attributes: int, state: Int64s) -> int:
    """`OK` if the output takes so many records and bytes, and their timestamp type."""
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
    buf: Bytes, at: int, end: int, base_offset: int, last_delta: int, count: int, base_ms: int,
    attributes: int, scale: int, columns: PlainArrays, state: Int64s,
) -> bool:  # fmt: skip
    """Write the records in ``buf[at:end]``; False if one of them is unusual."""
    state[TIMESTAMP_TYPE] = attributes & layout.TIMESTAMP_TYPE_MASK
    ms_mask = -1 if state[TIMESTAMP_TYPE] == 0 else 0
    if columns.key_ends.shape[0] == 0 and columns.value_ends.shape[0] == 0:
        return _fill_narrow(
            buf, at, end, count, base_offset, last_delta, base_ms, ms_mask, scale, columns, state
        )
    return _fill(
        buf, at, end, count, base_offset, last_delta, base_ms, ms_mask, scale, columns, state
    )


@inlined
def _take(
    buf: Bytes, position: int, batch_end: int, base_offset: int, last_delta: int, count: int,
    attributes: int, scale: int, most_inflated: int, codecs: Int64s, scratch: Bytes,
    columns: PlainArrays, state: Int64s,
) -> int:  # fmt: skip
    """Write the records of the batch at `position`, inflated if need be; the status."""
    source, at, end = buf, position + layout.HEADER_BYTES, batch_end
    if attributes & layout.CODEC_MASK != 0:
        status, end = inflate(buf, at, batch_end, attributes, most_inflated, codecs, scratch)
        if status == st.OK:
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


@kernel
def decode_batches(
    buf: Bytes, start: int, end: int, next_offset: int, range_start: int, range_end: int,
    scale: int, most_inflated: int, codecs: Int64s, scratch: Bytes, columns: PlainArrays,
    state: Int64s,
) -> tuple[int, int, int]:  # fmt: skip
    """Append to `columns` the records of usual batches from byte `start` on.

    Control batches, batches that compaction has emptied, and batches below the range are passed
    over.

    Parameters
    ----------
    buf : uint8 array, shape (n_bytes,); read only
    start, end : half-open byte range that begins at a batch; ``end <= n_bytes``, checked by the
        caller
    next_offset : the first batch's base offset must not be below it
    range_start, range_end : half-open range of offsets, which no usual batch crosses
    scale : units of the timestamps in a millisecond: 1000 for microseconds, or 1
    most_inflated : bytes that one batch may inflate to
    codecs, scratch : see `segmentlog.kernels.inflate.inflate`
    columns : the outputs; written
    state : int64 array, shape (N_STATE,); the fill of the output; read and written

    Returns
    -------
    status : `OK` at the end of the range; `NEED_MORE` before a batch that is not whole;
        `OUTPUT_FULL` before a batch that does not fit, with its records in ``state[DETAIL]`` and
        its bytes in ``state[DETAIL_2]``, or that has another timestamp type; `CODEC_NEEDED`, with
        the codec in ``state[DETAIL]``; `SCRATCH_FULL`; `UNUSUAL`
    position : byte behind the last batch taken
    next_offset : offset behind it
    """
    position = start
    while position < end:
        status, batch_end = _measure(buf, position, end)
        if status != st.OK:
            return status, position, next_offset
        records_at = position + layout.HEADER_BYTES
        attributes = load_i16(buf, position + layout.ATTRIBUTES_AT)
        count = load_i32(buf, position + layout.RECORDS_COUNT_AT)
        base_offset = load_i64(buf, position + layout.BASE_OFFSET_AT)
        last_delta = load_i32(buf, position + layout.LAST_OFFSET_DELTA_AT)
        least = count * SMALLEST_RECORD_BYTES
        if attributes & layout.CODEC_MASK != 0:
            least = min(count, 1)
        if (
            base_offset < next_offset or last_delta < 0 or count < 0 or count > last_delta + 1
            or least > batch_end - records_at
            or base_offset > LARGEST_OFFSET - 1 - last_delta
            or base_offset + last_delta >= range_end
        ):  # fmt: skip
            return st.UNUSUAL, position, next_offset
        last_offset = base_offset + last_delta
        is_left_out = (
            last_offset < range_start or attributes & layout.CONTROL_MASK != 0
            or batch_end == records_at
        )  # fmt: skip
        if not is_left_out:
            if base_offset < range_start:
                return st.UNUSUAL, position, next_offset
            if attributes & layout.CODEC_MASK == 0:
                status = _room_for(count, batch_end - records_at, attributes, state)
                if status != st.OK:
                    return status, position, next_offset
        stored = load_i32(buf, position + layout.CRC_AT) & 0xFFFFFFFF
        if crc32c(buf, position + layout.ATTRIBUTES_AT, batch_end) != stored:
            return st.UNUSUAL, position, next_offset
        if not is_left_out:
            status = _take(
                buf, position, batch_end, base_offset, last_delta, count, attributes, scale,
                most_inflated, codecs, scratch, columns, state,
            )  # fmt: skip
            if status != st.OK:
                return status, position, next_offset
        next_offset = last_offset + 1
        position = batch_end
    return st.OK, position, next_offset
