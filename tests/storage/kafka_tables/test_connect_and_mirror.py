"""Topics of Kafka Connect and MirrorMaker 2; two keys are the bytes of release 4.3.1."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from coordinator_logs import Coordinator, text

import segmentlog
from segmentlog.kafka_tables.connect import hide_connect_secrets
from segmentlog.masking import MASK

Pair = tuple[bytes, bytes | None]

OFFSETS = struct.pack(">qq", 40, 34)
SYNC = bytes.fromhex("00066f726465727300000000")
CHECKPOINT = bytes.fromhex("000267310008612e6f726465727300000000")


def record(key: object, value: object) -> Pair:
    """A record of Connect: a text or JSON as key, and JSON as value; None is a tombstone."""
    encoded = key if isinstance(key, str) else json.dumps(key)
    return encoded.encode(), None if value is None else json.dumps(value).encode()


def test_offset_syncs_and_checkpoints(tmp_path: Path) -> None:
    """The last record of each key counts."""
    later = struct.pack(">hqq", 0, 55, 50) + text("m")
    (
        Coordinator()
        .add((SYNC, OFFSETS), (SYNC, struct.pack(">qq", 41, 35)))
        .write(tmp_path, 0, "mm2-offset-syncs.b.internal")
    )
    (
        Coordinator()
        .add((CHECKPOINT, b"\0\0" + OFFSETS + text("")), (CHECKPOINT, later))
        .write(tmp_path, 0, "a.checkpoints.internal")
    )
    (sync,) = segmentlog.table(tmp_path, "mm2_offset_syncs").to_pylist()
    (checkpoint,) = segmentlog.table(tmp_path, "mm2_checkpoints").to_pylist()

    assert ("orders", 0, 41, 35, "mm2-offset-syncs.b.internal", 1) == tuple(
        sync[each]
        for each in (
            "topic",
            "partition",
            "upstream_offset",
            "offset",
            "record_topic",
            "record_offset",
        )
    )
    assert ("g1", "a.orders", 0, 55, 50, "m") == tuple([*checkpoint.values()][:6])
    history = segmentlog.table(tmp_path, "mm2_checkpoints", history=True)
    assert [(40, "set"), (55, "set")] == [
        *zip(history["upstream_offset"].to_pylist(), history["change"].to_pylist(), strict=True)
    ]
    assert {"mm2_offset_syncs", "mm2_checkpoints"} <= {*segmentlog.tables(tmp_path)}


@pytest.mark.parametrize(
    "bad",
    [(SYNC + b"x", OFFSETS), (SYNC, OFFSETS + b"x"), (SYNC, OFFSETS[:9]), (b"", OFFSETS)],
)
def test_other_bytes_are_no_offset_sync(tmp_path: Path, bad: Pair) -> None:
    """The error names the offset. With `skip`, the record is left out."""
    topic = "mm2-offset-syncs.b.internal"
    directory = Coordinator().add((SYNC, OFFSETS), bad).write(tmp_path, 0, topic)
    with pytest.raises(segmentlog.MalformedRecordError, match="MirrorMaker 2") as e:
        segmentlog.table(directory, "mm2_offset_syncs")
    assert e.value.offset == 1
    found = segmentlog.table(directory, "mm2_offset_syncs", on_corrupt_batch="skip")
    assert found.num_rows == 1


def test_configs_without_their_secrets(tmp_path: Path) -> None:
    """Passwords and the session key are in no column of the table and of its history."""
    session = {"key": "c2VjcmV0", "algorithm": "HmacSHA256", "creation-timestamp": 5}
    log = Coordinator().add(
        record("connector-a-b", {"properties": {"topics": "t", "db.password": "c2VjcmV0"}}),
        record("task-a-b-3", {"schema": None, "payload": {"properties": {"x": "y"}}}),
        record("commit-a-b", {"tasks": 4}),
        record("session-key", session),
        record("target-state-a-b", {"state": "PAUSED", "state.v2": "STOPPED"}),
        record("tasks-fencing-a-b", {"task-count": 2}),
        record("future-a", {"k": "c2VjcmV0"}),
        record("connector-gone", {"properties": {}}),
        record("connector-gone", None),
    )
    directory = log.write(tmp_path, 0, "connect-configs")
    found = segmentlog.table(directory, "connect_configs")
    rows = {row["key"]: row for row in found.to_pylist()}

    assert "connector-gone" not in rows
    assert [("topics", "t"), ("db.password", "[hidden]")] == rows["connector-a-b"]["properties"]
    task = rows["task-a-b-3"]
    assert ("a-b", 3, [("x", "y")]) == (task["connector"], task["task"], task["properties"])
    assert [4, 2] == [rows[each]["tasks"] for each in ("commit-a-b", "tasks-fencing-a-b")]
    assert rows["target-state-a-b"]["state"] == "STOPPED"
    assert rows["session-key"]["session_key_timestamp"] is not None
    assert (None, "[hidden]") == (rows["future-a"]["kind"], rows["future-a"]["value"])
    history = segmentlog.table(directory, "connect_configs", history=True)
    assert history["change"].to_pylist()[-1] == "removed"
    assert "c2VjcmV0" not in f"{found.to_pylist()}{history.to_pylist()}"


def test_secrets_of_other_names_and_within_values(tmp_path: Path) -> None:
    """No table and no dump of records shows them, in settings, offsets and traces."""
    uri = "mongodb://u:c2VjcmV0@h/db"
    properties = {
        "http.headers.authorization": "Basic c2VjcmV0",
        "datadog.api_key": "c2VjcmV0",
        "azure.storage.connection.string": "AccountKey=c2VjcmV0;",
        "connection.uri": uri,
    }
    status = {
        "state": "FAILED",
        "trace": f"IOException: {uri}\n\tat a.B(C.java:1)",
        "worker_id": "w:1",
        "generation": 3,
    }
    for topic, pair in {
        "connect-configs": record("connector-a", {"properties": properties}),
        "connect-offsets": record(["a", {"ns": uri}], {"password": "c2VjcmV0", "at": [7]}),
        "connect-status": record("status-task-a-0", status),
    }.items():
        Coordinator().add(pair).write(tmp_path, 0, topic)
    (settings,), (offset,), (state,) = (
        segmentlog.table(tmp_path, f"connect_{name}").to_pylist()
        for name in ("configs", "offsets", "status")
    )

    assert {
        **dict.fromkeys(properties, "[hidden]"),
        "connection.uri": "mongodb://[hidden]@h/db",
    } == dict(settings["properties"])
    assert {"ns": "mongodb://[hidden]@h/db"} == json.loads(offset["source_partition"])
    assert {"password": "[hidden]", "at": [7]} == json.loads(offset["source_offset"])
    assert "IOException: mongodb://[hidden]@h/db\n\tat a.B(C.java:1)" == state["trace"]
    assert MASK in str(
        hide_connect_secrets(
            pa.record_batch(
                {
                    "key": [b"connector-a"],
                    "value": [json.dumps({"properties": {"x": uri}}).encode()],
                }
            )
        )["value"][0].as_py()
    )


def test_offsets_and_states_in_topics_of_any_name(tmp_path: Path) -> None:
    """A topic is found by its name, or given."""
    key = ["files", {"filename": "f"}]
    status = {
        "state": "RUNNING",
        "trace": None,
        "worker_id": "w:1",
        "generation": 3,
        "version": "4.3.1",
    }
    used = {"topic": {"name": "t", "connector": "files", "task": 0, "discoverTimestamp": 9}}
    Coordinator().add(record(key, {"position": 7})).write(tmp_path, 0, "places")
    (
        Coordinator()
        .add(
            record("status-connector-files", status),
            record("status-task-files-0", status),
            record("status-topic-t:connector-files", used),
            record("status-topic-u:connector-files", used),
            record("status-topic-u:connector-files", None),
        )
        .write(tmp_path, 2, "my-connect-status")
    )
    (row,) = segmentlog.table(tmp_path, "connect_offsets", topic="places").to_pylist()
    states = segmentlog.table(tmp_path, "connect_status").to_pylist()

    assert ("files", '{"filename": "f"}', '{"position": 7}') == tuple([*row.values()][:3])
    assert [
        ("connector", "files", None, "RUNNING", None),
        ("task", "files", 0, "RUNNING", None),
        ("topic", "files", 0, None, "t"),
    ] == [
        tuple(each[n] for n in ("kind", "connector", "task", "state", "topic")) for each in states
    ]
    with pytest.raises(segmentlog.LogDirectoryError, match="connect-offsets"):
        segmentlog.table(tmp_path, "connect_offsets")
    with pytest.raises(segmentlog.OptionError, match="Kafka fixes the topic"):
        segmentlog.table(tmp_path, "groups", topic="places")


@pytest.mark.parametrize(
    ("table", "bad"),
    [
        ("configs", (b"connector-a", b"secret")),
        ("configs", record("connector-a", [])),
        ("configs", record("commit-a", {"tasks": 2**31})),
        ("configs", record("session-key", {"creation-timestamp": 1e400})),
        ("offsets", record("no JSON", {})),
        ("offsets", record([1], {})),
        ("offsets", record(["\ud800", {}], {})),
        ("status", record("else", {})),
        ("status", record("status-connector-a", {"state": "RUNNING"})),
    ],
)
def test_other_records_are_an_error_without_their_bytes(
    tmp_path: Path, table: str, bad: Pair
) -> None:
    """The error names the offset. With `skip`, the record is left out."""
    directory = Coordinator().add(bad).write(tmp_path, 0, f"connect-{table}")
    with pytest.raises(
        segmentlog.MalformedRecordError, match="not a record of Kafka Connect"
    ) as e:
        segmentlog.table(directory, f"connect_{table}")
    assert "secret" not in str(e.value)
    found = segmentlog.table(directory, f"connect_{table}", on_corrupt_batch="skip")
    assert found.num_rows == 0


def schema(subject: str, version: int) -> Pair:
    """A record of a schema registry."""
    key = {"keytype": "SCHEMA", "subject": subject, "version": 1, "magic": 1}
    fields = {"id": version, "schema": f'{{"type": "fixed", "name": "A", "size": {version}}}'}
    return record(json.dumps(key), fields | {"subject": subject, "version": 1})


def status(name: str, number: int) -> Pair:
    """A record of Connect's topic of states."""
    value = {"state": "RUNNING", "worker_id": "w:1", "generation": number}
    return record(f"status-connector-{name}", value)


