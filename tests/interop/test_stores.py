"""Copies of log directories in servers of stores other than S3, read by URL."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka_here import ArtifactsError
from kafka_here.artifacts import hdfs_jars, java
from pyspark.sql import SparkSession
from quick_java import FLAGS
from store_servers import AzureServer, GoogleServer, StoreServer

import segmentlog
from segmentlog import open_log_dir
from segmentlog.errors import LogDirectoryError, StorageError


class HdfsServer(StoreServer):
    """HDFS with one node of data, over HTTP (WebHDFS)."""

    def _begin(self, directory: Path | None) -> None:
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
            here.log_start_offset,
            here.end_offset(),
        )
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
