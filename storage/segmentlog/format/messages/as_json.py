"""Kafka's own records as JSON, with the names and in the form of Kafka's dump tool.

The key of a coordinator's record is ``{"type": 1, "name": "OffsetCommit", "data": {…}}``, and its
value ``{"version": 3, "data": {…}}``.  The value of a framed record has all three, such as
``{"type": "TOPIC_RECORD", "version": 0, "data": {…}}``.  Bytes are written in Base64, and ids as
Kafka prints them; the subscriptions and assignments of consumers are decoded.

Rules: ``DumpLogSegments``, and the ``JsonConverter`` of each message.
"""

import base64
import json
import math
import re
import uuid
from collections.abc import Mapping
from typing import Any

from segmentlog.format.messages.reader import uuid_text
from segmentlog.format.messages.records import (
    COORDINATOR_TOPICS,
    FRAMED_TOPICS,
    framed_schemas,
    read_coordinator_record,
    read_frame,
    read_protocol,
)

#: Topics whose records are known.
KAFKAS_TOPICS = (*COORDINATOR_TOPICS, *FRAMED_TOPICS)

#: What a consumer writes into the record of its group, and Kafka's tool decodes in place.
_OF_CONSUMERS = {
    "subscription": "ConsumerProtocolSubscription", "assignment": "ConsumerProtocolAssignment",
}  # fmt: skip

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
            member | {
                field: read_protocol(name, member[field]) or member[field]
                for field, name in _OF_CONSUMERS.items()
            }
            for member in data["members"]
        ]  # fmt: skip
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
