"""Verify the sequences of producers: batches that are missing from the log, or in it twice.

A leader accepts the batches of an idempotent producer in the order of their sequences, each once.
A gap shows a batch that the log has lost, and a repeat shows a batch that is in the log twice.
Compaction removes batches and keeps the offsets of others: if sequences are missing, at least this
many offsets are missing, too.  Such a gap is a note, because a lost segment looks the same.  A gap
without missing offsets cannot come from compaction.
"""

from collections.abc import Iterator

import numpy as np

from segmentlog.format.kernels import layout, sequences
from segmentlog.format.kernels import producer_history as history
from segmentlog.format.kernels.memory import Int64s
from segmentlog.format.records.scanned_batches import ScannedBatches
from segmentlog.log.producer_history import FollowedBatches, ProducerHistory
from segmentlog.log.segment import Segment
from segmentlog.maintain.verification.findings import Finding, FindingKind, MakeFinding, Severity

_SEQUENCES = 2**31


class ProducerCheck:
    """Follows the producers of one log from its first batch to its last."""

    def __init__(self, finding: MakeFinding) -> None:
        self._finding = finding
        self._history: ProducerHistory | None = None
        self._n_explained = self._n_sequences = 0
        self._first = (0, 0)  # byte and offset of the first gap that compaction may have left

    def follow(self, batches: ScannedBatches) -> Iterator[Finding]:
        """Follow some batches."""
        if self._history is None:
            self._history = ProducerHistory(int(batches.headers[0, layout.BASE_OFFSET]))
        followed = self._history.follow(batches)
        findings = followed.findings
        if not len(findings):
            return
        n_lost = (findings[:, history.FOUND] - findings[:, history.EXPECTED]) % _SEQUENCES
        is_gap = findings[:, history.KIND] == history.GAP
        is_explained = is_gap & (n_lost <= findings[:, history.MISSING])
        if is_explained.any():
            if not self._n_explained:
                row = int(findings[np.argmax(is_explained), history.BATCH])
                offset = int(batches.headers[row, layout.BASE_OFFSET])
                self._first = batches.position_of(row), offset
            self._n_explained += int(is_explained.sum())
            self._n_sequences += int(n_lost[is_explained].sum())
        for number in np.flatnonzero(~is_explained).tolist():
            yield self._error(batches, followed, findings[number], int(n_lost[number]))

    def _error(
        self, batches: ScannedBatches, followed: FollowedBatches, found: Int64s, n_lost: int
    ) -> Finding:
        row = int(found[history.BATCH])
        batch = followed.batches[row]
        who = f"producer {batch[sequences.PRODUCER_ID]} with epoch {batch[sequences.EPOCH]}"
        first, last = batch[sequences.FIRST_SEQUENCE], batch[sequences.LAST_SEQUENCE]
        expected, original = int(found[history.EXPECTED]), int(found[history.ORIGINAL])
        if found[history.KIND] == history.OLD_EPOCH:
            kind = FindingKind.PRODUCER_EPOCH
            message = f"{who} writes after epoch {expected}, which has fenced its epoch"
        elif found[history.KIND] == history.GAP:
            kind = FindingKind.SEQUENCE_GAP
            message = (
                f"{who} continues at sequence {first} instead of {expected}: {n_lost} "
                "records are lost, and compaction cannot be the cause: no offsets are missing"
            )
        elif original >= 0:
            kind = FindingKind.SEQUENCE_REPEAT
            message = (
                f"{who} repeats sequences {first} to {last} of the batch at offset {original}"
            )
        else:
            kind = FindingKind.SEQUENCE_REPEAT
            message = (
                f"{who} goes back to sequence {first} instead of {expected}: records "
                "are in the log twice, or the producer has begun again without a new epoch"
            )
        return self._finding(
            kind, batches.path, message,
            position=batches.position_of(row), offset=int(batch[sequences.BASE_OFFSET]),
        )  # fmt: skip

    def go_on_from(self, offset: int) -> None:
        """Leave out damage; `offset` is the next offset after it."""
        if self._history is not None:
            self._history.go_on_from(offset)

    def end(self, segment: Segment) -> Iterator[Finding]:
        """Report the number of gaps in one segment that compaction may have left."""
        if self._n_explained:
            yield self._finding(
                FindingKind.SEQUENCE_GAP, segment.path,
                f"{self._n_sequences} sequences of producers are missing before "
                f"{self._n_explained} batches, of which this is the first, and so are their "
                "offsets: compacted away, or lost",
                position=self._first[0], offset=self._first[1], severity=Severity.NOTE,
            )  # fmt: skip
        self._n_explained = self._n_sequences = 0
