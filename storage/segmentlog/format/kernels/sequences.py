"""Sequence numbers of idempotent producers: assigned, checked as a leader does, and followed.

A producer numbers its records in each partition from 0 to 2**31 - 1, and then from 0 again.  A
batch contains the number of its first record; the number of its last record follows from the
offsets (``DefaultRecordBatch.lastSequence``).
"""

from segmentlog.format.kernels import layout, producer_table
from segmentlog.format.kernels.crc32c import crc32c
from segmentlog.format.kernels.memory import (
    Bytes,
    Int64s,
    Int64Table,
    load_i16,
    load_i32,
    store_i16,
    store_i32,
    store_i64,
)
from segmentlog.native import internal, kernel

_LARGEST_SEQUENCE = 2**31 - 1

# Columns of a table of batches.
PRODUCER_ID = 0
EPOCH = 1
FIRST_SEQUENCE = 2
LAST_SEQUENCE = 3
BASE_OFFSET = 4
LAST_OFFSET = 5
ATTRIBUTES = 6
RECORDS_COUNT = 7
BATCH_COLUMNS = 8

# Columns of a table of batches that a log has, sorted by all of them in this order.
KNOWN_ROW = 0
KNOWN_EPOCH = 1
KNOWN_FIRST = 2
KNOWN_LAST = 3
KNOWN_BASE_OFFSET = 4
KNOWN_LAST_OFFSET = 5
KNOWN_COLUMNS = 6

# Columns of a table of fates.
FATE = 0
FATE_BASE_OFFSET = 1  #: of the records in the log
FATE_LAST_OFFSET = 2
FATE_COLUMNS = 3

# Fates; from `OUT_OF_ORDER` on, the batch is refused.
ACCEPTED = 0
DUPLICATE = 1
OUT_OF_ORDER = 2
FENCED = 3
IN_TRANSACTION = 4


@internal
def _advanced(sequence: int, n_records: int) -> int:
    """The number of a record, counted from `sequence` on (``incrementSequence``)."""
    sequence += n_records
    return sequence - _LARGEST_SEQUENCE - 1 if sequence > _LARGEST_SEQUENCE else sequence


@kernel
def read_sequences(buf: Bytes, headers: Int64Table, batches: Int64Table) -> None:
    """Fill `batches` with the fields of headers that producers write.

    Parameters
    ----------
    buf : uint8 array; the headers lie in it
    headers : int64 array, shape (n_batches, `layout.N_HEADER_COLUMNS`); read only
    batches : int64 array, shape (n_batches, `BATCH_COLUMNS`); written; epoch and sequences are -1
        without a producer, and sequences are -1 in control batches
    """
    for i in range(headers.shape[0]):
        epoch, first, last = -1, -1, -1
        delta = headers[i, layout.LAST_OFFSET] - headers[i, layout.BASE_OFFSET]
        if headers[i, layout.PRODUCER_ID] >= 0:
            at = headers[i, layout.POSITION]
            epoch = load_i16(buf, at + layout.PRODUCER_EPOCH_AT)
            first = load_i32(buf, at + layout.BASE_SEQUENCE_AT)
            last = _advanced(first, delta) if first >= 0 else -1
        batches[i, PRODUCER_ID], batches[i, EPOCH] = headers[i, layout.PRODUCER_ID], epoch
        batches[i, FIRST_SEQUENCE], batches[i, LAST_SEQUENCE] = first, last
        batches[i, BASE_OFFSET] = headers[i, layout.BASE_OFFSET]
        batches[i, LAST_OFFSET] = headers[i, layout.LAST_OFFSET]
        batches[i, ATTRIBUTES] = headers[i, layout.ATTRIBUTES]
        batches[i, RECORDS_COUNT] = headers[i, layout.RECORDS_COUNT]


