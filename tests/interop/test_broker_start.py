"""Brokers that start on damaged directories: the prediction is what the broker does."""

import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from damaged_starts import (
    CLOSED,
    DAMAGES,
    FILES,
    FUTURES,
    Case,
    close,
    damage,
    filled,
    java_damages,
    predicted,
    second_disk,
    several,
    writable_copy,
)
from kafka_here import Broker, JavaClient
from kafka_here.broker import OldBroker
from kafka_here.java import Outgoing

import segmentlog
from segmentlog import StartAction
from segmentlog.testing.reference import Record, encode_batch

pytestmark = [pytest.mark.interop, pytest.mark.slow]

#: After a start, a broker that loses its only log directory ends when a thread has noticed that.
_END_SECONDS, _SETTLED_SECONDS = 60, 1.5


class _Started(Broker):
    """A broker on a directory that is never formatted."""

    def _prepare(self, settings: Path) -> None:
        """Keep the directory as it is."""

    def outcome(self, *, is_to_end: bool = False) -> str:
        """Start it, wait for its end if that is predicted, and kill it; returns what it did."""
        before = {each.name for each in self.log_dir.iterdir()}
        try:
            self.start()
            until = time.monotonic() + (_END_SECONDS if is_to_end else _SETTLED_SECONDS)
            while self.is_running and time.monotonic() < until:
                time.sleep(0.1)
        except RuntimeError as error:
            if "stopped at start-up" not in str(error):
                raise
        is_up = self.is_running
        self.kill()
        if not is_up:
            return "refused"
        now = {each.name for each in self.log_dir.iterdir()}
        if any(name.endswith("-stray") for name in now - before):
            return "stray"
        return "emptied" if list(self.log_dir.glob("*/*.log.deleted")) else "starts"


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "unclean"])
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("version", ["4.3.1", "3.9.2", "4.4.0"])
def test_the_prediction_is_what_the_broker_does(
    tmp_path: Path, version: str, file: str, *, is_clean: bool
) -> None:
    """Each file is damaged in each way; bytes that are cut off a log are predicted, too."""
    base = filled(version, tmp_path)
    found, expected = {}, {}
    for kind in DAMAGES:
        case = Case(file, kind, is_clean)
        broker = _Started(tmp_path / kind, version)
        writable_copy(base, broker.log_dir)
        damage(broker.log_dir, case)
        steps = segmentlog.preflight(broker.log_dir)
        log = broker.log_dir / "orders-1" / "00000000000000000000.log"
        size = log.stat().st_size if log.exists() else 0
        cut = sum(
            each.n_bytes
            for each in steps
            if (each.action, each.topic) == (StartAction.TRUNCATE, "orders") and not is_clean
        )
        found[case.name] = predicted(steps)
        is_to_end = found[case.name] == "refused"
        expected[case.name] = broker.outcome(is_to_end=is_to_end)
        if expected[case.name] == "starts" and log.exists():
            assert size - cut == log.stat().st_size, case.name
    assert expected == found


@pytest.mark.parametrize("version", ["4.3.1", "3.9.2", "4.4.0"])
def test_several_damages_at_once_are_predicted(tmp_path: Path, version: str) -> None:
    """The worst of them decides; after a recovery that leaves no harm, the broker starts."""
    base = filled(version, tmp_path)
    found, expected = {}, {}
    for seed in range(10):
        broker = _Started(tmp_path / str(seed), version)
        writable_copy(base, broker.log_dir)
        cases = several(seed)
        for case in cases:
            damage(broker.log_dir, case)
        steps = segmentlog.preflight(broker.log_dir)
        name = ", ".join(each.name for each in cases)
        found[name] = predicted(steps)
        expected[name] = broker.outcome(is_to_end=found[name] == "refused")
    assert expected == found


