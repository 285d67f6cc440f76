"""The columns of Spark's ``kafka`` source, and the ones a user's schema selects."""

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

__all__ = ["row_schema", "selected_columns"]

_HEADERS = StructField(
    "headers",
    ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
)

_ROW = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)


def row_schema(*, include_headers: bool) -> StructType:
    """The seven columns, and ``headers`` when asked for; everything is nullable."""
    return StructType([*_ROW.fields, _HEADERS]) if include_headers else StructType(_ROW.fields)


def selected_columns(schema: StructType) -> tuple[str, ...]:
    """Names that a schema selects, in its order.

    A schema given with ``spark.read.schema(…)`` may leave columns out and change their order:
    what is left out is not decoded.

    Raises
    ------
    OptionError
        If a column does not exist, stands twice, or has another type.
    """
    from segmentlog.errors import OptionError

    known = {field.name: field for field in row_schema(include_headers=True).fields}
    for field in schema.fields:
        if field.name not in known:
            raise OptionError("schema", field.name, f"columns are {', '.join(known)}")
        expected = known[field.name]
        if field.simpleString() != expected.simpleString() or not field.nullable:
            accepted = f"the column is '{expected.simpleString()}', and nullable"
            raise OptionError("schema", field.simpleString(), accepted)
    if len(set(schema.names)) < len(schema.names):
        raise OptionError("schema", ", ".join(schema.names), "each column may stand there once")
    return tuple(schema.names)
