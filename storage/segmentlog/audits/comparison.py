"""A log beside the offsets of a table: the findings for each partition.

The log is walked part by part, and of the table the same offsets are taken.  Both are ranges, so
that the offsets that agree cost nothing.
"""

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from segmentlog.arrow_dataset.bounds import DatasetBounds, PartitionBounds
from segmentlog.audits.audit import FINDINGS, AuditedPartition, FoundOffsets
from segmentlog.audits.log_offsets import Content, Contents, log_contents
from segmentlog.audits.record_sums import RowSums, rows_that_differ
from segmentlog.audits.spill import RangeList, SpillFile
from segmentlog.audits.stretches import Stretches, Tally, stretches_of
from segmentlog.audits.table_offsets import Cursor, TableOffsets
from segmentlog.errors import LogChangedError, SegmentLogError
from segmentlog.format.kernels.memory import Int64s
from segmentlog.log.checkpoint import known_topic_id
from segmentlog.model import ALL_OFFSETS, OffsetRange, ScanPolicy, TopicPartition
from segmentlog.reads.listed import FileChangedError, retry_if_relisted
from segmentlog.reads.log import Log, log_start_beyond
from segmentlog.reads.log_directory import LogDirectory
from segmentlog.reads.scan import scan_slice
from segmentlog.store.system_errors import storage_errors

_ATTEMPTS = 5  # retention rarely overtakes a walk more often than this
_NEAR = 1 << 16  # offsets between two missing ranges that are read to save a look-up
_SLICE_BYTES = 16 << 20


class _Outside(IntEnum):
    """What is known of offsets outside the audited range; continues `Content`."""

    BELOW_LOG_START = 5
    NOT_AUDITED = 6
    NONEXISTENT = 7


#: The finding for rows at an offset, by what the log has there.
_OF_ROWS = {
    Content.NOTHING: "removed",
    Content.ABORTED: "aborted",
    Content.MARKER: "markers",
    _Outside.BELOW_LOG_START: "below_log_start",
    _Outside.NOT_AUDITED: "not_audited",
    _Outside.NONEXISTENT: "nonexistent",
}


class ComparedPart(NamedTuple):
    """The result for a partition or a part of it, and the first and last range of each finding."""

    result: AuditedPartition
    edges: dict[str, tuple[OffsetRange, OffsetRange]]


class AuditComparison:
    """The partitions of a log beside the offsets of a table."""

    def __init__(
        self,
        bounds: DatasetBounds,
        offsets: TableOffsets,
        spill: SpillFile,
        most_ranges: int,
        compared: Sequence[str] = (),
        sums: RowSums | None = None,
    ) -> None:
        self._bounds, self._offsets = bounds, offsets
        self._compared, self._sums = compared, sums
        self._spill, self._most_ranges = spill, most_ranges
        #: All ranges of each finding.
        self.ranges: dict[tuple[TopicPartition, str], RangeList] = {}

    @cached_property
    def _later(self) -> LogDirectory:
        """The directory as it is after the table was read."""
        return self._bounds.opens(*self._bounds.paths)

    def of(
        self,
        partition: PartitionBounds,
        code: int,
        losses: Sequence[OffsetRange],
        within: OffsetRange = ALL_OFFSETS,
    ) -> "ComparedPart":
        """The result for a partition, or for a part of it.

        `code`: its number in the offsets of the table.  `losses`: offsets whose segments are known
        to be gone, in order.  `within`: which offsets are counted.
        """
        each, log = partition.topic_partition, partition.log
        for attempt in range(1, _ATTEMPTS + 1):
            lists = {name: RangeList(self._spill) for name in FINDINGS}
            counter = _Counter(self._most_ranges, lists)
            error = ""
            try:
                with storage_errors(log.path):
                    self._count(log, partition.offsets, losses, within, code, counter)
            except LogChangedError as change:
                error = str(change)
                is_same_topic = log.known_topic_id == known_topic_id(log.partition.path)
                if attempt < _ATTEMPTS and is_same_topic:
                    for found in lists.values():
                        found.clear()
                    self.__dict__.pop("_later", None)
                    log = partition.log = self._later.log(*each)
                    continue
            except SegmentLogError as failure:
                error = str(failure)
            break
        error = error or log_start_beyond(log)
        counter.finish()
        self.ranges |= {(each, name): lists[name] for name in FINDINGS}
        start, end = counter.audited
        result = AuditedPartition(
            *each,
            *counter.of_log,
            start,
            end,
            counter.n_records,
            self._offsets.n_rows[code],
            error=error,
        )
        findings: dict[str, Any] = {name: counter.found(name) for name in FINDINGS}
        edges = {name: counter.edges(name) for name in FINDINGS}
        return ComparedPart(result._replace(**findings), edges)

    def _count(
        self,
        log: Log,
        offsets: OffsetRange,
        losses: Sequence[OffsetRange],
        within: OffsetRange,
        code: int,
        counter: "_Counter",
    ) -> None:
        cursor = self._offsets.cursor(code)
        log_end = log.log_end_offset
        if cursor.end > log_end:
            # Records may have been appended since the bounds were fixed.
            later = self._later.log(log.topic_partition.topic, log.topic_partition.partition)
            log.check_topic(offsets)
            log_end = max(log_end, later.log_end_offset)
        policy = self._bounds.policy
        _walk(log, offsets, losses, within, policy, log_end, cursor.again, counter)
        if self._compared and self._sums is not None and counter.n_matched:
            self._compare_records(log, within, code, self._sums, counter)
        log.check_topic(offsets)

    def _compare_records(
        self, log: Log, within: OffsetRange, code: int, sums: RowSums, counter: "_Counter"
    ) -> None:
        """Compare the columns of each record with those of the rows at its offset."""
        start = max(counter.audited.start_offset, within.start_offset)
        end = min(counter.audited.end_offset, within.end_offset)
        names = ["offset", *self._compared]
        policy = self._bounds.policy._replace(text=())
        n_compared = 0
        for log_slice in log.slices(start, end, _SLICE_BYTES):
            if not len(sums.within(code, *log_slice.offsets)[0]):
                continue
            batches = scan_slice(log_slice, columns=names, policy=policy)
            for n, different in rows_that_differ(batches, self._compared, code, sums):
                n_compared += n
                if len(different):
                    counter.add_different(different)
        if n_compared != counter.n_matched:
            reason = (
                f"{counter.n_matched} of its records have rows, and {n_compared} of them could be "
                "compared: others have been removed since"
            )
            raise LogChangedError(log.path, start, end, reason)


