"""Committed and aborted transactions: end markers, and the batches that they decide about.

A transaction's end marker is a control batch with one record, whose key holds its type::

    length | attributes | timestamp delta | offset delta | key length | version | type | …
    varint | 1 byte     | varlong         | varint       | varint: 4  | i16     | i16  |

    … value length | version | coordinator epoch | headers
      varint: 6    | i16     | i32               | varint: 0

Type 0 aborts and 1 commits.

The producer's first marker after a batch decides about the batch: a producer begins no other
transaction while one is open, and compaction removes a marker only after the data before it
(``ProducerStateManager``, ``Cleaner.shouldDiscardBatch``).
"""

from segmentlog.format.kernels import layout
from segmentlog.format.kernels import status as st
from segmentlog.format.kernels.crc32c import crc32c
from segmentlog.format.kernels.memory import (
    Bytes,
    Int64s,
    Int64Table,
    call_5,
    load_i16,
    load_i32,
    load_i64,
    load_u8,
)
from segmentlog.format.kernels.scan import LARGEST_OFFSET, put_header
from segmentlog.format.kernels.varint import read_varint, read_varlong
from segmentlog.native import inlined, internal, kernel

ABORT = 0
COMMIT = 1

# Columns of a table of markers.
MARKER_PRODUCER_ID = 0
MARKER_OFFSET = 1
MARKER_TYPE = 2
N_MARKER_COLUMNS = 3

_MARKER_VALUE_BYTES = 6


@kernel
def walk_headers(buf: Bytes, start: int, end: int, headers: Int64Table) -> tuple[int, int, int]:
    """Fill `headers` from batch headers alone; only control batches have their checksum checked.

    Parameters
    ----------
    buf : uint8 array, shape (n_bytes,); read only
    start, end : half-open byte range that begins at a batch
    headers : int64 array, shape (n_rows, `layout.N_HEADER_COLUMNS`); written: position, size,
        offsets, attributes, timestamps, producer id, record count and the place of the records.
        The row of a message of magic 0 or 1 has only position, size, offset and timestamp, and
        of its attributes `layout.LEGACY_MASK` and the codec.

    Returns
    -------
    status : `OK` when the next batch begins at or after `end`, `NEED_MORE` when its header (for a
        control batch, all of it) does not lie in the range, `TABLE_FULL`, or a fault
    position : where the next batch begins
    n_batches : rows filled
    """
    position, n_batches = start, 0
    while position < end:
        if n_batches == headers.shape[0]:
            return st.TABLE_FULL, position, n_batches
        code, size = _take_header(buf, position, end, headers, n_batches)
        if code != st.OK:
            return code, position, n_batches
        n_batches += 1
        position += size
    return st.OK, position, n_batches


# The int64 array of a file whose headers are read.
FILE_DESCRIPTOR = 0
FILE_PREADV2 = 1  #: address of ``preadv2``
FILE_POSITION = 2  #: byte of the file that the first byte of the buffer stands for
FILE_FLAGS = 3  #: of each read
_BYTES_AT, _N_BYTES = 4, 5  # an ``iovec``
N_FILE_COLUMNS = 6

_HEADER_PIECE_BYTES = 128  # a header, or a whole end marker
_SMALL_BATCH_BYTES = 3 << 10  # to copy what lies between headers takes less than one more call
_SMALL_PIECE_BYTES = 32 << 10


