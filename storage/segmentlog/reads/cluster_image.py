"""The state of a cluster, folded from the records of its metadata as brokers fold them.

Each record of the metadata makes changes: it sets or removes rows of tables.  The state is the
last row of each key, and a history is the list of changes.

A row of a SCRAM credential holds only the name, the mechanism and the number of iterations.  A row
of a setting holds its value unmasked: callers hide secrets with `segmentlog.masking`.

Rules: ``MetadataDelta`` and its parts, ``PartitionRegistration.merge``, ``BrokerRegistration``.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from segmentlog.format.messages.reader import UNKNOWN_TAGS, uuid_text
from segmentlog.format.newer import NEWEST_LEVELS, note
from segmentlog.masking import is_sensitive
from segmentlog.reads.metadata_log import MetadataRecord, newest_metadata, read_metadata

Row = dict[str, Any]

#: Types of the resources of settings (``ConfigResource.Type``).
TOPIC, BROKER = 2, 4

_RESOURCES = {
    TOPIC: "topic",
    BROKER: "broker",
    8: "broker-logger",
    16: "client-metrics",
    32: "group",
}

#: The leader field of a change that does not name a leader (``PartitionRegistration``).
_NO_LEADER_CHANGE = -2

_ACL_RESOURCES = {
    2: "TOPIC",
    3: "GROUP",
    4: "CLUSTER",
    5: "TRANSACTIONAL_ID",
    6: "DELEGATION_TOKEN",
    7: "USER",
}
_PATTERNS = {3: "LITERAL", 4: "PREFIXED"}
_OPERATIONS = {2: "ALL", 3: "READ", 4: "WRITE", 5: "CREATE", 6: "DELETE", 7: "ALTER",
               8: "DESCRIBE", 9: "CLUSTER_ACTION", 10: "DESCRIBE_CONFIGS", 11: "ALTER_CONFIGS",
               12: "IDEMPOTENT_WRITE", 13: "CREATE_TOKENS", 14: "DESCRIBE_TOKENS",
               15: "TWO_PHASE_COMMIT"}  # fmt: skip
_PERMISSIONS = {2: "DENY", 3: "ALLOW"}
_MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}


class RowChange(NamedTuple):
    """A row of a table that a record has set, or removed."""

    table: str  # the name of the table
    key: object  # of the row in the table
    row: Row | None  # the columns, or None if the row was removed
    before: Row | None  # the columns before the change, or None
    record: MetadataRecord  # that made the change


class Image:
    """The rows of all tables by key, as the records so far have left them; nothing is masked."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[Any, Row]] = defaultdict(dict)
        self._partitions_of: dict[object, set[tuple[object, int]]] = defaultdict(set)
        self._configs_of: dict[tuple[int, str], set[tuple[int, str, str]]] = defaultdict(set)
        self._record: MetadataRecord

    def apply(self, record: MetadataRecord) -> list[RowChange]:
        """Take a record, and return its changes; a record of another kind makes none."""
        self._record = record
        rule = _RULES.get(record.name)
        return [*rule(self, record.fields)] if rule else []

    def _set(self, table: str, key: object, row: Row) -> RowChange:
        before = self.tables[table].get(key)
        self.tables[table][key] = row
        return RowChange(table, key, row, before, self._record)

    def _remove(self, table: str, key: object) -> Iterator[RowChange]:
        before = self.tables[table].pop(key, None)
        if before is not None:
            yield RowChange(table, key, None, before, self._record)

    def _topic(self, fields: Mapping[str, Any]) -> Iterator[RowChange]:
        yield self._set(
            "topics", fields["topic_id"], {"topic": fields["name"], "topic_id": fields["topic_id"]}
        )

    def _remove_topic(self, fields: Mapping[str, Any]) -> Iterator[RowChange]:
        """Remove a topic, its partitions and its settings, which have no records of their own."""
        topic_id = fields["topic_id"]
        topic = self.tables["topics"].get(topic_id)
        if topic is not None:
            for config in sorted(self._configs_of.pop((TOPIC, topic["topic"]), ())):
                yield from self._remove("configs", config)
        for key in sorted(self._partitions_of.pop(topic_id, ()), key=lambda each: each[1]):
            yield from self._remove("partitions", key)
        yield from self._remove("topics", topic_id)

    def _partition(self, fields: Mapping[str, Any]) -> Iterator[RowChange]:
        topic_id = fields["topic_id"]
        key = (topic_id, fields["partition_id"])
        self._partitions_of[topic_id].add(key)
        topic = self.tables["topics"].get(topic_id, {})
        row = {"topic": topic.get("topic")} | dict(fields)
        row["partition"] = row.pop("partition_id")
        for name in ("eligible_leader_replicas", "last_known_elr"):
            row[name] = row.get(name) or []
        yield self._set("partitions", key, row)

    def _change_partition(self, fields: Mapping[str, Any]) -> Iterator[RowChange]:
        """Take the parts of a partition that a record has."""
        key = (fields["topic_id"], fields["partition_id"])
        before = self.tables["partitions"].get(key)
        if before is None:
            return
        row = dict(before)
        for name in (
            "isr",
            "replicas",
            "removing_replicas",
            "adding_replicas",
            "directories",
            "eligible_leader_replicas",
            "last_known_elr",
        ):
            if fields.get(name) is not None:
                row[name] = fields[name]
        if tags := fields.get(UNKNOWN_TAGS):
            row[UNKNOWN_TAGS] = row.get(UNKNOWN_TAGS, {}) | tags
        if fields["leader"] != _NO_LEADER_CHANGE:
            row["leader"] = fields["leader"]
            # A leader that is present begins a new epoch, also if it is the leader that was there.
            row["leader_epoch"] += 1
        if fields["leader_recovery_state"] != -1:
            row["leader_recovery_state"] = fields["leader_recovery_state"]
        row["partition_epoch"] += 1
        yield self._set("partitions", key, row)

    def _clear_elr(self, fields: Mapping[str, Any]) -> Iterator[RowChange]:
        """Empty the eligible leaders of a topic, or of all topics."""
        for key, row in [*self.tables["partitions"].items()]:
            if fields["topic_name"] not in ("", row["topic"]):
                continue
            if row["eligible_leader_replicas"] or row["last_known_elr"]:
                empty: Row = {"eligible_leader_replicas": [], "last_known_elr": []}
                yield self._set("partitions", key, row | empty)

    def _config(self, fields: Mapping[str, Any]) -> Iterator[RowChange]:
        kind, resource, name = fields["resource_type"], fields["resource_name"], fields["name"]
        key = (kind, resource, name)
        if fields["value"] is None:
            self._configs_of[kind, resource].discard(key)
            yield from self._remove("configs", key)
            return
        self._configs_of[kind, resource].add(key)
        row = {
            "resource_type": _RESOURCES.get(kind, str(kind)),
            "resource_name": resource,
            "name": name,
            "value": fields["value"],
            "is_sensitive": is_sensitive(name),
        }
        yield self._set("configs", key, row)

    def _feature(self, fields: Mapping[str, Any]) -> Iterator[RowChange]:
        name, level = fields["name"], fields["feature_level"]
        if level > NEWEST_LEVELS.get(name, 0):
            note(f"the feature {name} at level {level}")
        if fields["feature_level"] == 0:
            yield from self._remove("features", fields["name"])
        else:
            yield self._set("features", fields["name"], dict(fields))

    def _broker(self, fields: Mapping[str, Any]) -> Iterator[RowChange]:
        row: Row = {"in_controlled_shutdown": False, "log_dirs": []}
        row |= fields
        row["cordoned_log_dirs"] = fields.get("cordoned_log_dirs") or []
        for name in ("end_points", "features"):  # a snapshot has another order
            row[name] = sorted(fields[name], key=lambda each: str(each["name"]))
        yield self._set("brokers", fields["broker_id"], row)

    def _change_broker(self, fields: Mapping[str, Any]) -> Iterator[RowChange]:
        """Take the parts of a broker that a record has: 1 sets a state, -1 takes it back."""
        before = self.tables["brokers"].get(fields["broker_id"])
        if before is None:
            return
        row = dict(before)
        if fields["fenced"]:
            row["fenced"] = fields["fenced"] > 0
        if fields.get("in_controlled_shutdown"):
            row["in_controlled_shutdown"] = fields["in_controlled_shutdown"] > 0
        if fields.get("log_dirs"):
            row["log_dirs"] = fields["log_dirs"]
        if fields.get("cordoned_log_dirs") is not None:
            row["cordoned_log_dirs"] = fields["cordoned_log_dirs"]
        yield self._set("brokers", fields["broker_id"], row)

    def _controller(self, fields: Mapping[str, Any]) -> Iterator[RowChange]:
        row = dict(fields)
        for name in ("end_points", "features"):
            row[name] = sorted(fields[name], key=lambda each: str(each["name"]))
        yield self._set("controllers", fields["controller_id"], row)

    def _voters(self, fields: Mapping[str, Any]) -> Iterator[RowChange]:
        """Take the whole set of voters."""
        rows = {
            (each["voter_id"], each["voter_directory_id"]): {
                "voter_id": each["voter_id"],
                "directory_id": each["voter_directory_id"],
                "end_points": each["endpoints"],
                **each["kraft_version_feature"],
            }
            for each in fields["voters"]
        }
        yield from self._replace_voters(rows)

    def _election(self, fields: Mapping[str, Any]) -> Iterator[RowChange]:
        """Take the voters of an election, unless records of voters say more about them."""
        if not any(row["end_points"] for row in self.tables["voters"].values()):
            empty: Row = {"directory_id": None, "end_points": None}
            ids = [each["voter_id"] for each in fields["voters"]]
            rows = {(each, None): {"voter_id": each} | empty for each in ids}
            yield from self._replace_voters(rows)

    def _replace_voters(self, rows: Mapping[Any, Row]) -> Iterator[RowChange]:
        before = self.tables["voters"]
        for key in [each for each in before if each not in rows]:
            yield from self._remove("voters", key)
        for key, row in rows.items():
            if before.get(key) != row:
                yield self._set("voters", key, row)

    def _kraft_version(self, fields: Mapping[str, Any]) -> Iterator[RowChange]:
        """Take ``kraft.version``, the one feature whose level is in no `FeatureLevelRecord`."""
        row = {"name": "kraft.version", "feature_level": fields["kraft_version"]}
        if self.tables["features"].get("kraft.version") != row:
            yield self._set("features", "kraft.version", row)

    def _fence(self, fields: Mapping[str, Any]) -> Iterator[RowChange]:
        """Fence a broker, or take that back: both records have the same fields."""
        before = self.tables["brokers"].get(fields["id"])
        if before is not None:
            is_fenced = self._record.name == "FenceBrokerRecord"
            yield self._set("brokers", fields["id"], before | {"fenced": is_fenced})

    def _quota(self, fields: Mapping[str, Any]) -> Iterator[RowChange]:
        entity = sorted(fields["entity"], key=lambda each: each["entity_type"])
        pairs = tuple((each["entity_type"], each["entity_name"]) for each in entity)
        key = (pairs, fields["key"])
        if fields["remove"]:
            yield from self._remove("quotas", key)
        else:
            row = {"entity": entity, "key": fields["key"], "value": fields["value"]}
            yield self._set("quotas", key, row)

    def _acl(self, fields: Mapping[str, Any]) -> Iterator[RowChange]:
        row = {
            **{name: fields[name] for name in ("id", "principal", "host", "resource_name")},
            "resource_type": _word(_ACL_RESOURCES, fields["resource_type"]),
            "pattern_type": _word(_PATTERNS, fields["pattern_type"]),
            "operation": _word(_OPERATIONS, fields["operation"]),
            "permission_type": _word(_PERMISSIONS, fields["permission_type"]),
        }
        yield self._set("acls", fields["id"], row)

    def _scram(self, fields: Mapping[str, Any]) -> Iterator[RowChange]:
        row = {
            "name": fields["name"],
            "mechanism": _word(_MECHANISMS, fields["mechanism"]),
            "iterations": fields["iterations"],
        }
        yield self._set("scram_users", (fields["name"], fields["mechanism"]), row)


