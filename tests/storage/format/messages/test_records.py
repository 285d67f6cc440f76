"""Bytes that Kafka's own classes wrote have the fields that these classes were given."""

import contextlib
import json
import random
import uuid
from typing import Any

import pytest
from coordinator_logs import commit_key, commit_value
from hypothesis import given
from hypothesis import strategies as st

from segmentlog.format.messages import lines
from segmentlog.format.messages.reader import (
    UNKNOWN_TAGS,
    Reader,
    Schema,
    parse_schemas,
    read_struct,
)
from segmentlog.format.messages.records import (
    KAFKAS_TOPICS,
    coordinator_schemas,
    framed_schemas,
    read_control,
    read_coordinator_record,
    read_frame,
    record_as_json,
)

GROUPS = "__consumer_offsets"
COMMIT_KEY = bytes.fromhex("000100016700017400000003")
OFFSET = {"offset": 5, "metadata": "m", "commit_timestamp": 1000}
MEMBER = {
    "member_id": "L",
    "client_id": "c",
    "client_host": "/h",
    "session_timeout": 6,
    "subscription": b"\1",
    "assignment": b"\2",
}
GROUP = {"protocol_type": "consumer", "generation": 3, "protocol": "range", "leader": "L"}
CURRENT = {
    "member_epoch": 1,
    "previous_member_epoch": 0,
    "state": 0,
    "partitions_pending_revocation": [],
}
OWNED = {"topic_id": uuid.UUID(int=5), "partitions": [1]}
CONSUMER = {
    "instance_id": "",
    "rack_id": "",
    "client_id": "c",
    "client_host": "h",
    "subscribed_topic_regex": "",
    "server_assignor": "",
}
STREAMS = {
    "instance_id": "",
    "rack_id": "",
    "client_id": "c",
    "client_host": "h",
    "rebalance_timeout_ms": -1,
    "topology_epoch": 3,
    "process_id": "p",
    "client_tags": [],
}
TRANSACTION = {
    "producer_id": 7,
    "producer_epoch": 1,
    "transaction_timeout_ms": 60000,
    "transaction_status": 1,
    "transaction_partitions": [{"topic": "t", "partition_ids": [0, 2]}],
    "transaction_last_update_timestamp_ms": 11,
    "transaction_start_timestamp_ms": 10,
}
TAGS = {
    "previous_producer_id": -1,
    "next_producer_id": -1,
    "next_producer_epoch": -1,
    "client_transaction_version": 0,
}

# ruff: noqa: ISC004 - bytes of one value stand on several lines

#: Written by the classes of Kafka 4.3.1: record type, value with its version, and its fields.
WRITTEN = [
    (1, "0000000000000000000500016d00000000000003e8", OFFSET),
    (1, "0001000000000000000500016d00000000000003e8ffffffffffffffff",
     OFFSET | {"expire_timestamp": -1}),
    (1, "0002000000000000000500016d00000000000003e8", OFFSET),
    (1, "000300000000000000050000000200016d00000000000003e8", OFFSET | {"leader_epoch": 2}),
    (1, "0004000000000000000500000002026d00000000000003e800",
     OFFSET | {"leader_epoch": 2, "topic_id": uuid.UUID(int=0)}),
    (1, "0004000000000000000500000002026d00000000000003e801001000000000000000010000000000000002",
     OFFSET | {"leader_epoch": 2, "topic_id": uuid.UUID("00000000-0000-0001-0000-000000000002")}),
    (2, "00000008636f6e73756d657200000003000572616e676500014c0000000100014c00016300022f68000000060"
        "0000001010000000102", GROUP | {"members": [MEMBER]}),
    (2, "00030008636f6e73756d657200000003000572616e676500014c00000000000000630000000100014cffff000"
        "16300022f68000000050000000600000001010000000102",
     GROUP | {"current_state_timestamp": 99,
              "members": [MEMBER | {"group_instance_id": None, "rebalance_timeout": 5}]}),
    (2, "000409636f6e73756d6572000000030672616e6765024c000000000000006302024c000263032f68000000050"
        "0000006020102020000",
     GROUP | {"current_state_timestamp": 99,
              "members": [MEMBER | {"group_instance_id": None, "rebalance_timeout": 5}]}),
    (2, "00030008636f6e73756d657200000003ffffffff000000000000006300000000",
     GROUP | {"protocol": None, "leader": None, "current_state_timestamp": 99, "members": []}),
    (3, "00000000000400", {"epoch": 4, "metadata_hash": 0}),
    (3, "000000000004010008000000000000004d", {"epoch": 4, "metadata_hash": 77}),
    (5, "00000101026302680101ffffffff0101000100",
     CONSUMER | {"subscribed_topic_names": [], "rebalance_timeout_ms": -1,
                 "classic_member_metadata": None}),
    (5, "000001010263026802027401000000070101001101000004d2020672616e67650301020000",
     CONSUMER | {"subscribed_topic_names": ["t"], "rebalance_timeout_ms": 7,
                 "classic_member_metadata": {
                     "session_timeout_ms": 1234,
                     "supported_protocols": [{"name": "range", "metadata": b"\1\2"}]}}),
    (8, "000000000001000000000002000000000000000000000000000000050200000001000100",
     CURRENT | {"assigned_partitions": [OWNED | {"assignment_epochs": []}]}),
    (8, "00000000000100000000000200000000000000000000000000000005020000000101000502000000090100",
     CURRENT | {"assigned_partitions": [OWNED | {"assignment_epochs": [9]}]}),
    (8, "000000000001000000000002000000000000000000000000000000050200000001010001000100",
     CURRENT | {"assigned_partitions": [OWNED | {"assignment_epochs": None}]}),
    (19, "0000010102630268ffffffff000000030270ff0100", STREAMS | {"user_endpoint": None}),
    (19, "0000010102630268ffffffff0000000302700102780009000100",
     STREAMS | {"user_endpoint": {"host": "x", "port": 9}}),
]  # fmt: skip
TRANSACTIONS = [
    (
        "0000000000000000000700010000ea600100000001000174000000020000000000000002000000000000000b0000"
        "00000000000a",
        TRANSACTION,
    ),
    (
        "0001000000000000000700010000ea600102027403000000000000000200000000000000000b00000000000000"
        "0a00",
        TRANSACTION | TAGS,
    ),
    (
        "0001000000000000000700010000ea600102027403000000000000000200000000000000000b00000000000000"
        "0a020008000000000000000602020002",
        TRANSACTION | TAGS | {"previous_producer_id": 6, "client_transaction_version": 2},
    ),
]