class _OfTwo(_Started):
    """A broker with two log directories, which it has formatted and filled itself."""

    def __init__(self, directory: Path, version: str) -> None:
        super().__init__(directory, version, n_log_dirs=2)
        filled = Broker(directory, version, n_log_dirs=2)
        with filled, JavaClient(filled) as client:
            client.create_topic("orders", 4)
            client.produce("orders", [Outgoing(b"k", b"v", (), None, i % 4) for i in range(20)])

    @property
    def disks(self) -> dict[str, Path]:
        """The directory with the metadata of the cluster, and the other one."""
        with_metadata = [(each / "__cluster_metadata-0").exists() for each in self.log_dirs]
        first = with_metadata.index(True)
        return {"metadata": self.log_dirs[first], "other": self.log_dirs[1 - first]}

    def took_offline(self) -> set[str]:
        """The directories that the last start took offline; the broker is killed."""
        try:
            self.start()
            until = time.monotonic() + 4 * _SETTLED_SECONDS
            while self.is_running and time.monotonic() < until:
                time.sleep(0.1)
        except RuntimeError as error:
            if "stopped at start-up" not in str(error):
                raise
        is_up = self.is_running
        self.kill()
        found = re.findall(r"Stopping serving logs in dir (\S+)", self.output.read_text())
        self.output.unlink()
        return {Path(each).name for each in found} if is_up else {"all"}


def _of_orders(name: str, data: bytes) -> Callable[[Path], object]:
    """Write a file of the first of a directory's logs."""
    return lambda to: (min(to.glob("orders-?")) / name).write_bytes(data)


def _at_the_top(name: str, data: bytes) -> Callable[[Path], object]:
    return lambda to: (to / name).write_bytes(data)


#: Damages of one of two log directories.
OF_TWO: dict[str, Callable[[Path], object]] = {
    "recovery points, no UTF-8": _at_the_top("recovery-point-offset-checkpoint", b"0\n1\n\xff\n"),
    "recovery points, a word": _at_the_top("recovery-point-offset-checkpoint", b"0\n1\nt 0 x\n"),
    "log starts, zeros": _at_the_top("log-start-offset-checkpoint", bytes(40)),
    "high watermarks, a blank": _at_the_top("replication-offset-checkpoint", b"0 \n0\n"),
    "ends of compaction, cut": _at_the_top("cleaner-offset-checkpoint", b"0\n3\nt 0 1\n"),
    "a topic id, empty": _of_orders("partition.metadata", b""),
    "a topic id, zeros": _of_orders("partition.metadata", bytes(40)),
    "a topic id, a blank": _of_orders("partition.metadata", b"version: 0 \ntopic_id: x"),
    "leader epochs, no UTF-8": _of_orders("leader-epoch-checkpoint", b"0\n1\n0 \xb0\n"),
    "leader epochs, a word": _of_orders("leader-epoch-checkpoint", b"0\n1\n0 x\n"),
    "a name without an offset": _of_orders("abc.log", b""),
    "no ids": lambda to: (to / "meta.properties").unlink(),
    "an empty directory": lambda to: [shutil.rmtree(to), to.mkdir()],
    "an absent directory": shutil.rmtree,
}


@pytest.mark.parametrize("disk", ["metadata", "other"])
@pytest.mark.parametrize("version", ["4.3.1", "3.9.2", "4.4.0"])
def test_a_fault_of_one_of_two_directories_is_the_end_or_not(
    tmp_path: Path, version: str, disk: str
) -> None:
    """The prediction says which directories the broker serves, if it starts."""
    broker = _OfTwo(tmp_path / "broker", version)
    kept = tmp_path / "kept"
    shutil.copytree(broker.directory, kept)
    found, expected = {}, {}
    for name, make in OF_TWO.items():
        for each in broker.log_dirs:
            shutil.rmtree(each, ignore_errors=True)
            writable_copy(kept / each.name, each)
        disks = broker.disks
        if disk == "metadata" and "directory" in name:
            continue  # what is lost with the metadata is not known
        make(disks[disk])
        steps = segmentlog.preflight(*broker.log_dirs)
        refused = any(each.action == StartAction.REFUSE for each in steps)
        offline = {each.path for each in steps if each.action == StartAction.OFFLINE}
        found[name] = (
            {"all"}
            if refused
            else {
                each.name
                for each in broker.log_dirs
                if any(path.startswith(f"{each}/") for path in offline)
            }
        )
        expected[name] = broker.took_offline()
    assert expected == found


