"""Copies of partitions on several brokers, read as one log."""

import base64
import logging
import pickle
import re
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from broker_copies import IDS, T0, broker, killed_in_sequence
from coordinator_logs import Coordinator, framed
from other_cluster import image_here

import segmentlog
from segmentlog import LogDirectoryError, OptionError, UnknownTopicOrPartitionError
from segmentlog.cluster import replicated
from segmentlog.cluster.replicated import ReplicatedDirectory, ReplicatedPartition
from segmentlog.log.checkpoint import read_leader_epochs, write_leader_epochs
from segmentlog.model import METADATA_TOPIC
from segmentlog.reads.cluster_image import Image


def values(directory: segmentlog.LogDirectory) -> list[bytes]:
    """All values of the log."""
    table = directory.log(*T0).scan(read_up_to="logEnd", columns=["value"]).read_all()
    return table["value"].to_pylist()


def only(paths: Sequence[Path]) -> ReplicatedPartition:
    """The one partition."""
    (found,) = segmentlog.replicas(*paths)
    return found


def have_metadata(monkeypatch: pytest.MonkeyPatch, row: dict[str, Any]) -> None:
    """Let the directories have metadata with this partition, with ids of the records' type."""
    topic_id = uuid.UUID(bytes=base64.urlsafe_b64decode(row["topic_id"] + "=="))
    image = Image()
    found = row | {"topic_id": topic_id, "directories": None}
    image.tables["partitions"][(topic_id, row["partition"])] = found
    monkeypatch.setattr(replicated, "ClusterMetadata", lambda _: image_here(image))


@pytest.fixture
def killed(tmp_path: Path) -> list[Path]:
    """Three brokers whose copies differ."""
    return killed_in_sequence(tmp_path)


def test_the_log_is_the_copy_with_the_last_epoch(killed: list[Path]) -> None:
    """It is neither the longest copy, nor the first one."""
    directory = segmentlog.open_replicas(*killed)
    assert isinstance(directory, ReplicatedDirectory)
    assert [*b"abcxz"] == [each[0] for each in values(directory)]
    assert directory.log(*T0).path == str(killed[2] / "t-0")
    assert [each.topic_partition for each in directory] == [T0]


def test_a_plain_opening_still_refuses_two_copies(killed: list[Path]) -> None:
    """Nothing shows which one is the log, unless epochs are compared."""
    with pytest.raises(LogDirectoryError, match="a partition has one log"):
        segmentlog.open_log_dir(*killed).log(*T0)


def test_where_the_others_differ(killed: list[Path]) -> None:
    """Each copy is cut where a broker would cut it; promises that are broken are shown."""
    found = only(killed)
    assert (IDS[0], None) == (found.topic_id, found.warning)
    assert "last leader epoch is 2" in found.reason
    shown = [
        (
            each.node_id,
            each.is_log,
            each.leader_epoch,
            each.log_end_offset,
            each.diverges_at,
            each.n_diverging,
            each.was_acknowledged,
        )
        for each in found.replicas
    ]
    assert shown == [
        (1, False, 0, 6, 3, 3, True),
        (2, False, 1, 5, 4, 1, False),
        (3, True, 2, 5, None, 0, False),
    ]
    tail = found.replicas[0]
    assert tail.first_timestamp_ms is not None
    assert tail.first_timestamp_ms <= tail.last_timestamp_ms


def test_a_copy_that_lags_does_not_diverge(tmp_path: Path) -> None:
    """Its end is before that of the log, and all its batches are in the log."""
    paths = [broker(tmp_path, 1, [(0, "ab")]), broker(tmp_path, 2, [(0, "abcd")])]
    assert [None, None] == [each.diverges_at for each in only(paths).replicas]


