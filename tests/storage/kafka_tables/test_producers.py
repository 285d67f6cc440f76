"""Producers of each partition, from snapshots and from the batches after them."""

import shutil
from pathlib import Path

import pyarrow.compute as pc
import pytest
from compaction.batches import ABORT, COMMIT, CONTROL, lay_out, marker, records_of

import segmentlog
from segmentlog.log.producer_snapshot import ProducerSnapshot, write_snapshot


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


def test_the_history_ends_with_the_last_state(example_cluster: str) -> None:
    """Each change has the whole state, so the last change of a producer is its last state."""
    changes = segmentlog.table(example_cluster, "producers", history=True).to_pylist()
    names = segmentlog.table(example_cluster, "producers").column_names
    last = {tuple(row[n] for n in names[:3]): [row[n] for n in names] for row in changes}

    rows = segmentlog.table(example_cluster, "producers").to_pylist()
    assert sorted(map(repr, last.values())) == sorted(repr([*row.values()]) for row in rows)


def test_changes_are_batches_and_end_markers(example_cluster: str) -> None:
    """The batches of a partition whose headers have a producer are its changes, in their order."""
    found = segmentlog.table(example_cluster, "producers", history=True)
    assert {"batch", "commit", "abort"} == {*found["record"].to_pylist()}
    rows = found.filter(pc.equal(found["topic"], "orders")).to_pylist()
    for partition in range(3):
        log = segmentlog.open_log_dir(example_cluster).log("orders", partition)
        expected = [
            (each.header.base_offset, each.header.max_timestamp, each.header.is_control)
            for segment in log.segments
            for each in segment.headers(0)
            if each.header.producer_id >= 0
        ]
        assert expected == [
            (
                row["record_offset"],
                round(row["record_timestamp"].timestamp() * 1000),
                row["record"] != "batch",
            )
            for row in rows
            if row["partition"] == partition
        ]


def test_a_history_begins_with_the_snapshot_of_the_first_segment(
    example_cluster: str, tmp_path: Path
) -> None:
    """The producers of the snapshot come first, without an offset. Damage ends the history."""
    copied = tmp_path / "copied"
    shutil.copytree(example_cluster, copied)
    path = copied / "invoices-0"
    write_snapshot(f"{path}/{0:020d}.snapshot", [ProducerSnapshot(999, 0, 4, 0, 0, 5, -1, -1)])
    whole = segmentlog.table(copied, "producers", history=True).to_pylist()
    rows = [row for row in whole if row["topic"] == "invoices" and row["partition"] == 0]

    assert [(999, "snapshot", None, None)] == [
        tuple(row[n] for n in ("producer_id", "record", "record_offset", "record_timestamp"))
        for row in rows[:1]
    ]
    assert None not in [row["record_offset"] for row in rows[1:]]
    (file,) = path.glob("*.log")
    data = bytearray(file.read_bytes())
    second = 12 + int.from_bytes(data[8:12], "big")
    data[second + 8 : second + 12] = b"\0\0\0\3"  # of bytes, too few for a batch
    file.write_bytes(bytes(data))
    with pytest.raises(segmentlog.CorruptLogError):
        segmentlog.table(copied, "producers", history=True)
    skipped = segmentlog.table(copied, "producers", history=True, on_corrupt_batch="skip")
    is_damaged = pc.and_(pc.equal(skipped["topic"], "invoices"), pc.equal(skipped["partition"], 0))
    left = skipped.filter(is_damaged).to_pylist()
    assert rows[: len(left)] == left
    assert len(left) < len(rows)


def test_a_control_batch_outside_transactions_is_no_end_marker(tmp_path: Path) -> None:
    """A broker writes none. The marker after it is not taken for it."""
    written = records_of(0, (b"k", b"v"))._replace(producer_id=7, epoch=0, sequence=0)
    other = marker(1, COMMIT, 7)._replace(attributes=CONTROL)
    lay_out(tmp_path, {0: [written, other], 2: []})
    rows = segmentlog.table(tmp_path, "producers", history=True)
    assert ["batch", None] == rows["record"].to_pylist()[:2]
    shutil.rmtree(tmp_path / "t-0")
    lay_out(tmp_path, {0: [written, other, marker(2, ABORT, 7)], 3: []})
    rows = segmentlog.table(tmp_path, "producers", history=True)
    assert ["batch", None, "abort"] == rows["record"].to_pylist()
