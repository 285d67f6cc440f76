"""Upkeep finds its log directory and the partitions that it works on."""

from pathlib import Path

import pyarrow as pa
import pytest
from plain_writes import write

from segmentlog.cluster.directory_settings import log_directory, partitions_for_upkeep
from segmentlog.errors import LogDirectoryError, UnknownTopicOrPartitionError
from segmentlog.model import TopicPartition


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with one record."""
    write(tmp_path, pa.table({"value": [b"a"]}), topic="t", num_partitions=1)
    return tmp_path


def test_paths_that_are_no_log_directories_are_refused(directory: Path) -> None:
    """A partition and another directory are refused, and get no file."""
    with pytest.raises(LogDirectoryError, match="name the log directory that holds it"):
        log_directory(directory / "t-0")
    with pytest.raises(LogDirectoryError):
        log_directory(directory / "none")
    assert str(directory) == log_directory(directory)


def test_a_log_directory_may_be_called_like_a_partition(directory: Path) -> None:
    """The contents of the directory decide, and not its name."""
    renamed = directory.rename(directory.parent / "logs-1")

    assert str(renamed) == log_directory(renamed)


def test_one_topic_may_be_named_without_a_list(directory: Path) -> None:
    """The letters of the name are not taken for topics."""
    write(directory, pa.table({"value": [b"a"]}), topic="tt", num_partitions=1)

    assert [TopicPartition("tt", 0)] == partitions_for_upkeep(
        str(directory), "tt", has_settings=True
    )
    with pytest.raises(UnknownTopicOrPartitionError, match="its topics are t, tt"):
        partitions_for_upkeep(str(directory), "", has_settings=True)
