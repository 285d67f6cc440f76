"""Sail's server in a process of its own, which a test may kill."""

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SailServer"]

_SERVER = """
import sys
from pysail.spark import SparkConnectServer
server = SparkConnectServer()
server.start(background=True)
print(server.listening_address[1], flush=True)
sys.stdin.read()  # until the process that has started it ends
"""


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
        from pyspark.sql.connect.session import SparkSession as Session

        from pyspark_segmentlog import register

        session: Any = Session.builder.remote(f"sc://127.0.0.1:{self._port}").create()
        register(session)  # waits until the server listens
        session.client.set_retry_policies([])  # it would wait minutes for one that was killed
        return cast("SparkSession", session)

    def end(self) -> None:
        """End the process, if it has not been killed."""
        self.process.communicate()
