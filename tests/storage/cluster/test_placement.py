"""Replicas of one broker, copied from the logs of its cluster."""

import shutil
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from other_cluster import image_here

import segmentlog
from segmentlog import LogDirectoryError
from segmentlog.cluster import placement
from segmentlog.cluster.replicated import ReplicatedDirectory
from segmentlog.format.messages.reader import uuid_text
from segmentlog.reads.cluster_image import Image

DISKS = [uuid.UUID(int=1000 + each) for each in range(3)]
TOPIC = uuid.UUID(int=7)
#: Reserved ids of log directories.
UNASSIGNED, LOST, MIGRATING = (uuid.UUID(int=each) for each in range(3))

Formatted = Callable[..., Path]
Other = Callable[..., Path]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory with three partitions."""
    path = tmp_path / "source"
    with segmentlog.open_writer(path, "t", num_partitions=3) as writer:
        writer.append(pa.table({"value": ["a"] * 30}))
    for each in path.glob("t-*"):
        (each / "partition.metadata").write_text(f"version: 0\ntopic_id: {uuid_text(TOPIC)}")
    return path


@pytest.fixture
def other(tmp_path: Path, source: Path) -> Other:
    """Make another log directory of broker 1, which has one of the partitions."""

    def make(disk: int, partition: int = 2) -> Path:
        path = tmp_path / f"other{disk}"
        path.mkdir()
        (path / "meta.properties").write_text(properties(1, DISKS[disk]))
        shutil.copytree(source / f"t-{partition}", path / f"t-{partition}")
        return path

    return make


def properties(node: int, disk: uuid.UUID) -> str:
    """The text of `meta.properties`."""
    return f"version=1\nnode.id={node}\ndirectory.id={uuid_text(disk)}\n"


@pytest.fixture
def formatted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Formatted:
    """Make the directory of a broker, in metadata with these replicas and disks."""

    def make(node: int, disk: uuid.UUID, disks: Sequence[uuid.UUID | None]) -> Path:
        image = Image()
        for i, replicas in enumerate(([1, 2], [2], [1])):
            row = {
                "topic": "t",
                "topic_id": TOPIC,
                "partition": i,
                "replicas": replicas,
                "directories": [disks[i]] * len(replicas) if disks[i] else None,
            }
            image.tables["partitions"][TOPIC, i] = row
        image.tables["brokers"][1] = {"broker_id": 1, "log_dirs": DISKS[:2]}
        monkeypatch.setattr(placement, "ClusterMetadata", lambda _: image_here(image))
        path = tmp_path / "to"
        path.mkdir()
        (path / "meta.properties").write_text(properties(node, disk))
        return path

    return make


@pytest.mark.parametrize(
    ("node", "disk", "disks", "expected"),
    [
        (2, DISKS[2], (None, None, None), [0, 1]),
        (3, DISKS[2], (None, None, None), []),
        (1, DISKS[0], (DISKS[0], None, DISKS[1]), [0]),
    ],
    ids=["broker 2", "a broker without partitions", "one of two disks"],
)
def test_a_broker_gets_its_own_partitions(
    source: Path,
    formatted: Formatted,
    node: int,
    disk: uuid.UUID,
    disks: Sequence[uuid.UUID | None],
    expected: list[int],
) -> None:
    """The metadata names brokers, and may name disks."""
    to = formatted(node, disk, disks)
    shown = segmentlog.mirror(source, to=to, assigned=True, dry_run=True)
    found = segmentlog.mirror(source, to=to, assigned=True)
    assert expected == [each.partition for each in found] == [each.partition for each in shown]
    assert [f"t-{each}" for each in expected] == sorted(each.name for each in to.glob("t-*"))


def test_a_partition_that_no_source_has_is_named_in_a_warning(
    source: Path, formatted: Formatted, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker would begin with an empty replica, and could lead with it."""
    to = formatted(2, DISKS[2], (None, None, None))
    (source / "t-0").rename(tmp_path / "t-0")
    segmentlog.mirror(source, to=to, partitions=[1], assigned=True)
    assert "no source has" not in caplog.text
    with pytest.raises(segmentlog.UnknownTopicOrPartitionError, match="and it is not copied"):
        segmentlog.mirror(source, to=to, assigned=True)
    (message,) = [each for each in caplog.messages if "no source has" in each]
    assert "assigns 1 partitions to this directory" in message
    assert message.endswith("(t-0)")


