"""Every command, and every engine, over a log of twelve gigabytes, and Ctrl-C in the middle.

The row of a command has its processor time, its memory, its longest silence on a terminal, and
the seconds that it lived after Ctrl-C.  Peers read one partition of the log.

``SCALE_BYTES`` sets another size, ``SCALE_ONLY`` a regular expression for names, and
``PYTHON_WITH_SAIL`` the Python of an environment with Sail, without which its rows are left out.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scale_data
from aiokafka.record import MemoryRecords
from coordinator_logs import Coordinator, commit_key, commit_value, message
from engine import digest_of
from measure import Digest, Row, compare, table
from scale_data import KEY, N_PARTITIONS, TOPIC
from terminals import Seen, run

import segmentlog

__all__ = ["measure"]

_ROUNDS = 5
_TOP = Path(__file__).resolve().parents[2]
_COMMAND = (sys.executable, "-c", "from segmentlog_command import main; main()")
_PATH = os.pathsep.join(str(_TOP / each) for each in ("storage", "connector"))
_INTERRUPTED = 130
_N_DUMPED = 20  #: partitions
_FIRST_SECONDS = 2.0  #: until Ctrl-C, for what changes a directory
_SHORT_SECONDS = 0.5  #: of a command that is not worth a Ctrl-C
_TEMPORARY = re.compile(r"\.(stage|job|tmp|cleaned|swap|parquet)$|unfinished|\.new$")

_IMPORTS = """
import sys
import segmentlog
"""
_SCAN = """
print(sum(each.num_rows for each in segmentlog.dataset(sys.argv[1]).scanner().to_batches()))
"""
_ONE_THREAD = """
opened = segmentlog.open_log_dir(sys.argv[1])
logs = [opened.log("scale", number) for number in range(200)]
print(sum(batch.num_rows for log in logs for batch in log.scan()))
"""
_COMMITTED = """
rows = segmentlog.dataset(sys.argv[1], isolation_level="read_committed")
print(sum(each.num_rows for each in rows.scanner().to_batches()))
"""
_BY_HEADERS = """
print(segmentlog.dataset(sys.argv[1], check_crcs=False).count_rows())
"""
_DUCKDB = """
import duckdb
rows = segmentlog.dataset(sys.argv[1])
sql = 'select count(*), max(octet_length(value)), max("offset"), max(timestamp) from rows'
print(duckdb.sql(sql).fetchall())
"""
_POLARS = """
import polars as pl
rows = pl.scan_pyarrow_dataset(segmentlog.dataset(sys.argv[1]))
asked = [pl.len().alias("n"), pl.col("value").bin.size().max(), pl.col("offset").max()]
print(rows.select(asked).collect().row(0))
"""
_WRITE = """
with segmentlog.open_writer(sys.argv[2], "copy", num_partitions=50) as writer:
    for batch in segmentlog.dataset(sys.argv[1]).scanner(["key", "value"]).to_batches():
        writer.append(batch)
"""
_PARQUET = """
import pyarrow.parquet as pq
scanner = segmentlog.dataset(sys.argv[1], isolation_level="read_committed").scanner()
with pq.ParquetWriter(sys.argv[2], scanner.projected_schema) as writer:
    for batch in scanner.to_batches():
        writer.write_batch(batch)
