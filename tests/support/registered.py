"""Logs of a registry and of values that its serializers have written."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

import segmentlog
from segmentlog.decoding.payloads import Payloads

#: Two versions of a record: the second one has one more field.
CITY: dict[str, Any] = {"name": "city", "type": "string"}
DEGREES: dict[str, Any] = {"name": "degrees", "type": ["null", "int"], "default": None}


def record(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "Reading", "fields": [*fields]}


def register(path: Path, subject: str, version: int, number: int, schema: object) -> None:
    """Write a schema as a registry does; None removes the version."""
    key = {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}
    value = {"subject": subject, "version": version, "id": number, "schema": json.dumps(schema)}
    row = {
        "key": pa.array([json.dumps(key).encode()]),
        "value": pa.array([None if schema is None else json.dumps(value).encode()], pa.binary()),
    }
    with segmentlog.open_writer(path, "_schemas") as writer:
        writer.append(pa.table(row))


def framed(number: int, rest: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + rest


OSLO, ROME, BERN = framed(1, b"\x08Oslo"), framed(2, b"\x08Rome\2\x3c"), framed(2, b"\x08Bern\0")


def payloads(values: Sequence[bytes]) -> Payloads:
    return Payloads.of(pa.array(values, pa.binary()))


def write(path: Path, topic: str, values: list[bytes | None], **columns: Any) -> None:
    with segmentlog.open_writer(path, topic) as writer:
        writer.append(pa.table({"value": pa.array(values, pa.binary()), **columns}))


def readings(path: Path, *more: bytes | None) -> None:
    """A topic with values of both versions, and others after them."""
    register(path, "readings-value", 1, 1, record(CITY))
    register(path, "readings-value", 2, 2, record(CITY, DEGREES))
    write(path, "readings", [OSLO, ROME, BERN, *more])
