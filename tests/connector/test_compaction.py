"""Compaction as a Spark job, in the driver's threads and in executors of a Connect server.

Workers die, and jobs are cancelled. Speculation needs two machines, so `test_dead_tasks` has
processes as concurrent attempts.
"""

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_type_hints

import pyarrow as pa
import pytest
from broker_lock import as_broker
from compaction.batches import lay_out, records_of
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import pyspark_segmentlog
import segmentlog
from pyspark_segmentlog import compaction
from segmentlog import errors
from segmentlog.errors import ChecksumMismatchError, LogLockedError
from segmentlog.format.names import CLEANER_OFFSET_CHECKPOINT
from segmentlog.log.checkpoint import read_offsets
from segmentlog.maintain import CompactionTask

pytestmark = pytest.mark.linux

COMPACT = {"cleanup.policy": "compact"}
N = 5


def lay_out_logs(directory: Path) -> None:
    """Logs of some partitions; each has closed segments and an active one."""
    for partition in range(N):
        segments = {
            0: [records_of(0, (b"a", b"1"), (b"b", b"%d" % partition), (b"a", b"2"))],
            3: [records_of(3, (b"a", b"3")), records_of(4, (b"c", b"4"))],
            5: [records_of(5, (b"a", b"5"))],
        }
        lay_out(directory, segments, f"t-{partition}")


def offsets_of(directory: Path, partition: int) -> list[int]:
    """Offsets that a reader finds."""
    log = segmentlog.open_log_dir(directory).log("t", partition)
    return [int(each) for each in log.scan(columns=["offset"]).read_all()["offset"].to_pylist()]


_LOCK = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB)"


def is_locked_by_another(directory: Path) -> bool:
    """Whether a process cannot lock the whole file as a broker does."""
    command = [sys.executable, "-c", _LOCK, str(directory / ".lock")]
    return bool(subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode)


def test_each_task_compacts_a_partition(any_spark: SparkSession, tmp_path: Path) -> None:
    """The result is that of a compaction without Spark. No file is left, and no log is due."""
    for name in ("here", "spark"):
        (tmp_path / name).mkdir()
        lay_out_logs(tmp_path / name)
    expected = segmentlog.compact(tmp_path / "here", settings=COMPACT)
    found = pyspark_segmentlog.compact(any_spark, tmp_path / "spark", settings=COMPACT)

    assert N == len(found)
    assert expected == found
    for partition in range(N):
        assert [1, 3, 4, 5] == offsets_of(tmp_path / "spark", partition)
    checkpoints = [
        read_offsets(str(tmp_path / name), CLEANER_OFFSET_CHECKPOINT) for name in ("here", "spark")
    ]
    assert N == len(checkpoints[0])
    assert checkpoints[0] == checkpoints[1]
    assert [] == pyspark_segmentlog.compact(any_spark, tmp_path / "spark", settings=COMPACT)


@pytest.mark.thorough
def test_a_log_in_a_store_is_compacted_by_tasks(any_spark: SparkSession, tmp_path: Path) -> None:
    here, spark = (f"bucket+file://{tmp_path}/{name}" for name in ("here", "spark"))
    for url in (here, spark):
        for i in range(4):
            with segmentlog.open_writer(url, "t", num_partitions=2) as writer:
                rows = {"partition": pa.array([0, 1], pa.int32()), "value": [f"{i}"] * 2}
                writer.append(pa.table({"key": ["k", f"k{i % 2}"], **rows}))
    expected = segmentlog.compact(here, settings=COMPACT)
    logs = list[str]()
    found = pyspark_segmentlog.compact(any_spark, spark, settings=COMPACT, on_log=logs.append)
    assert [each._replace(bytes_before=0, bytes_after=0) for each in found] == [
        each._replace(bytes_before=0, bytes_after=0) for each in expected
    ]
    assert [(each.records_before, each.records_after) for each in found] == [(4, 1), (4, 2)]
    assert logs == ["t-0", "t-1"] * 2
    assert [offsets_of_store(spark, each) for each in (0, 1)] == [[3], [2, 3]]
    assert pyspark_segmentlog.compact(any_spark, spark, settings=COMPACT) == []


