"""An audit as a Spark job: tasks read the table and the log, and the driver gets only counts."""

from collections.abc import Collection, Iterator, Sequence
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from pyspark_segmentlog.reads.schema import row_schema
from segmentlog.arguments import class_of_one_dialect, takes
from segmentlog.audits import (
    FINDINGS,
    AuditedTableOptions,
    AuditResult,
    check_findings,
    plan_audit,
)
from segmentlog.declared import those_of
from segmentlog.errors import OptionError
from segmentlog.model import IsolationLevel
from segmentlog.native import check_compiled
from segmentlog.read_options import AuditOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from segmentlog import LogDirectory
    from segmentlog.audits import AuditWork, MergedAudit

_MOST_TASKS = 400  # that compare
_STRETCHES = "part int, first_offset long, end_offset long, n_rows long, counts binary"
_FOUND = "part int, finding string, start_offset long, end_offset long, outcome binary"
_RANGES = "topic string, partition int, finding string, start_offset long, end_offset long"


@class_of_one_dialect()
class SparkAudit(AuditResult):
    """The result of `pyspark_segmentlog.audit`.

    Ranges of offsets stay on the disks of the executors until `unpersist`.

    Attributes
    ----------
    partitions, n_rows, n_rows_of_other_topics, n_rows_without_offset, unknown_partitions,
    topics_not_audited, compared : see `segmentlog.Audit`.
    """

    def __init__(self, merged: "MergedAudit", work: "AuditWork", found: "DataFrame") -> None:
        compared = [name for name, _ in work.columns.compared]
        super().__init__(merged.partitions, merged.counts, compared)
        # The results of partitions are not needed to complete ranges.
        self._merged, self._work, self._found = merged._replace(partitions=()), work, found

    def ranges(self, findings: str | Collection[str] = FINDINGS) -> "DataFrame":
        """All ranges of offsets, however many they are.

        Parameters
        ----------
        findings : names of findings, such as ``missing``; by default all.

        Returns
        -------
        DataFrame
            ``topic``, ``partition``, ``finding``, ``start_offset`` and ``end_offset`` (exclusive),
            in any order.

        Raises
        ------
        OptionError
            If there is no such finding.
        """
        names = check_findings(findings)
        work, merged = self._work, self._merged

        def complete(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return merged.whole_ranges(work, batches)

        found = self._found.where(self._found["finding"].isin(*names))
        return found.mapInArrow(complete, _RANGES)

    def missing(
        self,
        columns: Sequence[str] | None = None,
        *,
        include_headers: bool = False,
        strings: bool = False,
    ) -> "DataFrame":
        """The records that the table lacks, as rows that can be appended to it.

        Tasks read the log, each those of its part of a partition.

        Parameters
        ----------
        columns : names of the columns, in order; by default all.
        include_headers : whether "all" includes ``headers``.
        strings : whether ``key`` and ``value`` are strings instead of binary.

        Returns
        -------
        DataFrame
            In any order.

        Raises
        ------
        OptionError
            If a column does not exist.
        """
        work = self._work
        names = work.columns_of_records(columns, include_headers=include_headers)
        fields = row_schema(include_headers=True, strings=strings)

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            check_compiled()
            return work.missing(batches, names, strings=strings)

        found = self._found.where("finding = 'missing'")
        return found.mapInArrow(read, StructType([fields[name] for name in names]))

    def unpersist(self) -> None:
        """Free the disks of the executors; `ranges` and `missing` would audit once more."""
        self._found.unpersist()


@takes(AuditedTableOptions, isolation_level=IsolationLevel.READ_COMMITTED)
def audit(
    spark: "SparkSession",
    path: "str | PathLike[str] | LogDirectory | None",
    topics: str | Sequence[str] | None,
    table: "DataFrame",
    *,
    partitions: int | Collection[int] = (),
    **options: Unpack[AuditedTableOptions],
) -> SparkAudit:
    """Prove, on the executors of Spark, that a table has each record of a log once.

    ::

        found = pyspark_segmentlog.audit(spark, "/var/lib/kafka", "orders", spark.table("orders"))
        if not found.is_complete:
            found.missing().writeTo("orders").append()

    The calling process finds the bounds of the log.  Tasks read the table and send the offsets of
    its rows as ranges to other tasks, each of which compares some offsets of a partition with the
    log.  The calling process gets the counts.  All processes need the directories at the same
    paths.

    Parameters
    ----------
    spark : the session, classic or Spark Connect.
    table : a DataFrame with the rows, in any order; only the columns for topic, partition and
        offset are read, and those of `columns`.
    path, topics, partitions : see `segmentlog.audit`.
    **options : those of `AuditedTableOptions`.

    Returns
    -------
    SparkAudit
        What `segmentlog.audit` finds; ``ranges`` and ``missing`` are DataFrames.

    Raises
    ------
    ColumnError
        If the table lacks one of the columns, or a value is not a whole number.
    SegmentLogError
        See `segmentlog.audit`.
    """
    check_compiled()
    from segmentlog.audits import AuditWork, ColumnNames, compared_columns, merge

    if not hasattr(table, "mapInArrow"):
        raise OptionError("table", type(table).__name__, "give a DataFrame of Spark")
    of_read = those_of(AuditOptions, options)
    plan = plan_audit(path, topics, partitions, options["most_ranges"], **of_read)
    wanted = compared_columns(options["columns"])
    names = ColumnNames.checked(
        options["partition_column"], options["offset_column"], options["topic_column"], wanted
    )
    spill_directory = options["spill_directory"]
    directory = None if spill_directory is None else fspath(spill_directory)
    work = AuditWork.of(plan, names, _arrow_schema(table.schema), directory)
    found = _found(spark, table, work)
    try:
        # A few KB for each part; an iterator would run one task after the other.
        outcomes = found.where("outcome is not null").select("outcome").collect()
        merged = merge(work, (bytes(row.outcome) for row in outcomes))
    except BaseException:
        found.unpersist()
        raise
    return SparkAudit(merged, work, found)


def _found(spark: "SparkSession", table: "DataFrame", work: "AuditWork") -> "DataFrame":
    """What all tasks find; computed once, when it is first asked for."""
    heads = [*dict.fromkeys(place[0] for place in work.columns.places)]

    def collect(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        check_compiled()
        return work.collect(each.rename_columns(heads) for each in batches)

    def compare(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        check_compiled()
        return work.compare(batches)

    # ``mapInArrow`` looks its columns up by their names, and takes a dot for that of a field.
    names = [
        "`{}` as c{}".format(name.replace("`", "``"), number) for number, name in enumerate(heads)
    ]
    rows = table.selectExpr(*names).mapInArrow(collect, _STRETCHES)
    # A part without rows is compared, too: all of its records are missing.
    parts = spark.range(0, len(work.parts), 1, 1).selectExpr(
        "cast(id as int) part",
        "cast(null as long) first_offset",
        "cast(null as long) end_offset",
        "0L n_rows",
        "cast(null as binary) counts",
    )
    n_tasks = max(1, min(len(work.parts), _MOST_TASKS))
    by_part = rows.unionAll(parts).repartition(n_tasks, "part")
    found = by_part.mapInArrow(compare, _FOUND)
    return found.persist(StorageLevel.DISK_ONLY)


def _arrow_schema(schema: StructType) -> pa.Schema:
    """The columns of a DataFrame; one that Arrow does not have is a list, and so refused."""

    def type_of(kind: Any) -> pa.DataType:  # noqa: ANN401
        try:
            return to_arrow_type(kind)
        except Exception:  # noqa: BLE001 - of several classes in PySpark
            return pa.list_(pa.null())

    return pa.schema([(field.name, type_of(field.dataType)) for field in schema.fields])
