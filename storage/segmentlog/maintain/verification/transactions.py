"""Verify what producers have written: their sequences, their transactions, and the index of these.

A leader accepts the batches of an idempotent producer in the order of their sequences, each once.
A gap shows a batch that the log has lost, and a repeat shows a batch that is in the log twice.
Compaction removes batches and keeps the offsets of others: if sequences are missing, at least this
many offsets are missing, too.  Such a gap is a note, because a lost segment looks the same.  A gap
without missing offsets cannot come from compaction.
"""

from collections.abc import Iterator

import numpy as np

from segmentlog.errors import CorruptIndexError, MalformedBatchError
from segmentlog.format.kernels import layout, sequences
from segmentlog.format.kernels import producer_history as history
from segmentlog.format.kernels.memory import Int64s
from segmentlog.format.kernels.transactions import ABORT, COMMIT, MARKER_TYPE
from segmentlog.format.records.header import ScannedBatches
from segmentlog.log.batches import markers_among
from segmentlog.log.indexes import read_transaction_index
from segmentlog.log.producers import FollowedBatches, ProducerHistory
from segmentlog.log.segment import Segment
from segmentlog.maintain.verification.findings import Finding, FindingKind, MakeFinding, Severity
from segmentlog.maintain.verification.indexes import index_remedy

_SEQUENCES = 2**31


class ProducerCheck:
    """Follows the producers of one log from its first batch to its last."""

    def __init__(self, finding: MakeFinding) -> None:
        self._finding = finding
        self._history: ProducerHistory | None = None
        self._n_explained = self._n_sequences = 0
        self._first = (0, 0)  # byte and offset of the first gap that compaction may have left

    def follow(self, batches: ScannedBatches) -> Iterator[Finding]:
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


_DATA = -1  # beside the types of markers


def _telling(producer_ids: Int64s, kinds: Int64s, epochs: Int64s) -> Int64s:
    """Rows that determine which transactions are open or aborted, in their order.

    Batches that continue their producer's transaction are left out.  So are transactions that
    begin and are committed among these rows.  Few of millions of batches remain.
    """
    rows = np.argsort(producer_ids, kind="stable")
    ids, kind, epoch = producer_ids[rows], kinds[rows], epochs[rows]
    goes_on = np.zeros(len(rows), np.bool_)
    goes_on[1:] = (
        (ids[1:] == ids[:-1])
        & (epoch[1:] == epoch[:-1])
        & (kind[1:] == _DATA)
        & (kind[:-1] == _DATA)
    )
    rows = rows[~goes_on]
    ids, is_data, is_commit = producer_ids[rows], kinds[rows] == _DATA, kinds[rows] == COMMIT
    is_next = ids[1:] == ids[:-1]
    begins = is_next[:-1] & ~is_data[:-2] & is_data[1:-1]
    is_whole = begins & is_next[1:] & is_commit[2:]
    is_telling = np.ones(len(rows), np.bool_)
    is_telling[1:-1] &= ~is_whole
    is_telling[2:] &= ~is_whole
    found: Int64s = np.sort(rows[is_telling])
    return found


