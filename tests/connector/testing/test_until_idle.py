"""Jobs that wait for ever run until their queries have read all input, and are stopped."""

import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import sleep as imported_sleep
from types import ModuleType
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from segmentlog.testing.kafka_log import KafkaLog

pytestmark = [
    pytest.mark.spark,
    pytest.mark.needs_spark("Sail runs no streams of Python data sources"),
]

SERVERS = "broker:9092"


@pytest.fixture
def start(
    spark: SparkSession, kafka_log: KafkaLog, as_kafka: Any, tmp_path: Path
) -> Callable[..., Any]:
    """Starts a query from one topic to another one, as a job does, with a trigger of an hour."""
    as_kafka({SERVERS: kafka_log})

    def begin(source: str, sink: str) -> Any:
        options = {"kafka.bootstrap.servers": SERVERS, "startingOffsets": "earliest"}
        rows = spark.readStream.format("kafka").options(**options, subscribe=source).load()
        writer = rows.selectExpr("concat(value, '!') AS value").writeStream.format("kafka")
        writer = writer.options(**options, topic=sink, checkpointLocation=str(tmp_path / sink))
        return writer.trigger(processingTime="1 hour").start()

    return begin


@pytest.mark.slow
def test_a_job_that_waits_for_ever_ends_with_all_rows(
    spark: SparkSession, kafka_log: KafkaLog, start: Any, run_until_idle: Any
) -> None:
    """A query reads all that another one writes; the session stays, and main goes on."""
    kafka_log.write("in", ["a", "b"])
    kafka_log.create_topic("between")

    def main() -> str:
        start("between", "out")
        query = start("in", "between")
        spark.streams.awaitAnyTermination()
        assert query.awaitTermination(1000)
        spark.stop()
        return "ended"

    assert "ended" == run_until_idle(main)
    assert ["a!!", "b!!"] == kafka_log.read("out").values()
    assert [] == spark.streams.active


@pytest.mark.slow
def test_a_job_may_end_in_other_ways(
    spark: SparkSession, kafka_log: KafkaLog, start: Any, run_until_idle: Any
) -> None:
    """A loop over `isActive`, a return without a wait, and an exit: all rows are processed."""
    kafka_log.write("in", ["a"])

    def loop() -> None:
        query = start("in", "looped")
        if not query.isActive:
            raise AssertionError
        while query.isActive:
            time.sleep(0.01)

    def leave() -> None:
        start("in", "left")
        sys.exit()

    for job, sink in ((loop, "looped"), (leave, "left")):
        run_until_idle(job)
        assert ["a!"] == kafka_log.read(sink).values()
    with pytest.raises(SystemExit, match="3"):
        run_until_idle(lambda: sys.exit(3))
    assert [] == spark.streams.active


#: Ways in which a job waits for ever, with its query; each is a loop or never returns.
FOR_EVER: dict[str, Callable[[SparkSession, Any], Any]] = {
    "sleep": lambda spark, query: forever(lambda: time.sleep(3600)),
    "short-sleeps": lambda spark, query: forever(lambda: time.sleep(0.5)),
    "imported-sleep": lambda spark, query: forever(lambda: imported_sleep(60)),
    "sleep-of-active": lambda spark, query: forever(
        lambda: time.sleep(1), lambda: spark.streams.active
    ),
    "await": lambda spark, query: forever(lambda: query.awaitTermination(10)),
    "await-any": lambda spark, query: forever(
        lambda: (spark.streams.awaitAnyTermination(), spark.streams.resetTerminated())
    ),
    "pause": lambda spark, query: forever(signal.pause),
    "event": lambda spark, query: threading.Event().wait(),
    "event-with-timeout": lambda spark, query: forever(lambda: threading.Event().wait(30)),
}


