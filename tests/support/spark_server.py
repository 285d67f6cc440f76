"""A Spark Connect server in a separate process, whose executors are processes, too."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pyspark
from ports import free_port
from ready_worker import ready_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SERVER = """
import sys
from pyspark.sql import SparkSession
settings = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": sys.argv[2],
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    **dict(each.split("=", 1) for each in sys.argv[3:]),
}
session = SparkSession.builder.master(sys.argv[1]).config(map=settings).getOrCreate()
session.sparkContext.setLogLevel("OFF")
print("ready", flush=True)
sys.stdin.read()  # until the process that has started it ends
session.stop()
"""


class SparkServer:
    """A server that starts at the beginning of a ``with`` block and stops at its end.

    `master`: as in Spark's settings. `directory`: for what Spark leaves: its home, which is
    pyspark's own in everything else. `settings`: further ones of Spark.
    """

    def __init__(
        self, master: str, directory: Path, settings: Mapping[str, str] | None = None
    ) -> None:
        self._port = free_port()
        given = [f"{name}={value}" for name, value in (settings or {}).items()]
        self._command = [sys.executable, "-c", _SERVER, master, str(self._port), *given]
        self._output = directory / "spark.out"
        self._home = directory / "spark-home"
        self._home.mkdir()
        self._python = ready_python()
        for path in Path(pyspark.__file__).parent.iterdir():
            if path.name != "work":  # where executors of a local cluster run
                (self._home / path.name).symlink_to(path)

    def __enter__(self) -> Self:
        places = {"SPARK_HOME": str(self._home), "PYSPARK_PYTHON": self._python}
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                self._command,
                env={**os.environ, **places},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
            )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            self.__exit__()
            raise RuntimeError(f"Spark did not start:\n{self._output.read_text()[-2000:]}")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def session(self) -> "SparkSession":
        """A new session, which the caller stops."""
        from pyspark.sql.connect.session import SparkSession

        return SparkSession.builder.remote(self.url).create()  # type: ignore[return-value]

    @property
    def url(self) -> str:
        """The server's address for clients of other processes."""
        return f"sc://127.0.0.1:{self._port}"
