"""Directories of killed brokers are recovered to equal bytes, by us and by a broker."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from kafka_here import Broker, JavaClient
from kafka_here.java import Outgoing
from typer.testing import CliRunner

import segmentlog
from segmentlog.testing.reference import Record, encode_batch
from segmentlog.tools.cli import app

pytestmark = pytest.mark.interop

#: A broker then logs whether it recovers.
LOUD = " ".join(
    f"-Dorg.slf4j.simpleLogger.log.{logger}=info"
    for logger in ("kafka.log", "org.apache.kafka.storage.internals.log")
)


def record(number: int) -> Outgoing:
    """The record at offset `number` of a log without transactions."""
    return Outgoing(b"key-%d" % (number % 40), b"%d " % number * 300, (), int(time.time() * 1000))


def run(*arguments: object, status: int = 0) -> str:
    """The output of a segmentlog command, which must end with this status."""
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == status, result.output
    return result.output


TOPICS = ("plain", "zstd", "ended", "flipped")


class Load:
    """Writes to four topics until the broker dies, and counts the acknowledged records."""

    def __init__(self, client: JavaClient) -> None:
        self.acknowledged = 0
        self._client = client
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        client.create_topic("plain", internal_segment_bytes=100_000)
        client.create_topic("zstd", internal_segment_bytes=20_000)
        client.create_topic("flipped", internal_segment_bytes=100_000)
        client.create_topic("ended", internal_segment_bytes=50_000)

    def _run(self) -> None:
        plain = self._client.producer(batch_size=3000, linger_ms=1, compression_type="none")
        zstd = self._client.producer(batch_size=3000, linger_ms=1, compression_type="zstd")
        ending = self._client.transactional_producer("ending", batch_size=2000)
        while not self._stop.is_set():
            records = [record(self.acknowledged + i) for i in range(100)]
            self._client.send(plain, "plain", records)
            self._client.send(plain, "flipped", records)
            self._client.send(zstd, "zstd", records)
            ending.begin()
            ending.send("ended", records)
            ending.end("abort" if self.acknowledged % 300 else "commit")
            self.acknowledged += len(records)
        ending.begin()
        ending.send("ended", records)
        self._client.forget(plain)
        self._client.forget(zstd)
        self._client.forget(ending._producer)

    def run(self) -> None:
        """Write for a while; the last transaction stays open."""
        self._thread.start()
        until = time.monotonic() + 60
        while self.acknowledged < 800 and time.monotonic() < until:
            time.sleep(0.1)
        self._stop.set()
        self._thread.join()


@pytest.fixture(scope="module")
def killed(new_version: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Broker, Path, int]:
    """A broker that was killed under load, a copy of its directory, and acknowledged records."""
    directory = tmp_path_factory.mktemp("kafka")
    # Or it dies before it has ever checkpointed a recovery point.
    settings = {"log.initial.task.delay.ms": 100, "log.flush.offset.checkpoint.interval.ms": 100}
    broker = Broker(directory / "kafka", new_version, settings=settings)
    with broker, JavaClient(broker) as client:
        load = Load(client)
        load.run()
        broker.kill()
    shutil.copytree(broker.log_dir, directory / "left")
    return broker, directory / "left", load.acknowledged


def put(broker: Broker, directory: Path) -> None:
    """Make a copy of `directory` the broker's directory."""
    shutil.rmtree(broker.log_dir)
    shutil.copytree(directory, broker.log_dir)


def lines_since(broker: Broker, size: int) -> str:
    """The output of the broker after byte `size`."""
    return broker.output.read_bytes()[size:].decode(errors="replace")


def contents(partition: Path) -> dict[str, bytes]:
    """Bytes of a partition's files.

    An epoch at the log end is left out: the next leader began it.
    """
    log = segmentlog.open_log_dir(partition).log(partition.name[:-2], 0)
    found = {}
    for path in sorted(partition.iterdir()):
        if path.suffix in {".broken", ".deleted"}:  # cut bytes, which we keep
            continue
        found[path.name] = path.read_bytes()
        if path.name == "leader-epoch-checkpoint":
            lines = path.read_text().splitlines()[2:]
            kept = [line for line in lines if int(line.split()[1]) < log.log_end_offset]
            found[path.name] = "\n".join(kept).encode()
    return found


def harm(directory: Path) -> None:
    """Damage a directory as a crash may: a batch cut short, flipped bits, indexes of any kind.

    In the last topic, a segment before another one is damaged, and the recovery point is lost. The
    other topics are recovered from their recovery points.
    """
    for topic in ("plain", "zstd", "ended"):
        last = max((directory / f"{topic}-0").glob("*.log"))
        os.truncate(last, last.stat().st_size - 7)
    indexes = sorted((directory / "plain-0").glob("*.index"))
    indexes[-1].write_bytes(os.urandom(4099))
    indexes[0].unlink()
    max((directory / "zstd-0").glob("*.timeindex")).unlink()
    for path in (directory / "ended-0").glob("*.snapshot"):
        path.write_bytes(path.read_bytes()[:-1])

    logs = sorted((directory / "flipped-0").glob("*.log"))
    data = bytearray(logs[-2].read_bytes())
    # The last byte of a batch.  Some bits of a header, such as those of the last offset delta,
    # kill the broker: it takes the segment for one whose offsets have to be split.
    end = 0
    while end < len(data) // 2:
        end += 12 + int.from_bytes(data[end + 8 : end + 12], "big")
    data[end - 1] ^= 1
    logs[-2].write_bytes(data)
    checkpoint = directory / "recovery-point-offset-checkpoint"
    kept = [line for line in checkpoint.read_text().splitlines()[2:] if "flipped" not in line]
    assert len(kept) >= 3
    checkpoint.write_text("\n".join(["0", str(len(kept)), *kept, ""]))


