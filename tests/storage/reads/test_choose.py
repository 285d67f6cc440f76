"""The partitions that topics and numbers choose."""

import pytest

import segmentlog
from segmentlog.model import TopicPartition
from segmentlog.reads.choose import partitions_of


def test_numbers_alone_choose_partitions_of_all_topics(example_data: str) -> None:
    """Topics without such a partition are left out."""
    directory = segmentlog.open_log_dir(example_data)

    expected = [TopicPartition("__transaction_state", 2), TopicPartition("orders", 2)]
    assert expected == partitions_of(directory, [], [2, 99])


def test_a_negative_number_is_no_partition(example_data: str) -> None:
    """The error does not deny that the topic exists."""
    with pytest.raises(segmentlog.OptionError, match="give a number from 0"):
        segmentlog.open_log_dir(example_data).log("orders", -1)


def test_numbers_that_no_topic_has_are_an_error(example_data: str) -> None:
    """Nothing was checked or erased, and the result would look like a success."""
    directory = segmentlog.open_log_dir(example_data)

    with pytest.raises(segmentlog.LogDirectoryError, match="no topic has a partition 98, 99 here"):
        partitions_of(directory, [], [99, 98])
    with pytest.raises(segmentlog.LogDirectoryError, match="no topic has a partition 99 here"):
        segmentlog.erase(example_data, "a", partitions=[99], dry_run=True)