def fold(records: Iterable[MetadataRecord]) -> Image:
    """The state after all records."""
    image = Image()
    for record in records:
        image.apply(record)
    return image


def _word(words: Mapping[int, str], number: int) -> str:
    return words.get(number, f"UNKNOWN({number})")


_RULES: dict[str, Callable[[Image, Mapping[str, Any]], Iterator[RowChange]]] = {
    "TopicRecord": Image._topic,
    "RemoveTopicRecord": Image._remove_topic,
    "PartitionRecord": Image._partition,
    "PartitionChangeRecord": Image._change_partition,
    "ClearElrRecord": Image._clear_elr,
    "ConfigRecord": Image._config,
    "FeatureLevelRecord": Image._feature,
    "RegisterBrokerRecord": Image._broker,
    "UnregisterBrokerRecord": lambda image, row: image._remove("brokers", row["broker_id"]),
    "BrokerRegistrationChangeRecord": Image._change_broker,
    "RegisterControllerRecord": Image._controller,
    "UnregisterControllerRecord": (
        lambda image, row: image._remove("controllers", row["controller_id"])
    ),
    "VotersRecord": Image._voters,
    "LeaderChangeMessage": Image._election,
    "KRaftVersionRecord": Image._kraft_version,
    "FenceBrokerRecord": Image._fence,
    "UnfenceBrokerRecord": Image._fence,
    "ClientQuotaRecord": Image._quota,
    "AccessControlEntryRecord": Image._acl,
    "RemoveAccessControlEntryRecord": lambda image, row: image._remove("acls", row["id"]),
    "UserScramCredentialRecord": Image._scram,
    "RemoveUserScramCredentialRecord": (
        lambda image, row: image._remove("scram_users", (row["name"], row["mechanism"]))
    ),
}

