"""A DataFrame of chosen columns: Spark asks a Python source for all columns of its schema."""

from collections.abc import Sequence
from os import PathLike, fspath
from typing import TYPE_CHECKING

from pyspark.sql.types import StringType, StructField, StructType

from pyspark_segmentlog.reads.schema import TEXT_COLUMNS, row_schema, unknown_column
from segmentlog.errors import ColumnError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read"]


def read(
    spark: "SparkSession",
    path: str | PathLike[str] | Sequence[str | PathLike[str]],
    columns: str | Sequence[str] | None = None,
    *,
    strings: bool = False,
    **options: bool | float | str,
) -> "DataFrame":
    """Read a log directory as ``spark.read.format("segmentlog")`` does, but only some columns.

    A query that uses few columns of a DataFrame of all columns has them all decoded and copied to
    the JVM, since Spark tells a Python source nothing of the columns that a query uses (Spark 4.2
    and 4.3).  Over ``columns="partition"`` a count reads batch headers alone.

    ::

        pyspark_segmentlog.read(spark, "/data/logs", "partition", subscribe="orders").count()
        pyspark_segmentlog.read(spark, "/data/logs", ["key", "value"], strings=True)

    Parameters
    ----------
    spark : the session, classic or Spark Connect.
    path : a log directory, a partition directory or a ``.log`` file; or several log directories of
        one broker.
    columns : one name or several, in the order of the DataFrame; by default all columns.
    strings : whether keys and values are strings in place of binary; the option ``onInvalidUtf8``
        says what becomes of other bytes.
    options : the options of a read; a name with a dot is passed as
        ``**{"kafka.isolation.level": "read_committed"}``.

    Raises
    ------
    ColumnError
        If a column does not exist, or is named twice; before Spark is asked.
    """
    frames = spark.read.format("segmentlog").options(**options)
    if columns is not None or strings:
        frames = frames.schema(_schema(columns, options, strings=strings))
    paths = [path] if isinstance(path, str | PathLike) else path
    texts = [fspath(each) for each in paths]
    return frames.load(texts[0] if len(texts) == 1 else texts)


def _schema(
    columns: str | Sequence[str] | None, options: dict[str, bool | float | str], *, strings: bool
) -> StructType:
    known = {field.name: field for field in row_schema(include_headers=True).fields}
    if columns is None:
        given = {name.lower(): str(value).strip().lower() for name, value in options.items()}
        has_headers = given.get("includeheaders", given.get("preserve", "false")) == "true"
        columns = row_schema(include_headers=has_headers).names
    names = [columns] if isinstance(columns, str) else list(columns)
    for name in names:
        if name not in known:
            raise unknown_column(name)
        if names.count(name) > 1:
            raise ColumnError(name, "there more than once", "leave out all but one")
    return StructType(
        [
            StructField(name, StringType()) if strings and name in TEXT_COLUMNS else known[name]
            for name in names
        ]
    )
