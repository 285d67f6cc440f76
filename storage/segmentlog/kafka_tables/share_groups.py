"""``share_state`` and ``dead_letters``: the progress of share groups, and what they have given up.

A snapshot replaces the state of a key, and an update changes it.  Batches of an update are
combined with those of the state: of two batches that overlap, the one with more deliveries holds,
and then the one with the greater state; neighbours of one state and count are joined; what lies
below the start offset is dropped.

Kafka 4.1 changed the bytes of these records without a new version.  Which bytes a log has follows
from the ``metadata.version`` of the cluster.

A broker copies a record that is given up to a topic of dead letters, and writes its place and the
cause into headers, as text (KIP-1191).

Rules: ``ShareCoordinatorShard.merge``, ``PersisterStateBatchCombiner``,
``ShareGroupDLQStateManager``.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import pyarrow as pa

from segmentlog.format.messages import lines
from segmentlog.kafka_tables.columns import (
    INT,
    LONG,
    ORIGIN,
    ORIGIN_IN_TOPIC,
    TEXT,
    Column,
    Row,
    Table,
    fields_of,
    shown,
)
from segmentlog.kafka_tables.source import SHARE_GROUP_STATE, PlacedRecord, TableSource
from segmentlog.reads.log import Log

_STATES = {0: "AVAILABLE", 1: "ACQUIRED", 2: "ACKNOWLEDGED", 3: "ARCHIVING", 4: "ARCHIVED"}
_UNKNOWN = -1
_MESSAGES = ("ShareSnapshot", "ShareUpdate")

_field = fields_of(lines.SHARE_STATE, "ShareSnapshotKey", "ShareSnapshotValue")
_SHARE_PARTITION = (
    _field("group", "the share group", of="group_id"),
    Column("topic", TEXT, "the topic; null if the directory has no metadata that names it"),
    _field("topic_id", "id of the topic"),
    _field("partition", "the partition"),
    _field("start_offset", "records below this offset are done; null if not yet known",
           unknown=_UNKNOWN),
    _field("delivery_complete_count",
           "number of done records at or after `start_offset`; null before Kafka 4.2",
           unknown=_UNKNOWN),
    _field("snapshot_epoch", "number of snapshots of the state"),
    _field("state_epoch", "group's epoch when it set the state up; null in an update"),
    _field("leader_epoch", "epoch of the leader of the partition; null if it is not known",
           unknown=_UNKNOWN),
    _field("create_timestamp", "when the snapshot was first made; null in Kafka 4.0"),
    _field("write_timestamp", "when the snapshot was written; null in Kafka 4.0"),
    Column("state_batches",
           pa.list_(pa.struct([("first_offset", LONG), ("last_offset", LONG),
                               ("delivery_state", TEXT), ("delivery_count", INT)])),
           "ranges of delivered records: `AVAILABLE`, `ACKNOWLEDGED`, `ARCHIVING` or `ARCHIVED`"),
)  # fmt: skip


def _share_rows(source: TableSource, log: Log) -> Iterator[Row]:
    """The state of each share partition in a partition of the topic."""
    states: dict[tuple[Any, ...], tuple[PlacedRecord, dict[str, Any]]] = {}
    for placed in source.coordinator_records(log, _MESSAGES):
        record = placed.record
        key = tuple(record.key.values())
        known = states.get(key)
        if record.value is None:
            states.pop(key, None)
        elif record.name == "ShareSnapshot" or known is None:
            states[key] = placed, dict(record.value)
        else:
            states[key] = placed, _merged(known[1], record.value)
    for placed, fields in states.values():
        yield _share_row(source, placed, fields)


def _share_changes(source: TableSource, log: Log) -> Iterator[Row]:
    """Every record, as it was written."""
    for placed in source.coordinator_records(log, _MESSAGES):
        yield _share_row(source, placed, placed.record.value or {}) | {
            "record": placed.record.name.removeprefix("Share").lower(),
            "change": "removed" if placed.is_removal else "set",
        }


def _share_row(source: TableSource, placed: PlacedRecord, fields: Mapping[str, Any]) -> Row:
    key = placed.record.key
    row = shown(_SHARE_PARTITION, {**key, **fields}) | placed.origin
    row["topic"] = source.topic_names.get(key["topic_id"])
    if fields:
        row["state_batches"] = [
            each | {"delivery_state": _STATES.get(n := each["delivery_state"], f"UNKNOWN({n})")}
            for each in fields["state_batches"]
        ]
    return row


def _merged(known: Mapping[str, Any], update: Mapping[str, Any]) -> dict[str, Any]:
    """A state with an update."""
    merged = dict(known)
    for name in ("start_offset", "leader_epoch"):
        if update[name] != _UNKNOWN:
            merged[name] = update[name]
    if "delivery_complete_count" in update:
        merged["delivery_complete_count"] = update["delivery_complete_count"]
    batches = [*known["state_batches"], *update["state_batches"]]
    return merged | {"state_batches": _combined(batches, merged["start_offset"])}


def _combined(batches: list[dict[str, Any]], start: int) -> list[dict[str, Any]]:
    """Batches without overlaps: the greatest (count, state) holds at each offset."""
    spans = [
        (
            max(each["first_offset"], start),
            each["last_offset"] + 1,
            (each["delivery_count"], each["delivery_state"]),
        )
        for each in batches
    ]
    spans = sorted(each for each in spans if each[0] < each[1])
    bounds = sorted({bound for first, end, _ in spans for bound in (first, end)})
    combined: list[dict[str, Any]] = []
    active: list[tuple[int, int, tuple[int, int]]] = []
    at = 0
    for first, end in pairwise(bounds):
        while at < len(spans) and spans[at][0] <= first:
            active.append(spans[at])
            at += 1
        active = [each for each in active if each[1] > first]
        if not active:
            continue
        count, state = max(each[2] for each in active)
        last = combined[-1] if combined else None
        if last and (last["last_offset"], last["delivery_count"], last["delivery_state"]) == (
            first - 1,
            count,
            state,
        ):
            last["last_offset"] = end - 1
        else:
            combined.append(
                {
                    "first_offset": first,
                    "last_offset": end - 1,
                    "delivery_state": state,
                    "delivery_count": count,
                }
            )
    return combined


SHARE_STATE = Table(
    SHARE_GROUP_STATE,
    "Progress of share groups (KIP-932): each snapshot, with the updates after it",
    (*_SHARE_PARTITION, *ORIGIN),
    _share_changes,
    state=_share_rows,
    history_columns=(
        *_SHARE_PARTITION,
        *ORIGIN,
        Column("record", TEXT, "`snapshot` or `update`; an update contains only changed fields"),
    ),
)

_PREFIX = "__dlq.errors."

#: Headers with numbers, and the largest values of their columns.
_NUMBERS = {"partition": 2**31 - 1, "offset": 2**63 - 1, "delivery.count": 2**31 - 1}


def _dead_letters(source: TableSource, log: Log) -> Iterator[Row]:
    """A row for each record with a broker's headers; other records are no dead letters."""
    for batch in source.scan(log, ("offset", "timestamp", "headers")):
        times = batch["timestamp"].cast("int64").to_pylist()
        rows = zip(batch["offset"].to_pylist(), times, batch["headers"].to_pylist(), strict=True)
        for offset, time, headers in rows:
            found: Row = {
                each["key"].removeprefix(_PREFIX): (each["value"] or b"").decode(errors="replace")
                for each in headers or ()
                if each["key"].startswith(_PREFIX)
            }
            if not found:
                continue
            for name, most in _NUMBERS.items():  # a text that is no such number is null
                digits = found.get(name, "")
                is_number = digits.isascii() and digits.isdecimal() and len(digits) < 20
                found[name] = int(digits) if is_number and int(digits) <= most else None
            yield found | {
                "delivery_count": found["delivery.count"],
                "change": "set",
                "record_partition": log.topic_partition.partition,
                "record_offset": offset,
                "record_timestamp": time,
            }


DEAD_LETTERS = Table(
    "dlq.<group>",
    "Records that share groups have given up (KIP-1191): from where, and why",
    (
        Column("topic", TEXT, "the topic of the record that was given up"),
        Column("partition", INT, "its partition"),
        Column("offset", LONG, "its offset"),
        Column("group", TEXT, "the share group"),
        Column("delivery_count", INT, "how often the record was delivered"),
        Column("message", TEXT, "why the group has given it up"),
        *ORIGIN_IN_TOPIC,
    ),
    _dead_letters,
    key=("record_topic", "record_partition", "record_offset"),
    pattern=r"dlq\..+",
)
