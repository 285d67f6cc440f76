"""Directories of Redpanda are named as such, by each door."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import segmentlog
from segmentlog.errors import LogDirectoryError
from segmentlog.testing.kafka_log import KafkaLog
from segmentlog.tools.cli import app
from segmentlog.tools.doctor import store_checks

DOORS: dict[str, Callable[[str], object]] = {
    "open": segmentlog.open_log_dir,
    "verify": lambda path: [*segmentlog.verify(path)],
    "preflight": segmentlog.preflight,
    "recover": segmentlog.recover,
    "reindex": segmentlog.reindex,
    "doctor": lambda path: next(store_checks(path)),
    "write": lambda path: segmentlog.open_writer(path, "t", num_partitions=1).__enter__(),
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory as Redpanda lays it out."""
    for place in ("redpanda/controller/0_0", "kafka/orders/0_23", "kafka/payments/12_24"):
        (tmp_path / place).mkdir(parents=True)
        for name in ("0-1-v1.log", "0-1-v1.base_index", "1042-7-v1.log"):
            (tmp_path / place / name).write_bytes(b"\x12" * 80)
    return tmp_path


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("place", [".", "kafka", "kafka/orders", "kafka/orders/0_23"])
def test_a_directory_of_redpanda(data: Path, door: str, place: str) -> None:
    """At each level; nothing is written."""
    before = sorted(data.rglob("*"))
    with pytest.raises(LogDirectoryError, match=r"is of Redpanda, .*from the brokers"):
        DOORS[door](str(data / place))
    assert before == sorted(data.rglob("*"))


@pytest.mark.parametrize("door", ["open", "reindex"])
def test_a_segment_of_redpanda(data: Path, door: str) -> None:
    """By its name and that of its directory."""
    segment = str(data / "kafka" / "orders" / "0_23" / "0-1-v1.log")
    with pytest.raises(LogDirectoryError, match="is of Redpanda"):
        DOORS[door](segment)
    assert "is of Redpanda" in CliRunner().invoke(app, ["dump", segment]).stderr


def test_directories_that_look_alike(tmp_path: Path) -> None:
    """A log directory of Kafka, whatever else is in it; an empty partition directory."""
    log = KafkaLog(tmp_path / "logs")
    log.write("kafka", [b"v"])
    (log.path / "kafka" / "orders" / "0_1").mkdir(parents=True)
    (log.path / "kafka" / "orders" / "0_1" / "0-1-v1.log").touch()
    log.write("kafka", [b"v"])
    assert ["kafka"] == [*segmentlog.open_log_dir(log.path).topics()]
    (tmp_path / "other" / "0_1").mkdir(parents=True)
    with pytest.raises(LogDirectoryError, match="holds neither"):
        segmentlog.open_log_dir(tmp_path / "other")
