"""Tasks that fail, are killed, repeated or late, and commits that fail: whole jobs or nothing."""

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import segmentlog
from pyspark_segmentlog import DefaultSource
from pyspark_segmentlog.writes.writer import SegmentLogWriter
from segmentlog.disk.lock import DirectoryLock
from segmentlog.errors import LogDirectoryError

pytestmark = pytest.mark.spark

N_ROWS = 400

Rows = Iterator[pa.RecordBatch]


def numbers(spark: SparkSession, upstream: Callable[[Rows], Rows] | None = None) -> DataFrame:
    """Rows 0 to 399 in four tasks; they pass through `upstream` before they are written."""
    frame = spark.range(0, N_ROWS, 1, 4)
    if upstream is not None:
        frame = frame.mapInArrow(upstream, "id bigint")
    return frame.selectExpr("cast(id as string) value", "cast(id % 3 as int) partition")


def save(frame: DataFrame, path: Path, **options: str) -> None:
    """One job."""
    options = {"topic": "t", "numPartitions": "3"} | options
    frame.write.format("segmentlog").options(**options).mode("append").save(str(path))


def visible(path: Path) -> list[int]:
    """Values that a reader sees, in order of their numbers."""
    opened = segmentlog.open_log_dir(path)
    return sorted(
        int(value)
        for partition in opened.topics()["t"]
        for value in opened.log("t", partition)
        .scan(columns=["value"])
        .read_all()["value"]
        .to_pylist()
    )


def assert_nothing_is_left(path: Path) -> None:
    """No file of ours stands at the top but the state."""
    assert ["segmentlog.state"] == [each.name for each in path.glob("segmentlog.*")]


