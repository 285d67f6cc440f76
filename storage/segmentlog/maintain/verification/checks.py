"""Checks that follow the batches of a log: of its indexes, its producers and its transactions.

Every entry of a segment's offset and time index is compared with its batch.  An offset entry
points to the first byte of an append, and names an offset at or after the last offset of the batch
there.  A time entry names an offset, and the largest timestamp up to the end of the batch that
holds the offset (``LogSegment.append``).

A leader accepts the batches of an idempotent producer in the order of their sequences, each once.
A gap shows a batch that the log has lost, and a repeat shows a batch that is in the log twice.
Compaction removes batches and keeps the offsets of others: if sequences are missing, at least this
many offsets are missing, too.  Such a gap is a note, because a lost segment looks the same.  A gap
without missing offsets cannot come from compaction.
"""

import contextlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from segmentlog.errors import CorruptIndexError, MalformedBatchError
from segmentlog.format.kernels import layout, sequences
from segmentlog.format.kernels import producer_history as history
from segmentlog.format.kernels.memory import Int64s
from segmentlog.format.kernels.transactions import ABORT, COMMIT, MARKER_TYPE
from segmentlog.format.records.header import ScannedBatches
from segmentlog.log.batches import markers_among
from segmentlog.log.indexes import OFFSET_ENTRY, TIME_ENTRY, read_transaction_index
from segmentlog.log.producers import FollowedBatches, ProducerHistory
from segmentlog.log.segment import Segment
from segmentlog.maintain.verification.findings import Finding, FindingKind, MakeFinding, Severity
from segmentlog.store.paths import is_bucket
from segmentlog.store.readable import after_zeros, exists, open_file, status_of

_PIECE_ENTRIES = 1 << 16
_SEQUENCES = 2**31
_DATA = -1  #: beside the types of markers


def index_remedy(segment: Segment) -> str:
    """How a broker comes to rebuild all indexes of a segment: only if its offset index is missing.

    ``LogLoader.loadSegmentFiles``.
    """
    if exists(segment.offset_index_path):
        return (
            "delete the segment's .index file: a broker that starts then rebuilds all of its "
            "indexes"
        )
    return "a broker that starts rebuilds all indexes of the segment, as it has no .index file"