def test_the_high_watermark_is_the_highest_that_agrees(tmp_path: Path) -> None:
    """A high watermark in a divergent tail counts up to the common end."""
    paths = [
        broker(tmp_path, 1, [(0, "abcdef")], high_watermark=6),
        broker(tmp_path, 2, [(0, "abcd"), (1, "xyz")], high_watermark=2),
    ]
    log = segmentlog.open_replicas(*paths).log(*T0)
    assert (4, 7) == (log.high_watermark, log.log_end_offset)


def test_a_copy_without_epochs_has_those_of_its_batches(tmp_path: Path) -> None:
    """Copies of files may lack the checkpoint."""
    paths = [broker(tmp_path, 1, [(0, "abcd")]), broker(tmp_path, 2, [(0, "ab"), (1, "z")])]
    for path in paths:
        (path / "t-0" / "leader-epoch-checkpoint").unlink()
    assert b"z" == values(segmentlog.open_replicas(*paths))[-1]


@pytest.mark.parametrize("n_known", range(5))
@pytest.mark.parametrize("segment_bytes", [150, 1 << 30])
def test_a_checkpoint_of_epochs_may_be_older_than_its_log(
    tmp_path: Path, n_known: int, segment_bytes: int
) -> None:
    """Batches show the later epochs: a longer log of a leader that was cut off does not win."""
    terms = [(0, "ab"), (1, "c"), (4, "defg"), (5, "h")]
    paths = [
        broker(tmp_path, 1, [(0, "abcdefghijklmn")]),
        broker(tmp_path, 2, terms, segment_bytes=segment_bytes),
    ]
    checkpoint = paths[1] / "t-0" / "leader-epoch-checkpoint"
    (whole,) = (each for each in only(paths).replicas if each.is_log)
    known = read_leader_epochs(str(checkpoint))
    assert [(0, 0), (1, 2), (4, 3), (5, 7)] == [*known]
    assert len([*(paths[1] / "t-0").glob("*.log")]) == (1 if segment_bytes > 150 else 3)
    write_leader_epochs(str(checkpoint), known[:n_known])

    first, second = only(paths).replicas
    assert (2, 5, 8) == (second.node_id, second.leader_epoch, second.log_end_offset)
    assert whole == second
    assert (False, 2, 12) == (first.is_log, first.diverges_at, first.n_diverging)
    assert [*b"abcdefgh"] == [each[0] for each in values(segmentlog.open_replicas(*paths))]


def test_damage_does_not_hide_a_later_epoch(tmp_path: Path) -> None:
    """The epoch may begin where the damage does."""
    paths = [
        broker(tmp_path, 1, [(0, "abcdef")]),
        broker(tmp_path, 2, [(0, "abc"), (1, "x"), (2, "y")]),
    ]
    partition = paths[1] / "t-0"
    write_leader_epochs(str(partition / "leader-epoch-checkpoint"), [(0, 0)])
    (path,) = partition.glob("*.log")
    data = bytearray(path.read_bytes())
    at = data.index(b"x") // 10 * 10
    at = data[:at].rindex(b"\0\0\0\0\0\0\0\3")
    data[at + 8 : at + 12] = bytes(4)  # the length of the batch at offset 3
    path.write_bytes(data)
    first, second = only(paths).replicas
    assert (False, 3) == (first.is_log, first.diverges_at)
    assert (True, 2) == (second.is_log, second.leader_epoch)


def metadata(directory: Path, *records: tuple[int, dict[str, Any]]) -> None:
    """Give a log directory a metadata log of these records, by their api keys."""
    log = Coordinator()
    for kind, fields in records:
        log.add(framed(METADATA_TOPIC, kind, fields))
    log.write(directory, 0, METADATA_TOPIC)


def made(topic_id: str, name: str = "t") -> list[tuple[int, dict[str, Any]]]:
    """The records of a new topic with one partition."""
    number = uuid.UUID(bytes=base64.urlsafe_b64decode(topic_id + "=="))
    partition = {
        "partition_id": 0,
        "topic_id": number,
        "replicas": [1, 2, 3],
        "isr": [1, 2, 3],
        "leader": 1,
    }
    return [(2, {"name": name, "topic_id": number}), (3, partition)]


