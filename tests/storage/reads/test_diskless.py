"""Diskless topics (KIP-1150): their last records are in no log directory, and readers say so."""

import logging
from pathlib import Path

import pytest
from diskless_directory import SEAL, diskless_topics

import segmentlog
from segmentlog.reads.diskless import diskless_partitions

ELSEWHERE = f"the topic is diskless: records from offset {SEAL} on are in its object store"


def test_the_metadata_tells_where_the_files_end(tmp_path: Path) -> None:
    """A later record of a partition counts; without a seal, the log end is all that is known."""
    found = {
        each.topic: seal
        for each, seal in diskless_partitions([str(diskless_topics(tmp_path))]).items()
    }
    assert {"switched": SEAL, "changed": SEAL, "born": None} == found


@pytest.mark.parametrize("topic", ["switched", "born", "changed"])
def test_a_read_to_the_latest_records_is_refused(
    tmp_path: Path, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Data loss does not fail a read on request, and never a read to an offset."""
    path = diskless_topics(tmp_path)
    with pytest.raises(segmentlog.LogDirectoryError) as refused:
        segmentlog.read(path, topic)
    assert ELSEWHERE in str(refused.value)
    assert "fail_on_data_loss=False reads those that are here" in str(refused.value)
    assert 2 == segmentlog.read(path, topic, ending_offsets={(topic, 0): 2}).num_rows
    with caplog.at_level(logging.WARNING):
        assert 2 == segmentlog.read(path, topic, fail_on_data_loss=False).num_rows
    assert ELSEWHERE in caplog.text


@pytest.mark.parametrize("topic", ["classic", "pending"])
def test_other_topics_are_read_as_before(tmp_path: Path, topic: str) -> None:
    """A classic topic, and one whose switch has not happened, end with their files."""
    assert 2 == segmentlog.read(diskless_topics(tmp_path), topic).num_rows


def test_verify_names_the_offset(tmp_path: Path) -> None:
    """A finding for each diskless partition."""
    found = segmentlog.verify(diskless_topics(tmp_path))
    diskless = [(each.topic, each.message) for each in found if each.kind == "diskless"]
    assert ["born", "changed", "switched"] == sorted(topic for topic, _ in diskless)
    assert all(message.startswith(ELSEWHERE) for _, message in diskless)


def test_damaged_metadata_does_not_keep_records_from_being_read(tmp_path: Path) -> None:
    """Whether the topic is diskless is then not known, and other commands name the damage."""
    path = diskless_topics(tmp_path)
    (log,) = path.glob("__cluster_metadata-0/*.log")
    log.write_bytes(log.read_bytes()[:-1] + b"?")
    assert 2 == segmentlog.read(path, "born").num_rows
