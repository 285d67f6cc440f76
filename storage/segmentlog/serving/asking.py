"""Answers of the protocol about groups, settings and transactions, from Kafka's own tables."""

import datetime as dt
import io
import itertools
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kio.schema.consumer_protocol_assignment.v0.data import ConsumerProtocolAssignment
from kio.serial import entity_writer

from segmentlog.cluster.directory_settings import Source
from segmentlog.serving.groups import CommittedOffset, Coordinator, Places, ServedGroup
from segmentlog.serving.reading import Broker
from segmentlog.serving.view import View
from segmentlog.serving.wire import Body, entity, once, uuid_of

_GROUP, _TRANSACTION = 0, 1
_TOPIC, _UNKNOWN_TOPIC, _INVALID_REQUEST = 2, 3, 42
_NO_GROUP, _NO_TRANSACTION = 69, 105  # GROUP_ID_NOT_FOUND, TRANSACTIONAL_ID_NOT_FOUND
_NEVER = dt.datetime.fromtimestamp(0, dt.UTC)  # as brokers answer without a transaction
_READ, _DESCRIBE = 1 << 3, 1 << 8

#: Kafka's number of the place that a setting comes from.
_SOURCES = {
    Source.TOPIC: 1,
    Source.NODE: 2,
    Source.BROKERS: 3,
    Source.SERVER_PROPERTIES: 4,
}
_DEFAULT_SOURCE = 5

Answer = Callable[[Broker, Coordinator, Any], Mapping[str, Any]]


def committed_on_disk(view: View, group_id: str) -> Places:
    """The offsets of a group in ``__consumer_offsets``."""
    return {
        (row["topic"], row["partition"]): CommittedOffset(
            row["offset"],
            -1 if row["leader_epoch"] is None else row["leader_epoch"],
            row["metadata"] or "",
        )
        for row in view.table("group_offsets")
        if row["group"] == group_id and row["offset"] is not None
    }


def find_coordinator(broker: Broker, _: Coordinator, body: Body) -> Mapping[str, Any]:
    """The server, for groups and for transactional ids."""
    is_known = getattr(body, "key_type", _GROUP) in (_GROUP, _TRANSACTION)
    found: dict[str, Any] = {"error_code": _INVALID_REQUEST, "node_id": -1}
    if is_known:
        found = {
            "error_code": 0,
            "node_id": broker.node_id,
            "host": broker.host,
            "port": broker.port,
        }
    keys = getattr(body, "coordinator_keys", ())
    return {**found, "coordinators": [{"key": each, **found} for each in keys]}


def describe_configs(broker: Broker, _: Coordinator, body: Body) -> Mapping[str, Any]:
    """Settings of topics; those of brokers are not known."""
    results = []
    for each in once(body.resources):
        found: dict[str, Any] = {
            "resource_type": each.resource_type,
            "resource_name": each.resource_name,
        }
        if each.resource_type == _TOPIC and each.resource_name not in broker.view.topics:
            found |= {"error_code": _UNKNOWN_TOPIC, "error_message": "it is not served"}
        elif each.resource_type == _TOPIC:
            names = each.configuration_keys
            found["configs"] = [
                {
                    "name": name,
                    "value": setting.value,
                    "read_only": True,
                    "config_source": _SOURCES.get(setting.source, _DEFAULT_SOURCE),
                }
                for name, setting in broker.view.settings_of(each.resource_name).items()
                if names is None or name in names
            ]
        results.append(found)
    return {"results": results}


def describe_log_dirs(broker: Broker, _: Coordinator, body: Body) -> Mapping[str, Any]:
    """The directories, and the bytes of each partition in them."""
    view = broker.view
    asked = (
        None
        if body.topics is None
        else {(each.topic, number) for each in body.topics for number in each.partitions}
    )
    places: dict[str, dict[str, list[dict[str, Any]]]] = {
        each: {} for each in view.directory.log_directories
    }
    for topic, partitions in view.topics.items():
        for number in partitions:
            if asked is None or (topic, number) in asked:
                log = view.log(topic, number).log
                place = places.setdefault(os.path.dirname(log.partition.path), {})
                row = {"partition_index": number, "partition_size": log.size_bytes}
                place.setdefault(topic, []).append(row)
    return {
        "results": [
            {
                "log_dir": place,
                **_space(place),
                "topics": [
                    {"name": name, "partitions": rows} for name, rows in sorted(topics.items())
                ],
            }
            for place, topics in places.items()
        ]
    }


def _space(path: str) -> dict[str, int]:
    try:
        found = shutil.disk_usage(path)
    except OSError:  # of a store, or of a tier
        return {}
    return {"total_bytes": found.total, "usable_bytes": found.free}


