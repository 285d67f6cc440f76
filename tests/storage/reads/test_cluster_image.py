"""Records of the metadata make the changes that a broker makes of them."""

import uuid
from typing import Any

import pytest

from segmentlog.format.messages.lines import METADATA, OTHERS
from segmentlog.format.messages.reader import parse_schemas
from segmentlog.reads.cluster_image import RECORDS, Image, fold
from segmentlog.reads.metadata_log import MetadataRecord

A, B = uuid.UUID(int=1), uuid.UUID(int=2)
PARTITION = {
    "partition_id": 0,
    "topic_id": A,
    "replicas": [1, 2],
    "isr": [1, 2],
    "removing_replicas": [],
    "adding_replicas": [],
    "leader": 1,
    "leader_recovery_state": 0,
    "leader_epoch": 4,
    "partition_epoch": 9,
    "directories": [A, B],
    "eligible_leader_replicas": [1],
    "last_known_elr": None,
}
NO_CHANGE = {"isr": None, "leader": -2, "replicas": None, "leader_recovery_state": -1}
BROKER = {
    "broker_id": 1,
    "incarnation_id": A,
    "broker_epoch": 5,
    "end_points": [],
    "features": [],
    "rack": None,
    "fenced": True,
    "log_dirs": [A],
}
ACL = {
    "id": A,
    "resource_type": 2,
    "resource_name": "a",
    "pattern_type": 4,
    "principal": "User:u",
    "host": "*",
    "operation": 3,
    "permission_type": 2,
}
SCRAM = {
    "name": "u",
    "mechanism": 2,
    "salt": b"s",
    "stored_key": b"k",
    "server_key": b"k",
    "iterations": 4096,
}


def record(schema: str, /, **fields: Any) -> MetadataRecord:
    """A record of a schema."""
    return MetadataRecord(schema, fields, 7, 8)


def folded(*records: MetadataRecord) -> dict[str, list[dict[str, Any]]]:
    """The rows of all tables."""
    return {name: [*rows.values()] for name, rows in fold(records).tables.items() if rows}


def topic(name: str = "a", topic_id: uuid.UUID = A) -> MetadataRecord:
    """A new topic."""
    return record("TopicRecord", name=name, topic_id=topic_id)


def config(kind: int, resource: str, name: str, value: str | None) -> MetadataRecord:
    """A setting."""
    return record(
        "ConfigRecord", resource_type=kind, resource_name=resource, name=name, value=value
    )


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"isr": [2]}, {"isr": [2], "partition_epoch": 10}),
        ({"leader": 2}, {"leader": 2, "leader_epoch": 5, "partition_epoch": 10}),
        ({"leader": 1}, {"leader_epoch": 5, "partition_epoch": 10}),
        ({"leader": -1}, {"leader": -1, "leader_epoch": 5, "partition_epoch": 10}),
        ({"leader_recovery_state": 1}, {"leader_recovery_state": 1, "partition_epoch": 10}),
        (
            {"adding_replicas": [3], "replicas": [1, 2, 3]},
            {"adding_replicas": [3], "replicas": [1, 2, 3], "partition_epoch": 10},
        ),
        (
            {"eligible_leader_replicas": [], "last_known_elr": [2]},
            {"eligible_leader_replicas": [], "last_known_elr": [2], "partition_epoch": 10},
        ),
    ],
)
def test_a_change_has_what_is_present(change: dict[str, Any], expected: dict[str, Any]) -> None:
    """A leader that is present raises the epoch, also if it is the leader that was there."""
    fields = NO_CHANGE | {"partition_id": 0, "topic_id": A} | change
    before = folded(topic(), record("PartitionRecord", **PARTITION))["partitions"][0]
    after = folded(
        topic(), record("PartitionRecord", **PARTITION), record("PartitionChangeRecord", **fields)
    )["partitions"][0]

    assert before | expected == after
    assert ("a", 0, [1, 2]) == (before["topic"], before["partition"], before["replicas"])
    assert folded(record("PartitionChangeRecord", **fields)) == {}


def test_a_removed_topic_takes_its_partitions_and_settings() -> None:
    """The log has no record for each of them. A topic of the same name has none of them."""
    image = Image()
    settings = [config(2, "a", "x", "1"), config(2, "b", "x", "2"), config(4, "a", "x", "3")]
    for each in (topic(), topic("b", B), record("PartitionRecord", **PARTITION), *settings):
        image.apply(each)
    changes = image.apply(record("RemoveTopicRecord", topic_id=A))

    assert [("configs", None), ("partitions", None), ("topics", None)] == [
        (each.table, each.row) for each in changes
    ]
    assert [("topic", "b"), ("broker", "a")] == [
        (row["resource_type"], row["resource_name"]) for row in image.tables["configs"].values()
    ]
    assert ["b"] == [row["topic"] for row in image.tables["topics"].values()]
    assert image.apply(record("RemoveTopicRecord", topic_id=A)) == []


def test_settings_and_features_are_set_and_removed() -> None:
    """A null value removes a setting, and level 0 a feature."""
    found = folded(
        config(2, "a", "x", "1"),
        config(2, "a", "x", "2"),
        config(4, "", "y", "3"),
        config(4, "", "y", None),
        config(99, "", "z", "4"),
        record("FeatureLevelRecord", name="f", feature_level=3),
        record("FeatureLevelRecord", name="g", feature_level=1),
        record("FeatureLevelRecord", name="g", feature_level=0),
    )

    assert [("topic", "x", "2"), ("99", "z", "4")] == [
        (row["resource_type"], row["name"], row["value"]) for row in found["configs"]
    ]
    assert [{"name": "f", "feature_level": 3}] == found["features"]