class _Entries:
    """Entries of one index file, taken in their order.

    Entries end before a long run of zeros, as Kafka preallocates them, and before more entries
    than the segment can have batches.  `stray` is the first byte after that end that is not zero,
    or -1 if there is none.
    """

    def __init__(self, path: str, dtype: np.dtype[np.void], segment: Segment) -> None:
        self.path = path
        self.entry_bytes = dtype.itemsize
        self.n_bytes, self.stray = 0, -1
        read = bytearray()
        try:
            with open_file(path) as file:
                self.n_bytes = file.status().size
                most = dtype.itemsize * (segment.size // layout.SMALLEST_BATCH_BYTES + 2)
                n_bytes = dtype.itemsize * _PIECE_ENTRIES
                while len(read) < min(most, self.n_bytes):
                    piece = file.read(len(read), n_bytes)
                    if not piece.strip(b"\0"):
                        break
                    read += piece
                rest = after_zeros(file, len(read), self.n_bytes)
                self.stray = rest if rest < self.n_bytes else -1
        except FileNotFoundError:
            pass
        data = np.frombuffer(read, np.uint8)
        rows = data[: len(data) // dtype.itemsize * dtype.itemsize].view(dtype)
        used = np.flatnonzero(rows.view((np.uint8, dtype.itemsize)).any(axis=1))
        rows = rows[: int(used[-1]) + 1 if len(used) else 0]  # preallocated after the last entry
        self.offsets: Int64s = rows["offset"].astype(np.int64) + segment.base_offset
        second = "position" if "position" in (dtype.names or ()) else "timestamp"
        self.others: Int64s = rows[second].astype(np.int64)
        self.done = 0

    def take(self, keys: Int64s, until: int) -> slice:
        """The next entries whose key is below `until`."""
        begin = self.done
        self.done = begin + int(np.searchsorted(keys[begin:], until))
        return slice(begin, self.done)


class IndexCheck:
    """Checks the indexes of one segment while its batches are read.

    `is_leaving`: whether the segment lies below the log start: its indexes may be deleted already.
    """

    def __init__(self, segment: Segment, finding: MakeFinding, *, is_leaving: bool) -> None:
        self._segment = segment
        self._finding = finding
        self._is_leaving = is_leaving
        self._by_offset = _Entries(segment.offset_index_path, OFFSET_ENTRY, segment)
        self._by_time = _Entries(segment.time_index_path, TIME_ENTRY, segment)
        self._largest = -1
        self._is_largest_known = True

    def follow(self, batches: ScannedBatches) -> Iterator[Finding]:
        """Check the entries that point to these batches."""
        headers = batches.headers
        positions = headers[:, layout.POSITION] + batches.file_position
        last = headers[:, layout.LAST_OFFSET]
        yield from self._offset_entries(positions, last, positions[-1] + headers[-1, layout.SIZE])
        yield from self._time_entries(headers, last)

    def unreadable(self, end: int, next_offset: int) -> None:
        """Leave out the entries of damaged bytes, up to byte `end` and below `next_offset`.

        They may be correct, and then lead around the damage.
        """
        self._by_offset.take(self._by_offset.others, end)
        self._by_time.take(self._by_time.offsets, next_offset)
        self._is_largest_known = False  # the largest timestamp may be among these bytes

    def _offset_entries(self, positions: Int64s, last: Int64s, end: int) -> Iterator[Finding]:
        entries = self._by_offset
        part = entries.take(entries.others, end)
        at = np.searchsorted(positions, entries.others[part])
        nearest = np.minimum(at, len(positions) - 1)
        is_good = (positions[nearest] == entries.others[part]) & (
            last[nearest] <= entries.offsets[part]
        )
        message = "byte {other} is not where an append with offset {offset} begins"
        yield from self._report(FindingKind.OFFSET_INDEX, entries, part, is_good, message)

    def _time_entries(self, headers: Int64s, last: Int64s) -> Iterator[Finding]:
        entries = self._by_time
        times, before = headers[:, layout.MAX_TIMESTAMP], self._largest
        self._largest = max(before, int(times.max()))
        part = entries.take(entries.offsets, int(last[-1]) + 1)
        if part.start == part.stop:
            return
        largest = np.maximum.accumulate(np.maximum(times, before))
        at = np.minimum(np.searchsorted(last, entries.offsets[part]), len(last) - 1)
        # Brokers index the time at which they append messages that have no timestamps themselves.
        has_none = headers[at, layout.ATTRIBUTES] & layout.NO_TIMESTAMP_MASK != 0
        is_good = (largest[at] == entries.others[part]) | has_none
        if not self._is_largest_known:
            is_good |= largest[at] < entries.others[part]
        message = "{other} is not the largest timestamp up to offset {offset}"
        yield from self._report(FindingKind.TIME_INDEX, entries, part, is_good, message)

    def _report(
        self,
        kind: FindingKind,
        entries: _Entries,
        part: slice,
        is_good: NDArray[np.bool_],
        message: str,
    ) -> Iterator[Finding]:
        bad = (np.flatnonzero(~is_good) + part.start).tolist()
        remedy = index_remedy(self._segment) if bad else ""
        for slot in bad:
            offset, other = int(entries.offsets[slot]), int(entries.others[slot])
            yield self._finding(
                kind,
                entries.path,
                f"entry {slot}: {message.format(offset=offset, other=other)}; {remedy}",
                position=slot * entries.entry_bytes,
                offset=offset,
            )

    def at_the_end(self) -> Iterator[Finding]:
        """Entries without a batch, and files that are missing or cut short."""
        yield from self._cut_short()
        remedy = index_remedy(self._segment)
        has_grown = self._segment.is_active
        if has_grown:
            with contextlib.suppress(FileNotFoundError):  # rolled, and retained or compacted
                has_grown = status_of(self._segment.path).size > self._segment.size
        for kind, entries in (
            (FindingKind.OFFSET_INDEX, self._by_offset),
            (FindingKind.TIME_INDEX, self._by_time),
        ):
            rest = slice(entries.done, len(entries.offsets))
            if has_grown:
                # A writer has appended since the log was listed, or has not decided yet.
                rest = slice(rest.start, rest.start)
            nothing = np.zeros(rest.stop - rest.start, np.bool_)
            yield from self._report(kind, entries, rest, nothing, "{other}, {offset} is not there")
            if entries.stray >= 0:
                yield self._finding(
                    kind,
                    entries.path,
                    f"its entries end at entry {len(entries.offsets)}, and the bytes from "
                    f"{entries.stray} on cannot be entries; {remedy}",
                    position=entries.stray,
                )
            if entries.n_bytes % entries.entry_bytes:
                yield self._finding(
                    kind,
                    entries.path,
                    f"its size of {entries.n_bytes} bytes is not a multiple of "
                    f"{entries.entry_bytes}; {remedy}",
                    position=entries.n_bytes,
                    severity=Severity.WARNING,
                )
            elif self._segment.size and not exists(entries.path) and not is_bucket(entries.path):
                severity, reason = Severity.WARNING, remedy
                if self._is_leaving:
                    severity, reason = Severity.NOTE, "the segment lies below the log start"
                yield self._finding(
                    kind,
                    entries.path,
                    f"the file is missing; {reason}",
                    offset=self._segment.base_offset,
                    severity=severity,
                )

    def _cut_short(self) -> Iterator[Finding]:
        """A time index whose last entry is older than the newest record of a closed segment.

        A broker adds that entry when it closes the segment, and later finds the segment by it
        (``LogSegment.onBecomeInactiveSegment``).  segmentlog also searches the batches after it.
        """
        entries, largest = self._by_time, self._largest
        last = int(entries.others[-1]) if len(entries.others) else -1
        if self._segment.is_active or last >= largest or not exists(entries.path):
            return
        yield self._finding(
            FindingKind.TIME_INDEX,
            entries.path,
            f"its last entry has timestamp {last}, and the segment has {largest}: a broker does "
            f"not find newer records by time; {index_remedy(self._segment)}",
            position=entries.n_bytes,
            severity=Severity.WARNING,
        )


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
            kind,
            batches.path,
            message,
            position=batches.position_of(row),
            offset=int(batch[sequences.BASE_OFFSET]),
        )

    def go_on_from(self, offset: int) -> None:
        """Leave out damage; `offset` is the next offset after it."""
        if self._history is not None:
            self._history.go_on_from(offset)

    def end(self, segment: Segment) -> Iterator[Finding]:
        """Report the number of gaps in one segment that compaction may have left."""
        if self._n_explained:
            yield self._finding(
                FindingKind.SEQUENCE_GAP,
                segment.path,
                f"{self._n_sequences} sequences of producers are missing before "
                f"{self._n_explained} batches, of which this is the first, and so are their "
                "offsets: compacted away, or lost",
                position=self._first[0],
                offset=self._first[1],
                severity=Severity.NOTE,
            )
        self._n_explained = self._n_sequences = 0


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
                FindingKind.CORRUPT_BATCH,
                path,
                str(error),
                position=error.position,
                offset=error.base_offset,
            )
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
                FindingKind.MARKER_WITHOUT_DATA,
                path,
                f"producer {producer_id} ends a transaction that has no records in the log: "
                "compacted away, below the log start, or lost",
                position=position,
                offset=offset,
            )
        elif kind == ABORT:
            self._aborted[offset] = producer_id, begun[0]

    def _data(
        self, path: str, position: int, offset: int, producer_id: int, epoch: int
    ) -> Iterator[Finding]:
        begun = self._open.setdefault(producer_id, (offset, epoch, path))
        if begun[1] != epoch:
            yield self._finding(
                FindingKind.DATA_WITHOUT_MARKER,
                path,
                f"producer {producer_id} writes with epoch {epoch}, but its transaction of epoch "
                f"{begun[1]}, begun at offset {begun[0]}, has no end marker",
                position=position,
                offset=offset,
            )
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
            )
            return
        listed = {each.last_offset: (each.producer_id, each.first_offset) for each in entries}
        for offset, (producer_id, first_offset) in aborted.items():
            if offset not in listed:
                yield self._finding(
                    FindingKind.TRANSACTION_INDEX,
                    path,
                    f"the transaction of producer {producer_id} from offset {first_offset} was "
                    f"aborted at {offset}, and the index does not contain it: a broker serves it "
                    f"as committed; {index_remedy(segment)}",
                    offset=offset,
                )
        for offset, (producer_id, first_offset) in listed.items():
            known = aborted.get(offset)
            if known is None:
                continue
            # Compaction may have removed the first batches: then the index begins earlier.
            is_earlier = ended_before[offset] < first_offset <= known[1]
            if producer_id != known[0] or not is_earlier:
                yield self._finding(
                    FindingKind.TRANSACTION_INDEX,
                    path,
                    f"the index has a transaction of producer {producer_id} from offset "
                    f"{first_offset}, but the log has producer {known[0]} from offset "
                    f"{known[1]}; {index_remedy(segment)}",
                    offset=offset,
                )

    def at_the_end(self) -> Iterator[Finding]:
        """Transactions that are still open."""
        for producer_id, (offset, _, path) in sorted(
            self._open.items(), key=lambda item: item[1][0]
        ):
            yield self._finding(
                FindingKind.OPEN_TRANSACTION,
                path,
                f"the transaction of producer {producer_id} from offset {offset} has no end "
                "marker: a consumer with read_committed stops at this offset",
                offset=offset,
            )
