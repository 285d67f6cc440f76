"""Brokers of one version on loopback, in separate directories; whole partitions as they dump them.

A broker is a single KRaft node, or one of Kafka 2 with the ZooKeeper that it needs.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from ports import free_port
from quick_java import FLAGS

from kafka_here.artifacts import VERSION, ClassData, java, kafka_jars, kept, logging_jars
from kafka_here.gateway import gateway

_START_SECONDS = _STOP_SECONDS = 180  # on a machine with much else to do
_SESSION_MS = 6000  # of ZooKeeper
_STARTING = ("kafka.server.KafkaRaftServer", "kafka.server.KafkaServer")  #: loggers
_LOG4J = """\
log4j.rootLogger=OFF, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.SimpleLayout
log4j.logger.kafka.log.LogManager=WARN
log4j.logger.kafka.server.ReplicaManager=WARN
""" + "".join(f"log4j.logger.{each}=INFO\n" for each in _STARTING)  #: for versions before 4.0
_STARTED = re.compile(rb"Kafka Server started|KafkaServer id=\d+\] started")


class Broker:
    """A broker that can be started, stopped, killed and started again on the same directories.

    `directory`: where its log directories, settings and output go. `version`: of Apache Kafka.
    `n_log_dirs`: how many log directories it has. `settings`: broker settings on top of what a
    single node needs. `libraries`: directories of more jars, such as a plugin's. `is_measured`:
    whether it is to be fast; others start in two thirds of the time.
    """

    cluster_id = "segmentlogTestCluster1"

    def __init__(
        self,
        directory: Path,
        version: str = VERSION,
        n_log_dirs: int = 1,
        settings: Mapping[str, object] | None = None,
        *,
        libraries: Sequence[Path] = (),
        is_measured: bool = False,
    ) -> None:
        self.version = version
        self._libraries = libraries
        self.jars = kafka_jars(version)
        self.directory = directory
        self.log_dirs = [directory / f"logs{i}" for i in range(n_log_dirs)]
        self.output = directory / "broker.out"
        self._settings = dict(settings or {})
        self._java_options = [] if is_measured else list(FLAGS)
        self._class_data = ClassData(f"kafka-{version}", [self.jars, logging_jars(), *libraries])
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def log_dir(self) -> Path:
        """The first log directory."""
        return self.log_dirs[0]

    @property
    def bootstrap_servers(self) -> str:
        """Its address for clients."""
        return f"localhost:{self.port}"

    @property
    def is_running(self) -> bool:
        """Whether its process is alive."""
        return self._process is not None and self._process.poll() is None

    def _needed_settings(self) -> dict[str, object]:
        """The settings of a single node, on new ports."""
        self.port, controller = free_port(), free_port()
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@localhost:{controller}",
            "listeners": f"PLAINTEXT://localhost:{self.port},CONTROLLER://localhost:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            # The controller lets a killed broker come back when it has missed it for so long.
            "broker.session.timeout.ms": 3000,
            "broker.heartbeat.interval.ms": 500,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "log.message.timestamp.after.max.ms": 2**63 - 1,
        }

    def _write_settings(self) -> Path:
        settings: dict[str, object] = {
            "log.dirs": ",".join(map(str, self.log_dirs)),
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 3,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 3,
            "group.initial.rebalance.delay.ms": 0,
            "auto.create.topics.enable": "false",
            "log.cleaner.dedupe.buffer.size": 4 << 20,
            "log.cleaner.backoff.ms": 200,
            # Records of tests carry old timestamps: retention by time would delete them at once.
            "log.retention.ms": -1,
            # A running broker writes moved log starts every minute; tests do not wait for that.
            "log.flush.start.offset.checkpoint.interval.ms": 300,
        }
        settings |= self._needed_settings() | self._settings
        path = self.directory / "server.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path

    def _prepare(self, settings: Path) -> None:
        """Format its log directories, once; a single directory is copied from a formatted one."""
        if (self.log_dir / "meta.properties").exists():
            return
        if len(self.log_dirs) > 1:
            self.format(settings)
            return

        def make(into: Path) -> None:
            given = settings.read_text().replace(str(self.log_dir), str(into))
            elsewhere = self.directory / "format.properties"
            elsewhere.write_text(given)
            self.format(elsewhere)

        formatted = kept(f"formatted-{self.version}", make)
        shutil.copytree(formatted, self.log_dir, dirs_exist_ok=True)

    def format(self, settings: Path, *options: str) -> None:
        """Format the log directories of a file of settings."""
        command = self._command(
            "kafka.tools.StorageTool",
            "format",
            "-t",
            self.cluster_id,
            "-c",
            str(settings),
            *options,
        )
        done = subprocess.run(command, capture_output=True, timeout=60, check=False)
        if done.returncode:
            message = f"the directory cannot be formatted: {done.stderr.decode()[-2000:]}"
            raise RuntimeError(message)

    def _command(self, main: str, *arguments: str, class_data: Sequence[str] = ()) -> list[str]:
        options = ["-Xmx512m", "-XX:+UseSerialGC", *self._java_options, *class_data]
        options.append("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
        options.append(f"-Dlog4j.configuration=file:{self.directory / 'log4j.properties'}")
        options += [f"-Dorg.slf4j.simpleLogger.log.{each}=info" for each in _STARTING]
        jars = (self.jars, logging_jars(), *self._libraries)
        classpath = ":".join(f"{each}/*" for each in jars)
        return [java(), *options, "-cp", classpath, main, *arguments]

    def prepare(self) -> Path:
        """Format its log directories, without a start; return its settings."""
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "log4j.properties").write_text(_LOG4J)
        settings = self._write_settings()
        self._prepare(settings)
        return settings

    def start(self) -> Self:
        """Start it and wait until it has started."""
        settings = self.prepare()
        flags = self._class_data.flags() if self._java_options else ()
        with self.output.open("ab") as output:
            n_bytes = output.tell()
            self._process = subprocess.Popen(
                self._command("kafka.Kafka", str(settings), class_data=flags),
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
            )
        self._wait_until_up(n_bytes)
        return self

    def _wait_until_up(self, n_bytes: int) -> None:
        """Wait for the line that a broker writes at the end of its start, after `n_bytes`.

        Its port is open a moment before.  A broker that was stopped in that moment closed none of
        its logs.
        """
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if not self.is_running:
                self._class_data.keep(is_whole=False)  # it has not loaded all classes
                message = f"the broker stopped at start-up:\n{self.tail()}"
                raise RuntimeError(message)
            with self.output.open("rb") as output:
                output.seek(n_bytes)
                if _STARTED.search(output.read()):
                    return
            time.sleep(0.1)
        self.kill()
        message = f"the broker did not start in {_START_SECONDS} s:\n{self.tail()}"
        raise RuntimeError(message)

    def tail(self) -> str:
        """The end of its output."""
        return self.output.read_text(errors="replace")[-4000:] if self.output.exists() else ""

    def stop(self) -> None:
        """Stop it cleanly, by its process id.

        Raises `RuntimeError` if that takes too long: then it is killed, and its directories are
        not cleanly shut.
        """
        if not self._end(signal.SIGTERM):
            message = f"no clean stop in {_STOP_SECONDS} s, so it was killed:\n{self.tail()}"
            raise RuntimeError(message)

    def kill(self) -> None:
        """Kill it, so that it cannot write anything."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> bool:
        """Send a signal, and wait; False if the process had to be killed."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return True
        os.kill(process.pid, number)
        try:
            process.wait(_STOP_SECONDS)
            has_ended = True
        except subprocess.TimeoutExpired:
            has_ended = False
            process.kill()
            process.wait()
        self._class_data.keep(is_whole=process.returncode != -signal.SIGKILL)
        return has_ended

    def __enter__(self) -> Self:
        return self if self.is_running else self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def dump(self, paths: Sequence[Path]) -> str:
        """The output of Kafka's own dump tool for segment files, records included."""
        main = "kafka.tools.DumpLogSegments"
        if self.version[0] != "2":
            main = "org.apache.kafka.tools.DumpLogSegments"
            if self.version.startswith("3"):
                main = "kafka.tools.DumpLogSegments"
        files = ",".join(map(str, paths))
        return gateway(self.jars).run(main, "--deep-iteration", "--files", files)


