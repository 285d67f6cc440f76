"""Values of six flat fields in three formats: `segmentlog.decode` beside loops over records.

`run.py` measures it, and the same through Spark beside Spark's own functions.  Alone, run it as
``PYTHONPATH=tests/support python tests/benchmarks/decoding.py [RECORDS]``.  It prints records per
second, and the ratio to the loop that makes Python objects, for each format; and, of protobuf and
JSON, what the library that decodes does alone, which is the bound.
"""

import io
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import ptars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from kafka_here import ArtifactsError, spark_avro_jars, spark_protobuf_jars
from measure import Digest, Result, Row, compare

import segmentlog
from segmentlog.decoding.protobuf import ProtobufSchema

FIELDS: dict[str, Any] = {
    "id": "long",
    "customer": "string",
    "cents": "int",
    "paid": "boolean",
    "rate": "double",
    "note": ["null", "string"],
}
OLDER = {name: kind for name, kind in FIELDS.items() if name != "cents"} | {"cents": "int"}

PROTO = """syntax = "proto3"; message Order { int64 id = 1; string customer = 2; int32 cents = 3;
bool paid = 4; double rate = 5; optional string note = 6; }"""

SHAPE = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "customer": {"type": "string"},
        "cents": {"type": "integer"},
        "paid": {"type": "boolean"},
        "rate": {"type": "number"},
        "note": {"type": ["null", "string"]},
    },
}

Ways = dict[str, Callable[[], object]]


def schema_of(fields: dict[str, Any]) -> str:
    listed = [{"name": name, "type": kind} for name, kind in fields.items()]
    return json.dumps({"type": "record", "name": "Order", "fields": listed})


def known_as(kind: str, *texts: str) -> pa.Table:
    """The table ``schemas`` with versions of one subject."""
    n = len(texts)
    return pa.table(
        {
            "subject": ["orders-value"] * n,
            "version": range(1, n + 1),
            "id": range(1, n + 1),
            "guid": [""] * n,
            "schema_type": [kind] * n,
            "schema": texts,
            "references": [[]] * n,
            "deleted": [False] * n,
        }
    )


def framed(frame: bytes, written: list[bytes]) -> pa.Table:
    return pa.table({"value": pa.array([frame + each for each in written], pa.binary())})


def fastest(function: Callable[[], object]) -> float:
    """Seconds of the fastest of three runs."""
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return min(times)


def avro(records: list[dict[str, Any]]) -> Ways:
    text = schema_of(FIELDS)
    parsed = fastavro.parse_schema(json.loads(text))
    written = []
    for each in records:
        into = io.BytesIO()
        fastavro.schemaless_writer(into, parsed, each)
        written.append(into.getvalue())
    known, rows = known_as("AVRO", schema_of(OLDER), text), framed(b"\0\0\0\0\2", written)

    def loop() -> list[Any]:
        return [fastavro.schemaless_reader(io.BytesIO(each), parsed, None) for each in written]

    return {
        "fastavro, objects": loop,
        "fastavro, then Arrow": lambda: pa.array(loop()),
        "segmentlog.decode, Avro": lambda: segmentlog.decode(rows, known, "orders-value"),
        "segmentlog.decode, resolved": lambda: segmentlog.decode(
            rows, known, "orders-value", version=1
        ),
    }


def protobuf(records: list[dict[str, Any]]) -> Ways:
    schema = ProtobufSchema(PROTO)
    kind = schema._message
    written = [kind(**each).SerializeToString() for each in records]
    known, rows = known_as("PROTOBUF", PROTO), framed(b"\0\0\0\0\1\0", written)
    handler = ptars.HandlerPool([kind.DESCRIPTOR.file]).get_for_message(kind.DESCRIPTOR)
    names = [each.name for each in kind.DESCRIPTOR.fields]

    def loop() -> list[Any]:
        parsed = map(kind.FromString, written)
        return [{name: getattr(each, name) for name in names} for each in parsed]

    return {
        "protobuf, objects": loop,
        "protobuf, then Arrow": lambda: pa.array(loop()),
        "ptars alone": lambda: handler.list_to_record_batch(written),
        "segmentlog.decode, protobuf": lambda: segmentlog.decode(rows, known, "orders-value"),
    }


def in_json(records: list[dict[str, Any]]) -> Ways:
    written = [json.dumps(each).encode() for each in records]
    known, rows = known_as("JSON", json.dumps(SHAPE)), framed(b"\0\0\0\0\1", written)
    joined = b"\n".join(written)

    def loop() -> list[Any]:
        return [json.loads(each) for each in written]

    return {
        "json, objects": loop,
        "json, then Arrow": lambda: pa.array(loop()),
        "pyarrow.json alone": lambda: pyarrow.json.read_json(
            io.BytesIO(joined), pyarrow.json.ReadOptions(use_threads=False)
        ),
        "segmentlog.decode, JSON": lambda: segmentlog.decode(rows, known, "orders-value"),
    }


