"""Tables of what Kafka knows about itself, as rows of Spark."""

from collections.abc import Iterator, Sequence
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

from pyspark_segmentlog.options.table_options import TableOptions
from pyspark_segmentlog.plain_errors import PlainErrors
from pyspark_segmentlog.python_worker import freeze_modules
from segmentlog.errors import ColumnError

if TYPE_CHECKING:
    import pyarrow as pa

_PLAIN: dict[str, DataType] = {
    "string": StringType(),
    "int32": IntegerType(),
    "int64": LongType(),
    "double": DoubleType(),
    "bool": BooleanType(),
    "binary": BinaryType(),
}


def table_columns(options: TableOptions) -> StructType:
    """The columns of a table.

    Raises `OptionError` if there is no such table, it has no history, or its topic has a fixed
    name.
    """
    from segmentlog.kafka_tables import table_schema

    schema = table_schema(options.table, history=options.history, topic=options.topic)
    return StructType([StructField(field.name, _type(field.type)) for field in schema])


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
        return StructType([StructField(field.name, _type(field.type)) for field in kind])
    return _PLAIN[str(kind)]


class TableReader(DataSourceReader):
    """Reads a table in one task: it is small, or its state is that of all of its records.

    `schema`: the columns wanted, in order.  Raises `ColumnError` if a column does not exist, or
    has another type.
    """

    def __init__(self, options: TableOptions, schema: StructType) -> None:
        known = {field.name: field.dataType for field in table_columns(options).fields}
        for field in schema.fields:
            if field.name not in known:
                raise unknown_table_column(options, field.name)
            found, expected = field.dataType.simpleString(), known[field.name].simpleString()
            if found != expected:
                raise ColumnError(field.name, found, f"read it as {expected}, then convert it")
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
