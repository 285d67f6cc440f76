"""Replicas of restored partitions in the log directories of several brokers."""

import base64
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from broker_copies import IDS
from crashing import Crash, crash_at
from other_cluster import image_here
from preserved_rows import make, rows

import segmentlog
from segmentlog import LogDirectoryError, OptionError, Restoration
from segmentlog.cluster import placement
from segmentlog.cluster.directory_settings import DirectorySettings
from segmentlog.log.checkpoint import read_leader_epochs, read_offsets, read_topic_id
from segmentlog.maintain.restoration import restore as module
from segmentlog.model import TopicPartition
from segmentlog.reads.cluster_image import Image

Restore = Callable[..., Restoration]

FIRST_DISK, SECOND_DISK = (uuid.UUID(int=1000 + each) for each in range(2))


def text(value: uuid.UUID) -> str:
    """An id as Kafka prints it."""
    return base64.urlsafe_b64encode(value.bytes)[:22].decode()


def formatted(directory: Path, node: int, disk: uuid.UUID | None = None) -> Path:
    """The log directory of a broker that has no partition."""
    directory.mkdir()
    disk_id = f"directory.id={text(disk)}\n" if disk else ""
    properties = f"version=1\nnode.id={node}\ncluster.id=c2\n{disk_id}"
    (directory / "meta.properties").write_text(properties)
    return directory


