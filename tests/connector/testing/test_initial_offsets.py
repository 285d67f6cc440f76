"""A checkpoint of an earlier test is said: Spark would go on from offsets of another log."""

import os
import warnings
from pathlib import Path

import pytest

from pyspark_segmentlog.testing.initial_offsets import warn_of_older_checkpoint
from segmentlog.testing.kafka_log import KafkaLog


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint with an offset of a minute ago."""
    found = tmp_path / "checkpoint"
    (found / "offsets").mkdir(parents=True)
    (found / "offsets/0").touch()
    return found


def _log(tmp_path: Path) -> KafkaLog:
    log = KafkaLog(tmp_path / "log")
    log.write("orders", ["a"])
    return log


@pytest.mark.parametrize("begin", ["", "file:", "file://"])
def test_a_checkpoint_that_is_older_than_the_log(
    begin: str, checkpoint: Path, tmp_path: Path
) -> None:
    os.utime(checkpoint / "offsets/0", (1, 1))
    with pytest.warns(UserWarning, match="older than all topics of as_kafka"):
        warn_of_older_checkpoint(f"{begin}{checkpoint}", [os.fspath(_log(tmp_path))])


def test_a_checkpoint_of_the_same_test(checkpoint: Path, tmp_path: Path) -> None:
    """Also one that is elsewhere, or missing, or of a log without topics."""
    directory = os.fspath(_log(tmp_path))
    os.utime(checkpoint / "offsets/0")
    empty = os.fspath(KafkaLog(tmp_path / "empty"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_older_checkpoint(str(checkpoint), [directory])
        for other in (None, "hdfs://host/checkpoint", str(tmp_path / "missing")):
            warn_of_older_checkpoint(other, [directory])
        os.utime(checkpoint / "offsets/0", (1, 1))
        warn_of_older_checkpoint(str(checkpoint), [empty])