class _Counter:
    """The findings of one partition."""

    def __init__(self, most_ranges: int, lists: dict[str, RangeList]) -> None:
        self._most_ranges, self._lists = most_ranges, lists
        self.begin(OffsetRange(-1, -1), OffsetRange(-1, -1))

    def begin(self, audited: OffsetRange, of_log: OffsetRange) -> None:
        """Forget what was found; count in these offsets."""
        self.audited, self.of_log = audited, of_log
        self.n_records = 0
        self.n_matched = 0  # records that have rows
        for each in self._lists.values():
            each.clear()
        self._tallies = {
            name: Tally(self._most_ranges, take.add) for name, take in self._lists.items()
        }

    def found(self, name: str) -> FoundOffsets:
        """A finding, once all offsets were counted."""
        tally = self._tallies[name]
        return FoundOffsets(tally.n_offsets, tally.n_rows, tally.n_ranges, tuple(tally.ranges))

    def edges(self, name: str) -> tuple[OffsetRange, OffsetRange]:
        """The first and the last range of a finding, if there is one."""
        tally = self._tallies[name]
        return tally.first, tally.last

    def finish(self) -> None:
        """All offsets were counted."""
        for each in self._tallies.values():
            each.finish()

    def add(self, begin: int, end: int, contents: Contents, rows: Stretches) -> None:
        """Count the offsets of ``[begin, end)``.

        `contents`: covers at least this range.  `rows`: of the table, within it.
        """
        low = int(contents.end.searchsorted(begin, "right"))
        high = int(contents.first.searchsorted(end))
        first, until = (each[low:high].clip(begin, end) for each in contents[1:3])
        kinds = contents.content[low:high]
        bounds = np.unique(np.concatenate([[begin, end], first, until, rows.first, rows.end]))
        lefts, rights = bounds[:-1], bounds[1:]
        content = _values_at(lefts, first, until, kinds)
        times = _values_at(lefts, *rows)
        is_row = times > 0
        is_record = content == Content.RECORD
        self.n_records += int((rights - lefts)[is_record].sum())
        self.n_matched += int((rights - lefts)[is_record & is_row].sum())
        self._add("missing", is_record & ~is_row, lefts, rights, times)
        is_nothing = content == Content.NOTHING
        self._add("possibly_missing", is_nothing & ~is_row, lefts, rights, times)
        self._add("lost", content == Content.LOST, lefts, rights, times)
        if not len(rows.first):
            return
        for kind, name in _OF_ROWS.items():
            self._add(name, is_row & (content == kind), lefts, rights, times)
        is_again = (times > 1) & (content != _Outside.NOT_AUDITED)
        self._add("duplicates", is_again, lefts, rights, times - 1)

    def add_different(self, offsets: Int64s) -> None:
        """Count rows, by their sorted offsets, that differ from their records; after `add`."""
        self._tallies["different"].add(stretches_of(offsets))

    def _add(self, name: str, which: NDArray[np.bool_], *columns: Int64s) -> None:
        if which.any():
            self._tallies[name].add(Stretches(*(each[which] for each in columns)))


