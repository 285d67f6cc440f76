"""Keys and values of Kafka's own records: which message a record is, and its fields.

A record of a coordinator (``__consumer_offsets``, ``__transaction_state``,
``__share_group_state``) has its type before its key, and its version before its value, each as an
i16.  A record of the metadata is framed: three unsigned varints (version of the frame, api key,
version) stand before the message.

As JSON, records have the names and the form of Kafka's dump tool.  The key of a coordinator's
record is ``{"type": 1, "name": "OffsetCommit", "data": {…}}``, and its value
``{"version": 3, "data": {…}}``.  The value of a framed record has all three, such as
``{"type": "TOPIC_RECORD", "version": 0, "data": {…}}``.  Bytes are written in Base64, and ids as
Kafka prints them; the subscriptions and assignments of consumers are decoded.

Rules: ``CoordinatorRecordSerde``, ``AbstractApiMessageSerde``, ``MetadataRecordSerde``;
``DumpLogSegments``, and the ``JsonConverter`` of each message.
"""

import base64
import json
import math
import re
import struct
import uuid
from collections.abc import Mapping
from functools import cache, partial
from typing import Any, NamedTuple

from segmentlog.format.messages import lines
from segmentlog.format.messages.reader import Reader, Schema, parse_schemas, read_struct, uuid_text
from segmentlog.format.newer import NewerFormatError, note, notes_of

_FRAME_VERSION = 1
_NEWEST_PROTOCOL = 3
_SHORT = struct.Struct(">h")

_COORDINATORS = {
    "__consumer_offsets": lines.OFFSETS,
    "__transaction_state": lines.TRANSACTIONS,
    "__share_group_state": lines.SHARE_STATE,
}
_CHANGED_BY_4_1 = {
    "__consumer_offsets": lines.OFFSETS_4_0,
    "__share_group_state": lines.SHARE_STATE_4_0,
}
_FRAMED = {"__cluster_metadata": lines.METADATA, "__remote_log_metadata": lines.REMOTE_LOG}

#: Topics with records of a coordinator, and topics with framed records.
COORDINATOR_TOPICS, FRAMED_TOPICS = tuple(_COORDINATORS), tuple(_FRAMED)

#: Control records of the metadata, by type (``ControlRecordType``).
_CONTROL = {
    2: "LeaderChangeMessage",
    3: "SnapshotHeaderRecord",
    4: "SnapshotFooterRecord",
    5: "KRaftVersionRecord",
    6: "VotersRecord",
}


class CoordinatorRecord(NamedTuple):
    """A record of a coordinator; `value` is None for a tombstone."""

    name: str  # of the message, without ``Key`` or ``Value``
    type: int  # the number before the key
    key: Mapping[str, Any]  # fields of the key, by names in snake case
    version: int  # of the value, or -1 for a tombstone
    value: Mapping[str, Any] | None  # fields of the value


class Framed(NamedTuple):
    """A record of the metadata: the name of its schema, its version, and its fields."""

    name: str
    version: int
    fields: Mapping[str, Any]


@cache
def coordinator_schemas(
    topic: str, *, is_kafka_4_0: bool = False
) -> Mapping[int, tuple[Schema, Schema]]:
    """Schemas of keys and values of a coordinator's topic, by record type.

    `is_kafka_4_0`: whether records of share groups have the bytes of Kafka 4.0.
    """
    schemas = {**parse_schemas(_COORDINATORS[topic])}
    if is_kafka_4_0:
        schemas |= parse_schemas(_CHANGED_BY_4_1.get(topic, ""))
    found = {
        schema.api_key: (schema, schemas[name.removesuffix("Key") + "Value"])
        for name, schema in schemas.items()
        if name.endswith("Key")
    }
    if topic == "__consumer_offsets":
        # Commits of type 0 have had the values of type 1 in every release up to 4.0.
        found[0] = (found[0][0], found[1][1])
    return found


@cache
def framed_schemas(topic: str) -> Mapping[int, Schema]:
    """Schemas of a topic with framed records, by api key."""
    return {schema.api_key: schema for schema in parse_schemas(_FRAMED[topic]).values()}


def read_coordinator_record(
    topic: str, key: bytes | None, value: bytes | None, *, is_kafka_4_0: bool = False
) -> CoordinatorRecord | None:
    """The fields of a record of a coordinator, or None.

    None stands for an unknown type, and for a newer version that is left as bytes
    (`segmentlog.format.newer`).

    Raises `ValueError` if the bytes are not a record of its type.
    """
    if key is None:
        raise ValueError("it has no key")
    (kind,) = _SHORT.unpack(Reader(key).take(2))
    schemas = coordinator_schemas(topic, is_kafka_4_0=is_kafka_4_0).get(kind)
    if schemas is None:
        return None
    of_key, of_value = schemas
    name = of_key.name.removesuffix("Key")
    key_fields = read_struct(of_key, 0, key, 2)
    if value is None:
        return CoordinatorRecord(name, kind, key_fields, -1, None)
    (version,) = _SHORT.unpack(Reader(value).take(2))
    try:
        fields = read_struct(of_value, version, value, 2)
    except NewerFormatError as error:
        note(str(error))
        return None
    return CoordinatorRecord(name, kind, key_fields, version, fields)


def frame_key(data: bytes) -> int:
    """The api key of a framed record; `ValueError` if the bytes are not a frame."""
    return _frame(Reader(data))[0]


