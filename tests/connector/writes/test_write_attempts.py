"""Tasks fail, are killed, repeated or late, and commits fail: jobs are whole or absent."""

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
from segmentlog.errors import LogDirectoryError
from segmentlog.store.lock import DirectoryLock

pytestmark = pytest.mark.spark

N_ROWS = 400

Rows = Iterator[pa.RecordBatch]


def numbers(spark: SparkSession, upstream: Callable[[Rows], Rows] | None = None) -> DataFrame:
    """Rows 0 to 399 in four tasks, which pass through `upstream` before they are written."""
    frame = spark.range(0, N_ROWS, 1, 4)
    if upstream is not None:
        frame = frame.mapInArrow(upstream, "id bigint")
    return frame.selectExpr("cast(id as string) value", "cast(id % 3 as int) partition")


def save(frame: DataFrame, path: Path, **options: str) -> None:
    """Write the rows in one job."""
    options = {"topic": "t", "numPartitions": "3"} | options
    frame.write.format("segmentlog").options(**options).mode("append").save(str(path))


def visible(path: Path) -> list[int]:
    """Values that a reader sees, sorted."""
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
    """The only file of segmentlog's at the top is the state."""
    assert ["segmentlog.state"] == [each.name for each in path.glob("segmentlog.*")]


def wait_for(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait until something is true."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come to be in time"
        time.sleep(0.01)


def fails_once(marker: Path, how: str) -> Callable[[Rows], Rows]:
    """Return the rows of a task, but let its first attempt fail after its first rows.

    It fails by an error, or is killed with SIGKILL.
    """
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


@pytest.mark.needs_spark("Sail does not run a task of a write again")
@pytest.mark.parametrize("how", ["raised", "killed"])
def test_a_task_that_fails_once_is_written_once(
    any_spark: SparkSession, tmp_path: Path, how: str
) -> None:
    """The first attempt leaves no file, and each row is written once."""
    marker, logs = tmp_path / "failed", tmp_path / "logs"
    save(numbers(any_spark, fails_once(marker, how)), logs)

    assert marker.exists()
    assert [*range(N_ROWS)] == visible(logs)
    assert_nothing_is_left(logs)


def test_a_job_that_fails_leaves_what_was_there(any_spark: SparkSession, tmp_path: Path) -> None:
    """One task fails until Spark gives up, while other tasks have staged their rows."""

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
    """Call a function once a job in `path` has begun, and then let its rows come (`waits`)."""

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
    """Rows that wait until `meanwhile` has called its function."""
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
    """The error names the holder, and the rows can be written later."""
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
    """The job fails in all partitions, and the error names the topic."""
    save(numbers(any_spark), tmp_path)
    with (
        meanwhile(tmp_path, lambda: shutil.rmtree(tmp_path / "t-2")),
        pytest.raises(PySparkException, match="partition 2 of topic"),
    ):
        save(numbers(any_spark, waits(tmp_path)), tmp_path)

    assert [i for i in range(N_ROWS) if i % 3 < 2] == visible(tmp_path)
    assert_nothing_is_left(tmp_path)


def writer_of(path: Path) -> SegmentLogWriter:
    """The writer that Spark asks for, pickled and unpickled as for a task."""
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
    """Rows of the other attempt never become visible, and its file is removed."""
    writer = writer_of(tmp_path)
    first, second = writer.write(batches()), writer.write(batches())
    assert 2 == len(list(tmp_path.glob("*.stage")))
    message = cloudpickle.loads(cloudpickle.dumps(second))
    cloudpickle.loads(cloudpickle.dumps(writer)).commit([message])

    assert first.extents.files != second.extents.files
    assert [1, 2, 3] == visible(tmp_path)
    assert_nothing_is_left(tmp_path)


def test_a_message_that_comes_twice_is_committed_once(tmp_path: Path) -> None:
    """The rows of the message are copied into the logs, so a second commit would double them."""
    writer = writer_of(tmp_path)
    message = writer.write(batches())
    again = cloudpickle.loads(cloudpickle.dumps(message))
    writer.commit([message, again])

    assert [1, 2, 3] == visible(tmp_path)
    assert_nothing_is_left(tmp_path)


def test_a_commit_without_the_message_of_a_task_is_refused(tmp_path: Path) -> None:
    """Otherwise the rows of the task would be missing. The job writes nothing."""
    writer = writer_of(tmp_path)
    message = writer.write(batches())
    with pytest.raises(LogDirectoryError, match="1 of the job's 2 tasks have sent no message"):
        writer.commit([message, None])
    writer.abort([message, None])

    assert {} == segmentlog.open_log_dir(tmp_path).topics()
    assert [] == list(tmp_path.glob("segmentlog.*"))


@pytest.mark.parametrize("end", ["abort", "commit"])
def test_a_task_that_begins_late_is_refused(tmp_path: Path, end: str) -> None:
    """Its job has ended, and the task leaves no file."""
    writer = writer_of(tmp_path)
    getattr(writer, end)([])
    with pytest.raises(LogDirectoryError, match="the job has ended"):
        writer.write(batches())

    assert set() == {each.name for each in tmp_path.glob("segmentlog.*")} - {"segmentlog.state"}


@pytest.mark.parametrize("end", ["abort", "commit"])
def test_a_task_that_ends_late_leaves_nothing(tmp_path: Path, end: str) -> None:
    """Its job ended while its rows were coming, and no other job would remove its file."""
    writer = writer_of(tmp_path)

    def late() -> Rows:
        yield from batches()
        getattr(writer, end)([])

    with pytest.raises(LogDirectoryError, match="the job has ended"):
        writer.write(late())

    assert set() == {each.name for each in tmp_path.glob("segmentlog.*")} - {"segmentlog.state"}