@kernel
def assign_sequences(
    buf: Bytes, table: Int64Table, producer_id: int, epoch: int, first_sequence: int
) -> int:
    """Write producer, epoch and sequences into headers, and update their checksums.

    Parameters
    ----------
    buf : uint8 array; written; the caller has checked that it holds every batch of `table`
    table : int64 array, shape (n_batches, at least `layout.N_HEADER_COLUMNS`); written: the ids
    producer_id, epoch : of all batches
    first_sequence : of the first record

    Returns
    -------
    next_sequence : of the record after the last batch
    """
    sequence = first_sequence
    for i in range(table.shape[0]):
        at = table[i, layout.POSITION]
        store_i64(buf, at + layout.PRODUCER_ID_AT, producer_id)
        store_i16(buf, at + layout.PRODUCER_EPOCH_AT, epoch)
        store_i32(buf, at + layout.BASE_SEQUENCE_AT, sequence)
        crc = crc32c(buf, at + layout.ATTRIBUTES_AT, at + table[i, layout.SIZE])
        store_i32(buf, at + layout.CRC_AT, crc)
        table[i, layout.PRODUCER_ID] = producer_id
        n_records = table[i, layout.LAST_OFFSET] - table[i, layout.BASE_OFFSET] + 1
        sequence = _advanced(sequence, n_records)
    return sequence


@kernel
def renumber_batches(buf: Bytes, headers: Int64Table) -> None:
    """Make the offsets of batches count from 0 without gaps; no checksum covers base offsets.

    Parameters
    ----------
    buf : uint8 array; written; the caller has checked that it holds every batch of `headers`
    headers : int64 array, shape (n_batches, at least `layout.N_HEADER_COLUMNS`); written: offsets
    """
    offset = 0
    for i in range(headers.shape[0]):
        delta = headers[i, layout.LAST_OFFSET] - headers[i, layout.BASE_OFFSET]
        store_i64(buf, headers[i, layout.POSITION] + layout.BASE_OFFSET_AT, offset)
        headers[i, layout.BASE_OFFSET], headers[i, layout.LAST_OFFSET] = offset, offset + delta
        offset += delta + 1


@kernel
def check_sequences(
    batches: Int64Table,
    rows: Int64s,
    next_offset: int,
    states: Int64Table,
    known: Int64Table,
    fates: Int64Table,
) -> int:
    """Accept or refuse batches in their order, up to the first refused batch.

    Rules of ``UnifiedLog.analyzeAndValidateProducerState`` and ``ProducerAppendInfo`` for batches
    of clients: a repeated batch is not an error, and a producer without state may begin anywhere.

    Parameters
    ----------
    batches : int64 array, shape (n_batches, `BATCH_COLUMNS`); data, no markers; read only
    rows : int64 array, shape (n_batches,); row of `states` of each batch's producer, or -1
    next_offset : the log end
    states : int64 array, shape (n_producers, `producer_table.STATE_COLUMNS`); read and written
    known : int64 array, shape (n_known, `KNOWN_COLUMNS`), sorted; batches that the log has, or
        will have by then: those at or above `next_offset` do not count yet
    fates : int64 array, shape (n_batches, `FATE_COLUMNS`); written

    Returns
    -------
    n_decided : number of batches up to the first refused batch, which has its fate, too
    """
    for i in range(batches.shape[0]):
        row, first, last = rows[i], batches[i, FIRST_SEQUENCE], batches[i, LAST_SEQUENCE]
        delta = batches[i, LAST_OFFSET] - batches[i, BASE_OFFSET]
        if row >= 0:
            epoch = batches[i, EPOCH]
            at = _find(known, row, epoch, first, last)
            is_there = at >= 0 and known[at, KNOWN_BASE_OFFSET] < next_offset
            if is_there and epoch == states[row, producer_table.EPOCH]:
                fates[i, FATE] = DUPLICATE
                fates[i, FATE_BASE_OFFSET] = known[at, KNOWN_BASE_OFFSET]
                fates[i, FATE_LAST_OFFSET] = known[at, KNOWN_LAST_OFFSET]
                continue
            fate = _judge(states, row, epoch, first)
            if fate != ACCEPTED:
                fates[i, FATE] = fate
                return i
            states[row, producer_table.EPOCH] = epoch
            states[row, producer_table.LAST_SEQUENCE] = last
            states[row, producer_table.LAST_OFFSET] = next_offset + delta
        fates[i, FATE] = ACCEPTED
        fates[i, FATE_BASE_OFFSET], fates[i, FATE_LAST_OFFSET] = next_offset, next_offset + delta
        next_offset += delta + 1
    return len(batches)


