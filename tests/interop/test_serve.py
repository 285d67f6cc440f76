"""`segmentlog serve` to clients of the JVM: Kafka's own tools, and Spark's ``kafka`` source."""

import os
import subprocess
from collections.abc import Iterator

import pytest
from kafka_here import kafka_jars
from kafka_here.artifacts import java
from pyspark.sql import DataFrame, SparkSession
from quick_java import FLAGS

import segmentlog
from segmentlog.serving.open_server import Server
from segmentlog.testing.kafka_log import KafkaLog

pytestmark = [pytest.mark.interop, pytest.mark.thorough]

_TOOLS = "org.apache.kafka.tools"
_N_RECORDS = 300


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> KafkaLog:
    """Three partitions, with headers, nulls and an aborted transaction."""
    made = KafkaLog(tmp_path_factory.mktemp("kafka"))
    rows = [
        {"key": None if i % 7 == 0 else f"k{i}", "value": None if i % 11 == 0 else f"v{i}",
         "timestamp": 1_700_000_000_000 + i, "headers": {"n": b"%d" % i} if i % 3 else {}}
        for i in range(_N_RECORDS)
    ]  # fmt: skip
    for first in range(0, _N_RECORDS, 50):
        made.write("t", rows[first : first + 50], num_partitions=3)
    with made.transaction() as transaction:
        transaction.write("t", ["never"], partition=0)
        transaction.abort()
    return made


@pytest.fixture(scope="module")
def server(log: KafkaLog) -> Iterator[Server]:
    with segmentlog.serve(log.path) as found:
        yield found


def run(version: str, server: Server, tool: str, *arguments: str) -> str:
    """The output of one of Kafka's tools."""
    main = f"{_TOOLS}.{tool}"
    command = [java(), *FLAGS, main, "--bootstrap-server", server.bootstrap_servers, *arguments]
    environment = os.environ | {"CLASSPATH": f"{kafka_jars(version)}/*"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False,
        input="x\n",
    )  # fmt: skip
    return done.stdout + done.stderr


@pytest.mark.parametrize("version", ["3.9.2", pytest.param("4.4.0", marks=pytest.mark.slow)])
def test_kafkas_tools_read_and_may_not_write(server: Server, log: KafkaLog, version: str) -> None:
    ends = segmentlog.open_log_dir(log.path)
    listed = run(version, server, "GetOffsetShell").splitlines()
    consumed = run(
        version, server, "consumer.ConsoleConsumer", "--topic", "t", "--from-beginning",
        "--max-messages", str(_N_RECORDS), "--timeout-ms", "30000", "--isolation-level",
        "read_committed",
    )  # fmt: skip
    created = run(version, server, "TopicCommand", "--create", "--topic", "new")

    for number in range(3):
        assert f"t:{number}:{ends.log('t', number).log_end_offset}" in listed
    values = {f"v{i}" for i in range(_N_RECORDS) if i % 11}
    assert values <= {*consumed.splitlines()}
    assert "never" not in consumed.splitlines()
    assert "segmentlog serve only reads" in created


def test_sparks_source_is_a_twin(spark: SparkSession, server: Server, log: KafkaLog) -> None:
    """Batch and stream: the same rows as ``format("segmentlog")``, offsets and headers too."""
    ours = spark.read.format("segmentlog").option("subscribe", "t")
    expected = rows_of(ours.option("includeHeaders", "true").load(str(log.path)))
    options = {"kafka.bootstrap.servers": server.bootstrap_servers, "subscribe": "t",
               "includeHeaders": "true", "startingOffsets": "earliest"}  # fmt: skip
    batch = spark.read.format("kafka").options(**options).load()
    stream = spark.readStream.format("kafka").options(**options).load()
    query = (
        stream.writeStream.format("memory").queryName("served").trigger(availableNow=True).start()
    )
    query.awaitTermination(120)

    assert _N_RECORDS <= len(expected)
    assert expected == rows_of(batch)
    assert expected == rows_of(spark.table("served"))


def rows_of(frame: DataFrame) -> list[str]:
    columns = ["partition", "offset", "timestamp", "timestampType", "key", "value", "headers"]
    return sorted(map(str, frame.select(*columns).collect()))
