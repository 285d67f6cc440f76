"""Keys and values as the columns of their schemas, in Spark's types.

The driver finds the schemas.  Tasks get those of the subject, and look up others where they read.
The types are those of Spark's ``from_avro``: what Spark lacks is a number.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.types import DataType, StringType, StructField, StructType

from pyspark_segmentlog.options.read_options import ReadOptions
from pyspark_segmentlog.reads.planner import selected

if TYPE_CHECKING:
    import pyarrow as pa

    from segmentlog.decoding import Decoding


def with_decoded(columns: StructType, decoding: "Decoding | None") -> StructType:
    """The columns, with those that are decoded in place of bytes."""
    if decoding is None:
        return columns
    types = {name: spark_type(decoding.type_of(name)) for name in decoding.columns}
    fields = [StructField(each.name, types.get(each.name, each.dataType)) for each in columns]
    if decoding.has_cause:
        from segmentlog.decoding import CAUSE

        fields.append(StructField(CAUSE, StringType()))
    return StructType(fields)


def decoding_of(options: ReadOptions, schema: StructType | None = None) -> "Decoding | None":
    """What decodes the keys or values of a read; None if nothing is decoded.

    `schema`: of the user, or of the query.  Without ``decodeVersion``, the newest version of the
    subject that has its type decodes: a query keeps the schema that it has begun with.
    """
    if not options.asks_for_decoding:
        return None
    from segmentlog.decoding import Decoding

    given = {} if schema is None else {each.name: each.dataType for each in schema.fields}
    fitted: Mapping[str, Callable[[pa.DataType], pa.DataType]] = {
        name: partial(_fitted, name, given.get(name)) for name in ("key", "value")
    }
    topics = {each.topic for each in options.assign} or {*options.subscribe}
    if not topics:
        topics = {each.topic for each in selected(options, options.open_directory())}
    return Decoding.of_read(options.decode, topics, partial(_look_up, options), fitted, [*given])


def _look_up(options: ReadOptions) -> "pa.Table":
    """The table of schemas as it is now."""
    from segmentlog.kafka_tables import table

    damage = options.policy.on_corrupt_batch
    return table(options.open_directory().whole, "schemas", on_corrupt_batch=damage)


def _fitted(column: str, wanted: DataType | None, kind: "pa.DataType") -> "pa.DataType":
    """The type that Spark takes for a type; an error if it is not the one that is wanted."""
    from segmentlog.decoding import UnusableSchemaError

    fitted = as_spark_takes_it(kind)
    found = spark_type(fitted).simpleString()
    if wanted is not None and wanted.simpleString() != found:
        reason = (
            f"its type is {found}, and the column {column} of the query is "
            f"{wanted.simpleString()}: give decodeVersion, or load the topic again"
        )
        raise UnusableSchemaError(reason)
    return fitted


def spark_type(kind: "pa.DataType") -> DataType:
    """Spark's type for a type of `as_spark_takes_it`; a time without a zone has none in Spark."""
    from pyspark.sql.pandas.types import from_arrow_type

    # Before PySpark 4.2, a time without a zone would get the zone of the session by default.
    return from_arrow_type(kind, prefer_timestamp_ntz=True)


def as_spark_takes_it(kind: "pa.DataType") -> "pa.DataType":
    """The type of Arrow whose values Spark reads as `from_avro` returns them."""
    import pyarrow as pa

    from segmentlog.decoding import UnusableSchemaError

    types = pa.types
    if types.is_struct(kind):
        return pa.struct([each.with_type(as_spark_takes_it(each.type)) for each in kind])
    if types.is_map(kind):
        return pa.map_(kind.key_type, as_spark_takes_it(kind.item_type))
    if types.is_list(kind):
        return pa.list_(as_spark_takes_it(kind.value_type))
    if types.is_timestamp(kind):
        return pa.int64() if kind.unit == "ns" else pa.timestamp("us", kind.tz)
    if types.is_decimal256(kind):
        raise UnusableSchemaError(f"Spark has no {kind}, whose precision is above 38")
    plain = {
        types.is_time32: pa.int32(),
        types.is_time64: pa.int64(),
        types.is_uint8: pa.int16(),
        types.is_uint16: pa.int32(),
        types.is_uint32: pa.int64(),
        types.is_uint64: pa.decimal128(20, 0),
        types.is_fixed_size_binary: pa.binary(),
    }
    return next((other for is_such, other in plain.items() if is_such(kind)), kind)
