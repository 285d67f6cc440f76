"""The settings that the README recommends, and columns that a query leaves out.

Each set of settings has a process: a JVM keeps the options that it was started with.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Self

from measure import Digest, Row, compare
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from query_data import N_PARTITIONS, QueryData
from spark_scan import session

__all__ = ["columns", "recommended", "write_batches"]

_TOP = Path(__file__).resolve().parents[2]

#: Kinds of settings, by a part of their names.
_KINDS = {"socket": "Unix sockets", "buffer": "the buffer", "JavaOptions": "Java options"}


class _Session:
    """A process with a session of Spark, which scans a log directory when asked.

    Parameters
    ----------
    settings : of the session.
    directory : the log directory.
    """

    def __init__(self, settings: Mapping[str, str], directory: Path) -> None:
        command = [sys.executable, __file__, json.dumps(settings), str(directory)]
        path = os.pathsep.join(filter(None, sys.path))
        environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": path}
        self._process = subprocess.Popen(
            command,
            env=environment,
            text=True,
            bufsize=1,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __enter__(self) -> Self:
        self._answer()  # sessions that start side by side would wait for each other
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # the end of its input ends it

    def scan(self) -> Digest:
        """Read every row into a sink that forgets it."""
        assert self._process.stdin is not None
        self._process.stdin.write("scan\n")
        return self._answer()

    def _answer(self) -> Digest:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            message = "a session of Spark has ended"
            raise SystemExit(message)
        return (int(answer),)


def _serve(settings: Mapping[str, str], directory: str) -> None:
    """Scan for each line of standard input, and answer with the number of rows."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    spark = builder.config("spark.driver.memory", "1g").config(map=dict(settings)).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    frame = spark.read.format("segmentlog").load(directory)
    n_rows = frame.count()
    print(n_rows, flush=True)
    for _ in sys.stdin:
        print(*_sink(frame, n_rows), flush=True)
    spark.stop()


def recommended(data: QueryData, rounds: int) -> list[Row]:
    """A full scan with the settings of the README, all and of one kind, and with none."""
    given = _settings_of_readme()
    none: dict[str, str] = {}
    sets = {"recommended": given, "defaults": none} | {
        kind: {name: value for name, value in given.items() if kind in name} for kind in _KINDS
    }
    with ExitStack() as stack:
        sessions = {
            name: stack.enter_context(_Session(each, data.small)) for name, each in sets.items()
        }
        scans = compare({name: each.scan for name, each in sessions.items()}, 4 * rounds)
    n_rows = scans["defaults"].digest[0]
    quickest, slowest = scans["recommended"], scans["defaults"]
    alone = ", ".join(
        f"{what} alone {slowest.median / scans[kind].median:.2f}" for kind, what in _KINDS.items()
    )
    detail = (
        f"{n_rows / quickest.median / 1e6:.1f} against {n_rows / slowest.median / 1e6:.1f} M "
        f"rows/s; {n_rows:,} rows; ±{quickest.spread:.0%}, ±{slowest.spread:.0%}; {alone}; bound "
        "by the connection from Python to the JVM"
    )
    ratio = f"{slowest.median / quickest.median:.2f}"
    work = "scan through Spark, `local[2]`, with the recommended settings"
    return [Row(work, "the defaults of Spark", "≥ 1.2", ratio, detail)]


def columns(data: QueryData, rounds: int) -> list[Row]:
    """Schemas that leave out one column each, against all columns."""
    spark = session()
    every = spark.read.format("segmentlog").load(str(data.small)).schema
    schemas = {"": every} | {
        name: StructType([each for each in every if each.name != name]) for name in every.names
    }
    frames = {
        name: spark.read.format("segmentlog").schema(schema).load(str(data.small))
        for name, schema in schemas.items()
    }
    n_rows = frames[""].count()
    results = compare(
        {name: partial(_sink, each, n_rows) for name, each in frames.items()}, rounds
    )
    spark.stop()
    ratios = {name: results[""].median / results[name].median for name in every.names}
    costs = ", ".join(
        f"`{name}` {ratio:.2f}"
        for name, ratio in sorted(ratios.items(), key=lambda each: -each[1])
    )
    detail = (
        f"{results['topic'].median:.3f} s (±{results['topic'].spread:.0%}) against "
        f"{results[''].median:.3f} s (±{results[''].spread:.0%}); {n_rows:,} rows; the ratio "
        f"without each column: {costs}; bound by Spark's rows"
    )
    work = "all columns but `topic` through Spark, `local[2]`"
    return [Row(work, "all columns", "≥ 1.1", f"{ratios['topic']:.2f}", detail)]


def write_batches(data: QueryData, rounds: int) -> list[Row]:
    """A write in Arrow batches of 50,000 rows, against the 10,000 of Spark."""
    target = data.directory("written")
    spark = session()
    frame = spark.read.format("segmentlog").load(str(data.small)).select("key", "value").cache()
    n_rows = frame.count()

    def write(batch: int) -> Digest:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", batch)
        writer = frame.write.format("segmentlog").option("topic", "t").option("flush", "none")
        writer.option("numPartitions", N_PARTITIONS).mode("append").save(str(target / "logs"))
        return (n_rows,)

    def prepare() -> None:
        shutil.rmtree(target / "logs", ignore_errors=True)
        os.sync()

    results = compare(
        {str(batch): partial(write, batch) for batch in (10_000, 50_000)}, rounds, prepare
    )
    spark.stop()
    larger, usual = results["50000"], results["10000"]
    detail = (
        f"{larger.median:.3f} s (±{larger.spread:.0%}) against {usual.median:.3f} s "
        f"(±{usual.spread:.0%}); {n_rows:,} rows; `flush=none`; bound by Spark, which makes the "
        "rows, while Python waits for the batch"
    )
    work = "write through Spark, `spark.sql.execution.arrow.maxRecordsPerBatch=50000`"
    ratio = f"{usual.median / larger.median:.2f}"
    return [Row(work, "the same with 10,000 rows, Spark's default", "–", ratio, detail)]


def _sink(frame: DataFrame, n_rows: int) -> Digest:
    frame.write.format("noop").mode("overwrite").save()
    return (n_rows,)


def _settings_of_readme() -> dict[str, str]:
    (block,) = re.findall(r"```properties\n(.*?)```", (_TOP / "README.md").read_text(), re.DOTALL)
    return dict(line.split(maxsplit=1) for line in block.splitlines())


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]), sys.argv[2])
