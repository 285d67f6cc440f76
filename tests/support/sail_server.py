"""Sail's server for tests: in this process, or in one that a test may kill."""

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SailServer", "sail_session"]

_SERVER = """
import sys
from pysail.spark import SparkConnectServer
server = SparkConnectServer()
server.start(background=True)
print(server.listening_address[1], flush=True)
sys.stdin.read()  # until the process that has started it ends
"""


def sail_session() -> "SparkSession":
    """A session of a server in this process, which ends with it."""
    from pysail.spark import SparkConnectServer

    server = SparkConnectServer()
    server.start(background=True)
    _servers.append(server)  # one that is collected stops, and waits for its clients
    return _session(server.listening_address[1])


_servers: list[Any] = []


class SailServer:
    """A server in a process of its own.

    Parameters
    ----------
    settings : further environment variables, such as ``SAIL_MODE``.
    """

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _SERVER], env={**os.environ, **(settings or {})},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert self.process.stdout is not None
        self._port = int(self.process.stdout.readline())

    def session(self) -> "SparkSession":
        """A new session, which finds the data source."""
        return _session(self._port)

    def end(self) -> None:
        """End the process, if it has not been killed."""
        self.process.communicate()


def _session(port: int) -> "SparkSession":
    from pyspark.sql.connect.session import SparkSession

    from pyspark_segmentlog import register

    session: SparkSession = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").create()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    register(session)
    return session
