"""Decode Avro values with the schemas that a registry has left in its topic, and count the others.

Run with ``pip install '.[spark]'``, and ``spark-submit --packages
org.apache.spark:spark-avro_2.13:VERSION examples/avro_values.py [DIRECTORY TOPIC]``, with the
version of Spark.  Without arguments, the recipe makes a small directory.
"""

import json
import sys
import tempfile

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.avro.functions import from_avro

import segmentlog
from pyspark_segmentlog import payload, schema_id

CITY = {"name": "city", "type": "string"}
DEGREES = {"name": "degrees", "type": ["null", "int"], "default": None}


def example(directory: str) -> None:
    """A topic with values of two schemas, of a schema that is not there, and without a schema."""
    texts = [
        json.dumps({"type": "record", "name": "Reading", "fields": fields})
        for fields in ([CITY], [CITY, DEGREES])
    ]
    key = '{{"keytype":"SCHEMA","subject":"readings-value","version":{},"magic":1}}'
    with segmentlog.open_writer(directory, "_schemas") as writer:
        keys = [key.format(version).encode() for version in (1, 2)]
        values = [
            json.dumps({"subject": "readings-value", "version": n, "id": n, "schema": text})
            for n, text in enumerate(texts, 1)
        ]
        writer.append(pa.table({"key": keys, "value": [each.encode() for each in values]}))
    framed = [b"\0\0\0\0\1\x08Oslo", b"\0\0\0\0\2\x08Rome\2\x3c", b"\0\0\0\0\2\x08Bern\0",
              b"\0\0\0\0\7\x08Lima", b"no schema"]  # fmt: skip
    with segmentlog.open_writer(directory, "readings") as writer:
        writer.append(pa.table({"value": framed}))


def main(directory: str, topic: str = "readings") -> None:
    """Each schema decodes the values that have its id; columns that a schema lacks are null."""
    spark = SparkSession.builder.getOrCreate()
    schemas = spark.read.format("segmentlog").option("table", "schemas").load(directory)
    schemas = schemas.where("schema_type = 'AVRO'").selectExpr("id", "schema").distinct()
    records = spark.read.format("segmentlog").option("subscribe", topic).load(directory)
    framed = records.select(
        "offset", schema_id("value").alias("id"), payload("value").alias("payload")
    )

    print("values whose schema is not here:")
    framed.join(schemas, "id", "left_anti").groupBy("id").count().orderBy("id").show()

    parts = [
        framed.where(framed.id == each.id)
        .select("offset", from_avro("payload", each.schema).alias("decoded"))
        .select("offset", "decoded.*")
        for each in schemas.orderBy("id").collect()
    ]
    rows, *others = parts
    for each in others:
        rows = rows.unionByName(each, allowMissingColumns=True)
    rows.orderBy("offset").show(truncate=False)


if __name__ == "__main__":
    if sys.argv[1:]:
        main(*sys.argv[1:])
    else:
        with tempfile.TemporaryDirectory() as made:
            example(made)
            main(made)
