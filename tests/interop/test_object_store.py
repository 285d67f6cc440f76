"""Copies of log directories in an S3 server, read by URL."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka_here import ArtifactsError
from pyspark.sql import SparkSession
from s3_here import Proxy, S3Server

from segmentlog import open_log_dir

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
def store(server: S3Server) -> Iterator[Proxy]:
    """A new way to the server for each test: nothing is known of it."""
    with Proxy(server) as proxy:
        yield proxy


def test_every_partition_is_read_as_on_a_disk(store: Proxy, example_data: str) -> None:
    """Rows, bounds and times are those of the directory that was copied."""
    remote, local = open_log_dir(store.url("kafka")), open_log_dir(example_data)

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


def test_spark_reads_a_url(store: Proxy, spark: SparkSession, example_data: str) -> None:
    """Tasks open the URL by themselves."""
    source = spark.read.format("segmentlog").option("maxBytesPerPartition", 2048)

    there = source.load(store.url("kafka")).collect()

    assert there == source.load(example_data).collect()
