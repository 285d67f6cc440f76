"""Sail beside Spark, DuckDB and Polars over one log: scans, a write, 1 % by time, memory.

Run with the Python that has Spark, DuckDB and Polars, and name the one that has Sail::

    python tests/benchmarks/beside_sail.py /venvs/sail/bin/python --write

Each contestant is a process of its own.  They answer in turn, so each row is alternated; and Sail
reads Parquet with the same rows, too.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measure import Row, table

ALONE = ("engine", "duckdb", "polars")
TOPIC, N_PARTITIONS, N_BYTES, ROUNDS = "bench", 4, 100, 5
QUERIES = {
    "all columns": "select max(length(value)), max(offset), max(timestamp), count(key), count(*)",
    "one column": "select max(offset)",
    "count": "select count(*)",
}


def make(directory: Path, n_records: int) -> dict[str, Any]:
    """A log, the same rows as Parquet, and the time after which 1 % of them lie."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    import segmentlog

    n_each = 50_000
    with segmentlog.open_writer(
        directory / "log",
        TOPIC,
        num_partitions=N_PARTITIONS,
        config=segmentlog.ProducerConfig(use_timestamps=True),
    ) as writer:
        for first in range(0, n_records, n_each):
            numbers = np.arange(first, min(first + n_each, n_records))
            values = np.random.default_rng(first).bytes(N_BYTES * len(numbers))
            ends = pa.py_buffer((np.arange(len(numbers) + 1) * N_BYTES).astype(np.int32))
            writer.append(
                pa.table(
                    {
                        "key": pa.array(numbers).cast(pa.string()).cast(pa.binary()),
                        "value": pa.Array.from_buffers(
                            pa.binary(), len(numbers), [None, ends, pa.py_buffer(values)]
                        ),
                        "partition": pa.array((numbers // 1000 % N_PARTITIONS).astype(np.int32)),
                        "timestamp": pa.array(1_700_000_000_000 + numbers * 10).cast(
                            pa.timestamp("ms", tz="UTC")
                        ),
                    }
                )
            )
    (directory / "parquet").mkdir()
    opened = segmentlog.open_log_dir(directory / "log")
    for partition in range(N_PARTITIONS):
        rows = opened.log(TOPIC, partition).scan().read_all()
        target = directory / "parquet" / f"{partition}.parquet"
        pq.write_table(rows, target, compression="none", use_dictionary=False)
    return {"since_ms": 1_700_000_000_000 + int(n_records * 0.99) * 10}


class Sql:
    """Spark or Sail; `source` makes the frame of a read."""

    def __init__(self, directory: str, engine: str) -> None:
        self.directory = directory
        self.of_parquet = engine == "sail-parquet"
        if engine == "spark":
            from pyspark.sql import SparkSession

            builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
            self.spark: Any = builder.config("spark.driver.memory", "3g").getOrCreate()
            self.spark.sparkContext.setLogLevel("ERROR")
        else:
            from pyspark_segmentlog import sail_session

            self.spark = sail_session()
        self.spark.conf.set("spark.sql.session.timeZone", "UTC")

    def source(self, **options: str) -> Any:
        """All rows, or those that the options select."""
        if self.of_parquet:
            return self.spark.read.parquet(f"{self.directory}/parquet")
        return (
            self.spark.read.format("segmentlog").options(**options).load(f"{self.directory}/log")
        )

    def query(self, name: str) -> list[Any]:
        """The row of one query."""
        self.source().createOrReplaceTempView("rows")
        return [str(each) for each in self.spark.sql(f"{QUERIES[name]} from rows").collect()[0]]

    def by_time(self, since_ms: int) -> list[Any]:
        """The count of the rows after a time, found by the time index, or by Parquet's footers."""
        at = f"timestamp >= timestamp_millis({since_ms})"
        options = {
            "startingTimestamp": str(since_ms),
            "startingOffsetsByTimestampStrategy": "latest",
        }
        return [str(self.source(**options).where(at).count())]

    def write(self, n_records: int) -> list[Any]:
        """The count of rows that were written to a new directory."""
        rows = self.spark.range(0, n_records, 1, 2).selectExpr(
            "cast(id as string) key", f"rpad(cast(id as string), {N_BYTES}, '.') value"
        )
        with tempfile.TemporaryDirectory(dir=self.directory) as target:
            if self.of_parquet:
                rows.write.option("compression", "none").parquet(f"{target}/out")
            else:
                options = {"topic": TOPIC, "numPartitions": "4", "flush": "none"}
                writer = rows.write.format("segmentlog").options(**options)
                writer.mode("append").save(target)
        return [str(n_records)]


class Alone:
    """DuckDB, Polars or nothing over our dataset, with two threads."""

    def __init__(self, directory: str, engine: str) -> None:
        import os

        os.environ["POLARS_MAX_THREADS"] = "2"
        import segmentlog

        self.path = f"{directory}/log"
        self.engine, self.segmentlog = engine, segmentlog

    def query(self, name: str) -> list[Any]:
        """The row of one query."""
        rows = self.segmentlog.dataset(self.path)
        if self.engine == "engine":  # its own scan, which keeps nothing
            columns = {"one column": ["offset"], "count": ["partition"]}.get(name)
            scanner = rows.scanner(columns=columns)
            return [str(sum(each.num_rows for each in scanner.to_batches()))]
        if self.engine == "duckdb":
            import duckdb

            sql = QUERIES[name].replace("length(value)", "octet_length(value)")
            sql = sql.replace("max(offset)", 'max("offset")')
            with duckdb.connect(config={"threads": 2}) as db:
                db.register("rows", rows)
                return [str(each) for each in db.execute(f"{sql} from rows").fetchone() or ()]
        import polars as pl

        lazy = pl.scan_pyarrow_dataset(rows)
        asked = {
            "all columns": [
                pl.col("value").bin.size().max(),
                pl.col("offset").max(),
                pl.col("timestamp").max(),
                pl.col("key").count(),
                pl.len().alias("n"),
            ],
            "one column": [pl.col("offset").max()],
            "count": [pl.len()],
        }[name]
        return [str(each) for each in lazy.select(asked).collect().row(0)]

    def by_time(self, since_ms: int) -> list[Any]:
        """The count of the rows after a time."""
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(since_ms / 1000))
        return [str(self.segmentlog.dataset(self.path, since=since).count_rows())]


def contest(engine: str, directory: str) -> None:
    """Answer the questions of standard input, one line each."""
    kind = Alone if engine in ALONE else Sql
    contestant = kind(directory, engine)
    for line in sys.stdin:
        name, argument = json.loads(line)
        began = time.perf_counter()
        answer = getattr(contestant, name)(argument)
        seconds = time.perf_counter() - began
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        workers = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        print(json.dumps([seconds, answer, max(own, workers) // 1024]), flush=True)


def ask(process: "subprocess.Popen[str]", question: list[Any]) -> list[Any]:
    """The seconds, the answer and the largest memory of a contestant."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(question) + "\n")
    process.stdin.flush()
    answer: list[Any] = json.loads(process.stdout.readline())
    return answer


#: How the documents name the contestants.
_NAMES = {
    "sail": "Sail",
    "sail-parquet": "Sail over Parquet of the same rows",
    "spark": "Spark, `local[2]`",
    "engine": "the engine's own scan, on two threads",
    "duckdb": "DuckDB over our dataset",
    "polars": "Polars over our dataset",
}

#: Each question, the goals against other contestants, and what bounds Sail.
_QUESTIONS = [
    ("scan through Sail, all columns", ["query", "all columns"],
     {"spark": "≥ 10", "engine": "≥ 0.85"}, "decoding, and two threads"),
    ("scan through Sail, one column", ["query", "one column"], {"spark": "≥ 10"},
     "reading and verifying all bytes"),
    ("count through Sail", ["query", "count"], {"spark": "≥ 10"},
     "reading and verifying all bytes"),
    ("1 % of a log by time, through Sail", ["by_time"], {"spark": "≥ 10"}, "planning a query"),
    ("write through Sail", ["write"], {"spark": "≥ 2"}, "encoding in one thread of each task"),
]  # fmt: skip


def measure(sail_python: str, n_records: int) -> list[Row]:
    """The rows of the table about Sail."""
    pythons = {"sail": sail_python, "sail-parquet": sail_python}
    pythons |= dict.fromkeys(("spark", *ALONE), sys.executable)
    with tempfile.TemporaryDirectory() as directory:
        facts = make(Path(directory), n_records)
        began: dict[str, float] = {}
        memory: dict[str, int] = {}
        contestants: dict[str, subprocess.Popen[str]] = {}
        for engine, python in pythons.items():
            started = time.perf_counter()
            process = subprocess.Popen(
                [python, __file__, "--contest", engine, directory],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            memory[engine] = ask(process, ["query", "count"])[2]
            began[engine] = time.perf_counter() - started
            contestants[engine] = process
        rows = [
            _row(
                "the first query of a process, through Sail",
                began,
                "spark",
                "≥ 10",
                "imports, and the start of Sail's server",
            )
        ]
        arguments = {"by_time": [facts["since_ms"]], "write": [n_records]}
        for work, (kind, *more), goals, bound in _QUESTIONS:
            able = [each for each in contestants if kind != "write" or each not in ALONE]
            seconds: dict[str, list[float]] = {engine: [] for engine in able}
            for i in range(ROUNDS + 1):
                for engine in able:
                    question = [kind, *(more or arguments[kind])]
                    taken, answer, memory[engine] = ask(contestants[engine], question)
                    seconds[engine] += [taken] if i else []
                    if more == ["count"]:
                        assert answer == [str(n_records)], (engine, answer)
            medians = {engine: statistics.median(each) for engine, each in seconds.items()}
            rows += [_row(work, medians, each, goal, bound) for each, goal in goals.items()]
        for process in contestants.values():
            process.communicate()
    used = {engine: n_mib / 1000 for engine, n_mib in memory.items()}
    spark = f"{used['spark']:.1f} GB in its largest Python process, without its JVM"
    rows.append(
        Row(
            "memory of these queries in Sail's process",
            _NAMES["spark"],
            "–",
            f"{used['sail']:.1f} GB",
            f"Spark: {spark}; bound by a window and a batch of each thread",
        )
    )
    return rows


def _row(work: str, medians: dict[str, float], against: str, goal: str, bound: str) -> Row:
    others = "; ".join(
        f"{_NAMES[engine]} {seconds:.3g} s"
        for engine, seconds in medians.items()
        if engine not in {"sail", against}
    )
    detail = (
        f"{medians['sail']:.3g} s against {medians[against]:.3g} s; {others}; bound by {bound}"
    )
    ratio = medians[against] / medians["sail"]
    return Row(work, _NAMES[against], goal, f"{ratio:.2f}", detail)


def main() -> None:
    """Print the table, and put it into the document if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sail", help="the Python that has Sail")
    parser.add_argument("n_records", type=int, nargs="?", default=4_000_000)
    parser.add_argument("--write", action="store_true", help="put the table into the documents")
    arguments = parser.parse_args()
    version = subprocess.run(
        [arguments.sail, "-c", "import pysail, pyspark; print(pysail.__version__)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    rows = measure(arguments.sail, arguments.n_records)
    found = table(rows, f"{machine()}; pysail {version}{RATIOS}")
    print(found)
    if arguments.write:
        put(SPEED, "sail", found)


if __name__ == "__main__":
    if sys.argv[1] == "--contest":
        contest(sys.argv[2], sys.argv[3])
    else:
        from run import RATIOS, SPEED, machine, put

        main()
