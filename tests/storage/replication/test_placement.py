"""Replicas of one broker, copied from the logs of its cluster."""

import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

import segmentlog
from segmentlog import LogDirectoryError
from segmentlog.cluster.image import Image
from segmentlog.messages.reader import uuid_text
from segmentlog.replication import placement

DISKS = [uuid.UUID(int=1000 + each) for each in range(3)]
Formatted = Callable[..., Path]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory with three partitions."""
    path = tmp_path / "source"
    with segmentlog.open_writer(path, "t", num_partitions=3) as writer:
        writer.append(pa.table({"value": ["a"] * 30}))
    return path


@pytest.fixture
def formatted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Formatted:
    """Make the directory of a broker, in metadata with these replicas and disks."""

    def make(node: int, disk: uuid.UUID, disks: Sequence[uuid.UUID | None]) -> Path:
        image = Image()
        for i, replicas in enumerate(([1, 2], [2], [1])):
            row = {
                "topic": "t", "topic_id": DISKS[0], "partition": i, "replicas": replicas,
                "directories": [disks[i]] * len(replicas) if disks[i] else None,
            }  # fmt: skip
            image.tables["partitions"][DISKS[0], i] = row
        image.tables["brokers"][1] = {"broker_id": 1, "log_dirs": DISKS[:2]}
        monkeypatch.setattr(placement, "newest_metadata", max)
        monkeypatch.setattr(placement, "read_metadata", lambda *_: ())
        monkeypatch.setattr(placement, "fold", lambda _: image)
        path = tmp_path / "to"
        path.mkdir()
        properties = f"version=1\nnode.id={node}\ndirectory.id={uuid_text(disk)}\n"
        (path / "meta.properties").write_text(properties)
        return path

    return make


@pytest.mark.parametrize(
    ("node", "disk", "disks", "expected"),
    [
        (1, DISKS[0], (None, None, None), [0, 2]),
        (2, DISKS[2], (None, None, None), [0, 1]),
        (3, DISKS[2], (None, None, None), []),
        (1, DISKS[0], (DISKS[0], None, DISKS[1]), [0]),
        (1, DISKS[2], (DISKS[0], None, DISKS[1]), [0, 2]),
    ],
    ids=["broker 1", "broker 2", "a broker without partitions", "one of two disks", "a new disk"],
)
def test_a_broker_gets_its_own_partitions(
    source: Path, formatted: Formatted, node: int, disk: uuid.UUID,
    disks: Sequence[uuid.UUID | None], expected: list[int],
) -> None:  # fmt: skip
    """The metadata names brokers, and may name disks; a new disk may replace any other one."""
    to = formatted(node, disk, disks)
    shown = segmentlog.mirror(source, to=to, assigned=True, dry_run=True)
    found = segmentlog.mirror(source, to=to, assigned=True)
    assert expected == [each.partition for each in found] == [each.partition for each in shown]
    assert [f"t-{each}" for each in expected] == sorted(each.name for each in to.glob("t-*"))


def test_a_broker_without_metadata_gets_nothing(source: Path, tmp_path: Path) -> None:
    """Nothing shows its partitions."""
    with pytest.raises(LogDirectoryError, match="no metadata of a cluster"):
        segmentlog.mirror(source, to=tmp_path / "to", assigned=True)
