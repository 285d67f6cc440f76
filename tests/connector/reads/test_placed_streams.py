"""Streams that Spark tells no place, as 4.0 and 4.1 do: a model of their calls beside real logs.

The order of the calls is that of ``MicroBatchExecution`` there, which other tests run for real.
"""

import json
import logging
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from plain_writes import write
from pyspark.sql.types import StructType

from pyspark_segmentlog.options.option import Query
from pyspark_segmentlog.reads.reader import SegmentLogReader
from pyspark_segmentlog.reads.schema import row_schema
from pyspark_segmentlog.reads.stream import SegmentLogStreamReader
from pyspark_segmentlog.spark_versions import PlacedStream
from segmentlog.errors import OptionError, StreamOffsetError

_ALL = row_schema(include_headers=False)
COLUMNS = StructType([_ALL[name] for name in ("topic", "partition", "offset")])

_OF_CLASSES = ("__dict__", "__weakref__", "__abstractmethods__", "_abc_impl")

#: The reader of a stream as it is with these versions.
Placed: Any = type(
    "Placed",
    (PlacedStream,),
    {name: each for name, each in vars(SegmentLogStreamReader).items() if name not in _OF_CLASSES},
)


class Died(Exception):  # noqa: N818 - a process that is killed
    """The driver was killed."""


class SparkOf41:
    """A query: its checkpoint, and what each of its micro-batches has put into the sink."""

    def __init__(self, logs: Path, **options: str) -> None:
        self.logs, self.options = logs, {"path": str(logs), "subscribePattern": ".*", **options}
        self.offsets: list[str] = []
        self.n_committed = 0
        self.sink: dict[int, list[tuple[str, int, int]]] = {}
        self.reader: Any = None

    def start(self, **options: str) -> None:
        """Start a run, which repeats a micro-batch that the last run has not committed."""
        given = {**self.options, **options}
        self.reader = Placed(SegmentLogReader.of_query(given, COLUMNS, Query.STREAM))
        if self.offsets:  # Spark tells all sources the last offset of the checkpoint
            last = json.loads(self.offsets[-1])
            assert [] == list(self.reader.partitions(last, json.loads(self.offsets[-1])))
        if len(self.offsets) > self.n_committed:
            self._run_batch(dies=None)

    def step(self, dies: str | None = None) -> bool:
        """Poll, and run the micro-batch; False if nothing is new.  `dies`: after which step."""
        found = json.dumps(self.reader.latestOffset())
        if self.offsets and found == self.offsets[-1]:
            return False
        if dies == "poll":
            raise Died
        self.offsets.append(found)
        if dies == "offsets":
            raise Died
        self._run_batch(dies)
        return True

    def _run_batch(self, dies: str | None) -> None:
        number = len(self.offsets) - 1
        start = self.offsets[number - 1] if number else json.dumps(self.reader.initialOffset())
        tasks = self.reader.partitions(json.loads(start), json.loads(self.offsets[number]))
        batches = [each for task in tasks for each in self.reader.read(task)]
        rows = pa.Table.from_batches(batches).to_pylist() if batches else []
        taken = sorted((each["topic"], each["partition"], each["offset"]) for each in rows)
        assert self.sink.setdefault(number, taken) == taken, "a repeated micro-batch is the same"
        if dies == "rows":
            raise Died
        self.n_committed = number + 1

    def rows(self) -> list[tuple[str, int, int]]:
        """All rows of the sink."""
        return sorted(each for batch in self.sink.values() for each in batch)


def rows_of(n_rows: int, partition: int = 0) -> pa.Table:
    """Rows for one partition."""
    numbers = pa.array([partition] * n_rows, pa.int32())
    return pa.table({"value": pa.array([b"v"] * n_rows, pa.binary()), "partition": numbers})