def key_of(kind: int) -> bytes:
    """A key of a type of record of `GROUPS`, whose strings are ``g``."""
    schema, _ = coordinator_schemas(GROUPS)[kind]
    parts = [b"\0\1g" if each.kind == "str" else b"\0\0\0\3" for each in schema.fields]
    return kind.to_bytes(2, "big") + b"".join(parts)


@pytest.mark.parametrize(("kind", "written", "expected"), WRITTEN)
def test_a_value_has_the_fields_that_were_written(
    kind: int, written: str, expected: dict[str, object]
) -> None:
    """Versions, flexible or not, tagged fields, and both forms of null are read."""
    found = read_coordinator_record(GROUPS, key_of(kind), bytes.fromhex(written))

    assert expected == found.value
    assert int(written[:4], 16) == found.version


@pytest.mark.parametrize(("written", "expected"), TRANSACTIONS)
def test_a_transaction_has_the_fields_that_were_written(
    written: str, expected: dict[str, object]
) -> None:
    """Version 0 has no tagged fields, and version 1 has their defaults where they are absent."""
    found = read_coordinator_record("__transaction_state", b"\0\0\0\1x", bytes.fromhex(written))

    assert ({"transactional_id": "x"}, expected) == (found.key, found.value)


def test_the_key_of_a_commit() -> None:
    """Types 0 and 1 have the same layout, and a tombstone has no value."""
    expected = {"group": "g", "topic": "t", "partition": 3}
    found = read_coordinator_record(GROUPS, COMMIT_KEY, None)

    assert ("OffsetCommit", 1, expected, -1, None) == found
    older = read_coordinator_record(GROUPS, b"\0\0" + COMMIT_KEY[2:], bytes.fromhex(WRITTEN[4][1]))
    assert (0, expected, 4) == (older.type, older.key, older.version)


def test_an_unknown_type_is_no_error() -> None:
    """A broker skips such a record, too. A key without a type is an error."""
    assert read_coordinator_record(GROUPS, b"\0\x63anything", b"") is None
    assert read_frame(bytes([1, 0x84, 1, 0]), framed_schemas("__cluster_metadata")) is None
    assert read_control(b"\0\0\0\x09", b"") is None
    with pytest.raises(ValueError, match="ends after 1 bytes"):
        read_coordinator_record(GROUPS, b"\0", b"")
    with pytest.raises(ValueError, match="no key"):
        read_coordinator_record(GROUPS, None, b"")


def test_a_control_record_has_its_version_twice() -> None:
    """The first field of the message is the version by which the message is read."""
    found = read_control(b"\0\0\0\3", bytes.fromhex("0000" + "00" * 7 + "4d00"))

    assert ("SnapshotHeaderRecord", 0, {"version": 0, "last_contained_log_timestamp": 77}) == found


def test_tagged_fields_of_later_versions_are_kept() -> None:
    """One of them has 200 bytes, so its length takes two bytes."""
    tagged = bytes([2, 5, 1, 9, 6, 0xC8, 1]) + bytes(200)
    found = read_coordinator_record(GROUPS, key_of(3), bytes.fromhex("000000000004") + tagged)

    assert {"epoch": 4, "metadata_hash": 0, UNKNOWN_TAGS: {5: b"\t", 6: bytes(200)}} == found.value


