"""The topic of a schema registry is folded by subject and version."""

import hashlib
import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from coordinator_logs import Coordinator

import segmentlog

Pair = tuple[bytes, bytes | None]


def schema(
    subject: str, version: int, value: dict[str, Any] | None, *, swapped: bool = False
) -> Pair:
    """A record of a schema; Karapace has written the members of keys in another order."""
    key: dict[str, object] = {"keytype": "SCHEMA", "subject": subject, "version": version}
    key["magic"] = 1
    if swapped:
        key = dict(reversed(key.items()))
    fields = {"subject": subject, "version": version, "schema": "{}"}
    return json.dumps(key).encode(), None if value is None else json.dumps(fields | value).encode()


def other(keytype: str, value: object, **fields: object) -> Pair:
    """A record of another type."""
    return json.dumps({"keytype": keytype, **fields}).encode(), json.dumps(value).encode()


def test_the_schemas_of_a_registry(tmp_path: Path) -> None:
    """A tombstone removes a version, and a deleted subject keeps its versions, marked."""
    reference = {"name": "a.proto", "subject": "s", "version": 1}
    log = Coordinator().add(
        schema("a", 1, {"id": 1}),
        schema("a", 2, {"id": 2, "schemaType": "JSON"}),
        other("CONFIG", {"compatibilityLevel": "BACKWARD"}, subject=None, magic=0),
        other("NOOP", None, magic=0),
        schema("b", 1, {"id": 3}),
        other("DELETE_SUBJECT", {"subject": "b", "version": 1}, subject="b", magic=0),
        schema("b", 2, {"id": 4, "schemaType": "PROTOBUF", "references": [reference]}),
        schema("c", 1, {"id": 5, "deleted": True}),
        schema("a", 1, None, swapped=True),
    )
    directory = log.write(tmp_path, 0, "_schemas")
    rows = segmentlog.table(directory, "schemas").to_pylist()

    assert [
        ("a", 2, 2, "JSON", False),
        ("b", 1, 3, "AVRO", True),
        ("b", 2, 4, "PROTOBUF", False),
        ("c", 1, 5, "AVRO", True),
    ] == [
        tuple(row[n] for n in ("subject", "version", "id", "schema_type", "deleted"))
        for row in sorted(rows, key=lambda row: (row["subject"], row["version"]))
    ]
    assert [[reference]] == [row["references"] for row in rows if row["references"]]
    history = segmentlog.table(directory, "schemas", history=True).to_pylist()
    assert [("a", 1, "removed")] == [
        (row["subject"], row["version"], row["change"])
        for row in history
        if row["change"] == "removed"
    ]
    assert [0, 1, 4, 5, 6, 7, 8] == [row["record_offset"] for row in history]


@pytest.mark.parametrize(
    "bad",
    [
        (b"no JSON", b"{}"),
        (b"[]", b"{}"),
        (b"{}", b"{}"),
        schema("a", 1, {}),
        schema("a", 1, {"id": 2**31}),
        schema("a", 1, {"id": -1}),
        schema("a", 1, {"id": 1e400}),
        schema("a", 1, {"id": True}),
        schema("a", True, {"id": 1}),
        schema("a", 1, {"id": 1, "schema": "\ud800"}),
        (b"[" * 9999, b""),
        (b'{"keytype":"SCHEMA","subject":"a","version":1}', b"[1]"),
        (b"\xff", b""),
    ],
)
def test_other_bytes_are_an_error(tmp_path: Path, bad: Pair) -> None:
    """The error names the offset. With `skip`, the record is left out."""
    directory = Coordinator().add(schema("a", 9, {"id": 1}), bad).write(tmp_path, 0, "_schemas")
    with pytest.raises(
        segmentlog.MalformedRecordError, match="not JSON of a schema registry"
    ) as e:
        segmentlog.table(directory, "schemas")
    assert e.value.offset == 1
    assert segmentlog.table(directory, "schemas", on_corrupt_batch="skip").num_rows == 1


