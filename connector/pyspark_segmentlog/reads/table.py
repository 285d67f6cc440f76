"""Tables of what Kafka knows about itself, as rows of Spark: their options and their reader."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_segmentlog.options.names import check_read_names
from pyspark_segmentlog.options.option import GivenOptions, Query
from pyspark_segmentlog.options.read_options import NO_PATH
from pyspark_segmentlog.options.reference import READ_OPTIONS
from pyspark_segmentlog.plain_errors import PlainErrors
from pyspark_segmentlog.python_worker import freeze_modules
from segmentlog.errors import ColumnError, OptionError
from segmentlog.model import OnCorruptBatch

if TYPE_CHECKING:
    import pyarrow as pa

#: Options that a table takes.
_TAKEN = ("path", "paths", "table", "history", "topic", "strict", "onCorruptBatch")


def reads_table(raw: Iterable[str]) -> bool:
    """Whether options, or their names, ask for a table, and not for records of topics."""
    return any(name.lower() == "table" for name in raw)


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The options of a read of a table, checked."""

    #: as the user wrote them
    paths: tuple[str, ...] = field(repr=False)  # credentials may stand in a URL
    table: str
    history: bool
    on_corrupt_batch: OnCorruptBatch
    topic: str | None = None
    strict: bool = False

    @classmethod
    def parse(cls, raw: Mapping[str, str]) -> "TableOptions":
        """Check Spark's option strings; names in any case."""
        check_read_names(raw)
        given = GivenOptions(raw, READ_OPTIONS)
        for option in READ_OPTIONS:
            selects = Query.BATCH in option.used_by and option.name not in _TAKEN
            if selects and option.name in given:
                accepted = f"it is an option of records; a table takes {', '.join(_TAKEN)}"
                raise OptionError(option.name, given.texts[option.name.lower()], accepted)
        paths = (given["path"],) if "path" in given else ()
        paths += given["paths"] or ()
        if not paths:
            raise OptionError("path", "", NO_PATH)
        return cls(
            paths,
            given["table"],
            given["history"],
            given["onCorruptBatch"],
            given["topic"],
            given["strict"],
        )


_PLAIN: dict[str, DataType] = {
    "string": StringType(),
    "int32": IntegerType(),
    "int64": LongType(),
    "double": DoubleType(),
    "bool": BooleanType(),
    "binary": BinaryType(),
}


def table_columns(options: TableOptions) -> StructType:
    """The columns of a table."""
    from segmentlog.kafka_tables import table_schema

    schema = table_schema(options.table, history=options.history, topic=options.topic)
    return StructType([StructField(each.name, _type(each.type)) for each in schema])


def unknown_table_column(options: TableOptions, name: str) -> ColumnError:
    """The error for a column that the table does not have."""
    known = ", ".join(table_columns(options).names)
    return ColumnError(name, "unknown", f"the columns of {options.table} are {known}")


def _type(kind: "pa.DataType") -> DataType:
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return TimestampType()
    if pa.types.is_map(kind):
        return MapType(_type(kind.key_type), _type(kind.item_type))
    if pa.types.is_list(kind):
        return ArrayType(_type(kind.value_type))
    if pa.types.is_struct(kind):
        return StructType([StructField(each.name, _type(each.type)) for each in kind])
    return _PLAIN[str(kind)]


class TableReader(DataSourceReader):
    """Reads a table in one task: it is small, or its state is that of all of its records."""

    def __init__(self, options: TableOptions, schema: StructType) -> None:
        known = {each.name: each.dataType for each in table_columns(options).fields}
        for each in schema.fields:
            if each.name not in known:
                raise unknown_table_column(options, each.name)
            found, expected = each.dataType.simpleString(), known[each.name].simpleString()
            if found != expected:
                raise ColumnError(each.name, found, f"read it as {expected}, then convert it")
        self._options = options
        self._columns = tuple(schema.names)

    def partitions(self) -> Sequence[InputPartition]:
        """One partition."""
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """The rows of the table."""
        with PlainErrors():
            from segmentlog.kafka_tables import table
            from segmentlog.reads import open_log_dir

            options = self._options
            found = table(
                open_log_dir(*options.paths),
                options.table,
                history=options.history,
                on_corrupt_batch=options.on_corrupt_batch,
                topic=options.topic,
                strict=options.strict,
            )
            yield from found.select(self._columns).to_batches()
        freeze_modules()
