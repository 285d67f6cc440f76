"""Faults that end a start, cost a directory or lose logs; the outcomes are those of brokers."""

import base64
import json
import re
import shlex
import shutil
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from damaged_starts import ELECTIONS, IDS, second_disk, writable_copy
from typer.testing import CliRunner

import segmentlog
from segmentlog import RecoveryKind, StartAction
from segmentlog.errors import LogDirectoryError, OptionError
from segmentlog.log.checkpoint import write_offsets
from segmentlog.log.listing import list_segments
from segmentlog.log.segment import Segment, find_log_end
from segmentlog.maintain.health.features import levels_of
from segmentlog.maintain.start import metadata as metadata_start
from segmentlog.reads import cluster_image
from segmentlog.testing.kafka_log import KafkaLog
from segmentlog.testing.reference import Record, encode_batch
from segmentlog.tools.cli import app

CLUSTER = Path(__file__).parents[4] / "examples" / "cluster"
METADATA = "__cluster_metadata-0"
REFUSE, OFFLINE = StartAction.REFUSE, StartAction.OFFLINE


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A copy of a directory that a broker has cleanly stopped."""
    return writable_copy(CLUSTER, tmp_path / "logs")


def harm(*directories: Path, **options: object) -> list[tuple[StartAction, str]]:
    """Actions and files of the steps that end a start, or lose a log."""
    steps = segmentlog.preflight(*directories, **options)  # type: ignore[arg-type]
    return [(each.action, Path(each.path).name) for each in steps if each.has_harm]


@pytest.mark.parametrize("name", IDS)
def test_ids_are_taken_as_java_parses_them(directory: Path, name: str) -> None:
    """Kafka 4.3.1 started, or ended, with each of these files."""
    old, new, is_refused = IDS[name]
    path = directory / "meta.properties"
    path.write_text(re.sub(old, new, path.read_text()))
    assert ([(REFUSE, path.name)] if is_refused else []) == harm(directory)


@pytest.mark.parametrize("name", ELECTIONS)
def test_an_election_is_read_as_a_node_reads_it(directory: Path, name: str) -> None:
    """Each field of its version has to be there, with its type."""
    make, is_refused = ELECTIONS[name]
    path = directory / METADATA / "quorum-state"
    found = json.loads(path.read_text())
    make(found)
    path.write_text(json.dumps(found))
    assert ([(REFUSE, path.name)] if is_refused else []) == harm(directory)
    path.write_text(path.read_text() + "x")  # what follows the object is not read
    assert ([(REFUSE, path.name)] if is_refused else []) == harm(directory)


@pytest.mark.parametrize(
    "file",
    [
        "replication-offset-checkpoint",
        "recovery-point-offset-checkpoint",
        "orders-1/leader-epoch-checkpoint",
        "orders-1/partition.metadata",
    ],
)
@pytest.mark.parametrize("is_of_metadata", [True, False])
def test_a_broker_ends_without_the_directory_of_its_metadata(
    directory: Path, file: str, *, is_of_metadata: bool
) -> None:
    """It goes on without another one; one flipped bit makes a text no UTF-8."""
    second = second_disk(directory, "orders-1")
    if is_of_metadata:
        (second / "orders-1").rename(directory / "orders-1")
    path = (directory if is_of_metadata else second) / file
    data = bytearray(path.read_bytes() or b"0\n0\n")
    data[0] ^= 0x80
    path.write_bytes(data)
    assert [(REFUSE if is_of_metadata else OFFLINE, path.name)] == harm(directory, second)
    mended = {
        each.kind for each in segmentlog.recover(path.parents[file.count("/")], metadata=directory)
    }
    assert mended & {
        RecoveryKind.CHECKPOINT_MENDED,
        RecoveryKind.LEADER_EPOCHS_BUILT,
        RecoveryKind.TOPIC_ID_WRITTEN,
    }
    assert [] == harm(directory, second)


def test_the_verdict_names_what_to_type_for_each_directory(directory: Path) -> None:
    """With the directory of the metadata, where it is another one."""
    second = second_disk(directory, "orders-1")
    for each in (directory / "orders-0", second / "orders-1"):
        (each / "partition.metadata").write_bytes(b"")
    properties = directory.parent / "server.properties"
    properties.write_text(f"node.id=1\nlog.dirs={directory},{second}\n")
    for given in (map(str, (directory, second)), ("--server-properties", str(properties))):
        run = CliRunner().invoke(app, ["preflight", *given])
        first, *others = run.stdout.splitlines()
        assert first.startswith("the broker would not start: 2 refuse")
        assert f"  next: segmentlog recover {shlex.quote(str(directory))}" in others
        beside = f"{shlex.quote(str(second))} --metadata {shlex.quote(str(directory))}"
        assert f"  next: segmentlog recover {beside}" in others
    for each, metadata in ((directory, None), (second, directory)):
        segmentlog.recover(each, metadata=metadata)
    assert [] == harm(directory, second)


def test_a_broker_ends_without_any_log_directory(directory: Path) -> None:
    """The metadata is on a disk of its own."""
    second = second_disk(directory, "orders-1")
    own = directory.parent / "metadata"
    own.mkdir()
    (directory / METADATA).rename(own / METADATA)
    shutil.copy(directory / "meta.properties", own)
    for each in (directory, second):
        (each / "replication-offset-checkpoint").write_bytes(b"\xb0\n0\n")
    found = harm(directory, second, metadata=own)
    name = "replication-offset-checkpoint"
    assert [(OFFLINE, name), (REFUSE, name)] == [each for each in found if each[1] == name]


@pytest.mark.parametrize("what", ["absent", "empty", "lost+found"])
def test_a_directory_that_is_lost_ends_the_start_and_the_others_are_examined(
    directory: Path, what: str
) -> None:
    """A replaced disk that was not formatted."""
    lost = directory.parent / "disk2"
    if what != "absent":
        lost.mkdir()
    if what == "lost+found":
        (lost / what).mkdir()
    (directory / "orders-0" / "partition.metadata").write_bytes(b"")
    found = harm(directory, lost)
    assert {(REFUSE, "meta.properties"), (REFUSE, "partition.metadata")} <= {*found}
    properties = directory.parent / "server.properties"
    properties.write_text(f"node.id=1\nlog.dirs={directory}, {lost}\n")
    assert found == harm(server_properties=properties)
    run = CliRunner().invoke(app, ["preflight", "--server-properties", str(properties)])
    assert 1 == run.exit_code
    assert "the broker would not start" in run.stdout.splitlines()[0]


def test_without_any_directory_nothing_is_examined(tmp_path: Path) -> None:
    """A path that does not exist, and settings that name none."""
    with pytest.raises(LogDirectoryError):
        segmentlog.preflight(tmp_path / "nowhere")
    with pytest.raises(OptionError, match=r"log\.dirs"):
        segmentlog.preflight()


def test_logs_of_a_replaced_directory_are_named(directory: Path) -> None:
    """Its disk was lost, and then formatted with another id."""
    path = directory / "meta.properties"
    path.write_text(
        re.sub("directory.id=.*", "directory.id=er5aWuEISeKNH6Jd5_NPlA", path.read_text())
    )
    shutil.rmtree(directory / "orders-0")
    shutil.rmtree(directory / "orders-1")
    found = harm(directory)
    assert [(StartAction.UNSERVED, "orders-0"), (StartAction.UNSERVED, "orders-1")] == found
    run = CliRunner().invoke(app, ["preflight", str(directory)])
    assert (1, True) == (run.exit_code, "without orders-0, orders-1" in run.stdout)
    assert 1 == run.stdout.count("unserved ")  # equal lines are one
    # A verification of one directory alone need not have all logs.
    assert "none of these" not in str(segmentlog.verify(directory))


def test_the_remedy_for_another_cluster_id_is_the_line_to_write(directory: Path) -> None:
    """The topic ids show that the directory is of this cluster; without them, it goes."""
    second = second_disk(directory, "orders-1")
    path = second / "meta.properties"
    path.write_text(re.sub("cluster.id=.*", f"cluster.id={'A' * 22}", path.read_text()))
    (step,) = [each for each in segmentlog.preflight(directory, second) if each.has_harm]
    assert (REFUSE, str(path)) == (step.action, step.path)
    assert "write the line cluster.id=segmentlogTestCluster1 " in step.remedy
    (second / "orders-1" / "partition.metadata").write_text(
        "version: 0\ntopic_id: er5aWuEISeKNH6Jd5_NPlA"
    )
    step = next(each for each in segmentlog.preflight(directory, second) if each.has_harm)
    assert "start the broker without the directory" in step.remedy


def test_a_node_without_zookeeper_renames_the_logs_of_one_that_had_it(directory: Path) -> None:
    """A broker with ZooKeeper serves them, also without a cluster id, or its own id."""
    shutil.rmtree(directory / METADATA)
    (directory / "bootstrap.checkpoint").unlink()
    for each in directory.glob("*/partition.metadata"):
        each.unlink()
    for ids in ("broker.id=1\n", "cluster.id=abc\n"):
        (directory / "meta.properties").write_text(f"version=0\n{ids}")
        assert [] == harm(directory)
    (directory / "meta.properties").write_text("version=0\nbroker.id=1\ncluster.id=abc\n")
    properties = directory.parent / "server.properties"
    properties.write_text(
        "process.roles=broker,controller\nnode.id=1\n"
        f"controller.quorum.voters=1@localhost:1\nlog.dirs={directory}\n"
    )
    found = harm(server_properties=properties)
    n_logs = len([*directory.glob("*-[0-9]*")])
    assert [(StartAction.STRAY, "partition.metadata")] * n_logs == found


def test_a_log_start_in_the_old_directory_is_not_found_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A partition that was moved by hand: reads say so, until the line is written."""
    log = KafkaLog(tmp_path / "one")
    log.write("big", [f"v{i}" for i in range(60)])
    log.delete_records("big", 15)
    KafkaLog(tmp_path / "two").write("other", ["x"])
    directories = tmp_path / "one", tmp_path / "two"
    assert [] == [each for each in segmentlog.preflight(*directories) if each.topic == "big"]
    shutil.move(tmp_path / "one" / "big-0", tmp_path / "two" / "big-0")
    (step,) = [
        each
        for each in segmentlog.preflight(*directories)
        if each.path.endswith("log-start-offset-checkpoint")
    ]
    assert (StartAction.DROP, 0, 15) == (step.action, step.offset, step.end_offset)
    assert f"'big 0 15' into {tmp_path / 'two'}" in step.remedy
    begin = segmentlog.open_log_dir(*directories).log("big", 0).log_start_offset
    assert f"'big 0 15' into {tmp_path / 'two'}" in caplog.text
    assert begin < 15
    caplog.clear()
    entry = {segmentlog.TopicPartition("big", 0): 15}
    write_offsets(str(tmp_path / "two"), "log-start-offset-checkpoint", entry)
    assert 15 == segmentlog.open_log_dir(*directories).log("big", 0).log_start_offset
    assert "" == caplog.text