@kernel
def walk_file_headers(buf: Bytes, headers: Int64Table, file: Int64s) -> tuple[int, int, int]:
    """`walk_headers` of a file, of which little more than the headers is read.

    Parameters
    ----------
    buf : uint8 array, shape (n_bytes,); written: headers, and control batches, each at its place
        after the byte that `FILE_POSITION` names.  The other bytes stay as they are
    headers : see `walk_headers`
    file : int64 array, shape (`N_FILE_COLUMNS`,); read, and written for calls of the system

    Returns
    -------
    status, position, n_batches : see `walk_headers`; `NEED_MORE` also if the system reads nothing
    """
    position = n_batches = held = 0  # up to the byte `held`, if that is higher, the file was read
    n_bytes, piece = buf.shape[0], _HEADER_PIECE_BYTES
    while position < n_bytes:
        if n_batches == headers.shape[0]:
            return st.TABLE_FULL, position, n_batches
        code, size = st.NEED_MORE, 0
        if position < held:
            code, size = _take_header(buf, position, held, headers, n_batches)
        if code == st.OK:
            n_batches += 1
            position += size
            piece = _SMALL_PIECE_BYTES if size <= _SMALL_BATCH_BYTES else _HEADER_PIECE_BYTES
            continue
        if code != st.NEED_MORE:
            return code, position, n_batches
        at = max(position, held)
        if at > position:  # a control batch is larger than what was read
            piece = max(piece, at - position)
        n_read = 0
        if at < n_bytes:
            file[_BYTES_AT], file[_N_BYTES] = buf.ctypes.data + at, min(piece, n_bytes - at)
            n_read = call_5(
                file[FILE_PREADV2],
                file[FILE_DESCRIPTOR],
                file.ctypes.data + 8 * _BYTES_AT,
                1,
                file[FILE_POSITION] + at,
                file[FILE_FLAGS],
            )
        if n_read <= 0:
            return st.NEED_MORE, position, n_batches
        held = at + n_read
    return st.OK, position, n_batches


@inlined
def _take_header(
    buf: Bytes, position: int, end: int, headers: Int64s, row: int
) -> tuple[int, int]:
    """Fill a row with the header at `position`; its status, and the size of its batch."""
    if position + layout.MAGIC_PREFIX_BYTES > end:
        return st.NEED_MORE, 0
    length = load_i32(buf, position + layout.BATCH_LENGTH_AT)
    magic = load_u8(buf, position + layout.MAGIC_AT)
    if length < layout.MIN_LENGTHS[min(magic, layout.NEWEST_MAGIC)]:
        return st.BAD_LENGTH, 0
    if magic > layout.NEWEST_MAGIC:
        return st.BAD_MAGIC, 0
    size = layout.LOG_OVERHEAD + length
    if position + layout.HEADER_SIZES[magic] > end:
        return st.NEED_MORE, 0
    first = last = load_i64(buf, position)
    attributes, producer_id, count = layout.LEGACY_MASK, -1, 0
    if magic >= layout.FIRST_BATCH_MAGIC:
        code, last, attributes, producer_id, count = _read_header(buf, position, size, end)
        if code != st.OK:
            return code, 0
    else:
        stored = load_u8(buf, position + layout.LEGACY_ATTRIBUTES_AT)
        attributes |= stored & layout.CODEC_MASK
    first_ms, max_ms = _timestamps(buf, position, magic)
    put_header(
        headers, row, position, size, first, last, attributes, first_ms, max_ms, producer_id, count
    )
    return st.OK, size


@inlined
def _read_header(buf: Bytes, position: int, size: int, end: int) -> tuple[int, int, int, int, int]:
    """Status, last offset, attributes, producer id and record count of a header of magic 2.

    A control batch has to lie before `end` as a whole, with the right checksum.
    """
    first = load_i64(buf, position)
    attributes = load_i16(buf, position + layout.ATTRIBUTES_AT) & 0xFF
    delta = load_i32(buf, position + layout.LAST_OFFSET_DELTA_AT)
    producer_id = load_i64(buf, position + layout.PRODUCER_ID_AT)
    count = load_i32(buf, position + layout.RECORDS_COUNT_AT)
    code = st.OK
    if delta < 0 or first > LARGEST_OFFSET - 1 - delta:
        code = st.BAD_OFFSET_DELTA
    elif attributes & layout.CONTROL_MASK != 0:
        if position + size > end:
            code = st.NEED_MORE
        else:
            stored = load_i32(buf, position + layout.CRC_AT) & 0xFFFFFFFF
            if crc32c(buf, position + layout.ATTRIBUTES_AT, position + size) != stored:
                code = st.BAD_CRC
    return code, first + delta, attributes, producer_id, count


@internal
def _timestamps(buf: Bytes, position: int, magic: int) -> tuple[int, int]:
    """Base and largest timestamp of a header that lies in `buf`; -1 if the format has none."""
    if magic >= layout.FIRST_BATCH_MAGIC:
        first_ms = load_i64(buf, position + layout.BASE_TIMESTAMP_AT)
        return first_ms, load_i64(buf, position + layout.MAX_TIMESTAMP_AT)
    if magic == 0:
        return -1, -1
    only_ms = load_i64(buf, position + layout.LEGACY_TIMESTAMP_AT)
    return only_ms, only_ms


