"""Segments in a tier, by the records with which brokers announce them."""

import logging
import uuid
from pathlib import Path
from typing import Any

import pytest
from coordinator_logs import Coordinator, framed

import segmentlog
from segmentlog.tiered.metadata import remote_segments

TOPIC = "__remote_log_metadata"
TIER = Path(__file__).parents[3] / "examples" / "tier"
ANNOUNCED, UPDATED, PARTITION = 0, 1, 2
STARTED, FINISHED, DELETING, DELETED = range(4)
STATES = [
    "COPY_SEGMENT_STARTED",
    "COPY_SEGMENT_FINISHED",
    "DELETE_SEGMENT_STARTED",
    "DELETE_SEGMENT_FINISHED",
]

Pair = tuple[None, bytes]


def record(kind: int, segment: int, state: int, partition: int = 0, **fields: Any) -> Pair:
    """A record about a segment."""
    place = {"name": "t", "id": uuid.UUID(int=7), "partition": partition}
    segment_id = {"topic_id_partition": place, "id": uuid.UUID(int=segment)}
    value = {"remote_log_segment_id": segment_id, "remote_log_segment_state": state}
    return framed(TOPIC, kind, value | fields)


def deletion(partition: int, state: int) -> Pair:
    """A record about the deletion of a partition."""
    place = {"name": "t", "id": uuid.UUID(int=7), "partition": partition}
    return framed(
        TOPIC, PARTITION, {"topic_id_partition": place, "remote_partition_delete_state": state}
    )


def test_the_segments_of_a_tier_are_those_of_its_files() -> None:
    """The broker was stopped before it had noted the end of the last copy."""
    rows = segmentlog.table(TIER / "logs", "remote_segments").to_pylist()
    (files,) = (TIER / "bucket" / "kafka-tiered-storage").iterdir()

    assert [STATES[FINISHED]] * 4 + [STATES[STARTED]] == [
        row["remote_log_segment_state"] for row in rows
    ]
    assert {path.stem: path.stat().st_size for path in files.glob("*.log")} == {
        f"{row['start_offset']:020d}-{row['segment_id']}": row["segment_size_in_bytes"]
        for row in rows
        if row["remote_log_segment_state"] == STATES[FINISHED]
    }
    first = rows[0]
    assert files.name == f"{first['topic']}-{first['partition']}-{first['topic_id']}"
    assert [(99, [{"leader_epoch": 0, "offset": 0}])] == [
        (first["end_offset"], first["segment_leader_epochs"])
    ]
    history = segmentlog.table(TIER / "logs", "remote_segments", history=True)
    assert [*range(9)] == history["record_offset"].to_pylist()
    assert "remote_segments" in segmentlog.tables(TIER / "logs")


def test_states_follow_as_for_a_broker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A state that cannot follow is left out, and a deleted segment is not in the last state."""
    log = Coordinator().add(
        record(ANNOUNCED, 1, STARTED, start_offset=5, custom_metadata=b"c"),
        record(UPDATED, 1, FINISHED, broker_id=3),
        record(UPDATED, 9, FINISHED),
        record(ANNOUNCED, 2, STARTED),
        record(UPDATED, 2, DELETING),
        record(UPDATED, 2, DELETED),
        record(UPDATED, 2, FINISHED),
        record(ANNOUNCED, 2, STARTED),
        record(ANNOUNCED, 3, STARTED, 1),
        record(ANNOUNCED, 4, STARTED, 2),
        deletion(1, 1),
        deletion(2, 2),
        (None, b"\1\x63\0rest"),
    )
    directory = log.write(tmp_path, 4, TOPIC)
    with caplog.at_level(logging.WARNING):
        rows = segmentlog.table(directory, "remote_segments").to_pylist()

    assert [(0, 5, 3, b"c", STATES[FINISHED], 1), (1, 0, 0, b"", STATES[STARTED], 8)] == [
        tuple(
            row[n]
            for n in (
                "partition",
                "start_offset",
                "broker_id",
                "custom_metadata",
                "remote_log_segment_state",
                "record_offset",
            )
        )
        for row in rows
    ]
    assert caplog.text.count("cannot follow") == 3
    history = segmentlog.table(directory, "remote_segments", history=True).to_pylist()
    assert [
        ("set", 0),
        ("set", 1),
        ("set", 3),
        ("set", 4),
        ("removed", 5),
        ("set", 8),
        ("set", 9),
        ("removed", 11),
    ] == [(row["change"], row["record_offset"]) for row in history]
    (unknown,) = segmentlog.table(directory, "unknown_records").to_pylist()
    assert (TOPIC, 4, 12, None, b"\1\x63\0rest") == tuple(
        unknown[n] for n in ("topic", "partition", "offset", "key", "value")
    )


def test_a_compacted_topic_has_the_last_records_alone(tmp_path: Path) -> None:
    """States skip those whose records are gone; a key without a value removes its segment."""
    later = record(ANNOUNCED, 6, FINISHED)[1]
    log = Coordinator().add(
        (b"one", record(ANNOUNCED, 1, STARTED)[1]),
        (b"one", record(UPDATED, 1, DELETED)[1]),
        (b"two", record(ANNOUNCED, 2, FINISHED, start_offset=9)[1]),
        (b"three", record(ANNOUNCED, 3, FINISHED)[1]),
        (b"three", None),
        (b"four", record(ANNOUNCED, 4, DELETED)[1]),
        (b"none", None),
        (b"six", later[:2] + b"\1" + later[3:-1] + bytes(3) + b"\7" + later[-1:]),
    )
    directory = log.write(tmp_path, 0, TOPIC)
    rows = segmentlog.table(directory, "remote_segments").to_pylist()
    assert [(9, STATES[FINISHED]), (0, STATES[FINISHED])] == [
        (row["start_offset"], row["remote_log_segment_state"]) for row in rows
    ]
    history = segmentlog.table(directory, "remote_segments", history=True).to_pylist()
    assert [(1, "removed"), (4, "removed"), (5, "removed")] == [
        (row["record_offset"], row["change"]) for row in history if row["change"] == "removed"
    ]
    found = remote_segments(str(directory))
    assert found is not None
    assert [[9, 0]] == [[each.start_offset for each in of_log] for of_log in found.values()]


@pytest.mark.parametrize("bad", [(None, b"\1\0\0\1"), (None, b"\0\0\0"), (None, None)])
@pytest.mark.parametrize("table", ["remote_segments", "unknown_records"])
def test_other_bytes_are_an_error(
    tmp_path: Path, bad: tuple[None, bytes | None], table: str
) -> None:
    """The error names the offset. With `skip`, the record is left out."""
    log = Coordinator().add(record(ANNOUNCED, 1, STARTED), bad)
    directory = log.write(tmp_path, 0, TOPIC)
    expected = 1 if table == "remote_segments" else 0
    if table == "remote_segments" or not (bad[1] or b"").startswith(b"\1"):
        with pytest.raises(segmentlog.MalformedRecordError) as e:
            segmentlog.table(directory, table)
        assert e.value.offset == 1
    found = segmentlog.table(directory, table, on_corrupt_batch="skip")
    assert expected == found.num_rows
