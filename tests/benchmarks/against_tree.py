"""Planning, kernels, seeks and two tools of this tree against another's, in alternating processes.

``python tests/benchmarks/against_tree.py TREE [--partitions 3000] [--rounds 7]``; ``TREE`` is a
work tree of the other commit, from ``git worktree add --detach TREE COMMIT``.  Each round starts a
new interpreter for each tree, in a random order.  A ratio above 1 means that this tree is
quicker.  On a machine with other work, the processor's time counts, and not the clock's.
"""

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

TOP = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP / "storage"), str(Path(__file__).parent)]

from planning import make_directory  # noqa: E402

_BEGIN = """
import os, resource, sys, time
import segmentlog
from segmentlog import model
def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
"""
_PLAN = (
    _BEGIN
    + """
start, cpu_start = time.perf_counter(), cpu()
directory = segmentlog.open_log_dir(sys.argv[1])
partitions = directory.topic_partitions()
ends = directory.end_offsets(partitions)
n_files = n_bytes = 0
for each in partitions:
    log = directory.log(*each)
    for log_slice in log.slices(log.log_start_offset, ends[each], 0):
        n_files += len(log_slice.files)
        n_bytes += log_slice.n_bytes
print(time.perf_counter() - start, cpu() - cpu_start, n_files, n_bytes)
"""
)
#: Kernels are loaded by a first batch; then the whole log, as it comes from the page cache.
_SCAN = (
    _BEGIN
    + """
import inspect
log = segmentlog.open_log_dir(sys.argv[1]).log("t", 0)
has_threads = "use_threads" in inspect.signature(log.scan).parameters
how = {"use_threads": False} if has_threads else {}
log.scan(0, 100).read_all()
start, cpu_start = time.perf_counter(), cpu()
n_rows = n_bytes = 0
for _ in range(3):
    for batch in segmentlog.open_log_dir(sys.argv[1]).log("t", 0).scan(**how):
        n_rows += batch.num_rows
        n_bytes += batch.nbytes
print(time.perf_counter() - start, cpu() - cpu_start, n_rows, n_bytes)
"""
)
#: One topic of each kind of batch, and one to compact: what the kernels read, inflate and parse.
_READ = (
    _BEGIN
    + """
def read():
    scanner = segmentlog.dataset(sys.argv[1], topics="{topic}").scanner(use_threads=False)
    return sum(batch.num_rows for batch in scanner.to_batches())
read()
start, cpu_start = time.perf_counter(), cpu()
n_rows = sum(read() for _ in range(5))
print(time.perf_counter() - start, cpu() - cpu_start, n_rows, 0)
"""
)
_APPEND = (
    _BEGIN
    + """
import tempfile
import pyarrow
rows = pyarrow.table(
    {"key": [b"%016d" % i for i in range(200_000)], "value": [os.urandom(100)] * 200_000}
)
def append(times):
    with tempfile.TemporaryDirectory(dir=os.path.dirname(sys.argv[1])) as directory:
        with segmentlog.open_writer(directory, "t") as writer:
            for _ in range(times):
                writer.append(rows)
append(1)
start, cpu_start = time.perf_counter(), cpu()
append(15)
print(time.perf_counter() - start, cpu() - cpu_start, 0, 0)
"""
)
_COMPACT = (
    _BEGIN
    + """
import shutil, tempfile
def compact(directory):
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    segmentlog.compact(directory, settings=settings, now_ms=1_900_000_000_000)
def size(directory):
    return sum(entry.stat().st_size for entry in os.scandir(directory + "/compact-0")
               if entry.name.endswith(".log"))
with tempfile.TemporaryDirectory(dir=os.path.dirname(sys.argv[1])) as scratch:
    copies = [shutil.copytree(sys.argv[1], scratch + "/" + name) for name in ("warm", "timed")]
    compact(copies[0])
    start, cpu_start = time.perf_counter(), cpu()
    compact(copies[1])
    print(time.perf_counter() - start, cpu() - cpu_start, size(copies[1]), 0)
"""
)
_SEEK = (
    _BEGIN
    + """
log = segmentlog.open_log_dir(sys.argv[1]).log("t", 0)
end = log.end_offset()
log.scan(0, 100).read_all(), log.offset_for_timestamp(0)
start, cpu_start = time.perf_counter(), cpu()
found = 0
for i in range(1500):
    at = i * 7919 % (end - 10)
    found += log.scan(at, at + 1, columns=["offset"]).read_all()["offset"][0].as_py()
    found += log.offset_for_timestamp(1_700_000_000_000 + at).offset
print(time.perf_counter() - start, cpu() - cpu_start, found, 0)
"""
)
#: Tools, many times in one process: starting takes longer than a small directory.  The first call
#: loads everything.  Lines are compared by their number, because the words may differ.
_TOOL = (
    _BEGIN
    + """
import contextlib, io
from segmentlog.tools.cli import app
def verify():
    app(["verify", sys.argv[1], "--json", "--notes"], standalone_mode=False)
def describe():
    app(["describe", sys.argv[1], "--json"], standalone_mode=False)
def describe_all():
    app(["describe", sys.argv[1], "--all", "--json"], standalone_mode=False)
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    {tool}()
start, cpu_start = time.perf_counter(), cpu()
with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()):
    for _ in range({times}):
        {tool}()
print(time.perf_counter() - start, cpu() - cpu_start, out.getvalue().count(chr(10)), 0)
"""
)
_VERIFY = _TOOL.format(tool="verify", times=6)
_DESCRIBE = _TOOL.format(tool="describe", times=3)
_DESCRIBE_ALL = _TOOL.format(tool="describe_all", times=10)


