"""Brokers for topics that another cluster lacks."""

import json
from pathlib import Path

import pytest
from other_cluster import image_here

import segmentlog
from segmentlog import LogDirectoryError, OptionError, UnknownTopicOrPartitionError
from segmentlog.cluster import placement
from segmentlog.reads.cluster_image import Image


def cluster(monkeypatch: pytest.MonkeyPatch, **brokers: tuple[str | None, bool]) -> None:
    """Let metadata have brokers `b1` and so on, with rack and fencing, and the topic `there`."""
    image = Image()
    for name, (rack, is_fenced) in brokers.items():
        node = int(name[1:])
        image.tables["brokers"][node] = {"broker_id": node, "rack": rack, "fenced": is_fenced}
    image.tables["partitions"]["id", 0] = {"topic": "there", "partition": 0}
    monkeypatch.setattr(placement, "ClusterMetadata", lambda _: image_here(image))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two topics."""
    for topic, number in (("new", 3), ("there", 1)):
        with segmentlog.open_writer(tmp_path / "lost", topic, num_partitions=number):
            pass
    return tmp_path / "lost"


def test_topics_that_the_cluster_lacks_are_placed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both forms have the same brokers: the command lines and the file."""
    cluster(monkeypatch, b1=("a", False), b2=("b", False), b3=("b", False), b4=("a", True))
    found = segmentlog.propose_placement(
        source, to=tmp_path, replication_factor=2, next_int=lambda _: 0
    )
    assert {"new": [[1, 2], [3, 1], [1, 2]]} == found
    (command,) = segmentlog.creation_commands(found)
    assert command.endswith("--create --topic new --replica-assignment 1:2,3:1,1:2")
    rows = json.loads(segmentlog.reassignment_json(found))["partitions"]
    assert found["new"] == [each["replicas"] for each in rows]
    assert [("new", i) for i in range(3)] == [(each["topic"], each["partition"]) for each in rows]


def test_a_stopped_cluster_has_no_fenced_broker(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of its brokers are fenced in the metadata, and all of them get replicas."""
    cluster(monkeypatch, b1=(None, True), b2=(None, True))
    found = segmentlog.propose_placement(source, to=tmp_path, replication_factor=1)
    assert {1, 2} == {each for (each,) in found["new"]}


def test_a_topic_of_too_many_partitions_is_refused(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of one directory would stand for two thousand million partitions."""
    cluster(monkeypatch, b1=(None, False))
    (source / "new-2").rename(source / f"new-{2**31 - 1}")
    with pytest.raises(LogDirectoryError, match="new-2147483647: no topic of Kafka"):
        segmentlog.propose_placement(source, to=tmp_path, replication_factor=1)


def test_a_placement_that_cannot_be_proposed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are too few brokers, no such topic, or no metadata."""
    with pytest.raises(LogDirectoryError, match="no metadata of a cluster"):
        segmentlog.propose_placement(source, to=source, replication_factor=1)
    cluster(monkeypatch, b1=(None, False))
    with pytest.raises(OptionError, match="the cluster has 1 brokers"):
        segmentlog.propose_placement(source, to=tmp_path, replication_factor=2)
    with pytest.raises(OptionError, match="replication_factor"):
        segmentlog.propose_placement(source, to=tmp_path, replication_factor=0)
    with pytest.raises(UnknownTopicOrPartitionError):
        segmentlog.propose_placement(source, to=tmp_path, replication_factor=1, topics="x")
