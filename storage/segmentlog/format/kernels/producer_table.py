"""The state of producers, from their batches: epochs, sequences, and aborted transactions.

Rules: ``ProducerAppendInfo``, for batches that a leader has accepted.  All batches of a log are
such, so nothing is refused, and the later batch counts.
"""

from segmentlog.format.kernels import layout
from segmentlog.format.kernels.memory import Bytes, Int64s, Int64Table, load_i16, load_i32
from segmentlog.format.kernels.transactions import ABORT, read_end_marker
from segmentlog.native import internal, kernel

# Columns of a table of producers, one row each, in the order of a snapshot's fields.
PRODUCER_ID = 0
EPOCH = 1
LAST_SEQUENCE = 2
LAST_OFFSET = 3
OFFSET_DELTA = 4
TIMESTAMP = 5
COORDINATOR_EPOCH = 6
TXN_FIRST_OFFSET = 7
STATE_COLUMNS = 8

# Columns of a table of aborted transactions, in the order of an index entry's fields.
ABORTED_PRODUCER_ID = 0
ABORTED_FIRST_OFFSET = 1
ABORTED_LAST_OFFSET = 2
LAST_STABLE_OFFSET = 3
ABORTED_COLUMNS = 4

_LARGEST_SEQUENCE = 2**31 - 1


@kernel
def follow_producers(
    buf: Bytes,
    headers: Int64Table,
    rows: Int64s,
    states: Int64Table,
    aborted: Int64Table,
    after: Int64Table,
) -> int:
    """Bring `states` up to date with batches, and fill `aborted` with what their markers abort.

    Parameters
    ----------
    buf : uint8 array; headers, and control batches to their end, lie in it
    headers : int64 array, shape (n_batches, `layout.N_HEADER_COLUMNS`); read only
    rows : int64 array, shape (n_batches,); row of `states` of each batch's producer, or -1
    states : int64 array, shape (n_producers, `STATE_COLUMNS`); read and written
    aborted : int64 array, shape (at least the control batches, `ABORTED_COLUMNS`); written
    after : int64 array, shape (n_batches or 0, `STATE_COLUMNS`); written: the state of a batch's
        producer after it, in the rows of batches that change a state

    Returns
    -------
    n_aborted : rows of `aborted` that were filled
    """
    n_aborted = 0
    for i in range(headers.shape[0]):
        row = rows[i]
        if row < 0:
            continue
        epoch = load_i16(buf, headers[i, layout.POSITION] + layout.PRODUCER_EPOCH_AT)
        if headers[i, layout.ATTRIBUTES] & layout.CONTROL_MASK == 0:
            _data(buf, headers, i, epoch, states, row)
        elif headers[i, layout.RECORDS_COUNT] > 0:  # compaction may have taken the marker out
            start, end = headers[i, layout.RECORDS_START], headers[i, layout.RECORDS_END]
            kind, coordinator_epoch = read_end_marker(buf, start, end)
            if kind == ABORT and states[row, TXN_FIRST_OFFSET] >= 0:
                marker = headers[i, layout.BASE_OFFSET]
                aborted[n_aborted, ABORTED_PRODUCER_ID] = states[row, PRODUCER_ID]
                aborted[n_aborted, ABORTED_FIRST_OFFSET] = states[row, TXN_FIRST_OFFSET]
                aborted[n_aborted, ABORTED_LAST_OFFSET] = marker
                aborted[n_aborted, LAST_STABLE_OFFSET] = _stable_after(states, row, marker)
                n_aborted += 1
            _set_epoch(states, row, epoch)
            states[row, COORDINATOR_EPOCH] = coordinator_epoch
            states[row, TXN_FIRST_OFFSET] = -1
            states[row, TIMESTAMP] = headers[i, layout.MAX_TIMESTAMP]
        else:
            continue
        if after.shape[0]:
            for column in range(STATE_COLUMNS):
                after[i, column] = states[row, column]
    return n_aborted


@internal
def _data(buf: Bytes, headers: Int64s, i: int, epoch: int, states: Int64s, row: int) -> None:
    """Take one batch of records."""
    base_offset, last_offset = headers[i, layout.BASE_OFFSET], headers[i, layout.LAST_OFFSET]
    delta = last_offset - base_offset
    sequence = load_i32(buf, headers[i, layout.POSITION] + layout.BASE_SEQUENCE_AT)
    if sequence >= 0:
        sequence += delta
        if sequence > _LARGEST_SEQUENCE:
            sequence -= _LARGEST_SEQUENCE + 1
    _set_epoch(states, row, epoch)
    states[row, LAST_SEQUENCE], states[row, LAST_OFFSET] = sequence, last_offset
    states[row, OFFSET_DELTA] = delta
    states[row, TIMESTAMP] = headers[i, layout.MAX_TIMESTAMP]
    is_in_transaction = headers[i, layout.ATTRIBUTES] & layout.TRANSACTIONAL_MASK != 0
    if is_in_transaction and states[row, TXN_FIRST_OFFSET] < 0:
        states[row, TXN_FIRST_OFFSET] = base_offset


@internal
def _set_epoch(states: Int64s, row: int, epoch: int) -> None:
    """Begin a new epoch of a producer, which has no batch yet."""
    if states[row, EPOCH] != epoch:
        states[row, EPOCH] = epoch
        states[row, LAST_SEQUENCE] = states[row, LAST_OFFSET] = -1
        states[row, OFFSET_DELTA] = 0


@internal
def _stable_after(states: Int64s, row: int, marker: int) -> int:
    """The last stable offset once the transaction of `row` has ended at `marker`."""
    stable = marker + 1
    for other in range(states.shape[0]):
        first = states[other, TXN_FIRST_OFFSET]
        if other != row and 0 <= first < stable:
            stable = first
    return stable
