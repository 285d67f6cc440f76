"""Groups have the states that a coordinator computes from their records."""

import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from coordinator_logs import Coordinator, commit_key, commit_value, message, text

import segmentlog
from segmentlog.reads.cluster_image import ClusterMetadata

TOPIC = "__consumer_offsets"
CLASSIC, CONSUMER, SHARE, STREAMS, TOPOLOGY = 2, 3, 11, 17, 23
MEMBERS = {CONSUMER: 5, SHARE: 10, STREAMS: 19}
TARGETS = {CONSUMER: 6, SHARE: 12, STREAMS: 20}
CURRENT = {CONSUMER: 8, SHARE: 14, STREAMS: 22}


def record(kind: int, group: str, value: dict[str, Any] | None, **key: str) -> Any:
    """A record of a type."""
    name = "group" if kind == CLASSIC else "group_id"
    return message(TOPIC, kind, {name: group, **key}, value)


def groups(directory: Path) -> dict[str, tuple[object, ...]]:
    """Kind, state, number of members and epoch of each group."""
    names = ["kind", "state", "members", "epoch"]
    rows = segmentlog.table(directory, "groups").to_pylist()
    return {row["group"]: tuple(row[each] for each in names) for row in rows}


def classic(*members: str, **fields: Any) -> dict[str, Any]:
    """The value of a classic group."""
    return {"members": [{"member_id": each} for each in members]} | fields


def test_classic_groups(tmp_path: Path) -> None:
    """A group with members is stable, and a group with offsets alone is empty."""
    log = Coordinator().add(
        record(CLASSIC, "a", classic("m", "n", generation=4)),
        record(CLASSIC, "b", classic("m")),
        record(CLASSIC, "b", classic(generation=2)),
        record(CLASSIC, "c", classic("m")),
        record(CLASSIC, "c", None),
        (commit_key("simple"), commit_value(1)),
        (commit_key("a"), commit_value(1)),
        (commit_key("no offset"), commit_value(1)),
        (commit_key("no offset"), None),
        (commit_key("gone"), commit_value(1)),
        (commit_key("gone"), None),
        record(CLASSIC, "gone", None),
    )
    log.add((commit_key("aborted"), commit_value(1)), producer=7).end(7, 0)

    assert {
        "a": ("classic", "Stable", 2, 4),
        "b": ("classic", "Empty", 0, 2),
        "simple": ("classic", "Empty", 0, None),
        "no offset": ("classic", "Empty", 0, None),
        "aborted": ("classic", "Empty", 0, None),
    } == groups(log.write(tmp_path))


@pytest.mark.parametrize("kind", [CONSUMER, SHARE, STREAMS])
@pytest.mark.parametrize(
    ("epoch", "target", "member", "expected"),
    [
        (5, 5, (5, 0), "Stable"),
        (5, 4, (4, 0), "Assigning"),
        (5, 5, (4, 0), "Reconciling"),
        (5, 5, (5, 1), "Reconciling"),
        (5, 5, None, "Empty"),
        (5, 5, (), "Reconciling"),
    ],
)
def test_groups_of_new_protocols(
    tmp_path: Path,
    kind: int,
    epoch: int,
    target: int,
    member: tuple[int, ...] | None,
    expected: str,
) -> None:
    """The state follows from the epochs of group, assignment and members."""
    validated = {"validated_topology_epoch": 1} if kind == STREAMS else {}
    log = Coordinator().add(
        record(kind, "g", {"epoch": epoch} | validated),
        record(TARGETS[kind], "g", {"assignment_epoch": target}),
    )
    if kind == STREAMS:
        log.add(record(TOPOLOGY, "g", {"epoch": 1}))
    if member is not None:
        log.add(record(MEMBERS[kind], "g", {}, member_id="m"))
    if member:
        state = member[1] + (kind == STREAMS)  # streams count from 1
        current = {"member_epoch": member[0], "state": state}
        log.add(record(CURRENT[kind], "g", current, member_id="m"))
    if kind == SHARE and member is not None:
        expected = "Stable"
    name = {CONSUMER: "consumer", SHARE: "share", STREAMS: "streams"}[kind]

    assert {"g": (name, expected, int(member is not None), epoch)} == groups(log.write(tmp_path))


@pytest.mark.parametrize(
    ("topology", "validated", "expected"),
    [(1, 1, "Reconciling"), (2, 1, "NotReady"), (1, None, "NotReady"), (None, 1, "NotReady")],
)
def test_a_streams_group_without_a_validated_topology(
    tmp_path: Path, topology: int | None, validated: int | None, expected: str
) -> None:
    """A group whose topics are missing is not ready, and a group without members is empty."""
    fields = {} if validated is None else {"validated_topology_epoch": validated}
    log = Coordinator()
    for group in ("g", "empty"):
        log.add(record(STREAMS, group, {"epoch": 4}))
        if topology is not None:
            log.add(record(TOPOLOGY, group, {"epoch": topology}))
        log.add(record(STREAMS, group, {"epoch": 5} | fields))
        log.add(record(TARGETS[STREAMS], group, {"assignment_epoch": 5}))
    log.add(record(MEMBERS[STREAMS], "g", {}, member_id="m"))

    assert {
        "g": ("streams", expected, 1, 5),
        "empty": ("streams", "Empty", 0, 5),
    } == groups(log.write(tmp_path))


