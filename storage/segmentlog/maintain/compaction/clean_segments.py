"""Write what compaction keeps of the segments of a log into new segments, beside the old ones.

An erasure does the same with other rules, after it has gone through the segments without writing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from segmentlog.format.kernels import compaction, layout, status
from segmentlog.format.kernels.memory import COPY_SLACK, Bytes, Int64s
from segmentlog.format.records.decoder import BatchScanner, RecordFiller
from segmentlog.format.records.scanned_batches import ScannedBatches
from segmentlog.format.topic_config import TopicConfig
from segmentlog.log.segment import Segment
from segmentlog.log.transaction_index import AbortedTransaction
from segmentlog.log.windows import BatchWindows
from segmentlog.maintain.compaction.batch_fates import Fates
from segmentlog.maintain.compaction.cleaned_segment import CleanedSegment
from segmentlog.maintain.compaction.compressed import Recompressor, inflated_runs
from segmentlog.maintain.compaction.key_map import OffsetMap
from segmentlog.store.readable import open_file, status_of

_WINDOW_BYTES = 4 << 20
_OUTPUT_BYTES = 8 << 20
_LARGEST = 2**63 - 1


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


@dataclass(frozen=True, slots=True)
class Cleaning:
    """The rules and the state of one pass."""

    path: str  # of the partition's directory
    config: TopicConfig  # of the topic
    offset_map: OffsetMap  # the last offset of each key
    fates: Fates  # of its batches
    now_ms: int = 0  # the time of the pass (epoch)
    #: tombstones of magic 0 and 1 stay in segments that were written later
    old_tombstones_from_ms: int = 0
    #: whether the keys of the map are erased, and all else stays; no time counts then
    erases: bool = False


class SegmentCleaner:
    """Cleans the segments of one log, from the first on.

    `cleaning`: the rules and the state of the pass.
    """

    def __init__(self, cleaning: Cleaning) -> None:
        self._cleaning = cleaning
        self._filler = RecordFiller()
        self._windows = BatchWindows(_WINDOW_BYTES)
        self._recompress = Recompressor()
        self._rules: Int64s = np.zeros(compaction.RULE_COLUMNS, np.int64)
        self._rules[compaction.LATEST_OFFSET] = cleaning.offset_map.latest_offset
        self._rules[compaction.NOW_MS] = cleaning.now_ms
        horizon = cleaning.now_ms + cleaning.config.delete_retention_ms
        self._rules[compaction.HORIZON_MS] = -1 if cleaning.erases else min(horizon, _LARGEST)
        self._rules[compaction.ERASES] = cleaning.erases
        self._counts: Int64s
        self._forget_counts()
        self._kept: Int64s = np.empty(0, np.int64)
        self._out: Bytes = np.empty(0, np.uint8)

    def _forget_counts(self) -> None:
        self._counts = np.zeros(compaction.COUNT_COLUMNS, np.int64)
        self._counts[compaction.FIRST_REPLACED] = _LARGEST
        self._counts[compaction.LAST_REPLACED] = -1

    @property
    def counts(self) -> Counts:
        """The counts so far."""
        return Counts(*self._counts.tolist())

    def count(self, segment: Segment, end_offset: int) -> Counts:
        """The counts of one segment, which is read as for a new one; nothing is written.

        `end_offset`: the base offset of its successor, or the log end.  Raises `CorruptLogError`
        or `UnsupportedFormatError` at a bad batch.
        """
        self._forget_counts()
        for _ in self._kept_of(segment, end_offset, []):
            pass
        return self.counts

    def clean(self, group: Sequence[Segment], ends: Sequence[int]) -> CleanedSegment:
        """Write what stays of some segments into one, whose files are synced.

        `ends`: the base offset of each one's successor.  Raises `CorruptLogError` or
        `UnsupportedFormatError` at a bad batch; `SyncFailedError` or `OSError` if the disk is full
        or fails.  In each case the new files are removed.
        """
        cleaning = self._cleaning
        interval = cleaning.config.index_interval_bytes
        target = CleanedSegment(cleaning.path, group[0].base_offset, interval)
        try:
            aborted: list[AbortedTransaction] = []
            for segment, end_offset in zip(group, ends, strict=True):
                modified_ms = status_of(segment.path).modified_ns // 10**6
                keeps = modified_ms > cleaning.old_tombstones_from_ms
                self._rules[compaction.KEEPS_OLD_TOMBSTONES] = keeps
                for data, lines in self._kept_of(segment, end_offset, aborted):
                    target.append(*self._recompress(data, lines))
            target.finish(aborted, modified_ms)
        except BaseException:
            target.remove()
            raise
        return target

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
                fates, found = self._cleaning.fates.judge(batches)
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
        known, begin = self._cleaning.offset_map, 0
        while begin < len(run.headers):
            code, begin, n_lines, end = compaction.filter_batches(
                run.buf, self._filler.inflated, run.headers, begin, fates, self._rules,
                known.table, known.secret, known.waiting, self._kept, self._counts, self._out,
                lines,
            )  # fmt: skip
            if code not in (status.OK, status.OUTPUT_FULL):
                raise run.malformed(begin, status.REASONS[code])
            if n_lines:
                yield self._out[:end], lines[:n_lines]
