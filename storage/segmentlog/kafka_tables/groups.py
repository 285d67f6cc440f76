"""``groups`` and ``group_members``: the groups of a coordinator, of all four kinds.

The state of a group is not in its records.  It follows from them, as a coordinator computes it
after it has loaded them (``ClassicGroup``, and ``maybeUpdateGroupState`` of the other kinds).

A coordinator makes a group at the first commit that it loads, if the group has no record of its
own, and keeps it whatever becomes of its offsets, until a tombstone removes the group
(``OffsetMetadataManager.replay``).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from segmentlog.format.messages import lines
from segmentlog.format.messages.records import read_protocol
from segmentlog.kafka_tables.columns import (
    INT,
    ORIGIN,
    TEXT,
    Column,
    Row,
    Table,
    fields_of,
    printed_id,
    shown,
)
from segmentlog.kafka_tables.offset_commits import COMMIT_TYPES, groups_of
from segmentlog.kafka_tables.source import (
    CONSUMER_OFFSETS,
    PlacedRecord,
    TableSource,
    record_types,
)
from segmentlog.reads.log import Log

#: The record of a group itself, by kind.
_OF_GROUP = {
    "GroupMetadata": "classic",
    "ConsumerGroupMetadata": "consumer",
    "ShareGroupMetadata": "share",
    "StreamsGroupMetadata": "streams",
}
_PREFIXES = {"ConsumerGroup": "consumer", "ShareGroup": "share", "StreamsGroup": "streams"}
_OF_MEMBERS = ("MemberMetadata", "TargetAssignmentMetadata", "CurrentMemberAssignment")
_TOPOLOGY = "StreamsGroupTopology"
_RECORDS = (
    *_OF_GROUP,
    *(prefix + each for prefix in _PREFIXES for each in _OF_MEMBERS),
    _TOPOLOGY,
)

_STATES = {
    "consumer": {0: "STABLE", 1: "UNREVOKED_PARTITIONS", 2: "UNRELEASED_PARTITIONS"},
    "share": {0: "STABLE", 1: "UNREVOKED_PARTITIONS", 2: "UNRELEASED_PARTITIONS"},
    "streams": {1: "STABLE", 2: "UNREVOKED_TASKS", 3: "UNRELEASED_TASKS"},
}


@dataclass
class Group:
    """A group, as its records describe it."""

    #: of the group
    name: str
    kind: str
    fields: Mapping[str, Any]  # of its own record
    placed: PlacedRecord  # that record
    assignment_epoch: int | None = None  # of its target assignment, or None
    topology_epoch: int | None = None  # of the topology of a streams group, or None
    #: of a group that is not classic: fields of their records, by member id
    members: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    #: current assignments, by member id
    assignments: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def n_members(self) -> int:
        return len(self.fields["members"] if self.kind == "classic" else self.members)

    @property
    def state(self) -> str:
        """The state, in Kafka's words."""
        if not self.n_members:
            return "Empty"
        if self.kind in ("classic", "share"):
            return "Stable"
        if self.kind == "streams" and (
            self.topology_epoch is None
            or self.topology_epoch != self.fields.get("validated_topology_epoch", -1)
        ):
            return "NotReady"  # such as without a source topic
        if self.fields["epoch"] > (self.assignment_epoch or 0):
            return "Assigning"
        stable = {"consumer": 0, "streams": 1}[self.kind]
        are_stable = (
            (each := self.assignments.get(member)) is not None
            and each["state"] == stable
            and each["member_epoch"] == self.assignment_epoch
            for member in self.members
        )
        return "Stable" if all(are_stable) else "Reconciling"


class Groups(NamedTuple):
    """Groups by name, and the offsets of the tombstones of groups."""

    present: dict[str, Group]
    removed: dict[str, int]


def read_groups(source: TableSource, log: Log) -> Groups:
    """The groups of one partition of ``__consumer_offsets``."""
    groups: dict[str, Group] = {}
    removed: dict[str, int] = {}
    for placed in source.coordinator_records(log, _RECORDS):
        record = placed.record
        name = _group_of(placed)
        if record.name in _OF_GROUP:
            kind = _OF_GROUP[record.name]
            known = groups.get(name)
            if record.value is None:
                if known is None or known.kind == kind:
                    groups.pop(name, None)
                    removed[name] = placed.offset
                continue
            if known is not None and known.kind == kind:
                known.fields, known.placed = record.value, placed
            else:
                groups[name] = Group(name, kind, record.value, placed)
            continue
        _take_member(groups, placed)
    return Groups(groups, removed)