class TransactionCheck:
    """Follows the transactions of one log from its first batch to its last."""

    def __init__(self, finding: MakeFinding) -> None:
        self._finding = finding
        self._open: dict[int, tuple[int, int, str]] = {}  # first offset, epoch and file, by id
        self._aborted: dict[int, tuple[int, int]] = {}  # id and first offset, by the marker's
        self._ended: dict[int, int] = {}  # offset of the last marker, by id
        self._ended_before: dict[int, int] = {}  # the same, by the abort marker's offset

    def follow(self, batches: ScannedBatches) -> Iterator[Finding]:
        headers, path = batches.headers, batches.path
        is_in = headers[:, layout.ATTRIBUTES] & layout.TRANSACTIONAL_MASK != 0
        if not is_in.any():
            return
        batches = batches.only(is_in & (headers[:, layout.RECORDS_COUNT] > 0))
        rows, buf = batches.headers, batches.buf
        try:
            markers = markers_among(batches)
        except MalformedBatchError as error:
            yield self._finding(
                FindingKind.CORRUPT_BATCH, path, str(error),
                position=error.position, offset=error.base_offset,
            )  # fmt: skip
            return
        kinds = np.full(len(rows), _DATA)
        kinds[rows[:, layout.ATTRIBUTES] & layout.CONTROL_MASK != 0] = markers[:, MARKER_TYPE]
        self._note_markers(rows, kinds)
        epoch_at = rows[:, layout.POSITION] + layout.PRODUCER_EPOCH_AT
        epochs = buf[epoch_at].astype(np.int64) << 8 | buf[epoch_at + 1]
        telling = _telling(rows[:, layout.PRODUCER_ID], kinds, epochs)
        columns = [layout.POSITION, layout.BASE_OFFSET, layout.PRODUCER_ID]
        for (position, offset, producer_id), kind, epoch in zip(
            rows[telling][:, columns].tolist(),
            kinds[telling].tolist(),
            epochs[telling].tolist(),
            strict=True,
        ):
            at = batches.file_position + position
            if kind == _DATA:
                yield from self._data(path, at, offset, producer_id, epoch)
            else:
                yield from self._marker(path, at, offset, producer_id, kind)

    def _note_markers(self, rows: Int64s, kinds: Int64s) -> None:
        """Note where the transaction before each aborted transaction has ended."""
        markers = np.flatnonzero(kinds != _DATA)
        markers = markers[np.argsort(rows[markers, layout.PRODUCER_ID], kind="stable")]
        ids, offsets = rows[markers, layout.PRODUCER_ID], rows[markers, layout.BASE_OFFSET]
        before: Int64s = np.full(len(markers), -1)
        before[1:] = np.where(ids[1:] == ids[:-1], offsets[:-1], -1)
        aborts = kinds[markers] == ABORT
        for producer_id, offset, end in zip(
            ids[aborts].tolist(), offsets[aborts].tolist(), before[aborts].tolist(), strict=True
        ):
            self._ended_before[offset] = end if end >= 0 else self._ended.get(producer_id, -1)
        self._ended.update(zip(ids.tolist(), offsets.tolist(), strict=True))

    def _marker(
        self, path: str, position: int, offset: int, producer_id: int, kind: int
    ) -> Iterator[Finding]:
        begun = self._open.pop(producer_id, None)
        if begun is None:
            yield self._finding(
                FindingKind.MARKER_WITHOUT_DATA, path,
                f"producer {producer_id} ends a transaction that has no records in the log: "
                "compacted away, below the log start, or lost",
                position=position, offset=offset,
            )  # fmt: skip
        elif kind == ABORT:
            self._aborted[offset] = producer_id, begun[0]

    def _data(
        self, path: str, position: int, offset: int, producer_id: int, epoch: int
    ) -> Iterator[Finding]:
        begun = self._open.setdefault(producer_id, (offset, epoch, path))
        if begun[1] != epoch:
            yield self._finding(
                FindingKind.DATA_WITHOUT_MARKER, path,
                f"producer {producer_id} writes with epoch {epoch}, but its transaction of epoch "
                f"{begun[1]}, begun at offset {begun[0]}, has no end marker",
                position=position, offset=offset,
            )  # fmt: skip
            self._open[producer_id] = offset, epoch, path

    def index_of(self, segment: Segment) -> Iterator[Finding]:
        """Compare the segment's index with the abort markers since the last call."""
        path = segment.transaction_index_path
        aborted, self._aborted = self._aborted, {}
        ended_before, self._ended_before = self._ended_before, {}
        try:
            entries = list(read_transaction_index(path))
        except CorruptIndexError as error:
            yield self._finding(
                FindingKind.TRANSACTION_INDEX, path, f"{error.reason}; {index_remedy(segment)}"
            )  # fmt: skip
            return
        listed = {each.last_offset: (each.producer_id, each.first_offset) for each in entries}
        for offset, (producer_id, first_offset) in aborted.items():
            if offset not in listed:
                yield self._finding(
                    FindingKind.TRANSACTION_INDEX, path,
                    f"the transaction of producer {producer_id} from offset {first_offset} was "
                    f"aborted at {offset}, and the index does not contain it: a broker serves it "
                    f"as committed; {index_remedy(segment)}",
                    offset=offset,
                )  # fmt: skip
        for offset, (producer_id, first_offset) in listed.items():
            known = aborted.get(offset)
            if known is None:
                continue
            # Compaction may have removed the first batches: then the index begins earlier.
            is_earlier = ended_before[offset] < first_offset <= known[1]
            if producer_id != known[0] or not is_earlier:
                yield self._finding(
                    FindingKind.TRANSACTION_INDEX, path,
                    f"the index has a transaction of producer {producer_id} from offset "
                    f"{first_offset}, but the log has producer {known[0]} from offset "
                    f"{known[1]}; {index_remedy(segment)}",
                    offset=offset,
                )  # fmt: skip

    def at_the_end(self) -> Iterator[Finding]:
        """Transactions that are still open."""
        for producer_id, (offset, _, path) in sorted(
            self._open.items(), key=lambda item: item[1][0]
        ):
            yield self._finding(
                FindingKind.OPEN_TRANSACTION, path,
                f"the transaction of producer {producer_id} from offset {offset} has no end "
                "marker: a consumer with read_committed stops at this offset",
                offset=offset,
            )  # fmt: skip
