"""Bytes of a log to sketches in one pass, as `one_pass` makes columns of them.

A sketch needs a few bytes of a value.  Here no value is copied, no Arrow batch is made, and the
bytes of a key are hashed while the checksum has them in the cache.
"""

from segmentlog.format.kernels import layout
from segmentlog.format.kernels import status as st
from segmentlog.format.kernels.inflate import inflate
from segmentlog.format.kernels.memory import (
    Bytes,
    Int64s,
    Int64Table,
    load_i64,
    prefetch,
    store_item,
)
from segmentlog.format.kernels.one_pass import (
    LINE_BYTES,
    WINDOW_END,
    distance,
    has_right_checksum,
    measure,
    read_on,
    usual_header,
    usual_record,
)
from segmentlog.format.kernels.output import DETAIL
from segmentlog.format.kernels.scan import SMALLEST_RECORD_BYTES, put_header
from segmentlog.format.kernels.sketches import (
    KEY_AT,
    KEY_LENGTH,
    PLACE_OFFSET,
    PLACE_SIZE,
    TIME,
    VALUE_AT,
    VALUE_LENGTH,
    SketchArrays,
    add_records,
)
from segmentlog.format.kernels.varint import signed
from segmentlog.native import inlined, internal, kernel

# The int64 array that a call leaves to the next one; `output.DETAIL` is the records, or the codec,
# of the batch that did not fit.
N_HEADERS = 0  #: rows of the table of headers that are filled
N_CONTROL = 1  #: of them, control batches: while there are some, the window is not moved


@inlined
def _place(
    buf: Bytes,
    at: int,
    end: int,
    base_offset: int,
    last_delta: int,
    count: int,
    base_ms: int,
    ms_mask: int,
    places: Int64s,
) -> bool:
    """Note where the records of a batch are; False if one of them is unusual.

    The caller has checked that the table has room, and that the buffer has slack after `end`.
    """
    previous, ahead, is_near = -1, distance(end - at), True
    for to in range(0, count * PLACE_SIZE, PLACE_SIZE):
        prefetch(buf, at + ahead)
        prefetch(buf, at + ahead + LINE_BYTES)
        is_usual, record_end, delta_ms, delta, key, key_at, value, value_at = usual_record(
            buf, at, end, previous, True
        )
        if not is_usual:
            return False
        ms = base_ms + (signed(delta_ms) & ms_mask)
        is_near = is_near and layout.SMALLEST_MS <= ms <= layout.LARGEST_MS
        store_item(places, to + KEY_AT, key_at)
        store_item(places, to + KEY_LENGTH, -1 if key & 1 else key >> 1)
        store_item(places, to + VALUE_AT, value_at)
        store_item(places, to + VALUE_LENGTH, -1 if value & 1 else value >> 1)
        store_item(places, to + TIME, ms)
        store_item(places, to + PLACE_OFFSET, base_offset + (delta >> 1))
        previous = delta
        at = record_end
    return is_near and at == end and previous >> 1 <= last_delta


