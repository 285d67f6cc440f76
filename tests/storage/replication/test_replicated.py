"""Copies of partitions on several brokers, read as one log."""

import base64
import logging
import pickle
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from broker_copies import IDS, T0, broker, killed_in_sequence

import segmentlog
from segmentlog import LogDirectoryError, OptionError
from segmentlog.cluster.image import Image
from segmentlog.replication import replicated
from segmentlog.replication.replicated import ReplicatedDirectory, ReplicatedPartition


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
    monkeypatch.setattr(replicated, "newest_metadata", min)
    monkeypatch.setattr(replicated, "read_metadata", lambda *_: ())
    monkeypatch.setattr(replicated, "fold", lambda _: image)


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
        (each.node_id, each.is_log, each.leader_epoch, each.log_end_offset, each.diverges_at,
         each.n_diverging, each.was_acknowledged)
        for each in found.replicas
    ]  # fmt: skip
    assert shown == [
        (1, False, 0, 6, 3, 3, True),
        (2, False, 1, 5, 4, 1, False),
        (3, True, 2, 5, None, 0, False),
    ]  # fmt: skip
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
        "topic": "t", "topic_id": IDS[0], "partition": 0, "leader": 2, "leader_epoch": 0,
        "isr": [2], "replicas": [1, 2], "adding_replicas": [], "removing_replicas": [],
        "eligible_leader_replicas": [], "last_known_elr": [],
    }  # fmt: skip

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
        "topic": "t", "topic_id": IDS[0], "partition": 0, "leader": 1, "leader_epoch": 0,
        "isr": [1, 2], "replicas": [1, 2], "adding_replicas": [], "removing_replicas": [],
        "eligible_leader_replicas": [], "last_known_elr": [],
    }  # fmt: skip
    have_metadata(monkeypatch, row)
    assert [b"a", b"z"] == values(segmentlog.open_replicas(*paths))