def records_of(n_records: int) -> list[dict[str, Any]]:
    return [
        {
            "id": n,
            "customer": f"customer-{n % 1000}",
            "cents": n % 5000,
            "paid": n % 2 == 0,
            "rate": n / 2,
            "note": None if n % 3 else f"note {n}",
        }
        for n in range(n_records)
    ]


#: The rows of the table: a format, its way, the loop beside it, the goal, and the library that
#: bounds it; of Avro, the kernel does.
_ALONE = [
    ("Avro", "segmentlog.decode, Avro", "fastavro's loop", "≥ 3", ""),
    ("Avro, an older version", "segmentlog.decode, resolved", "fastavro's loop", "≥ 3", ""),
    ("protobuf", "segmentlog.decode, protobuf", "protobuf's loop", "–", "ptars alone"),
    ("JSON", "segmentlog.decode, JSON", "the loop of `json`", "–", "pyarrow.json alone"),
]


def rows(scratch: Path, n_records: int, rounds: int) -> list[Row]:
    """Loops over records in Python, and Spark's own functions, beside `decode`."""
    made = _rows_alone(n_records // 10, rounds)
    return [*made, *_rows_of_spark(scratch, n_records, rounds)]


def _rows_alone(n_records: int, rounds: int) -> list[Row]:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        return _on_one_core(n_records, rounds)
    finally:
        os.sched_setaffinity(0, cores)


def _on_one_core(n_records: int, rounds: int) -> list[Row]:
    records, found = records_of(n_records), dict[str, Result]()
    loops = {}
    for name, ways in (
        ("Avro", avro(records)),
        ("protobuf", protobuf(records)),
        ("JSON", in_json(records)),
    ):
        loop, *_ = ways
        contestants = {each: partial(_counted, way, n_records) for each, way in ways.items()}
        found |= compare(contestants, rounds)
        loops[name] = found[loop]
    made = []
    for name, way, against, goal, bound in _ALONE:
        ours, other = found[way], loops[name.partition(",")[0]]
        speeds = [f"{n_records / each.median / 1e6:.2f}" for each in (ours, other)]
        alone = f"{bound} {n_records / found[bound].median / 1e6:.2f} M; " if bound else ""
        by = (
            "the library that decodes" if bound else "the kernel that decodes, and copies of texts"
        )
        detail = (
            f"{' against '.join(speeds)} M records/s of six fields; {alone}{n_records:,} records; "
            f"±{ours.spread:.0%}, ±{other.spread:.0%}; bound by {by}"
        )
        ratio = f"{other.median / ours.median:.2f}"
        made.append(Row(f"`segmentlog.decode`, {name}, one core", against, goal, ratio, detail))
    return made


def _counted(way: Callable[[], object], n_records: int) -> Digest:
    way()
    return (n_records,)


def _rows_of_spark(scratch: Path, n_records: int, rounds: int) -> list[Row]:
    import grpc_tools
    from grpc_tools import protoc

    scratch.mkdir(exist_ok=True)
    proto, descriptor = scratch / "order.proto", scratch / "order.desc"
    proto.write_text(PROTO)
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    flags = [f"-I{scratch}", f"-I{well_known}", f"--descriptor_set_out={descriptor}", str(proto)]
    assert protoc.main(["protoc", *flags]) == 0
    parsed, kind = fastavro.parse_schema(json.loads(schema_of(FIELDS))), ProtobufSchema(PROTO)
    for start in range(0, n_records, 50_000):
        some = [each | {"id": start + each["id"]} for each in records_of(50_000)]
        in_avro = []
        for each in some:
            into = io.BytesIO()
            fastavro.schemaless_writer(into, parsed, each)
            in_avro.append(b"\0\0\0\0\1" + into.getvalue())
        messages = [b"\0\0\0\0\2\0" + kind._message(**each).SerializeToString() for each in some]
        for topic, values in (("avro", in_avro), ("proto", messages)):
            with segmentlog.open_writer(scratch / "logs", topic, num_partitions=4) as writer:
                writer.append(pa.table({"value": values}))
    for number, (topic, form, text) in enumerate(
        (("avro", "AVRO", schema_of(FIELDS)), ("proto", "PROTOBUF", PROTO)), 1
    ):
        name = {"subject": f"{topic}-value", "version": 1}
        value = name | {"id": number, "schema": text, "schemaType": form}
        key = name | {"keytype": "SCHEMA", "magic": 1}
        with segmentlog.open_writer(scratch / "logs", "_schemas") as writer:
            pair = {"key": [json.dumps(key).encode()], "value": [json.dumps(value).encode()]}
            writer.append(pa.table(pair))
    return _in_spark(scratch, descriptor, rounds)


def _in_spark(scratch: Path, descriptor: Path, rounds: int) -> list[Row]:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
    from pyspark.sql.avro.functions import from_avro
    from pyspark.sql.protobuf.functions import from_protobuf
    from spark_scan import session

    try:
        of_protobuf = spark_protobuf_jars()
    except ArtifactsError as error:
        print(f"protobuf's own parser in place of from_protobuf: {error}"[:200], file=sys.stderr)
        of_protobuf = []
    spark = session(*spark_avro_jars(), *of_protobuf)

    def load(topic: str, **options: str) -> Any:
        reader = spark.read.format("segmentlog").options(subscribe=topic, **options)
        return reader.load(str(scratch / "logs"))

    # The shortest way to the payload, which does not look at the id.
    payload = F.expr("substring(value, 6)"), F.expr("substring(value, 7)")

    def through(function: Any) -> Any:
        return lambda topic: load(topic).select(function.alias("value")).select("value.*")

    kinds = {"id": "long", "customer": "string", "cents": "int", "paid": "boolean"}
    columns = ", ".join(
        f"{n} {k}" for n, k in (kinds | {"rate": "double", "note": "string"}).items()
    )

    def parsed(batches: Any) -> Any:
        message = ProtobufSchema(PROTO).message_of
        for batch in batches:
            each = [message(value[6:]) for value in batch.column(0).to_pylist()]
            made = {name: [getattr(one, name) for one in each] for name in FIELDS}
            made["note"] = [one.note if one.HasField("note") else None for one in each]
            yield pa.RecordBatch.from_pydict(made | {"cents": pa.array(made["cents"], pa.int32())})

    of_avro = through(from_avro(payload[0], schema_of(FIELDS)))
    by_hand = lambda topic: load(topic).select("value").mapInArrow(parsed, columns)  # noqa: E731
    theirs = {"avro": ("Avro", "Spark's `from_avro`", "≥ 1", of_avro)}
    if of_protobuf:
        of_messages = through(from_protobuf(payload[1], "Order", str(descriptor)))
        theirs["proto"] = ("protobuf", "Spark's `from_protobuf`", "≥ 1", of_messages)
    else:
        theirs["proto"] = ("protobuf", "protobuf's own parser in `mapInArrow`", "–", by_hand)
    made = []
    for topic, (words, function, goal, frame_of) in theirs.items():
        decoded = load(topic, decode="value")
        of_files = spark.read.format("bench_ipc").schema(decoded.schema)
        of_files = of_files.option("files", ",".join(_decoded_files(scratch, topic)))
        frames = {
            "segmentlog": decoded.select("value.*"),
            "theirs": frame_of(topic),
            "ready": of_files.load().select("value.*"),
        }
        known: dict[str, Digest] = {}
        for name, frame in frames.items():
            sums = frame.agg(F.count("*"), F.sum("id"), F.sum("cents"), F.sum(F.length("note")))
            known[name] = tuple(int(each or 0) for each in sums.first())

        def scan(
            name: str, frames: dict[str, Any] = frames, known: dict[str, Digest] = known
        ) -> Digest:
            frames[name].write.format("noop").mode("overwrite").save()
            return known[name]

        found = compare({name: partial(scan, name) for name in frames}, rounds)
        ours, other, ready = found["segmentlog"], found["theirs"], found["ready"]
        n = ours.digest[0]
        detail = (
            f"{n / ours.median / 1e6:.2f} against {n / other.median / 1e6:.2f} M rows/s of six "
            f"columns; {n:,} rows; ±{ours.spread:.0%}, ±{other.spread:.0%}; bound by decoding, "
            f"and the connection to the JVM: without decoding, it takes "
            f"{n / ready.median / 1e6:.2f} M rows/s"
        )
        ratio = f"{other.median / ours.median:.2f}"
        work = f"{words} through Spark with `decode`, `local[2]`"
        against = f"""`format("segmentlog")`, then {function}"""
        made.append(Row(work, against, goal, ratio, detail))
    spark.stop()
    return made


def _decoded_files(scratch: Path, topic: str) -> list[str]:
    """Arrow files of decoded rows, one for each partition, in batches of 50,000."""
    rows, files = segmentlog.read(scratch / "logs", topic, decode="value"), []
    for partition in range(4):
        some = rows.filter(pc.equal(rows["partition"], partition))
        files.append(str(scratch / f"{topic}-{partition}.arrow"))
        with pa.ipc.new_file(files[-1], some.schema) as writer:
            writer.write_table(some, 50_000)
    return files


def main(n_records: int = 100_000) -> None:
    records = records_of(n_records)
    for ways in (avro(records), protobuf(records), in_json(records)):
        seconds = {name: fastest(way) for name, way in ways.items()}
        loop = next(iter(seconds.values()))
        for name, taken in seconds.items():
            print(f"{name:30} {n_records / taken:12,.0f} records/s {loop / taken:8.2f} x")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