@internal
def read_end_marker(buf: Bytes, at: int, end: int) -> tuple[int, int]:
    """Type and coordinator epoch of the control record in ``buf[at:end]``; -1 if unreadable."""
    _, at = read_varint(buf, at, end)
    _, at = read_varlong(buf, at + 1, end)
    _, at = read_varint(buf, at, end)
    key_length, at = read_varint(buf, at, end)
    if key_length < 4 or at + 4 > end or load_i16(buf, at) < 0:
        return -1, -1
    kind = load_i16(buf, at + 2)
    value_length, at = read_varint(buf, at + key_length, end)
    if value_length < _MARKER_VALUE_BYTES or at + _MARKER_VALUE_BYTES > end:
        return kind, -1
    return kind, load_i32(buf, at + 2)


@kernel
def collect_markers(buf: Bytes, headers: Int64Table, markers: Int64Table) -> tuple[int, int]:
    """Fill `markers` with the end markers among `headers`, in their order.

    Compaction may have removed the record of a marker: such a marker no longer decides anything.

    Parameters
    ----------
    buf : uint8 array; ``RECORDS_START`` and ``RECORDS_END`` of control batches point into it
    headers : int64 array, shape (n_batches, `layout.N_HEADER_COLUMNS`); read only
    markers : int64 array, shape (at least n_batches, `N_MARKER_COLUMNS`); written

    Returns
    -------
    n_markers : rows of `markers` filled
    bad_row : row of a marker that neither commits nor aborts, or -1
    """
    both = layout.CONTROL_MASK | layout.TRANSACTIONAL_MASK
    n_markers = 0
    for row in range(headers.shape[0]):
        if headers[row, layout.ATTRIBUTES] & both != both:
            continue
        if headers[row, layout.RECORDS_COUNT] == 0:
            continue
        start, end = headers[row, layout.RECORDS_START], headers[row, layout.RECORDS_END]
        kind, _ = read_end_marker(buf, start, end)
        if kind != ABORT and kind != COMMIT:
            return n_markers, row
        markers[n_markers, MARKER_PRODUCER_ID] = headers[row, layout.PRODUCER_ID]
        markers[n_markers, MARKER_OFFSET] = headers[row, layout.BASE_OFFSET]
        markers[n_markers, MARKER_TYPE] = kind
        n_markers += 1
    return n_markers, -1


@internal
def _deciding(markers: Int64s, producer_id: int, offset: int) -> int:
    """Row of the producer's first marker after `offset`, or -1; `markers` is sorted."""
    low, high = 0, markers.shape[0]
    while low < high:
        middle = (low + high) // 2
        found = markers[middle, MARKER_PRODUCER_ID]
        if found < producer_id or (
            found == producer_id and markers[middle, MARKER_OFFSET] <= offset
        ):
            low = middle + 1
        else:
            high = middle
    if low < markers.shape[0] and markers[low, MARKER_PRODUCER_ID] == producer_id:
        return low
    return -1


@kernel
def flag_aborted(
    headers: Int64Table, begin: int, markers: Int64Table, is_aborted: Bytes, least_records: int
) -> int:
    """Set 1 for each batch that an abort marker revokes, up to the first undecided batch.

    Parameters
    ----------
    headers : int64 array, shape (n_batches, `layout.N_HEADER_COLUMNS`); read only
    begin : the first row to look at
    markers : int64 array, shape (n_markers, `N_MARKER_COLUMNS`), sorted by producer and offset
    is_aborted : uint8 array, shape (n_batches,); written
    least_records : batches with fewer records need no marker; those that compaction has emptied
        have 0

    Returns
    -------
    row : of the first batch whose transaction has no marker, or the end
    """
    both = layout.CONTROL_MASK | layout.TRANSACTIONAL_MASK
    for row in range(begin, headers.shape[0]):
        if headers[row, layout.ATTRIBUTES] & both == layout.TRANSACTIONAL_MASK:
            producer_id = headers[row, layout.PRODUCER_ID]
            marker = _deciding(markers, producer_id, headers[row, layout.LAST_OFFSET])
            if marker >= 0:
                is_aborted[row] = markers[marker, MARKER_TYPE] == ABORT
            elif headers[row, layout.RECORDS_COUNT] >= least_records:
                return row
    return len(headers)
