"""``groups`` and ``group_members``: the groups of a coordinator, of all four kinds.

The state of a group is not in its records.  It follows from them, as a coordinator computes it
after it has loaded them (``ClassicGroup``, and ``maybeUpdateGroupState`` of the other kinds).
"""

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from segmentlog.format.messages.records import read_protocol
from segmentlog.kafka_tables.columns import printed_id, time_of
from segmentlog.kafka_tables.coordinator import PlacedRecord, read_records
from segmentlog.model import OnCorruptBatch
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
        """Number of members."""
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


def read_groups(
    log: Log, on_corrupt_batch: OnCorruptBatch, is_kafka_4_0: Callable[[], bool] | None = None
) -> Groups:
    """The groups of one partition of ``__consumer_offsets``.

    Raises `MalformedRecordError` if a record of a group cannot be read; `CorruptLogError` if the
    log is damaged.
    """
    groups: dict[str, Group] = {}
    removed: dict[str, int] = {}
    for placed in read_records(log, _RECORDS, on_corrupt_batch, is_kafka_4_0):
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
            same = known if known is not None and known.kind == kind else None
            groups[name] = Group(name, kind, record.value, placed)
            if same is not None:
                groups[name].assignment_epoch = same.assignment_epoch
                groups[name].topology_epoch = same.topology_epoch
                groups[name].members, groups[name].assignments = same.members, same.assignments
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


def group_rows(
    groups: Groups, commits: Mapping[str, int], partition: int
) -> Iterator[dict[str, Any]]:
    """Rows of ``groups``.

    `commits`: the offset of the last commit of each group.
    """
    for group in groups.present.values():
        yield (
            _fields(group.kind, group.fields)
            | _origin(group.placed)
            | {"group": group.name, "kind": group.kind, "state": group.state,
               "members": group.n_members, "assignment_epoch": group.assignment_epoch}
        )  # fmt: skip
    for name, offset in commits.items():
        # A coordinator makes such a group when it loads a commit.
        if name not in groups.present and offset > groups.removed.get(name, -1):
            yield {"group": name, "kind": "classic", "state": "Empty", "members": 0,
                   "record_partition": partition}  # fmt: skip


def group_changes(
    log: Log, on_corrupt_batch: OnCorruptBatch, is_kafka_4_0: Callable[[], bool] | None = None
) -> Iterator[dict[str, Any]]:
    """Rows of the history of ``groups``: every record of a group itself."""
    for placed in read_records(log, _OF_GROUP, on_corrupt_batch, is_kafka_4_0):
        record = placed.record
        kind = _OF_GROUP[record.name]
        row = {"group": _group_of(placed), "kind": kind} | _origin(placed)
        if record.value is None:
            yield row | {"change": "removed"}
        else:
            members = len(record.value["members"]) if kind == "classic" else None
            yield row | _fields(kind, record.value) | {"change": "set", "members": members}


def member_rows(
    groups: Mapping[str, Group], topics: Mapping[uuid.UUID, str]
) -> Iterator[dict[str, Any]]:
    """Rows of ``group_members``.

    `topics`: names of topics by their ids, as far as they are known.
    """
    for group in groups.values():
        own = {"group": group.name, "kind": group.kind}
        if group.kind == "classic":
            for member in group.fields["members"]:
                yield own | _classic_member(group.fields["protocol_type"], member)
            continue
        for member_id, member in group.members.items():
            current = group.assignments.get(member_id, {})
            state = current.get("state")
            states = _STATES[group.kind]
            assigned = current.get("assigned_partitions")
            yield own | {
                "member_id": member_id,
                "group_instance_id": member.get("instance_id"),
                "client_id": member["client_id"],
                "client_host": member["client_host"],
                "rack_id": member["rack_id"],
                "member_epoch": current.get("member_epoch"),
                "state": None if state is None else states.get(state, f"UNKNOWN({state})"),
                "subscribed_topics": member.get("subscribed_topic_names"),
                "assigned": assigned
                and [
                    {"topic": topics.get(each["topic_id"]),
                     "topic_id": printed_id(each["topic_id"]), "partitions": each["partitions"]}
                    for each in assigned
                ],
            }  # fmt: skip


def _group_of(placed: PlacedRecord) -> str:
    key = placed.record.key
    return str(key["group"] if "group" in key else key["group_id"])


def _fields(kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    if kind != "classic":
        return {"epoch": fields["epoch"]}
    return {
        "epoch": fields["generation"],
        "protocol_type": fields["protocol_type"],
        "protocol": fields["protocol"],
        "leader": fields["leader"],
        "current_state_timestamp": time_of(fields.get("current_state_timestamp")),
    }


def _origin(placed: PlacedRecord) -> dict[str, Any]:
    return {
        "record_partition": placed.partition,
        "record_offset": placed.offset,
        "record_timestamp": placed.timestamp,
    }


def _classic_member(protocol_type: str, member: Mapping[str, Any]) -> dict[str, Any]:
    """A member of a classic group; other protocols than that of consumers have other bytes."""
    subscription = assignment = None
    if protocol_type == "consumer":
        subscription = read_protocol("ConsumerProtocolSubscription", member["subscription"])
        assignment = read_protocol("ConsumerProtocolAssignment", member["assignment"])
    return {
        "member_id": member["member_id"],
        "group_instance_id": member.get("group_instance_id"),
        "client_id": member["client_id"],
        "client_host": member["client_host"],
        "rack_id": subscription and subscription.get("rack_id"),
        "subscribed_topics": subscription and subscription["topics"],
        "assigned": assignment
        and [
            {"topic": each["topic"], "topic_id": None, "partitions": each["partitions"]}
            for each in assignment["assigned_partitions"]
        ],
    }