def _take_member(groups: dict[str, Group], placed: PlacedRecord) -> None:
    """Take a record of the members of a group that is not classic."""
    record = placed.record
    prefix = next(each for each in _PREFIXES if record.name.startswith(each))
    name, kind = _group_of(placed), _PREFIXES[prefix]
    group = groups.get(name)
    if group is None or group.kind != kind:
        if record.value is None:
            return
        # A member comes before the epoch of its new group (``replayConsumerGroupMemberMetadata``).
        group = groups[name] = Group(name, kind, {"epoch": 0}, placed)
    if record.name.endswith("TargetAssignmentMetadata"):
        group.assignment_epoch = None if record.value is None else record.value["assignment_epoch"]
        return
    if record.name == _TOPOLOGY:
        group.topology_epoch = None if record.value is None else record.value["epoch"]
        return
    members = group.members if record.name.endswith("MemberMetadata") else group.assignments
    if record.value is None:
        members.pop(record.key["member_id"], None)
    else:
        members[record.key["member_id"]] = record.value


def committing_groups(source: TableSource, log: Log) -> dict[str, int]:
    """Offsets of the last commits of all groups in one partition of ``__consumer_offsets``.

    Commits in transactions count, too, whatever became of the transactions.  A commit whose key
    cannot be read is left out: ``group_offsets`` reports it.
    """
    parts = [pa.table({"group": pa.array([], pa.binary()), "offset": pa.array([], pa.int64())})]
    for batch in source.scan(log, ("key", "value", "offset")):
        types = record_types(batch["key"])
        is_commit = batch["value"].is_valid().to_numpy(zero_copy_only=False)
        is_commit &= (types == COMMIT_TYPES[0]) | (types == COMMIT_TYPES[1])
        rows = batch.filter(pa.array(is_commit))
        parts.append(_last(pa.table({"group": groups_of(rows["key"]), "offset": rows["offset"]})))
    commits: dict[str, int] = {}
    for name, offset in zip(*_last(pa.concat_tables(parts)).to_pydict().values(), strict=True):
        try:
            if name is not None:
                commits[name.decode()] = offset
        except UnicodeDecodeError:
            continue
    return commits


def _last(commits: pa.Table) -> pa.Table:
    found = commits.group_by("group").aggregate([("offset", "max")])
    return found.select(["group", "offset_max"]).rename_columns(["group", "offset"])


def group_rows(source: TableSource, log: Log, commits: Mapping[str, int]) -> Iterator[Row]:
    """Rows of ``groups``."""
    groups = read_groups(source, log)
    for group in groups.present.values():
        yield (
            _own_fields(group.kind, group.fields)
            | group.placed.origin
            | {
                "group": group.name,
                "kind": group.kind,
                "state": group.state,
                "members": group.n_members,
                "assignment_epoch": group.assignment_epoch,
            }
        )
    for name, offset in commits.items():
        if name not in groups.present and offset > groups.removed.get(name, -1):
            yield {
                "group": name,
                "kind": "classic",
                "state": "Empty",
                "members": 0,
                "record_partition": log.topic_partition.partition,
            }


def _group_changes(source: TableSource, log: Log) -> Iterator[Row]:
    """Every record of a group itself."""
    for placed in source.coordinator_records(log, _OF_GROUP):
        record = placed.record
        kind = _OF_GROUP[record.name]
        row = {"group": _group_of(placed), "kind": kind} | placed.origin
        if record.value is None:
            yield row | {"change": "removed"}
        else:
            members = len(record.value["members"]) if kind == "classic" else None
            yield row | _own_fields(kind, record.value) | {"change": "set", "members": members}


def _group_of(placed: PlacedRecord) -> str:
    key = placed.record.key
    return str(key["group"] if "group" in key else key["group_id"])


def _own_fields(kind: str, fields: Mapping[str, Any]) -> Row:
    if kind != "classic":
        return {"epoch": fields["epoch"]}
    return {"epoch": fields["generation"], **shown(_OF_CLASSIC_GROUPS, fields)}


def _member_rows(source: TableSource, log: Log) -> Iterator[Row]:
    for group in read_groups(source, log).present.values():
        own = {"group": group.name, "kind": group.kind}
        if group.kind == "classic":
            for member in group.fields["members"]:
                yield own | _classic_member(group.fields["protocol_type"], member)
            continue
        for member_id, member in group.members.items():
            current = group.assignments.get(member_id, {})
            state = current.get("state")
            words = _STATES[group.kind]
            assigned = current.get("assigned_partitions")
            tasks = {name: _tasks(current.get(name)) for name in _TASKS}
            yield (
                own
                | shown(_MEMBER, {"member_id": member_id, **member, **current})
                | tasks
                | {
                    # A member without a pattern has an empty one.
                    "subscribed_topic_regex": member.get("subscribed_topic_regex") or None,
                    "state": None if state is None else words.get(state, f"UNKNOWN({state})"),
                    "assigned": assigned
                    and [
                        {
                            "topic": source.topic_names.get(each["topic_id"]),
                            "topic_id": printed_id(each["topic_id"]),
                            "partitions": each["partitions"],
                        }
                        for each in assigned
                    ],
                }
            )


