"""Spark's ``kafka`` source and ours, with the same options, on one running broker."""

import json
import random
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kafka_here import Broker, JavaClient
from kafka_here.java import Outgoing
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "BROKER",
    "Outcome",
    "TwoSources",
    "fill",
    "has_kafkas_tasks",
    "is_stricter",
    "random_options",
    "wait_for_log_start",
]

T0 = 1_700_000_000_000

#: Settings of the broker: by default, deleted heads reach the disk after a minute, and the first
#: ones after 30 seconds.
BROKER = {
    "log.flush.start.offset.checkpoint.interval.ms": 100, "log.initial.task.delay.ms": 100,
}  # fmt: skip

#: Partitions of each topic that `fill` makes.
PARTITIONS = {"a": 3, "b": 1, "ab-c": 2, "empty": 1}

#: Answers that do not come are not waited for longer than a loaded machine needs.
_QUICK = {
    "fetchOffset.numRetries": "1",
    "fetchOffset.retryIntervalMs": "10",
    "kafkaConsumer.pollTimeoutMs": "3000",
    "kafka.default.api.timeout.ms": "5000",
    "kafka.request.timeout.ms": "4000",
}


def fill(broker: Broker, client: JavaClient) -> None:
    """Topics with a deleted head, times out of order, an empty partition, and transactions.

    ``a-0`` has offsets 0 to 39, 5 ms apart; ``a-1`` 5 to 24, their times out of order; ``a-2``
    one batch.  ``b-0`` has committed, aborted and committed records, and ends in aborted ones.
    """
    for topic, n_partitions in PARTITIONS.items():
        client.create_topic(topic, n_partitions, retention_ms=-1)
    small: dict[str, Any] = {"batch_size": 200, "linger_ms": 0}
    headers = (("h", b"1"), ("h", None))
    first = [Outgoing(b"k%d" % i, b"v%d" % i, headers[: i % 3], T0 + 5 * i, 0) for i in range(40)]
    times = [(10 * i) ^ 8 for i in range(25)]
    second = [Outgoing(None, b"w%d" % i, (), T0 + t, 1) for i, t in enumerate(times)]
    client.produce("a", [*first, *second], **small)
    client.produce("a", [Outgoing(b"", b"", (), T0 + 9 * i, 2) for i in range(12)])
    client.delete_records("a", 1, 5)
    for end, n in (("commit", 10), ("abort", 5), ("commit", 3), ("abort", 2)):
        records = [Outgoing(b"t", b"%d" % i, (), T0 + 15 * i, 0) for i in range(n)]
        client.produce("b", records, transactions=[end], **small)
    third = [Outgoing(b"c", None, (), T0 + 7 * i, i % 2) for i in range(30)]
    client.produce("ab-c", third, compression_type="lz4", **small)
    wait_for_log_start(broker, "a 1 5")


def wait_for_log_start(broker: Broker, entry: str) -> None:
    """Wait until a deleted head is in the checkpoint, where a reader of the disk finds it."""
    checkpoint = broker.log_dir / "log-start-offset-checkpoint"
    deadline = time.monotonic() + 60
    while entry not in checkpoint.read_text().splitlines():
        if time.monotonic() > deadline:
            message = f"the broker has not written the log start: {checkpoint.read_text()!r}"
            raise RuntimeError(message)
        time.sleep(0.05)


#: Right and wrong values of the options beside the bounds.
_FLAGS = {
    "startingOffsetsByTimestampStrategy": (["error", "LATEST", "latest"], ["never"]),
    "includeHeaders": (["true", "false", "TRUE"], ["yes"]),
    "failOnDataLoss": (["true", "false", "False"], [""]),
    "minPartitions": (["1", "4", "9"], ["0", "1.0", "x"]),
    "maxRecordsPerPartition": (["3", "10", "1000"], ["0", "x"]),
    "kafka.isolation.level": (["read_committed", "read_uncommitted"], ["committed"]),
    "kafka.auto.offset.reset": ([], ["earliest"]),
}


