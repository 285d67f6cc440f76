"""Every record that a broker has written about itself has the fields that Kafka's tool prints."""

import base64
import json
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka_here import Broker, JavaClient
from kafka_here.gateway import Gateway, gateway
from kafka_here.internals import SETTINGS, left_open

import segmentlog
from segmentlog.format.messages import lines
from segmentlog.format.messages.reader import parse_schemas, read_struct, snake_case
from segmentlog.format.messages.records import framed_schemas, read_coordinator_record, read_frame
from segmentlog.format.records.decoder import BatchReader
from segmentlog.log.listing import SegmentFiles
from segmentlog.log.segment import Segment

pytestmark = pytest.mark.interop

DUMP = "org.apache.kafka.tools.DumpLogSegments"
EXAMPLES = Path(__file__).parents[2] / "examples"
CLUSTER = EXAMPLES / "cluster"
DECODERS = {
    "__consumer_offsets": "--offsets-decoder",
    "__transaction_state": "--transaction-log-decoder",
    "__share_group_state": "--share-group-state-decoder",
    "__cluster_metadata": "--cluster-metadata-decoder",
    "__remote_log_metadata": "--remote-log-metadata-decoder",
}

#: Directories of brokers that are stored, their topics, and the number of kinds of records.
STORED = [
    (CLUSTER, "__consumer_offsets", 12),
    (CLUSTER, "__transaction_state", 1),
    (CLUSTER, "__share_group_state", 2),
    (CLUSTER, "__cluster_metadata", 17),
    (EXAMPLES / "data", "__transaction_state", 1),
    (EXAMPLES / "tier" / "logs", "__remote_log_metadata", 2),
    *((EXAMPLES / "brokers" / name, "__consumer_offsets", 1) for name in ("b1", "b2", "b3")),
    *((EXAMPLES / "brokers" / name, "__cluster_metadata", 9) for name in ("b1", "b2", "b3")),
]
SEGMENT_STATES = [
    "COPY_SEGMENT_STARTED",
    "COPY_SEGMENT_FINISHED",
    "DELETE_SEGMENT_STARTED",
    "DELETE_SEGMENT_FINISHED",
]
#: States of transactions that 3.9.2 writes.
STATES = ["Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"]

#: Fields that the tool decodes in place, as a client has written them.
OF_CLIENTS = {
    "subscription": "ConsumerProtocolSubscription",
    "assignment": "ConsumerProtocolAssignment",
}


def printed(value: Any) -> Any:
    """A value as the tool prints it in JSON."""
    if isinstance(value, uuid.UUID):
        return base64.urlsafe_b64encode(value.bytes)[:22].decode()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {name: printed(each) for name, each in value.items()}
    return [*map(printed, value)] if isinstance(value, list) else value


def ours(fields: Any) -> Any:
    """Names of the tool in snake case."""
    if isinstance(fields, dict):
        return {snake_case(name): ours(each) for name, each in fields.items()}
    return [*map(ours, fields)] if isinstance(fields, list) else fields


def equal(expected: Any, found: Any) -> bool:
    """Whether our fields are those of the tool, which leaves out tagged fields with a default."""
    if isinstance(expected, dict):
        if not isinstance(found, dict) or not set(expected) <= set(found):
            return False
        absent = [found[name] for name in set(found) - set(expected)]
        defaults = (-1, 0, [], None, False, "", -2, "A" * 22)
        return all(each in defaults for each in absent) and all(
            equal(expected[name], found[name]) for name in expected
        )
    if isinstance(expected, list):
        return (
            isinstance(found, list)
            and len(expected) == len(found)
            and all(map(equal, expected, found))
        )
    return expected == found and isinstance(expected, bool) is isinstance(found, bool)


def decoded_in_place(value: dict[str, Any]) -> dict[str, Any]:
    """The bytes of clients in a classic group, read as the tool reads them."""
    if value.get("protocol_type") != "consumer":
        return value
    members, others = [], parse_schemas(lines.OTHERS)
    for member in value["members"]:
        parts = {
            name: read_struct(others[schema], member[name][1], member[name], 2)
            for name, schema in OF_CLIENTS.items()
            if member[name]
        }
        members.append(member | parts)
    return value | {"members": members}


def records_of(path: Path) -> Iterator[tuple[int, bytes | None, bytes | None]]:
    """Offset, key and value of the records of a file, without control records."""
    data, reader = path.read_bytes(), BatchReader(str(path))
    files = SegmentFiles(0, str(path), len(data))
    for placed in Segment(files, is_sealed=True).headers(0):
        if placed.header.is_control:
            continue
        for batch in reader.records(data[placed.position : placed.end], placed.position):
            for row in batch.select(["offset", "key", "value"]).to_pylist():
                yield row["offset"], row["key"], row["value"]