def test_the_metadata_is_read_once_for_the_start_and_once_for_its_settings(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many log directories the broker has."""
    second = second_disk(directory, "orders-1", "orders-2")
    read: list[object] = []
    for module in (metadata_start, cluster_image):
        real = module.read_metadata

        def counted(*found: object, real: Any = real, **options: object) -> Any:
            read.append(found[0])
            return real(*found, **options)

        monkeypatch.setattr(module, "read_metadata", counted)
    segmentlog.preflight(directory, second)
    assert 2 == len(read)


def test_features_are_compared_one_by_one(directory: Path) -> None:
    """The ranges of each release, on both sides; an unknown release is said."""
    assert [(0, 1), (0, 2)] == [levels_of((4, each), "share.version") for each in (3, 4)]
    assert [(1, 21), (7, 25)] == [levels_of((n, 9 * (n < 4)), "metadata.version") for n in (3, 4)]
    assert (0, 0) == levels_of((4, 0), "streams.version")
    steps = segmentlog.preflight(directory, kafka_version="4.9")
    assert [StartAction.UNKNOWN] == [each.action for each in steps if "Kafka 4.9" in each.reason]
    assert "group.version is 1, but Kafka 3.9 does not know this feature" in str(
        segmentlog.preflight(directory, kafka_version="3.9")
    )


def test_a_neighbour_whose_name_begins_alike_has_faults_of_its_own(tmp_path: Path) -> None:
    """``DIR`` is ready for a start although ``DIR-meta`` is not."""
    directory = writable_copy(CLUSTER, tmp_path / "kafka")
    beside = tmp_path / "kafka-meta"
    beside.mkdir()
    (directory / METADATA).rename(beside / METADATA)
    (directory / ".kafka_cleanshutdown").unlink(missing_ok=True)
    steps = segmentlog.recover(directory, metadata=beside)
    assert RecoveryKind.MARKED_CLEAN == steps[-1].kind


def test_batches_below_the_base_offset_are_found_below_the_recovery_point(
    tmp_path: Path,
) -> None:
    """The segment has no index, so that the start reads it."""
    with segmentlog.open_writer(tmp_path, "t", num_partitions=1) as writer:
        writer.append(pa.table({"value": ["v"] * 20}))
    log = next((tmp_path / "t-0").glob("*.log"))
    moved = log.with_name(f"{100:020d}.log")
    shutil.copy(log, log.with_name(f"{200:020d}.log"))
    log.rename(moved)
    for each in (tmp_path / "t-0").glob("*index"):
        each.unlink()
    (tmp_path / ".kafka_cleanshutdown").unlink(missing_ok=True)
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n1\nt 0 1000\n")
    found = [each for each in segmentlog.preflight(tmp_path) if each.action is REFUSE]
    assert str(moved) in {each.path for each in found}


def test_the_only_voter_has_the_directory_id_that_it_voted_with(directory: Path) -> None:
    """Kafka 4.3.1 waited for a leader, and ended."""
    log = max((directory / METADATA).glob("*.log"))
    segment = Segment(list_segments(str(log.parent))[-1], is_sealed=False)
    end = find_log_end(segment).offset
    own = uuid_bytes("er5aWuEISeKNH6Jd5_NPlA")
    voters = struct.pack(">hBi", 0, 2, 1) + own + b"\x01" + struct.pack(">hh", 0, 1) + b"\0\0\0"
    voters_record = Record(end, 1000, struct.pack(">hh", 0, 6), voters)
    log.write_bytes(
        log.read_bytes() + encode_batch([voters_record], attributes=32, leader_epoch=1)
    )
    assert [(REFUSE, "meta.properties")] == harm(directory)
    (step,) = [each for each in segmentlog.preflight(directory) if each.has_harm]
    assert "write the line directory.id=er5aWuEISeKNH6Jd5_NPlA" in step.remedy


def uuid_bytes(text: str) -> bytes:
    """The bytes of an id as Kafka prints it."""
    return base64.urlsafe_b64decode(text + "==")
