"""Decode Avro values with the schemas that a registry has left in its topic, and count the others.

Run with ``pip install '.[spark,schemas]'``, and ``python examples/avro_values.py [DIRECTORY
TOPIC]``.  Without arguments, the recipe makes a small directory.
"""

import json
import sys
import tempfile

import pyarrow as pa
from pyspark.sql import SparkSession

import segmentlog

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
    framed = [
        b"\0\0\0\0\1\x08Oslo",
        b"\0\0\0\0\2\x08Rome\2\x3c",
        b"\0\0\0\0\2\x08Bern\0",
        b"\0\0\0\0\7\x08Lima",
        b"no schema",
    ]
    with segmentlog.open_writer(directory, "readings") as writer:
        writer.append(pa.table({"value": framed}))


def main(directory: str, topic: str = "readings") -> None:
    """Values become columns of the newest schema; a column has the cause where that is not so."""
    spark = SparkSession.builder.getOrCreate()
    options = {"subscribe": topic, "decode": "value", "onUndecodable": "null"}
    records = spark.read.format("segmentlog").options(**options).load(directory)

    print("values that cannot be decoded:")
    causes = records.where("undecodable is not null").groupBy("undecodable").count()
    causes.orderBy("undecodable").show(truncate=False)

    rows = records.where("undecodable is null").select("offset", "value.*")
    rows.orderBy("offset").show(truncate=False)


if __name__ == "__main__":
    if sys.argv[1:]:
        main(*sys.argv[1:])
    else:
        with tempfile.TemporaryDirectory() as made:
            example(made)
            main(made)
