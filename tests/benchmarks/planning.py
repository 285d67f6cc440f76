"""Seeking in long logs, planning and refreshing large directories, memory, starts."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import pyarrow as pa
from measure import Row, compare

import segmentlog
from segmentlog.testing.reference import Record, encode_batch

_LOOKUPS = 50
_NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"


def _long_log(directory: Path, n_segments: int) -> segmentlog.Log:
    """A log of small segments of twenty one-record batches each, with their indexes."""
    partition = directory / "long-0"
    partition.mkdir(parents=True)
    for base in range(0, n_segments * 20, 20):
        batches, offset_index, time_index, position = [], b"", b"", 0
        for i in range(20):
            batches.append(encode_batch([Record(base + i, 10 * (base + i), b"k", bytes(40))]))
            if i % 5 == 4:
                offset_index += i.to_bytes(4, "big") + position.to_bytes(4, "big")
                time_index += (10 * (base + i)).to_bytes(8, "big") + i.to_bytes(4, "big")
            position += len(batches[-1])
        stem = partition / f"{base:020d}"
        stem.with_suffix(".log").write_bytes(b"".join(batches))
        stem.with_suffix(".index").write_bytes(offset_index)
        stem.with_suffix(".timeindex").write_bytes(time_index)
    (directory / ".kafka_cleanshutdown").touch()
    checkpoint = f"0\n1\nlong 0 {n_segments * 20}\n"
    (directory / "replication-offset-checkpoint").write_text(checkpoint)
    return segmentlog.open_log_dir(directory).log("long", 0)


def seek(scratch: Path, rounds: int) -> list[Row]:
    """Look-ups in a log of 2,000 segments against one of 2."""
    logs = {"long": _long_log(scratch / "l", 2000), "short": _long_log(scratch / "s", 2)}
    rows = []
    for what in ("offset", "time"):

        def run(log: segmentlog.Log, what: str = what):
            end = log.log_end_offset

            def look_up() -> tuple[int, ...]:
                for i in range(_LOOKUPS):
                    offset = end * i // _LOOKUPS
                    if what == "offset":
                        (found,) = log.slices(offset, offset + 1)
                        assert found.start_offset == offset
                    else:
                        assert log.offset_for_timestamp(10 * offset).offset == offset
                return (_LOOKUPS,)

            return look_up

        results = compare({name: run(log) for name, log in logs.items()}, rounds)
        ratio = results["long"].median / results["short"].median
        detail = (
            f"{results['long'].median / _LOOKUPS * 1e6:.0f} µs a look-up, after the first one; "
        )
        detail += "bound by system calls"
        against = "the same in a log 1,000 times shorter"
        rows.append(
            Row(f"seek by {what}, 2,000 segments", against, "≤ 1.5", f"{ratio:.2f}", detail)
        )
    return rows


# Largest resident size of a process; `getrusage` would count its parent's before the exec.
_PEAK = """
import re, sys, time
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
"""

_PLAN = """
from pyspark_segmentlog.options.read_options import ReadOptions
from pyspark_segmentlog.reads.planner import plan_tasks
start = time.perf_counter()
tasks = plan_tasks(ReadOptions.parse({"path": sys.argv[1]}))
seconds = time.perf_counter() - start
print(seconds, peak(), len(tasks))
"""


def make_directory(
    scratch: Path, n_partitions: int, *, n_segments: int = 10, has_checkpoints: bool = False
) -> None:
    """Segments of one batch in each of `n_partitions`, and perhaps a broker's small files."""
    batch = encode_batch([Record(i, 0, b"k", bytes(20)) for i in range(10)])
    names = []
    for number in range(n_partitions):
        topic, partition_number = f"topic{number // 100}", number % 100
        names.append(f"{topic} {partition_number}")
        partition = scratch / f"{topic}-{partition_number}"
        partition.mkdir()
        if has_checkpoints:
            (partition / "partition.metadata").write_text(f"version: 0\ntopic_id: {'A' * 22}")
        for segment in range(n_segments):
            stem = f"{partition}/{segment * 10:020d}"
            data = (segment * 10).to_bytes(8, "big") + batch[8:]
            for suffix, content in ((".log", data), (".index", b""), (".timeindex", b"")):
                Path(stem + suffix).write_bytes(content)
    if has_checkpoints:
        (scratch / ".kafka_cleanshutdown").touch()
        for file, offset in (("replication", 100), ("log-start", 0)):
            lines = [f"{name} {offset}" for name in names]
            text = "\n".join(["0", str(len(lines)), *lines, ""])
            (scratch / f"{file}-offset-checkpoint").write_text(text)


