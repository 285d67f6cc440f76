"""Keys and values as the columns of their schemas, in Spark."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructType
from registered import CITY, DEGREES, framed, readings, record, register, write

import pyspark_segmentlog

pytest.importorskip("fastavro")
pytestmark = pytest.mark.spark

ROWS = [("Oslo", None), ("Rome", 30), ("Bern", None)]


def load(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    given = {"decode": "value", "subscribe": "readings"} | options
    return spark.read.format("segmentlog").options(**given).load(str(path))


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("decoded") / "logs"
    readings(path, b"no schema", None)
    return path


def test_values_are_columns_of_spark(spark: SparkSession, logs: Path) -> None:
    frame = load(spark, logs, onUndecodable="null", strings="true")
    assert "struct<city:string,degrees:int>" == dict(frame.dtypes)["value"]
    assert "string" == dict(frame.dtypes)["key"]
    rows = frame.orderBy("offset").select("value.*", "undecodable").collect()
    assert [*ROWS, (None, None), (None, None)] == [row[:2] for row in rows]
    assert [None, None, None, "it names no schema", None] == [row[2] for row in rows]


@pytest.mark.thorough
def test_schemas_of_a_file_and_values_without_frames(
    spark: SparkSession, logs: Path, tmp_path: Path
) -> None:
    file = tmp_path / "reading.avsc"
    file.write_text(json.dumps(record(CITY)))
    given = {"decodeSchemas": str(file), "onUndecodable": "skip"}
    found = load(spark, logs, **given).select("value.*").collect()
    assert [("Oslo",), ("Rome",), ("Bern",), (None,)] == [tuple(row) for row in found]
    register(tmp_path, "plain-value", 1, 5, record(CITY))
    write(tmp_path, "plain", [b"\x08Kiel"])
    plain = load(
        spark, tmp_path, subscribe="plain", decodeFrame="none", decodeSchemas=str(tmp_path)
    )
    assert [("Kiel",)] == plain.select("value.city").collect()
    with pytest.raises(PySparkException, match=r"decodeFrame.*belongs to"):
        # Sail plans a read when its columns or rows are asked for.
        _ = spark.read.format("segmentlog").option("decodeFrame", "none").load(str(logs)).schema


@pytest.mark.thorough
def test_rows_without_a_value_are_left_out_or_end_the_query(
    spark: SparkSession, logs: Path
) -> None:
    """Whichever columns are asked for, unless the values are not."""
    left = load(spark, logs, onUndecodable="skip")
    assert [("Rome",)] == left.where("value.degrees > 0").select("value.city").collect()
    given: dict[str, Any] = {"decode": "value", "subscribe": "readings", "onUndecodable": "skip"}
    assert 4 == pyspark_segmentlog.read(spark, str(logs), "offset", **given).count()
    given["onUndecodable"] = "null"
    some = pyspark_segmentlog.read(spark, str(logs), ["undecodable", "value"], **given)
    assert [1] == [
        row[0]
        for row in some.groupBy("undecodable")
        .count()
        .where("undecodable is not null")
        .select("count")
        .collect()
    ]
    with pytest.raises(PySparkException, match="offset 3 cannot be decoded: it names no schema"):
        load(spark, logs).collect()


@pytest.mark.thorough
@pytest.mark.needs_spark("Sail plans a query at each action, and then takes the newest schema")
def test_a_frame_keeps_the_schema_that_it_was_loaded_with(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A newer version, and an id that came after `load`, are resolved to it."""
    readings(tmp_path)
    frame = load(spark, tmp_path)
    more = {"name": "more", "type": "int", "default": 0}
    register(tmp_path, "readings-value", 3, 3, record(CITY, DEGREES, more))
    write(tmp_path, "readings", [framed(3, b"\x08Lima\0\x02")])
    assert {*ROWS, ("Lima", None)} == {tuple(row) for row in frame.select("value.*").collect()}
    newer = load(spark, tmp_path).schema
    assert "more" in newer["value"].dataType.simpleString()
    register(tmp_path, "readings-value", 3, 3, None)
    with pytest.raises(PySparkException, match=r"of the query is struct.*give decodeVersion"):
        spark.read.schema(newer).format("segmentlog").options(
            decode="value", subscribe="readings"
        ).load(str(tmp_path)).collect()
    plain = StructType().add("offset", LongType())
    assert (
        4
        == spark.read.schema(plain)
        .format("segmentlog")
        .options(decode="value", subscribe="readings")
        .load(str(tmp_path))
        .count()
    )


