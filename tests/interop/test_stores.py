"""Copies of log directories in servers of stores other than S3, read by URL."""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import pytest
from kafka_here import ArtifactsError
from kafka_here.artifacts import azurite, fake_gcs_server, hdfs_jars, java
from ports import free_port
from pyarrow.fs import AzureFileSystem, LocalFileSystem, copy_files
from pyspark.sql import SparkSession
from quick_java import FLAGS

import segmentlog
from segmentlog import open_log_dir
from segmentlog.errors import LogDirectoryError, StorageError

_SECONDS = 60
_BUCKET = "logs"

#: The account of Azurite, and its key, which are the same everywhere.
_ACCOUNT = "devstoreaccount1"
_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq"
    "/K1SZFPTOtr/KBHBeksoGMGw=="
)  # fmt: skip


class StoreServer:
    """A server with a directory in its bucket; a context that stops it.

    Parameters
    ----------
    directory : the log directory, or the tier, that is copied.

    Raises
    ------
    ArtifactsError
        If its program cannot be had.
    """

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.authority = f"127.0.0.1:{self.port}"
        self._stack = contextlib.ExitStack()
        self._files = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        try:
            self._begin(directory)
        except BaseException:
            self._stack.close()
            raise

    def _begin(self, directory: Path) -> None:
        """Start the server, and copy the directory."""
        raise NotImplementedError

    def url(self, key: str) -> str:
        """The URL of a directory in the bucket."""
        raise NotImplementedError

    def _run(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start a program, and wait until it accepts connections."""
        log = self._files / "log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=self._files,
                env={**os.environ, **(environment or {})},
            )  # fmt: skip
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        until = time.monotonic() + _SECONDS
        while not self._is_up():
            if process.poll() is not None or time.monotonic() > until:
                message = f"{command[0]} does not answer:\n{log.read_text()[-2000:]}"
                raise RuntimeError(message)
            time.sleep(0.05)

    def _is_up(self) -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port)).close()
            return True
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()


class GoogleServer(StoreServer):
    """Google Cloud Storage: `fake-gcs-server`."""

    def _begin(self, directory: Path) -> None:
        shutil.copytree(directory, self._files / "data" / _BUCKET / "kafka")
        self._run(
            [
                str(fake_gcs_server()), "-backend", "memory", "-scheme", "http",
                "-host", "127.0.0.1", "-port", str(self.port), "-public-host", self.authority,
                "-data", str(self._files / "data"),
            ]
        )  # fmt: skip

    def url(self, key: str) -> str:
        options = f"scheme=http&endpoint_override={self.authority}&retry_limit_seconds=5"
        return f"gs://anonymous@{_BUCKET}/{key}?{options}"


class AzureServer(StoreServer):
    """Azure Blob Storage: Azurite."""

    def _begin(self, directory: Path) -> None:
        self._run(
            [
                "node", str(azurite()), "--silent", "--inMemoryPersistence",
                "--blobHost", "127.0.0.1", "--blobPort", str(self.port),
                "--skipApiVersionCheck", "--disableTelemetry",
            ]
        )  # fmt: skip
        store = AzureFileSystem(
            account_name=_ACCOUNT, account_key=_KEY,
            blob_storage_authority=self.authority, dfs_storage_authority=self.authority,
            blob_storage_scheme="http", dfs_storage_scheme="http",
        )  # fmt: skip
        store.create_dir(_BUCKET)
        copy_files(
            str(directory), f"{_BUCKET}/kafka", source_filesystem=LocalFileSystem(),
            destination_filesystem=store, use_threads=False,
        )  # fmt: skip

    def url(self, key: str) -> str:
        secret = quote(_KEY, "")
        return f"abfs://{_ACCOUNT}:{secret}@{self.authority}/{_BUCKET}/{key}?enable_tls=false"

    def hadoop_url(self, key: str) -> str:
        """The URL in Hadoop's form, with the key as an option."""
        given = f"account_key={quote(_KEY, '')}&enable_tls=false"
        servers = f"blob_storage_authority={self.authority}&dfs_storage_authority={self.authority}"
        return f"abfs://{_BUCKET}@{_ACCOUNT}.dfs.core.windows.net/{key}?{given}&{servers}"


class HdfsServer(StoreServer):
    """HDFS with one node of data, over HTTP (WebHDFS)."""

    def _begin(self, directory: Path) -> None:
        import fsspec
        import pyspark

        jars = [f"{Path(pyspark.__file__).parent}/jars/*", f"{hdfs_jars()}/*"]
        self._run(
            [
                java(), *FLAGS, "-Xmx512m", "-cp", ":".join(jars),
                "org.apache.hadoop.mapreduce.MiniHadoopClusterManager", "-format", "-nomr",
                "-nnhttpport", str(self.port), "-datanodes", "1",
                "-writeConfig", str(self._files / "running.xml"),
                "-D", f"hadoop.tmp.dir={self._files}",
                "-D", "dfs.namenode.rpc-bind-host=127.0.0.1",
            ],
            {"HADOOP_USER_NAME": "hdfs"},
        )  # fmt: skip
        store = fsspec.filesystem("webhdfs", host="127.0.0.1", port=self.port, user="hdfs")
        store.put(str(directory), "/kafka", recursive=True)

    def _is_up(self) -> bool:
        # The file is written once the name node is no longer in its safe mode.
        path = self._files / "running.xml"
        return path.exists() and path.read_bytes().rstrip().endswith(b"</configuration>")

    def url(self, key: str) -> str:
        return f"webhdfs://{self.authority}/{key}?user=hdfs"


pytestmark = [pytest.mark.interop, pytest.mark.slow]

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(GoogleServer, id="gs"),
        pytest.param(AzureServer, id="abfs"),
        pytest.param(HdfsServer, id="webhdfs"),
    ],
)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StoreServer]:
    """A server with a copy of the examples: the data of a broker, and a tier."""
    copied = tmp_path_factory.mktemp("copied")
    shutil.copytree(EXAMPLES / "data", copied / "data")
    shutil.copytree(EXAMPLES / "tier" / "bucket", copied / "tier")
    try:
        running = request.param(copied)
    except (ArtifactsError, ImportError) as error:
        pytest.skip(f"the server cannot be had: {error}")
    with running:
        yield running