def plan(scratch: Path, n_partitions: int, rounds: int) -> list[Row]:
    """Planning of many segments, each time in a new interpreter, and a commit beside it."""
    bounds = {10: "< 3 s, < 500 MB", 100: "< 6 s, < 300 MB"}
    rows = []
    for n_segments, goal in bounds.items():
        with tempfile.TemporaryDirectory(dir=scratch) as made:
            make_directory(Path(made), n_partitions, n_segments=n_segments)
            runs = [run_program(_PLAN, os.environ, made) for _ in range(rounds + 1)][1:]
        seconds = statistics.median(run[0] for run in runs)
        most = max(run[1] for run in runs)
        detail = (
            f"{most:.0f} MB at most, {runs[0][2]:,.0f} tasks; {_range(run[0] for run in runs)}; "
            "bound by listing, and a look at the state of each file"
        )
        work = f"plan {n_partitions * n_segments:,} segments in {n_partitions:,} partitions"
        rows.append(Row(work, "–", goal, f"{seconds:.1f} s", detail))
    return [*rows, _commit(scratch / "commit", n_partitions, rounds)]


def _commit(directory: Path, n_partitions: int, rounds: int) -> Row:
    """A commit of one record in each of many partitions."""
    numbers = pa.array(range(n_partitions), pa.int32())
    records = pa.table({"value": [b"v"] * n_partitions, "partition": numbers})
    seconds = []
    with segmentlog.open_writer(directory, "t", num_partitions=n_partitions) as writer:
        for _ in range(rounds + 1):
            start = time.perf_counter()
            writer.append(records)
            writer.flush()
            seconds.append(time.perf_counter() - start)
    detail = (
        f"the first commit, which creates the partitions, takes {seconds[0]:.1f} s; "
        f"{_range(seconds[1:])}; bound by opening, measuring and syncing three files a partition"
    )
    work = f"commit a record to each of {n_partitions:,} partitions"
    return Row(work, "–", "–", f"{statistics.median(seconds[1:]):.1f} s", detail)