class OldBroker(Broker):
    """A broker that writes the message format that a topic's ``message.format.version`` names.

    ``0.9.0`` is magic 0, ``0.10.2`` magic 1, ``2.8`` magic 2.

    `directory`: where its log directory, ZooKeeper's data, settings and output go. `version`: of
    Apache Kafka. `settings`: broker settings on top of what a single node needs.
    """

    def __init__(
        self,
        directory: Path,
        version: str = "2.8.2",
        settings: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(directory, version, 1, settings)
        self._zookeeper: subprocess.Popen[bytes] | None = None
        self._zookeeper_port = 0
        self._was_killed = False

    def _needed_settings(self) -> dict[str, object]:
        self.port = free_port()
        return {
            "broker.id": 1,
            "zookeeper.connect": f"localhost:{self._zookeeper_port}",
            "zookeeper.session.timeout.ms": _SESSION_MS,
            "listeners": f"PLAINTEXT://localhost:{self.port}",
        }

    def _prepare(self, _: Path) -> None:
        """Do nothing: a broker without KRaft formats its directory itself."""

    def start(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._start_zookeeper()
        if self._was_killed:
            # Its registration outlives it by a session, and a second one is refused until then.
            time.sleep(_SESSION_MS / 1000 + 1)
        self._was_killed = False
        try:
            return super().start()
        except BaseException:
            self._stop_zookeeper()
            raise

    def _start_zookeeper(self) -> None:
        self._zookeeper_port = free_port()
        settings = {
            "dataDir": self.directory / "zookeeper",
            "clientPort": self._zookeeper_port,
            "clientPortAddress": "localhost",
            "admin.enableServer": "false",
            "tickTime": 1000,
        }
        path = self.directory / "zookeeper.cfg"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        with (self.directory / "zookeeper.out").open("ab") as output:
            self._zookeeper = subprocess.Popen(
                self._command(main, str(path)),
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
            )
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self._zookeeper.poll() is None:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("localhost", self._zookeeper_port), timeout=1),
            ):
                return
            time.sleep(0.1)
        self._stop_zookeeper()
        message = f"ZooKeeper did not start: {(self.directory / 'zookeeper.out').read_text()}"
        raise RuntimeError(message)

    def _stop_zookeeper(self) -> None:
        process, self._zookeeper = self._zookeeper, None
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def stop(self) -> None:
        try:
            super().stop()
        finally:
            self._stop_zookeeper()

    def kill(self) -> None:
        super().kill()
        self._stop_zookeeper()
        self._was_killed = True


