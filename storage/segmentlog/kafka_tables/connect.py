"""Topics of Kafka Connect, and of MirrorMaker 2, which runs on it.

Keys are text, or JSON in the topic of offsets.  Values are JSON of ``JsonConverter``, with or
without the schema around the payload.  The key ``session-key`` holds the secret with which workers
sign their requests, and settings of connectors hold passwords: neither is ever shown.  The offsets
of a source and the trace of a failure may name URLs with passwords.

Keys and values of MirrorMaker 2 are structs of Kafka's protocol with fixed layouts.  The value of
a checkpoint has its version before it.

Rules: ``KafkaConfigBackingStore``, ``KafkaOffsetBackingStore``, ``OffsetStorageWriter`` and
``KafkaStatusBackingStore``; ``OffsetSync``, ``Checkpoint`` and ``DefaultReplicationPolicy`` of
``connect-mirror``.
"""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from segmentlog.format.messages import lines
from segmentlog.format.messages.reader import Reader, Schema, parse_schemas
from segmentlog.kafka_tables.columns import (
    INT,
    ORIGIN_IN_TOPIC,
    TEXT,
    TIME,
    Column,
    Row,
    Table,
    fields_of,
    time_of,
)
from segmentlog.kafka_tables.source import TableSource
from segmentlog.masking import MASK, masked, without_credentials
from segmentlog.reads.log import Log

#: Errors of JSON that has another form, in the code that takes it apart.
_NOT_OF_CONNECT = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError)

_CONFIG = re.compile(
    r"(?P<kind>connector|task|commit|target-state|tasks-fencing|restart-connector|logger-cluster)"
    r"-(?P<name>.+)"
)
_STATUS = re.compile(r"status-(?P<kind>connector|task|topic)-(?P<name>.+)")
_TASK = re.compile(r"(?P<name>.+)-(?P<task>\d{1,9})")


#: Key of the record with the secret with which workers sign their requests.
_SESSION_KEY = "session-key"


def _payload_of(parsed: Any) -> Any:  # noqa: ANN401 (JSON)
    """A value without the schema that ``schemas.enable`` puts around it."""
    if isinstance(parsed, dict) and parsed.keys() == {"schema", "payload"}:
        return parsed["payload"]
    return parsed


def _connect_changes(
    source: TableSource, log: Log, read: Callable[[str, Any], Row]
) -> Iterator[Row]:
    """Every record of a topic of Connect; `read` makes cells of a key and a value."""

    def rows(key: bytes | None, value: bytes | None) -> Iterator[Row]:
        parsed = None if value is None else _payload_of(json.loads(value))
        row: Row = {"key": (key or b"").decode()}
        row |= read(row["key"], parsed)
        json.dumps(row, ensure_ascii=False).encode()  # JSON can name halves of characters
        yield row | {"change": "removed" if parsed is None else "set"}

    def why_not(error: Exception) -> str:  # no bytes of the record
        return f"it is not a record of Kafka Connect ({type(error).__name__})"

    return source.rows(log, rows, why_not, _NOT_OF_CONNECT)


def _named(kind: str, name: str) -> Row:
    """Kind, connector and task of a key."""
    found = _TASK.fullmatch(name) if kind == "task" else None
    if found is None:
        return {"kind": kind, "connector": name}
    return {"kind": kind, "connector": found["name"], "task": int(found["task"])}


def _config(key: str, value: Any) -> Row:  # noqa: ANN401 (JSON)
    if key == _SESSION_KEY:
        if value is None:
            return {"kind": _SESSION_KEY}
        return {
            "kind": _SESSION_KEY,
            "value": json.dumps({"key": MASK, "algorithm": value["algorithm"]}),
            "session_key_timestamp": time_of(int(value["creation-timestamp"])),
        }
    found = _CONFIG.fullmatch(key)
    if found is None:
        return {"value": None if value is None else MASK}
    row = _named(found["kind"], found["name"])
    if value is None:
        return row
    if found["kind"] in ("connector", "task"):
        settings = {
            str(name): None if each is None else masked(name, str(each))
            for name, each in value["properties"].items()
        }
        return row | {"properties": [*settings.items()]}
    if found["kind"] == "commit":
        return row | {"tasks": _count(value["tasks"])}
    if found["kind"] == "tasks-fencing":
        return row | {"tasks": _count(value["task-count"])}
    if found["kind"] == "target-state":
        return row | {"state": str(value.get("state.v2") or value["state"])}
    return row | {"value": _json(value)}


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