class Outcome(NamedTuple):
    """The outcome of a query: its rows and number of tasks, or the error."""

    rows: list[tuple[Any, ...]]
    n_tasks: int
    error: str

    @property
    def in_short(self) -> list[tuple[Any, ...]] | str:
        """The part of the outcome that has to be equal: texts of errors differ."""
        return "refused" if self.error else self.rows


class TwoSources:
    """Both sources, on the log of one running broker."""

    def __init__(self, spark: SparkSession, broker: Broker) -> None:
        self._spark, self._broker = spark, broker

    def kafka(self, options: Mapping[str, str]) -> DataFrame:
        """Spark's own source."""
        reader = self._spark.read.format("kafka").options(**_QUICK).options(**options)
        return reader.option("kafka.bootstrap.servers", self._broker.bootstrap_servers).load()

    def ours(self, options: Mapping[str, str]) -> DataFrame:
        """Our source with the same options, a path, and tasks as `kafka` cuts them.

        A running broker writes its high watermarks only every five seconds.
        """
        reader = self._spark.read.format("segmentlog").options(**_QUICK)
        reader = reader.options(readUpTo="logEnd", maxBytesPerPartition="0").options(**options)
        return reader.load(str(self._broker.log_dir))

    def outcomes(self, options: Mapping[str, str]) -> tuple[Outcome, Outcome]:
        """The outcomes of `kafka` and of our source."""
        return _outcome(lambda: self.kafka(options)), _outcome(lambda: self.ours(options))


def _outcome(load: Any) -> Outcome:
    try:
        frame = load()
        rows = [_comparable(row.asDict(recursive=True)) for row in frame.collect()]
        n_tasks = frame._jdf.queryExecution().toRdd().getNumPartitions()
    except Exception as error:
        if not (isinstance(error, PySparkException) or "Py4J" in type(error).__name__):
            raise
        return Outcome([], 0, str(error))
    return Outcome(sorted(rows, key=lambda row: row[:3]), n_tasks, "")


def _comparable(row: dict[str, Any]) -> tuple[Any, ...]:
    row["headers"] = [(each["key"], each["value"]) for each in row.get("headers") or ()]
    first = ("topic", "partition", "offset")
    return tuple(row[name] for name in first) + tuple(
        (name, None if value is None else str(value))
        for name, value in sorted(row.items())
        if name not in first
    )


def has_kafkas_tasks(options: Mapping[str, str], theirs: Outcome, ours: Outcome) -> bool:
    """Whether our source has cut a read into the tasks of `kafka`.

    Our source also applies ``maxRecordsPerPartition`` to a range without a number at its end. It
    has no task for a partition without records, where `kafka` has one unless it cuts ranges.
    """
    names = {name.lower(): value for name, value in options.items()}
    if "maxrecordsperpartition" in names:
        return True
    if "assign" in names:
        asked = [(topic, p) for topic, its in json.loads(names["assign"]).items() for p in its]
    else:
        pattern = names.get("subscribepattern")
        topics = [each.strip() for each in names.get("subscribe", "").split(",")]
        if pattern is not None:
            topics = [each for each in PARTITIONS if re.search(pattern, each)]
        asked = [(topic, p) for topic in topics for p in range(PARTITIONS[topic])]
    n_empty = len(set(asked) - {row[:2] for row in ours.rows})
    n_tasks = ours.n_tasks if ours.rows else 0
    return n_tasks <= theirs.n_tasks <= n_tasks + n_empty


def is_stricter(options: Mapping[str, str], ours: Outcome) -> bool:
    """Whether our source refuses a start beyond latest, which `kafka`'s divided reads ignore."""
    names = {name.lower() for name in options}
    divides = not names.isdisjoint({"minpartitions", "maxrecordsperpartition"})
    return divides and re.search(r"would start at \d+ and end at \d+", ours.error) is not None