def offsets_of_store(url: str, partition: int) -> list[int]:
    """Offsets that a reader finds."""
    found = segmentlog.open_log_dir(url).log("t", partition).scan(columns=["offset"])
    return [int(each) for each in found.read_all()["offset"].to_pylist()]


def lay_out_many_keys(directory: Path) -> dict[int, dict[bytes, bytes]]:
    """Logs of several segments; the last value of each key, by partition."""
    rng, last = random.Random(7), {}
    for partition in range(N):
        pairs = [(b"%d" % rng.randrange(9), b"%d" % offset) for offset in range(20)]
        segments = {
            base: [records_of(base, *pairs[base : base + 4])] for base in range(0, len(pairs), 4)
        }
        lay_out(directory, segments, f"t-{partition}")
        last[partition] = dict(pairs)
    return last


def values_of(directory: Path) -> dict[int, dict[bytes, bytes]]:
    """The last value of each key that a reader finds, by partition."""
    opened = segmentlog.open_log_dir(directory)
    tables = {each: opened.log("t", each).scan().read_all() for each in range(N)}
    return {
        each: dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))
        for each, table in tables.items()
    }


#: Functions of `os` by which a compaction changes files.
CALLS = ("open", "pwrite", "fsync", "rename", "replace", "unlink", "utime")


def stops_at(
    stop: Callable[[CompactionTask], None],
    number_of: Callable[[int, int], int],
    names: Sequence[str] = CALLS,
) -> Callable[[CompactionTask], object]:
    """A task that stops once, at a call of `os` that depends on the task and the attempt."""

    def outcome(task: CompactionTask) -> object:
        from pyspark import TaskContext

        from segmentlog.maintain import clean_task

        context = TaskContext.get()
        assert context is not None
        left = number_of(task.number, context.attemptNumber())
        real = {name: getattr(os, name) for name in names}

        def wrapped(call: Callable[..., object]) -> Callable[..., object]:
            def counted(*given: object, **keywords: object) -> object:
                nonlocal left
                left -= 1
                if left == -1:
                    stop(task)
                return call(*given, **keywords)

            return counted

        for name, call in real.items():
            setattr(os, name, wrapped(call))
        try:
            return clean_task(task)
        finally:
            for name, call in real.items():
                setattr(os, name, call)

    return outcome