def removed(topic_id: str) -> tuple[int, dict[str, Any]]:
    """The record of a deletion."""
    return 9, {"topic_id": uuid.UUID(bytes=base64.urlsafe_b64decode(topic_id + "=="))}


OTHER = made(IDS[1], "u")


@pytest.mark.parametrize(
    ("newest", "older", "is_deleted"),
    [
        ([*made(IDS[0]), removed(IDS[0])], None, True),
        ([*OTHER, *made(IDS[0]), removed(IDS[0])], made(IDS[0]), True),
        ([*OTHER, *OTHER, *OTHER], made(IDS[0]), True),  # an older copy has had the topic
        ([*made(IDS[0]), removed(IDS[0]), *made(IDS[1])], None, True),  # and made it again
        (OTHER, None, False),  # it may be older than the topic
        (made(IDS[0]), None, False),
        (None, None, False),
    ],
)
@pytest.mark.parametrize("is_renamed", [True, False])
def test_a_topic_that_the_cluster_has_deleted_is_left_out(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    newest: list[tuple[int, dict[str, Any]]] | None,
    older: list[tuple[int, dict[str, Any]]] | None,
    is_deleted: bool,
    is_renamed: bool,
) -> None:
    """A broker that was down still has its logs. On request, they are read."""
    paths = [broker(tmp_path, each, [(0, "abc")], high_watermark=3) for each in (1, 2, 3)]
    if is_renamed:
        (paths[0] / "t-0").rename(paths[0] / f"t-0.{'0' * 32}-delete")
    for path, records in zip(paths, (newest, older), strict=False):
        if records is not None:
            metadata(path, *records)
    included = segmentlog.read(
        segmentlog.open_replicas(*paths, include_deleted_topics=True), "t", columns=["value"]
    )
    assert [b"a", b"b", b"c"] == included["value"].to_pylist()
    assert not caplog.records
    if not is_deleted:
        assert [b"a", b"b", b"c"] == values(segmentlog.open_replicas(*paths))
        assert not caplog.records
        return

    found = segmentlog.dataset(*paths, replicas="reconcile")
    assert 0 == found.count_rows()
    (warning,) = caplog.messages
    left = ", ".join(str(each / "t-0") for each in paths[is_renamed:])
    reason = (
        f"the cluster has deleted the topic, by {paths[0] / '__cluster_metadata-0'}, and "
        f"{left} is left; include_deleted_topics (in Spark includeDeletedTopics) reads it"
    )
    assert f"t is left out: {reason}" == warning
    with pytest.raises(UnknownTopicOrPartitionError, match=re.escape(reason)):
        segmentlog.dataset(*paths, replicas="reconcile", topics="t")
    caplog.clear()
    directory = segmentlog.open_replicas(*paths)
    assert 1 == len(caplog.messages)
    assert [] == [each.topic for each in directory]
    assert [] == directory.refresh().missing_partitions()
    assert 1 == len(caplog.messages)  # a stream is told once
    kept = segmentlog.dataset(
        *paths, replicas="reconcile", topics="t", include_deleted_topics=True
    )
    assert 3 == pickle.loads(pickle.dumps(kept)).count_rows()


def test_two_topics_of_one_name_are_refused_without_metadata(tmp_path: Path) -> None:
    """A topic was deleted and made again while a broker was down."""
    paths = [broker(tmp_path, 1, [(0, "ab")]), broker(tmp_path, 2, [(3, "x")], topic_id=IDS[1])]
    with pytest.raises(LogDirectoryError, match=f"{IDS[0]}.*{IDS[1]}.*__cluster_metadata-0"):
        segmentlog.open_replicas(*paths).log(*T0)


