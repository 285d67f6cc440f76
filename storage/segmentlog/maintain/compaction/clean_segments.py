"""Write what compaction keeps of the segments of a log into new segments, beside the old ones.

First, the dirty part is read into the offset map: the last offset of each key.
`segmentlog.format.kernels.offset_map` has its table.  Its memory is bounded: a map that is full
ends the pass where it stands, and leaves the rest of the log to the next pass
(``Cleaner.buildOffsetMap``).

Then the active producers of a log and its transactions decide the fate of each batch, and the map
that of each record.  The header of an active producer's last batch stays, for its sequence number
and its epoch: without it, the next batch of the producer would be refused (``Cleaner.cleanInto``).

An erasure does the same with other rules, after it has gone through the segments without writing.
"""

import contextlib
import os
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache, partial
from operator import attrgetter
from typing import NamedTuple, TypeAlias

import numpy as np

from segmentlog.format.kernels import compaction, layout, offset_map, status
from segmentlog.format.kernels.compaction import judge_batches
from segmentlog.format.kernels.memory import COPY_SLACK, Bytes, Int64s
from segmentlog.format.names import LOG_AND_SPARSE_INDEXES, FileKind, FileState, segment_file_name
from segmentlog.format.records.compression import Deflater
from segmentlog.format.records.decoder import BatchScanner, RecordFiller
from segmentlog.format.records.header import ScannedBatches
from segmentlog.format.topic_config import TopicConfig
from segmentlog.log.batches import EndMarkers, walk_batches
from segmentlog.log.index_builder import IndexBuilder
from segmentlog.log.indexes import AbortedTransaction, encode_transactions
from segmentlog.log.producer_snapshot import ProducerSnapshot
from segmentlog.log.segment import Segment
from segmentlog.log.windows import BatchWindows
from segmentlog.maintain.compaction.compact import ENTRY_BYTES, CleanerConfig
from segmentlog.model import LARGEST_LONG, Codec
from segmentlog.store.durable import create_file, remove_file, sync_file, write_all
from segmentlog.store.readable import open_file, status_of

_LEAST_ENTRIES, _MOST_ENTRIES = 64, 2**31 - 1
_WINDOW_BYTES = 4 << 20
_OUTPUT_BYTES = 8 << 20
_NO_PRODUCER = -1
_AFTER_ALL = 2**63 - 2  #: the greatest offset that the table takes