@pytest.fixture
def by_value() -> Iterator[None]:
    """Send functions of this module to the workers by value, because they cannot import it."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.mark.usefixtures("by_value")
@pytest.mark.parametrize(
    ("n_rounds", "n_deaths"),
    [(1, 1), pytest.param(60, 3, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])],
)
@pytest.mark.needs_spark("Sail has no worker processes that could be killed")
def test_workers_that_are_killed_at_any_step(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    n_rounds: int,
    n_deaths: int,
) -> None:
    """The first attempts at each partition die, and the last attempt loses no key."""
    n_calls = 84  # of a task that is not stopped

    def kill(task: CompactionTask) -> None:
        Path(f"{task.directory}.died.{os.getpid()}").touch()
        os.kill(os.getpid(), signal.SIGKILL)

    for first in range(n_rounds):

        def number_of(task: int, attempt: int, first: int = first) -> int:
            if attempt >= n_deaths:
                return 10**9
            return (first * (1 + attempt * task) + n_calls // N * task - 7) % n_calls

        directory = tmp_path / str(first)
        last = lay_out_many_keys(directory)
        monkeypatch.setattr(compaction, "_outcome", stops_at(kill, number_of))
        done = pyspark_segmentlog.compact(spark, directory, settings=COMPACT)
        assert N == len(done)
        # An attempt after a finished swap makes fewer calls.
        assert len([*tmp_path.glob(f"{first}.died.*")]) > N * n_deaths / 2
        assert last == values_of(directory)
        assert not is_locked_by_another(directory)
        assert [] == [*directory.glob("*/*.cleaned"), *directory.glob("*/*.swap")]


@pytest.mark.thorough
@pytest.mark.usefixtures("by_value")
@pytest.mark.parametrize(
    ("names", "number"), [pytest.param(CALLS, 0, marks=pytest.mark.slow), (["rename"], 3)]
)
def test_a_job_that_is_cancelled(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    names: Sequence[str],
    number: int,
) -> None:
    """The lock is held until Spark has ended the tasks, at their beginning and inside a swap."""
    last = lay_out_many_keys(tmp_path)
    waiting = str(tmp_path / "waiting")

    def wait(_: CompactionTask) -> None:
        Path(waiting).touch()
        threading.Event().wait()

    errors: list[Exception] = []

    def compact() -> None:
        try:
            pyspark_segmentlog.compact(spark, tmp_path, settings=COMPACT)
        except Exception as error:  # noqa: BLE001 - of Java
            errors.append(error)

    with monkeypatch.context() as patch:
        patch.setattr(compaction, "_outcome", stops_at(wait, lambda *_: number, names))
        job = threading.Thread(target=compact)
        job.start()
        while job.is_alive() and not Path(waiting).exists():
            job.join(0.01)
        spark.sparkContext.cancelAllJobs()
        job.join()
    assert len(errors) == 1
    pyspark_segmentlog.compact(spark, tmp_path, settings=COMPACT)
    assert last == values_of(tmp_path)


def test_a_damaged_partition_does_not_hold_the_others_up(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The damaged partition is not changed, and the error is that of the engine."""
    lay_out_logs(tmp_path)
    path = tmp_path / "t-1" / f"{0:020d}.log"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ChecksumMismatchError, match="t-1"):
        pyspark_segmentlog.compact(spark, tmp_path, settings=COMPACT)

    assert {0, 2, 3, 4} == {
        each.partition for each in read_offsets(str(tmp_path), CLEANER_OFFSET_CHECKPOINT)
    }
    assert [1, 3, 4, 5] == offsets_of(tmp_path, 2)
    assert [] == list(tmp_path.glob("*/*.cleaned"))


@pytest.mark.parametrize("name", sorted({*errors.__all__} - {"ErrorCode", "SegmentLogError"}))
def test_every_error_of_a_task_reaches_the_driver(name: str) -> None:
    """It has the class and the message that it was raised with; a path may have any bytes."""
    kind = getattr(errors, name)
    # A class has no signature before its first error.
    types = (get_type_hints(kind) | get_type_hints(kind.__init__)).values()
    samples = {str: "/d/\udcff", int: 2**62, float: 0.5, bool: True, tuple[str, ...]: ("a", "b")}
    error = kind(*(samples[each] for each in types if each in samples))
    sent = compaction._as_json(error)
    found = compaction._from_json(sent)

    assert sent.isascii()
    assert isinstance(found, errors.SegmentLogError)
    assert (type(error), error.args, str(error)) == (type(found), found.args, str(found))


def test_the_driver_runs_nothing_that_a_task_names() -> None:
    """The driver creates only errors of the engine from a message."""
    with pytest.raises(ValueError, match="system"):
        compaction._from_json('{"error": "system", "arguments": ["ls"]}')
    assert compaction._from_json(compaction._as_json(None)) is None


def test_a_directory_that_is_in_use(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is refused before any task runs. The lock is held while tasks run."""
    lay_out_logs(tmp_path)
    with as_broker(tmp_path), pytest.raises(LogLockedError):
        pyspark_segmentlog.compact(spark, tmp_path, settings=COMPACT)

    run, kept_out = compaction._run, []

    def watched(*given: Any) -> Any:
        kept_out.append(is_locked_by_another(tmp_path))
        outcomes = run(*given)
        kept_out.append(is_locked_by_another(tmp_path))
        return outcomes

    monkeypatch.setattr(compaction, "_run", watched)
    pyspark_segmentlog.compact(spark, tmp_path, settings=COMPACT)
    assert [True, True, False] == [*kept_out, is_locked_by_another(tmp_path)]
