"""``transactions``: the transactional ids of a coordinator."""

from collections.abc import Iterator
from typing import Any

from segmentlog.kafka_tables.columns import time_of
from segmentlog.kafka_tables.coordinator import PlacedRecord, read_records
from segmentlog.model import OnCorruptBatch
from segmentlog.reads.log import Log

_STATUS = {0: "Empty", 1: "Ongoing", 2: "PrepareCommit", 3: "PrepareAbort", 4: "CompleteCommit",
           5: "CompleteAbort", 6: "Dead", 7: "PrepareEpochFence"}  # fmt: skip


def transaction_changes(log: Log, on_corrupt_batch: OnCorruptBatch) -> Iterator[dict[str, Any]]:
    """Every record of a partition of ``__transaction_state``.

    Raises `MalformedRecordError` if a record cannot be read; `CorruptLogError` if the log is
    damaged.
    """
    for placed in read_records(log, ("TransactionLog",), on_corrupt_batch):
        yield _row(placed)


def _row(placed: PlacedRecord) -> dict[str, Any]:
    record = placed.record
    row: dict[str, Any] = {
        "transactional_id": record.key["transactional_id"],
        "record_partition": placed.partition,
        "record_offset": placed.offset,
        "record_timestamp": placed.timestamp,
        "change": "removed" if record.value is None else "set",
    }
    if record.value is None:
        return row
    row |= record.value
    status = row["transaction_status"]
    for name in ("transaction_start_timestamp", "transaction_last_update_timestamp"):
        row[name] = time_of(row[f"{name}_ms"])
    for name in ("previous_producer_id", "next_producer_id"):
        row[name] = None if row.get(name, -1) < 0 else row[name]
    return row | {"transaction_status": _STATUS.get(status, f"UNKNOWN({status})")}