@kernel
def find_lost(
    batches: Int64Table,
    rows: Int64s,
    epochs: Int64s,
    known: Int64Table,
    later: Int64Table,
    lost: Int64Table,
) -> int:
    """Fill `lost` with batches that a log must have had, because it has a later batch.

    A log takes a producer's batches in their order, and the batches of a flush together.  So if it
    contains a batch of the flush, it had the earlier batches, too, at the same distances.

    Parameters
    ----------
    batches : int64 array, shape (n_batches, `BATCH_COLUMNS`); of one flush; read only
    rows : int64 array, shape (n_batches,); number of each batch's producer, or -1
    epochs : int64 array, shape (n_producers,); the epoch of each producer in the log
    known : int64 array, shape (n_known, `KNOWN_COLUMNS`), sorted; batches that the log contains
    later : int64 array, shape (n_producers, 3); scratch: for each producer the first sequence of
        the batch that was looked at before, or -1; its offset in the log, and within the flush
    lost : int64 array, shape (n_batches, `KNOWN_COLUMNS`); written; not sorted

    Returns
    -------
    n_lost : rows of `lost` that were filled
    """
    n_lost, offset = 0, 0
    later[:, 0] = -1
    for i in range(batches.shape[0] - 1, -1, -1):
        row, epoch = rows[i], batches[i, EPOCH]
        delta = batches[i, LAST_OFFSET] - batches[i, BASE_OFFSET]
        offset -= delta + 1
        if row < 0 or epoch != epochs[row]:
            continue
        first, last = batches[i, FIRST_SEQUENCE], batches[i, LAST_SEQUENCE]
        at = _find(known, row, epoch, first, last)
        base_offset = known[at, KNOWN_BASE_OFFSET] if at >= 0 else -1
        if at < 0 and later[row, 0] == _advanced(last, 1):
            base_offset = later[row, 1] - (later[row, 2] - offset)
            if base_offset >= 0:
                lost[n_lost, KNOWN_ROW], lost[n_lost, KNOWN_EPOCH] = row, epoch
                lost[n_lost, KNOWN_FIRST], lost[n_lost, KNOWN_LAST] = first, last
                lost[n_lost, KNOWN_BASE_OFFSET] = base_offset
                lost[n_lost, KNOWN_LAST_OFFSET] = base_offset + delta
                n_lost += 1
        later[row, 0] = first if base_offset >= 0 else -1
        later[row, 1], later[row, 2] = base_offset, offset
    return n_lost


@internal
def _judge(states: Int64s, row: int, epoch: int, first: int) -> int:
    """The fate of a batch that the log does not have."""
    known, last = states[row, producer_table.EPOCH], states[row, producer_table.LAST_SEQUENCE]
    if epoch < known:
        return FENCED
    if known >= 0:
        expected = _advanced(last, 1) if epoch == known else 0
        if first != expected:
            return OUT_OF_ORDER
    if states[row, producer_table.TXN_FIRST_OFFSET] >= 0:
        return IN_TRANSACTION
    return ACCEPTED


@internal
def _find(known: Int64s, row: int, epoch: int, first: int, last: int) -> int:
    """The newest line of `known` with these values, or -1."""
    low, high = 0, known.shape[0]
    while low < high:
        middle = (low + high) // 2
        if _order(known, middle, row, epoch, first, last) > 0:
            high = middle
        else:
            low = middle + 1
    if low > 0 and _order(known, low - 1, row, epoch, first, last) == 0:
        return low - 1
    return -1


@internal
def _order(known: Int64s, at: int, row: int, epoch: int, first: int, last: int) -> int:
    """Whether a line of `known` sorts before these values (-1), after them (1), or neither."""
    for column, value in (
        (KNOWN_ROW, row),
        (KNOWN_EPOCH, epoch),
        (KNOWN_FIRST, first),
        (KNOWN_LAST, last),
    ):
        if known[at, column] != value:
            return 1 if known[at, column] > value else -1
    return 0
