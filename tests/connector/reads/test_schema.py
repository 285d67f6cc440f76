"""Schemas that a user gives, and the messages for schemas that are refused."""

import random

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from pyspark_segmentlog.reads.decoded import as_spark_takes_it, spark_type
from pyspark_segmentlog.reads.schema import row_schema, selected_columns, text_columns
from segmentlog.errors import OptionError


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (
            StructField("key", LongType()),
            (
                "column 'key' is bigint; read it as binary, then convert it: "
                'selectExpr("cast(key as bigint) as key")'
            ),
        ),
        (StructField("Key", BinaryType()), "column 'Key' is unknown; did you mean 'key'?"),
        (
            StructField("timestamp", LongType()),
            (
                "column 'timestamp' is bigint; read it as timestamp, then convert it: "
                'selectExpr("cast(timestamp as bigint) as timestamp")'
            ),
        ),
        (
            StructField("headers", StringType()),
            (
                "column 'headers' is string; read it as "
                "array<struct<key:string,value:binary>>, then convert it"
            ),
        ),
        (
            StructField("offset", LongType(), nullable=False),
            "column 'offset' is bigint NOT NULL; leave NOT NULL out: every column is nullable",
        ),
        (StructField("kee", BinaryType()), "column 'kee' is unknown; did you mean 'key'?"),
        (
            StructField("xyz", IntegerType()),
            (
                "column 'xyz' is unknown; the columns are key, value, topic, partition, offset, "
                "timestamp, timestampType, headers"
            ),
        ),
    ],
)
def test_a_column_that_is_not_there_so(field: StructField, said: str) -> None:
    """The message has the subject first, and then the remedy."""
    with pytest.raises(OptionError) as refused:
        selected_columns(StructType([field]))

    assert said == str(refused.value)


def test_a_column_that_stands_twice() -> None:
    """The message names the column."""
    twice = StructType([StructField("key", BinaryType())] * 2)
    with pytest.raises(
        OptionError, match="'key' is present more than once; leave out all but one"
    ):
        selected_columns(twice)


@pytest.mark.parametrize("seed", range(20))
def test_any_columns_in_any_order(seed: int) -> None:
    """A schema with some of the columns is used as it is."""
    draw = random.Random(seed)
    fields = row_schema(include_headers=True).fields
    chosen = draw.sample(fields, draw.randrange(len(fields) + 1))

    assert tuple(field.name for field in chosen) == selected_columns(StructType(chosen))
    assert () == text_columns(StructType(chosen))


def test_keys_and_values_may_be_text() -> None:
    """Both columns may be text, or one of them."""
    text = [StructField(name, StringType()) for name in ("value", "topic", "key")]
    both = StructType([text[0], StructField("offset", LongType()), *text[1:]])
    one = StructType([StructField("value", BinaryType()), text[2]])

    assert ("value", "offset", "topic", "key") == selected_columns(both)
    assert ("value", "key") == text_columns(both)
    assert ("key",) == text_columns(one)


def test_strings_agree_with_the_schema() -> None:
    """The option makes the columns strings. A schema with binary contradicts it."""
    made = row_schema(include_headers=True, strings=True)

    assert ("key", "value") == text_columns(made, strings=True)
    assert made.names == row_schema(include_headers=True).names
    assert () == text_columns(StructType().add("offset", LongType()), strings=True)
    with pytest.raises(OptionError, match="the schema has key or value as binary"):
        text_columns(row_schema(include_headers=False), strings=True)


def test_strings_make_text_of_keys_and_values_alone() -> None:
    """Other columns are not changed, and the reader learns which columns are text."""
    plain, text = row_schema(include_headers=True), row_schema(include_headers=True, strings=True)

    assert ("key", "value") == text_columns(text)
    assert plain.names == text.names == list(selected_columns(text))
    assert plain.fields[2:] == text.fields[2:]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (pa.timestamp("ms"), "timestamp_ntz"),
        (pa.timestamp("ms", "UTC"), "timestamp"),
        (pa.timestamp("ns", "UTC"), "bigint"),
        (pa.time32("ms"), "int"),
        (pa.time64("us"), "bigint"),
        (pa.uint32(), "bigint"),
        (pa.uint64(), "decimal(20,0)"),
        (pa.binary(4), "binary"),
        (pa.null(), "void"),
        (pa.decimal128(9, 2), "decimal(9,2)"),
        (
            pa.map_(pa.string(), pa.list_(pa.struct([("at", pa.timestamp("us"))]))),
            "map<string,array<struct<at:timestamp_ntz>>>",
        ),
    ],
)
def test_types_of_schemas_are_those_of_from_avro(kind: pa.DataType, expected: str) -> None:
    """In all versions of PySpark."""
    assert expected == spark_type(as_spark_takes_it(kind)).simpleString()
