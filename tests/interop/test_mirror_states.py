"""A broker starts on every state in which a killed mirror can leave a partition without a guard.

It refuses a directory with a guard.
"""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from broker_copies import killed_in_sequence
from crashing import copy_states
from kafka_here import Broker, JavaClient

import segmentlog

pytestmark = [pytest.mark.interop, pytest.mark.slow]


def filled(directory: Path, n_segments: int) -> Path:
    """A log directory to which this number of segments is appended."""
    config = segmentlog.ProducerConfig(segmentlog.TopicConfig(segment_bytes=200))
    for i in range(n_segments):
        with segmentlog.open_writer(directory, "t", num_partitions=1, config=config) as writer:
            writer.append(pa.table({"value": [f"{directory.name} {i} {'v' * 100}"]}))
    return directory


def rows(directory: Path) -> set[tuple[int, bytes]]:
    """The offsets and values of the log."""
    table = segmentlog.open_log_dir(directory).log("t", 0).scan(read_up_to="logEnd").read_all()
    return {*zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True)}


def states(tmp_path: Path) -> tuple[list[Path], list[set[tuple[int, bytes]]]]:
    """The states of three mirrors, and the logs of which each state has a part."""
    source, to = filled(tmp_path / "a", 4), tmp_path / "to"
    to.mkdir()
    found = copy_states(to, lambda: segmentlog.mirror(source, to=to), tmp_path / "s1")
    logs = [rows(source)]
    filled(source, 2)
    segments = sorted((source / "t-0").glob("*.log"))
    for each in (source / "t-0").glob(f"{segments[0].stem}.*"):
        each.unlink()
    segments[2].write_bytes((filled(tmp_path / "c", 4) / "t-0" / segments[2].name).read_bytes())
    logs.append(rows(source))
    found += copy_states(to, lambda: segmentlog.mirror(source, to=to), tmp_path / "s2")
    killed, other = killed_in_sequence(tmp_path / "killed"), tmp_path / "other"
    segmentlog.mirror(killed[0], to=other)
    found += copy_states(other, lambda: segmentlog.mirror(*killed, to=other), tmp_path / "s3")
    logs += [rows(killed[0]), rows(killed[2])]
    unguarded = [each for each in found if not [*each.glob("*.unfinished.*")]]
    return [each / "t-0" for each in unguarded if (each / "t-0").exists()], logs


def test_a_broker_starts_after_a_mirror_that_was_killed_at_any_step(tmp_path: Path) -> None:
    """Each state has a part of the log as it was or as it is, without a gap."""
    found, logs = states(tmp_path)
    assert len(found) > 30
    broker = Broker(tmp_path / "kafka")
    with broker, JavaClient(broker) as client:
        client.create_topic("s", len(found))
    for i, state in enumerate(found):
        partition = broker.log_dir / f"s-{i}"
        metadata = (partition / "partition.metadata").read_bytes()
        shutil.rmtree(partition)
        shutil.copytree(state, partition)
        if (partition / "partition.metadata").exists():
            (partition / "partition.metadata").write_bytes(metadata)
    (broker.log_dir / ".kafka_cleanshutdown").unlink()
    served: list[dict[int, bytes]] = [{} for _ in found]
    with broker, JavaClient(broker) as client:
        for each in client.consume("s"):
            served[each.partition][each.offset] = each.value
    assert 6 == max(map(len, served))
    for i, read in enumerate(served):
        assert any({*read.items()} <= log for log in logs), found[i]
        assert [*read] == [*range(min(read, default=0), max(read, default=-1) + 1)], found[i]
