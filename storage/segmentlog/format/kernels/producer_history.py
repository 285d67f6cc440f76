"""The sequences of producers over a whole log: gaps, repeats, and epochs that go back.

Nothing is refused here: the log is as it is.  A batch is measured against the one before it of
the same producer (``ProducerAppendInfo``, ``ProducerStateEntry.findDuplicateBatch``).
"""

from segmentlog.format.kernels import layout, sequences
from segmentlog.format.kernels.memory import Int64s, Int64Table
from segmentlog.native import internal, kernel

# Columns of a table of producers.
STATE_EPOCH = 0
STATE_LAST_SEQUENCE = 1
STATE_MISSING = 2  #: offsets that no batch holds, up to its last batch
N_REMEMBERED = 3
FIRST_REMEMBERED = 4
_REMEMBERED = 5  #: batches, as ``ProducerStateEntry.NUM_BATCHES_TO_RETAIN``
_FIELDS = 3  # first and last sequence, base offset
STATE_COLUMNS = FIRST_REMEMBERED + _REMEMBERED * _FIELDS

#: In the place of a last sequence: any sequence may follow.
UNKNOWN = -2

# Columns of a table of runs, one for each epoch of each producer.
FIRST_OFFSET = 0
LAST_OFFSET = 1
FIRST_SEQUENCE = 2
LAST_SEQUENCE = 3
N_BATCHES = 4
N_RECORDS = 5
N_MARKERS = 6
RUN_COLUMNS = 7

# Columns of a table of findings.
KIND = 0
BATCH = 1  #: number of the batch among those of the call
EXPECTED = 2  #: sequence; of `OLD_EPOCH`, the epoch
FOUND = 3
MISSING = 4  #: offsets that no batch holds, between this batch and its producer's last one
ORIGINAL = 5  #: base offset of the batch that is repeated, or -1
FINDING_COLUMNS = 6

# Kinds of findings.
GAP = 1
REPEAT = 2
OLD_EPOCH = 3

_SEQUENCES = 2**31


@kernel
def follow_history(
    batches: Int64Table,
    missing: Int64s,
    rows: Int64s,
    run_rows: Int64s,
    states: Int64Table,
    runs: Int64Table,
    findings: Int64Table,
) -> int:
    """Bring `states` and `runs` up to date with batches, and fill `findings`.

    Parameters
    ----------
    batches : int64 array, shape (n_batches, `sequences.BATCH_COLUMNS`); read only
    missing : int64 array, shape (n_batches,); offsets below each batch that no batch holds
    rows, run_rows : int64 arrays, shape (n_batches,); rows of `states` and `runs`, or -1
    states : int64 array, shape (n_producers, `STATE_COLUMNS`); read and written
    runs : int64 array, shape (n_runs, `RUN_COLUMNS`); read and written
    findings : int64 array, shape (n_batches, `FINDING_COLUMNS`); written

    Returns
    -------
    n_findings : rows of `findings` that were filled
    """
    n_findings = 0
    for i in range(batches.shape[0]):
        row = rows[i]
        if row < 0:
            continue
        run = run_rows[i]
        if runs[run, FIRST_OFFSET] < 0:
            runs[run, FIRST_OFFSET] = batches[i, sequences.BASE_OFFSET]
        runs[run, LAST_OFFSET] = batches[i, sequences.LAST_OFFSET]
        if batches[i, sequences.ATTRIBUTES] & layout.CONTROL_MASK != 0:
            _marker(batches, i, states, row, runs, run)
            continue
        kind, expected, original = _compare(batches, i, states, row)
        if kind != 0:
            findings[n_findings, KIND], findings[n_findings, BATCH] = kind, i
            findings[n_findings, EXPECTED] = expected
            is_old = kind == OLD_EPOCH
            column = sequences.EPOCH if is_old else sequences.FIRST_SEQUENCE
            findings[n_findings, FOUND] = batches[i, column]
            findings[n_findings, MISSING] = missing[i] - states[row, STATE_MISSING]
            findings[n_findings, ORIGINAL] = original
            n_findings += 1
        if runs[run, FIRST_SEQUENCE] < 0:
            runs[run, FIRST_SEQUENCE] = batches[i, sequences.FIRST_SEQUENCE]
        runs[run, N_BATCHES] += 1
        runs[run, N_RECORDS] += batches[i, sequences.RECORDS_COUNT]
        if kind == OLD_EPOCH or original >= 0:
            continue
        runs[run, LAST_SEQUENCE] = batches[i, sequences.LAST_SEQUENCE]
        _remember(batches, i, states, row)
        states[row, STATE_MISSING] = missing[i]
    return n_findings


@internal
def _marker(batches: Int64s, i: int, states: Int64s, row: int, runs: Int64s, run: int) -> None:
    """Take an end marker, which may begin an epoch; compaction may have emptied it."""
    runs[run, N_MARKERS] += 1
    epoch, known = batches[i, sequences.EPOCH], states[row, STATE_EPOCH]
    if epoch > known and batches[i, sequences.RECORDS_COUNT] > 0:
        states[row, STATE_EPOCH], states[row, N_REMEMBERED] = epoch, 0
        # The data of a producer that begins with its marker may lie below the log start.
        states[row, STATE_LAST_SEQUENCE] = -1 if known >= 0 else UNKNOWN


@internal
def _compare(batches: Int64s, i: int, states: Int64s, row: int) -> tuple[int, int, int]:
    """Kind of the finding, or 0; what was expected; base offset of the batch that is repeated."""
    epoch, first = batches[i, sequences.EPOCH], batches[i, sequences.FIRST_SEQUENCE]
    known, last = states[row, STATE_EPOCH], states[row, STATE_LAST_SEQUENCE]
    if known < 0 or (epoch == known and last == UNKNOWN):
        return 0, -1, -1
    if epoch < known:
        return OLD_EPOCH, known, -1
    expected = 0
    if epoch == known:
        expected = (last + 1) % _SEQUENCES
    if first == expected:
        return 0, -1, -1
    if epoch > known:
        return GAP, expected, -1
    for k in range(states[row, N_REMEMBERED]):
        at = FIRST_REMEMBERED + k * _FIELDS
        if states[row, at] == first and states[row, at + 1] == batches[i, sequences.LAST_SEQUENCE]:
            return REPEAT, expected, states[row, at + 2]
    is_ahead = (first - expected) % _SEQUENCES < _SEQUENCES // 2
    return GAP if is_ahead else REPEAT, expected, -1


@internal
def _remember(batches: Int64s, i: int, states: Int64s, row: int) -> None:
    """Make a batch the producer's last one."""
    if states[row, STATE_EPOCH] != batches[i, sequences.EPOCH]:
        states[row, STATE_EPOCH] = batches[i, sequences.EPOCH]
        states[row, N_REMEMBERED] = 0
    states[row, STATE_LAST_SEQUENCE] = batches[i, sequences.LAST_SEQUENCE]
    n_kept = min(states[row, N_REMEMBERED], _REMEMBERED - 1)
    for column in range(FIRST_REMEMBERED + n_kept * _FIELDS - 1, FIRST_REMEMBERED - 1, -1):
        states[row, column + _FIELDS] = states[row, column]
    states[row, FIRST_REMEMBERED] = batches[i, sequences.FIRST_SEQUENCE]
    states[row, FIRST_REMEMBERED + 1] = batches[i, sequences.LAST_SEQUENCE]
    states[row, FIRST_REMEMBERED + 2] = batches[i, sequences.BASE_OFFSET]
    states[row, N_REMEMBERED] = n_kept + 1
