"""The columns of Spark's ``kafka`` source, and the columns that a user's schema selects."""

from collections.abc import Collection
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from segmentlog.errors import ColumnError

#: Columns of bytes that a schema may also have as ``string``.
TEXT_COLUMNS = ("key", "value")

_HEADERS = StructField(
    "headers",
    ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
)

_ROW = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
}


def row_schema(*, include_headers: bool, strings: bool = False) -> StructType:
    """The seven columns, and ``headers`` if requested; everything is nullable."""
    fields = [
        StructField(name, StringType() if strings and name in TEXT_COLUMNS else kind)
        for name, kind in _ROW.items()
    ]
    return StructType([*fields, _HEADERS] if include_headers else fields)


def unknown_column(name: str) -> "ColumnError":
    """The error for a name that is not a column's, with the name that was probably meant."""
    from segmentlog.arguments import nearest
    from segmentlog.errors import ColumnError

    known = row_schema(include_headers=True).names
    near = nearest(name, known)
    accepted = f"did you mean {near!r}?" if near else f"the columns are {', '.join(known)}"
    return ColumnError(name, "unknown", accepted)


def selected_columns(
    schema: StructType, every: StructType | None = None, decoded: Collection[str] = ()
) -> tuple[str, ...]:
    """Names that a schema selects, in its order.

    `every`: all columns that there are.  `decoded`: those of them that are not bytes.
    """
    # A schema given with ``spark.read.schema(…)`` may leave columns out and change their order.
    # Columns that are left out are not decoded. Keys and values may be binary or string.
    from segmentlog.errors import ColumnError

    if every is None:
        every = row_schema(include_headers=True)
    known = {field.name: field for field in every.fields}
    for field in schema.fields:
        if field.name not in known:
            raise unknown_column(field.name)
        found = field.dataType.simpleString()
        expected = known[field.name].dataType.simpleString()
        is_text = field.name in {*TEXT_COLUMNS} - {*decoded} and field.dataType == StringType()
        if found != expected and not is_text:
            accepted = f"read it as {expected}, then convert it"
            if field.name != "headers":
                cast = f"cast({field.name} as {found}) as {field.name}"
                accepted += f': selectExpr("{cast}")'
            raise ColumnError(field.name, found, accepted)
        if not field.nullable:
            accepted = "leave NOT NULL out: every column is nullable"
            raise ColumnError(field.name, f"{found} NOT NULL", accepted)
        if schema.names.count(field.name) > 1:
            raise ColumnError(field.name, "present more than once", "leave out all but one")
    return tuple(schema.names)


def text_columns(
    schema: StructType, *, strings: bool = False, decoded: Collection[str] = ()
) -> tuple[str, ...]:
    """Names of the keys and values that a checked schema has as ``string`` instead of bytes.

    `decoded`: the columns that are not bytes.
    """
    from segmentlog.errors import OptionError

    either = [each for each in schema.fields if each.name in {*TEXT_COLUMNS} - {*decoded}]
    text = tuple(field.name for field in either if field.dataType == StringType())
    if strings and len(text) < len(either):
        accepted = (
            "the schema has key or value as binary: give the option strings where the columns "
            "are defined"
        )
        raise OptionError("strings", "true", f"{accepted}, as in CREATE TABLE, or leave it out")
    return text
