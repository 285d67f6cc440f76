"""A broker with two log directories, after one of them was lost and mirrored again."""

import shutil
from pathlib import Path

import pytest
from kafka_here import Broker, JavaClient
from kafka_here.java import Outgoing

import segmentlog
from segmentlog import LogDirectoryError

pytestmark = [pytest.mark.interop, pytest.mark.slow]


def partitions(directory: Path) -> list[int]:
    """The partitions of the topic in a log directory."""
    return sorted(int(each.name.removeprefix("spread-")) for each in directory.glob("spread-*"))


def test_a_broker_starts_only_with_each_partition_on_one_of_its_disks(tmp_path: Path) -> None:
    """A lost disk gets the partitions that no other disk has; the place of a copy counts."""
    broker = Broker(tmp_path / "kafka", n_log_dirs=2)
    first, second = broker.log_dirs
    with broker, JavaClient(broker) as client:
        client.create_topic("spread", 6)
        client.produce("spread", [Outgoing(b"%d" % i, b"v", (), None, i % 6) for i in range(60)])
        expected = sorted((each.partition, each.key) for each in client.consume("spread"))
    backups = [shutil.copytree(each, tmp_path / each.name) for each in broker.log_dirs]
    on_disk = partitions(second)
    assert on_disk
    assert len(on_disk) < 6
    shutil.rmtree(second)
    second.mkdir()
    shutil.copy(backups[1] / "meta.properties", second)
    found = segmentlog.mirror(first, backups[1], to=second, topics="spread", assigned=True)
    assert on_disk == [each.partition for each in found] == partitions(second)

    moved = partitions(first)[0]
    shutil.move(first / f"spread-{moved}", second)
    with broker, JavaClient(broker) as client:
        rows = sorted((each.partition, each.key) for each in client.consume("spread"))
    assert expected == rows
    assert [*range(6)] == sorted([*partitions(first), *partitions(second)])

    shutil.copytree(second / f"spread-{moved}", first / f"spread-{moved}")
    with pytest.raises(LogDirectoryError, match="in log directories of one broker"):
        segmentlog.mirror(first, backups[1], to=second, topics="spread", assigned=True)
    with pytest.raises(RuntimeError, match="Duplicate log directories"):
        broker.start()