@internal
def _sketch_batches(
    buf: Bytes, start: int, end: int, next_offset: int, range_start: int, range_end: int,
    most_inflated: int, codecs: Int64s, scratch: Bytes, partition: int, places: Int64s,
    sketch: SketchArrays, headers: Int64s, state: Int64s,
) -> tuple[int, int, int]:  # fmt: skip
    """`sketch_windows` for a window that does not move."""
    position = start
    while position < end:
        if state[N_HEADERS] == headers.shape[0]:
            return st.TABLE_FULL, position, next_offset
        status, batch_end = measure(buf, position, end)
        if status != st.OK:
            return status, position, next_offset
        is_usual, attributes, count, base_offset, last_delta = usual_header(
            buf, position, batch_end, next_offset, range_end
        )
        last_offset = base_offset + last_delta
        if not is_usual or base_offset < range_start <= last_offset:
            return st.UNUSUAL, position, next_offset
        at, n_bytes = position + layout.HEADER_BYTES, batch_end - position - layout.HEADER_BYTES
        is_control = attributes & layout.CONTROL_MASK != 0
        if count > places.shape[0] // PLACE_SIZE and not is_control:
            state[DETAIL] = count
            return st.OUTPUT_FULL, position, next_offset
        if not has_right_checksum(buf, position, batch_end):
            return st.UNUSUAL, position, next_offset
        first_ms = load_i64(buf, position + layout.BASE_TIMESTAMP_AT)
        max_ms = load_i64(buf, position + layout.MAX_TIMESTAMP_AT)
        if last_offset >= range_start:
            if n_bytes > 0 and not is_control:
                base_ms, ms_mask = first_ms, -1
                if attributes & layout.TIMESTAMP_TYPE_MASK != 0:
                    base_ms, ms_mask = max_ms, 0
                if attributes & layout.CODEC_MASK == 0:
                    if not _place(
                        buf,
                        at,
                        batch_end,
                        base_offset,
                        last_delta,
                        count,
                        base_ms,
                        ms_mask,
                        places,
                    ):
                        return st.UNUSUAL, position, next_offset
                    add_records(buf, buf, places, count, partition, sketch)
                else:
                    status, n_bytes = inflate(
                        buf, at, batch_end, attributes, most_inflated, codecs, scratch
                    )
                    if status == st.CODEC_NEEDED:
                        state[DETAIL] = attributes & layout.CODEC_MASK
                    if status != st.OK:
                        return status, position, next_offset
                    if count * SMALLEST_RECORD_BYTES > n_bytes or not _place(
                        scratch,
                        0,
                        n_bytes,
                        base_offset,
                        last_delta,
                        count,
                        base_ms,
                        ms_mask,
                        places,
                    ):
                        return st.UNUSUAL, position, next_offset
                    add_records(scratch, scratch, places, count, partition, sketch)
            put_header(
                headers,
                state[N_HEADERS],
                position,
                batch_end - position,
                base_offset,
                last_offset,
                attributes & 0xFF,
                first_ms,
                max_ms,
                load_i64(buf, position + layout.PRODUCER_ID_AT),
                count,
            )
            state[N_HEADERS] += 1
            state[N_CONTROL] += is_control
        next_offset = last_offset + 1
        position = batch_end
    return st.OK, position, next_offset


@kernel
def sketch_windows(
    buf: Bytes, start: int, next_offset: int, range_start: int, range_end: int, most_inflated: int,
    codecs: Int64s, scratch: Bytes, partition: int, places: Int64s, sketch: SketchArrays,
    headers: Int64Table, state: Int64s, window: Int64s,
) -> tuple[int, int, int]:  # fmt: skip
    """Add the records of usual batches to sketches, and their headers to a table.

    Parameters
    ----------
    buf, start, next_offset, range_start, range_end, most_inflated, codecs, scratch, window : see
        `segmentlog.format.kernels.one_pass.decode_windows`; the batch in which the range begins is
        unusual
    partition : of the records
    places : int64 array, room for `segmentlog.format.kernels.sketches.PLACE_SIZE` numbers of each
        record of a batch; written
    sketch : read and written
    headers : int64 array, shape (n_rows, `layout.N_HEADER_COLUMNS`); rows are added as
        `segmentlog.format.kernels.transactions.walk_headers` fills them, but the position is that
        in the window that had the batch
    state : int64 array, shape (`segmentlog.format.kernels.output.N_STATE`,); read and written

    Returns
    -------
    status, position, next_offset : see `segmentlog.format.kernels.one_pass.decode_windows`;
        `OUTPUT_FULL` before a batch with more records than `places` has room for, their number in
        ``state[DETAIL]``; `TABLE_FULL` if `headers` is full
    """
    position = start
    while True:
        status, position, next_offset = _sketch_batches(
            buf, position, window[WINDOW_END], next_offset, range_start, range_end, most_inflated,
            codecs, scratch, partition, places, sketch, headers, state,
        )  # fmt: skip
        is_empty = status == st.OK or status == st.NEED_MORE
        if not is_empty or state[N_CONTROL] > 0 or not read_on(buf, position, window):
            return status, position, next_offset
        position = 0