def assert_dump_is_sound(broker: Broker, *patterns: str, every: int = 1) -> None:
    """It reads every log and every index, and finds nothing wrong.

    `broker`: whose log directory it reads. `patterns`: of the names of partition directories.
    `every`: of how many ``.log`` files of a pattern one is read.
    """
    logs = [path for each in patterns for path in _files(broker, each, "*.log")[::every]]
    indexes = [path for each in patterns for path in _files(broker, each, "*index")]
    dump, dump_of_indexes = broker.dump(logs), broker.dump(indexes)

    assert len(logs) == dump.count("Dumping ")
    assert "isvalid: true" in dump
    assert "isvalid: false" not in dump
    assert len(indexes) == dump_of_indexes.count("Dumping ")
    assert "ismatch" not in dump_of_indexes


def objections(broker: Broker) -> list[str]:
    """Warnings and errors that the broker has printed about its log directory."""
    return [
        line
        for line in broker.output.read_text().splitlines()
        if (" WARN " in line or " ERROR " in line)
        and ("storage.internals" in line or "kafka.log" in line)
        and "`log.cleaner.enable` is deprecated" not in line
    ]


def _files(broker: Broker, pattern: str, name: str) -> list[Path]:
    return sorted(broker.log_dir.glob(f"{pattern}/{name}"))
