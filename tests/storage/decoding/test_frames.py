"""Frames of Apicurio and of AWS Glue, by their documents."""

import json
import uuid
import zlib
from typing import Any

import pyarrow as pa
import pytest

import segmentlog
from segmentlog.decoding import frames

pytest.importorskip("fastavro")

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
AVRO = json.dumps({"type": "record", "name": "A", "fields": [{"name": "a", "type": "long"}]})
GUID = "01234567-89ab-cdef-0123-456789abcdef"
LARGE = 2**40


def known_as(number: int | None, guid: str | None, kind: str = "AVRO") -> pa.Table:
    return pa.table(
        {
            "subject": ["orders-value"],
            "version": [1],
            "id": pa.array([number], pa.int64()),
            "guid": pa.array([guid], pa.string()),
            "schema_type": [kind],
            "schema": [AVRO],
            "references": pa.nulls(1),
            "deleted": [False],
        }
    )


def decoded(
    values: list[Any], known: pa.Table, headers: list[Any] | None = None, **more: Any
) -> Any:
    rows = pa.table({"value": pa.array(values, pa.binary())})
    if headers is not None:
        rows = rows.append_column("headers", pa.array(headers, HEADERS))
    return segmentlog.decode(rows, known, "orders-value", on_undecodable="null", **more)


def test_ids_of_apicurio_in_values_and_in_headers() -> None:
    number = LARGE.to_bytes(8, "big")
    header = {"key": "apicurio.value.globalId", "value": number}
    other = {"key": "apicurio.value.contentId", "value": number}
    of_key = {"key": "apicurio.key.globalId", "value": number}
    values = [
        b"\0" + number + b"\2",
        b"\4",
        b"\6",
        b"\0" + number + b"\x08",
        b"\0" * 9 + b"\2",
        b"\0\0",
        b"\2",
        None,
        b"\2",
    ]
    headers = [[], [header], [other], [of_key], [], [], [{**header, "value": b"\1"}], [], []]
    found = decoded(values, known_as(LARGE, None), headers, frame="apicurio")
    expected: list[Any] = [{"a": 1}, {"a": 2}, {"a": 3}, {"a": 4}, *[None] * 5]
    assert expected == found["value"].to_pylist()
    unknown = "it names no schema"
    assert [*[None] * 4, "no schema has the id 0", unknown, unknown, None, unknown] == found[
        "undecodable"
    ].to_pylist()
    without = decoded(values[:1], known_as(LARGE, None), frame="apicurio")
    assert [{"a": 1}] == without["value"].to_pylist()


def test_versions_of_glue_and_compressed_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "_MOST_INFLATED", 1_000)
    name = uuid.UUID(GUID).bytes
    values = [
        b"\3\0" + name + b"\2",
        b"\3\5" + name + zlib.compress(b"\4"),
        b"\3\5" + name + b"nothing",
        b"\3\5" + name + zlib.compress(b"\4" * 10_000),
        b"\3\5" + name + zlib.compress(b"\4")[:-3],
        b"\3\7" + name + b"\2",
        b"\3\0",
        None,
        b"\3\0" + name[::-1] + b"\2",
    ]
    found = decoded(values, known_as(None, GUID), frame="glue")
    assert [{"a": 1}, {"a": 2}, *[None] * 7] == found["value"].to_pylist()
    causes = found["undecodable"].to_pylist()
    lost, unknown = "its bytes cannot be inflated", "it names no schema"
    assert [None, None, lost, lost, lost, unknown, unknown, None] == causes[:-1]
    assert "no schema has the guid efcdab89" in causes[-1]


def test_an_id_with_two_schemas_of_any_format_is_ambiguous() -> None:
    known = pa.concat_tables(
        each.set_column(0, "subject", [[name]])
        for name, each in [
            ("orders-value", known_as(1, None)),
            ("b", known_as(7, None)),
            ("c", known_as(7, None, "JSON")),
        ]
    )
    found = decoded([b"\0\0\0\0\7\2", b"\0\0\0\0\1\2"], known)
    assert "has several schemas: b version 1, c version 1" in found["undecodable"].to_pylist()[0]
    assert {"a": 1} == found["value"].to_pylist()[1]
