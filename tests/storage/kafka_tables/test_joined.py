"""The lag is the end of the log minus the committed offset, and nothing is clamped."""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from coordinator_logs import Coordinator, commit_key, commit_value, message

import segmentlog


@pytest.mark.parametrize(
    ("table", "topics"),
    [
        ("group_offsets", {"__consumer_offsets"}),
        ("groups", {"__consumer_offsets", "__cluster_metadata"}),  # there is a share group
        ("transactions", {"__transaction_state"}),
        ("topics", {"__cluster_metadata"}),
        ("acls", {"__cluster_metadata"}),
        ("consumer_lag", {"__consumer_offsets", "__cluster_metadata", "orders"}),
    ],
)
def test_a_table_opens_files_of_its_topics_alone(
    example_cluster: str, opened: list[str], table: str, topics: set[str]
) -> None:
    """The lag opens the partitions that groups have committed offsets of, and no others."""
    segmentlog.table(example_cluster, table)
    inside = {Path(each).parent.name for each in opened if each.startswith(example_cluster)}

    assert topics == {each.rpartition("-")[0] for each in inside if "-" in each}


def test_the_lag_of_every_group(example_cluster: str) -> None:
    """A commit beyond the end has a lag below zero, and a pending commit does not count."""
    rows = segmentlog.table(example_cluster, "consumer_lag").to_pylist()
    lag = {(row["group"], row["partition"]): row["lag"] for row in rows}

    assert {("audit", 0): 15, ("audit", 1): 0, ("audit", 2): -79} == {
        key: each for key, each in lag.items() if key[0] == "audit"
    }
    (billing,) = [row for row in rows if row["group"] == "billing"]
    assert (12, 16, 20, 8) == tuple(
        billing[each] for each in ("offset", "pending_offset", "log_end_offset", "lag")
    )
    assert {"fraud": "Stable", "audit": "Empty", "shipping": "Stable"}.items() <= {
        row["group"]: row["state"] for row in rows
    }.items()


def test_a_log_that_is_not_here_or_is_another_topic(example_cluster: str, tmp_path: Path) -> None:
    """There is no end without the log. An offset of an earlier topic has no lag."""
    copy = tmp_path / "copy"
    shutil.copytree(example_cluster, copy)
    shutil.rmtree(copy / "orders-1")
    metadata = copy / "orders-2" / "partition.metadata"
    metadata.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAABw\n")
    rows = segmentlog.table(copy, "consumer_lag").to_pylist()

    assert {0: {15}, 1: {None}, 2: {None}} == {
        partition: {
            row["lag"] for row in rows if row["partition"] == partition and row["group"] == "audit"
        }
        for partition in range(3)
    }


def test_a_lag_that_no_column_can_hold(tmp_path: Path) -> None:
    """An offset far below zero, which no client commits, has no lag."""
    offsets = Coordinator()
    for partition, offset in enumerate((-(2**63), -1, 2**63 - 1)):
        offsets.add((commit_key("g", "t", partition), commit_value(offset)))
    offsets.write(tmp_path)
    with segmentlog.open_writer(tmp_path, "t", num_partitions=3) as writer:
        partitions = pa.array([0, 1, 2], pa.int32())
        writer.append(pa.table({"value": [b"v"] * 3, "partition": partitions}))
    rows = segmentlog.table(tmp_path, "consumer_lag").to_pylist()

    assert [None, 2, 2 - 2**63] == [row["lag"] for row in rows]
    assert {1} == {row["log_end_offset"] for row in rows}


def test_a_group_in_two_partitions(tmp_path: Path) -> None:
    """A row has the state from its own partition: somebody has added partitions to the topic."""
    empty = message("__consumer_offsets", 2, {"group": "g"}, {"members": []})
    joined = message("__consumer_offsets", 2, {"group": "g"}, {"members": [{"member_id": "m"}]})
    for partition, group in enumerate((empty, joined)):
        log = Coordinator().add(group, (commit_key("g"), commit_value(partition)))
        log.write(tmp_path, partition)
    rows = segmentlog.table(tmp_path, "consumer_lag").to_pylist()

    assert [(0, "Empty"), (1, "Stable")] == [(row["offset"], row["state"]) for row in rows]


def test_a_partition_whose_only_offsets_are_pending(tmp_path: Path) -> None:
    """A first transaction of an exactly-once job is open: its partition has no lag yet."""
    with segmentlog.open_writer(tmp_path, "t", num_partitions=3) as writer:
        partitions = pa.array([0, 1, 2, 2], pa.int32())
        writer.append(pa.table({"value": [b"v"] * 4, "partition": partitions}))
    log = Coordinator()
    for partition in range(3):
        producer = -1 if partition == 1 else 7
        log.add((commit_key("g", "t", partition), commit_value(0)), producer=producer)
    log.write(tmp_path)
    rows = segmentlog.table(tmp_path, "consumer_lag").to_pylist()

    found = {row["partition"]: (row["log_end_offset"], row["lag_records"]) for row in rows}
    assert found == {0: (1, None), 1: (1, 1), 2: (2, None)}