def forever(act: Callable[[], Any], goes_on: Callable[[], Any] = lambda: True) -> None:
    """The loop of a job."""
    while goes_on():
        act()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "way",
    [pytest.param(each, marks=() if each == "sleep" else pytest.mark.slow) for each in FOR_EVER],
)
def test_a_job_that_waits_otherwise_is_interrupted(
    spark: SparkSession, kafka_log: KafkaLog, start: Any, run_until_idle: Any, way: str
) -> None:
    """As by an operator's Ctrl-C, after its rows are processed: what it does then is done."""
    kafka_log.write("in", ["a"])
    done = []

    def main() -> None:
        query = start("in", "out")
        try:
            FOR_EVER[way](spark, query)
        finally:
            done.append(query.isActive)

    run_until_idle(main, timeout=30)
    assert ["a!"] == kafka_log.read("out").values()
    assert ([False], []) == (done, spark.streams.active)
    assert time.sleep is imported_sleep


@pytest.mark.thorough
def test_a_job_that_waits_for_a_time_goes_on(
    kafka_log: KafkaLog, start: Any, run_until_idle: Any
) -> None:
    """Its rows are processed, no time passes, and nothing after its sleeps is left out."""
    kafka_log.write("in", ["a"])
    is_set, seen, late = threading.Event(), [], ModuleType("late")

    def main() -> str:
        query = start("in", "out")
        late.sleep = time.sleep  # a module that is imported now keeps this name
        for _ in range(50):
            time.sleep(5)
            seen.append((query.isActive, len(kafka_log.read("out"))))
        assert not is_set.wait(20)
        threading.Thread(target=is_set.set).start()
        assert is_set.wait()
        return "ended"

    begin = time.monotonic()
    assert "ended" == run_until_idle(main)
    assert late.sleep is not imported_sleep
    begin_of_sleep = time.monotonic()
    late.sleep(0.05)
    assert time.monotonic() - begin_of_sleep >= 0.05
    assert [(True, 1)] == seen[:1]
    assert [1] * 50 == [n for _, n in seen]
    assert time.monotonic() - begin < 200


@pytest.mark.thorough
def test_the_errors_of_a_job_and_of_its_queries_are_raised(
    spark: SparkSession, kafka_log: KafkaLog, start: Any, run_until_idle: Any
) -> None:
    """As main gets them; also of a query that nobody waits for, but none that main has handled."""
    kafka_log.write("in", ["a"])

    def fail(rows: DataFrame, _: int) -> None:
        raise RuntimeError(f"cannot take {rows.count()} row")

    def failing() -> Any:
        options = {"kafka.bootstrap.servers": SERVERS, "startingOffsets": "earliest"}
        rows = spark.readStream.format("kafka").options(**options, subscribe="in").load()
        return rows.writeStream.foreachBatch(fail).start()

    for job in (lambda: failing().awaitTermination(), failing):
        with pytest.raises(StreamingQueryException, match="cannot take 1 row"):
            run_until_idle(job)

    def handle() -> str:
        try:
            failing().awaitTermination()
        except StreamingQueryException:
            return "handled"
        return "nothing to handle"

    assert "handled" == run_until_idle(handle)

    def raise_own() -> None:
        start("in", "out")
        raise KeyError("own")

    with pytest.raises(KeyError, match="own"):
        run_until_idle(raise_own)
    assert [] == spark.streams.active


@pytest.mark.thorough
def test_input_that_never_ends_is_an_error(
    spark: SparkSession, start: Any, run_until_idle: Any
) -> None:
    """After the timeout, the error names the query, and the query is stopped."""
    del start

    def main() -> None:
        rows = spark.readStream.format("rate").option("rowsPerSecond", 1000).load()
        writer = rows.writeStream.foreachBatch(lambda rows, number: time.sleep(1.5))
        writer.queryName("endless").start().awaitTermination()

    def careless() -> None:
        with suppress(Exception):
            main()

    for job in (main, careless):
        with pytest.raises(TimeoutError, match="the query endless still had input after 2 sec"):
            run_until_idle(job, timeout=2)
        assert [] == spark.streams.active
