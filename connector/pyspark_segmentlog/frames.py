"""A DataFrame of chosen columns: Spark asks a Python source for all columns of its schema."""

from collections.abc import Sequence
from os import PathLike, fspath
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from pyspark_segmentlog.reads.schema import row_schema, unknown_column
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

    Spark does not tell a Python source which columns a query uses (Spark 4.2 and 4.3).  So a query
    on a DataFrame of all columns decodes all of them and copies them to the JVM, even if the query
    uses few.  With ``columns="partition"``, a count reads only batch headers.

    ::

        pyspark_segmentlog.read(spark, "/data/logs", "partition", subscribe="orders").count()
        pyspark_segmentlog.read(spark, "/data/logs", ["key", "value"], strings=True)

    Parameters
    ----------
    spark : the session, classic or Spark Connect.
    path : a log directory, a partition directory or a ``.log`` file; or several log directories of
        one broker.
    columns : one name or several, in the order of the DataFrame; by default all columns.
    strings : whether keys and values are strings in place of binary.
    options : the other options of a read; a name with a dot is passed as
        ``**{"kafka.isolation.level": "read_committed"}``.

    Raises
    ------
    ColumnError
        If a column does not exist, or is named twice; before Spark is asked.
    """
    frames = spark.read.format("segmentlog").options(**options, strings=strings)
    if columns is not None:
        frames = frames.schema(_schema(columns, strings=strings))
    paths = [path] if isinstance(path, str | PathLike) else path
    texts = [fspath(each) for each in paths]
    return frames.load(texts[0] if len(texts) == 1 else texts)


def _schema(columns: str | Sequence[str], *, strings: bool) -> StructType:
    every = row_schema(include_headers=True, strings=strings)
    names = [columns] if isinstance(columns, str) else list(columns)
    for name in names:
        if name not in every.names:
            raise unknown_column(name)
        if names.count(name) > 1:
            raise ColumnError(name, "present more than once", "leave out all but one")
    return StructType([every[name] for name in names])