def printed_by_kafka(
    java: Gateway, topic: str, path: Path, main: str
) -> dict[int, tuple[Any, Any]]:
    """Key and payload of each record, as the tool prints them."""
    output = java.run(main, DECODERS[topic], "--files", str(path))
    found = {}
    for line in output.splitlines():
        match = re.match(r"\| offset: (\d+) .*?(?:key: (\{.*?\}|\S+) )?payload: (.*)$", line)
        if match:
            key = parsed(match[2]) if match[2] else None
            found[int(match[1])] = key, None if match[3] == "<DELETE>" else parsed(match[3])
    return found


def parsed(text: str) -> Any:
    """JSON, or the text of a record that the tool prints in another form."""
    return json.loads(text) if text.startswith("{") else text


def compared(java: Gateway, log_dir: Path, topic: str, main: str = DUMP) -> dict[str, int]:
    """Compare all records of a topic; the number of records of each kind."""
    counted: dict[str, int] = {}
    paths = sorted(
        path for path in log_dir.glob(f"{topic}-*/*") if path.suffix in (".log", ".checkpoint")
    )
    for path in paths:
        expected = printed_by_kafka(java, topic, path, main)
        found = [*records_of(path)]
        assert [*expected] == [offset for offset, _, _ in found], path
        for offset, key, value in found:
            name = CHECKS[topic](topic, key, value, *expected[offset])
            counted[name] = counted.get(name, 0) + 1
    return counted


def of_coordinator(topic: str, key: Any, value: Any, of_key: Any, payload: Any) -> str:
    """Compare a record of a coordinator."""
    record = read_coordinator_record(topic, key, value)
    assert record is not None
    assert (int(of_key["type"]), ours(of_key["data"])) == (record.type, printed(record.key))
    if payload is None:
        assert record.value is None
    else:
        fields = decoded_in_place(dict(record.value or {}))
        assert int(payload["version"]) == record.version
        assert equal(ours(payload["data"]), printed(fields)), (payload, fields)
    return record.name


def of_metadata(topic: str, key: Any, value: Any, of_key: Any, payload: Any) -> str:
    """Compare a record of the metadata."""
    record = read_frame(value, framed_schemas(topic))
    assert record is not None
    assert payload["type"] == snake_case(record.name).upper()
    assert payload["version"] == record.version
    assert equal(ours(payload["data"]), printed(record.fields)), (payload, record)
    return record.name


def of_tier(topic: str, key: Any, value: Any, of_key: Any, payload: Any) -> str:
    """Compare a record about a remote segment, of which the tool prints every field as text."""
    record = read_frame(value, framed_schemas(topic))
    assert record is not None
    fields = record.fields
    place = fields["remote_log_segment_id"]["topic_id_partition"]
    segment = (
        f"RemoteLogSegmentId{{topicIdPartition={printed(place['id'])}:{place['name']}-"
        f"{place['partition']}, id={printed(fields['remote_log_segment_id']['id'])}}}"
    )
    assert fields["custom_metadata"] is None
    custom = "customMetadata=Optional.empty"
    state = SEGMENT_STATES[fields["remote_log_segment_state"]]
    if record.name == "RemoteLogSegmentMetadataUpdateRecord":
        expected = (
            f"RemoteLogSegmentMetadataUpdate{{remoteLogSegmentId={segment}, {custom}, "
            f"state={state}, eventTimestampMs={fields['event_timestamp_ms']}, "
            f"brokerId={fields['broker_id']}}}"
        )
    else:
        epochs = ", ".join(
            f"{each['leader_epoch']}={each['offset']}" for each in fields["segment_leader_epochs"]
        )
        expected = (
            f"RemoteLogSegmentMetadata{{remoteLogSegmentId={segment}, "
            f"startOffset={fields['start_offset']}, endOffset={fields['end_offset']}, "
            f"brokerId={fields['broker_id']}, maxTimestampMs={fields['max_timestamp_ms']}, "
            f"eventTimestampMs={fields['event_timestamp_ms']}, segmentLeaderEpochs={{{epochs}}}, "
            f"segmentSizeInBytes={fields['segment_size_in_bytes']}, {custom}, state={state}, "
            f"txnIdxEmpty={str(fields['txn_index_empty']).lower()}}}"
        )
    assert expected == payload
    return record.name