"""
_SPARK = """
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.memory", "2g").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
"""
_SAIL = """
from pyspark_segmentlog import sail_session
spark = sail_session()
"""
_READ = """
rows = spark.read.format("segmentlog").option("subscribe", "scale").load(sys.argv[1])
rows.createOrReplaceTempView("rows")
asked = "count(*), max(length(value)), max(offset), max(timestamp), count(key)"
print(spark.sql(f"select {asked} from rows").collect())
"""
_COPY = """
rows = spark.read.format("segmentlog").option("subscribe", "scale").load(sys.argv[1])
rows = rows.select("key", "value")
options = {"topic": "copy", "numPartitions": "50"}
rows.write.format("segmentlog").options(**options).mode("append").save(sys.argv[2])
"""


class _Work(NamedTuple):
    """One row: a command, or a program of a user."""

    name: str
    command: tuple[str, ...]
    changed: Path | None = None  #: the directory that it changes
    stdout: Path | None = None
    stdin: Path | None = None
    before: Callable[[], object] = lambda: None
    after: Callable[[], object] = lambda: None
    statuses: tuple[int, ...] = (0,)
    is_program: bool = False  #: Python itself reports Ctrl-C there


def measure(scratch: Path, n_bytes: int, machine: str, ratios: str) -> str:
    """The tables, as Markdown.

    Parameters
    ----------
    scratch : a directory on a disk with three times the bytes free.
    machine, ratios : what stands in front of the tables.
    """
    only = re.compile(os.environ.get("SCALE_ONLY", ""))
    log = scratch / "log"
    scale_data.make(log, n_bytes)
    _add_coordinators(log)
    head = (
        f"{machine}; {n_bytes / 1e9:g} GB in {N_PARTITIONS} partitions. Ctrl-C is typed after 2 s "
        "where something is written, and otherwise in the middle; programs in Python report it "
        "as a `KeyboardInterrupt`."
    )
    lines = [
        head,
        "",
        "| work | seconds | of processors | memory | longest silence | after Ctrl-C |",
        "|---|---|---|---|---|---|",
    ]
    for work in _works(scratch, log):
        if only.search(work.name):
            lines.append(_row(work))
            print(lines[-1], file=sys.stderr, flush=True)
    if only.search("peers"):
        lines += ["", table(_peers(log), machine + ratios)]
    return "\n".join(lines) + "\n"


def _add_coordinators(log: Path) -> None:
    """Commits of ten groups in all partitions, and transactional ids."""
    made = [
        (commit_key(f"group{group}", TOPIC, number), commit_value(100 * group + 1))
        for group in range(10)
        for number in range(N_PARTITIONS)
    ]
    Coordinator().add(*made).write(log)
    ids = [
        message(
            "__transaction_state",
            0,
            {"transactional_id": f"id{number}"},
            {"producer_id": 1000 + number, "transaction_status": 4},
        )
        for number in range(3)
    ]
    Coordinator().add(*ids).write(log, topic="__transaction_state")


def _works(scratch: Path, log: Path) -> Iterator[_Work]:
    """All works, in the order in which one leaves what the next one needs."""
    copy, other, none = scratch / "copy", scratch / "other", Path(os.devnull)

    def command(name: str, *arguments: object, **more: Any) -> _Work:
        words = (*_COMMAND, name, *map(str, arguments))
        return _Work(more.pop("called", f"`{name}`"), words, **more)

    def program(
        name: str, text: str, python: str = sys.executable, result: Path = other, **more: Any
    ) -> _Work:
        # PySpark's client for servers takes a program of `-c` for one of its own tests.
        file = scratch / "program.py"
        file.write_text(_IMPORTS + text)
        words = (python, str(file), str(log), str(result))
        return _Work(name, words, is_program=True, **more)

    def away(directory: Path) -> Callable[[], object]:
        return lambda: shutil.rmtree(directory, ignore_errors=True)

    yield command("recover", log, changed=log)
    yield command("topics", log)
    yield command("usage", log)
    yield command("describe", log)
    yield command("describe", log, "--all", called="`describe --all`")
    yield command("groups", log)
    yield command("transactions", log)
    yield command("preflight", log, statuses=(0, 1))
    yield command("verify", log, "--records", called="`verify --records`")
    yield command("analyze", log)
    yield command("grep", KEY, log)
    yield command("cat", log, TOPIC, stdout=none)
    yield command("dump", log, stdout=none)
    dumped, table = scratch / "dumped.parquet", scratch / "table.parquet"
    some = [word for number in range(_N_DUMPED) for word in ("--partition", number)]
    yield command(
        "dump", log, "--topic", TOPIC, *some, "--records", "-f", "parquet", "-o", dumped,
        called=f"`dump --records -f parquet`, {_N_DUMPED} partitions", changed=scratch,
        after=lambda: dumped.unlink(missing_ok=True),
    )  # fmt: skip
    yield program(
        "a Parquet file of `segmentlog.dataset`", _PARQUET, result=table, changed=scratch
    )
    yield command("audit", log, TOPIC, "--table", table)
    yield command(
        "audit", log, TOPIC, "--table", table, "--columns", "timestamp,key,value",
        called="`audit --columns`", after=table.unlink,
    )  # fmt: skip
    yield program("`segmentlog.dataset`, all columns", _SCAN)
    yield program("`Log.scan`, one thread", _ONE_THREAD)
    yield program("`segmentlog.dataset`, `read_committed`", _COMMITTED)
    yield program("`count_rows`, `check_crcs=False`", _BY_HEADERS)
    yield program("DuckDB", _DUCKDB)
    yield program("Polars", _POLARS)
    yield program("a writer in Python", _WRITE, changed=other, after=away(other))
    yield program("a read in Spark, `local[2]`", _SPARK + _READ)
    yield program("a read and a write in Spark", _SPARK + _COPY, changed=other, after=away(other))
    if sail := os.environ.get("PYTHON_WITH_SAIL"):
        yield program("a read in Sail", _SAIL + _READ, sail)
        yield program(
            "a read and a write in Sail", _SAIL + _COPY, sail, changed=other, after=away(other)
        )
    yield command(
        "clone", log, TOPIC, "clone", "--to", other, "--partitions", 50,
        changed=other, after=away(other),
    )  # fmt: skip
    yield command("mirror", log, copy, changed=copy)
    yield command("mirror", log, copy, changed=copy, called="`mirror`, again")
    yield command("replicas", log, copy)
    yield command("compare", log, copy)
    yield command("reindex", copy, changed=copy, before=lambda: _lose_indexes(copy))
    yield command(
        "delete-records",
        copy,
        "--topic",
        TOPIC,
        "--before",
        "2023-11-14T22:13:20.100Z",
        "--yes",
        changed=copy,
    )
    yield command("erase", copy, "--key", KEY, "--purge", "--yes", changed=copy)
    yield command(
        "compact", copy, "--topic", TOPIC, "-s", "cleanup.policy=compact", "--purge", "--yes",
        changed=copy,
    )  # fmt: skip
    yield command(
        "retain", copy, "--topic", TOPIC, "-s", "cleanup.policy=delete", "-s", "retention.bytes=1",
        "-s", "retention.ms=-1", "--purge", "--yes", changed=copy,
    )  # fmt: skip
    yield command(
        "undelete", copy, TOPIC, "--to", other, changed=other, before=lambda: _as_deleted(copy)
    )
    yield command("delete-topic", other, TOPIC, "--yes", changed=other, after=away(other))
    yield command(
        "produce", other, "lines", "-l", scratch / "lines", changed=other,
        before=lambda: _lines(log, scratch / "lines"), after=away(other),
    )  # fmt: skip


def _as_deleted(directory: Path) -> None:
    """Rename the partitions, as a broker that deletes their topic."""
    for each in directory.glob(f"{TOPIC}-*"):
        each.rename(each.with_name(f"{each.name}.{'0' * 32}-delete"))


def _lose_indexes(directory: Path) -> None:
    for each in directory.glob("*/*index"):
        each.unlink()


def _lines(log: Path, file: Path) -> None:
    """A quarter of the log as lines."""
    if not file.exists():
        several = [word for number in range(N_PARTITIONS // 4) for word in ("-p", str(number))]
        words = [*_COMMAND, "cat", str(log), TOPIC, *several]
        with file.open("wb") as output:
            subprocess.run(words, stdout=output, check=True)


def _row(work: _Work) -> str:
    """Run a command to its end, and once with Ctrl-C: a command that writes, before that."""
    work.before()
    stopped = _interrupted(work, _FIRST_SECONDS) if work.changed else None
    seen = _run(work)
    if seen.status not in work.statuses:
        message = f"{work.name} ended with {seen.status}: {seen.text[-2000:]}"
        raise SystemExit(message)
    if not work.changed and seen.seconds > _SHORT_SECONDS:
        stopped = _interrupted(work, seen.seconds / 2)
    work.after()
    cells = [
        work.name,
        f"{seen.seconds:.1f} s",
        f"{seen.processor:.1f} s",
        f"{seen.n_bytes / 1e6:.0f} MB",
        f"{seen.silence:.1f} s",
        stopped or "–",
    ]
    return f"| {' | '.join(cells)} |"


def _run(work: _Work, interrupt_after: float | None = None) -> Seen:
    environment = {**os.environ, "PYTHONPATH": _PATH}
    return run(
        work.command,
        environment,
        stdin=work.stdin,
        stdout=work.stdout,
        interrupt_after=interrupt_after,
    )


def _interrupted(work: _Work, seconds: float) -> str | None:
    """What Ctrl-C did, in a cell; None if the command ended before."""
    before = _ours(work.changed)
    seen = _run(work, seconds)
    if not seen.after_interrupt:
        return None
    faults = []
    if seen.status != _INTERRUPTED and not work.is_program:
        faults.append(f"status {seen.status}")
    if "Traceback" in seen.text and not work.is_program:
        faults.append("a traceback")
    if seen.survivors:
        faults.append(f"{len(seen.survivors)} processes stay")
    left = {path: size for path, size in _ours(work.changed).items() if path not in before}
    if left:
        names = sorted({re.sub(r"[0-9a-f]{8,}|\d+", "…", path.name) for path in left})
        faults.append(f"{sum(left.values()) / 1e6:.0f} MB stay: {', '.join(names)}")
    if faults:
        print(work.name, faults, seen.survivors, seen.text[-3000:], file=sys.stderr)
    return "; ".join([f"{seen.after_interrupt:.1f} s", *faults])


def _ours(directory: Path | None) -> dict[Path, int]:
    """Files that only a command at work has, with their sizes."""
    if directory is None or not directory.exists():
        return {}
    found = {}
    for path in directory.rglob("*"):
        if _TEMPORARY.search(str(path.relative_to(directory))) and path.is_file():
            found[path] = path.stat().st_size
    return found


def _peers(log: Path) -> list[Row]:
    """Other readers of Kafka's files, over one partition, on one core."""
    partition = segmentlog.open_log_dir(log).log(TOPIC, 0)
    files = [segment.path for segment in partition.segments]

    def ours() -> Digest:
        return digest_of(partition.scan())

    def theirs() -> Digest:
        found = np.zeros(4, np.int64)
        for file in files:
            records = MemoryRecords(Path(file).read_bytes())
            while (batch := records.next_batch()) is not None:
                if not batch.validate_crc():
                    raise SystemExit(file)
                for record in batch:
                    if not batch.is_control_batch:
                        found += (
                            1,
                            record.offset,
                            len(record.key or b""),
                            len(record.value or b""),
                        )
        return tuple(found.tolist())

    results = compare({"ours": ours, "theirs": theirs}, _ROUNDS)
    found, other = results["ours"], results["theirs"]
    rates = [each.digest[0] / each.median / 1e6 for each in (found, other)]
    detail = (
        f"{rates[0]:.1f} against {rates[1]:.1f} M records/s; {found.digest[0]:,} rows; "
        f"±{found.spread:.0%}, ±{other.spread:.0%}; bound by reading, the checksum and the copy "
        "of every key and value"
    )
    against = "aiokafka's parser of records, which is compiled"
    return [
        Row("scan files, one core", against, "≥ 3.2", f"{other.median / found.median:.1f}", detail)
    ]
