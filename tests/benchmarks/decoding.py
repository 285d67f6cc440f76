"""Values of a flat Avro record of six fields: `segmentlog.decode` beside loops over records.

Run as ``python tests/benchmarks/decoding.py [RECORDS]``; it prints records per second, and the
ratio to the loop over fastavro that makes Python objects.
"""

import io
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import fastavro
import pyarrow as pa
import pyruhvro

import segmentlog

FIELDS: dict[str, Any] = {
    "id": "long", "customer": "string", "cents": "int", "paid": "boolean", "rate": "double",
    "note": ["null", "string"],
}  # fmt: skip
OLDER = {name: kind for name, kind in FIELDS.items() if name != "cents"} | {"cents": "int"}


def schema_of(fields: dict[str, Any]) -> str:
    listed = [{"name": name, "type": kind} for name, kind in fields.items()]
    return json.dumps({"type": "record", "name": "Order", "fields": listed})


def fastest(function: Callable[[], object]) -> float:
    """Seconds of the fastest of three runs."""
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return min(times)


def main(n_records: int = 100_000) -> None:
    text = schema_of(FIELDS)
    parsed = fastavro.parse_schema(json.loads(text))
    written = []
    for n in range(n_records):
        into = io.BytesIO()
        note = None if n % 3 else f"note {n}"
        record = {"id": n, "customer": f"customer-{n % 1000}", "cents": n % 5000,
                  "paid": n % 2 == 0, "rate": n / 2, "note": note}  # fmt: skip
        fastavro.schemaless_writer(into, parsed, record)
        written.append(into.getvalue())
    known = pa.table(
        {"subject": ["orders-value"] * 2, "version": [1, 2], "id": [1, 2], "guid": ["", ""],
         "schema_type": ["AVRO"] * 2, "schema": [schema_of(OLDER), text],
         "references": [[], []], "deleted": [False, False]}
    )  # fmt: skip
    rows = pa.table({"value": pa.array([b"\0\0\0\0\2" + each for each in written], pa.binary())})

    def loop() -> list[Any]:
        return [fastavro.schemaless_reader(io.BytesIO(each), parsed, None) for each in written]

    ways: dict[str, Callable[[], object]] = {
        "fastavro, objects": loop,
        "fastavro, then Arrow": lambda: pa.array(loop()),
        "pyruhvro alone": lambda: pyruhvro.deserialize_array(written, text),
        "segmentlog.decode": lambda: segmentlog.decode(rows, known, "orders-value"),
        "segmentlog.decode, resolved": lambda: segmentlog.decode(
            rows, known, "orders-value", version=1
        ),
    }
    seconds = {name: fastest(way) for name, way in ways.items()}
    for name, taken in seconds.items():
        ratio = seconds["fastavro, objects"] / taken
        print(f"{name:30} {n_records / taken:12,.0f} records/s {ratio:8.2f} x")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
