"""The sequences of all producers of a log, followed from its first batch to its last."""

from typing import NamedTuple

import numpy as np

from segmentlog.format.kernels import layout, producer_history, sequences
from segmentlog.format.kernels.memory import Int64s
from segmentlog.format.kernels.producer_history import follow_history
from segmentlog.format.kernels.sequences import read_sequences
from segmentlog.format.records.scanned_batches import ScannedBatches

_EPOCHS = 2**16  #: epochs of a producer that a header may hold, negative ones too


class FollowedBatches(NamedTuple):
    """Findings about some batches."""

    findings: Int64s  # int64 array, shape (n_findings, `producer_history.FINDING_COLUMNS`)
    batches: Int64s  # int64 array, shape (n_batches, `sequences.BATCH_COLUMNS`)
    #: int64 array, shape (n_batches,); row of each batch in `ProducerHistory.runs`, or -1
    run_rows: Int64s


class ProducerHistory:
    """Follows the batches of one log.

    `next_offset`: of the log's first batch.
    """

    def __init__(self, next_offset: int) -> None:
        self._next_offset = next_offset
        self._n_missing = 0
        self._rows: dict[int, int] = {}  # of producers, by id
        self._run_rows: dict[int, int] = {}  # by the producer's row and its epoch
        self._states: Int64s = np.empty((0, producer_history.STATE_COLUMNS), np.int64)
        self._runs: Int64s = np.empty((0, producer_history.RUN_COLUMNS), np.int64)

    @property
    def runs(self) -> Int64s:
        """One row for each of `producers`, shape (n_runs, `producer_history.RUN_COLUMNS`)."""
        return self._runs

    @property
    def producers(self) -> list[tuple[int, int]]:
        """Each producer id with each of its epochs."""
        ids = [*self._rows]
        return [(ids[key // _EPOCHS], key % _EPOCHS - _EPOCHS // 2) for key in self._run_rows]

    def follow(self, scanned: ScannedBatches) -> FollowedBatches:
        """Take the next batches; there is at least one."""
        headers = scanned.headers
        begins, ends = headers[:, layout.BASE_OFFSET], headers[:, layout.LAST_OFFSET] + 1
        before = np.concatenate(([self._next_offset], ends[:-1]))
        missing = self._n_missing + np.cumsum(np.maximum(begins - before, 0))
        self._next_offset, self._n_missing = int(ends[-1]), int(missing[-1])
        batches: Int64s = np.empty((len(headers), sequences.BATCH_COLUMNS), np.int64)
        read_sequences(scanned.buf, headers, batches)
        rows = _rows_of(batches[:, sequences.PRODUCER_ID], self._rows)
        epochs = batches[:, sequences.EPOCH] + _EPOCHS // 2
        keys = np.where(rows < 0, -1, rows * _EPOCHS + epochs)
        run_rows = _rows_of(keys, self._run_rows)
        self._states = _grown(self._states, len(self._rows))
        self._runs = _grown(self._runs, len(self._run_rows))
        findings: Int64s = np.empty((len(headers), producer_history.FINDING_COLUMNS), np.int64)
        n_findings = follow_history(
            batches, missing, rows, run_rows, self._states, self._runs, findings
        )
        return FollowedBatches(findings[:n_findings], batches, run_rows)

    def go_on_from(self, offset: int) -> None:
        """Leave out bytes that cannot be read; their offsets count as missing."""
        self._n_missing += max(offset - self._next_offset, 0)
        self._next_offset = offset


def _rows_of(keys: Int64s, known: dict[int, int]) -> Int64s:
    """Number of each key, or -1 for a negative one; new keys get new numbers."""
    different, which = np.unique(keys, return_inverse=True)
    found: Int64s = np.array(
        [known.setdefault(key, len(known)) if key >= 0 else -1 for key in different.tolist()],
        np.int64,
    )
    return found[which]


def _grown(table: Int64s, n_rows: int) -> Int64s:
    """The table with more rows, which know nothing yet."""
    if len(table) == n_rows:
        return table
    new: Int64s = np.full((n_rows - len(table), table.shape[1]), -1, np.int64)
    if table.shape[1] == producer_history.RUN_COLUMNS:
        new[:, producer_history.N_BATCHES :] = 0
    else:
        new[:, producer_history.STATE_MISSING :] = 0
    return np.concatenate([table, new])
