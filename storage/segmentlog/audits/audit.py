"""``segmentlog.audit``: prove a table against the log that it was made from.

The kernels and ``pyarrow.dataset`` are loaded by the first call.
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias, Unpack, cast

import numpy as np
import pyarrow as pa

from segmentlog.arguments import (
    class_of_one_dialect,
    partition_numbers,
    takes,
    texts,
    whole_number,
)
from segmentlog.arrow_dataset.open_dataset import dataset_bounds
from segmentlog.cluster.known_losses import known_losses
from segmentlog.declared import Declared, those_of
from segmentlog.errors import OptionError, SegmentLogError
from segmentlog.model import BYTES_OR_TEXT, IsolationLevel, OffsetRange, TopicPartition
from segmentlog.read_options import AuditOptions, DatasetOptions
from segmentlog.reads.log import Log
from segmentlog.reads.log_directory import LogDirectory
from segmentlog.store.system_errors import storage_errors

if TYPE_CHECKING:
    from segmentlog.arrow_dataset.bounds import DatasetBounds, PartitionBounds
    from segmentlog.audits.spill import RangeList
    from segmentlog.audits.table_rows import RowCounts

#: A path, or an object with the rows of a table.
Table: TypeAlias = Any


class FoundOffsets(NamedTuple):
    """Offsets of one partition with the same finding.

    Attributes
    ----------
    n_offsets : number of offsets.
    n_rows : number of rows of the table that have them; of duplicates, those too many.
    n_ranges : number of ranges of consecutive offsets.
    ranges : the first of these ranges; `Audit.ranges` has all.
    """

    n_offsets: int = 0
    n_rows: int = 0
    n_ranges: int = 0
    ranges: tuple[OffsetRange, ...] = ()


class AuditedPartition(NamedTuple):
    """A partition of the log, and what the table has of it.

    Attributes
    ----------
    topic, partition : its name and number.
    log_start_offset, log_end_offset : of the log, at the end of the audit.
    start_offset, end_offset : half-open range of the offsets that were audited.
    n_records : records of the log in this range, without aborted ones.
    n_rows : rows of the table with this partition, at any offset.
    missing : records that the log has and the table lacks, for certain.
    different : offsets with a row of other contents than the record there: in one of the columns
        that were compared, if there are any.
    duplicates : offsets that several rows have.
    aborted : rows of records whose transaction was aborted.
    markers : rows at the end of a transaction, where there is no record.
    nonexistent : rows at offsets that never existed: negative, or beyond the end of the log.
    lost : offsets that had records which the log has lost, with or without a row: a segment is
        gone, or a batch is damaged and left out.  What the table should have there is not known.
    removed : rows whose records the log no longer has: compaction has removed these, or files were
        lost without a trace.  Such a row proves nothing.
    possibly_missing : offsets that neither the log nor the table has.  If compaction has removed a
        record there, the table may have lacked it, or was made later.
    below_log_start : rows at offsets that retention has removed; nothing is known about them.
    not_audited : rows at other offsets outside the range.  They may be newer than the audit, or
        belong to transactions that are still open.
    error : why the log cannot be read, or empty.  Then the numbers are those before the error.
    """

    topic: str
    partition: int
    log_start_offset: int
    log_end_offset: int
    start_offset: int
    end_offset: int
    n_records: int
    n_rows: int
    missing: FoundOffsets = FoundOffsets()
    different: FoundOffsets = FoundOffsets()
    duplicates: FoundOffsets = FoundOffsets()
    aborted: FoundOffsets = FoundOffsets()
    markers: FoundOffsets = FoundOffsets()
    nonexistent: FoundOffsets = FoundOffsets()
    lost: FoundOffsets = FoundOffsets()
    removed: FoundOffsets = FoundOffsets()
    possibly_missing: FoundOffsets = FoundOffsets()
    below_log_start: FoundOffsets = FoundOffsets()
    not_audited: FoundOffsets = FoundOffsets()
    error: str = ""

    @property
    def is_complete(self) -> bool:
        """Whether the table has each record once, and nothing that is no record.

        Only the columns that were compared tell whether a row is that of the record, and not of an
        earlier topic of the same name.
        """
        faults = [getattr(self, name) for name in FAULTS]
        return not self.error and not any(each.n_offsets for each in faults)


#: Findings that make a table incomplete, or wrong.
FAULTS = ("missing", "different", "duplicates", "aborted", "markers", "nonexistent", "lost")
#: All findings, in their order in results.
FINDINGS = (*FAULTS, "removed", "possibly_missing", "below_log_start", "not_audited")

#: The columns of `Audit.ranges`.
RANGES = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("finding", pa.string(), nullable=False),
        pa.field("start_offset", pa.int64(), nullable=False),
        pa.field("end_offset", pa.int64(), nullable=False),
    ]
)


@class_of_one_dialect()
class AuditResult:
    """What an audit has found, apart from the ranges of offsets.

    Attributes
    ----------
    partitions : the partitions of the log, sorted by topic and number.
    n_rows : rows of the table.
    n_rows_of_other_topics : rows of topics that were not audited.
    n_rows_without_offset : rows with a null for their topic, partition or offset.
    unknown_partitions : rows of partitions that the log does not have, by partition; the first
        1,000 of these partitions.
    topics_not_audited : topics of which no offset was audited, although log or table have some.
    compared : the columns of records that were compared with the table: ``partition`` and
        ``offset``, and those of `columns` that the table has.
    """

    def __init__(
        self,
        partitions: Sequence[AuditedPartition],
        counts: "RowCounts",
        compared: Sequence[str] = (),
    ) -> None:
        self.compared = ("partition", "offset", *compared)
        self.partitions = tuple(partitions)
        self.n_rows = counts.n_rows
        self.n_rows_of_other_topics = counts.n_of_other_topics
        self.n_rows_without_offset = counts.n_without_offset
        self.unknown_partitions = dict(sorted(counts.of_unknown_partitions.items()))
        self.topics_not_audited = _not_audited(partitions)

    def __repr__(self) -> str:
        found = {name: self.count(name) for name in FAULTS}
        faults = ", ".join(f"{n} {name}" for name, n in found.items() if n)
        nothing = "nothing was audited" if self.topics_not_audited else "not complete"
        said = "complete" if self.is_complete else faults or nothing
        return f"{type(self).__name__}({self.n_rows} rows: {said})"

    @property
    def is_complete(self) -> bool:
        """Whether the table has each record of the log once, and no row that is no record.

        It is false if no offset of a topic was audited, although log or table have some.
        """
        is_known = not self.unknown_partitions and not self.n_rows_without_offset
        is_known = is_known and not self.topics_not_audited
        return is_known and all(each.is_complete for each in self.partitions)

    def count(self, finding: str) -> int:
        """Offsets with a finding, such as ``missing``, in all partitions.

        Raises
        ------
        OptionError
            If there is no such finding.
        """
        (name,) = check_findings(finding)
        found: list[FoundOffsets] = [getattr(each, name) for each in self.partitions]
        return sum(each.n_offsets for each in found)


def _not_audited(partitions: Iterable[AuditedPartition]) -> tuple[str, ...]:
    """The topics of which nothing was compared, and something might have been."""
    audited = {each.topic for each in partitions if each.start_offset < each.end_offset}
    there = {
        each.topic
        for each in partitions
        if each.log_start_offset < each.log_end_offset or each.n_rows
    }
    return tuple(sorted(there - audited))


@class_of_one_dialect()
class Audit(AuditResult):
    """The result of `segmentlog.audit`.

    Attributes
    ----------
    partitions, n_rows, n_rows_of_other_topics, n_rows_without_offset, unknown_partitions,
    topics_not_audited, compared : see `AuditResult`.
    """

    def __init__(
        self,
        partitions: Sequence[AuditedPartition],
        counts: "RowCounts",
        compared: Sequence[str],
        bounds: "DatasetBounds",
        ranges: "Mapping[tuple[TopicPartition, str], RangeList]",
    ) -> None:
        super().__init__(partitions, counts, compared)
        self._bounds, self._ranges = bounds, ranges

    def ranges(self, findings: str | Collection[str] = FINDINGS) -> pa.RecordBatchReader:
        """All ranges of offsets, however many they are.

        Parameters
        ----------
        findings : names of findings, such as ``missing``; by default all.

        Returns
        -------
        pyarrow.RecordBatchReader
            ``topic``, ``partition``, ``finding``, ``start_offset`` and ``end_offset`` (exclusive).

        Raises
        ------
        OptionError
            If there is no such finding.
        """
        names = check_findings(findings)

        def batches() -> Iterator[pa.RecordBatch]:
            for each in self.partitions:
                topic_partition = TopicPartition(each.topic, each.partition)
                for name in names:
                    for found in self._ranges.get((topic_partition, name), ()):
                        constants = (each.topic, each.partition, name)
                        columns = [
                            pa.repeat(pa.scalar(value, field.type), len(found))
                            for value, field in zip(constants, RANGES, strict=False)
                        ]
                        columns += [pa.array(np.ascontiguousarray(end)) for end in found.T]
                        yield pa.RecordBatch.from_arrays(columns, schema=RANGES)

        return pa.RecordBatchReader.from_batches(RANGES, batches())

    def missing(
        self,
        columns: Sequence[str] | None = None,
        *,
        include_headers: bool = False,
        strings: bool = False,
    ) -> pa.RecordBatchReader:
        """The records that the table lacks, as a stream that can be appended to it.

        Parameters
        ----------
        columns : names of the columns, in order; by default all.
        include_headers : whether "all" includes ``headers``.
        strings : whether ``key`` and ``value`` are strings instead of binary.

        Returns
        -------
        pyarrow.RecordBatchReader
            In the order of topic, partition and offset.

        Raises
        ------
        OptionError
            If a column does not exist.
        CorruptLogError, UnsupportedFormatError, LogChangedError, InvalidUtf8Error
            While the stream is read.
        """
        from segmentlog.audits.comparison import scan_ranges
        from segmentlog.format.records.columns import record_schema

        text = BYTES_OR_TEXT if strings else ()
        policy = self._bounds.policy._replace(text=text)
        schema = record_schema(columns, include_headers=include_headers, text=text)
        names = [*dict.fromkeys([*schema.names, "offset"])]

        def batches() -> Iterator[pa.RecordBatch]:
            for partition in self._bounds.partitions:
                for ranges in self._ranges.get((partition.topic_partition, "missing"), ()):
                    for found in scan_ranges(partition.log, ranges, names, policy):
                        yield found.select(schema.names)

        return pa.RecordBatchReader.from_batches(schema, batches())


def check_findings(given: str | Collection[str]) -> Sequence[str]:
    """Names of findings.

    Raises `OptionError` for other names.
    """
    accepted = f"give {', '.join(FINDINGS)}"
    names = texts("findings", given, accepted)
    for name in names:
        if name not in FINDINGS:
            raise OptionError("findings", str(name), accepted)
    return names


class AuditPlan(NamedTuple):
    """The partitions of an audit with their bounds, which are fixed before the table is read."""

    bounds: "DatasetBounds"
    unread: dict[TopicPartition, str]  # why there are no bounds of a partition
    codes: dict[TopicPartition, int]  # the place of each partition among the bounds, then `unread`
    others: set[TopicPartition]  # partitions of the same topics that are not audited
    most_ranges: int
    topics: frozenset[str]  # all that the log has
    #: of each partition among the bounds, the offsets whose segments are known to be gone
    losses: tuple[tuple[OffsetRange, ...], ...]

    @property
    def n_topics(self) -> int:
        """Number of topics."""
        return len({each.topic for each in self.codes})


@takes(AuditOptions, isolation_level=IsolationLevel.READ_COMMITTED)
def plan_audit(
    path: str | os.PathLike[str] | LogDirectory | None,
    topics: str | Sequence[str] | None,
    partitions: int | Collection[int],
    most_ranges: int,
    **options: Unpack[AuditOptions],
) -> AuditPlan:
    """Find the bounds of an audit now; see `audit` for parameters and errors."""
    given = () if path is None else (path,)
    failed: dict[TopicPartition, SegmentLogError] = {}
    bounds = dataset_bounds(given, topics, cast("DatasetOptions", options), failed)
    most_ranges = whole_number("most_ranges", most_ranges)
    known = {each.topic_partition for each in bounds.partitions} | failed.keys()
    if not known:
        where = ", ".join(map(str, bounds.paths))
        raise OptionError(
            "topics", "none", f"an audit of no topic proves nothing: name one of those in {where}"
        )
    chosen = _chosen(known, partitions)
    losses = dict["PartitionBounds", tuple[OffsetRange, ...]]()
    for each in bounds.partitions:
        if each.topic_partition in chosen:
            try:
                losses[each] = _losses(each.log)
            except SegmentLogError as error:
                failed[each.topic_partition] = error
    unread = {each: str(error) for each, error in failed.items() if each in chosen}
    places = [*(each.topic_partition for each in losses), *unread]
    codes = {each: code for code, each in enumerate(places)}
    there = frozenset(bounds.opens(*bounds.paths).topics(internal=True))
    bounds = bounds._replace(partitions=tuple(losses))
    return AuditPlan(
        bounds, unread, codes, known - chosen, most_ranges, there, tuple(losses.values())
    )


def _losses(log: Log) -> tuple[OffsetRange, ...]:
    """The offsets whose segments are known to be gone, in order."""
    found = (OffsetRange(each.start_offset, each.end_offset) for each in known_losses(log))
    return tuple(each for each in found if each.start_offset < each.end_offset)


class AuditedTableOptions(AuditOptions, total=False):
    """Those of `segmentlog.audit`.

    Parameters
    ----------
    partition_column, offset_column : name of the column with a record's partition, or offset;
        ``kafka.offset`` is the field ``offset`` of the column ``kafka``.
    topic_column : name of the column with its topic; by default ``topic``, if the table has it.
        Without such a column, or if the name is empty, all rows are of one topic.
    columns : columns of records to compare with those of the table that have the same names, as
        far as the table has them: ``timestamp``, ``timestampType``, ``key``, ``value``,
        ``headers``.  ``key=record_key`` names the table's column.  Text is compared as its bytes
        in UTF-8, and a time without a zone is in UTC.
    most_ranges : number of ranges that a result shows of each finding.
    spill_directory : of temporary files, if a table without any order has more rows than memory
        should hold; by default the system's.
    """

    partition_column: Annotated[
        str,
        Declared(
            default="partition",
            metavar="NAME",
            help="The column with the partition; kafka.partition is a nested one.",
        ),
    ]
    offset_column: Annotated[
        str, Declared(default="offset", metavar="NAME", help="The column with the offset.")
    ]
    topic_column: Annotated[
        str | None,
        Declared(
            metavar="NAME",
            help="The column with the topic; topic by default, if it is there. An empty name: all "
            "rows are of TOPIC.",
        ),
    ]
    columns: Annotated[str | Sequence[str], Declared(default=())]
    most_ranges: Annotated[
        int, Declared(default=10, help="Ranges of offsets to show of each finding.")
    ]
    spill_directory: Annotated[
        str | os.PathLike[str] | None,
        Declared(
            metavar="DIR", help="Where a temporary file goes, if a table has no order at all."
        ),
    ]


@takes(AuditedTableOptions, isolation_level=IsolationLevel.READ_COMMITTED)
@storage_errors()
def audit(
    path: str | os.PathLike[str] | LogDirectory | None,
    topics: str | Sequence[str] | None,
    table: Table,
    *,
    partitions: int | Collection[int] = (),
    on_partition: Callable[[AuditedPartition], object] = lambda _: None,
    on_rows: Callable[[int], object] = lambda _: None,
    **options: Unpack[AuditedTableOptions],
) -> Audit:
    """Prove that a table has each record of a log once, and nothing else.

    ::

        audit = segmentlog.audit("/var/lib/kafka", "orders", "/lake/orders")
        if not audit.is_complete:
            write_deltalake("/lake/orders", audit.missing(), mode="append")

    The log tells which offsets have a record: after compaction, aborted transactions, end markers
    and deleted records.  Its bounds are fixed before the table is read, and rows of records that
    are written later do not matter.  Most batches are known by their headers, and are not decoded;
    `verify` checks their bytes.

    Partitions and offsets are compared.  They alone cannot tell the rows of a topic that was
    deleted and created again: these have the same offsets as the records of the new topic.  With
    `columns`, each row is also compared with the record at its offset, by a checksum of 64 bits;
    then the log is read, and all of it is decoded.  `Audit.compared` says what was compared.

    By default, only committed records count: rows of aborted transactions are faults, and offsets
    after the start of an open transaction are not audited.

    Parameters
    ----------
    path, topics : of the log, as `read` takes them.
    table : the path of a Parquet file or directory (of a directory that Spark's file sink writes,
        the files that its log lists), of a Delta table, or of an Iceberg table (its
        directory or its metadata file, or ``iceberg:CATALOG/NAMESPACE.TABLE``); or an object with
        the rows: a pyarrow dataset, table, reader or iterable of batches, a ``DeltaTable``, a
        table of pyiceberg, or what has Arrow's stream, such as a frame of Polars.  Its rows may be
        in any order.
    partitions : numbers of the partitions to audit; by default all.
    on_partition : called with each result once it is found.
    on_rows : called with the number of rows that were read, batch by batch.
    **options : those of `AuditedTableOptions`.

    Returns
    -------
    Audit

    Raises
    ------
    ColumnError
        If the table lacks one of the columns, or all of `columns`; if a value is not a whole
        number, or a column has a type that cannot be compared.
    OptionError
        If the table cannot be opened, or an argument is not accepted.
    SegmentLogError
        See `dataset`.  A partition that cannot be read is a result with an error.
    """
    from segmentlog.audits.comparison import AuditComparison
    from segmentlog.audits.record_sums import RowSums, compared_columns
    from segmentlog.audits.spill import SpillFile
    from segmentlog.audits.table_offsets import TableOffsets
    from segmentlog.audits.table_rows import ColumnNames, RowCollector
    from segmentlog.audits.tables import open_table

    of_read = those_of(AuditOptions, options)
    plan = plan_audit(path, topics, partitions, options["most_ranges"], **of_read)
    wanted = compared_columns(options["columns"])
    parts = open_table(table)
    names = ColumnNames.checked(
        options["partition_column"], options["offset_column"], options["topic_column"], wanted
    )
    spill_directory = options["spill_directory"]
    spill = SpillFile(None if spill_directory is None else os.fspath(spill_directory))
    offsets = TableOffsets(spill)
    sums = RowSums(spill) if wanted else None
    collector = RowCollector(plan.codes, plan.others, plan.topics, offsets, sums)
    compared = tuple[str, ...]()
    for part in parts:
        found_columns = names.of(part.schema, plan.n_topics, part.file)
        names = names.settled(found_columns)
        compared = tuple(name for name, _ in found_columns.compared)
        for batch in part.read(found_columns.places):
            collector.add(batch, found_columns)
            on_rows(batch.num_rows)
    collector.counts.check_topics(names)
    offsets.finish()
    if sums is not None:
        sums.finish()
    comparison = AuditComparison(plan.bounds, offsets, spill, plan.most_ranges, compared, sums)
    found = []
    planned = zip(plan.bounds.partitions, plan.losses, strict=True)
    for code, (each, losses) in enumerate(planned):
        found.append(comparison.of(each, code, losses).result)
        on_partition(found[-1])
    for unread, error in plan.unread.items():
        n_rows = offsets.n_rows[plan.codes[unread]]
        found.append(AuditedPartition(*unread, 0, 0, 0, 0, 0, n_rows, error=error))
        on_partition(found[-1])
    found.sort(key=lambda each: each[:2])
    return Audit(found, collector.counts, compared, plan.bounds, comparison.ranges)


def _chosen(there: set[TopicPartition], partitions: int | Collection[int]) -> set[TopicPartition]:
    """The partitions to audit.

    Raises `OptionError` if no topic has one of `partitions`.
    """
    numbers = {*partition_numbers(partitions)}
    known = {each.partition for each in there}
    if unknown := numbers - known:
        first = ", ".join(map(str, sorted(known)[:20]))
        raise OptionError("partitions", str(min(unknown)), f"the log has partitions {first}")
    return {each for each in there if not numbers or each.partition in numbers}
