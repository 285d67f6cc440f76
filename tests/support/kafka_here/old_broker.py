"""A broker of Kafka 2 with the ZooKeeper that it needs: the last version to write magic 0, 1."""

import contextlib
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from ports import free_port

from kafka_here.broker import Broker

_START_SECONDS = 60
_SESSION_MS = 6000


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