def test_a_broker_is_fenced_and_unfenced() -> None:
    """Newer records have 1 and -1 for a state, and 0 for no change."""
    change = {"broker_id": 1, "broker_epoch": 5, "fenced": 0, "in_controlled_shutdown": 0}
    records = [
        record("RegisterBrokerRecord", **BROKER),
        record("BrokerRegistrationChangeRecord", **change | {"fenced": -1}),
        record("BrokerRegistrationChangeRecord", **change | {"in_controlled_shutdown": 1}),
        record("BrokerRegistrationChangeRecord", **change | {"log_dirs": [B]}),
        record("FenceBrokerRecord", id=1, epoch=5),
        record("UnfenceBrokerRecord", id=1, epoch=5),
        record("UnregisterBrokerRecord", broker_id=1, broker_epoch=5),
    ]
    states = [folded(*records[:n]).get("brokers", [{}])[0] for n in range(1, 8)]

    assert [True, False, False, False, True, False, None] == [s.get("fenced") for s in states]
    assert [False, False, True, True] == [s["in_controlled_shutdown"] for s in states[:4]]
    assert [[A], [B]] == [states[2]["log_dirs"], states[3]["log_dirs"]]
    assert folded(*records[1:]) == {}


def test_quotas_acls_and_users() -> None:
    """The order of the parts of an entity does not matter, and no secret is kept."""
    user = {"entity_type": "user", "entity_name": None}
    client = {"entity_type": "client-id", "entity_name": "c"}
    quota = {"key": "k", "value": 1.5, "remove": False}
    found = folded(
        record("ClientQuotaRecord", entity=[user, client], **quota),
        record("ClientQuotaRecord", entity=[user], **quota),
        record("ClientQuotaRecord", entity=[client, user], **quota | {"remove": True}),
        record("AccessControlEntryRecord", **ACL),
        record("AccessControlEntryRecord", **ACL | {"id": B, "operation": 99}),
        record("RemoveAccessControlEntryRecord", id=A),
        record("UserScramCredentialRecord", **SCRAM),
        record("UserScramCredentialRecord", **SCRAM | {"mechanism": 1}),
        record("RemoveUserScramCredentialRecord", name="u", mechanism=1),
    )

    assert [{"entity": [user], "key": "k", "value": 1.5}] == found["quotas"]
    (acl,) = found["acls"]
    assert ("TOPIC", "PREFIXED", "UNKNOWN(99)", "DENY") == (
        acl["resource_type"],
        acl["pattern_type"],
        acl["operation"],
        acl["permission_type"],
    )
    expected = [{"name": "u", "mechanism": "SCRAM-SHA-512", "iterations": 4096}]
    assert expected == found["scram_users"]


def test_eligible_leaders_are_cleared() -> None:
    """The record names a topic, or all topics."""
    first, second = record("PartitionRecord", **PARTITION), topic("b", B)
    other = record("PartitionRecord", **PARTITION | {"topic_id": B})
    for name, expected in (("", [[], []]), ("b", [[1], []])):
        found = folded(topic(), second, first, other, record("ClearElrRecord", topic_name=name))
        assert expected == [row["eligible_leader_replicas"] for row in found["partitions"]]


CONTROLLER = {
    "controller_id": 3,
    "incarnation_id": A,
    "zk_migration_ready": False,
    "end_points": [],
    "features": [],
}


def voters(*directories: uuid.UUID) -> MetadataRecord:
    """The set of voters, with ids from 0."""
    feature = {"min_supported_version": 0, "max_supported_version": 1}
    points = [{"name": "C", "host": "h", "port": 9}]
    return record(
        "VotersRecord",
        voters=[
            {
                "voter_id": i,
                "voter_directory_id": each,
                "endpoints": points,
                "kraft_version_feature": feature,
            }
            for i, each in enumerate(directories)
        ],
    )


def test_a_controller_is_forgotten_once_it_is_unregistered() -> None:
    """Kafka 4.4 writes a record for it; before, a registration stayed for ever."""
    registered = record("RegisterControllerRecord", **CONTROLLER)
    assert [3] == [row["controller_id"] for row in folded(registered)["controllers"]]
    assert "controllers" not in folded(
        registered, record("UnregisterControllerRecord", controller_id=3)
    )


def test_the_last_set_of_voters_counts() -> None:
    """An election tells the voters only where no record of voters has more."""
    election = record("LeaderChangeMessage", voters=[{"voter_id": 5}, {"voter_id": 6}])
    assert [5, 6] == [row["voter_id"] for row in folded(election)["voters"]]
    found = folded(election, voters(A, A), election, voters(A, B), election)["voters"]
    assert [(0, A, 1), (1, B, 1)] == [
        (row["voter_id"], row["directory_id"], row["max_supported_version"]) for row in found
    ]
    version = record("KRaftVersionRecord", kraft_version=1)
    assert [{"name": "kraft.version", "feature_level": 1}] == folded(version)["features"]


def test_the_records_of_a_table_are_schemas() -> None:
    """The rules of all tables name records that exist."""
    known = {*parse_schemas(METADATA), *parse_schemas(OTHERS)}
    assert {name for names in RECORDS.values() for name in names} <= known