def test_guids_of_schemas(tmp_path: Path) -> None:
    """A GUID is the hash of text and references, or the hash that the registry has stored."""
    text = '{"type":"record","name":"myrecord","fields":[{"type":"string","default":null,'
    text += '"name":"f"}]}'  # with its hash in the tests of Confluent's registry
    reference = {"name": "a.proto", "subject": "s", "version": 1}
    stored = "HSDLueXjXpdU59oXC25d2w=="
    values: list[dict[str, Any]] = [
        {"schema": text},
        {"schema": text, "references": [reference]},
        {"schema": text, "metadata": {}},
        {"schema": text, "ruleSet": {"domainRules": []}},
        {"schema": "{}", "metadata": {}, "md5": stored},
        {"md5": "no base64"},
        {"md5": "AAAA"},
    ]
    log = Coordinator().add(
        *(schema("a", n, {"id": n, **value}) for n, value in enumerate(values))
    )
    guids = segmentlog.table(log.write(tmp_path, 0, "_schemas"), "schemas")["guid"].to_pylist()

    pinned = "1d20cbb9-e5e3-5e97-54e7-da170b6e5ddb"
    hashed = hashlib.md5(text.encode() + b"a.protos\0\0\0\1", usedforsecurity=False)
    assert [pinned, str(uuid.UUID(hashed.hexdigest())), None, None, pinned, None, None] == guids


@pytest.mark.parametrize(
    ("second", "is_ambiguous"),
    [
        ({"id": 7, "schema": '"long"'}, True),
        ({"id": 7, "schema": '"int"', "schemaType": "JSON"}, True),
        ({"id": 7, "schema": ' "int"'}, False),
        ({"id": 8, "schema": '"long"'}, False),
    ],
)
def test_an_id_of_two_schemas_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, second: dict[str, Any], is_ambiguous: bool
) -> None:
    """A join by id would decode values with the wrong schema; layout of JSON is no difference."""
    records = schema("a", 1, {"id": 7, "schema": '"int"'}), schema(":.c:b", 3, second)
    Coordinator().add(*records).write(tmp_path, 0, "_schemas")

    assert 2 == segmentlog.table(tmp_path, "schemas").num_rows
    expected = (
        "schema id 7 has 2 different schemas in several contexts (a version 1, :.c:b version 3): "
        "a join by id alone decodes values with the wrong schema; also compare the subject"
    )
    assert [expected] * is_ambiguous == caplog.messages


def test_many_ambiguous_ids_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A few ids are named, and the others are counted."""
    records = [
        schema(subject, number, {"id": number, "schema": f'"{subject}"'})
        for number in range(1, 9)
        for subject in ("int", "long")
    ]
    Coordinator().add(*records).write(tmp_path, 0, "_schemas")
    segmentlog.table(tmp_path, "schemas")

    assert 6 == len(caplog.messages)
    assert "3 more ids have several schemas" == caplog.messages[-1]


@pytest.mark.parametrize("is_removed_by_both", [False, True])
def test_a_key_that_no_tombstone_removes_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_removed_by_both: bool
) -> None:
    """Compaction compares bytes: the schema comes back once the tombstone is gone."""
    both = [schema("a", 1, None)] if is_removed_by_both else []
    log = Coordinator().add(
        schema("a", 1, {"id": 1}),
        schema("b", 1, {"id": 2}),
        schema("b", 1, None),
        schema("c", 1, {"id": 3}, swapped=True),
        schema("c", 1, {"id": 3}),
        schema("a", 1, None, swapped=True),
        *both,
    )
    rows = segmentlog.table(log.write(tmp_path, 0, "_schemas"), "schemas").to_pylist()
    assert [("c", 1)] == [(row["subject"], row["version"]) for row in rows]
    said = [each for each in caplog.messages if "which compaction keeps" in each]
    assert len(said) == (not is_removed_by_both)
    assert all(each.startswith("a version 1 was removed by a key of other bytes") for each in said)