@pytest.mark.parametrize("version", ["4.3.1", "3.9.2", "4.4.0"])
def test_logs_of_a_replaced_disk_are_named(tmp_path: Path, version: str) -> None:
    """Up to Kafka 4.3, they are served as empty logs; later, they have no leader."""
    broker = _OfTwo(tmp_path / "broker", version)
    second = broker.disks["other"]
    lost = sorted(each.name for each in second.glob("orders-?"))
    shutil.rmtree(second)
    second.mkdir()
    broker.format(broker.directory / "server.properties", "--ignore-formatted")
    steps = segmentlog.preflight(*broker.log_dirs)
    unserved = [each for each in steps if each.action == StartAction.UNSERVED]
    assert lost == sorted(Path(each.path).name for each in unserved if each.topic == "orders")
    assert lost


@pytest.mark.parametrize("part", ["ids", "elections", "checkpoints"])
@pytest.mark.parametrize("version", ["4.3.1", "3.9.2", "4.4.0"])
def test_files_are_taken_as_the_broker_parses_them(
    tmp_path: Path, version: str, part: str
) -> None:
    """Blanks, continued lines, missing fields, words in place of numbers."""
    base = filled(version, tmp_path)
    found, expected = {}, {}
    for name, damage_it in java_damages(part).items():
        broker = _Started(tmp_path / name, version)
        damage_it(writable_copy(base, broker.log_dir))
        found[name] = predicted(segmentlog.preflight(broker.log_dir))
        expected[name] = broker.outcome(is_to_end=found[name] == "refused")
    assert expected == found


#: Damages of a directory of a broker that ZooKeeper coordinates, Kafka 2.8.2.
OF_ZOOKEEPER: dict[str, Callable[[Path], object]] = {
    "nothing": lambda to: to,
    "no cluster id": lambda to: _without(to / "meta.properties", "cluster.id"),
    "no broker id": lambda to: _without(to / "meta.properties", "broker.id"),
    "no ids": lambda to: (to / "meta.properties").unlink(),
    "recovery points, zeros": _at_the_top("recovery-point-offset-checkpoint", bytes(40)),
    "a topic id, empty": _of_orders("partition.metadata", b""),
    "a topic id of another topic": _of_orders(
        "partition.metadata", b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAABkA"
    ),
    "leader epochs, zeros": _of_orders("leader-epoch-checkpoint", bytes(20)),
    "lost+found": lambda to: (to / "lost+found").mkdir(),
}


def _without(path: Path, key: str) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(each for each in lines if not each.startswith(key)))


def test_disks_of_zookeeper_are_predicted(tmp_path: Path) -> None:
    """Their broker needs no ids of topics, and takes its own id from its settings."""
    filled = OldBroker(tmp_path / "broker")
    with filled, JavaClient(filled) as client:
        client.create_topic("orders", 3)
        client.produce("orders", [Outgoing(b"k", b"v", (), None, i % 3) for i in range(30)])
    shutil.copytree(filled.directory, tmp_path / "kept")
    found, expected = {}, {}
    for name, make in OF_ZOOKEEPER.items():
        shutil.rmtree(filled.directory)
        shutil.copytree(tmp_path / "kept", filled.directory)
        broker = OldBroker(filled.directory)
        make(broker.log_dir)
        found[name] = predicted(segmentlog.preflight(broker.log_dir))
        try:
            broker.start()
            expected[name] = "starts"
        except RuntimeError:
            expected[name] = "refused"
        broker.kill()
    assert expected == found


def test_a_zeroed_block_of_the_metadata_makes_all_partitions_stray(tmp_path: Path) -> None:
    """The prediction names each directory that the broker renames."""
    broker = _Started(tmp_path / "broker")
    writable_copy(filled("4.3.1", tmp_path), broker.log_dir)
    (log,) = broker.log_dir.glob("__cluster_metadata-0/*.log")
    data = bytearray(log.read_bytes())
    middle = len(data) // 4
    data[middle : middle + 512] = bytes(512)
    log.write_bytes(data)
    steps = segmentlog.preflight(broker.log_dir)
    predicted_strays = sorted(
        f"{each.topic}-{each.partition}" for each in steps if each.action == StartAction.STRAY
    )
    assert "stray" == broker.outcome()
    strays = [each.name for each in broker.log_dir.glob("*-stray")]
    assert sorted(re.sub(r"\.[0-9a-f]{32}-stray$", "", each) for each in strays) == (
        predicted_strays
    )


FAR = 2**31 + 100


