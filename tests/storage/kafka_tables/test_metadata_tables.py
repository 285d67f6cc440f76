"""Tables of the metadata of a cluster, whose directory a broker has left."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import segmentlog
from segmentlog.kafka_tables.open_table import TABLES
from segmentlog.reads.metadata_log import read_metadata
from segmentlog.testing.reference import Record, encode_batch

METADATA = "__cluster_metadata-0"
NAMES = [name for name, each in TABLES.items() if each.topic == "__cluster_metadata"]


def rows(path: str | Path, name: str, **options: Any) -> list[dict[str, Any]]:
    """Rows without their places."""
    found = segmentlog.table(path, name, **options).to_pylist()
    return [{key: value for key, value in row.items() if key[:7] != "record_"} for row in found]


@pytest.fixture
def copy(example_cluster: str, tmp_path: Path) -> Path:
    """A copy of the example."""
    shutil.copytree(example_cluster, tmp_path / "copy")
    return tmp_path / "copy"


def test_the_metadata_of_the_example(example_cluster: str) -> None:
    """The rows are those that the clients of the example have made."""
    topics = {row["topic"] for row in rows(example_cluster, "topics")}
    settings = {
        (row["resource_type"], row["resource_name"], row["name"]): row["value"]
        for row in rows(example_cluster, "configs")
    }

    assert {"orders", "invoices", "again"} == {name for name in topics if name[0] != "_"}
    assert settings["topic", "orders", "retention.ms"] == "86400000"
    assert settings["topic", "again", "cleanup.policy"] == "compact"
    assert settings["broker", "", "log.retention.bytes"] == "1000000"
    assert settings["broker", "1", "log.cleaner.threads"] == "2"
    assert ("topic", "orders", "compression.type") not in settings
    assert ("topic", "again", "segment.bytes") not in settings
    assert [("anna", "SCRAM-SHA-256", 4096), ("anna", "SCRAM-SHA-512", 4096)] == sorted(
        tuple(row.values()) for row in rows(example_cluster, "scram_users")
    )
    assert {("User:anna", "READ", "ALLOW", "orders"), ("User:anna", "ALL", "DENY", "ship")} == {
        (row["principal"], row["operation"], row["permission_type"], row["resource_name"])
        for row in rows(example_cluster, "acls")
    }
    assert {"producer_byte_rate": 1024.0, "consumer_byte_rate": 2048.0} == {
        row["key"]: row["value"] for row in rows(example_cluster, "quotas")
    }
    (broker,) = rows(example_cluster, "brokers")
    assert (1, True) == (broker["broker_id"], broker["fenced"])
    partitions = [row for row in rows(example_cluster, "partitions") if row["topic"] == "orders"]
    assert [0, 1, 2] == sorted(row["partition"] for row in partitions)
    assert {"metadata.version"} < {row["name"] for row in rows(example_cluster, "features")}


@pytest.mark.parametrize("name", NAMES)
def test_a_snapshot_and_the_log_after_it_equal_the_whole_log(copy: Path, name: str) -> None:
    """The newest snapshot, an older one, and none of them give the same rows."""
    expected = sorted(map(str, rows(copy, name)))
    snapshots = sorted((copy / METADATA).glob("*.checkpoint"))
    assert len(snapshots) > 1
    for snapshot in reversed(snapshots):
        snapshot.unlink()
        assert expected == sorted(map(str, rows(copy, name)))
    last: dict[str, dict[str, Any] | None] = {}
    keys = {"topics": "topic_id", "brokers": "broker_id", "features": "name", "acls": "id"}
    if name in keys:
        for row in rows(copy, name, history=True):
            last[row[keys[name]]] = row if row.pop("change") == "set" else None
        assert expected == sorted(str(row) for row in last.values() if row)


def test_a_history_has_what_was_removed(example_cluster: str) -> None:
    """A removed row has the values that it had, and its offset and time."""
    found = segmentlog.table(example_cluster, "topics", history=True).to_pylist()
    changes = [(row["topic"], row["change"]) for row in found if row["topic"][0] != "_"]

    assert ("gone", "removed") in changes
    assert ["set", "removed", "set"] == [change for topic, change in changes if topic == "again"]
    offsets = [row["record_offset"] for row in found]
    assert sorted(offsets) == offsets
    assert all(row["record_timestamp"] for row in found)


def test_no_secret_leaves_the_metadata(copy: Path) -> None:
    """No table has salts, keys of SCRAM, or values of sensitive settings."""
    secrets = [
        record.fields[name]
        for record in read_metadata(
            str(copy / METADATA), ["UserScramCredentialRecord"], is_history=True
        )
        for name in ("salt", "stored_key", "server_key")
    ]
    password = bytes([1, 4, 0, 4]) + b"\x021" + b"\x18ssl.keystore.password.x" + b"\x08hunter2\0"
    append(copy, password)
    shown = ""
    for name in segmentlog.tables(copy):
        for history in (False, True) if TABLES[name].history else (False,):
            shown += str(segmentlog.table(copy, name, history=history).to_pylist())

    assert len(secrets) >= 9
    assert "[hidden]" in shown
    assert "hunter2" not in shown
    assert not [each for each in secrets if str(each)[2:-1] in shown or each.hex() in shown]


def append(directory: Path, *values: bytes) -> None:
    """Append records to the metadata log."""
    path = directory / METADATA / f"{0:020d}.log"
    end = segmentlog.open_log_dir(path).log(METADATA[:-2], 0).log_end_offset
    records = [Record(end + i, 10, None, value) for i, value in enumerate(values)]
    batch = encode_batch(records, leader_epoch=1)
    path.write_bytes(path.read_bytes() + batch)


def test_what_is_not_known_does_no_harm(copy: Path) -> None:
    """A later version of a record matters only to the tables that are made of it, if it does."""
    before = rows(copy, "topics")
    append(copy, bytes([1, 99, 0]) + b"new", bytes([1, 18, 7]) + b"a later ACL")

    assert before == rows(copy, "topics")
    with pytest.raises(segmentlog.MalformedRecordError, match="strict was asked for") as found:
        rows(copy, "acls", strict=True)
    assert found.value.path.endswith(f"{0:020d}.log")
    assert len(rows(copy, "acls")) == 2
    unknown, acl = segmentlog.table(copy, "unknown_records").to_pylist()
    assert bytes([1, 99, 0]) + b"new" == unknown["value"]
    assert (bytes([1, 18, 7]) + b"a later ACL", "AccessControlEntryRecord") == (
        acl["value"],
        acl["record"],
    )


def test_the_newest_copy_is_chosen(copy: Path, tmp_path: Path) -> None:
    """The copy with the later end has a topic that the other copy lacks."""
    other = tmp_path / "other"
    (other / "t-0").mkdir(parents=True)
    shutil.copytree(copy / METADATA, other / METADATA)
    append(copy, bytes([1, 2, 0]) + b"\x04new" + bytes(15) + b"\x09" + b"\0")
    for paths in ((copy, other), (other, copy)):
        found = rows(segmentlog.open_log_dir(*paths), "topics")  # type: ignore[arg-type]
        assert "new" in {row["topic"] for row in found}
    assert "new" not in {row["topic"] for row in rows(other, "topics")}


def test_a_directory_without_metadata_says_so(example_data: str) -> None:
    """The directory may be that of a cluster with ZooKeeper."""
    assert "topics" not in segmentlog.tables(example_data)
    with pytest.raises(segmentlog.LogDirectoryError, match="no cluster metadata here"):
        segmentlog.table(example_data, "topics")
