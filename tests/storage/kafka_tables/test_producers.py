"""Producers of each partition, from snapshots and from the batches after them."""

import shutil
from pathlib import Path

import segmentlog
from segmentlog.producers.snapshot import ProducerSnapshot, write_snapshot


def test_producers_with_and_without_snapshots(example_cluster: str, tmp_path: Path) -> None:
    """Logs that begin at offset 0 have all of the state that snapshots have."""
    copied = tmp_path / "copied"
    shutil.copytree(example_cluster, copied)
    for path in copied.rglob("*.snapshot"):
        path.unlink()
    rows = segmentlog.table(example_cluster, "producers").to_pylist()

    assert rows == segmentlog.table(copied, "producers").to_pylist()
    opened = segmentlog.table(example_cluster, "open_transactions").to_pylist()
    assert sorted((row["topic"], row["producer_id"], row["first_offset"]) for row in opened) == [
        (row["topic"], row["producer_id"], row["current_txn_first_offset"])
        for row in rows
        if row["current_txn_first_offset"] is not None
    ]


def test_a_snapshot_at_the_end_is_the_state(example_cluster: str, tmp_path: Path) -> None:
    """A producer whose batches are gone is in the snapshot alone."""
    copied = tmp_path / "copied"
    shutil.copytree(example_cluster, copied)
    log = segmentlog.open_log_dir(copied).log("invoices", 0)
    gone = ProducerSnapshot(999, 0, 4, 0, 0, 5, -1, -1)
    write_snapshot(f"{log.path}/{log.log_end_offset:020d}.snapshot", [gone])
    rows = segmentlog.table(copied, "producers").to_pylist()

    assert [999] == [row["producer_id"] for row in rows if row["topic"] == "invoices"]