@pytest.mark.thorough
@pytest.mark.needs_spark("Sail runs no streams of Python data sources")
def test_a_stream_keeps_its_schema_and_meets_newer_ones(
    spark: SparkSession, tmp_path: Path
) -> None:
    """An id that came later is found; a schema that is not resolved ends it, or makes null."""
    logs = tmp_path / "logs"
    readings(logs)

    def run(place: str, mode: str) -> list[tuple[object, ...]]:
        """What a query adds that ends with what is there."""
        given = {"decode": "value", "subscribe": "readings", "startingOffsets": "earliest"}
        frame = (
            spark.readStream.schema(schema)
            .format("segmentlog")
            .options(**given, onUndecodable=mode)
            .load(str(logs))
        )
        query = (
            frame.select("offset", "value.*")
            .writeStream.format("parquet")
            .trigger(availableNow=True)
            .option("checkpointLocation", str(tmp_path / f"c{place}"))
            .start(str(tmp_path / place))
        )
        query.awaitTermination()
        rows = spark.read.parquet(str(tmp_path / place)).orderBy("offset").collect()
        return [tuple(row) for row in rows]

    schema = load(spark, logs).schema
    expected = [(n, *row) for n, row in enumerate(ROWS)]
    assert expected == run("a", "fail")
    more = {"name": "more", "type": "int", "default": 0}
    register(logs, "readings-value", 3, 3, record(CITY, DEGREES, more))
    write(logs, "readings", [framed(3, b"\x08Lima\0\x02")])
    expected.append((3, "Lima", None))
    assert expected == run("a", "fail")
    register(logs, "readings-value", 4, 4, record({"name": "city", "type": "int"}))
    write(logs, "readings", [framed(4, b"\x08"), framed(3, b"\x08Kiel\0\x02")])
    with pytest.raises(StreamingQueryException, match=r"offset 4 cannot be .*the schema 4"):
        run("a", "fail")
    schema = load(spark, logs, onUndecodable="null", decodeVersion="2").schema
    assert [*expected, (4, None, None), (5, "Kiel", None)] == run("b", "null")


KINDS: dict[str, tuple[Any, bytes]] = {
    "flag": ("boolean", b"\1"), "small": ("int", b"\x0b"), "large": ("long", b"\xfe\xff\x7f"),
    "half": ("float", struct.pack("<f", 0.5)), "real": ("double", struct.pack("<d", 2.5)),
    "raw": ("bytes", b"\4\0\xff"), "text": ("string", "\4é".encode()),
    "fixed": ({"type": "fixed", "name": "F", "size": 2}, b"ab"),
    "word": ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\2"),
    "many": ({"type": "array", "items": ["null", "long"]}, b"\4\2\6\0\0"),
    "tags": ({"type": "map", "values": "double"}, b"\2\2a" + struct.pack("<d", 1.5) + b"\0"),
    "none": (["null", "string"], b"\0"),
    "inner": ({"type": "record", "name": "I", "fields": [{"name": "n", "type": "int"}]}, b"\4"),
    "price": ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, b"\2\x81"),
    "cost": ({"type": "fixed", "name": "C", "size": 4, "logicalType": "decimal",
              "precision": 9, "scale": 3}, b"\0\0\1\0"),
    "id": ({"type": "string", "logicalType": "uuid"}, b"\4ab"),
    "day": ({"type": "int", "logicalType": "date"}, b"\xc0\x9a\2"),
    "ms": ({"type": "int", "logicalType": "time-millis"}, b"\x80\1"),
    "at": ({"type": "long", "logicalType": "timestamp-millis"}, b"\x80\xd0\xac\xf3\xb2f"),
    "then": ({"type": "long", "logicalType": "timestamp-micros"}, b"\x82\xd0\xac\xf3\xb2f"),
    "local": ({"type": "long", "logicalType": "local-timestamp-millis"}, b"\x80\xd0\xac\xf3\xb2f"),
}  # fmt: skip


@pytest.mark.thorough
def test_types_and_values_are_those_of_from_avro(spark: SparkSession, tmp_path: Path) -> None:
    """Of a record with every kind of type."""
    avro = pytest.importorskip("pyspark.sql.avro.functions")
    fields = [{"name": name, "type": kind} for name, (kind, _) in KINDS.items()]
    schema = {"type": "record", "name": "R", "fields": fields}
    value = b"".join(data for _, data in KINDS.values())
    register(tmp_path, "t-value", 1, 1, schema)
    write(tmp_path, "t", [framed(1, value)] * 2)
    ours = load(spark, tmp_path, subscribe="t").select("value")
    plain = spark.read.format("segmentlog").option("subscribe", "t").load(str(tmp_path))
    try:
        theirs = plain.select(
            avro.from_avro(pyspark_segmentlog.payload("value"), json.dumps(schema)).alias("value")
        )
        expected = theirs.collect()
    except PySparkException as error:
        pytest.skip(f"Spark has no package of Avro: {error}")
    assert theirs.schema.simpleString() == ours.schema.simpleString()
    assert expected == ours.collect()


WITHOUT_PACKAGES = """
import os, sys
if os.environ.get("WITHOUT_SCHEMAS"):
    sys.modules["fastavro"] = None
"""


@pytest.mark.thorough
@pytest.mark.needs_spark("its executors are processes of their own, with other packages")
def test_a_worker_without_the_packages_names_them_and_its_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver has them, so that only a task meets what is missing."""
    from spark_server import SparkServer

    readings(tmp_path / "logs")
    for name in ("spark", "python"):
        (tmp_path / name).mkdir()
    (tmp_path / "python" / "sitecustomize.py").write_text(WITHOUT_PACKAGES)
    paths = [str(tmp_path / "python"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("SPARK_OF_TESTS", "plain")
    settings = {"spark.executorEnv.WITHOUT_SCHEMAS": "1"}
    with SparkServer("local-cluster[1,1,1024]", tmp_path / "spark", settings) as server:
        spark = server.session()
        with pytest.raises(PySparkException) as caught:
            load(spark, tmp_path / "logs").collect()
        spark.stop()
    said = str(caught.value)
    assert "option 'decode' is 'value'; the package fastavro decodes it, and is missing in" in said
    assert "pip install 'pyspark-segmentlog[schemas]'" in said
    assert "Traceback" not in said
