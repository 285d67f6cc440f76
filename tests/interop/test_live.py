"""Spark's own source and ours read a running broker, whose files change during a read."""

import shutil
import threading
from pathlib import Path

import pytest
from chispa import assert_df_equality
from kafka_here import Broker, JavaClient, shapes
from kafka_here.java import Outgoing
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

import segmentlog

pytestmark = [pytest.mark.interop, pytest.mark.spark]

#: All shapes but the compacted one, which the broker may clean again between the two reads.
#: `test_shapes` compares that shape of a stopped broker.
TOPICS = tuple(topic for topic in shapes.SHAPES if topic != "compacted")


@pytest.mark.parametrize("version", ["4.3.1"], indirect=True)
def test_rows_equal_those_of_sparks_kafka_source(
    filled: tuple, version: str, tmp_path: Path, spark: SparkSession
) -> None:
    """`format("kafka")` and `format("segmentlog")` return equal rows from one running broker."""
    broker = Broker(tmp_path / "kafka", version)
    shutil.copytree(filled[0].log_dir, broker.log_dir)
    with broker, JavaClient(broker) as client:
        client.produce("nulls", [Outgoing(None, None)])
        theirs = (
            spark.read.format("kafka")
            .option("kafka.bootstrap.servers", broker.bootstrap_servers)
            .option("subscribe", ",".join(TOPICS))
            .option("includeHeaders", "true")
            .load()
        )
        ours = (
            spark.read.format("segmentlog")
            .option("readUpTo", "logEnd")
            .option("includeHeaders", "true")
            .option("subscribe", ",".join(TOPICS))
            .load(str(broker.log_dir))
        )

        assert ours.count() > 5000
        assert theirs.schema == ours.schema
        assert_df_equality(_comparable(theirs), _comparable(ours))


def _comparable(frame: DataFrame) -> DataFrame:
    """Rows in order.

    Large values become a length and a hash, so that a difference is printed whole.
    """
    value = F.struct(F.length("value"), F.sha2("value", 256))
    return frame.withColumn("value", value).sort("topic", "partition", "offset")


@pytest.mark.slow
def test_a_broker_that_rolls_does_not_hurt_a_running_scan(
    broker: Broker, client: JavaClient
) -> None:
    """The active segment's index is cut in place. A process that has it mapped dies of SIGBUS."""
    client.create_topic("rolling", segment_bytes=1 << 20, index_interval_bytes=512)
    records = [Outgoing(b"k", bytes(1000), (), 1_700_000_000_000 + i) for i in range(800)]
    produce = threading.Thread(
        target=lambda: [
            client.produce("rolling", records, compression_type="none", batch_size=2000)
            for _ in range(5)
        ]
    )
    client.produce("rolling", records, compression_type="none", batch_size=2000)
    produce.start()
    seen = []
    while produce.is_alive():
        log = segmentlog.open_log_dir(broker.log_dir).log("rolling", 0)
        end = log.log_end_offset
        offsets = log.scan(0, end, columns=["offset"]).read_all()["offset"].to_pylist()
        log.offset_for_timestamp(1_700_000_000_700)
        assert list(range(end)) == offsets
        seen.append(len(log.segments))
    produce.join()

    assert len(set(seen)) > 2


@pytest.mark.thorough
def test_files_that_retention_takes_away_are_found_again(
    broker: Broker, client: JavaClient, tmp_path: Path
) -> None:
    """A planned slice is read to its end although its files are renamed between two windows."""
    shapes.SHAPES["segments"].make(broker, client, "segments")
    copy = tmp_path / "segments-0"
    shutil.copytree(broker.log_dir / "segments-0", copy)
    from segmentlog.reads.scan import scan_slice

    log = segmentlog.open_log_dir(copy).log("segments", 0)
    (log_slice,) = log.slices(0, log.log_end_offset)
    batches = scan_slice(log_slice, columns=["offset"])
    offsets = next(batches).column(0).to_pylist()
    for path in copy.glob("*.log"):
        path.rename(path.with_name(path.name + ".deleted"))
    for batch in batches:
        offsets += batch.column(0).to_pylist()

    assert len(log_slice.files) > 1
    assert list(range(log.log_end_offset)) == offsets


@pytest.mark.slow
def test_several_log_directories_are_read_as_one(new_version: str, tmp_path: Path) -> None:
    """A broker has spread the partitions of one topic over its disks."""
    broker = Broker(tmp_path / "kafka", new_version, n_log_dirs=2)
    with broker, JavaClient(broker) as client:
        client.create_topic("spread", 6)
        records = [Outgoing(b"%d" % i, b"v", (), None, i % 6) for i in range(60)]
        client.produce("spread", records)
    directory = segmentlog.open_log_dir(*broker.log_dirs)
    homes = {Path(directory.log("spread", p).path).parent for p in range(6)}
    rows = [directory.log("spread", p).scan().read_all().num_rows for p in range(6)]

    assert len(homes) == 2
    assert [10] * 6 == rows
    with pytest.raises(segmentlog.LogDirectoryError, match="and so does"):
        segmentlog.open_log_dir(broker.log_dirs[0], *broker.log_dirs)


def test_a_killed_brokers_directory_is_read(broker: Broker, client: JavaClient) -> None:
    """Without a clean stop, the high watermark is old or missing, and the log end is right."""
    client.create_topic("killed")
    client.produce("killed", [Outgoing(b"k", b"%d" % i) for i in range(500)])
    expected = client.consume("killed")
    broker.kill()
    log = segmentlog.open_log_dir(broker.log_dir).log("killed", 0)
    values = log.scan(read_up_to=segmentlog.ReadUpTo.LOG_END).read_all()["value"].to_pylist()

    assert [record.value for record in expected] == values
