"""``consumer_lag`` and ``open_transactions``: tables of several topics."""

from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from segmentlog.kafka_tables.columns import rows_to_table, schema_of, time_of
from segmentlog.kafka_tables.definitions import TABLES
from segmentlog.model import OnCorruptBatch, ReadUpTo, TopicPartition
from segmentlog.reads.listed import retry_if_relisted
from segmentlog.reads.log import Log
from segmentlog.reads.log_directory import LogDirectory
from segmentlog.store.failures import Failures

#: The columns of ``groups`` that ``consumer_lag`` takes over.
_STATE = [
    each
    for each in TABLES["groups"].columns
    if each.name in ("group", "record_partition", "kind", "state")
]


def lag_table(
    directory: LogDirectory,
    offsets: pa.Table,
    groups: Iterable[Mapping[str, Any]],
    failures: Failures,
) -> pa.Table:
    """The table ``consumer_lag``; only the end of each log is an object of Python.

    Nothing is clamped: the lag is below 0 if the log was cut after the commit.  An offset of an
    earlier topic of the same name has no end and no lag.

    `failures`: gets the logs that cannot be read; they have no end and no lag.
    """
    schema = schema_of(TABLES["consumer_lag"].columns)
    row = pa.array(np.arange(offsets.num_rows))
    ends = _ends(directory, offsets.group_by(["topic", "partition"]).aggregate([]), failures)
    states = rows_to_table([*groups], _STATE)
    found = (
        offsets.append_column("row", row)
        .join(ends, ["topic", "partition"])
        .join(states, ["group", "record_partition"])
        .sort_by("row")
    )
    is_other = pc.fill_null(pc.not_equal(found["topic_id"], found["end_topic_id"]), False)
    end = pc.if_else(is_other, pa.scalar(None, pa.int64()), found["log_end_offset"])
    lag = pc.subtract(end, found["offset"])
    # An offset far below 0 has no difference that an int64 can hold.
    is_beyond = pc.fill_null(pc.and_(pc.less(found["offset"], 0), pc.less(lag, 0)), False)
    columns = {name: found[name] for name in schema.names if name != "lag"}
    columns["log_end_offset"] = end
    columns["lag"] = pc.if_else(is_beyond, pa.scalar(None, pa.int64()), lag)
    return pa.table([columns[name] for name in schema.names], schema=schema)


def _ends(directory: LogDirectory, places: pa.Table, failures: Failures) -> pa.Table:
    """Ends and topic ids of the logs of partitions; null for those that are not here."""
    held = {*directory.topic_partitions()}
    ends: list[int | None] = []
    topic_ids: list[str | None] = []
    for place in zip(places["topic"].to_pylist(), places["partition"].to_pylist(), strict=True):
        end = topic_id = None
        if place in held:
            with failures.of(TopicPartition(*place)):
                log = directory.log(*place)
                end, topic_id = log.log_end_offset, log.known_topic_id or None
        ends.append(end)
        topic_ids.append(topic_id)
    return places.append_column("log_end_offset", pa.array(ends, pa.int64())).append_column(
        "end_topic_id", pa.array(topic_ids, pa.string())
    )


def open_transaction_rows(
    directory: LogDirectory,
    on_corrupt_batch: OnCorruptBatch,
    transactions: Mapping[int, Mapping[str, Any]],
    failures: Failures,
) -> Iterator[dict[str, Any]]:
    """Rows of ``open_transactions``: each partition is looked at to its end.

    `transactions`: rows of ``transactions`` by producer id.  `failures`: gets the partitions that
    cannot be read.
    """
    for each in directory.topic_partitions():
        opened = []
        with failures.of(each):
            log = directory.log(*each)
            found = log.open_transactions(
                ReadUpTo.LOG_END, on_corrupt_batch, fail_on_data_loss=False
            )
            opened = [(first, each, _time_at(log, first)) for each, first in found.items()]
        for first_offset, producer_id, time in sorted(opened, key=itemgetter(0)):
            known = transactions.get(producer_id, {})
            yield dict(known) | {
                "topic": each.topic, "partition": each.partition, "producer_id": producer_id,
                "first_offset": first_offset, "first_timestamp": time,
            }  # fmt: skip


@retry_if_relisted
def _time_at(log: Log, offset: int) -> int | None:
    """Time of the batch that has an offset."""
    for segment in reversed(log.untorn_segments):
        if segment.base_offset <= offset:
            placed = segment.find(offset)
            return None if placed is None else time_of(placed.header.first_timestamp)
    return None
