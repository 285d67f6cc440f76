"""Declarative pipelines of Spark with the source and the sink of segmentlog."""

import json
from pathlib import Path

import pytest
from plain_writes import dealt, numbered_rows, numbers, write
from pyspark.sql import DataFrame, SparkSession

from segmentlog.txn.state import State

pipelines = pytest.importorskip("pyspark.pipelines", reason="Spark 4.0 has none")
pytestmark = [pytest.mark.spark, pytest.mark.thorough]


def run(spark: SparkSession, directory: Path, *, full_refresh: bool = False) -> None:
    """Run a pipeline to its end, as ``spark-pipelines run`` does."""
    from pyspark.pipelines.graph_element_registry import graph_element_registration_context
    from pyspark.pipelines.spark_connect_graph_element_registry import (
        SparkConnectGraphElementRegistry,
    )
    from pyspark.pipelines.spark_connect_pipeline import (
        create_dataflow_graph,
        handle_pipeline_events,
        start_run,
    )

    graph = create_dataflow_graph(spark, None, None, None)
    with graph_element_registration_context(SparkConnectGraphElementRegistry(spark, graph)):
        options = {"path": f"{directory}/copy", "topic": "t", "numPartitions": "2"}
        pipelines.create_sink("copy", "segmentlog", options)

        @pipelines.append_flow(target="copy", name="copied")
        def copied() -> DataFrame:
            records = spark.readStream.format("segmentlog").option("startingOffsets", "earliest")
            return records.load(f"{directory}/logs").select("key", "value", "partition")

    storage = f"file://{directory}/storage"
    handle_pipeline_events(start_run(spark, graph, [], full_refresh, [], False, storage))


def test_a_second_run_of_a_pipeline_continues(cluster: SparkSession, tmp_path: Path) -> None:
    """The sink is one query for both runs, and each record is in the copy once."""
    write(tmp_path / "logs", numbered_rows(0, 10), num_partitions=2)
    run(cluster, tmp_path)
    assert dealt((0, 10)) == numbers(tmp_path / "copy")

    write(tmp_path / "logs", numbered_rows(10, 6))
    run(cluster, tmp_path)
    assert dealt((0, 16)) == numbers(tmp_path / "copy")

    [(name, (batch, _))] = State.read(str(tmp_path / "copy")).streams.items()
    (metadata,) = (tmp_path / "storage").rglob("metadata")
    assert (json.loads(metadata.read_text())["id"], 1) == (name, batch.number)


@pytest.mark.slow
def test_a_full_refresh_is_a_new_query(cluster: SparkSession, tmp_path: Path) -> None:
    """It appends all records again."""
    write(tmp_path / "logs", numbered_rows(0, 10), num_partitions=2)
    for refresh in (False, True):
        run(cluster, tmp_path, full_refresh=refresh)
    assert dealt((0, 10), (0, 10)) == numbers(tmp_path / "copy")
