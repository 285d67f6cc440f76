"""The lag is the end of the log minus the committed offset, and nothing is clamped."""

import shutil
from pathlib import Path

import segmentlog


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