def test_a_broker_without_metadata_gets_nothing(source: Path, tmp_path: Path) -> None:
    """Nothing shows its partitions."""
    with pytest.raises(LogDirectoryError, match="no metadata of a cluster"):
        segmentlog.mirror(source, to=tmp_path / "to", assigned=True)


@pytest.mark.parametrize("chosen", [None, UNASSIGNED, LOST, MIGRATING, uuid.UUID(int=999)])
def test_a_partition_that_two_directories_may_have_is_refused(
    source: Path, formatted: Formatted, chosen: uuid.UUID | None
) -> None:
    """A broker with a partition in two log directories does not start."""
    to = formatted(1, DISKS[0], (chosen, None, chosen))
    message = "t-0 to .* of this broker.*write the directory.id.*--assigned"
    for dry_run in (True, False):
        with pytest.raises(LogDirectoryError, match=uuid_text(DISKS[1])) as caught:
            segmentlog.mirror(source, to=to, assigned=True, dry_run=dry_run)
    caught.match(message)
    assert [] == [*to.glob("t-*")]


def test_a_directory_that_has_the_partition_keeps_it(
    source: Path, formatted: Formatted, other: Other
) -> None:
    """A broker loads a partition where it is, and not where the metadata says."""
    to = formatted(1, DISKS[0], (DISKS[0], None, DISKS[0]))
    found = segmentlog.mirror(source, other(1), to=to, assigned=True)
    assert [0] == [each.partition for each in found]
    assert ["t-0"] == [each.name for each in to.glob("t-*")]


def test_a_partition_that_was_mirrored_by_its_name_is_continued(
    source: Path, formatted: Formatted
) -> None:
    """The operator has chosen the log directory before."""
    to = formatted(1, DISKS[0], (UNASSIGNED, None, UNASSIGNED))
    segmentlog.mirror(source, to=to, topics="t", partitions=[0])
    with pytest.raises(LogDirectoryError, match="t-2 to no log directory"):
        segmentlog.mirror(source, to=to, assigned=True)
    found = segmentlog.mirror(source, to=to, partitions=[0], assigned=True)
    assert [0] == [each.partition for each in found]


def test_a_partition_in_two_directories_is_refused(
    source: Path, formatted: Formatted, other: Other
) -> None:
    """An operator has to remove one of them before the broker starts."""
    to = formatted(1, DISKS[0], (DISKS[0], None, DISKS[0]))
    segmentlog.mirror(source, to=to)
    with pytest.raises(LogDirectoryError, match=r"t-2 and .*other1/t-2 are in log directories"):
        segmentlog.mirror(source, other(1), to=to, assigned=True)


def test_a_directory_of_a_former_topic_does_not_have_the_partition(
    source: Path, formatted: Formatted, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker moves such a directory aside when it starts."""
    former = other(1)
    (former / "t-2" / "partition.metadata").write_text(f"version: 0\ntopic_id: {uuid_text(LOST)}")
    monkeypatch.setattr(ReplicatedDirectory, "_topic_ids", {"t": uuid_text(TOPIC)})
    to = formatted(1, DISKS[0], (DISKS[0], None, DISKS[0]))
    found = segmentlog.mirror(source, former, to=to, assigned=True)
    assert [0, 2] == [each.partition for each in found]


def test_a_new_disk_replaces_the_only_one_that_is_absent(
    source: Path, formatted: Formatted, other: Other
) -> None:
    """With several absent ones, nothing shows which of them it replaces."""
    to = formatted(1, DISKS[2], (DISKS[0], None, DISKS[1]))
    with pytest.raises(LogDirectoryError, match=uuid_text(DISKS[1])):
        segmentlog.mirror(source, to=to, assigned=True)
    found = segmentlog.mirror(source, other(1), to=to, assigned=True)
    assert [0] == [each.partition for each in found]


def test_a_new_disk_beside_all_others_of_its_broker_is_refused(
    source: Path, formatted: Formatted, other: Other
) -> None:
    """Its broker lacks no log directory, so the new one may be meant for new topics."""
    to = formatted(1, DISKS[2], (DISKS[0], None, DISKS[1]))
    with pytest.raises(LogDirectoryError, match=r"other0, .*other1"):
        segmentlog.mirror(source, other(0, 0), other(1), to=to, assigned=True)