def topic_record(name: bytes = b"\7orders", tail: bytes = b"\0") -> bytes:
    """A TopicRecord."""
    return bytes([1, 2, 0]) + name + uuid.UUID(int=7).bytes + tail


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it ends after 0 bytes"),
        (bytes([0, 2, 0]), "expected frame version 1, found 0"),
        (topic_record(tail=b""), "it ends after 26 bytes, inside a field"),
        (topic_record(tail=b"\0\0"), "1 bytes follow its last field"),
        (topic_record(b"\0"), "Name is null"),
        (topic_record(b"\2\xff"), "invalid start byte"),
        (topic_record(tail=b"\xff\xff\xff\xff\x0f"), "elements do not fit in the 0 bytes left"),
        (bytes([1, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0]), "a varint has more than 5 bytes"),
        (bytes([1, 14, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F]), "elements do not fit"),
    ],
)
def test_refusals(data: bytes, reason: str) -> None:
    """Each refusal has its reason."""
    with pytest.raises(ValueError, match=reason):
        read_frame(data, framed_schemas("__cluster_metadata"))


def test_a_count_is_checked_before_memory_is_taken() -> None:
    """A value of a few bytes that claims two billion members is refused at once."""
    claimed = bytes.fromhex("0003" + "0000" + "00000001" + "ffffffff" + "00" * 8 + "7fffffff")
    with pytest.raises(ValueError, match="2147483647 elements do not fit in the 0 bytes left"):
        read_coordinator_record(GROUPS, key_of(2), claimed)


def every_schema() -> list[Schema]:
    """All schemas of the table."""
    return [
        each for name in lines.__all__ for each in parse_schemas(getattr(lines, name)).values()
    ]


def test_no_mutated_bytes_raise_anything_else() -> None:
    """The bytes are the written values with changed, lost and added bytes."""
    source = random.Random(1)
    values = [(GROUPS, key_of(kind), bytes.fromhex(written)) for kind, written, _ in WRITTEN]
    values += [("__transaction_state", b"\0\0\0\1x", bytes.fromhex(h)) for h, _ in TRANSACTIONS]
    for _ in range(200):
        for topic, key, value in values:
            data = bytearray(value)
            for _ in range(source.randrange(1, 4)):
                data[source.randrange(len(data))] = source.randrange(256)
            with contextlib.suppress(ValueError):  # a UnicodeDecodeError is one
                read_coordinator_record(topic, key, bytes(data[: source.randrange(len(data) + 1)]))


@given(st.sampled_from(every_schema()), st.integers(0, 4), st.binary(max_size=80))
def test_no_bytes_raise_anything_else(schema: Schema, version: int, data: bytes) -> None:
    """Every schema refuses noise with a `ValueError`, or reads no further than its end."""
    reader = Reader(data)
    with contextlib.suppress(ValueError):
        reader.message(schema, version)

    assert 0 <= reader.at <= len(data)
    with contextlib.suppress(ValueError):
        assert isinstance(read_struct(schema, version, data), dict)


def decoded(topic: str, key: bytes | None, value: bytes | None) -> tuple[Any, Any]:
    """Key and value of a record, parsed again."""
    found = record_as_json(topic, key, value)
    assert found is not None
    return tuple(None if each is None else json.loads(each) for each in found)


def test_a_commit_has_its_type_its_version_and_its_fields() -> None:
    """The names are Kafka's."""
    key, value = decoded("__consumer_offsets", commit_key("g", "t", 3), commit_value(7))

    assert {"group": "g", "topic": "t", "partition": 3} == key.pop("data")
    assert {"type": 1, "name": "OffsetCommit"} == key
    assert 7 == value["data"]["offset"]
    assert {"leaderEpoch", "metadata", "commitTimestamp"} <= value["data"].keys()


def test_a_tombstone_has_its_key_alone() -> None:
    """Its value stays null."""
    key, value = decoded("__consumer_offsets", commit_key("g", "t", 3), None)

    assert ("OffsetCommit", None) == (key["name"], value)


@pytest.mark.parametrize("topic", KAFKAS_TOPICS)
@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, None),
        (b"", b""),
        (b"\0", b"\0"),
        (b"\0\1", b"\0\1"),
        (b"\x7f\xff", b"\x7f\xff"),
        (commit_key("g", "t", 3)[:-1], commit_value(7)),
        (commit_key("g", "t", 3), b"\0\x63"),
        (None, b"\xff" * 100),
        (b"key", b"[hidden]"),
    ],
)
def test_other_bytes_are_not_decoded(topic: str, key: bytes | None, value: bytes | None) -> None:
    """Bytes that are cut, of another type or of a later version stay as they are."""
    assert record_as_json(topic, key, value) is None


def test_a_record_of_the_metadata_has_the_name_that_kafka_prints() -> None:
    """Ids are printed as Kafka prints them."""
    topic_id = bytes(range(16))
    fields = {"name": "orders", "topic_id": topic_id}
    _, value = decoded("__cluster_metadata", None, b"\1\2\0\7orders" + topic_id + b"\0")

    assert fields["name"] == value["data"]["name"]
    assert "AAECAwQFBgcICQoLDA0ODw" == value["data"]["topicId"]
    assert ("TOPIC_RECORD", 0) == (value["type"], value["version"])