@pytest.mark.parametrize("seed", range(12))
def test_random_runs_lose_and_repeat_nothing(tmp_path: Path, seed: int) -> None:
    """Runs of a query die at any step, with other limits each time, while topics appear."""
    rng = random.Random(seed)
    logs, sizes = tmp_path / "logs", {("t", 0): 7}
    write(logs, rows_of(7), topic="t", num_partitions=2)
    sizes["t", 1] = 0
    is_latest = bool(seed % 2)
    kept = {"initialOffsetsLocation": str(tmp_path / "kept")} if is_latest else {}
    query = SparkOf41(logs, startingOffsets="latest" if is_latest else "earliest", **kept)
    first = dict(sizes) if is_latest else {}

    def grow() -> None:
        topic = rng.choice("tu")
        partition, n_rows = rng.randrange(2), rng.randrange(1, 9)
        new = {} if (topic, 0) in sizes else {"num_partitions": 2}
        write(logs, rows_of(n_rows, partition), topic=topic, **new)
        for each in range(2):
            sizes.setdefault((topic, each), 0)
        sizes[topic, partition] += n_rows

    for _ in range(10):
        limit = rng.choice([{}, {"maxOffsetsPerTrigger": "3"}, {"maxOffsetsPerTrigger": "8"}])
        query.start(**limit)
        try:
            for number in range(rng.randrange(1, 5)):
                before = len(query.offsets)
                new = query.step(rng.choice([None, None, "poll", "offsets", "rows"]))
                if new and limit:
                    assert len(query.sink[before]) <= max(int(limit["maxOffsetsPerTrigger"]), 4)
                if number or query.offsets or not is_latest:  # the start is known
                    grow()
        except Died:
            pass
        if query.offsets or not is_latest:
            grow()
    query.start()
    while query.step():
        pass

    wanted = sorted(
        (*each, offset)
        for each, size in sizes.items()
        for offset in range(first.get(each, 0), size)
    )
    assert wanted == query.rows()
    assert sum(map(bool, query.sink.values())) > 3


def test_a_new_query_keeps_the_start_that_its_first_end_has(tmp_path: Path) -> None:
    """Records between the two calls are read: the start is not looked up again."""
    write(tmp_path / "logs", rows_of(5))
    query = SparkOf41(tmp_path / "logs", startingOffsets="latest")
    query.start()
    reader = query.reader
    end = reader.latestOffset()
    write(tmp_path / "logs", rows_of(5))

    assert end == reader.initialOffset()
    assert [] == reader.partitions(end, end)
    assert 10 == reader.latestOffset()["t"]["0"]


def test_a_restart_takes_its_place_without_a_look(tmp_path: Path) -> None:
    """The directory may be away when Spark tells the place; the next poll says so."""
    query = SparkOf41(tmp_path / "logs", startingOffsets="earliest")
    write(tmp_path / "logs", rows_of(5))
    query.start()
    assert query.step()
    (tmp_path / "logs").rename(tmp_path / "away")
    query.start()

    (tmp_path / "away").rename(tmp_path / "logs")
    assert not query.step()
    query.offsets[-1] = json.dumps({"t": {"0": 9}})
    query.start()
    with pytest.raises(StreamOffsetError, match="the log ends at 5"):
        query.step()


def test_limits_of_a_first_micro_batch_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once in each run that leaves records, and never without a limit."""
    write(tmp_path / "logs", rows_of(5))
    query = SparkOf41(tmp_path / "logs", startingOffsets="earliest", maxOffsetsPerTrigger="2")
    caplog.set_level(logging.WARNING)
    told = []
    for _ in range(3):
        query.start()
        query.step()
        told.append(caplog.text.count("ends the run after it"))
        query.step()
    assert [1, 1, 1] == told

    caplog.clear()
    query = SparkOf41(tmp_path / "logs", startingOffsets="earliest")
    query.start()
    query.step()
    assert "" == caplog.text


@pytest.mark.parametrize("limit", ["maxOffsetsPerTrigger", "maxBytesPerTrigger"])
def test_an_end_before_the_place_is_refused(tmp_path: Path, limit: str) -> None:
    """Spark's wrapper for ``availableNow`` asks for an end before it tells the place."""
    write(tmp_path / "logs", rows_of(500))
    query = SparkOf41(tmp_path / "logs", startingOffsets="earliest")
    query.start()
    query.step()
    write(tmp_path / "logs", rows_of(5))
    last = json.loads(query.offsets[-1])

    def asked_early(**options: str) -> Any:
        given = {**query.options, **options}
        reader = Placed(SegmentLogReader.of_query(given, COLUMNS, Query.STREAM))
        return reader, reader.latestOffset()

    reader, _ = asked_early(**{limit: "100"})
    with pytest.raises(OptionError, match=r"triggerAvailableNowWrapper.* unset it"):
        reader.partitions(last, dict(last))
    reader, end = asked_early()
    assert [] == reader.partitions(last, dict(last))
    assert 1 == len(reader.partitions(last, end))