def _groups(broker: Broker, coordinator: Coordinator) -> dict[str, dict[str, Any]]:
    """All groups by their ids: those of the disk, then those that are here."""
    view = broker.view
    found = {
        row["group"]: {
            "group_id": row["group"],
            "group_state": row["state"],
            "protocol_type": row["protocol_type"] or "consumer",
            "group_type": row["kind"],
            "protocol_data": row["protocol"] or "",
            "members": [],
        }
        for row in view.table("groups")
    }
    for row in view.table("group_members"):
        found.get(row["group"], {}).setdefault("members", []).append(
            {name: row[name] or "" for name in ("member_id", "client_id", "client_host")}
            | {
                "group_instance_id": row["group_instance_id"],
                "member_assignment": _assignment(row["assigned"] or ()),
            }
        )
    for group_id in {*coordinator.committed, *coordinator.groups}:
        found[group_id] = _described(coordinator.groups.get(group_id) or ServedGroup(group_id))
    return found


def _assignment(assigned: Iterable[Mapping[str, Any]]) -> bytes:
    """What a member has, as clients write it; its first bytes are its version."""
    parts = [{"topic": each["topic"] or "", "partitions": each["partitions"]} for each in assigned]
    written = io.BytesIO(b"\0\0")
    written.seek(2)
    kind = ConsumerProtocolAssignment
    entity_writer(kind)(written, entity(kind, {"assigned_partitions": parts}))
    return written.getvalue()


def _described(group: ServedGroup) -> dict[str, Any]:
    return {
        "group_id": group.id,
        "group_state": group.state,
        "group_type": "classic",
        "protocol_type": group.protocol_type or "consumer",
        "protocol_data": group.protocol,
        "members": [
            {
                "member_id": each.id,
                "group_instance_id": each.instance_id,
                "client_id": each.client_id,
                "client_host": f"/{each.host}",
                "member_metadata": each.protocols.get(group.protocol, b""),
                "member_assignment": each.assignment,
            }
            for each in list(group.members.values())
        ],
    }


def list_groups(broker: Broker, coordinator: Coordinator, body: Body) -> Mapping[str, Any]:
    """Groups of the disk and of this run."""
    states = {each.lower() for each in getattr(body, "states_filter", ())}
    kinds = {each.lower() for each in getattr(body, "types_filter", ())}
    return {
        "groups": [
            each
            for each in _groups(broker, coordinator).values()
            if (not states or str(each["group_state"]).lower() in states)
            and (not kinds or each["group_type"] in kinds)
        ]
    }


def describe_groups(broker: Broker, coordinator: Coordinator, body: Body) -> Mapping[str, Any]:
    """Groups and their members; a group that is not known is dead."""
    known = _groups(broker, coordinator)
    dead = {"group_state": "Dead", "error_code": 0 if body.__version__ < 6 else _NO_GROUP}
    found = [known.get(each) or {"group_id": each, **dead} for each in once(body.groups)]
    if getattr(body, "include_authorized_operations", False):
        found = [{**each, "authorized_operations": _READ | _DESCRIBE} for each in found]
    return {"groups": found}


def describe_consumer_groups(
    broker: Broker, coordinator: Coordinator, body: Body
) -> Mapping[str, Any]:
    """Groups of the newer protocol, which only the disk has; others are asked for as classic."""
    view = broker.view
    here = {*coordinator.committed, *coordinator.groups}
    known = {
        row["group"]: {
            "group_id": row["group"],
            "group_state": row["state"],
            "group_epoch": row["epoch"],
            "assignment_epoch": row["assignment_epoch"],
            "assignor_name": row["protocol"] or "",
            "members": [
                _consumer(member)
                for member in view.table("group_members")
                if member["group"] == row["group"]
            ],
        }
        for row in view.table("groups")
        if row["kind"] == "consumer" and row["group"] not in here
    }
    none = {"error_code": _NO_GROUP, "error_message": "no group of the newer protocol has this id"}
    found = [known.get(each) or {"group_id": each, **none} for each in once(body.group_ids)]
    return {"groups": [{**each, "authorized_operations": _READ | _DESCRIBE} for each in found]}


