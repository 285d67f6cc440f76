"""Groups, settings and transactions: the answers are those of the tables."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka_protocol import RawClient
from kio.schema.consumer_protocol_assignment.v0.data import ConsumerProtocolAssignment
from kio.serial import entity_reader

import segmentlog
from segmentlog.serving.wire import uuid_of

CLUSTER = str(Path(__file__).parents[3] / "examples" / "cluster")


@pytest.fixture(scope="module")
def client() -> Iterator[RawClient]:
    with (
        segmentlog.serve(CLUSTER) as server,
        RawClient(server.bootstrap_servers) as found,
    ):
        yield found


def test_groups_begin_with_the_offsets_of_the_disk(client: RawClient) -> None:
    """Until they commit here."""
    rows = [
        row
        for row in segmentlog.table(CLUSTER, "group_offsets").to_pylist()
        if row["offset"] is not None
    ]
    group = rows[0]["group"]
    expected = {
        (row["topic"], row["partition"]): (row["offset"], row["metadata"])
        for row in rows
        if row["group"] == group
    }
    # Named again and again, a group is answered once.
    (answer,) = client.ask(9, 8, groups=[{"group_id": group, "topics": None}] * 3).groups
    found = {
        (topic.name, each.partition_index): (each.committed_offset, each.metadata)
        for topic in answer.topics
        for each in topic.partitions
    }

    assert expected == found
    (topic, number), _ = expected.popitem()
    asked = [{"partition_index": number, "committed_offset": 1}]
    client.ask(8, 7, group_id=group, topics=[{"name": topic, "partitions": asked}])
    wanted = [{"name": topic, "partition_indexes": [number]}]
    answer = client.ask(9, 5, group_id=group, topics=wanted)
    assert 1 == answer.topics[0].partitions[0].committed_offset


def test_groups_are_listed_and_described(client: RawClient) -> None:
    expected = {row["group"]: row for row in segmentlog.table(CLUSTER, "groups").to_pylist()}
    listed = {each.group_id: each for each in client.ask(16, 5).groups}
    described = client.ask(15, 5, groups=[*expected, "none"]).groups

    for name, row in expected.items():
        assert (row["kind"], row["state"]) == (listed[name].group_type, listed[name].group_state)
    assert "Dead" == described[-1].group_state
    assert [row["members"] for row in expected.values()] == [
        len(each.members) for each in described[:-1]
    ]
    classic = [each.group_id for each in client.ask(16, 5, types_filter=["Classic"]).groups]
    assert set(classic) >= {name for name, row in expected.items() if row["kind"] == "classic"}
    assert len(classic) < len(listed)


def test_members_have_what_the_disk_gave_them(client: RawClient) -> None:
    """Those of the newer protocol, too, which a classic group is not asked for."""
    rows = {row["group"]: row for row in segmentlog.table(CLUSTER, "group_members").to_pylist()}
    newer, classic = client.ask(69, 1, group_ids=["fraud", "shipping"]).groups
    (group,) = client.ask(15, 5, groups=["shipping"]).groups
    (member,) = newer.members
    (assigned,) = member.assignment.topic_partitions

    assert ("Stable", 2) == (newer.group_state, newer.group_epoch)
    assert member.member_id == rows["fraud"]["member_id"]
    (expected,) = rows["fraud"]["assigned"]
    assert (expected["topic"], expected["partitions"]) == (
        assigned.topic_name,
        [*assigned.partitions],
    )
    assert assigned.topic_id == uuid_of(expected["topic_id"])
    assert 69 == classic.error_code
    found, _ = entity_reader(ConsumerProtocolAssignment)(group.members[0].member_assignment, 2)
    (expected,) = rows["shipping"]["assigned"]
    assert [(expected["topic"], tuple(expected["partitions"]))] == [
        (each.topic, each.partitions) for each in found.assigned_partitions
    ]


def test_settings_of_topics_come_with_their_source(client: RawClient) -> None:
    expected = segmentlog.topic_settings(CLUSTER, "orders")
    asked = [
        {"resource_type": 2, "resource_name": "orders", "configuration_keys": None},
        {"resource_type": 2, "resource_name": "none", "configuration_keys": None},
        {"resource_type": 2, "resource_name": "orders", "configuration_keys": ["cleanup.policy"]},
    ]
    found = client.ask(32, 4, resources=asked).results

    assert {name: each.value for name, each in expected.items()} == {
        each.name: each.value for each in found[0].configs
    }
    own = {name for name, each in expected.items() if each.source == "topic"}
    assert own == {each.name for each in found[0].configs if each.config_source == 1}
    assert 3 == found[1].error_code
    assert ["cleanup.policy"] == [each.name for each in found[2].configs]


def test_bytes_of_partitions(client: RawClient) -> None:
    (found,) = client.ask(35, 4, topics=None).results
    log = segmentlog.open_log_dir(CLUSTER).log("orders", 0)
    sizes = {
        (topic.name, each.partition_index): each.partition_size
        for topic in found.topics
        for each in topic.partitions
    }

    assert CLUSTER == found.log_dir
    assert log.size_bytes == sizes["orders", 0]
    assert 0 < found.usable_bytes < found.total_bytes


def test_transactions_and_producers(client: RawClient) -> None:
    rows = segmentlog.table(CLUSTER, "transactions").to_pylist()
    listed = client.ask(66, 1).transaction_states
    names = [row["transactional_id"] for row in rows]
    described = client.ask(65, 0, transactional_ids=[*names, "none"]).transaction_states

    assert {(row["transactional_id"], row["transaction_status"]) for row in rows} == {
        (each.transactional_id, each.transaction_state) for each in listed
    }
    for row, each in zip(rows, described, strict=False):
        assert row["transaction_status"] == each.transaction_state
        assert [
            (part["topic"], part["partition_ids"]) for part in row["transaction_partitions"]
        ] == [(topic.topic, [*topic.partitions]) for topic in each.topics]
    assert 105 == described[-1].error_code
    producers = [
        row
        for row in segmentlog.table(CLUSTER, "producers").to_pylist()
        if (row["topic"], row["partition"]) == ("invoices", 0)
    ]
    asked = [{"name": "invoices", "partition_indexes": [0, 99]}]
    found = client.ask(61, 0, topics=asked).topics[0].partitions
    assert producers
    assert [(row["producer_id"], row["producer_epoch"]) for row in producers] == [
        (each.producer_id, each.producer_epoch) for each in found[0].active_producers
    ]
    assert 3 == found[1].error_code


def test_there_are_no_acls_quotas_users_and_moves(client: RawClient) -> None:
    assert () == client.ask(50, 0, users=None).results
    assert () == client.ask(29, 2, operation=1, permission_type=1).resources
    assert () == client.ask(48, 1, components=[]).entries
    assert () == client.ask(46, 0, topics=None).topics


def test_partitions_are_counted_by_the_metadata(client: RawClient) -> None:
    """A disk lacks some of them; these have no leader."""
    tables = segmentlog.table(CLUSTER, "partitions").to_pylist()
    counts = {each.name: len(each.partitions) for each in client.ask(3, 9, topics=None).topics}

    for topic, n_partitions in counts.items():
        assert n_partitions == sum(row["topic"] == topic for row in tables)