#: Schemas of the records that decide about each table.
RECORDS: dict[str, tuple[str, ...]] = {
    "topics": ("TopicRecord", "RemoveTopicRecord"),
    "partitions": (
        "TopicRecord",
        "RemoveTopicRecord",
        "PartitionRecord",
        "PartitionChangeRecord",
        "ClearElrRecord",
    ),
    "configs": ("TopicRecord", "RemoveTopicRecord", "ConfigRecord"),
    "features": ("FeatureLevelRecord", "KRaftVersionRecord"),
    "brokers": (
        "RegisterBrokerRecord",
        "UnregisterBrokerRecord",
        "BrokerRegistrationChangeRecord",
        "FenceBrokerRecord",
        "UnfenceBrokerRecord",
    ),
    "controllers": ("RegisterControllerRecord", "UnregisterControllerRecord"),
    "voters": ("VotersRecord", "LeaderChangeMessage"),
    "quotas": ("ClientQuotaRecord",),
    "acls": ("AccessControlEntryRecord", "RemoveAccessControlEntryRecord"),
    "scram_users": ("UserScramCredentialRecord", "RemoveUserScramCredentialRecord"),
}


class ClusterMetadata:
    """The metadata of a cluster at one moment, by its newest copy in some log directories.

    A table is folded when it is first asked for, and then kept.
    """

    def __init__(self, directories: Iterable[str]) -> None:
        self._directories = tuple(directories)
        self._tables: dict[str, Mapping[Any, Row]] = {}

    @cached_property
    def path(self) -> str | None:
        """Of the newest copy, ``__cluster_metadata-0``; None if there is none."""
        return newest_metadata(self._directories)

    def tables(self, *names: str) -> Mapping[str, Mapping[Any, Row]]:
        """Tables by name, with their last rows by key; empty without a copy.

        Raises the errors of `read_metadata`.
        """
        lacking = [each for each in names if each not in self._tables]
        if lacking and self.path is not None:
            wanted = {each for name in lacking for each in RECORDS[name]}
            folded = fold(read_metadata(self.path, wanted)).tables
            self._tables |= {name: folded[name] for name in lacking}
        return {name: self._tables.get(name, {}) for name in names}

    @property
    def topic_ids(self) -> Mapping[str, str]:
        """The id of each topic, as Kafka prints it, by name."""
        topics = self.tables("topics")["topics"]
        return {row["topic"]: uuid_text(topic_id) for topic_id, row in topics.items()}

    @property
    def level(self) -> int | None:
        """The level of ``metadata.version``, or None if no copy has it."""
        row = self.tables("features")["features"].get("metadata.version")
        return None if row is None else int(row["feature_level"])
