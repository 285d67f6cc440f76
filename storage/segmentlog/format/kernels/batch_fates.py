"""The fate of each batch in a compaction, as transactions and producers determine it.

Rules: ``CleanedTransactionMetadata`` and ``Cleaner.cleanInto``.
"""

from segmentlog.format.kernels import layout
from segmentlog.format.kernels.memory import Bytes, Int64s, Int64Table, load_i16
from segmentlog.format.kernels.transactions import ABORT, COMMIT, read_end_marker
from segmentlog.native import inlined, kernel

# The fate of a batch, in bits.
DROPS_RECORDS = 1  #: none of its records stays
STAYS_EMPTY = 2  #: its header stays even if no record does
ENDS_NOTHING = 4  #: it is the end marker of a transaction whose batches are all gone

# Columns of the table of producers.
LAST_DATA_OFFSET = 0  #: of an active producer: end of its last batch; or -1
EPOCH = 1  #: of an active producer
IS_ACTIVE = 2
HAS_ABORTED = 3  #: whether a batch of the transaction was seen that its next marker aborts
HAS_COMMITTED = 4  #: whether a batch of the transaction was seen that its next marker commits
PRODUCER_COLUMNS = 5


@inlined
def _is_idle_marker(
    buf: Bytes, headers: Int64s, row: int, of: Int64s, aborts: Int64s, n_aborts: int
) -> tuple[bool, int]:
    """Whether a control batch ends a transaction without batches; the aborts that are kept."""
    if headers[row, layout.RECORDS_COUNT] == 0:  # an earlier compaction has emptied it
        return True, n_aborts
    kind, _ = read_end_marker(
        buf, headers[row, layout.RECORDS_START], headers[row, layout.RECORDS_END]
    )
    if kind == ABORT:
        is_idle = of[HAS_ABORTED] == 0
        of[HAS_ABORTED] = 0
        if not is_idle:
            aborts[n_aborts] = row
            n_aborts += 1
        return is_idle, n_aborts
    if kind == COMMIT:
        is_idle = of[HAS_COMMITTED] == 0
        of[HAS_COMMITTED] = 0
        return is_idle, n_aborts
    return False, n_aborts


@inlined
def _is_last_of_producer(buf: Bytes, headers: Int64s, row: int, of: Int64s) -> bool:
    """Whether a batch is the last one of an active producer, and keeps its sequence or epoch."""
    if headers[row, layout.PRODUCER_ID] < 0 or of[IS_ACTIVE] == 0:
        return False
    if of[LAST_DATA_OFFSET] >= 0:
        return bool(headers[row, layout.LAST_OFFSET] == of[LAST_DATA_OFFSET])
    epoch = load_i16(buf, headers[row, layout.POSITION] + layout.PRODUCER_EPOCH_AT)
    is_control = headers[row, layout.ATTRIBUTES] & layout.CONTROL_MASK != 0
    return bool(is_control and epoch == of[EPOCH])


@kernel
def judge_batches(
    buf: Bytes, headers: Int64Table, rows: Int64s, is_aborted: Bytes, producers: Int64Table,
    upper_bound: int, now_ms: int, fates: Bytes, aborts: Int64s,
) -> int:  # fmt: skip
    """Fill `fates` for batches, which come in the order of the log.

    Parameters
    ----------
    buf : uint8 array; headers, and control batches to their end, lie in it
    headers : int64 array, shape (n_batches, `layout.N_HEADER_COLUMNS`); read only
    rows : int64 array, shape (n_batches,); row of `producers` of each batch's producer; the last
        row stands for no producer
    is_aborted : uint8 array, shape (n_batches,); 1 for batches of aborted transactions
    producers : int64 array, shape (n_producers + 1, `PRODUCER_COLUMNS`); read and written
    upper_bound : the offset at which this compaction ends; a batch that ends there stays
    now_ms : time of the compaction (epoch)
    fates : uint8 array, shape (n_batches,); written
    aborts : int64 array, shape (at least the control batches,); written: rows of abort markers
        whose transactions still have batches

    Returns
    -------
    n_aborts : how many of `aborts` were filled
    """
    n_aborts = 0
    for row in range(headers.shape[0]):
        attributes, of = headers[row, layout.ATTRIBUTES], producers[rows[row]]
        fate = 0
        if attributes & layout.CONTROL_MASK != 0:
            is_idle, n_aborts = _is_idle_marker(buf, headers, row, of, aborts, n_aborts)
            if is_idle:
                fate = ENDS_NOTHING
                has_horizon = attributes & layout.DELETE_HORIZON_MASK != 0
                if has_horizon and headers[row, layout.BASE_TIMESTAMP] <= now_ms:
                    fate |= DROPS_RECORDS
        elif attributes & layout.TRANSACTIONAL_MASK != 0:
            if is_aborted[row] != 0:
                of[HAS_ABORTED] = 1
                fate = DROPS_RECORDS
            else:
                of[HAS_COMMITTED] = 1
        if (
            _is_last_of_producer(buf, headers, row, of)
            or headers[row, layout.LAST_OFFSET] + 1 == upper_bound
        ):
            fate |= STAYS_EMPTY
        fates[row] = fate
    return n_aborts
