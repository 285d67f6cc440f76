"""Kafka's own records as JSON, in the form of Kafka's dump tool."""

import json
from typing import Any

import pytest
from coordinator_logs import commit_key, commit_value

from segmentlog.format.messages.as_json import KAFKAS_TOPICS, record_as_json


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
        (None, None), (b"", b""), (b"\0", b"\0"), (b"\0\1", b"\0\1"), (b"\x7f\xff", b"\x7f\xff"),
        (commit_key("g", "t", 3)[:-1], commit_value(7)), (commit_key("g", "t", 3), b"\0\x63"),
        (None, b"\xff" * 100), (b"key", b"[hidden]"),
    ],
)  # fmt: skip
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