def of_old_transactions(topic: str, key: Any, value: Any, of_key: Any, payload: Any) -> str:
    """Compare a record of a transaction with the text that the tool printed up to 4.0."""
    record = read_coordinator_record(topic, key, value)
    assert record is not None
    assert of_key == f"transaction_metadata::transactionalId={record.key['transactional_id']}"
    fields = record.value
    assert fields is not None
    partitions = [
        f"{each['topic']}-{partition}"
        for each in fields["transaction_partitions"] or ()
        for partition in each["partition_ids"]
    ]
    named = dict(re.findall(r"(\w+)[=:]([^,\[]+|\[.*?\])", payload))
    assert sorted(partitions) == sorted(filter(None, named.pop("partitions")[1:-1].split(",")))
    assert {
        "producerId": str(fields["producer_id"]),
        "producerEpoch": str(fields["producer_epoch"]),
        "state": STATES[fields["transaction_status"]],
        "txnLastUpdateTimestamp": str(fields["transaction_last_update_timestamp_ms"]),
        "txnTimeoutMs": str(fields["transaction_timeout_ms"]),
    } == named
    return record.name


def of_transactions_in_4_4(topic: str, key: Any, value: Any, of_key: Any, payload: Any) -> str:
    """Compare a record of a transaction, whose state the tool names."""
    if payload is not None:
        number = STATES.index(payload["data"]["transactionStatus"])
        payload = payload | {"data": payload["data"] | {"transactionStatus": number}}
    return of_coordinator(topic, key, value, of_key, payload)


CHECKS: dict[str, Callable[..., str]] = dict.fromkeys(DECODERS, of_coordinator)
CHECKS |= {"__cluster_metadata": of_metadata, "__remote_log_metadata": of_tier}


@pytest.mark.parametrize(
    ("directory", "topic", "least"), STORED, ids=[f"{d.name}-{topic}" for d, topic, _ in STORED]
)
def test_every_record_equals_the_dump_of_kafka(
    java: Gateway, directory: Path, topic: str, least: int
) -> None:
    """Logs and snapshots are compared record by record, and field by field."""
    counted = compared(java, directory, topic)

    assert least <= len(counted), counted


def test_every_internal_topic_of_the_stored_directories_is_compared() -> None:
    """A stored directory with another internal topic needs a line above."""
    found = {
        (path.parent, name)
        for path in [*EXAMPLES.rglob("__*-*"), *(EXAMPLES.parent / "tests/golden").rglob("__*-*")]
        if path.is_dir() and (name := path.name.rpartition("-")[0]) in DECODERS
    }
    assert found == {(directory, topic) for directory, topic, _ in STORED}


@pytest.mark.slow
def test_every_record_of_an_older_broker_equals_its_dump(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker of 3.9.2 writes older versions, and has only classic groups."""
    broker = Broker(tmp_path / "kafka", "3.9.2", settings=SETTINGS)
    try:
        with JavaClient(broker.start()) as client, left_open(broker, client):
            broker.stop()
    finally:
        broker.kill()
    java = gateway(broker.jars)
    monkeypatch.setitem(CHECKS, "__transaction_state", of_old_transactions)
    for topic, least in (
        ("__consumer_offsets", 2),
        ("__cluster_metadata", 14),
        ("__transaction_state", 1),
    ):
        assert least <= len(compared(java, broker.log_dir, topic, "kafka.tools.DumpLogSegments"))
    tables = segmentlog.tables(broker.log_dir)
    assert {"Ongoing"} < {
        row["transaction_status"]
        for row in segmentlog.table(broker.log_dir, "transactions").to_pylist()
    }
    assert all(segmentlog.table(broker.log_dir, name) is not None for name in tables)


@pytest.mark.slow
def test_every_record_of_kafka_4_4_equals_its_dump(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker of 4.4.0 has nothing that is newer than what we know; its tool names states."""
    monkeypatch.setitem(CHECKS, "__transaction_state", of_transactions_in_4_4)
    broker = Broker(tmp_path / "kafka", "4.4.0", settings=SETTINGS)
    try:
        with JavaClient(broker.start()) as client, left_open(broker, client):
            broker.stop()
    finally:
        broker.kill()
    java = gateway(broker.jars)
    for topic, least in (
        ("__consumer_offsets", 12),
        ("__cluster_metadata", 16),
        ("__transaction_state", 1),
        ("__share_group_state", 1),
    ):
        assert least <= len(compared(java, broker.log_dir, topic))
    for name in segmentlog.tables(broker.log_dir):
        found = segmentlog.table(broker.log_dir, name, strict=True)
        assert found.num_rows or name in ("unknown_records", "brokers"), name
    assert 0 == segmentlog.table(broker.log_dir, "unknown_records").num_rows