class Run(NamedTuple):
    """Seconds by the clock and of the processor, and what was planned, scanned or found."""

    wall: float
    cpu: float
    found: float
    n_bytes: float


def timed(work: str, tree: Path, directory: Path) -> Run:
    """Some work on a directory, in a new interpreter with the engine of a tree."""
    environment = os.environ | {"PYTHONPATH": str(tree / "storage")}
    command = [sys.executable, "-c", work, str(directory)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return Run(*map(float, done.stdout.split()))


def compare(work: str, trees: dict[str, Path], directory: Path, rounds: int) -> None:
    """Print the medians of both trees, and their ratio.

    Raises
    ------
    SystemExit
        If the trees find different things.
    """
    warm = {name: timed(work, tree, directory) for name, tree in trees.items()}
    if len({run[2:] for run in warm.values()}) > 1:
        message = f"the trees disagree: {warm}"
        raise SystemExit(message)
    runs: dict[str, list[Run]] = {name: [] for name in trees}
    order = random.Random(rounds)
    for _ in range(rounds):
        for name in order.sample([*trees], len(trees)):
            runs[name].append(timed(work, trees[name], directory))
    for field in ("wall", "cpu"):
        middle = {
            name: statistics.median(getattr(run, field) for run in found)
            for name, found in runs.items()
        }
        spread = ", ".join(
            f"{name} {middle[name]:.3f} s "
            f"({min(getattr(run, field) for run in found):.3f} at best)"
            for name, found in runs.items()
        )
        print(f"  {field}: {middle['that'] / middle['this']:.2f}  {spread}")


def write_log(directory: str, n_rows: int) -> None:
    """A log of records of about a hundred bytes, a millisecond apart, in segments of 64 MiB."""
    import pyarrow as pa

    import segmentlog
    from segmentlog.format.topic_config import TopicConfig
    from segmentlog.writes.config import ProducerConfig

    config = ProducerConfig(TopicConfig(segment_bytes=64 << 20), use_timestamps=True)
    first = 1_700_000_000_000
    times = pa.array(range(first, first + n_rows), pa.timestamp("ms", "UTC"))
    with segmentlog.open_writer(directory, "t", config=config) as writer:
        for start in range(0, n_rows, 100_000):
            part = range(start, start + 100_000)
            keys, values = [b"%08d" % i for i in part], [b"%080d" % i for i in part]
            columns = {"key": keys, "value": values, "timestamp": times[start : start + 100_000]}
            writer.append(pa.table(columns))


def write_kinds(directory: str) -> None:
    """A topic for each codec, one with a batch for each record, and one to compact."""
    import numpy as np
    import pyarrow as pa

    import segmentlog
    from segmentlog.format.topic_config import TopicConfig
    from segmentlog.model import Codec
    from segmentlog.writes.config import ProducerConfig

    rng = np.random.default_rng(1)
    rows = 200_000
    values = [bytes(40) + rng.bytes(60) for _ in range(rows)]
    table = pa.table({"key": [b"%016d" % i for i in range(rows)], "value": values})
    for codec in (Codec.NONE, Codec.LZ4, Codec.ZSTD):
        config = ProducerConfig(codec=codec)
        with segmentlog.open_writer(directory, codec.name.lower(), config=config) as writer:
            for _ in range(10):
                writer.append(table)
    with segmentlog.open_writer(directory, "one", config=ProducerConfig(batch_size=1)) as writer:
        writer.append(table)
    config = ProducerConfig(TopicConfig(segment_bytes=16 << 20))
    with segmentlog.open_writer(directory, "compact", config=config) as writer:
        for _ in range(4):
            keys = [b"%016d" % key for key in rng.integers(0, rows, rows).tolist()]
            writer.append(pa.table({"key": keys, "value": values}))
        writer.roll()
        writer.append(pa.table({"key": [b"last"], "value": [b""]}))


def copy_examples(directory: Path, times: int) -> None:
    """Each partition of ``examples/data`` under several names, and checkpoints for all of them."""
    data = TOP / "examples" / "data"
    (directory / ".kafka_cleanshutdown").touch()
    shutil.copy(data / "meta.properties", directory)
    for each in data.glob("*-*[0-9]"):
        for i in range(times):
            shutil.copytree(each, directory / f"copy{i}_{each.name}")
    for checkpoint in data.glob("*-offset-checkpoint"):
        lines = checkpoint.read_text().splitlines()[2:]
        found = [f"copy{i}_{line}" for line in lines for i in range(times)]
        text = "\n".join(["0", str(len(found)), *found, ""])
        (directory / checkpoint.name).write_text(text)


def main() -> None:
    """Make the directories and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tree", type=Path, help="work tree of the commit to compare with")
    parser.add_argument("--partitions", type=int, default=3000, help="of ten segments each")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    trees = {"this": TOP, "that": arguments.tree.resolve()}
    for has_checkpoints in (False, True):
        with tempfile.TemporaryDirectory() as scratch:
            make_directory(Path(scratch), arguments.partitions, has_checkpoints=has_checkpoints)
            which = "with" if has_checkpoints else "without"
            print(f"planning, {which} high watermarks")
            compare(_PLAN, trees, Path(scratch), arguments.rounds)
    with tempfile.TemporaryDirectory() as scratch:
        write_log(scratch, 2_000_000)
        works = {
            "scan": _SCAN,
            "seek by offset and by time": _SEEK,
            "verify, one large log": _VERIFY,
            "describe --all, one large log": _DESCRIBE_ALL,
        }
        for name, work in works.items():
            print(name)
            compare(work, trees, Path(scratch), arguments.rounds)
    with tempfile.TemporaryDirectory() as scratch:
        write_kinds(f"{scratch}/logs")
        works = {f"read {topic}": _READ.format(topic=topic) for topic in ("none", "lz4", "zstd")}
        works |= {
            "read batches of one record": _READ.format(topic="one"),
            "append": _APPEND,
            "compact": _COMPACT,
        }
        for name, work in works.items():
            print(name)
            compare(work, trees, Path(scratch, "logs"), arguments.rounds)
    with tempfile.TemporaryDirectory() as scratch:
        copy_examples(Path(scratch), 40)
        for name, work in (("verify", _VERIFY), ("describe", _DESCRIBE)):
            print(f"{name}, a broker's small logs, 40 times")
            compare(work, trees, Path(scratch), arguments.rounds)


if __name__ == "__main__":
    main()
