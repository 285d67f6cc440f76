"""The producers of a log: what a broker would know of them at some offset, and their history.

`ProducerStates` begins with the newest snapshot at or below that offset, and follows the batches
after it (``ProducerStateManager``).  Producers that have been idle for long are kept: the
broker that loads a snapshot drops them by its own ``producer.id.expiration.ms``.  A snapshot at or
below the log start counts, too.  A broker ignores it, and so accepts a repeated batch as a new one
if the original was deleted.

`ProducerHistory` follows all batches, and finds what a leader would not have accepted;
`producers_table` shows both as a table.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import count
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from segmentlog.format.kernels import layout, producer_table, sequences
from segmentlog.format.kernels import producer_history as history
from segmentlog.format.kernels.memory import Int64s
from segmentlog.format.kernels.producer_history import follow_history
from segmentlog.format.kernels.producer_table import follow_producers
from segmentlog.format.kernels.sequences import read_sequences
from segmentlog.format.records.header import ScannedBatches
from segmentlog.log.batches import WalkedBatches, walk_batches
from segmentlog.log.indexes import AbortedTransaction
from segmentlog.log.listing import list_segments
from segmentlog.log.producer_snapshot import (
    ProducerSnapshot,
    list_snapshots,
    newest_snapshot,
    remove_snapshots,
    snapshot_path,
    write_snapshot,
)
from segmentlog.log.segment import Segment, from_offset

_UNKNOWN = (-1, -1, -1, 0, -1, -1, -1)
_NOT_WANTED: Int64s = np.empty((0, producer_table.STATE_COLUMNS), np.int64)
_EPOCHS = 2**16  #: epochs of a producer that a header may hold, negative ones too

# Findings of `producers_table`.
_SEQUENCES = [
    ("offset", pa.int64()),
    ("expected_sequence", pa.int32()),
    ("first_sequence", pa.int32()),
]
_GAP = pa.struct([*_SEQUENCES, ("missing_offsets", pa.int64())])
_REPEAT = pa.struct([*_SEQUENCES, ("original_offset", pa.int64())])
_FENCED = pa.struct([("offset", pa.int64()), ("current_epoch", pa.int16())])
_RUN, _OFFSET = 0, 1  # their columns before those of `history`: the row of the run, and the offset


class ProducerStates:
    """Follows the batches of one log from `offset` on, and keeps the state of its producers."""

    def __init__(
        self, partition_path: str, offset: int, producers: Iterable[ProducerSnapshot] = ()
    ) -> None:
        self._partition_path = partition_path
        #: shape (n_producers, `producer_table.STATE_COLUMNS`); only this class changes it
        self.states: Int64s = np.array(list(producers), np.int64)
        self.states = self.states.reshape(-1, producer_table.STATE_COLUMNS)
        ids = self.states[:, producer_table.PRODUCER_ID].tolist()
        self._rows = {producer_id: row for row, producer_id in enumerate(ids)}
        self._snapshot_offset = offset
        self.end_offset = offset

    @classmethod
    def load(cls, partition_path: str, offset: int) -> "ProducerStates":
        """The state of the newest snapshot up to `offset`."""
        found = newest_snapshot(partition_path, 0, offset)
        return cls(partition_path, *(found or (-1, ())))

    def follow(
        self, walked: WalkedBatches, after: Int64s | None = None
    ) -> list[AbortedTransaction]:
        """Take batches that follow `end_offset`; the transactions that they abort.

        `after`: shape (n_batches, `producer_table.STATE_COLUMNS`); written: the state of a batch's
        producer after it, in the rows of batches that change a state.
        """
        self.end_offset, headers = walked.next_offset, walked.scanned.headers
        ids = headers[:, layout.PRODUCER_ID]
        if ids.max() < 0:
            return []
        is_control = headers[:, layout.ATTRIBUTES] & layout.CONTROL_MASK != 0
        aborted: Int64s = np.empty(
            (int(is_control.sum()), producer_table.ABORTED_COLUMNS), np.int64
        )
        rows = self.rows_of(ids)
        after = _NOT_WANTED if after is None else after
        n_aborted = follow_producers(
            walked.scanned.buf, headers, rows, self.states, aborted, after
        )
        return [AbortedTransaction._make(each) for each in aborted[:n_aborted].tolist()]

    def rows_of(self, ids: Int64s) -> Int64s:
        """Row of each id in `states`; a new producer gets a new row, and -1 stands for no id."""
        different, which = np.unique(ids, return_inverse=True)
        found = different.tolist()
        new = [each for each in found if each >= 0 and each not in self._rows]
        if new:
            begun: Int64s = np.array([(each, *_UNKNOWN) for each in new], np.int64)
            self._rows.update(zip(new, count(len(self.states)), strict=False))
            self.states = np.concatenate([self.states, begun])
        rows: Int64s = np.array([self._rows.get(each, -1) for each in found], np.int64)
        return rows[which]

    def add_removed(self, producers: Iterable[ProducerSnapshot], before: int) -> None:
        """Take from a later snapshot the producers whose last batches are below `before`."""
        before = min(before, self.end_offset)
        found: Int64s = np.array(
            [each for each in producers if 0 <= each.last_offset < before], np.int64
        ).reshape(-1, producer_table.STATE_COLUMNS)
        rows = self.rows_of(found[:, producer_table.PRODUCER_ID])
        ours, epoch, last = self.states[rows], producer_table.EPOCH, producer_table.LAST_OFFSET
        is_later = (found[:, epoch] == ours[:, epoch]) & (found[:, last] > ours[:, last])
        is_later |= found[:, epoch] > ours[:, epoch]
        self.states[rows[is_later]] = found[is_later]

    @property
    def known(self) -> list[ProducerSnapshot]:
        """The producers at `end_offset`."""
        return [ProducerSnapshot._make(each) for each in self.states.tolist()]

    def advance(self, offset: int) -> None:
        """Move to `offset`: no batch lies between `end_offset` and it."""
        self.end_offset = max(self.end_offset, offset)

    def follow_to(
        self, segments: Sequence[Segment], offset: int, snapshots_at: Collection[int] = ()
    ) -> None:
        """Follow the batches below `offset`, the base of a segment or the log end.

        `segments`: all segments of the log.  `snapshots_at`: base offsets at which a snapshot is
        taken on the way.
        """
        for segment in from_offset(segments, self.end_offset):
            if segment.base_offset >= offset:
                break
            self.advance(segment.base_offset)
            if segment.base_offset in snapshots_at:
                self.take_snapshot()
            for walked in walk_batches([segment], self.end_offset):
                self.follow(walked)
        self.advance(offset)

    def take_snapshot(self) -> None:
        """Write the state at `end_offset`, if it is newer than the last snapshot."""
        if self.end_offset <= self._snapshot_offset:
            return
        path = snapshot_path(self._partition_path, self.end_offset)
        write_snapshot(path, sorted(self.known))
        self._snapshot_offset = self.end_offset


def keep_producers(path: str, end: int) -> None:
    """Write snapshots at the log end, and at segments that begin after the newest snapshot."""
    # A broker that rolls segments and stops leaves the same. A broker that starts on a cleanly
    # stopped log without any snapshot does not read its batches, and forgets its producers
    # (``UnifiedLog.rebuildProducerState``). Other snapshots go, as a starting broker removes them
    # (``ProducerStateManager.removeStraySnapshots``). All of it can be repeated.
    segments = [Segment(each, is_sealed=False) for each in list_segments(path)]
    bases = [each.base_offset for each in segments]
    producers = ProducerStates.load(path, end)
    producers.follow_to(segments, end, bases[1:])
    producers.take_snapshot()
    remove_snapshots(path, {*list_snapshots(path)} - {*bases, end})


def save_producers(path: str, start: int, end: int) -> None:
    """Write a snapshot at the log end before a change removes the batches below a new start."""
    # Nothing is written if a snapshot stands after the new log start. Snapshots below the new
    # start go with their segments. A broker that starts ignores one at the log start, too
    # (``ProducerStateManager.truncateAndReload``), and so it forgets the producers of a log that
    # is empty; writers here do not. A log without snapshots has no state to keep: a broker that
    # starts on it looks at its batches only after an unclean stop.
    snapshots = list_snapshots(path)
    if not snapshots or snapshots[0] > start:
        return
    segments = [Segment(each, is_sealed=False) for each in list_segments(path)]
    producers = ProducerStates.load(path, end)
    producers.follow_to(segments, end)
    producers.take_snapshot()


class FollowedBatches(NamedTuple):
    """Findings about some batches."""

    findings: Int64s  # int64 array, shape (n_findings, `history.FINDING_COLUMNS`)
    batches: Int64s  # int64 array, shape (n_batches, `sequences.BATCH_COLUMNS`)
    #: int64 array, shape (n_batches,); row of each batch in `ProducerHistory.runs`, or -1
    run_rows: Int64s


class ProducerHistory:
    """Follows the batches of one log, the first of which begins at `next_offset`."""

    def __init__(self, next_offset: int) -> None:
        self._next_offset = next_offset
        self._n_missing = 0
        self._rows: dict[int, int] = {}  # of producers, by id
        self._run_rows: dict[int, int] = {}  # by the producer's row and its epoch
        self._states: Int64s = np.empty((0, history.STATE_COLUMNS), np.int64)
        #: one row for each of `producers`, shape (n_runs, `history.RUN_COLUMNS`)
        self.runs: Int64s = np.empty((0, history.RUN_COLUMNS), np.int64)

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
        self.runs = _grown(self.runs, len(self._run_rows))
        findings: Int64s = np.empty((len(headers), history.FINDING_COLUMNS), np.int64)
        n_findings = follow_history(
            batches, missing, rows, run_rows, self._states, self.runs, findings
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
    if table.shape[1] == history.RUN_COLUMNS:
        new[:, history.N_BATCHES :] = 0
    else:
        new[:, history.STATE_MISSING :] = 0
    return np.concatenate([table, new])


def producers_table(segments: Sequence[Segment], start_offset: int) -> pa.Table:
    """The idempotent producers of a log, by all of its batch headers.

    Returns one row for each epoch of each producer: ``producer_id``, ``producer_epoch``; the first
    and last offset and sequence; the numbers of ``batches``, ``records`` and ``markers`` (ends of
    transactions); and lists of what a leader would not have accepted.  ``gaps`` have the offset of
    the batch after the gap, the expected sequence and that of the batch, and how many offsets are
    missing in between.  After compaction, at least as many offsets as sequences are missing.
    ``repeats`` have the offset of the original, if it is one of the five batches before.
    ``fenced`` batches have a lower epoch than the one before them.
    """
    followed = ProducerHistory(start_offset)
    found: list[Int64s] = [np.empty((0, 2 + history.FINDING_COLUMNS), np.int64)]
    for walked in walk_batches(segments, start_offset):
        findings, batches, run_rows = followed.follow(walked.scanned)
        at = findings[:, history.BATCH]
        offsets = batches[at, sequences.BASE_OFFSET]
        found.append(np.column_stack([run_rows[at], offsets, findings]))
    findings = np.concatenate(found)
    runs, producers = followed.runs, np.array(followed.producers, np.int64).reshape(-1, 2)
    columns = {
        "producer_id": pa.array(producers[:, 0], pa.int64()),
        "producer_epoch": pa.array(producers[:, 1], pa.int16()),
        "first_offset": pa.array(runs[:, history.FIRST_OFFSET]),
        "last_offset": pa.array(runs[:, history.LAST_OFFSET]),
        "first_sequence": _sequences(runs[:, history.FIRST_SEQUENCE]),
        "last_sequence": _sequences(runs[:, history.LAST_SEQUENCE]),
        "batches": pa.array(runs[:, history.N_BATCHES]),
        "records": pa.array(runs[:, history.N_RECORDS]),
        "markers": pa.array(runs[:, history.N_MARKERS]),
        "gaps": _lists(findings, history.GAP, len(runs), _GAP, history.MISSING),
        "repeats": _lists(findings, history.REPEAT, len(runs), _REPEAT, history.ORIGINAL),
        "fenced": _lists(findings, history.OLD_EPOCH, len(runs), _FENCED, None),
    }
    table = pa.table(columns)
    return table.sort_by([("producer_id", "ascending"), ("producer_epoch", "ascending")])


def _sequences(column: Int64s) -> pa.Array:
    """Sequences; null for a producer of which only markers are there."""
    return pa.array(column, pa.int32(), mask=column < 0)


def _lists(
    findings: Int64s, kind: int, n_runs: int, item: pa.StructType, last: int | None
) -> pa.Array:
    """The findings of one kind, a list for each run."""
    mine = findings[findings[:, 2 + history.KIND] == kind]
    mine = mine[np.argsort(mine[:, _RUN], kind="stable")]
    ends = np.cumsum(np.bincount(mine[:, _RUN], minlength=n_runs)[:n_runs])
    columns = [mine[:, _OFFSET], mine[:, 2 + history.EXPECTED]]
    if last is not None:
        columns += [mine[:, 2 + history.FOUND], mine[:, 2 + last]]
    arrays = [
        pa.array(column, field.type, mask=column < 0)
        for column, field in zip(columns, item, strict=True)
    ]
    structs = pa.StructArray.from_arrays(arrays, fields=list(item))
    offsets = pa.array(np.concatenate(([0], ends)), pa.int32())
    return pa.ListArray.from_arrays(offsets, structs)