def test_logs_that_are_split_deleted_or_missing(tmp_path: Path) -> None:
    """The broker divides the segment, and begins empty logs in place of the others."""
    broker = _Started(tmp_path / "broker")
    writable_copy(filled("4.3.1", tmp_path), broker.log_dir)
    (broker.log_dir / ".kafka_cleanshutdown").unlink()
    (broker.log_dir / "recovery-point-offset-checkpoint").unlink()
    log = broker.log_dir / "orders-0" / f"{0:020d}.log"
    far = [encode_batch([Record(base, 0, b"k", b"v")]) for base in (FAR, 3 * FAR)]
    log.write_bytes(log.read_bytes() + b"".join(far))
    deleted = broker.log_dir / "orders-1.0123456789abcdef0123456789abcdef-delete"
    (broker.log_dir / "orders-1").rename(deleted)
    shutil.rmtree(broker.log_dir / "orders-2")
    steps = {
        (each.action, each.partition): each
        for each in segmentlog.preflight(broker.log_dir, topics="orders")
    }
    assert f"at the offsets 0, {FAR}, {3 * FAR}" in steps[StartAction.SPLIT, 0].reason
    assert str(deleted) == steps[StartAction.EMPTY, 1].path
    assert (StartAction.MISSING, 2) in steps

    assert "emptied" == broker.outcome()  # the divided segment is a `.deleted` file
    bases = [int(each.stem) for each in sorted(log.parent.glob("*.log"))]
    assert [0, FAR, 3 * FAR] == bases
    for partition in (1, 2):
        path = broker.log_dir / f"orders-{partition}" / log.name
        assert 0 == path.stat().st_size
    assert deleted.is_dir() or not (broker.log_dir / deleted.name).exists()


@pytest.mark.parametrize("name", FUTURES)
def test_a_copy_in_its_log_directory_becomes_the_log(tmp_path: Path, name: str) -> None:
    """The broker ends, or serves as many records of the log as were predicted."""
    broker = _Started(tmp_path / "broker", n_log_dirs=2)
    first = writable_copy(filled("4.3.1", tmp_path), broker.log_dir)
    second = broker.log_dirs[1] = second_disk(first, "orders-1", "orders-2")
    FUTURES[name][0](first, second)
    steps = segmentlog.preflight(first, second)
    n_before = len([*broker.directory.glob("*/*-stray")])
    try:
        broker.start()
    except RuntimeError:
        assert "refused" == predicted(steps)
        return
    with JavaClient(broker) as client:
        end = client.offsets("orders")[0][1]
    broker.kill()
    n_strays = len([*broker.directory.glob("*/*-stray")]) - n_before
    found = "stray" if n_strays else "starts" if end == 20 else "emptied"
    assert found == predicted(steps)
    for step in steps:
        if step.action == StartAction.DELETE and "copy" in step.reason:
            assert not Path(step.path).exists()


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "unclean"])
def test_logs_that_only_a_broker_reads_are_served_to_their_ends(
    tmp_path: Path, *, is_clean: bool
) -> None:
    """A batch from below its segment's name, a high watermark below 0, and a linked segment."""
    broker = _Started(tmp_path / "broker")
    first = writable_copy(filled("4.3.1", tmp_path), broker.log_dir)
    batch = encode_batch([Record(20 + i, 0, b"k", b"v") for i in range(10)])
    (first / "orders-0" / f"{25:020d}.log").write_bytes(batch)
    checkpoint = first / "replication-offset-checkpoint"
    checkpoint.write_text(re.sub("orders 1 20", "orders 1 -5", checkpoint.read_text()))
    linked = first / "orders-2" / f"{0:020d}.log"
    linked.rename(tmp_path / "elsewhere.log")
    linked.symlink_to(tmp_path / "elsewhere.log")
    if not is_clean:
        (first / ".kafka_cleanshutdown").unlink()
        (first / "recovery-point-offset-checkpoint").unlink()
    assert "starts" == predicted(segmentlog.preflight(first))
    broker.start()
    with JavaClient(broker) as client:
        found = client.offsets("orders")
        records = [each.offset for each in client.consume("orders") if each.partition == 0]
    broker.kill()
    assert {0: (0, 30), 1: (0, 20), 2: (0, 20)} == found
    assert [*range(30)] == records


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "unclean"])
@pytest.mark.parametrize("what", CLOSED)
def test_a_file_that_cannot_be_opened_takes_the_directory_offline(
    tmp_path: Path, what: str, *, is_clean: bool
) -> None:
    """A broker without another log directory ends; it starts with a dangling ``.txnindex``."""
    broker = _Started(tmp_path / "broker")
    writable_copy(filled("4.3.1", tmp_path), broker.log_dir)
    close(broker.log_dir, what)
    if not is_clean:
        (broker.log_dir / ".kafka_cleanshutdown").unlink()
    found = predicted(segmentlog.preflight(broker.log_dir))
    assert found == broker.outcome(is_to_end=found == "refused")


