"""An audit in several processes: one plans, others collect rows and compare, the first one merges.

The offsets of a partition are cut into parts, so that a large partition is compared by several
tasks.  A task that has rows sends their offsets as stretches to the parts; a task that has all
stretches of a part compares it with the log.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from segmentlog.arrow_dataset.bounds import DatasetBounds, PartitionBounds, reopened
from segmentlog.audits.audit import FINDINGS, RANGES, AuditedPartition, AuditPlan, FoundOffsets
from segmentlog.audits.comparison import AuditComparison, ComparedPart, scan_ranges
from segmentlog.audits.record_sums import RowSums, SumsByCode
from segmentlog.audits.spill import SpillFile
from segmentlog.audits.stretches import Stretches
from segmentlog.audits.table_offsets import OffsetCollector, TableOffsets
from segmentlog.audits.table_rows import ColumnNames, Columns, RowCollector, RowCounts
from segmentlog.errors import SegmentLogError
from segmentlog.format.kernels.memory import Int64s
from segmentlog.format.records.columns import record_schema
from segmentlog.model import ALL_OFFSETS, BYTES_OR_TEXT, OffsetRange, ScanPolicy, TopicPartition
from segmentlog.reads.log_directory import LogDirectory

#: A part has about so many bytes of log, or fewer, and at most so many offsets.
_PART_BYTES = 256 << 20
_PART_OFFSETS = 32 << 20
_MOST_PARTS = 2_000  # if there are fewer partitions
_MOST_SUMS = 1 << 17  # rows whose checksums are sent together
_NO_PART = -1

#: Stretches on their way to the task that compares their part.  A row without an `end_offset` is
#: a row of the table, with its checksum in `n_rows`.  A row without a part has `counts`, pickled:
#: `RowCounts`, or the error of the task.
STRETCHES = pa.schema(
    [
        pa.field("part", pa.int32()),
        pa.field("first_offset", pa.int64()),
        pa.field("end_offset", pa.int64()),
        pa.field("n_rows", pa.int64()),
        pa.field("counts", pa.binary()),
    ]
)

#: Ranges of findings.  A row with an `outcome` has no range: `PartOutcome`, or an error, pickled.
FOUND = pa.schema(
    [
        pa.field("part", pa.int32()),
        pa.field("finding", pa.string()),
        pa.field("start_offset", pa.int64()),
        pa.field("end_offset", pa.int64()),
        pa.field("outcome", pa.binary()),
    ]
)


class _Partition(NamedTuple):
    """A partition of the log, with what a process needs to open it again."""

    topic_partition: TopicPartition
    offsets: OffsetRange
    topic_id: str
    losses: tuple[OffsetRange, ...] = ()  #: offsets whose segments are known to be gone
    error: str = ""  #: why it has no offsets


class AuditPart(NamedTuple):
    """Some offsets of a partition; `code`: the place of the partition in the plan."""

    code: int
    within: OffsetRange


class PartOutcome(NamedTuple):
    """What a task has found in a part; or what tasks have met in the table, without a part."""

    part: int
    found: ComparedPart | None
    counts: RowCounts


class AuditWork(NamedTuple):
    """All that the tasks of an audit need; it is picklable."""

    paths: tuple[str, ...]
    opens: Callable[..., LogDirectory]
    policy: ScanPolicy
    partitions: tuple[_Partition, ...]
    parts: tuple[AuditPart, ...]
    names: ColumnNames
    columns: Columns  # of the rows that `collect` gets
    others: frozenset[TopicPartition]
    topics: frozenset[str]
    most_ranges: int
    spill_directory: str | None

    @classmethod
    def of(
        cls, plan: AuditPlan, names: ColumnNames, schema: pa.Schema, spill_directory: str | None
    ) -> "AuditWork":
        """The parts of a plan.

        `schema`: of the table.  Raises `ColumnError` if it lacks one of the columns.
        """
        columns = names.of(schema, plan.n_topics)
        bounds = plan.bounds
        partitions = tuple(
            _Partition(each.topic_partition, each.offsets, each.log.known_topic_id, losses)
            for each, losses in zip(bounds.partitions, plan.losses, strict=True)
        )
        partitions += tuple(
            _Partition(each, OffsetRange(0, 0), "", (), error)
            for each, error in plan.unread.items()
        )
        n_offsets = sum(
            each.offsets.end_offset - each.offsets.start_offset for each in bounds.partitions
        )
        least_offsets = max(_PART_OFFSETS, n_offsets // _MOST_PARTS)
        cuts = [_cuts(each, least_offsets) for each in bounds.partitions]
        cuts += [[] for _ in plan.unread]
        every = 1 + sum(map(len, cuts)) // _MOST_PARTS
        parts = []
        for code, found in enumerate(cuts):
            edges = [ALL_OFFSETS.start_offset, *found[::every], ALL_OFFSETS.end_offset]
            parts += [AuditPart(code, OffsetRange(*within)) for within in pairwise(edges)]
        return cls(
            bounds.paths,
            bounds.opens,
            bounds.policy,
            partitions,
            tuple(parts),
            names,
            columns,
            frozenset(plan.others),
            plan.topics,
            plan.most_ranges,
            spill_directory,
        )

    def collect(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of some batches of the table, as `STRETCHES`; errors are rows, too."""
        runs: list[dict[int, Stretches]] = []
        collector = OffsetCollector(SpillFile(self.spill_directory), runs.append)
        codes = {each.topic_partition: code for code, each in enumerate(self.partitions)}
        sums = SumsByCode() if self.columns.compared else None
        rows = RowCollector(codes, self.others, self.topics, collector, sums)
        begins = self._first_parts()
        try:
            for batch in batches:
                rows.add(batch, self.columns)
                while runs:
                    yield from self._cut(runs.pop(), begins)
                if sums is not None and sums.n_rows >= _MOST_SUMS:
                    yield from self._by_part(sums, begins)
            if sums is not None:
                yield from self._by_part(sums, begins)
            collector.finish()
            for code, numbers in collector.bitmaps.by_code().items():
                for number in numbers:
                    runs.append({code: collector.bitmaps.stretches(code, number)})
                    yield from self._cut(runs.pop(), begins)
            while runs:
                yield from self._cut(runs.pop(), begins)
        except SegmentLogError as error:
            yield _row(STRETCHES, _NO_PART, error)
        else:
            yield _row(STRETCHES, _NO_PART, rows.counts)

    def _first_parts(self) -> list[int]:
        """The first part of each partition, and the number of parts."""
        codes = np.array([each.code for each in self.parts], np.int64)
        found: list[int] = codes.searchsorted(np.arange(len(self.partitions) + 1)).tolist()
        return found

    def _cut(self, run: dict[int, Stretches], begins: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """The stretches of a run by parts."""
        for code, stretches in run.items():
            for part in range(begins[code], begins[code + 1]):
                begin, end = self.parts[part].within
                low = int(stretches.end.searchsorted(begin, "right"))
                high = int(stretches.first.searchsorted(end))
                if low < high:
                    inside = Stretches(*(each[low:high] for each in stretches))
                    columns = [pa.repeat(pa.scalar(part, pa.int32()), high - low)]
                    columns += [pa.array(each) for each in inside.clipped(begin, end)]
                    columns.append(pa.nulls(high - low, pa.binary()))
                    yield pa.RecordBatch.from_arrays(columns, schema=STRETCHES)

    def _by_part(self, sums: SumsByCode, begins: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """The checksums of rows by parts."""
        for code, offsets, of_rows in sums.take():
            own = self.parts[begins[code] : begins[code + 1]]
            starts = np.array([each.within.start_offset for each in own], np.int64)
            parts = np.maximum(starts.searchsorted(offsets, "right") - 1, 0) + begins[code]
            n = len(offsets)
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array(parts.astype(np.int32)),
                    pa.array(offsets),
                    pa.nulls(n, pa.int64()),
                    pa.array(of_rows),
                    pa.nulls(n, pa.binary()),
                ],
                schema=STRETCHES,
            )

    def compare(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The findings in some parts, as `FOUND`; errors are rows, too.

        `batches`: all `STRETCHES` of these parts, in any order, and for each part a row without
        offsets.
        """
        try:
            yield from self._compare(batches)
        except SegmentLogError as error:
            yield _row(FOUND, _NO_PART, error)

    def _compare(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        spill = SpillFile(self.spill_directory)
        offsets, counts = TableOffsets(spill), RowCounts()
        sums = RowSums(spill) if self.columns.compared else None
        compared = [name for name, _ in self.columns.compared]
        wanted = set[int]()
        for batch in batches:
            for text in batch.column("counts").drop_null().to_pylist():
                counts.add(_unpickled(text))
            wanted.update(_add(batch, offsets, sums))
        offsets.finish()
        if sums is not None:
            sums.finish()
        yield _row(FOUND, _NO_PART, PartOutcome(_NO_PART, None, counts))
        if not wanted:
            return
        directory = self.opens(*self.paths)
        bounds = DatasetBounds(self.paths, (), self.policy, self.opens)
        for part in sorted(wanted):
            comparison = AuditComparison(bounds, offsets, spill, self.most_ranges, compared, sums)
            code, within = self.parts[part]
            known = self.partitions[code]
            error = known.error
            try:
                if not error:
                    partition = reopened(directory, *known[:3])
                    found = comparison.of(partition, part, known.losses, within)
            except SegmentLogError as failure:
                error = str(failure)
            if error:
                found = self._unread(code, offsets.n_rows[part], error)
            for (_, name), ranges in comparison.ranges.items():
                for each in ranges:
                    columns = [
                        pa.repeat(pa.scalar(part, pa.int32()), len(each)),
                        pa.repeat(pa.scalar(name, pa.string()), len(each)),
                        *(pa.array(np.ascontiguousarray(end)) for end in each.T),
                        pa.nulls(len(each), pa.binary()),
                    ]
                    yield pa.RecordBatch.from_arrays(columns, schema=FOUND)
            yield _row(FOUND, part, PartOutcome(part, found, RowCounts()))

    def _unread(self, code: int, n_rows: int, error: str) -> ComparedPart:
        """The result of a partition that cannot be opened."""
        each, offsets, *_ = self.partitions[code]
        nothing = OffsetRange(0, 0)
        result = AuditedPartition(*each, *offsets, *offsets, 0, n_rows, error=error)
        return ComparedPart(result, dict.fromkeys(FINDINGS, (nothing, nothing)))

    def columns_of_records(
        self, columns: Sequence[str] | None, *, include_headers: bool
    ) -> Sequence[str]:
        """The names of the columns of missing records.

        Raises `OptionError` if one does not exist.
        """
        names: list[str] = record_schema(columns, include_headers=include_headers).names
        return names

    def missing(
        self, batches: Iterable[pa.RecordBatch], columns: Sequence[str], *, strings: bool
    ) -> Iterator[pa.RecordBatch]:
        """The records of the log in the missing ranges of `FOUND`."""
        policy = self.policy._replace(text=BYTES_OR_TEXT if strings else ())
        names = [*dict.fromkeys([*columns, "offset"])]
        directory = None
        for batch in batches:
            directory = directory or self.opens(*self.paths)
            parts = batch.column("part").to_numpy()
            ends = (batch.column(name) for name in ("start_offset", "end_offset"))
            ranges = np.stack([each.to_numpy() for each in ends], axis=1)
            for begin, end in _equal(parts):
                code = self.parts[int(parts[begin])].code
                log = reopened(directory, *self.partitions[code][:3]).log
                for found in scan_ranges(log, ranges[begin:end], names, policy):
                    yield found.select(columns)


def _cuts(partition: PartitionBounds, n_offsets: int) -> list[int]:
    """The offsets at which the parts of a partition begin, except the first one."""
    start, end = partition.offsets
    cuts = {*range(start + n_offsets, end, n_offsets)}
    try:
        slices = partition.log.slices(start, end, _PART_BYTES)
    except SegmentLogError:
        return []  # the task that compares it says what is wrong
    cuts.update(each.offsets.start_offset for each in slices)
    return sorted(each for each in cuts if start < each < end)


def _equal(numbers: Int64s) -> Iterator[tuple[int, int]]:
    """The bounds of neighbours that are equal."""
    cuts = (np.flatnonzero(np.diff(numbers)) + 1).tolist()
    return zip([0, *cuts], [*cuts, len(numbers)], strict=True) if len(numbers) else iter(())


def _add(batch: pa.RecordBatch, to: TableOffsets, sums: RowSums | None) -> set[int]:
    """Add the stretches of a batch to those of their parts; return the parts."""
    if sums is not None:
        is_sum = pc.and_(batch["first_offset"].is_valid(), batch["end_offset"].is_null())
        of_rows = batch.filter(is_sum)
        sums.add(
            of_rows["part"].to_numpy().astype(np.int64),
            of_rows["first_offset"].to_numpy(),
            of_rows["n_rows"].to_numpy(),
        )
        batch = batch.filter(pc.invert(is_sum))
    parts = batch.column("part").to_numpy()
    order = parts.argsort(kind="stable")
    parts = parts[order]
    columns = [batch.column(each).fill_null(0).to_numpy()[order] for each in range(1, 4)]
    found = set[int]()
    for begin, end in _equal(parts):
        part = int(parts[begin])
        if part == _NO_PART:
            continue
        found.add(part)
        stretches = Stretches(*(each[begin:end] for each in columns))
        has_rows = stretches.times > 0
        if has_rows.any():
            to.add_stretches(part, Stretches(*(each[has_rows] for each in stretches)))
    return found


def _row(schema: pa.Schema, part: int, value: object) -> pa.RecordBatch:
    """A row that has only a pickled value in its last column."""
    columns = [pa.array([part], pa.int32())]
    columns += [pa.nulls(1, field.type) for field in [*schema][1:-1]]
    columns.append(pa.array([pickle.dumps(value)], pa.binary()))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _unpickled(data: bytes) -> RowCounts:
    found: RowCounts | SegmentLogError = pickle.loads(data)
    if isinstance(found, SegmentLogError):
        raise found
    return found


class MergedAudit(NamedTuple):
    """The results of all partitions, and the ranges that cross the border of two parts.

    `grown`: by part and finding, the whole of a range that continues in later parts.  `cut_off`:
    parts and findings whose first range begins in an earlier part.
    """

    partitions: tuple[AuditedPartition, ...]
    counts: RowCounts
    grown: dict[tuple[int, str], OffsetRange]
    cut_off: set[tuple[int, str]]

    def whole_ranges(
        self, work: AuditWork, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Ranges of `FOUND` as `Audit.ranges` has them."""
        for batch in batches:
            parts, names = batch.column("part").to_numpy(), batch.column("finding")
            starts = batch.column("start_offset").to_numpy()
            ends = batch.column("end_offset").to_numpy().copy()
            # A part has many ranges of a finding, one after the other.
            by_name = names.dictionary_encode().indices.to_numpy()
            for begin, end in _equal(parts * len(FINDINGS) + by_name):
                part, name = int(parts[begin]), names[begin].as_py()
                code, within = work.parts[part]
                whole = self.grown.get((part, name))
                if whole is not None:
                    at = begin + int(starts[begin:end].searchsorted(whole.start_offset))
                    if at < end and starts[at] == whole.start_offset:
                        ends[at] = whole.end_offset
                is_cut = (part, name) in self.cut_off and starts[begin] == within.start_offset
                inside = slice(begin + is_cut, end)
                constants = (*work.partitions[code].topic_partition, name)
                columns = [
                    pa.repeat(pa.scalar(value, field.type), end - inside.start)
                    for value, field in zip(constants, RANGES, strict=False)
                ]
                columns += [pa.array(each[inside]) for each in (starts, ends)]
                yield pa.RecordBatch.from_arrays(columns, schema=RANGES)


def merge(work: AuditWork, outcomes: Iterable[bytes]) -> MergedAudit:
    """The results of all partitions, from the outcomes of all tasks, in any order.

    Raises the error of a task, or `OptionError` if no row has a topic of the log.
    """
    counts = RowCounts()
    by_part = dict[int, ComparedPart]()
    for data in outcomes:
        outcome: PartOutcome | SegmentLogError = pickle.loads(data)
        if isinstance(outcome, SegmentLogError):
            raise outcome
        counts.add(outcome.counts)
        if outcome.found is not None:
            by_part[outcome.part] = outcome.found
    counts.check_topics(work.names)
    merged = MergedAudit((), counts, {}, set())
    partitions = []
    for _, parts in groupby(range(len(work.parts)), lambda part: work.parts[part].code):
        found = {part: by_part[part] for part in parts}
        results = [each.result for each in found.values()]
        findings: dict[str, Any] = {
            name: _joined(found, name, work.most_ranges, merged) for name in FINDINGS
        }
        partitions.append(
            results[0]._replace(
                # Retention may have moved the start while the tasks ran.
                log_start_offset=max(each.log_start_offset for each in results),
                log_end_offset=max(each.log_end_offset for each in results),
                start_offset=max(each.start_offset for each in results),
                end_offset=max(each.end_offset for each in results),
                n_records=sum(each.n_records for each in results),
                n_rows=sum(each.n_rows for each in results),
                error=next((each.error for each in results if each.error), ""),
                **findings,
            )
        )
    partitions.sort(key=lambda each: each[:2])
    return merged._replace(partitions=tuple(partitions))


def _joined(
    found: dict[int, ComparedPart], name: str, most_ranges: int, merged: MergedAudit
) -> FoundOffsets:
    """A finding in all parts of a partition; ranges at their borders are noted in `merged`."""
    n_offsets = n_rows = n_ranges = 0
    ranges: list[OffsetRange] = []
    part_of_last, last = _NO_PART, OffsetRange(0, 0)
    for part, compared in found.items():
        each: FoundOffsets = getattr(compared.result, name)
        if not each.n_ranges:
            continue
        first, last_of_part = compared.edges[name]
        n_offsets, n_rows = n_offsets + each.n_offsets, n_rows + each.n_rows
        is_joined = part_of_last != _NO_PART and first.start_offset == last.end_offset
        if is_joined:
            merged.cut_off.add((part, name))
            last = OffsetRange(last.start_offset, first.end_offset)
            merged.grown[part_of_last, name] = last
            if ranges and len(ranges) == n_ranges:
                ranges[-1] = last
        if not is_joined or each.n_ranges > 1:
            part_of_last, last = part, last_of_part
        ranges += each.ranges[is_joined:][: most_ranges - len(ranges)]
        n_ranges += each.n_ranges - is_joined
    return FoundOffsets(n_offsets, n_rows, n_ranges, tuple(ranges))
