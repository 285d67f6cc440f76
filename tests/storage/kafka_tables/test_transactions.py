"""Transactional ids have their last record, and what is open is shown with what was decided."""

from pathlib import Path
from typing import Any

from coordinator_logs import Coordinator, message

import segmentlog

TOPIC = "__transaction_state"


def record(name: str, status: int | None = None, **fields: Any) -> Any:
    """A record of a transactional id; a tombstone without a status."""
    value = None if status is None else {"transaction_status": status} | fields
    return message(TOPIC, 0, {"transactional_id": name}, value)


def test_the_last_record_of_each_id(tmp_path: Path) -> None:
    """A tombstone removes an id, and an unknown status is shown as a number."""
    partitions = [{"topic": "t", "partition_ids": [0, 2]}]
    log = Coordinator().add(
        record("a", 1),
        record("b", 1),
        record("a", 2, transaction_partitions=partitions),
        record("b"),
        record("c", 44),
        (b"\0\7x", b"y"),
        record("d", 4, producer_id=9, transaction_start_timestamp_ms=-1),
    )
    directory = log.write(tmp_path, 1, TOPIC)
    rows = segmentlog.table(directory, "transactions").to_pylist()

    assert [("a", "PrepareCommit"), ("c", "UNKNOWN(44)"), ("d", "CompleteCommit")] == [
        (row["transactional_id"], row["transaction_status"]) for row in rows
    ]
    assert partitions == rows[0]["transaction_partitions"]
    assert (9, None, None, None) == tuple(
        rows[2][each]
        for each in (
            "producer_id",
            "transaction_start_timestamp",
            "previous_producer_id",
            "next_producer_id",
        )
    )
    history = segmentlog.table(directory, "transactions", history=True).to_pylist()
    assert ["set", "set", "set", "removed", "set", "set"] == [row["change"] for row in history]
    (unknown,) = segmentlog.table(directory, "unknown_records").to_pylist()
    assert (TOPIC, 1, 5, b"\0\7x", b"y") == tuple(
        unknown[each] for each in ("topic", "partition", "offset", "key", "value")
    )


def test_open_transactions_of_all_logs(example_cluster: str) -> None:
    """The last stable offset of each partition is its first open offset."""
    rows = segmentlog.table(example_cluster, "open_transactions").to_pylist()
    directory = segmentlog.open_log_dir(example_cluster)

    assert [("__consumer_offsets", "bill-3", "Ongoing"), ("invoices", "bill-3", "Ongoing")] == [
        (row["topic"], row["transactional_id"], row["transaction_status"]) for row in rows
    ]
    for row in rows:
        log = directory.log(row["topic"], row["partition"])
        assert log.last_stable_offset(segmentlog.ReadUpTo.LOG_END) == row["first_offset"]


def test_an_open_transaction_without_its_coordinator(tmp_path: Path) -> None:
    """Without the log of the coordinator, the producer id is all that is known."""
    log = Coordinator().add((b"\0\1", b"x"), producer=7).write(tmp_path, 0, "t")
    (row,) = segmentlog.table(log, "open_transactions").to_pylist()

    assert ("t", 0, 7, 0, None) == tuple(
        row[each]
        for each in ("topic", "partition", "producer_id", "first_offset", "transactional_id")
    )