def refresh(scratch: Path, n_partitions: int, rounds: int) -> list[Row]:
    """Later looks at ten segments in each of `n_partitions`, as a stream takes them."""
    make_directory(scratch, n_partitions, has_checkpoints=True)
    checkpoint = scratch / "replication-offset-checkpoint"
    lines = checkpoint.read_text().splitlines()
    names = [line.rpartition(" ")[0] for line in lines[2:]]
    opening = time.perf_counter()
    directory = segmentlog.open_log_dir(scratch)
    directory.end_offsets(directory.topic_partitions())
    opening = time.perf_counter() - opening

    def replace(ends: Iterable[int]) -> None:
        lines[2:] = [f"{name} {end}" for name, end in zip(names, ends, strict=True)]
        checkpoint.with_suffix(".tmp").write_text("\n".join([*lines, ""]))
        checkpoint.with_suffix(".tmp").replace(checkpoint)

    def timed(before: Callable[[int], object], is_new: bool, **how: bool) -> float:
        """Median seconds of a refresh after a change."""
        nonlocal directory
        seconds = []
        for number in range(rounds * 4 + 1):
            before(number)
            start = time.perf_counter()
            newer = directory.refresh(**how)
            seconds.append(time.perf_counter() - start)
            assert is_new == (newer is not directory)
            directory = newer
        return statistics.median(seconds[1:])

    def move(number: int) -> None:
        replace(
            99 - number % 9 if i % (n_partitions // 100) == 0 else 100 for i in range(n_partitions)
        )

    def list_names() -> float:
        """Median seconds of one list of the names in the directory with their inodes."""
        seconds = []
        for _ in range(rounds * 4):
            start = time.perf_counter()
            with os.scandir(scratch) as names_there:
                assert n_partitions < len({each.name: each.inode() for each in names_there})
            seconds.append(time.perf_counter() - start)
        return statistics.median(seconds)

    directory.refresh()
    time.sleep(1.1)  # a directory that has just been made is read once more
    unchanged = timed(lambda _: None, is_new=False)
    same = timed(lambda _: replace([100] * n_partitions), is_new=False)
    moved = timed(move, is_new=True)
    time.sleep(1.1)
    ends = timed(lambda _: None, is_new=False, log_ends=True)
    work, against = f"refresh {n_partitions:,} partitions, ", "–"
    opened = f"to open them and to look up their ends took {opening:.1f} s; "
    return [
        Row(work + "nothing new", against, "≤ 50 µs", f"{unchanged * 1e6:.0f} µs",
            opened + "bound by six calls of `stat`"),
        Row(work + "a checkpoint with the same bytes", against, "≤ 2 ms", f"{same * 1e3:.1f} ms",
            f"bound by one list of the names in the directory: {list_names() * 1e3:.1f} ms"),
        Row(work + "100 of them moved", against, "≤ 60 ms", f"{moved * 1e3:.1f} ms",
            "opens none of them; bound by two lists of names"),
        Row(work + "log ends, nothing new", against, "–", f"{ends * 1e3:.1f} ms",
            "bound by two calls of `stat` a partition"),
    ]  # fmt: skip


@cache
def _bytecode() -> tempfile.TemporaryDirectory[str]:
    """A directory for Python's bytecode, which an installed package has beside its modules."""
    return tempfile.TemporaryDirectory()


def run_program(program: str, environment: Mapping[str, str], *arguments: str) -> list[float]:
    """The numbers that `program` prints in a new interpreter."""
    command = [sys.executable, "-c", _PEAK + program, *arguments]
    kept = {name: value for name, value in environment.items() if name != _NO_BYTECODE}
    kept["PYTHONPYCACHEPREFIX"] = _bytecode().name
    done = subprocess.run(command, env=kept, stdout=subprocess.PIPE, text=True, check=True)
    return [float(number) for number in done.stdout.split()]


def _range(seconds: Iterable[float]) -> str:
    """The quickest and the slowest run."""
    found = sorted(seconds)
    return f"{found[0]:.1f}–{found[-1]:.1f} s"


_SCAN = """
before, start = peak(), time.perf_counter()
import segmentlog
from segmentlog.reads.scan import scan_slice
log = segmentlog.open_log_dir(sys.argv[1]).log(sys.argv[2], 0)
rows, first = 0, 0.0
for log_slice in log.slices(0, log.log_end_offset):
    for batch in scan_slice(log_slice):
        first = first or time.perf_counter() - start
        rows += batch.num_rows
print(peak() - before, first, rows)
"""


def memory_and_start(log_dir: Path, topic: str, rounds: int) -> list[Row]:
    """Scans in new interpreters."""
    runs = [run_program(_SCAN, os.environ, str(log_dir), topic) for _ in range(rounds)]
    if len({run[2] for run in runs}) > 1:
        message = f"the scans disagree: {runs}"
        raise SystemExit(message)
    detail = (
        f"{runs[0][2]:,.0f} rows; most of {rounds} runs; bound by a window of the file and a "
        "batch of rows, and by pyarrow's libraries"
    )
    starts = sorted(run[1] for run in runs)
    return [
        Row(
            "memory of a task over the interpreter",
            "–",
            "< 400 MB",
            f"{max(run[0] for run in runs):.0f} MB",
            detail,
        ),
        Row(
            "first batch of a process",
            "–",
            "< 0.45 s",
            f"{statistics.median(starts):.2f} s",
            f"imports too; {starts[0]:.2f}–{starts[-1]:.2f} s; bound by these imports",
        ),
    ]


_SPARK_ALONE = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
print(spark.range(1000).groupBy("id").count().count())
spark.stop()
"""


def quickstart(rounds: int) -> list[Row]:
    """The README's first command as whole processes, beside the same statements over few rows."""
    here = Path(__file__).resolve()
    script, floor = (
        str(here.parents[2] / "examples" / "quickstart.py"),
        str(here.parent / "quickstart_floor.py"),
    )
    ours, bare = [], []
    for _ in range(rounds):
        ours.append(_process_seconds([script], os.environ))
        bare.append(_process_seconds([floor], os.environ))
    alone = _process_seconds(["-c", _SPARK_ALONE], os.environ)
    bound = (
        "bound by Spark: a source of few rows and a sink that forgets them take "
        f"{statistics.median(bare):.1f} s for the same statements, a session that counts numbers "
        f"{alone:.1f} s"
    )
    return [
        Row(
            "the README's quickstart",
            "–",
            "< 12 s",
            f"{statistics.median(ours):.1f} s",
            f"{_range(ours)}; {bound}",
        ),
    ]


def _process_seconds(arguments: Sequence[str], environment: Mapping[str, str]) -> float:
    begin = time.perf_counter()
    subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return time.perf_counter() - begin