def look_at(topic: str, key: bytes | None, value: bytes | None) -> tuple[str | None, str] | None:
    """The name of a record, and what of it is newer than what we know; None if nothing is.

    Raises `ValueError` if the bytes are not a record of its type.
    """
    if topic in FRAMED_TOPICS:
        if value is None and key is not None:  # it removes what the key stands for
            return None
        value = value or b""
        kind = frame_key(value)
        schema = framed_schemas(topic).get(kind)
        newer = notes_of(lambda: read_frame(value, framed_schemas(topic)))
    else:
        (kind,) = _SHORT.unpack(Reader(key or b"").take(2))
        schema, _ = coordinator_schemas(topic, is_kafka_4_0=True).get(kind, (None, None))
        newer = notes_of(lambda: _of_either_release(topic, key, value))
    if schema is None:
        return None, f"type {kind}"
    return (schema.name.removesuffix("Key"), "; ".join(newer)) if newer else None


def _of_either_release(topic: str, key: bytes | None, value: bytes | None) -> None:
    """Read a record whose bytes 4.1 may have changed; a wrong form may look newer than it is."""
    found = []
    for is_kafka_4_0 in (False, True):
        try:
            found.append(
                notes_of(
                    partial(read_coordinator_record, topic, key, value, is_kafka_4_0=is_kafka_4_0)
                )
            )
        except ValueError as error:
            refused = error
    if not found:
        raise refused
    for each in min(found, key=len):
        note(each)


def _frame(reader: Reader) -> tuple[int, int]:
    """Api key and version of a frame, which begins here."""
    frame_version, api_key, version = reader.varint(), reader.varint(), reader.varint()
    if frame_version != _FRAME_VERSION:
        raise ValueError(f"expected frame version {_FRAME_VERSION}, found {frame_version}")
    return api_key, version


def read_frame(data: bytes, schemas: Mapping[int, Schema]) -> Framed | None:
    """The message in the value of a framed record, or None.

    None stands for an api key that is not in `schemas`, and for a newer version that is left as
    bytes (`segmentlog.format.newer`).

    `schemas`: by api key; records of other keys are not read further.  Raises `ValueError` if the
    bytes are not such a message.
    """
    reader = Reader(data)
    api_key, version = _frame(reader)
    schema = schemas.get(api_key)
    if schema is None:
        return None
    try:
        fields = reader.message(schema, version)
    except NewerFormatError as error:
        note(str(error))
        return None
    if reader.n_left:
        raise ValueError(f"{reader.n_left} bytes follow its last field")
    return Framed(schema.name, version, fields)


def read_control(key: bytes, value: bytes) -> Framed | None:
    """A control record of the metadata or of a snapshot, or None as by `read_frame`.

    Raises `ValueError` if the bytes are not such a record.
    """
    reader = Reader(key)
    reader.take(2)
    (kind,) = _SHORT.unpack(reader.take(2))
    name = _CONTROL.get(kind)
    if name is None:
        return None
    schema = parse_schemas(lines.OTHERS)[name]
    (version,) = _SHORT.unpack(Reader(value).take(2))
    try:
        return Framed(name, version, read_struct(schema, version, value))
    except NewerFormatError as error:
        note(str(error))
        return None


def read_protocol(name: str, data: bytes) -> dict[str, Any] | None:
    """Bytes that a client has written, or None; a later version is read as the newest known."""
    version = int.from_bytes(data[:2], "big", signed=True)
    if len(data) < 2 or version < 0:
        return None
    schema = parse_schemas(lines.OTHERS)[name]
    try:
        return read_struct(schema, min(version, _NEWEST_PROTOCOL), data, 2)
    except ValueError:
        return None


#: Topics whose records are known.
KAFKAS_TOPICS = (*COORDINATOR_TOPICS, *FRAMED_TOPICS)

#: What a consumer writes into the record of its group, and Kafka's tool decodes in place.
_OF_CONSUMERS = {
    "subscription": "ConsumerProtocolSubscription",
    "assignment": "ConsumerProtocolAssignment",
}

_NEXT_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")


def record_as_json(
    topic: str, key: bytes | None, value: bytes | None
) -> tuple[str | None, str | None] | None:
    """Key and value of a record of one of `KAFKAS_TOPICS`; None each where it is no message."""
    try:
        if topic not in FRAMED_TOPICS:
            return _of_coordinator(topic, key, value)
        found = None if value is None else read_frame(value, framed_schemas(topic))
    except ValueError:
        return None
    if found is None:
        return None
    kind = _NEXT_WORD.sub("_", found.name).upper()
    return None, _text({"type": kind, "version": found.version, "data": found.fields})


def _of_coordinator(
    topic: str, key: bytes | None, value: bytes | None
) -> tuple[str, str | None] | None:
    try:
        found = read_coordinator_record(topic, key, value)
    except ValueError:  # 4.1 has changed the bytes of share groups
        found = read_coordinator_record(topic, key, value, is_kafka_4_0=True)
    if found is None:
        return None
    as_key = _text({"type": found.type, "name": found.name, "data": found.key})
    if found.value is None:
        return as_key, None
    data = found.value
    if data.get("protocol_type") == "consumer":  # the fields of other clients are their own
        members = [
            member
            | {
                field: read_protocol(name, member[field]) or member[field]
                for field, name in _OF_CONSUMERS.items()
            }
            for member in data["members"]
        ]
        data = {**data, "members": members}
    return as_key, _text({"version": found.version, "data": data})


def _text(message: Mapping[str, Any]) -> str:
    return json.dumps(_plain(message), ensure_ascii=False)


def _plain(value: Any) -> Any:  # noqa: ANN401 - a field has any type
    if isinstance(value, Mapping):
        return {_camel_case(str(name)): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, uuid.UUID):
        return uuid_text(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))
