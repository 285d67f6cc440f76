"""Copies of log directories in an S3 server, read by URL."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from kafka_here import ArtifactsError
from plain_writes import write
from proxies import FAULTS, Fault, FaultyServer, Sent
from pyspark.sql import SparkSession
from store_servers import S3Server, s3_url
from typer.testing import CliRunner

from segmentlog import open_log_dir
from segmentlog.bucket.objects import MARKER
from segmentlog.errors import LogDirectoryError, StorageError
from segmentlog.store.remote import requests
from segmentlog.tools.cli import app

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def server(example_data: str) -> Iterator[S3Server]:
    """A server with a copy of the example data."""
    try:
        running = S3Server()
    except ArtifactsError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"S3Proxy cannot be had: {error}")
    with running:
        running.copy(Path(example_data), "kafka")
        yield running


@pytest.fixture
def store(server: S3Server) -> Iterator[FaultyServer]:
    """A new connection for each test, without any cached answers."""
    with FaultyServer(server.port) as proxy:
        yield proxy


def test_every_partition_is_read_as_on_a_disk(store: FaultyServer, example_data: str) -> None:
    """Rows, bounds and times are those of the directory that was copied."""
    remote, local = open_log_dir(s3_url(store.port, "kafka")), open_log_dir(example_data)

    assert remote.topic_partitions() == local.topic_partitions()
    for topic_partition in local.topic_partitions():
        there, here = remote.log(*topic_partition), local.log(*topic_partition)
        assert there.end_offset() == here.end_offset()
        assert there.topic_id == here.topic_id
        assert (
            there.scan(include_headers=True).read_all()
            == here.scan(include_headers=True).read_all()
        )
        assert (
            there.scan(isolation_level="read_committed").read_all()
            == here.scan(isolation_level="read_committed").read_all()
        )


def test_planning_is_a_listing_and_ends_and_a_scan_its_range(store: FaultyServer) -> None:
    """The proxy counts the requests, and none is repeated."""
    directory = open_log_dir(s3_url(store.port, "kafka"))
    marker = [each for each in store.requests if MARKER in each.target]
    assert ["GET"] == [each.method for each in marker]  # it is no log that is written here
    for each in marker:
        store.requests.remove(each)
    assert ["GET"] == [each.method for each in store.requests if each.is_listing]
    checkpoints = {"kafka/log-start-offset-checkpoint", "kafka/replication-offset-checkpoint"}
    assert checkpoints == {each.key for each in store.requests if not each.is_listing}
    assert len({(each.method, each.target) for each in store.requests}) == len(store.requests) == 5
    store.reset()

    log = directory.log("orders", 0)
    log.slices(log.log_start_offset, log.end_offset(), 128 << 20)
    assert {".index", ".log"} == {Path(each.key).suffix for each in store.requests}
    assert ["HEAD", "GET"] * 2 == [each.method for each in store.requests]
    store.reset()

    log.scan().read_all()
    assert [("HEAD", 0, 0), ("GET", 0, 6381), ("HEAD", 0, 0)] == [
        (each.method, each.begin, each.end) for each in store.requests
    ]


def test_large_reads_are_side_by_side(
    server: S3Server, store: FaultyServer, tmp_path: Path
) -> None:
    """Several pieces are under way, and each byte comes once."""
    write(tmp_path, pa.table({"value": [os.urandom(1 << 19) for _ in range(40)]}))
    server.copy(tmp_path, "large")
    log = open_log_dir(s3_url(store.port, "large")).log("t", 0)
    assert 40 == log.end_offset()
    store.reset()

    found = log.scan(use_threads=False).read_all()
    assert open_log_dir(tmp_path).log("t", 0).scan().read_all() == found

    ranges = sorted((each.begin, each.end) for each in store.requests if each.end)
    assert [0, *(end for _, end in ranges[:-1])] == [begin for begin, _ in ranges]
    assert log.size_bytes == ranges[-1][1]
    assert store.at_once >= 3


def on_reads(fault: Fault, times: int) -> Callable[[int, Sent], Fault | None]:
    """Spoil some reads of log files, and no other request."""
    left = [times]

    def choose(_number: int, sent: Sent) -> Fault | None:
        if not sent.end or not sent.key.endswith(".log") or not left[0]:
            return None
        left[0] -= 1
        return fault

    return choose


_FAULTS = ("500 before", "503 SlowDown", "cut within the answer", "reset after")


@pytest.mark.parametrize("fault", _FAULTS)
def test_a_fault_that_passes_is_not_noticed(
    store: FaultyServer, example_data: str, fault: str
) -> None:
    """Each failed request is repeated."""
    log = open_log_dir(s3_url(store.port, "kafka")).log("orders", 0)
    assert log.end_offset()
    store.choose = on_reads(FAULTS[fault], 1)

    assert log.scan().read_all() == open_log_dir(example_data).log("orders", 0).scan().read_all()


@pytest.mark.parametrize(
    "fault", [_FAULTS[0], *(pytest.param(each, marks=pytest.mark.slow) for each in _FAULTS[1:])]
)
def test_a_fault_that_stays_is_an_error(
    store: FaultyServer, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """The error has URL and bytes, and comes after a bounded number of requests."""
    monkeypatch.setattr(requests, "_TRIES", 1)  # the client repeats them as well
    log = open_log_dir(s3_url(store.port, "kafka")).log("orders", 0)
    assert log.end_offset()
    store.reset()
    store.choose = on_reads(FAULTS[fault], 100)

    with pytest.raises(
        StorageError, match=r"s3://logs.*\.log: reading bytes 0 to 6381 failed: AWS"
    ):
        log.scan().read_all()
    assert sum(each.end > 0 for each in store.requests) <= 4


def test_a_server_that_falls_silent_is_given_up(
    store: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error comes after the deadline, while the server is still silent."""
    log = open_log_dir(s3_url(store.port, "kafka")).log("orders", 0)
    assert log.end_offset()
    monkeypatch.setattr(requests, "_DEADLINE_SECONDS", 0.5)
    store.choose = on_reads(FAULTS["silent after"], 1)
    with pytest.raises(StorageError, match=r"took more than 0.5 s: check the network"):
        log.scan().read_all()


