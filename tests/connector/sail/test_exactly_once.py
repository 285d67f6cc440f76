"""Writes on Sail: tasks fail, commits fail, servers are killed, and jobs are whole or absent."""

import contextlib
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import segmentlog
from pyspark_segmentlog.writes.writer import SegmentLogWriter
from segmentlog.txn.change import Change
from segmentlog.txn.guard import list_guards

_SERVER = """
import sys
from pysail.spark import SparkConnectServer
server = SparkConnectServer()
server.start(background=True)
print(server.listening_address[1], flush=True)
sys.stdin.read()  # until the process that has started it ends
"""


class SailServer:
    """A server in a process of its own.

    Parameters
    ----------
    settings : further environment variables, such as ``SAIL_MODE``.
    """

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _SERVER],
            env={**os.environ, **(settings or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self.process.stdout is not None
        self._port = int(self.process.stdout.readline())

    def session(self) -> SparkSession:
        """A new session, which finds the data source."""
        from pyspark.sql.connect.session import SparkSession as Session

        from pyspark_segmentlog import register

        session: Any = Session.builder.remote(f"sc://127.0.0.1:{self._port}").create()
        register(session)  # waits until the server listens
        session.client.set_retry_policies([])  # it would wait minutes for one that was killed
        return cast("SparkSession", session)

    def end(self) -> None:
        """End the process, if it has not been killed."""
        self.process.communicate()


pytestmark = pytest.mark.only_sail

N_ROWS, N_TASKS = 40, 4
CLUSTER = {"SAIL_MODE": "local-cluster", "SAIL_CLUSTER__WORKER_INITIAL_COUNT": "2"}

Rows = Iterator[pa.RecordBatch]


def job(spark: SparkSession, number: int) -> DataFrame:
    """Rows of one job, in four tasks and three partitions."""
    rows = spark.range(0, N_ROWS, 1, N_TASKS)
    return rows.selectExpr(f"'{number}' value", "cast(id % 3 as int) partition")


def save(frame: DataFrame, path: Path | str, **options: str) -> None:
    """Write the rows in one job."""
    options = {"topic": "t", "numPartitions": "3"} | options
    frame.write.format("segmentlog").options(**options).mode("append").save(str(path))


def visible(path: Path) -> dict[int, int]:
    """How many rows of each job a reader sees."""
    opened = segmentlog.open_log_dir(path)
    found: dict[int, int] = {}
    for each in opened.topic_partitions():
        for value in opened.log(*each).scan(columns=["value"]).read_all()["value"].to_pylist():
            found[int(value)] = found.get(int(value), 0) + 1
    return found


def left_over(path: Path) -> list[str]:
    """Files of jobs that have not ended."""
    return [each.name for each in path.glob("segmentlog.*") if each.name != "segmentlog.state"]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the writer's methods, as Sail calls them in this process."""
    called: list[str] = []
    for name in ("write", "commit", "abort"):
        monkeypatch.setattr(SegmentLogWriter, name, noted(called, getattr(SegmentLogWriter, name)))
    return called


def noted(called: list[str], method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that adds its name to a list."""

    def call(self: SegmentLogWriter, given: Any) -> Any:
        called.append(method.__name__)
        return method(self, given)

    return call


def test_each_task_writes_once_and_one_commit_follows(
    spark: SparkSession, tmp_path: Path, calls: list[str]
) -> None:
    """Tasks are not repeated, and nothing is aborted."""
    save(job(spark, 1), tmp_path)

    assert ["write"] * N_TASKS + ["commit"] == calls
    assert ({1: N_ROWS}, []) == (visible(tmp_path), left_over(tmp_path))


def test_a_task_that_fails_aborts_the_job(
    spark: SparkSession, tmp_path: Path, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sail does not run a task again: the job fails, leaves no file, and can be repeated."""
    failing = monkeypatch.context()
    with failing as patch:
        stage = "pyspark_segmentlog.writes.writer.stage_rows"
        patch.setattr(stage, raises(OSError("no space")))
        with pytest.raises(PySparkException, match="no space"):
            save(job(spark, 1), tmp_path)

    assert ["write"] * N_TASKS + ["abort"] == calls
    assert ({}, []) == (visible(tmp_path), left_over(tmp_path))
    save(job(spark, 1), tmp_path)
    assert {1: N_ROWS} == visible(tmp_path)


def raises(error: Exception) -> Callable[..., Any]:
    """A function that fails."""

    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


def test_rows_that_fail_to_come_abort_the_job(
    spark: SparkSession, tmp_path: Path, calls: list[str]
) -> None:
    """Other tasks have staged their rows by then."""

    def upstream(batches: Rows) -> Rows:
        for batch in batches:
            if 0 in batch.column(0).to_pylist():
                raise ValueError("this task never succeeds")
            yield batch

    rows = spark.range(0, N_ROWS, 1, N_TASKS).mapInArrow(upstream, "id bigint")
    with pytest.raises(PySparkException, match="this task never succeeds"):
        save(rows.selectExpr("cast(id as string) value"), tmp_path)

    assert "abort" == calls[-1]
    assert "commit" not in calls
    assert ({}, []) == (visible(tmp_path), left_over(tmp_path))


@pytest.mark.parametrize("moment", ["before", "amid", "after"])
def test_an_abort_after_a_failed_commit_decides_nothing_again(
    spark: SparkSession,
    tmp_path: Path,
    calls: list[str],
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    """Sail aborts a job whose commit has failed. Rows that were committed stay, whole."""
    save(job(spark, 0), tmp_path)
    calls.clear()
    error = OSError("the disk went away")
    with monkeypatch.context() as patch:
        if moment == "before":
            patch.setattr(Change, "_reach_decision", raises(error))
        if moment == "amid":
            patch.setattr(Change, "_follow_decision", raises(error))
        if moment == "after":
            commit = SegmentLogWriter.commit

            def late(self: SegmentLogWriter, messages: Any) -> None:
                commit(self, messages)
                raise error

            patch.setattr(SegmentLogWriter, "commit", late)
        with pytest.raises(PySparkException, match="the disk went away"):
            save(job(spark, 1), tmp_path)

    assert "abort" == calls[-1]
    save(job(spark, 2), tmp_path)  # settles what is in doubt
    expected = {0: N_ROWS, 2: N_ROWS} | ({} if moment == "before" else {1: N_ROWS})
    assert (expected, []) == (visible(tmp_path), left_over(tmp_path))


def test_a_numbered_job_that_is_repeated_is_written_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A client that lost the answer writes again, with the number of the job."""
    for number in (1, 1, 2, 1):
        save(job(spark, number), tmp_path, txnAppId="app", txnVersion=str(number))

    assert {1: N_ROWS, 2: N_ROWS} == visible(tmp_path)


def test_two_workers_write_and_read(tmp_path: Path) -> None:
    """The driver and both workers of ``local-cluster`` are threads of one process."""
    server = SailServer(CLUSTER)
    spark = server.session()
    try:
        for number in (1, 1, 2):
            save(job(spark, number), tmp_path, txnAppId="app", txnVersion=str(number))
        spark.range(0, N_ROWS, 1, N_TASKS).createOrReplaceTempView("rows")
        failing = spark.sql("select cast(raise_error('no') as string) value from rows")
        with pytest.raises(PySparkException):
            save(failing, tmp_path)
        found = spark.read.format("segmentlog").load(str(tmp_path)).count()
    finally:
        server.end()

    assert 2 * N_ROWS == found
    assert ({1: N_ROWS, 2: N_ROWS}, []) == (visible(tmp_path), left_over(tmp_path))


@pytest.mark.parametrize("mode", [{}, CLUSTER], ids=["local", "local-cluster"])
def test_workers_write_and_read_a_log_in_an_object_store(
    tmp_path: Path, mode: dict[str, str]
) -> None:
    """A numbered write is there once, and a job that fails leaves only objects for a sweep."""
    pytest.importorskip("obstore")
    url = f"bucket+file://{tmp_path}/log"
    server = SailServer(mode)
    spark = server.session()
    try:
        for number in (1, 1, 2):
            save(job(spark, number), url, txnAppId="app", txnVersion=str(number))
        spark.range(0, N_ROWS, 1, 4).createOrReplaceTempView("rows")
        failing = spark.sql("select if(id = 39, raise_error('no'), 'x') value from rows")
        with pytest.raises(PySparkException):
            save(failing, url)
        found = spark.read.format("segmentlog").load(url)
        counted = {row.value: row["count"] for row in found.groupBy("value").count().collect()}
    finally:
        server.end()

    assert {b"1": N_ROWS, b"2": N_ROWS} == {bytes(key): n for key, n in counted.items()}
    assert segmentlog.read(url, "t").num_rows == 2 * N_ROWS
    segmentlog.sweep(url, longest_job_days=0)
    assert [] == segmentlog.verify(url)


@pytest.mark.linux
@pytest.mark.parametrize("mode", [{}, CLUSTER], ids=["local", "local-cluster"])
@pytest.mark.parametrize("n_kills", [2, pytest.param(100, marks=pytest.mark.slow)])
def test_a_server_that_is_killed_leaves_jobs_whole_or_absent(
    tmp_path: Path, n_kills: int, mode: dict[str, str]
) -> None:
    """A job whose answer was lost is written again with its number, and is there once."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    number = 0
    for kill in range(n_kills):
        server = SailServer(mode)
        spark = server.session()
        repeat(spark, number, tmp_path)  # was it written by the server that was killed?
        assert dict.fromkeys(range(number + 1), N_ROWS) == visible(tmp_path)
        killer = threading.Thread(target=end_of, args=(server, tmp_path, dice.random(), kill))
        killer.start()
        with contextlib.suppress(Exception):
            while True:
                number += 1
                repeat(spark, number, tmp_path)
        killer.join()
        seen = visible(tmp_path)
        assert dict.fromkeys(range(number), N_ROWS) == {
            each: n for each, n in seen.items() if each < number
        }
        assert seen.get(number, 0) in {0, N_ROWS}


def repeat(spark: SparkSession, number: int, path: Path) -> None:
    """Write a job, unless it has been written."""
    save(job(spark, number), path, txnAppId="app", txnVersion=str(number))


def end_of(server: SailServer, path: Path, after: float, kill: int) -> None:
    """Kill a server at any moment, or every other time amid a commit."""
    until = time.monotonic() + 5
    while kill % 2 and not list_guards(str(path)) and time.monotonic() < until:
        time.sleep(0.0005)
    time.sleep(after / 50 if kill % 2 else after)
    server.process.kill()
    server.end()
