"""Streams are refused as sources in a sentence, until there are some."""

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def run(stream: DataFrame, tmp_path: Path, sink: str, **options: str) -> None:
    """Start the stream, and wait for its error."""
    writer = stream.writeStream.format(sink).options(**options)
    writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.start(str(tmp_path / "logs")).processAllAvailable()


def test_a_stream_of_a_log_directory(
    spark: SparkSession, example_data: str, tmp_path: Path
) -> None:
    """Spark asks at `start`, and adds no other error."""
    stream = spark.readStream.format("segmentlog").load(example_data)
    with pytest.raises(
        StreamingQueryException, match=r"batch queries only: use spark\.read"
    ) as caught:
        run(stream, tmp_path, "noop")

    assert "UnboundLocalError" not in str(caught.value)
    assert "NOT_IMPLEMENTED" not in str(caught.value)
