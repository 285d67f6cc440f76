"""One record of any format, as compaction looks at it: its place, its key, its value."""

from segmentlog.format.kernels import layout
from segmentlog.format.kernels import status as st
from segmentlog.format.kernels.memory import Bytes, Int64s, load_i32, load_i64, load_u8
from segmentlog.format.kernels.message import message_body
from segmentlog.format.kernels.record import parse_record
from segmentlog.native import internal


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
        after, offset, ms, key_length, key_at, value_length, value_at, n_headers, headers_at
    )  # fmt: skip