class OffsetMap:
    """The keys that were put, and up to which offset they are known.

    `memory`: bytes of its table at most, of which the share `load_factor` is filled.
    `most_records`: how many records may come; a small table stays in the processor's caches.
    `table`, `state`, `secret`, `waiting`: arrays of `segmentlog.format.kernels.offset_map`.
    """

    def __init__(self, memory: int, load_factor: float, most_records: int) -> None:
        most_entries = min(memory // ENTRY_BYTES, _MOST_ENTRIES)
        n_entries = min(most_entries, 2 * most_records + _LEAST_ENTRIES)
        # Pages of zeros come from the system one by one, as they are used.
        self.table: Int64s = np.zeros((n_entries, offset_map.ENTRY_COLUMNS), np.int64)
        self.state: Int64s = np.zeros(offset_map.STATE_COLUMNS, np.int64)
        # One entry stays free: a search ends there.
        self.state[offset_map.MOST_KEYS] = min(int(most_entries * load_factor), n_entries - 1)
        self.state[offset_map.LATEST_OFFSET] = -1
        self.secret: Bytes = np.array(bytearray(os.urandom(offset_map.SECRET_BYTES)), np.uint8)
        self.waiting: Int64s = np.zeros(
            (offset_map.N_WAITING, offset_map.WAITING_COLUMNS), np.int64
        )

    @property
    def n_keys(self) -> int:
        return int(self.state[offset_map.N_KEYS])

    @property
    def latest_offset(self) -> int:
        """Offset up to which the keys are known; -1 for an empty map."""
        return int(self.state[offset_map.LATEST_OFFSET])

    @classmethod
    def of_erased(cls, keys: Collection[bytes]) -> "OffsetMap":
        """A map in which each key has its last record after every record of a log.

        All records with these keys are then older than the last one, and are removed.
        """
        known = cls(ENTRY_BYTES * (2 * len(keys) + _LEAST_ENTRIES), 0.9, len(keys))
        ends: Int64s = np.cumsum([len(each) for each in keys], dtype=np.int64)
        joined: Bytes = np.frombuffer(bytearray().join([*keys, bytes(COPY_SLACK)]), np.uint8)
        code = offset_map.put_all(
            joined, ends, _AFTER_ALL, known.table, known.state, known.secret, known.waiting
        )
        assert code == status.OK, code  # noqa: S101 - the table was made for these keys
        return known


def inflated_runs(
    filler: RecordFiller, batches: ScannedBatches
) -> Iterator[tuple[ScannedBatches, slice]]:
    """Runs of `batches`, whose headers are written to; ``filler.inflated`` has their records.

    Yields `run`, some batches, valid until the next step; `rows`, of `batches` that they are.
    Raises `MalformedBatchError` or `UnsupportedFormatError` if a batch cannot be inflated; the
    batches before it come first.
    """
    headers = batches.headers
    attributes = headers[:, layout.ATTRIBUTES]
    # A batch that compaction has emptied has nothing to inflate, whatever its codec.
    is_emptied = (headers[:, layout.SIZE] == layout.HEADER_BYTES) & (
        attributes & layout.LEGACY_MASK == 0
    )
    headers[is_emptied, layout.ATTRIBUTES] &= ~layout.CODEC_MASK
    begin = 0
    while begin < len(headers):
        rest = batches.only(slice(begin, None))
        end = begin + filler.inflate(rest)
        rows = slice(begin, end)
        yield batches.only(rows), rows
        begin = end


def build_offset_map(
    segments: Sequence[Segment], start_offset: int, end_offset: int, cleaner: CleanerConfig
) -> OffsetMap:
    """Read the dirty part of a log into a map, or as much of it as the map takes.

    `segments`: all segments of the log; transactions may end after the dirty part.
    `start_offset`: at which the dirty part begins.  `end_offset`: base of the segment at which it
    ends.
    """
    known = OffsetMap(cleaner.dedupe_buffer_bytes, cleaner.load_factor, end_offset - start_offset)
    transactions = EndMarkers(partial(walk_batches, segments))
    filler, windows = RecordFiller(), BatchWindows(_WINDOW_BYTES)
    bases = [each.base_offset for each in segments] + [end_offset]
    for segment, after in zip(segments, bases[1:], strict=True):
        if after <= start_offset or segment.base_offset >= end_offset:
            continue
        begin = segment.floor_position(start_offset)
        scanner = BatchScanner(segment.path, 0 if begin else segment.base_offset)
        with open_file(segment.path) as file:
            for batches in windows.batches(file.read_into, scanner, begin, segment.size):
                left_out = transactions.find_aborted(batches, batches.next_offset)
                left_out |= batches.headers[:, layout.ATTRIBUTES] & layout.CONTROL_MASK != 0
                for run, rows in inflated_runs(filler, batches):
                    code, row = offset_map.put_keys(
                        run.buf,
                        filler.inflated,
                        run.headers,
                        left_out[rows],
                        start_offset,
                        known.table,
                        known.state,
                        known.secret,
                        known.waiting,
                    )
                    if code == status.TABLE_FULL:
                        return known
                    if code != status.OK:
                        raise run.malformed(row, status.REASONS[code])
        # No key is between its last one and the end of the segment.
        known.state[offset_map.LATEST_OFFSET] = min(after, end_offset) - 1
    return known


#: Judges the batches of one log in their order, as they were scanned: gives their fates, and the
#: aborted transactions that end among them and still have some.
Fates: TypeAlias = Callable[[ScannedBatches], tuple[Bytes, list[AbortedTransaction]]]


def keep_headers(indexed: Sequence[AbortedTransaction]) -> Fates:
    """The fates of an erasure: each header stays, and so does each end marker.

    A batch that loses all its records stays as an empty batch.  A cleaner keeps such a batch only
    for a producer that is active by the clock, or at the end of its range.  Two replicas of a log
    differ in clocks, in producer snapshots and in the borders of segments, and would then differ
    in their batches.

    `indexed`: entries of the log's transaction indexes; they stay as they are.
    """
    by_end = sorted(indexed, key=attrgetter("last_offset"))

    def judge(batches: ScannedBatches) -> tuple[Bytes, list[AbortedTransaction]]:
        headers = batches.headers
        first, end = (
            bisect_left(by_end, offset, key=attrgetter("last_offset"))
            for offset in (int(headers[0, layout.BASE_OFFSET]), batches.next_offset)
        )
        return np.full(len(headers), compaction.STAYS_EMPTY, np.uint8), by_end[first:end]

    return judge


class BatchFates:
    """The fates of a compaction (`Fates`).

    `active`: producers that count as active, by their state at the log end.  `indexed`: entries of
    the log's transaction indexes, for the new ones.  `kept_end`: a batch that ends here stays, if
    only empty.  `now_ms`: its time (epoch).
    """

    def __init__(
        self,
        active: Sequence[ProducerSnapshot],
        indexed: Sequence[AbortedTransaction],
        transactions: EndMarkers,
        kept_end: int,
        now_ms: int,
    ) -> None:
        self._indexed = {(each.producer_id, each.last_offset): each for each in indexed}
        self._transactions, self._kept_end, self._now_ms = transactions, kept_end, now_ms
        self._rows: dict[int, int] = {}
        self._producers: Int64s = np.zeros((1, compaction.PRODUCER_COLUMNS), np.int64)
        self._first_offsets: dict[int, int] = {}
        self._add([each.producer_id for each in active])
        for each in active:
            row = self._producers[self._rows[each.producer_id]]
            row[compaction.LAST_DATA_OFFSET] = each.last_offset
            row[compaction.EPOCH], row[compaction.IS_ACTIVE] = each.producer_epoch, 1

    def __call__(self, batches: ScannedBatches) -> tuple[Bytes, list[AbortedTransaction]]:
        is_aborted = self._transactions.find_aborted(batches, batches.next_offset)
        headers = batches.headers
        ids = headers[:, layout.PRODUCER_ID]
        rows: Int64s = np.full(len(headers), len(self._producers) - 1, np.int64)
        if (ids != _NO_PRODUCER).any():
            different, which = np.unique(ids, return_inverse=True)
            self._add([each for each in different.tolist() if each not in self._rows])
            last = len(self._producers) - 1
            found = [self._rows.get(each, last) for each in different.tolist()]
            rows = np.array(found, np.int64)[which]
        fates: Bytes = np.empty(len(headers), np.uint8)
        aborts: Int64s = np.empty(len(headers), np.int64)
        begun = headers[is_aborted != 0][:, [layout.PRODUCER_ID, layout.BASE_OFFSET]].tolist()
        n_aborts = judge_batches(
            batches.buf,
            headers,
            rows,
            is_aborted,
            self._producers,
            self._kept_end,
            self._now_ms,
            fates,
            aborts,
        )
        ended = headers[aborts[:n_aborts]][:, [layout.PRODUCER_ID, layout.BASE_OFFSET]].tolist()
        return fates, self._entries(begun, ended)

    def _add(self, ids: Sequence[int]) -> None:
        """Give new producers rows of the table; its last row stands for no producer."""
        new = [each for each in ids if each != _NO_PRODUCER]
        self._rows.update({each: len(self._producers) - 1 + i for i, each in enumerate(new)})
        room: Int64s = np.zeros((len(new), compaction.PRODUCER_COLUMNS), np.int64)
        self._producers = np.concatenate([self._producers[:-1], room, self._producers[-1:]])

    def _entries(self, begun: list[list[int]], ended: list[list[int]]) -> list[AbortedTransaction]:
        """Index entries of transactions; an entry that the old index lacks is made again.

        `begun`: producer and base offset of aborted batches.  `ended`: the same for markers after
        some of them.
        """
        entries = []
        both = [*((at, False, of) for of, at in begun), *((at, True, of) for of, at in ended)]
        for offset, is_end, producer_id in sorted(both):
            if not is_end:
                self._first_offsets.setdefault(producer_id, offset)
                continue
            first = self._first_offsets.pop(producer_id)
            stable = min([offset + 1, *self._first_offsets.values()])
            made = AbortedTransaction(producer_id, first, offset, stable)
            entries.append(self._indexed.get((producer_id, offset), made))
        return entries


class Counts(NamedTuple):
    """The numbers of records of some segments that stay and go."""

    #: records before and after
    n_read: int
    n_kept: int
    n_without_key: int  # records that went because they had no key
    n_cut: int  # batches that lost records
    n_emptied: int  # of these, batches that lost all
    #: least and greatest offset of the records that the offset map has removed; the greatest
    #: number and -1 if there are none
    first_replaced: int
    last_replaced: int


class SegmentCleaner:
    """Cleans the segments of one log, from the first on.

    `path`: of the partition's directory.  `fates`: of its batches.  `now_ms`: the time of the pass
    (epoch).  `old_tombstones_from_ms`: tombstones of magic 0 and 1 stay in segments that were
    written later.  `erases`: whether the keys of the map are erased, and all else stays; no time
    counts then.
    """

    def __init__(
        self,
        path: str,
        config: TopicConfig,
        offset_map: OffsetMap,
        fates: Fates,
        *,
        now_ms: int = 0,
        old_tombstones_from_ms: int = 0,
        erases: bool = False,
    ) -> None:
        self._path, self._config = path, config
        self._offset_map, self._fates = offset_map, fates
        self._old_tombstones_from_ms = old_tombstones_from_ms
        self._filler = RecordFiller()
        self._windows = BatchWindows(_WINDOW_BYTES)
        self._deflater = cache(lambda codec: Deflater(Codec(codec)))
        self._rules: Int64s = np.zeros(compaction.RULE_COLUMNS, np.int64)
        self._rules[compaction.LATEST_OFFSET] = offset_map.latest_offset
        self._rules[compaction.NOW_MS] = now_ms
        horizon = now_ms + config.delete_retention_ms
        self._rules[compaction.HORIZON_MS] = -1 if erases else min(horizon, LARGEST_LONG)
        self._rules[compaction.ERASES] = erases
        self._counts: Int64s
        self._forget_counts()
        self._kept: Int64s = np.empty(0, np.int64)
        self._out: Bytes = np.empty(0, np.uint8)

    def _forget_counts(self) -> None:
        self._counts = np.zeros(compaction.COUNT_COLUMNS, np.int64)
        self._counts[compaction.FIRST_REPLACED] = LARGEST_LONG
        self._counts[compaction.LAST_REPLACED] = -1

    @property
    def counts(self) -> Counts:
        return Counts(*self._counts.tolist())

    def count(self, segment: Segment, end_offset: int) -> Counts:
        """The counts of one segment, which is read as for a new one; nothing is written.

        `end_offset`: the base offset of its successor, or the log end.
        """
        self._forget_counts()
        for _ in self._kept_of(segment, end_offset, []):
            pass
        return self.counts

    def clean(self, group: Sequence[Segment], ends: Sequence[int]) -> "CleanedSegment":
        """Write what stays of some segments into one, whose files are synced.

        `ends`: the base offset of each one's successor.  Raises `CorruptLogError` or
        `UnsupportedFormatError` at a bad batch; `SyncFailedError` or `OSError` if the disk is full
        or fails.  In each case the new files are removed.
        """
        interval = self._config.index_interval_bytes
        target = CleanedSegment(self._path, group[0].base_offset, interval)
        try:
            aborted: list[AbortedTransaction] = []
            for segment, end_offset in zip(group, ends, strict=True):
                modified_ms = status_of(segment.path).modified_ns // 10**6
                keeps = modified_ms > self._old_tombstones_from_ms
                self._rules[compaction.KEEPS_OLD_TOMBSTONES] = keeps
                for data, lines in self.kept_of(segment, end_offset, aborted):
                    target.append(data, lines)
            target.finish(aborted, modified_ms)
        except BaseException:
            target.remove()
            raise
        return target

    def kept_of(
        self, segment: Segment, end_offset: int, aborted: list[AbortedTransaction]
    ) -> Iterator[tuple[Bytes, Int64s]]:
        """What stays of one segment: batches, and a line for each.

        The aborted transactions that still have batches are added to `aborted`.
        """
        for data, lines in self._kept_of(segment, end_offset, aborted):
            yield self._compressed(data, lines)

    def _kept_of(
        self, segment: Segment, end_offset: int, aborted: list[AbortedTransaction]
    ) -> Iterator[tuple[Bytes, Int64s]]:
        """Filter one segment; compressed batches are still to be compressed and sealed.

        The aborted transactions that still have batches are added to `aborted`.
        """
        scanner = BatchScanner(segment.path, segment.base_offset)
        with open_file(segment.path, follow=False) as file:
            for batches in self._windows.batches(file.read_into, scanner, 0, segment.size):
                if batches.next_offset > end_offset:  # no checksum covers a base offset
                    row = int(np.argmax(batches.headers[:, layout.LAST_OFFSET] >= end_offset))
                    reason = f"it reaches beyond {end_offset}, where the next segment begins"
                    raise batches.malformed(row, reason)
                fates, found = self._fates(batches)
                aborted += found
                for run, rows in inflated_runs(self._filler, batches):
                    yield from self._filtered(run, fates[rows])

    def _filtered(self, run: ScannedBatches, fates: Bytes) -> Iterator[tuple[Bytes, Int64s]]:
        """The batches that stay, and a line for each; the records of `run` are inflated."""
        n_bytes, largest, most_records = compaction.most_bytes(run.headers)
        if len(self._kept) < most_records:
            self._kept = np.empty(most_records, np.int64)
        room = max(largest, min(n_bytes, _OUTPUT_BYTES)) + COPY_SLACK
        if len(self._out) < room:
            self._out = np.empty(room, np.uint8)
        lines: Int64s = np.empty((len(run.headers), compaction.N_OUT_COLUMNS), np.int64)
        known, begin = self._offset_map, 0
        while begin < len(run.headers):
            code, begin, n_lines, end = compaction.filter_batches(
                run.buf,
                self._filler.inflated,
                run.headers,
                begin,
                fates,
                self._rules,
                known.table,
                known.secret,
                known.waiting,
                self._kept,
                self._counts,
                self._out,
                lines,
            )
            if code not in (status.OK, status.OUTPUT_FULL):
                raise run.malformed(begin, status.REASONS[code])
            if n_lines:
                yield self._out[:end], lines[:n_lines]

    def _compressed(self, data: Bytes, lines: Int64s) -> tuple[Bytes, Int64s]:
        """The batches of `_filtered`, compressed and sealed; each codec at Kafka's default level.

        `lines`: int64 array, shape (n_batches, `compaction.N_OUT_COLUMNS`).
        """
        todo = np.flatnonzero(lines[:, compaction.CODEC])
        if not len(todo):
            return data, lines
        pieces: list[bytes | memoryview] = []
        view, done = data.data, 0
        starts = lines[todo, layout.RECORDS_START].tolist()
        ends = lines[todo, layout.RECORDS_END].tolist()
        codecs = lines[todo, compaction.CODEC].tolist()
        for row, start, end, codec in zip(todo.tolist(), starts, ends, codecs, strict=True):
            payload = self._deflater(codec).compress(view[start:end])
            pieces += (view[done:start], payload)
            lines[row, layout.SIZE] = layout.HEADER_BYTES + len(payload)
            done = end
        pieces.append(view[done:])
        joined: Bytes = np.frombuffer(bytearray().join(pieces), np.uint8)
        after = np.cumsum(lines[:, layout.SIZE])
        lines[:, layout.POSITION] = after - lines[:, layout.SIZE]
        compaction.seal_batches(joined, lines[todo])
        return joined, lines


class CleanedSegment:
    """A new segment: its ``.cleaned`` files, which no reader takes for the log.

    `index_interval_bytes`: bytes of log between index entries (``index.interval.bytes``).
    """

    def __init__(self, partition_path: str, base_offset: int, index_interval_bytes: int) -> None:
        self._partition_path = partition_path
        self.base_offset = base_offset
        self._indexes = IndexBuilder.unlimited(base_offset, index_interval_bytes)
        self._ends: dict[FileKind, int] = {}
        self._files: dict[FileKind, int] = {}
        self._paths: list[str] = []
        try:
            for kind in LOG_AND_SPARSE_INDEXES:
                self._open(kind)
        except BaseException:
            self.remove()
            raise

    @property
    def size(self) -> int:
        """Bytes of its log so far."""
        return self._ends[FileKind.LOG]

    def append(self, data: Bytes, lines: Int64s) -> None:
        """Append batches that lie next to each other in `data`.

        `data`: uint8 array, shape (n_bytes,).  `lines`: int64 array, shape (n_batches, at least
        `layout.N_HEADER_COLUMNS`); sizes, last offsets and largest timestamps of the batches.
        """
        taken = self._indexes.take(lines)
        self._write(FileKind.LOG, data.data)
        self._write(FileKind.OFFSET_INDEX, taken.offset_entries)
        self._write(FileKind.TIME_INDEX, taken.time_entries)

    def finish(self, aborted: Iterable[AbortedTransaction], modified_ms: int) -> None:
        """Close the indexes, and sync all files; the caller syncs their names.

        `aborted`: transactions for its ``.txnindex``; the file is made only if there are some.
        `modified_ms`: time at which the segments that it replaces were last written (epoch): older
        formats, and records without timestamps, age by it.
        """
        self._write(FileKind.TIME_INDEX, self._indexes.last_time())
        if entries := encode_transactions(aborted):
            self._open(FileKind.TRANSACTION_INDEX)
            self._write(FileKind.TRANSACTION_INDEX, entries)
        modified_ns = modified_ms * 10**6
        for descriptor, path in zip(self._files.values(), self._paths, strict=True):
            with contextlib.suppress(PermissionError):  # a mount that forces another owner
                os.utime(descriptor, ns=(modified_ns, modified_ns))
            sync_file(descriptor, path)
        self.close()

    def close(self) -> None:
        """Close the files as they are."""
        while self._files:
            os.close(self._files.popitem()[1])

    def remove(self) -> None:
        """Remove the files: the compaction is given up."""
        self.close()
        for path in self._paths:
            remove_file(path, missing_ok=True)

    def _open(self, kind: FileKind) -> None:
        name = f"{segment_file_name(self.base_offset, kind)}.{FileState.CLEANED}"
        path = os.path.join(self._partition_path, name)
        self._files[kind] = create_file(path)
        self._paths.append(path)
        self._ends[kind] = 0

    def _write(self, kind: FileKind, data: bytes | memoryview) -> None:
        if len(data):
            write_all(self._files[kind], data, self._ends[kind])
            self._ends[kind] += len(data)