@pytest.fixture
def targets(tmp_path: Path) -> list[Path]:
    """The log directories of the brokers 1, 2 and 3."""
    return [formatted(tmp_path / f"to{each}", each) for each in (1, 2, 3)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory with two partitions, whose records begin at offset 40."""
    second = rows(50, 30)
    numbers = second.column_names.index("partition")
    second = second.set_column(numbers, "partition", pa.array([1] * 30, pa.int32()))
    with segmentlog.open_writer(tmp_path / "lost", "t", num_partitions=2, preserve=True) as writer:
        writer.append(rows(40, 20))
        writer.append(second)
    return tmp_path / "lost"


@pytest.fixture
def restore(targets: list[Path], source: Path, monkeypatch: pytest.MonkeyPatch) -> Restore:
    """Restore `source` into `targets`, with the replicas of each partition by the metadata."""

    def call(
        replicas: Any = ((2, 1, 3), (3, 1)),
        directories: Any = None,
        registered: Any = (),
        **options: Any,
    ) -> Any:
        image = Image()
        image.tables["brokers"][7] = {"broker_id": 7, "log_dirs": registered, "fenced": True}
        for i, each in enumerate(replicas):
            row = {
                "topic": "t",
                "topic_id": topic_id,
                "partition": i,
                "replicas": [*each],
                "directories": directories,
                "leader_epoch": 5,
            }
            image.tables["partitions"][topic_id, i] = row
        monkeypatch.setattr(placement, "ClusterMetadata", lambda _: image_here(image))
        monkeypatch.setattr(
            DirectorySettings, "read", lambda *_, **__: DirectorySettings({"retention.ms": "-1"})
        )
        return segmentlog.restore(source, **({"to": targets} | options))

    topic_id = uuid.UUID(bytes=base64.urlsafe_b64decode(IDS[1] + "=="))
    return call


def logs(directory: Path, partition: int = 0) -> dict[str, bytes]:
    """Names and bytes of the files of a partition, but for its metadata."""
    return {each.name: each.read_bytes() for each in (directory / f"t-{partition}").iterdir()}


def test_each_broker_gets_its_partitions(restore: Restore, targets: list[Path]) -> None:
    """Replicas are equal byte by byte, and broker 2 has only one of the partitions."""
    found = restore()
    assert [(2, 1, 3), (3, 1)] == [
        tuple(int(each[-1]) for each in partition.directories) for partition in found.partitions
    ]
    assert logs(targets[0]) == logs(targets[1]) == logs(targets[2])
    assert logs(targets[0], 1) == logs(targets[2], 1)
    assert not (targets[1] / "t-1").exists()
    (log,) = (each for each in logs(targets[1]) if each.endswith(".log"))
    assert f"{40:020}.log" == log


def test_checkpoints_epochs_and_topic_ids_are_those_of_a_replica(
    restore: Restore, targets: list[Path]
) -> None:
    """The batches have the epoch of the current leader."""
    restore()
    t0, t1 = (TopicPartition("t", each) for each in (0, 1))
    for each in targets:
        ends = {t0: 60} if each is targets[1] else {t0: 60, t1: 80}
        starts = {t0: 40} if each is targets[1] else {t0: 40, t1: 50}
        assert ends == read_offsets(str(each), "replication-offset-checkpoint")
        assert starts == read_offsets(str(each), "log-start-offset-checkpoint")
        points = read_offsets(str(each), "recovery-point-offset-checkpoint")
        assert ends.keys() == points.keys()
        assert all(points[partition] <= end for partition, end in ends.items())
        assert IDS[1] == read_topic_id(str(each / "t-0"))
        assert ((5, 40),) == read_leader_epochs(str(each / "t-0" / "leader-epoch-checkpoint"))
        log = segmentlog.open_log_dir(each).log(*t0)
        assert {5} == {
            placed.header.leader_epoch for part in log.segments for placed in part.headers(0)
        }


def test_a_replica_without_a_directory_is_a_problem(restore: Restore, targets: list[Path]) -> None:
    """Its broker would have an empty log; if it is left out, the other replicas are written."""
    with pytest.raises(LogDirectoryError, match="add the log directory of broker 3"):
        restore(to=targets[:2])
    assert not (targets[0] / "t-0").exists()
    found = restore(to=targets[:2], leave_out_replicas=True)
    assert [(3,), (3,)] == [each.missing_brokers for each in found.partitions]
    assert logs(targets[0]) == logs(targets[1])
    with pytest.raises(LogDirectoryError, match=r"t-1: .* add the log directory of broker 3"):
        restore(((1, 2), (3,)), to=targets[:2], leave_out_replicas=True)


def test_the_disk_that_the_metadata_names_gets_the_replica(
    restore: Restore, tmp_path: Path
) -> None:
    """A broker has two disks; one of them alone may lack the partition."""
    disks = [
        formatted(tmp_path / "a", 7, FIRST_DISK),
        formatted(tmp_path / "b", 7, SECOND_DISK),
    ]
    with pytest.raises(LogDirectoryError, match="add the log directory of broker 7"):
        restore(((7,), (7,)), [SECOND_DISK], to=disks[0])
    found = restore(((7,), (7,)), [SECOND_DISK], to=disks)
    assert {(str(disks[1]),)} == {each.directories for each in found.partitions}
    assert not (disks[0] / "t-0").exists()


def test_a_broker_that_has_not_chosen_a_disk_spreads_its_partitions(
    restore: Restore, tmp_path: Path
) -> None:
    """A reserved id names no disk; a partition that is there stays on its disk."""
    disks = [formatted(tmp_path / "a", 7, FIRST_DISK), formatted(tmp_path / "b", 7, SECOND_DISK)]
    (disks[1] / "t-0").mkdir()
    found = restore(((7,), (7,)), [uuid.UUID(int=0)], to=disks, dry_run=True)
    assert [(str(disks[1]),), (str(disks[0]),)] == [each.directories for each in found.partitions]


def test_a_directory_that_has_the_partition_takes_precedence_over_the_metadata(
    restore: Restore, tmp_path: Path
) -> None:
    """The broker loads the partition there, and does not start if both directories have it."""
    disks = [formatted(tmp_path / "a", 7, FIRST_DISK), formatted(tmp_path / "b", 7, SECOND_DISK)]
    (disks[1] / "t-0").mkdir()
    found = restore(((7,), (7,)), [FIRST_DISK], to=disks)
    assert [(str(disks[1]),), (str(disks[0]),)] == [each.directories for each in found.partitions]
    assert ["t-1"] == [each.name for each in disks[0].glob("t-*")]
    (disks[0] / "t-0").mkdir()
    with pytest.raises(LogDirectoryError, match=r"t-0: .*a/t-0 and .*b/t-0 are in log direct"):
        restore(((7,), (7,)), [FIRST_DISK], to=disks)


def test_a_disk_that_is_not_given_may_have_the_partition(restore: Restore, tmp_path: Path) -> None:
    """The metadata names no disk, and the broker has registered another one."""
    to = formatted(tmp_path / "a", 7, FIRST_DISK)
    options = {"registered": [FIRST_DISK, SECOND_DISK], "to": to}
    with pytest.raises(LogDirectoryError, match="add the log directory of broker 7"):
        restore(((7,), (7,)), [uuid.UUID(int=0)], **options)
    assert [] == [*to.glob("t-*")]
    found = restore(((7,), (7,)), [uuid.UUID(int=0)], **(options | {"registered": [FIRST_DISK]}))
    assert [20, 30] == [each.n_records for each in found.partitions]


def test_a_directory_of_a_former_topic_is_a_problem(restore: Restore, targets: list[Path]) -> None:
    """The broker would put it aside, and its records with it."""
    (targets[2] / "t-0").mkdir()
    (targets[2] / "t-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {IDS[0]}")
    with pytest.raises(LogDirectoryError, match=f"belongs to a topic with the id {IDS[0]}"):
        restore()


def test_a_link_with_the_name_of_a_partition_is_a_problem(
    restore: Restore, targets: list[Path], tmp_path: Path
) -> None:
    """Brokers and readers leave links out, so nobody would see the records."""
    shutil.copytree(targets[0], tmp_path / "elsewhere")
    (targets[2] / "t-0").symlink_to(tmp_path / "elsewhere")
    (problem,) = restore(dry_run=True).partitions[0].problems
    assert "is a symbolic link" in problem
    with pytest.raises(LogDirectoryError, match="is a symbolic link"):
        restore()
    assert not (targets[0] / "t-0").exists()


def test_a_partition_without_a_topic_id_gets_it(restore: Restore, targets: list[Path]) -> None:
    """A broker that died before it wrote the id would move the partition aside."""
    for each in targets:
        (each / "t-0").mkdir()
        for name in ("log", "index", "timeindex"):
            (each / "t-0" / f"{0:020}.{name}").touch()
    restore()
    assert {IDS[1]} == {read_topic_id(str(each / "t-0")) for each in targets if each.exists()}


@pytest.mark.parametrize("n_commits", [1, 2])
def test_a_run_that_was_killed_between_two_commits_is_repeated(
    restore: Restore,
    targets: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    n_commits: int,
) -> None:
    """The replicas that have the records stay, and the others become equal to them."""
    commit = module._commit

    def stop_early(writers: dict[str, Any]) -> None:
        commit(dict([*writers.items()][:n_commits]) | {"/next": None})

    with monkeypatch.context() as patched:
        patched.setattr(module, "_commit", stop_early)
        with pytest.raises(AttributeError):
            restore()
    assert "restore again before a broker starts" in caplog.text
    before = {each: logs(each) for each in targets if (each / "t-0").exists()}
    done = {each.restored_before for each in restore(dry_run=True).partitions}
    assert n_commits == max(map(len, done))
    found = restore()
    assert [20, 30] == [each.n_records for each in found.partitions]
    assert logs(targets[0]) == logs(targets[1]) == logs(targets[2])
    assert logs(targets[0], 1) == logs(targets[2], 1)
    assert any(logs(each) == files for each, files in before.items())


@pytest.mark.parametrize("every", [31, pytest.param(5, marks=pytest.mark.slow)])
def test_a_restoration_that_is_killed_can_be_repeated(
    restore: Restore, targets: list[Path], tmp_path: Path, every: int
) -> None:
    """After each kill, a partition has all records or none, and an offset map is whole.

    A second run makes all replicas equal, and writes the map.
    """
    place, number, is_whole = tmp_path / "killed", 0, False
    replicas, file = ((2, 1), (1,)), tmp_path / "map.parquet"
    while not is_whole:
        file.write_text("earlier")
        to = [shutil.copytree(each, place / each.name) for each in targets[:2]]
        with pytest.MonkeyPatch.context() as patch:
            crash_at(patch, number)
            try:
                restore(replicas, to=to, offset_map=file)
                is_whole = True
            except Crash:
                pass
        is_earlier = file.read_bytes() == b"earlier"
        assert is_earlier or 4 == pq.read_table(file).num_rows, number
        for each in to:
            for log in segmentlog.open_log_dir(each):
                n_records = log.scan().read_all().num_rows
                assert n_records in {0, (20, 30)[log.topic_partition.partition]}, number
        found = restore(replicas, to=to, offset_map=file)
        assert [20, 30] == [each.n_records for each in found.partitions]
        assert logs(to[0]) == logs(to[1]), number
        assert 4 == pq.read_table(file).num_rows, number
        shutil.rmtree(place)
        number += every
    assert number > 100


def test_a_target_and_a_copy_of_it_are_refused(restore: Restore, tmp_path: Path) -> None:
    """The partitions of the broker would be spread over both of them."""
    to = [formatted(tmp_path / "a", 7, FIRST_DISK), formatted(tmp_path / "b", 7, FIRST_DISK)]
    with pytest.raises(LogDirectoryError, match="one is a copy of the other"):
        restore(((7,), (7,)), [FIRST_DISK], to=to)
    assert [] == [*tmp_path.glob("?/t-*")]


def test_directories_that_are_no_targets(
    restore: Restore, targets: list[Path], tmp_path: Path
) -> None:
    """They belong to different clusters, to no broker, or are named twice."""
    with pytest.raises(OptionError, match="at least one broker"):
        restore(to=[])
    with pytest.raises(OptionError, match="once"):
        restore(to=[targets[0], targets[0]])
    other = formatted(tmp_path / "other", 4)
    (other / "meta.properties").write_text("version=1\nnode.id=4\ncluster.id=c3\n")
    with pytest.raises(LogDirectoryError, match="belongs to cluster c3"):
        restore(to=[*targets, other])
    make(tmp_path / "alone", rows(0, 1))
    with pytest.raises(LogDirectoryError, match=r"no meta\.properties"):
        restore(to=tmp_path / "alone")