def random_options(rng: random.Random) -> dict[str, str]:
    """Options that both sources know: most of them right, some wrong, in any case."""
    topics = rng.choice(
        [["a"], ["b"], ["ab-c"], ["a", "b"], ["a", "b", "ab-c"], ["ab-c", "empty"]]
    )
    assigned = {topic: list(range(PARTITIONS[topic])) for topic in topics}
    options: dict[str, str] = {}
    strategy = rng.choice(["subscribe", "subscribePattern", "assign"])
    if strategy == "subscribe":
        options["subscribe"] = rng.choice([",", ", "]).join(topics)
    elif strategy == "subscribePattern":
        options["subscribePattern"], chosen = rng.choice(
            [("^a$", ["a"]), ("^a", ["a", "ab-c"]), ("b", ["b", "ab-c"]), ("mpt", ["empty"])]
        )
        assigned = {topic: list(range(PARTITIONS[topic])) for topic in chosen}
    else:
        some = rng.random() < 0.5
        assigned = {
            topic: sorted(rng.sample(its, rng.randint(1, len(its)))) if some else its
            for topic, its in assigned.items()
        }
        gone = {topic: [*its, 7] if rng.random() < 0.1 else its for topic, its in assigned.items()}
        options["assign"] = json.dumps(gone)
    options |= _bound(rng, "starting", assigned) | _bound(rng, "ending", assigned)
    for name, (right, wrong) in _FLAGS.items():
        if rng.random() < (0.03 if not right else 0.25):
            options[name] = rng.choice(right if right and rng.random() < 0.93 else wrong)
    if rng.random() < 0.1:  # a unique name: tasks share consumers of a group by their settings
        options["kafka.group.id"] = f"group-{rng.random()}"
    if rng.random() < 0.03:
        options["subscribe"] = rng.choice(["", ",", "b"])
    cases: list[Callable[[str], str]] = [str, str.lower, str.upper]
    return {cases[rng.randrange(3)](name): value for name, value in options.items()}


def _bound(rng: random.Random, which: str, assigned: Mapping[str, list[int]]) -> dict[str, str]:
    """None, one or two of the three options for one bound of a read."""
    kinds = {"Offsets": _offsets, "OffsetsByTimestamp": _timestamps, "Timestamp": _timestamp}
    chosen = rng.sample(list(kinds), rng.choice([0, 1, 1, 2]))
    return {which + name: kinds[name](rng, which, assigned) for name in chosen}


def _offsets(rng: random.Random, which: str, assigned: Mapping[str, list[int]]) -> str:
    right, wrong = ("earliest", "latest") if which == "starting" else ("latest", "earliest")
    if rng.random() < 0.4:
        return rng.choice([right, f" {right.upper()} "] * 12 + [wrong, "first"])
    sentinel = -2 if which == "starting" else -1
    numbers = range(5, 9) if which == "starting" else range(9, 13)
    return _map(rng, assigned, [*[sentinel, sentinel, *numbers] * 6, 2, 70, -3 - sentinel])


def _timestamps(rng: random.Random, which: str, assigned: Mapping[str, list[int]]) -> str:
    return _map(rng, assigned, [*_times(rng, which), T0 + 9000])


def _timestamp(rng: random.Random, which: str, assigned: Mapping[str, list[int]]) -> str:
    del assigned
    return rng.choice([*map(str, _times(rng, which)), f" {T0} ", str(T0 + 9000), "x"])


def _times(rng: random.Random, which: str) -> list[int]:
    least, most = (-9, 30) if which == "starting" else (60, 150)
    return [T0 + rng.randint(least, most) for _ in range(30)]


def _map(rng: random.Random, assigned: Mapping[str, list[int]], numbers: list[int]) -> str:
    """A number for each partition; sometimes for one partition too few or too many."""
    found = {topic: {str(p): rng.choice(numbers) for p in its} for topic, its in assigned.items()}
    if found and rng.random() < 0.06:
        found.pop(rng.choice([*found]))
    if rng.random() < 0.06:
        found["other"] = {"0": numbers[0]}
    return json.dumps(found)
