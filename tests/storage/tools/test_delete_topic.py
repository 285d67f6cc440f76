"""``segmentlog delete-topic``: its output, and what it refuses."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from broker_lock import as_broker
from typer.testing import Result

import segmentlog

Run = Callable[..., Result]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A topic of two partitions."""
    with segmentlog.open_writer(tmp_path, "orders", num_partitions=2) as writer:
        writer.append(pa.table({"value": [b"a", b"b"], "partition": [0, 1]}))
    return tmp_path


def test_it_says_what_is_gone(run: Run, directory: Path) -> None:
    """A dry run prints the numbers that the command prints."""
    n_bytes = sum(path.stat().st_size for path in directory.glob("orders-*/*.log"))
    what = f"topic orders: 2 partitions, 2 segments, {n_bytes} bytes\n"

    assert f"would delete {what}" == run("delete-topic", directory, "orders", "--dry-run").stdout
    assert {"orders": [0, 1]} == segmentlog.open_log_dir(directory).topics()
    assert f"deleted {what}" == run("delete-topic", directory, "orders").stdout
    assert {} == segmentlog.open_log_dir(directory).topics()


def test_a_brokers_directory_gets_a_word_more(run: Run, directory: Path) -> None:
    """The output adds that the cluster may know the topic."""
    (directory / "meta.properties").write_text("version=1\n")
    printed = run("delete-topic", directory, "orders").stdout

    command = "kafka-topics.sh --bootstrap-server BOOTSTRAP --delete --topic orders there"
    assert command in printed.splitlines()[1]


def test_refusals_are_one_line_with_status_2(run: Run, directory: Path) -> None:
    """A missing topic, a broker's internal topic and a directory in use are refused."""
    for topic, message in (
        ("order", "did you mean 'orders'?"),
        ("__consumer_offsets", "this topic is reserved for brokers"),
    ):
        assert message in run("delete-topic", directory, topic, status=2).stderr
    with as_broker(directory):
        refused = run("delete-topic", directory, "orders", status=2)

    assert "is in use" in refused.stderr
    assert 1 == refused.stderr.count("\n")
    assert {"orders": [0, 1]} == segmentlog.open_log_dir(directory).topics()