def _offset(key: str, value: Any) -> Row:  # noqa: ANN401 (JSON)
    connector, partition = _payload_of(json.loads(key))
    return {
        "connector": str(connector),
        "source_partition": _json(partition),
        "source_offset": None if value is None else _json(value),
    }


def _status(key: str, value: Any) -> Row:  # noqa: ANN401 (JSON)
    found = _STATUS.fullmatch(key)
    if found is None:
        raise ValueError("its key is not one of a status")
    if found["kind"] == "topic":
        topic, _, connector = found["name"].rpartition(":connector-")
        row: Row = {"kind": "topic", "connector": connector, "topic": topic}
        if value is None:
            return row
        fields = value["topic"]
        return row | {
            "task": _count(fields["task"]),
            "discover_timestamp": time_of(int(fields["discoverTimestamp"])),
        }
    row = _named(found["kind"], found["name"])
    if value is None:
        return row
    return row | {
        "state": str(value["state"]),
        "trace": _text(value.get("trace")),
        "worker_id": str(value["worker_id"]),
        "generation": _count(value["generation"]),
        "version": _text(value.get("version")),
    }


#: Default names, those of distributed MirrorMaker 2, and names that end like the default ones.
_CONNECT = r"(?:.*[._-])?connect[._-]{0}|mm2-{0}.+internal"


CONNECT_CONFIGS = Table(
    "connect-configs",
    "Settings of connectors and tasks of Kafka Connect",
    (
        Column("key", TEXT, "key of the record"),
        Column(
            "kind",
            TEXT,
            "`connector`, `task`, `commit`, `target-state`, `tasks-fencing`, "
            "`restart-connector`, `logger-cluster` or `session-key`; null for another kind",
        ),
        Column("connector", TEXT, "the connector; for `logger-cluster`, the namespace"),
        Column("task", INT, "number of the task"),
        Column(
            "properties",
            pa.map_(TEXT, TEXT),
            "settings of a connector or a task; `[hidden]` if they are secrets",
        ),
        Column("tasks", INT, "number of tasks, for `commit` and `tasks-fencing`"),
        Column("state", TEXT, "`STARTED`, `PAUSED` or `STOPPED`, for `target-state`"),
        Column("value", TEXT, "JSON, for the other kinds; `[hidden]` in place of the session key"),
        Column("session_key_timestamp", TIME, "when the session key was made"),
        *ORIGIN_IN_TOPIC,
    ),
    partial(_connect_changes, read=_config),
    key=("record_topic", "key"),
    pattern=_CONNECT.format("configs"),
)

CONNECT_OFFSETS = Table(
    "connect-offsets",
    "How far source connectors have read; sink connectors commit as groups",
    (
        Column("connector", TEXT, "the connector"),
        Column("source_partition", TEXT, "JSON: a part of the source, such as a file or a table"),
        Column("source_offset", TEXT, "JSON: how far the connector has read this part"),
        *ORIGIN_IN_TOPIC,
    ),
    partial(_connect_changes, read=_offset),
    key=("record_topic", "connector", "source_partition"),
    pattern=_CONNECT.format("offsets"),
)

CONNECT_STATUS = Table(
    "connect-status",
    "States of connectors and tasks, and the topics that they use",
    (
        Column("kind", TEXT, "`connector`, `task` or `topic`"),
        Column("connector", TEXT, "the connector"),
        Column("task", INT, "number of the task"),
        Column("state", TEXT, "such as `RUNNING`, `PAUSED` or `FAILED`"),
        Column("trace", TEXT, "stack trace of the error, or null"),
        Column("worker_id", TEXT, "the worker"),
        Column("generation", INT, "generation of the workers' group"),
        Column("version", TEXT, "version of the plugin, or null"),
        Column("topic", TEXT, "for the kind `topic`: a topic that the connector uses"),
        Column("discover_timestamp", TIME, "when the topic was first used"),
        *ORIGIN_IN_TOPIC,
    ),
    partial(_connect_changes, read=_status),
    key=("record_topic", "key"),
    pattern=_CONNECT.format("status"),
)


