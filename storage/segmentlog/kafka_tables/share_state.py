"""``share_state``: how far share groups have come in each partition.

A snapshot replaces the state of a key, and an update changes it.  Batches of an update are
combined with those of the state: of two batches that overlap, the one with more deliveries holds,
and then the one with the greater state; neighbours of one state and count are joined; what lies
below the start offset is dropped.

Kafka 4.1 changed the bytes of these records without a new version.  Which bytes a log has follows
from the ``metadata.version`` of the cluster.

Rules: ``ShareCoordinatorShard.merge``, ``PersisterStateBatchCombiner``.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from segmentlog.kafka_tables.columns import printed_id, time_of
from segmentlog.kafka_tables.coordinator import PlacedRecord, read_records
from segmentlog.model import OnCorruptBatch
from segmentlog.reads.log import Log

#: ``metadata.version`` of 4.1-IV0: clusters below it write the bytes of Kafka 4.0.
FIRST_LEVEL_OF_4_1 = 26

_STATES = {0: "AVAILABLE", 1: "ACQUIRED", 2: "ACKNOWLEDGED", 3: "ARCHIVING", 4: "ARCHIVED"}
_UNKNOWN = -1

Topics = Mapping[uuid.UUID, str]


def share_rows(
    log: Log, on_corrupt_batch: OnCorruptBatch, topics: Topics, is_kafka_4_0: Callable[[], bool]
) -> Iterator[dict[str, Any]]:
    """The state of each share partition in a partition of ``__share_group_state``.

    `topics`: names of topics by their ids, as far as they are known.  `is_kafka_4_0`: whether the
    records have the bytes of Kafka 4.0.  Raises `MalformedRecordError` if a record cannot be read;
    `CorruptLogError` if the log is damaged.
    """
    states: dict[tuple[Any, ...], tuple[PlacedRecord, dict[str, Any]]] = {}
    for placed in _records(log, on_corrupt_batch, is_kafka_4_0):
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
        yield _row(placed, fields, topics)


def share_changes(
    log: Log, on_corrupt_batch: OnCorruptBatch, topics: Topics, is_kafka_4_0: Callable[[], bool]
) -> Iterator[dict[str, Any]]:
    """Every record, as it was written; parameters and errors as of `share_rows`."""
    for placed in _records(log, on_corrupt_batch, is_kafka_4_0):
        record = placed.record
        yield _row(placed, record.value or {}, topics) | {
            "record": record.name.removeprefix("Share").lower(),
            "change": "removed" if record.value is None else "set",
        }


def _records(
    log: Log, on_corrupt_batch: OnCorruptBatch, is_kafka_4_0: Callable[[], bool]
) -> Iterator[PlacedRecord]:
    names = ("ShareSnapshot", "ShareUpdate")
    return read_records(log, names, on_corrupt_batch, is_kafka_4_0)


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
        (max(each["first_offset"], start), each["last_offset"] + 1,
         (each["delivery_count"], each["delivery_state"]))
        for each in batches
    ]  # fmt: skip
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
            first - 1, count, state,
        ):  # fmt: skip
            last["last_offset"] = end - 1
        else:
            combined.append({"first_offset": first, "last_offset": end - 1,
                             "delivery_state": state, "delivery_count": count})  # fmt: skip
    return combined


def _row(placed: PlacedRecord, fields: Mapping[str, Any], topics: Topics) -> dict[str, Any]:
    key = placed.record.key
    row = {
        "group": key["group_id"], "topic": topics.get(key["topic_id"]),
        "topic_id": printed_id(key["topic_id"]), "partition": key["partition"],
        "record_partition": placed.partition, "record_offset": placed.offset,
        "record_timestamp": placed.timestamp,
    }  # fmt: skip
    if not fields:
        return row
    for name in ("start_offset", "delivery_complete_count", "leader_epoch"):
        value = fields.get(name, _UNKNOWN)
        row[name] = None if value == _UNKNOWN else value
    return row | {
        "snapshot_epoch": fields["snapshot_epoch"],
        "state_epoch": fields.get("state_epoch"),
        "create_timestamp": time_of(fields.get("create_timestamp")),
        "write_timestamp": time_of(fields.get("write_timestamp")),
        "state_batches": [
            each | {"delivery_state": _STATES.get(n := each["delivery_state"], f"UNKNOWN({n})")}
            for each in fields["state_batches"]
        ],
    }
