"""Topics of a job: those that it finds, those that it creates, and those of other jobs."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from plain_writes import ONE, write

import segmentlog
from segmentlog.errors import LogDirectoryError, OptionError, UnknownTopicOrPartitionError
from segmentlog.log.checkpoint import read_topic_id
from segmentlog.model import TopicPartition
from segmentlog.store.lock import DirectoryLock
from segmentlog.txn import topics
from segmentlog.txn.topics import create_partitions, create_replicas
from segmentlog.writes.config import WriteRequest
from segmentlog.writes.job_topics import JobTopics, complete_topics

CLUSTER = Path(__file__).parents[3] / "examples" / "cluster"


def found(
    directory: Path,
    topic: str | None = None,
    asked: int | None = None,
    *,
    auto_create_topics: bool = True,
    keeps_partitions: bool = False,
    in_cluster: Mapping[str, int] = MappingProxyType({}),
) -> JobTopics:
    """The topics that a beginning job finds."""
    return JobTopics.found(
        str(directory),
        topic,
        asked=asked,
        auto_create_topics=auto_create_topics,
        keeps_partitions=keeps_partitions,
        in_cluster=in_cluster,
    )


def make(directory: Path, topic: str, n_partitions: int) -> None:
    """Create a topic."""
    with DirectoryLock(str(directory)):
        create_partitions(str(directory), topic, n_partitions)


@pytest.mark.parametrize("number", [0, -1, 1_000_001])
def test_a_number_of_partitions_that_no_topic_can_have(number: int) -> None:
    with pytest.raises(OptionError, match="give a whole number from 1 to 1000000"):
        WriteRequest("logs", topic="t", num_partitions=number)


def test_records_are_deleted_of_a_topic_that_is_named() -> None:
    with pytest.raises(OptionError, match="name the topic whose records are to be deleted"):
        WriteRequest("logs", overwrite=True)
    WriteRequest("logs", topic="t", num_partitions=1, overwrite=True)


def test_numbers_of_partitions(tmp_path: Path) -> None:
    """One topic exists, and one is created."""
    make(tmp_path, "t", 3)
    topics = found(tmp_path, asked=5)

    assert {"t": 3} == topics.partitions
    assert {} == topics.missing
    assert [3, 5] == [topics.n_partitions(topic) for topic in ("t", "new")]
    assert 1 == found(tmp_path).n_partitions("new")
    with pytest.raises(UnknownTopicOrPartitionError, match="auto_create_topics=True"):
        found(tmp_path, auto_create_topics=False).n_partitions("new")
    with pytest.raises(OptionError, match="exists and has 3 partitions"):
        found(tmp_path, "t", 5)


def test_a_topic_without_one_of_its_partitions(tmp_path: Path) -> None:
    """Only rows that keep their partitions may be written to it."""
    write(tmp_path, ONE, num_partitions=3)
    lost = tmp_path / "t-1"
    lost.rename(tmp_path / "elsewhere")
    topics = found(tmp_path)

    assert ({"t": 3}, {"t": 1}) == (topics.partitions, topics.missing)
    with pytest.raises(UnknownTopicOrPartitionError, match="write a topic only where"):
        topics.n_partitions("t")
    with pytest.raises(UnknownTopicOrPartitionError, match="write a topic only where"):
        found(tmp_path, "t")
    assert 3 == found(tmp_path, "t", keeps_partitions=True).n_partitions("t")


def test_a_topic_without_its_highest_partition(tmp_path: Path) -> None:
    """The directories do not show that it is missing, but the metadata of the cluster does."""
    make(tmp_path, "t", 2)
    topics = found(tmp_path, in_cluster={"t": 3, "u": 2})

    assert ({"t": 3}, {"t": 2}) == (topics.partitions, topics.missing)
    with pytest.raises(UnknownTopicOrPartitionError, match="partition 2 of topic 't'"):
        topics.n_partitions("t")
    same = found(tmp_path, in_cluster={"t": 2})
    assert 2 == same.n_partitions("t")
    same.make(["t"])
    assert 3 == found(tmp_path, keeps_partitions=True, in_cluster={"t": 3}).n_partitions("t")


@pytest.mark.parametrize("lost", [[1], [0, 1]])
def test_a_log_that_was_made_without_an_id_gets_that_of_its_topic(
    tmp_path: Path, lost: list[int]
) -> None:
    """An earlier recovery made it in the directory that a writer had begun."""
    make(tmp_path, "t", 2)
    ids = {path: read_topic_id(str(path)) for path in tmp_path.glob("t-*")}
    for each in lost:
        (tmp_path / f"t-{each}" / "partition.metadata").unlink()
    write(tmp_path, ONE, num_partitions=2)

    known = {read_topic_id(str(path)) for path in ids}
    assert len(known) == 1
    assert known != {None}
    if len(lost) == 1:
        assert known == {*ids.values()}


def test_a_topic_of_a_time_without_ids_stays_without_one(tmp_path: Path) -> None:
    """Kafka before 2.8 wrote none, and its directories have records."""
    write(tmp_path, ONE, num_partitions=2)
    for each in tmp_path.glob("t-*/partition.metadata"):
        each.unlink()
    write(tmp_path, ONE, num_partitions=2)

    assert [*tmp_path.glob("t-*/partition.metadata")] == []


def test_a_directory_with_zeros_before_its_number(tmp_path: Path) -> None:
    """A broker takes it for the partition, so another one beside it would hide its records."""
    write(tmp_path, ONE)
    write(tmp_path, ONE, topic="u")
    (tmp_path / "t-0").rename(tmp_path / "t-00")
    directory = segmentlog.open_log_dir(tmp_path)
    for refused in (
        lambda: write(tmp_path, ONE),
        lambda: segmentlog.read(tmp_path, "t"),
        lambda: segmentlog.compact(tmp_path, "t", settings={"cleanup.policy": "compact"}),
        lambda: segmentlog.delete_records(tmp_path, "t", 0, offset=1),
        lambda: directory.refresh().log("t", 0),
    ):
        with pytest.raises(LogDirectoryError, match=r"t-00: has zeros in its name"):
            refused()
    assert 1 == segmentlog.read(tmp_path, "u").num_rows
    (finding,) = segmentlog.verify(tmp_path)
    assert ("t", 0, str(tmp_path / "t-00")) == (finding.topic, finding.partition, finding.path)
    assert "t-00: has zeros in its name" in finding.message
    (tmp_path / "t-00").rename(tmp_path / "t-0")
    assert 1 == segmentlog.read(tmp_path, "t").num_rows


def test_a_job_reads_the_numbers_of_partitions_from_the_metadata(tmp_path: Path) -> None:
    """A broker's directory that has only some partitions of a topic takes only rows as they are.

    Rows that keep their offsets keep their partitions.
    """
    shutil.copytree(CLUSTER, tmp_path / "logs")
    write(tmp_path / "logs", ONE, topic="orders")
    (tmp_path / "logs/orders-2").rename(tmp_path / "orders-2")
    with pytest.raises(UnknownTopicOrPartitionError, match="partition 2 of topic 'orders'"):
        write(tmp_path / "logs", ONE, topic="orders")


def test_partitions_that_a_crash_has_left_out_are_made(tmp_path: Path) -> None:
    """Partitions of the named topic are made, or of all topics.

    A named partition that had records is an error.
    """
    for topic in ("t", "u"):
        make(tmp_path, topic, 3)
        for path in (tmp_path / f"{topic}-1").iterdir():
            path.unlink()
        (tmp_path / f"{topic}-1").rmdir()
    complete_topics(str(tmp_path), "t")
    assert {"u": 1} == found(tmp_path).missing
    complete_topics(str(tmp_path), None)
    assert {} == found(tmp_path).missing
    write(tmp_path, ONE, ONE, topic="v", num_partitions=1)
    write(tmp_path, ONE, topic="w")
    (tmp_path / "v-0").rename(tmp_path / "elsewhere")
    complete_topics(str(tmp_path), None)
    with pytest.raises(UnknownTopicOrPartitionError, match="its high watermark is 2"):
        complete_topics(str(tmp_path), "v")


def test_a_topic_that_another_job_has_created_meanwhile(tmp_path: Path) -> None:
    """The topic needs the same number of partitions, because rows are already spread."""
    alike, fewer, more = (found(tmp_path, "t", number) for number in (3, 2, 4))
    make(tmp_path, "t", 3)
    alike.make(["t"])
    for other in (fewer, more):
        with pytest.raises(LogDirectoryError, match="run the job again"):
            other.make(["t"])


def test_partitions_that_were_added_meanwhile_are_no_error(tmp_path: Path) -> None:
    """A producer does not know new partitions at once, either. Lost partitions are an error."""
    make(tmp_path, "t", 1)
    topics = found(tmp_path, "t")
    make(tmp_path, "u", 2)
    (tmp_path / "u-1").rename(tmp_path / "t-1")
    topics.make(["t"])
    grown = found(tmp_path, "t")
    (tmp_path / "t-1").rename(tmp_path / "elsewhere")
    with pytest.raises(LogDirectoryError, match="run the job again"):
        grown.make(["t"])


def test_a_topic_that_was_deleted_and_created_again_meanwhile(tmp_path: Path) -> None:
    """Its partitions were not added: keys would lie in partitions of another count."""
    write(tmp_path, ONE, topic="t", num_partitions=1)
    topics = found(tmp_path, "t")
    segmentlog.delete_topic(tmp_path, "t")
    write(tmp_path, ONE, topic="t", num_partitions=4)
    with pytest.raises(LogDirectoryError, match="no longer has the 1 partitions"):
        topics.make(["t"])
    found(tmp_path, "t").make(["t"])


def test_all_partitions_are_those_of_the_named_topic(tmp_path: Path) -> None:
    make(tmp_path, "t", 2)
    make(tmp_path, "u", 1)

    assert [TopicPartition("t", 0), TopicPartition("t", 1)] == found(
        tmp_path, "t"
    ).all_partitions()
    assert [] == found(tmp_path).all_partitions()
    assert [] == found(tmp_path, "new").all_partitions()


def test_the_last_partitions_of_all_topics_are_made_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They show how many partitions the topics have."""
    made, create = list[str](), topics._create

    def noted(path: str, topic_id: str) -> None:
        made.append(Path(path).name)
        create(path, topic_id)

    monkeypatch.setattr(topics, "_create", noted)
    asked = [TopicPartition(topic, number) for topic in "ab" for number in range(12)]
    (tmp_path / "a-11").mkdir()
    create_replicas(str(tmp_path), dict.fromkeys(asked, "A" * 22))
    assert ["a-11", "b-11"] == sorted(made[:2])
    assert {str(each) for each in asked} == {*made}
