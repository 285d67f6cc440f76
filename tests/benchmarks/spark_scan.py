"""Full scans through Spark: ours, an Arrow file's, and Spark's `kafka` source."""

import os
import sys
from pathlib import Path

import pyarrow as pa
from kafka_here import Broker, spark_kafka_jars
from measure import Row, compare
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

import segmentlog

_ROWS = 50_000


def session(*jars: str, unix_sockets: bool = False) -> SparkSession:
    """Two cores and no user interface; Python workers are reached over loopback by default.

    `jars`: besides those of the `kafka` source.
    """
    here = str(Path(__file__).parent)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "3g")
        .config("spark.python.unix.domain.socket.enabled", str(unix_sockets).lower())
        .config("spark.jars", ",".join([*spark_kafka_jars(), *jars]))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    from segmentlog_bench_ipc import IpcSource

    spark.dataSource.register(IpcSource)
    return spark


def write_ipc(directory: segmentlog.LogDirectory, topic: str, target: Path) -> list[str]:
    """Write the rows as Arrow files, one for each partition, in batches of 50,000."""
    files = []
    for partition in directory.topics()[topic]:
        table = directory.log(topic, partition).scan().read_all()
        path = target / f"{topic}-{partition}.arrow"
        with pa.ipc.new_file(str(path), table.schema) as writer:
            for batch in table.combine_chunks().to_batches(max_chunksize=_ROWS):
                writer.write_batch(batch)
        files.append(str(path))
    return files


def rows(broker: Broker, topic: str, scratch: Path, rounds: int) -> list[Row]:
    """Scans to the `noop` sink, and their digests by an aggregate beforehand."""
    directory = segmentlog.open_log_dir(broker.log_dir)
    files = ",".join(write_ipc(directory, topic, scratch))
    spark = session()
    frames = {
        "segmentlog": spark.read.format("segmentlog")
        .option("subscribe", topic)
        .option("readUpTo", "logEnd")
        .load(str(broker.log_dir)),
        "ipc": spark.read.format("bench_ipc").option("files", files).load(),
        "kafka": spark.read.format("kafka")
        .option("subscribe", topic)
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .load(),
    }
    known = {name: _digest(frame) for name, frame in frames.items()}

    def scan(name: str):
        return lambda: (frames[name].write.format("noop").mode("overwrite").save(), known[name])[1]

    results = compare({name: scan(name) for name in frames}, rounds)
    ours = results["segmentlog"]
    spark.stop()

    def row(name: str, against: str, goal: str, bound: str) -> Row:
        detail = (
            f"{ours.digest[0] / ours.median / 1e6:.1f} against "
            f"{ours.digest[0] / results[name].median / 1e6:.1f} M rows/s; "
            f"{ours.digest[0]:,} rows; ±{ours.spread:.0%}, ±{results[name].spread:.0%}; "
            f"bound by {bound}"
        )
        ratio = f"{results[name].median / ours.median:.2f}"
        return Row("scan through Spark, `local[2]`", against, goal, ratio, detail)

    return [
        row(
            "ipc",
            "a Python source over a memory-mapped Arrow file",
            "≥ 0.97",
            "the same connection from Python to the JVM, and decoding beside it",
        ),
        row(
            "kafka",
            "Spark's `kafka` source on a running broker",
            "≥ 3",
            "the connection from Python to the JVM",
        ),
    ]


def _digest(frame) -> tuple[int, ...]:
    """Rows, sum of offsets, bytes of keys and values."""
    found = frame.agg(
        F.count("*"), F.sum("offset"), F.sum(F.length("key")), F.sum(F.length("value"))
    ).first()
    return tuple(int(number or 0) for number in found)