def _consumer(row: Mapping[str, Any]) -> dict[str, Any]:
    """A member of a group of the newer protocol."""
    assigned = {
        "topic_partitions": [
            {
                "topic_id": uuid_of(each["topic_id"] or ""),
                "topic_name": each["topic"] or "",
                "partitions": each["partitions"],
            }
            for each in row["assigned"] or ()
        ]
    }
    return {
        "member_id": row["member_id"],
        "instance_id": row["group_instance_id"],
        "rack_id": row["rack_id"],
        "member_epoch": row["member_epoch"],
        "client_id": row["client_id"] or "",
        "client_host": row["client_host"] or "",
        "subscribed_topic_names": row["subscribed_topics"] or (),
        "subscribed_topic_regex": row["subscribed_topic_regex"],
        "assignment": assigned,
        "target_assignment": assigned,
        "member_type": 1,
    }


def describe_producers(broker: Broker, _: Coordinator, body: Body) -> Mapping[str, Any]:
    """Producers of partitions, as their logs end."""
    view = broker.view
    rows: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for row in view.table("producers"):
        rows.setdefault((row["topic"], row["partition"]), []).append(row)
    asked = once((topic.name, each) for topic in body.topics for each in topic.partition_indexes)
    return {
        "topics": [
            {
                "name": name,
                "partitions": [
                    {
                        "partition_index": each,
                        "error_code": 0 if each in view.topics.get(name, ()) else _UNKNOWN_TOPIC,
                        "active_producers": [*map(_producer, rows.get((name, each), ()))],
                    }
                    for _, each in partitions
                ],
            }
            for name, partitions in itertools.groupby(asked, lambda both: both[0])
        ]
    }


def _producer(row: Mapping[str, Any]) -> dict[str, Any]:
    def number(name: str) -> int:
        return -1 if row[name] is None else int(row[name])

    time: dt.datetime | None = row["timestamp"]
    return {
        "producer_id": row["producer_id"],
        "producer_epoch": row["producer_epoch"],
        "last_sequence": number("last_sequence"),
        "last_timestamp": -1 if time is None else round(time.timestamp() * 1000),
        "coordinator_epoch": number("coordinator_epoch"),
        "current_txn_start_offset": number("current_txn_first_offset"),
    }


def list_transactions(broker: Broker, _: Coordinator, body: Body) -> Mapping[str, Any]:
    """Transactional ids of the disk."""
    return {
        "transaction_states": [
            {
                "transactional_id": row["transactional_id"],
                "producer_id": row["producer_id"],
                "transaction_state": row["transaction_status"],
            }
            for row in broker.view.table("transactions")
            if (not body.state_filters or row["transaction_status"] in body.state_filters)
            and (not body.producer_id_filters or row["producer_id"] in body.producer_id_filters)
        ]
    }


def describe_transactions(broker: Broker, _: Coordinator, body: Body) -> Mapping[str, Any]:
    """Transactional ids, by their last records."""
    known = {row["transactional_id"]: row for row in broker.view.table("transactions")}
    return {
        "transaction_states": [_transaction(each, known) for each in once(body.transactional_ids)]
    }


def _transaction(name: str, known: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    row = known.get(name)
    if row is None:
        return {
            "transactional_id": name,
            "error_code": _NO_TRANSACTION,
            "producer_id": -1,
            "transaction_start_time": _NEVER,
        }
    return {
        "transactional_id": name,
        "producer_id": row["producer_id"],
        "producer_epoch": row["producer_epoch"],
        "transaction_state": row["transaction_status"],
        "transaction_timeout": row["transaction_timeout_ms"],
        "transaction_start_time": row["transaction_start_timestamp"] or _NEVER,
        "topics": [
            {"topic": each["topic"], "partitions": each["partition_ids"]}
            for each in row["transaction_partitions"] or ()
        ],
    }


def fetch_offsets(_: Broker, coordinator: Coordinator, body: Body) -> Mapping[str, Any]:
    """Offsets that groups have committed."""
    return coordinator.fetch_offsets(body)


def nothing(_: Broker, __: Coordinator, ___: Body) -> Mapping[str, Any]:
    """No ACLs, no quotas, no users of SCRAM, and no partitions that are moved."""
    return {"entries": []}


#: Least and largest version, and the answer, by key.
ANSWERS: dict[int, tuple[int, int, Answer]] = {
    9: (1, 9, fetch_offsets),
    10: (0, 6, find_coordinator),
    15: (0, 6, describe_groups),
    16: (0, 5, list_groups),
    29: (1, 3, nothing),
    32: (1, 4, describe_configs),
    35: (1, 4, describe_log_dirs),
    46: (0, 0, nothing),
    48: (0, 1, nothing),
    50: (0, 0, nothing),
    61: (0, 0, describe_producers),
    65: (0, 0, describe_transactions),
    66: (0, 1, list_transactions),
    69: (0, 1, describe_consumer_groups),
}