def sync(name: str, number: int) -> Pair:
    """An offset sync of MirrorMaker 2."""
    return text(name) + bytes(4), struct.pack(">qq", number, number)


def checkpoint(name: str, number: int) -> Pair:
    """A checkpoint of MirrorMaker 2."""
    key = text(name) + text("t") + bytes(4)
    return key, struct.pack(">hqq", 0, number, number) + text("")


@pytest.mark.parametrize(
    ("table", "topic", "make", "name", "number"),
    [
        (
            "connect_configs",
            "connect-configs",
            lambda name, n: record(f"commit-{name}", {"tasks": n}),
            "connector",
            "tasks",
        ),
        (
            "connect_offsets",
            "connect-offsets",
            lambda name, n: record([name, {}], {"n": n}),
            "connector",
            "source_offset",
        ),
        ("connect_status", "connect-status", status, "connector", "generation"),
        ("schemas", "_schemas", schema, "subject", "id"),
        ("mm2_offset_syncs", "mm2-offset-syncs.b.internal", sync, "topic", "offset"),
        ("mm2_checkpoints", "a.checkpoints.internal", checkpoint, "group", "offset"),
    ],
)
def test_records_of_aborted_transactions_never_counted(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    table: str,
    topic: str,
    make: Callable[[str, int], Pair],
    name: str,
    number: str,
) -> None:
    """A worker with exactly-once sources reads committed records, up to an open transaction."""
    log = Coordinator().add(make("kept", 1), make("set", 2))
    log.add(make("kept", 3), (make("set", 0)[0], None), make("new", 4), producer=7).end(7, 0)
    log.add(make("set", 5), make("made", 6), producer=7).add(make("after", 8)).end(7, 1)
    directory = log.write(tmp_path / "decided", 0, topic)
    rows = segmentlog.table(directory, table).to_pylist()
    expected: dict[str, object] = {"kept": 1, "set": 5, "made": 6, "after": 8}
    if table == "connect_offsets":
        expected = {each: f'{{"n": {n}}}' for each, n in expected.items()}

    assert expected == {row[name]: row[number] for row in rows}
    history = segmentlog.table(directory, table, history=True)
    assert [0, 1, 6, 7, 8] == history["record_offset"].to_pylist()
    assert ["set"] * 5 == history["change"].to_pylist()
    assert not caplog.records
    log.add(make("kept", 9), producer=8).add(make("later", 10))
    directory = log.write(tmp_path / "open", 0, topic)
    rows = segmentlog.table(directory, table).to_pylist()
    assert expected == {row[name]: row[number] for row in rows}
    (warning,) = caplog.messages
    assert (
        f"{directory / topic}-0: offsets from 10 on are not read: a transaction that begins there "
        "was neither committed nor aborted"
    ) == warning