def test_a_group_changes_its_kind(tmp_path: Path) -> None:
    """Tombstones of the old kind and records of the new kind stand in one batch."""
    log = Coordinator().add(record(CLASSIC, "up", classic("m")), record(CONSUMER, "down", {}))
    log.add(
        record(CLASSIC, "up", None),
        record(MEMBERS[CONSUMER], "up", {}, member_id="m"),
        record(CONSUMER, "up", {"epoch": 1}),
        record(CONSUMER, "down", None),
        record(TARGETS[CONSUMER], "down", None),
        record(CLASSIC, "down", classic("m")),
    )

    assert {"up": ("consumer", "Assigning", 1, 1), "down": ("classic", "Stable", 1, 0)} == groups(
        log.write(tmp_path)
    )


def test_a_member_leaves(tmp_path: Path) -> None:
    """Tombstones of a member remove it."""
    log = Coordinator().add(
        record(CONSUMER, "g", {"epoch": 1}),
        record(5, "g", {}, member_id="m"),
        record(5, "g", {"client_id": "c"}, member_id="n"),
        record(5, "g", None, member_id="m"),
    )
    (row,) = segmentlog.table(log.write(tmp_path), "group_members").to_pylist()

    assert ("n", "c", None) == (row["member_id"], row["client_id"], row["state"])


def test_members_of_a_classic_group(tmp_path: Path) -> None:
    """Topics and partitions are read from the bytes of a consumer, and not from other bytes."""
    subscription = struct.pack(">hi", 9, 1) + text("t") + struct.pack(">iiih", -1, 0, 1, -1)
    assignment = struct.pack(">hi", 1, 1) + text("t") + struct.pack(">iii", 1, 3, -1)
    member = {"member_id": "m", "subscription": subscription, "assignment": assignment}
    log = Coordinator().add(
        record(CLASSIC, "a", {"protocol_type": "consumer", "members": [member]}),
        record(CLASSIC, "b", {"protocol_type": "connect", "members": [member]}),
        record(
            CLASSIC,
            "c",
            {
                "protocol_type": "consumer",
                "members": [member | {"subscription": b"\0", "assignment": b"\0\1\x7f"}],
            },
        ),
    )
    rows = segmentlog.table(log.write(tmp_path), "group_members").to_pylist()
    assigned = [{"topic": "t", "topic_id": None, "partitions": [3]}]

    assert [(["t"], assigned), (None, None), (None, None)] == [
        (row["subscribed_topics"], row["assigned"]) for row in rows
    ]


def test_a_history_of_groups(tmp_path: Path) -> None:
    """Each record of a group itself is a row."""
    log = Coordinator().add(
        record(CLASSIC, "a", classic("m", generation=1)),
        record(5, "b", {}, member_id="m"),
        record(CONSUMER, "b", {"epoch": 1}),
        record(CLASSIC, "a", None),
    )
    rows = segmentlog.table(log.write(tmp_path), "groups", history=True).to_pylist()

    assert [("a", "set", 1, 0), ("b", "set", 1, 2), ("a", "removed", None, 3)] == [
        tuple(row[each] for each in ("group", "change", "epoch", "record_offset")) for row in rows
    ]


def test_members_name_topics_by_the_metadata(example_cluster: str) -> None:
    """A KIP-848 member has ids of topics, and the metadata has their names."""
    rows = segmentlog.table(example_cluster, "group_members").to_pylist()
    found = {row["group"]: row["assigned"] for row in rows}

    assert {"shipping", "fraud", "shared"} == set(found)
    assert [("orders", [0, 1, 2])] * 3 == [
        (each["topic"], sorted(each["partitions"])) for (each,) in found.values()
    ]


@pytest.mark.parametrize("name", ["groups", "group_offsets", "transactions"])
def test_a_cluster_that_has_never_made_the_topic_has_no_rows(
    name: str, example_cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its metadata knows no such topic; if it does, the logs are on other brokers."""
    of_brokers = "__consumer_offsets" if name.startswith("group") else "__transaction_state"
    shutil.copytree(
        example_cluster, tmp_path / "copy", ignore=shutil.ignore_patterns(f"{of_brokers}-*")
    )
    with pytest.raises(segmentlog.LogDirectoryError, match=f"holds no partition of {of_brokers}"):
        segmentlog.table(tmp_path / "copy", name)
    tables = ClusterMetadata.tables

    def without(self: ClusterMetadata, name: str) -> Any:
        rows = tables(self, name)[name]
        return {name: {key: row for key, row in rows.items() if row.get("topic") != of_brokers}}

    monkeypatch.setattr(ClusterMetadata, "tables", without)
    assert segmentlog.table(tmp_path / "copy", name).num_rows == 0


def test_a_pattern_and_tasks_of_members(tmp_path: Path) -> None:
    log = Coordinator().add(
        record(CONSUMER, "g", {"epoch": 1}),
        record(5, "g", {"subscribed_topic_regex": "^orders-.*"}, member_id="m"),
        record(5, "g", {"subscribed_topic_regex": ""}, member_id="without"),
        record(STREAMS, "s", {"epoch": 1}),
        record(19, "s", {"client_id": "c"}, member_id="n"),
        record(
            22,
            "s",
            {
                "active_tasks": [{"subtopology_id": "0", "partitions": [1, 2]}],
                "warmup_tasks": [{"subtopology_id": "1", "partitions": [0]}],
            },
            member_id="n",
        ),
    )
    of_g, without, of_s = segmentlog.table(log.write(tmp_path), "group_members").to_pylist()
    assert (of_g["subscribed_topic_regex"], of_g["active_tasks"]) == ("^orders-.*", None)
    assert without["subscribed_topic_regex"] is None
    assert of_s["active_tasks"] == [{"subtopology_id": "0", "partitions": [1, 2]}]
    assert of_s["warmup_tasks"] == [{"subtopology_id": "1", "partitions": [0]}]
    assert (of_s["standby_tasks"], of_s["subscribed_topic_regex"]) == ([], None)
