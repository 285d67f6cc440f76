"""A DataFrame of chosen columns: Spark asks a Python source for all columns of its schema."""

import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType

from pyspark_segmentlog.options.names import check_read_names
from pyspark_segmentlog.options.read_options import ReadOptions
from pyspark_segmentlog.reads.reader import read_schema
from pyspark_segmentlog.reads.schema import row_schema, unknown_column
from pyspark_segmentlog.reads.table import (
    TableOptions,
    reads_table,
    table_columns,
    unknown_table_column,
)
from segmentlog.arguments import switch
from segmentlog.errors import ColumnError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(
    spark: "SparkSession",
    path: str | PathLike[str] | Sequence[str | PathLike[str]],
    columns: str | Sequence[str] | None = None,
    *,
    strings: bool = False,
    **options: bool | float | str,
) -> "DataFrame":
    """Read a log directory as ``spark.read.format("segmentlog")`` does, but only some columns.

    Spark does not tell a Python source which columns a query uses (Spark 4.0 to 4.3).  So a query
    on a DataFrame of all columns decodes all of them and copies them to the JVM, even if the query
    uses few.  To count rows, use `count`.

    ::

        pyspark_segmentlog.read(spark, "/data/logs", ["key", "value"], strings=True)
        pyspark_segmentlog.read(spark, "/data/logs", ["group", "offset"], table="group_offsets")

    Parameters
    ----------
    spark : the session, classic or Spark Connect.
    path : a log directory, a partition directory or a ``.log`` file; or several log directories of
        one broker.
    columns : one name or several, in the order of the DataFrame; by default all columns.
    strings : whether keys and values are strings in place of binary.
    options : the other options of a read; a name with a dot is passed as
        ``**{"kafka.isolation.level": "read_committed"}``.  With ``table``, the columns are those
        of the table.

    Raises
    ------
    ColumnError
        If a column does not exist, or is named twice; before Spark is asked.
    OptionError
        If an option is a word of another dialect, or is misspelled; if columns of a table are
        named, and there is no such table, or it does not take an option.
    ModuleNotFoundError
        If Spark's workers run a Python in which this package is not installed.
    """
    paths = [path] if isinstance(path, str | PathLike) else path
    texts = [fspath(each) for each in paths]
    given = {**options, **({"strings": True} if strings else {})}
    check_read_names({name: str(value) for name, value in given.items()})
    frames = spark.read.format("segmentlog").options(**given)
    if columns is not None:
        frames = frames.schema(_schema(columns, texts, given, strings=strings))
    try:
        return frames.load(texts[0] if len(texts) == 1 else texts)
    except Exception as error:  # of py4j, or of Spark Connect
        if "[DATA_SOURCE_NOT_FOUND]" not in str(error):
            raise
        # Spark's workers are `python3` of the PATH unless they are told otherwise.
        message = (
            "Spark's Python workers have no module pyspark_segmentlog, because they run another "
            "Python than this process; before the session starts, run "
            f"export PYSPARK_PYTHON={shlex.quote(sys.executable)}, or set it in os.environ (on a "
            "cluster: a Python that each machine has, with pyspark-segmentlog installed); Spark "
            "runs no Python whose path has a space"
        )
        raise ModuleNotFoundError(message, name=__package__) from None


def count(
    spark: "SparkSession",
    path: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    check_crcs: bool = True,
    **options: bool | float | str,
) -> int:
    """Count the records of a log directory, by tasks of Spark, without their keys and values.

    ::

        pyspark_segmentlog.count(spark, "/data/logs", subscribe="orders", check_crcs=False)

    Parameters
    ----------
    spark, path : see `read`.
    check_crcs : whether all bytes are read, and their checksums checked.  Otherwise the headers of
        batches tell how many records they have, and damage inside batches stays unnoticed.
    options : the other options of a read, such as ``startingTimestamp``.

    Returns
    -------
    int
        The number of rows that ``spark.read.format("segmentlog")`` with these options has.

    Raises
    ------
    OptionError, ModuleNotFoundError
        See `read`.
    """
    given: dict[str, Any] = {**options}
    if not switch("check_crcs", check_crcs):
        given["kafka.check.crcs"] = False
    # Sail takes a schema without columns for none, and reads all of them.
    return read(spark, path, "partition", **given).count()


def _schema(
    columns: str | Sequence[str],
    paths: Sequence[str],
    options: Mapping[str, bool | float | str],
    *,
    strings: bool,
) -> StructType:
    unknown: Callable[[str], ColumnError]
    if reads_table(options):
        raw = {name: str(value) for name, value in options.items()}
        of_table = TableOptions.parse({"paths": json.dumps(paths), **raw})
        every, unknown = table_columns(of_table), partial(unknown_table_column, of_table)
    else:
        every, unknown = row_schema(include_headers=True, strings=strings), unknown_column
        if any(name.lower() == "decode" for name in options):
            raw = {name: str(value) for name, value in options.items()}
            given = ReadOptions.parse({"paths": json.dumps(paths), **raw})
            every = read_schema(replace(given, include_headers=True, strings=strings))
    names = [columns] if isinstance(columns, str) else list(columns)
    for name in names:
        if name not in every.names:
            raise unknown(name)
        if names.count(name) > 1:
            raise ColumnError(name, "present more than once", "leave out all but one")
    return StructType([every[name] for name in names])