def _mirror_changes(source: TableSource, log: Log, name: str) -> Iterator[Row]:
    """Every record of a topic of MirrorMaker 2, which is a struct of a name to its last byte."""
    schemas = parse_schemas(lines.MIRROR)
    of_key, of_value = schemas[f"{name}Key"], schemas[f"{name}Value"]

    def rows(key: bytes | None, value: bytes | None) -> Iterator[Row]:
        row = _struct(of_key, key or b"")
        if value is not None:
            row |= _struct(of_value, value, is_versioned=name == "Checkpoint")
        yield row | {"change": "removed" if value is None else "set"}

    return source.rows(log, rows, "it is not a record of MirrorMaker 2 ({})".format)


def _struct(schema: Schema, data: bytes, *, is_versioned: bool = False) -> dict[str, Any]:
    reader = Reader(data)
    if is_versioned and (version := int.from_bytes(reader.take(2), "big", signed=True)):
        raise ValueError(f"expected version 0, found {version}")
    fields = reader.message(schema, 0)
    if reader.n_left:
        raise ValueError(f"{reader.n_left} bytes follow its last field")
    return fields


_sync = fields_of(lines.MIRROR, "OffsetSyncKey", "OffsetSyncValue")

MM2_OFFSET_SYNCS = Table(
    "mm2-offset-syncs.<target>.internal",
    "Pairs of offsets of the same record, which MirrorMaker 2 stores in the source cluster",
    (
        _sync("topic", "the topic of the source cluster"),
        _sync("partition", "the partition"),
        _sync("upstream_offset", "an offset in the source cluster"),
        _sync("offset", "the offset of the same record in the target cluster"),
        *ORIGIN_IN_TOPIC,
    ),
    partial(_mirror_changes, name="OffsetSync"),
    key=("record_topic", "topic", "partition"),
    pattern=r"mm2-offset-syncs.+internal",
)

_checkpoint = fields_of(lines.MIRROR, "CheckpointKey", "CheckpointValue")

MM2_CHECKPOINTS = Table(
    "<source>.checkpoints.internal",
    "Offsets of groups that MirrorMaker 2 has translated and stored in the target cluster",
    (
        _checkpoint("group", "the group"),
        _checkpoint("topic", "the topic, by its name in the target cluster"),
        _checkpoint("partition", "the partition"),
        _checkpoint("upstream_offset", "the offset that the group has committed in the source"),
        _checkpoint("offset", "the offset for the target cluster; it may be lower than needed"),
        _checkpoint("metadata", "text that the consumer has given"),
        *ORIGIN_IN_TOPIC,
    ),
    partial(_mirror_changes, name="Checkpoint"),
    key=("record_topic", "group", "topic", "partition"),
    pattern=r".+checkpoints.internal",
)


def hide_connect_secrets(records: pa.RecordBatch) -> pa.RecordBatch:
    """Records with `MASK` as the value of those that are settings of Connect with a secret.

    These are the session key, and connectors and tasks with a setting that is or has a secret.

    `records`: with columns ``key`` and ``value``, binary.
    """
    keys = records["key"]
    is_config = pc.equal(keys, pa.scalar(_SESSION_KEY.encode(), pa.binary()))
    for prefix in (b"connector-", b"task-"):
        is_config = pc.or_(is_config, pc.starts_with(keys, prefix))
    rows = pc.indices_nonzero(pc.fill_null(is_config, False)).to_pylist()
    if not any(_has_secret(records["value"][row].as_py()) for row in rows):
        return records
    values = records["value"].to_pylist()
    for row in rows:
        if _has_secret(values[row]):
            values[row] = MASK.encode()
    at = records.schema.get_field_index("value")
    return records.set_column(at, records.schema.field(at), pa.array(values, pa.binary()))


def _has_secret(value: bytes | None) -> bool:
    """Whether a value is a session key, or has a setting that is or has a secret."""
    try:
        parsed = _payload_of(json.loads(value or b""))
    except (ValueError, RecursionError):
        return False
    if not isinstance(parsed, dict):
        return False
    if parsed.keys() >= {"key", "algorithm", "creation-timestamp"}:
        return True
    properties = parsed.get("properties")
    return isinstance(properties, dict) and any(
        each is not None and masked(name, str(each)) != str(each)
        for name, each in properties.items()
    )
