"""``connect_configs``, ``connect_offsets`` and ``connect_status``: topics of Kafka Connect.

Keys are text, or JSON in the topic of offsets.  Values are JSON of ``JsonConverter``, with or
without the schema around the payload.  The key ``session-key`` holds the secret with which workers
sign their requests, and settings of connectors hold passwords: neither is ever shown.  The offsets
of a source and the trace of a failure may name URLs with passwords.

Rules: ``KafkaConfigBackingStore``, ``KafkaOffsetBackingStore``, ``OffsetStorageWriter`` and
``KafkaStatusBackingStore``.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from segmentlog.kafka_tables.columns import time_of
from segmentlog.kafka_tables.connect_secrets import SESSION_KEY, payload_of
from segmentlog.kafka_tables.coordinator import placed_rows, refuse_record
from segmentlog.masking import MASK, masked, without_credentials
from segmentlog.model import OnCorruptBatch
from segmentlog.reads.log import Log

#: Errors of JSON that has another form, in the code that takes it apart.
_NOT_OF_CONNECT = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError)

_CONFIG = re.compile(
    r"(?P<kind>connector|task|commit|target-state|tasks-fencing|restart-connector|logger-cluster)"
    r"-(?P<name>.+)"
)
_STATUS = re.compile(r"status-(?P<kind>connector|task|topic)-(?P<name>.+)")
_TASK = re.compile(r"(?P<name>.+)-(?P<task>\d{1,9})")


def connect_changes(
    log: Log, on_corrupt_batch: OnCorruptBatch, name: str
) -> Iterator[dict[str, Any]]:
    """Every record of a topic of Connect.

    Raises `MalformedRecordError` if a record is not one of Connect; the error shows no bytes of
    it.  Raises `CorruptLogError` if the log is damaged.
    """
    read = {
        "connect_configs": _config, "connect_offsets": _offset, "connect_status": _status,
    }[name]  # fmt: skip
    for key, value, origin in placed_rows(log, on_corrupt_batch):
        try:
            parsed = None if value is None else payload_of(json.loads(value))
            row = {"key": (key or b"").decode()}
            row |= read(row["key"], parsed)
            json.dumps(row, ensure_ascii=False).encode()  # JSON can name halves of characters
        except _NOT_OF_CONNECT as error:
            reason = f"it is not a record of Kafka Connect ({type(error).__name__})"
            refuse_record(log, origin["record_offset"], reason, on_corrupt_batch)
            continue
        yield row | origin | {"change": "removed" if parsed is None else "set"}


def _named(row: dict[str, Any], kind: str, name: str) -> dict[str, Any]:
    """Kind, connector and task of a key."""
    found = _TASK.fullmatch(name) if kind == "task" else None
    if found is None:
        return row | {"kind": kind, "connector": name}
    return row | {"kind": kind, "connector": found["name"], "task": int(found["task"])}


def _config(key: str, value: Any) -> dict[str, Any]:  # noqa: ANN401 (JSON)
    row: dict[str, Any] = {}
    if key == SESSION_KEY:
        created = None if value is None else time_of(int(value["creation-timestamp"]))
        shown = (
            None if value is None else json.dumps({"key": MASK, "algorithm": value["algorithm"]})
        )
        return row | {"kind": SESSION_KEY, "value": shown, "session_key_timestamp": created}
    found = _CONFIG.fullmatch(key)
    if found is None:
        return row | {"value": None if value is None else MASK}
    row = _named(row, found["kind"], found["name"])
    if value is None:
        return row
    if found["kind"] in ("connector", "task"):
        settings = {str(name): _setting(name, each) for name, each in value["properties"].items()}
        return row | {"properties": [*settings.items()]}
    if found["kind"] == "commit":
        return row | {"tasks": _count(value["tasks"])}
    if found["kind"] == "tasks-fencing":
        return row | {"tasks": _count(value["task-count"])}
    if found["kind"] == "target-state":
        return row | {"state": str(value.get("state.v2") or value["state"])}
    return row | {"value": _json(value)}


def _setting(name: str, value: object) -> str | None:
    return None if value is None else masked(name, str(value))


def _json(value: object) -> str:
    return json.dumps(_without_secrets("", value))


def _without_secrets(name: str, value: object) -> object:
    match value:
        case str():
            return masked(name, value)
        case dict():
            return {each: _without_secrets(each, found) for each, found in value.items()}
        case list():
            return [_without_secrets(name, each) for each in value]
    return value


def _text(value: object) -> str | None:
    return None if value is None else without_credentials(str(value))


def _count(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value < 2**31:
        raise ValueError("it is not a number that Connect counts")
    return value


def _offset(key: str, value: Any) -> dict[str, Any]:  # noqa: ANN401 (JSON)
    connector, partition = payload_of(json.loads(key))
    return {
        "connector": str(connector),
        "source_partition": _json(partition),
        "source_offset": None if value is None else _json(value),
    }


def _status(key: str, value: Any) -> dict[str, Any]:  # noqa: ANN401 (JSON)
    found = _STATUS.fullmatch(key)
    if found is None:
        raise ValueError("its key is not one of a status")
    if found["kind"] == "topic":
        topic, _, connector = found["name"].rpartition(":connector-")
        row: dict[str, Any] = {"kind": "topic", "connector": connector, "topic": topic}
        if value is None:
            return row
        fields = value["topic"]
        return row | {
            "task": _count(fields["task"]),
            "discover_timestamp": time_of(int(fields["discoverTimestamp"])),
        }
    row = _named({}, found["kind"], found["name"])
    if value is None:
        return row
    return row | {
        "state": str(value["state"]),
        "trace": _text(value.get("trace")),
        "worker_id": str(value["worker_id"]),
        "generation": _count(value["generation"]),
        "version": _text(value.get("version")),
    }