@pytest.mark.parametrize("file", ["leader-epoch-checkpoint", f"{0:020d}.log", f"{99:020d}.log"])
def test_offsets_below_a_base_offset_or_below_0_end_the_start(tmp_path: Path, file: str) -> None:
    """The prediction names the file; after a recovery, the broker starts."""
    broker = _Started(tmp_path / "broker")
    writable_copy(filled("4.3.1", tmp_path), broker.log_dir)
    (broker.log_dir / ".kafka_cleanshutdown").unlink()
    path = broker.log_dir / "orders-0" / file
    if path.suffix != ".log":
        path.write_text("0\n1\n0 -5\n")
    else:
        base = int(path.stem)
        path.unlink(missing_ok=True)
        above = encode_batch([Record(base + 5, 0, b"k", b"v")])
        path = path.with_name(f"{base + 5:020d}.log")
        for old in path.parent.glob(f"{base:020d}.*"):
            old.unlink()
        path.write_bytes(above + encode_batch([Record(base, 0, b"k", b"v")]))
    steps = segmentlog.preflight(broker.log_dir)
    assert [str(path)] == [each.path for each in steps if each.has_harm]
    assert "refused" == broker.outcome(is_to_end=True)
    segmentlog.recover(broker.log_dir)
    assert "starts" == broker.outcome()


def test_retention_acts_within_the_first_minute(tmp_path: Path) -> None:
    """The segments that are due go, and the logs begin at the offsets that were named."""
    broker = _Started(tmp_path / "broker", settings={"log.retention.ms": 1000})
    writable_copy(filled("4.3.1", tmp_path), broker.log_dir)
    properties = tmp_path / "server.properties"
    properties.write_text("node.id=1\nlog.retention.ms=1000\n")
    named = {
        Path(each.path): each.end_offset
        for each in segmentlog.preflight(broker.log_dir, server_properties=properties)
        if each.action == StartAction.DELETE and "retention" in each.reason
    }
    assert {"orders-0", "orders-1", "orders-2", "invoices-0"} == {each.name for each in named}
    broker.start()
    until = time.monotonic() + 120
    found: dict[Path, int] = {}
    while found != named and time.monotonic() < until:
        time.sleep(0.5)
        found = {
            each: min((int(path.stem) for path in each.glob("*.log")), default=0) for each in named
        }
    broker.kill()
    assert named == found


def test_retention_believes_zeros_in_an_index_of_times(tmp_path: Path) -> None:
    """Records of today go, because the last entry of their index says 1970."""
    broker = _Started(tmp_path / "broker", settings={"log.retention.ms": 7 * 86_400_000})
    writable_copy(filled("4.3.1", tmp_path), broker.log_dir)
    zeroed = broker.log_dir / "orders-0" / f"{0:020d}.timeindex"
    zeroed.write_bytes(bytes(12))
    extended = broker.log_dir / "orders-2" / zeroed.name
    extended.write_bytes(extended.read_bytes() + bytes(12))
    steps = segmentlog.preflight(broker.log_dir)
    cuts = {each.path: each.end_offset for each in steps if each.action == StartAction.TRUNCATE}
    assert {str(zeroed): 20, str(extended): 20} == cuts
    broker.start()
    until = time.monotonic() + 120
    gone: set[str] = set()
    while len(gone) < len(cuts) and time.monotonic() < until:
        time.sleep(0.5)
        gone = {each.parent.name for each in broker.log_dir.glob(f"*/{20:020d}.log")}
    broker.kill()
    assert {"orders-0", "orders-2"} == gone