@pytest.mark.thorough
@pytest.mark.parametrize("is_harmed", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_killed_brokers_directory_is_recovered_to_the_brokers_bytes(
    killed: tuple, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_harmed: bool
) -> None:
    """Logs, indexes, snapshots and epochs are equal.

    The broker starts on our directory as after a clean stop.
    """
    broker, left, acknowledged = killed
    source = tmp_path / "harmed"
    shutil.copytree(left, source)
    if is_harmed:
        harm(source)
    ours = tmp_path / "ours"
    shutil.copytree(source, ours)
    # Whole batches follow the flipped bit, and other logs end below their high watermarks.
    run("recover", ours, status=3 if is_harmed else 0)
    *findings, counts = run("verify", ours).splitlines()
    # A starting broker drops the snapshots that are harmed, and so a recovery leaves them.
    warned = [line for line in findings if line.startswith("warning ")]
    dropped = re.compile(rf"warning start-drops: {re.escape(str(ours))}/\S+\.snapshot\b")
    assert [] == [line for line in warned if not dropped.match(line)]
    assert f": 0 errors, {len(warned)} warnings, " in counts
    assert is_harmed or not warned
    put(broker, source)
    broker.start()
    broker.stop()
    for topic in TOPICS:
        theirs, found = (contents(each / f"{topic}-0") for each in (broker.log_dir, ours))
        # If a segment below the recovery point has lost an index, a broker loads producers from
        # before the segment, and deletes all later snapshots (``truncateAndReload``).
        lost = {name for name in found.keys() - theirs.keys() if name.endswith(".snapshot")}
        assert is_harmed or not lost
        before = contents(source / f"{topic}-0")
        assert theirs.keys() == found.keys() - lost, topic
        # Names alone: the difference of megabytes takes longer to show than a test may last.
        assert [] == [name for name in theirs if theirs[name] != found[name]], topic
        assert [] == [name for name in lost if before[name] != found[name]], topic

    put(broker, ours)
    monkeypatch.setenv("JDK_JAVA_OPTIONS", LOUD)
    seen = broker.output.stat().st_size
    with broker, JavaClient(broker) as client:
        served = client.consume_each(TOPICS)
        client.produce("plain", [record(0)])
    assert re.search("Skipping recovery of .* since clean shutdown", lines_since(broker, seen))
    if not is_harmed:
        assert min(map(len, served.values())) >= acknowledged


FAR = 2**31 + 100


def far_segment(topic: Path) -> list[int]:
    """Fill a topic's only segment with three parts that are 2^31 offsets apart; its offsets."""
    starts = [base + i for base in (3, FAR, 3 * FAR) for i in range(0, 50, 10)]
    batches = [
        encode_batch([Record(o, 10**12 + o % 100, b"k", b"%d" % o) for o in range(at, at + 10)])
        for at in starts
    ]
    (topic / f"{0:020d}.log").write_bytes(b"".join(batches))
    return [o for at in starts for o in range(at, at + 10)]


@pytest.mark.slow
def test_a_segment_is_split_and_served_as_by_a_broker(new_version: str, tmp_path: Path) -> None:
    """A segment whose indexes cannot hold its offsets: files are equal, and all records come."""
    broker = Broker(tmp_path / "kafka", new_version)
    with broker, JavaClient(broker) as client:
        client.create_topic("far")
    offsets = far_segment(broker.log_dir / "far-0")
    (broker.log_dir / ".kafka_cleanshutdown").unlink()
    checkpoint = broker.log_dir / "replication-offset-checkpoint"
    lines = [line for line in checkpoint.read_text().splitlines()[2:] if "far" not in line]
    lines.append(f"far 0 {offsets[-1] + 1}")
    checkpoint.write_text("\n".join(["0", str(len(lines)), *lines, ""]))
    ours = tmp_path / "ours"
    shutil.copytree(broker.log_dir, ours)
    scanned = segmentlog.open_log_dir(ours).log("far", 0).scan(columns=["offset"]).read_all()
    assert offsets == scanned["offset"].to_pylist()
    assert f"at the offsets 3, {FAR}, {3 * FAR}: " in run("recover", ours)
    # No broker leaves such offsets in a topic that it never compacts: all between them look lost.
    findings = [each.kind for each in segmentlog.verify(ours) if each.severity != "note"]
    assert 2 * ["missing-segment"] == findings
    broker.start()
    broker.stop()
    assert contents(broker.log_dir / "far-0") == contents(ours / "far-0")
    assert 3 == len([*(ours / "far-0").glob("*.log")])

    put(broker, ours)
    with broker, JavaClient(broker) as client:
        assert offsets == [each.offset for each in client.consume("far")]
        client.produce("far", [record(0)])
        assert offsets[-1] + 1 == client.consume("far")[-1].offset


@pytest.mark.slow
def test_a_broker_starts_on_files_that_were_derived(new_version: str, tmp_path: Path) -> None:
    """It refuses the damaged files; after a recovery, it serves all records of all topics."""
    settings = {"metadata.log.max.record.bytes.between.snapshots": 500}
    broker = Broker(tmp_path / "kafka", new_version, settings=settings)
    topics = ("first", "second")
    with broker, JavaClient(broker) as client:
        for topic in topics:
            client.create_topic(topic)
            client.produce(topic, [record(i) for i in range(50)])
    left = tmp_path / "left"
    shutil.copytree(broker.log_dir, left)
    (left / ".kafka_cleanshutdown").unlink()
    ids = {path: path.read_bytes() for path in left.glob("*/partition.metadata")}
    epochs = {path: path.read_bytes() for path in left.glob("*-0/leader-epoch-checkpoint")}
    snapshots = sorted((left / "__cluster_metadata-0").glob("*.checkpoint"))
    assert len(snapshots) > 1
    data = bytearray(snapshots[-1].read_bytes())
    data[100:600] = bytes(500)
    snapshots[-1].write_bytes(data)
    metadata = left / "__cluster_metadata-0"
    for name in ("recovery-point", "log-start", "cleaner", "replication"):
        (left / f"{name}-offset-checkpoint").write_bytes(bytes(30))
    for path in [
        left / "first-0" / "leader-epoch-checkpoint",
        left / "second-0" / "partition.metadata",
        metadata / "leader-epoch-checkpoint",
        metadata / "partition.metadata",
    ]:
        path.write_bytes(bytes(path.stat().st_size))
    (left / "first-0" / "partition.metadata").unlink()
    put(broker, left)
    with pytest.raises(RuntimeError, match="the broker stopped at start-up"):
        broker.start()

    said = run("recover", left)
    assert "4 checkpoints replaced, 2 files of leader epochs built, 3 topic ids written" in said
    assert "1 metadata snapshot put aside" in said
    assert ids == {path: path.read_bytes() for path in left.glob("*/partition.metadata")}
    assert epochs == {path: path.read_bytes() for path in left.glob("*-0/leader-epoch-checkpoint")}
    put(broker, left)
    with broker, JavaClient(broker) as client:
        served = client.consume_each(topics)
    assert [50, 50] == [len(served[topic]) for topic in topics]
    assert [] == [*broker.log_dir.glob("*-stray")]


def offsets_of(directory: Path) -> list[int]:
    """All offsets of a topic."""
    read = segmentlog.read(directory, "plain", columns=["offset"], read_up_to="logEnd")
    return read["offset"].to_pylist()


@pytest.mark.thorough
@pytest.mark.parametrize("is_clean", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_salvaged_log_is_served_by_a_broker(
    killed: tuple, tmp_path: Path, *, is_clean: bool
) -> None:
    """A broker loads a log without its damaged batches, and returns all others.

    After an unclean stop it reads all of this log again, and cuts nothing off.
    """
    broker, left, _ = killed
    ours = tmp_path / "ours"
    shutil.copytree(left, ours)
    run("recover", ours)
    before = offsets_of(ours)
    log = sorted((ours / "plain-0").glob("*.log"))[0]
    with log.open("r+b") as file:
        file.seek(log.stat().st_size // 2)
        file.write(bytes(4096))
    (ours / ".kafka_cleanshutdown").unlink()
    run("recover", ours, "--on-corrupt-batch", "skip", status=3)
    assert "0 errors, 0 warnings" in run("verify", ours)
    kept = offsets_of(ours)
    assert 0 < len(before) - len(kept) < 100
    assert before[-1] == kept[-1]
    if not is_clean:
        (ours / ".kafka_cleanshutdown").unlink()
        (ours / "recovery-point-offset-checkpoint").unlink()
    put(broker, ours)
    with broker, JavaClient(broker) as client:
        served = client.consume_each(["plain"])["plain"]
        assert kept == [each.offset for each in served]
        client.produce("plain", [record(0)])


def test_a_broker_that_does_not_stop_is_no_clean_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The support raises an error when it has to kill a broker.

    Later tests rely on the clean stop.
    """
    monkeypatch.setattr("kafka_here.broker._STOP_SECONDS", 0.1)
    code = "import signal; signal.signal(15, signal.SIG_IGN); print(flush=True); signal.pause()"
    broker = Broker(tmp_path)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        broker._process = process
        with pytest.raises(RuntimeError, match=r"no clean stop in 0\.1 s, so it was killed"):
            broker.stop()

    assert -signal.SIGKILL == process.returncode