def test_every_partition_is_read_as_on_a_disk(server: StoreServer) -> None:
    """Rows, bounds, ids and look-ups by time are those of the directory that was copied."""
    remote, local = open_log_dir(server.url("kafka/data")), open_log_dir(EXAMPLES / "data")

    assert remote.topic_partitions() == local.topic_partitions()
    for topic_partition in local.topic_partitions():
        there, here = remote.log(*topic_partition), local.log(*topic_partition)
        assert (there.log_start_offset, there.end_offset()) == (
            here.log_start_offset, here.end_offset()
        )  # fmt: skip
        assert there.topic_id == here.topic_id
        rows = here.scan(include_headers=True).read_all()
        assert rows == there.scan(include_headers=True).read_all()
        if rows.num_rows:
            middle = rows["timestamp"][rows.num_rows // 2].as_py()
            assert here.offset_for_timestamp(middle) == there.offset_for_timestamp(middle)
    counts = {
        each.log("payments", 0).scan(isolation_level="read_committed").read_all().num_rows
        for each in (remote, local)
    }
    assert len(counts) == 1


def test_a_tier_is_joined_with_a_log_directory(server: StoreServer) -> None:
    """The tier lies in the store, and the log directory on this disk."""
    tier: dict[str, Any] = {"remote_storage": server.url("kafka/tier")}
    logs = EXAMPLES / "tier" / "logs"

    expected = segmentlog.read(logs, "visits", remote_storage=EXAMPLES / "tier" / "bucket")
    assert 600 == expected.num_rows
    assert expected == segmentlog.read(logs, "visits", **tier)
    assert [] == segmentlog.verify(logs, topics="visits", **tier)


def test_a_copy_is_sound(server: StoreServer) -> None:
    """A verification reads all files of the copy, and finds what it finds on the disk."""
    found, expected = (
        [(each.kind, each.offset) for each in segmentlog.verify(path, topics="orders")]
        for path in (server.url("kafka/data"), EXAMPLES / "data")
    )
    assert expected == found


def test_a_missing_directory(server: StoreServer) -> None:
    """The message names the URL without its credentials."""
    with pytest.raises((LogDirectoryError, StorageError)) as caught:
        open_log_dir(server.url("kafka/nothing")).topics()

    assert "no such file or directory" in str(caught.value)
    assert "devstoreaccount1" not in str(caught.value)


def test_spark_reads_a_copy(server: StoreServer, spark: SparkSession) -> None:
    """The tasks open the objects by themselves, with the credentials of the URL."""
    found = spark.read.format("segmentlog").load(server.url("kafka/data"))

    assert 1062 == found.count()


def test_a_url_in_the_form_of_hadoop(server: StoreServer) -> None:
    """The account is in the name of the server, and its key is an option."""
    if not isinstance(server, AzureServer):
        pytest.skip("Azure alone has this form")
    remote = open_log_dir(server.hadoop_url("kafka/data"))

    assert 335 == remote.log("orders", 0).scan().read_all().num_rows
