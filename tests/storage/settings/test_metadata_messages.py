"""The decoder of metadata records accepts known records, and refuses others with a reason."""

import contextlib
import random
import uuid

import pytest

from segmentlog.settings.metadata_messages import Field, Kind, Schema, decode_message

ID = uuid.UUID(int=0x0123456789ABCDEF0123456789ABCDEF)
SCHEMAS = {
    2: Schema("TopicRecord", 0, (Field("name", Kind.STRING), Field("topic_id", Kind.UUID))),
    4: Schema("ConfigRecord", 0, (Field("kind", Kind.INT8), Field("value", Kind.NULLABLE_STRING))),
}
TOPIC = bytes([1, 2, 0, 7]) + b"orders" + ID.bytes


def test_fields_in_their_order() -> None:
    """A compact string has its length plus one; no tagged field follows."""
    message = decode_message(TOPIC + b"\0", SCHEMAS)

    assert ("TopicRecord", {"name": "orders", "topic_id": ID}) == message


def test_tagged_fields_of_later_versions_are_passed_over() -> None:
    """One of the two tagged fields has 200 bytes, so its length takes two bytes."""
    tagged = bytes([2, 0, 1, 9, 5, 0xC8, 1]) + bytes(200)

    assert decode_message(TOPIC + b"\0", SCHEMAS) == decode_message(TOPIC + tagged, SCHEMAS)


def test_null_and_signs() -> None:
    """A null string is read, and a negative number."""
    assert {"kind": -2, "value": None} == decode_message(
        bytes([1, 4, 0, 0xFE, 0, 0]), SCHEMAS
    ).fields
    assert {"kind": 4, "value": ""} == decode_message(bytes([1, 4, 0, 4, 1, 0]), SCHEMAS).fields


def test_other_kinds_are_passed_over() -> None:
    """Records of other kinds are skipped, also those whose api key takes two bytes."""
    assert decode_message(bytes([1, 3, 0]) + b"anything", SCHEMAS) is None
    assert decode_message(bytes([1, 0x84, 1, 0]), SCHEMAS) is None


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it ends after 0 bytes"),
        (bytes([0, 2, 0]), "expected frame version 1, found 0"),
        (bytes([1, 2, 1]), "a TopicRecord of version 1 is newer than 0"),
        (TOPIC, "it ends after 26 bytes, inside a field"),
        (TOPIC + b"\0\0", "1 bytes follow its last field"),
        (bytes([1, 2, 0, 0]), "name is null"),
        (bytes([1, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0]), "a varint has more than 5 bytes"),
    ],
)
def test_refusals(data: bytes, reason: str) -> None:
    """Each refusal has its reason."""
    with pytest.raises(ValueError, match=reason):
        decode_message(data, SCHEMAS)


def test_no_bytes_raise_anything_else() -> None:
    """The bytes are mutated messages and noise."""
    source = random.Random(1)
    for _ in range(5000):
        data = bytearray(TOPIC + b"\0")
        for _ in range(source.randrange(1, 4)):
            data[source.randrange(len(data))] = source.randrange(256)
        with contextlib.suppress(ValueError):  # a UnicodeDecodeError is one
            decode_message(bytes(data[: source.randrange(len(data) + 1)]), SCHEMAS)