def _tasks(found: Sequence[Mapping[str, Any]] | None) -> list[Row] | None:
    names = ("subtopology_id", "partitions")
    return None if found is None else [{name: each[name] for name in names} for each in found]


def _classic_member(protocol_type: str, member: Mapping[str, Any]) -> Row:
    """A member of a classic group; other protocols than that of consumers have other bytes."""
    subscription = assignment = None
    if protocol_type == "consumer":
        subscription = read_protocol("ConsumerProtocolSubscription", member["subscription"])
        assignment = read_protocol("ConsumerProtocolAssignment", member["assignment"])
    return {
        **{
            name: member.get(name)
            for name in ("member_id", "group_instance_id", "client_id", "client_host")
        },
        "rack_id": subscription and subscription.get("rack_id"),
        "subscribed_topics": subscription and subscription["topics"],
        "assigned": assignment
        and [
            {"topic": each["topic"], "topic_id": None, "partitions": each["partitions"]}
            for each in assignment["assigned_partitions"]
        ],
    }


_GROUP = (
    Column("group", TEXT, "the group"),
    Column("kind", TEXT, "`classic`, `consumer` (KIP-848), `share` or `streams`"),
)
_classic = fields_of(lines.OFFSETS, "GroupMetadataValue")
_OF_CLASSIC_GROUPS = (
    _classic("protocol_type", "type of a classic group, such as `consumer` or `connect`"),
    _classic("protocol", "assignor of a classic group, or null"),
    _classic("leader", "member id of the leader of a classic group, or null"),
    _classic("current_state_timestamp", "when a classic group entered its state"),
)
_OF_GROUPS = (
    Column("epoch", INT, "epoch of the group; in a classic group, the generation"),
    *_OF_CLASSIC_GROUPS,
    *ORIGIN,
)
_N_MEMBERS = Column("members", INT, "number of members")

GROUPS = Table(
    CONSUMER_OFFSETS,
    "Groups of consumers, including groups that have only committed offsets",
    (
        *_GROUP,
        Column("state", TEXT, "`Empty`, `Stable`, `Assigning`, `Reconciling` or `NotReady`"),
        _N_MEMBERS,
        Column("assignment_epoch", INT, "epoch of the target assignment; null in a classic group"),
        *_OF_GROUPS,
    ),
    state=lambda source, log: group_rows(source, log, committing_groups(source, log)),
    changes=_group_changes,
    history_columns=(*_GROUP, _N_MEMBERS, *_OF_GROUPS),
)

#: Kinds of the tasks of a member of a streams group.
_TASKS = ("active_tasks", "standby_tasks", "warmup_tasks")
_OF_TASKS = pa.list_(pa.struct([("subtopology_id", TEXT), ("partitions", pa.list_(INT))]))

_member = fields_of(
    lines.OFFSETS,
    "ConsumerGroupMemberMetadataKey",
    "ConsumerGroupMemberMetadataValue",
    "ConsumerGroupCurrentMemberAssignmentValue",
)
_MEMBER = (
    _member("member_id", "the member"),
    _member("group_instance_id", "instance id of a static member, or null", of="instance_id"),
    _member("client_id", "id of the member's client"),
    _member("client_host", "address of the client"),
    _member("rack_id", "rack of the client, or null"),
    _member("member_epoch", "epoch of the member; null in a classic group"),
    Column("state", TEXT, "state of the member; null in a classic group"),
    _member(
        "subscribed_topics",
        "topics to which the member has subscribed, or null",
        of="subscribed_topic_names",
    ),
    _member(
        "subscribed_topic_regex", "pattern of topics to which the member has subscribed, or null"
    ),
    Column(
        "assigned",
        pa.list_(pa.struct([("topic", TEXT), ("topic_id", TEXT), ("partitions", pa.list_(INT))])),
        "partitions of the member; null if the bytes are not those of a consumer",
    ),
    Column("active_tasks", _OF_TASKS, "tasks of a member of a streams group; null in others"),
    Column("standby_tasks", _OF_TASKS, "its tasks that keep a copy of their state"),
    Column("warmup_tasks", _OF_TASKS, "its tasks that catch up before they move here"),
)

GROUP_MEMBERS = Table(
    CONSUMER_OFFSETS, "Members of groups", (*_GROUP, *_MEMBER), state=_member_rows
)