def wait_for(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait until something is true."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come to be in time"
        time.sleep(0.01)


def fails_once(marker: Path, how: str) -> Callable[[Rows], Rows]:
    """Rows of a task whose first attempt ends behind its first rows, by an error or by kill -9."""
    path = str(marker)

    def upstream(batches: Rows) -> Rows:
        import os
        import signal

        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            if 0 in batch.column(0).to_pylist():
                with contextlib.suppress(FileExistsError):
                    os.close(os.open(path, os.O_CREAT | os.O_EXCL))
                    if how == "killed":
                        os.kill(os.getpid(), signal.SIGKILL)
                    raise ValueError(how)
            yield batch.slice(half)

    return upstream


@pytest.mark.parametrize("how", ["raised", "killed"])
def test_a_task_that_fails_once_is_written_once(
    any_spark: SparkSession, tmp_path: Path, how: str
) -> None:
    """Its first attempt leaves nothing, and its rows come once."""
    marker, logs = tmp_path / "failed", tmp_path / "logs"
    save(numbers(any_spark, fails_once(marker, how)), logs)

    assert marker.exists()
    assert [*range(N_ROWS)] == visible(logs)
    assert_nothing_is_left(logs)


def test_a_job_that_fails_leaves_what_was_there(any_spark: SparkSession, tmp_path: Path) -> None:
    """One task fails as often as it may, while others have staged their rows."""

    def upstream(batches: Rows) -> Rows:
        for batch in batches:
            if 0 in batch.column(0).to_pylist():
                raise ValueError("this task never succeeds")
            yield batch

    save(numbers(any_spark), tmp_path)
    with pytest.raises(PySparkException, match="this task never succeeds"):
        save(numbers(any_spark, upstream), tmp_path)

    assert [*range(N_ROWS)] == visible(tmp_path)
    wait_for(lambda: len(list(tmp_path.glob("segmentlog.*"))) == 1)
    save(numbers(any_spark), tmp_path)
    assert sorted([*range(N_ROWS)] * 2) == visible(tmp_path)
    assert_nothing_is_left(tmp_path)


@contextlib.contextmanager
def meanwhile(path: Path, act: Callable[[], object]) -> Iterator[None]:
    """Do something once a job in `path` has begun, and then let its rows come (`waits`)."""

    def run() -> None:
        wait_for(lambda: list(path.glob("segmentlog.*.job")))
        act()
        (path / "acted").touch()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        (path / "acted").unlink()


def waits(path: Path) -> Callable[[Rows], Rows]:
    """Rows that do not come before `meanwhile` has acted."""
    acted = path / "acted"

    def upstream(batches: Rows) -> Rows:
        import time

        while not acted.exists():
            time.sleep(0.01)
        yield from batches

    return upstream


def test_a_commit_that_does_not_get_the_lock_writes_nothing(
    any_spark: SparkSession, tmp_path: Path
) -> None:
    """It says who has it, and the same rows can be written later."""
    save(numbers(any_spark), tmp_path)
    lock = DirectoryLock(str(tmp_path), 60)
    try:
        with (
            meanwhile(tmp_path, lock.__enter__),
            pytest.raises(PySparkException, match="is in use"),
        ):
            save(numbers(any_spark, waits(tmp_path)), tmp_path, lockTimeout="1")
    finally:
        lock.__exit__(None, None, None)

    assert [*range(N_ROWS)] == visible(tmp_path)
    assert_nothing_is_left(tmp_path)
    save(numbers(any_spark), tmp_path)
    assert sorted([*range(N_ROWS)] * 2) == visible(tmp_path)


def test_a_topic_that_is_deleted_while_tasks_run(any_spark: SparkSession, tmp_path: Path) -> None:
    """The job fails with the name of what is missing, in all partitions."""
    save(numbers(any_spark), tmp_path)
    with (
        meanwhile(tmp_path, lambda: shutil.rmtree(tmp_path / "t-2")),
        pytest.raises(PySparkException, match="partition 2 of topic"),
    ):
        save(numbers(any_spark, waits(tmp_path)), tmp_path)

    assert [i for i in range(N_ROWS) if i % 3 < 2] == visible(tmp_path)
    assert_nothing_is_left(tmp_path)


def writer_of(path: Path) -> SegmentLogWriter:
    """The writer that Spark asks for, after a journey to a task."""
    schema = StructType().add("value", "string").add("partition", "integer")
    source = DefaultSource({"path": str(path), "topic": "t", "numpartitions": "3"})
    writer = source.writer(schema, overwrite=False)
    return cloudpickle.loads(cloudpickle.dumps(writer))


def batches() -> Rows:
    """The rows of a task."""
    yield pa.RecordBatch.from_pydict(
        {"value": ["1", "2", "3"], "partition": pa.array([0, 1, 2], pa.int32())}
    )


def test_of_two_attempts_one_is_committed(tmp_path: Path) -> None:
    """The other's rows are never seen, and its file is gone."""
    writer = writer_of(tmp_path)
    first, second = writer.write(batches()), writer.write(batches())
    assert 2 == len(list(tmp_path.glob("*.stage")))
    message = cloudpickle.loads(cloudpickle.dumps(second))
    cloudpickle.loads(cloudpickle.dumps(writer)).commit([message])

    assert first.extents.names != second.extents.names
    assert [1, 2, 3] == visible(tmp_path)
    assert_nothing_is_left(tmp_path)


def test_a_message_that_comes_twice_is_committed_once(tmp_path: Path) -> None:
    """Its rows are copied into the logs; the second time they would follow themselves."""
    writer = writer_of(tmp_path)
    message = writer.write(batches())
    again = cloudpickle.loads(cloudpickle.dumps(message))
    writer.commit([message, again])

    assert [1, 2, 3] == visible(tmp_path)
    assert_nothing_is_left(tmp_path)


def test_a_commit_without_the_message_of_a_task_is_refused(tmp_path: Path) -> None:
    """Its rows would be left out without a word; nothing of the job is written instead."""
    writer = writer_of(tmp_path)
    message = writer.write(batches())
    with pytest.raises(LogDirectoryError, match="no message has come from 1 of 2 tasks"):
        writer.commit([message, None])
    writer.abort([message, None])

    assert {} == segmentlog.open_log_dir(tmp_path).topics()
    assert [] == list(tmp_path.glob("segmentlog.*"))


@pytest.mark.parametrize("end", ["abort", "commit"])
def test_a_task_that_begins_late_is_refused(tmp_path: Path, end: str) -> None:
    """The job that it belongs to has ended; it leaves nothing."""
    writer = writer_of(tmp_path)
    getattr(writer, end)([])
    with pytest.raises(LogDirectoryError, match="the job has ended"):
        writer.write(batches())

    assert set() == {each.name for each in tmp_path.glob("segmentlog.*")} - {"segmentlog.state"}


@pytest.mark.parametrize("end", ["abort", "commit"])
def test_a_task_that_ends_late_leaves_nothing(tmp_path: Path, end: str) -> None:
    """Its job has ended while its rows were coming; nobody would remove its file any more."""
    writer = writer_of(tmp_path)

    def late() -> Rows:
        yield from batches()
        getattr(writer, end)([])

    with pytest.raises(LogDirectoryError, match="the job has ended"):
        writer.write(late())

    assert set() == {each.name for each in tmp_path.glob("segmentlog.*")} - {"segmentlog.state"}
