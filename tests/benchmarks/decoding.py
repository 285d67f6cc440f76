"""Values of six flat fields in three formats: `segmentlog.decode` beside loops over records.

Run as ``python tests/benchmarks/decoding.py [RECORDS]``.  It prints records per second, and the
ratio to the loop that makes Python objects, for each format; and what the library that decodes
does alone, which is the bound.
"""

import io
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import fastavro
import ptars
import pyarrow as pa
import pyarrow.json
import pyruhvro

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
        "pyruhvro alone": lambda: pyruhvro.deserialize_array(written, text),
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


def main(n_records: int = 100_000) -> None:
    records = [
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
    for ways in (avro(records), protobuf(records), in_json(records)):
        seconds = {name: fastest(way) for name, way in ways.items()}
        loop = next(iter(seconds.values()))
        for name, taken in seconds.items():
            print(f"{name:30} {n_records / taken:12,.0f} records/s {loop / taken:8.2f} x")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
