"""Schemas that a user gives, and what is said of those that do not do."""

import pytest
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from pyspark_segmentlog.schema import selected_columns
from segmentlog.errors import OptionError


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (
            StructField("key", StringType()),
            (
                "column 'key' is string; read it as binary, then convert it: "
                'selectExpr("cast(key as string) as key")'
            ),
        ),
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
    """Subject first, then what to do instead."""
    with pytest.raises(OptionError) as refused:
        selected_columns(StructType([field]))

    assert said == str(refused.value)


def test_a_column_that_stands_twice() -> None:
    """It is named."""
    twice = StructType([StructField("key", BinaryType())] * 2)
    with pytest.raises(OptionError, match="'key' is there more than once; leave out all but one"):
        selected_columns(twice)