@pytest.mark.slow
def test_an_unreachable_store_is_no_missing_directory(
    store: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing server, bucket and directory are three different errors, without credentials."""
    monkeypatch.setattr(requests, "_TRIES", 1)
    url = "s3://AKIAKEY:topsecret@logs/kafka?endpoint_override=http://127.0.0.1:1"
    with pytest.raises(StorageError, match=r"^s3://logs.*Could not connect") as caught:
        open_log_dir(url)
    assert "AKIAKEY" not in str(caught.value)
    assert "topsecret" not in str(caught.value)
    with pytest.raises(StorageError, match="NO_SUCH_BUCKET"):
        open_log_dir(s3_url(store.port, "kafka").replace("//logs/", "//nobucket/"))
    with pytest.raises(LogDirectoryError, match="no such file or directory"):
        open_log_dir(s3_url(store.port, "nothing"))


def test_spark_reads_a_url_with_credentials(
    store: FaultyServer, spark: SparkSession, example_data: str
) -> None:
    """Tasks open the URL by themselves, and their slices do not contain its secrets.

    A write is refused without naming the secrets.
    """
    plain = s3_url(store.port, "kafka")
    url = plain.replace("s3://", "s3://AKIAKEY:topsecret@")
    url = url.replace("&anonymous=true", "")
    source = spark.read.format("segmentlog").option("maxBytesPerPartition", 2048)

    rows = source.load(url).collect()
    spark.sql(f"CREATE TABLE at_url USING segmentlog OPTIONS (path '{plain}')")
    n_rows = spark.table("at_url").count()
    spark.sql("DROP TABLE at_url")

    assert rows == source.load(example_data).collect()
    assert len(rows) == n_rows
    assert store.requests
    with pytest.raises(Exception, match="holds other objects") as caught:
        source.load(example_data).write.format("segmentlog").mode("append").save(url)
    assert "topsecret" not in str(caught.value)


def test_the_command_line_takes_urls(store: FaultyServer, example_data: str) -> None:
    """The output names the place without the options of the URL."""
    for command in (["describe"], ["verify", "--records"], ["dump", "--topic", "orders"]):
        there = CliRunner().invoke(app, [*command, s3_url(store.port, "kafka")])
        here = CliRunner().invoke(app, [*command, example_data])

        assert here.output == there.output.replace("s3://logs/kafka", example_data)
        assert there.output
        assert 0 == there.exit_code == here.exit_code