def test_directories_of_two_clusters_are_refused(tmp_path: Path) -> None:
    """Equal names prove nothing there."""
    paths = [broker(tmp_path, 1, [(0, "ab")]), broker(tmp_path, 2, [(0, "x")], cluster="c2")]
    with pytest.raises(LogDirectoryError, match=r"cluster c2.*cluster c1"):
        segmentlog.open_replicas(*paths)


def test_a_directory_is_not_given_twice(tmp_path: Path) -> None:
    """It would count as two copies."""
    path = broker(tmp_path, 1, [(0, "ab")])
    with pytest.raises(LogDirectoryError, match="a partition has one log"):
        segmentlog.open_replicas(path, path)


def test_a_refresh_chooses_again(tmp_path: Path) -> None:
    """A copy may have come that has a later epoch."""
    paths = [broker(tmp_path, 1, [(0, "ab")]), broker(tmp_path, 2, [(0, "a")])]
    before = segmentlog.open_replicas(*paths)
    assert [b"a", b"b"] == values(before)
    shutil.rmtree(paths[1])
    broker(tmp_path, 2, [(0, "a"), (1, "z")])
    assert [b"a", b"z"] == values(before.refresh())


def test_metadata_names_the_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The leader's copy is the log, and a missing one leads to a warning."""
    paths = [broker(tmp_path, 1, [(0, "abc")]), broker(tmp_path, 2, [(0, "ab")])]
    row = {
        "topic": "t",
        "topic_id": IDS[0],
        "partition": 0,
        "leader": 2,
        "leader_epoch": 0,
        "isr": [2],
        "replicas": [1, 2],
        "adding_replicas": [],
        "removing_replicas": [],
        "eligible_leader_replicas": [],
        "last_known_elr": [],
    }

    def opened() -> ReplicatedDirectory:
        have_metadata(monkeypatch, row)
        return segmentlog.open_replicas(*paths)

    assert [b"a", b"b"] == values(opened())
    assert "broker 2 is the leader" in opened().replicated(*T0).reason
    row |= {"leader": -1, "leader_epoch": 1, "isr": [], "eligible_leader_replicas": [2]}
    assert "broker 2 is an eligible leader" in opened().replicated(*T0).reason
    row |= {"leader": 3, "leader_epoch": 4, "replicas": [1, 2, 3]}
    with caplog.at_level(logging.WARNING):
        assert [b"a", b"b", b"c"] == values(opened())
    assert "the copy of broker 3, which is the leader since epoch 4" in caplog.text
    row |= {"leader": 2, "replicas": [2]}  # moved away from broker 1 while that was down
    assert (str(paths[0] / "t-0"),) == opened().replicated(*T0).others


def test_a_dataset_of_replicas(killed: list[Path]) -> None:
    """It survives pickling, as a cluster needs it."""
    dataset = segmentlog.dataset(*killed, replicas="reconcile", read_up_to="logEnd")
    for each in (dataset, pickle.loads(pickle.dumps(dataset))):
        assert [*b"abcxz"] == [value[0] for value in each.to_table()["value"].to_pylist()]
    with pytest.raises(OptionError, match="replicas"):
        segmentlog.dataset(*killed, replicas="merge")


def test_metadata_that_is_older_than_the_logs_decides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later leader has written its epoch, and the metadata at hand does not know it."""
    paths = [broker(tmp_path, 1, [(0, "abc")]), broker(tmp_path, 2, [(0, "a"), (3, "z")])]
    row = {
        "topic": "t",
        "topic_id": IDS[0],
        "partition": 0,
        "leader": 1,
        "leader_epoch": 0,
        "isr": [1, 2],
        "replicas": [1, 2],
        "adding_replicas": [],
        "removing_replicas": [],
        "eligible_leader_replicas": [],
        "last_known_elr": [],
    }
    have_metadata(monkeypatch, row)
    assert [b"a", b"z"] == values(segmentlog.open_replicas(*paths))