def _values_at(at: Int64s, first: Int64s, end: Int64s, values: Int64s) -> Int64s:
    """The values of ranges in order at some offsets; 0 where no range is."""
    if not len(first):
        return np.zeros_like(at)
    i = first.searchsorted(at, "right") - 1
    return np.where((i >= 0) & (at < end[i]), values[i], 0)


@retry_if_relisted
def _walk(
    log: Log,
    offsets: OffsetRange,
    losses: Sequence[OffsetRange],
    within: OffsetRange,
    policy: ScanPolicy,
    log_end: int,
    take_rows: Callable[[], Cursor],
    counter: _Counter,
) -> None:
    """Count all offsets of a log and of a table; from the beginning, if files have changed."""
    log_start = log.log_start_offset
    start = max(offsets.start_offset, log_start)
    audited = OffsetRange(start, max(offsets.end_offset, start))
    log_end = max(log_end, audited.end_offset)
    counter.begin(audited, OffsetRange(log_start, log_end))
    cursor, reached = take_rows(), within.start_offset
    try:
        every = _all_contents(log, audited, within, log_start, log_end, policy)
        for contents in _with_losses(losses, audited, within, every):
            while reached < contents.until:
                end = cursor.reach(contents.until)
                counter.add(reached, end, contents, cursor.take(reached, end))
                reached = end
        if log._listed.has_changed():
            raise FileChangedError("its files were replaced or deleted")
    except FileChangedError as change:
        raise FileNotFoundError(errno.ENOENT, str(change), log.path) from change


def _all_contents(
    log: Log,
    audited: OffsetRange,
    within: OffsetRange,
    log_start: int,
    log_end: int,
    policy: ScanPolicy,
) -> Iterator[Contents]:
    """What is known of all offsets of `within`, in their order."""
    first = within.start_offset
    for end, content in (
        (0, _Outside.NONEXISTENT),
        (log_start, _Outside.BELOW_LOG_START),
        (audited.start_offset, _Outside.NOT_AUDITED),
        (audited.end_offset, None),
        (log_end, _Outside.NOT_AUDITED),
        (within.end_offset, _Outside.NONEXISTENT),
    ):
        until = min(end, within.end_offset)
        if first >= until:
            continue
        if content is None:
            yield from log_contents(log, OffsetRange(first, until), policy)
        else:
            columns = (np.array([each], np.int64) for each in (first, until, int(content)))
            yield Contents(until, *columns)
        first = until


def _with_losses(
    losses: Sequence[OffsetRange],
    audited: OffsetRange,
    within: OffsetRange,
    every: Iterable[Contents],
) -> Iterator[Contents]:
    """The same contents, with the offsets of segments that are known to be gone."""
    # Those before the first segment have moved the log start up, and were asked for.
    lost = [
        each
        for each in losses
        if audited.start_offset <= each.end_offset and each.start_offset < audited.end_offset
    ]
    begin = within.start_offset
    for contents in every:
        until = contents.until
        here = [OffsetRange(max(first, begin), min(end, until)) for first, end in lost]
        here = [each for each in here if each.start_offset < each.end_offset]
        begin = until
        yield _overlaid(contents, here) if here else contents


def _overlaid(contents: Contents, lost: Sequence[OffsetRange]) -> Contents:
    """Contents of which some ranges, in order, are lost, whatever they were."""
    cuts = np.array(lost, np.int64).ravel()
    bounds = np.unique(np.concatenate([contents.first, contents.end, cuts]))
    lefts, rights = bounds[:-1], bounds[1:]
    kinds = _values_at(lefts, *contents[1:])
    is_lost = cuts.searchsorted(lefts, "right") % 2 == 1
    is_known = is_lost | (_values_at(lefts, *contents[1:3], np.ones_like(contents.first)) > 0)
    kinds = np.where(is_lost, int(Content.LOST), kinds)
    return Contents(contents.until, lefts[is_known], rights[is_known], kinds[is_known])


def scan_ranges(
    log: Log, ranges: Int64s, columns: Sequence[str], policy: ScanPolicy
) -> Iterator[pa.RecordBatch]:
    """The records of a log at the offsets of ranges in order."""
    first, end = np.ascontiguousarray(ranges.T)
    cuts = np.flatnonzero(first[1:] - end[:-1] > _NEAR) + 1
    for begin, until in zip([0, *cuts.tolist()], [*cuts.tolist(), len(first)], strict=True):
        for log_slice in log.slices(int(first[begin]), int(end[until - 1]), _SLICE_BYTES):
            for batch in scan_slice(log_slice, columns=columns, policy=policy):
                offsets = batch.column(columns.index("offset")).to_numpy()
                at = first.searchsorted(offsets, "right") - 1
                is_missing = (at >= 0) & (offsets < end[at])
                if is_missing.all():
                    yield batch
                elif is_missing.any():
                    yield batch.filter(pa.array(is_missing))
