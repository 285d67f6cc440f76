"""``consumer_lag`` and ``open_transactions``: tables of several topics."""

from collections.abc import Iterator, Mapping
from typing import Any

from segmentlog.kafka_tables.columns import time_of
from segmentlog.logs.log import Log
from segmentlog.logs.log_directory import LogDirectory
from segmentlog.model import OnCorruptBatch, ReadUpTo

__all__ = ["lag_rows", "open_transaction_rows"]


def lag_rows(
    directory: LogDirectory,
    offsets: list[dict[str, Any]],
    groups: Mapping[str, Mapping[str, Any]],
) -> Iterator[dict[str, Any]]:
    """Rows of ``consumer_lag``.

    Nothing is clamped: the lag is below 0 if the log was cut after the commit.  An offset of an
    earlier topic of the same name has no end and no lag.

    Parameters
    ----------
    offsets : rows of ``group_offsets``.
    groups : rows of ``groups`` by name.
    """
    held = {*directory.topic_partitions()}
    ends: dict[tuple[str, int], tuple[int, str]] = {}
    for row in offsets:
        place = row["topic"], row["partition"]
        if place in held and place not in ends:
            log = directory.log(*place)
            ends[place] = log.log_end_offset, log.known_topic_id
        end, topic_id = ends.get(place, (None, ""))
        if topic_id and row["topic_id"] and topic_id != row["topic_id"]:
            end = None
        lag = None if end is None or row["offset"] is None else end - row["offset"]
        group = groups.get(row["group"], {})
        yield row | {
            "log_end_offset": end, "lag": lag,
            "kind": group.get("kind"), "state": group.get("state"),
        }  # fmt: skip


def open_transaction_rows(
    directory: LogDirectory,
    on_corrupt_batch: OnCorruptBatch,
    transactions: Mapping[int, Mapping[str, Any]],
) -> Iterator[dict[str, Any]]:
    """Rows of ``open_transactions``: each partition is looked at to its end.

    Parameters
    ----------
    transactions : rows of ``transactions`` by producer id.
    """
    for topic, partition in directory.topic_partitions():
        log = directory.log(topic, partition)
        opened = log.open_transactions(ReadUpTo.LOG_END, on_corrupt_batch, fail_on_data_loss=False)
        for producer_id, first_offset in sorted(opened.items(), key=lambda each: each[1]):
            known = transactions.get(producer_id, {})
            yield dict(known) | {
                "topic": topic, "partition": partition, "producer_id": producer_id,
                "first_offset": first_offset, "first_timestamp": _time_at(log, first_offset),
            }  # fmt: skip


def _time_at(log: Log, offset: int) -> int | None:
    """Time of the batch that has an offset."""
    for segment in reversed(log.untorn_segments):
        if segment.base_offset <= offset:
            placed = segment.find(offset)
            return None if placed is None else time_of(placed.header.first_timestamp)
    return None
