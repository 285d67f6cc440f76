"""Spark's ``kafka`` source and ours read one running broker with the same options."""

import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pytest
from kafka_here import Broker, JavaClient
from kafka_here.java import Outgoing
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

T0 = 1_700_000_000_000

#: Settings of the broker: by default, deleted heads reach the disk after a minute, and the first
#: ones after 30 seconds.
BROKER = {
    "log.flush.start.offset.checkpoint.interval.ms": 100,
    "log.initial.task.delay.ms": 100,
}

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


pytestmark = [pytest.mark.interop, pytest.mark.spark]


@pytest.fixture(scope="module")
def served(
    new_version: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Broker, JavaClient]]:
    """A broker whose partitions, made by `fill`, no longer change."""
    with (
        Broker(tmp_path_factory.mktemp("kafka"), new_version, settings=BROKER) as broker,
        JavaClient(broker) as client,
    ):
        fill(broker, client)
        yield broker, client


@pytest.fixture(scope="module")
def sources(served: tuple[Broker, JavaClient], spark: SparkSession) -> TwoSources:
    """Both sources, reading the broker."""
    return TwoSources(spark, served[0])


def compare(sources: TwoSources, seed: int) -> str:
    """Compare one random combination of options; return the outcome of both sources."""
    options = random_options(random.Random(seed))
    theirs, ours = sources.outcomes(options)
    found = [(len(each.rows), each.n_tasks, each.error[:400]) for each in (theirs, ours)]
    if is_stricter(options, ours):
        return "refused"
    told = f"seed {seed}, options {options}: {found}"
    assert theirs.in_short == ours.in_short, told
    assert ours.error or has_kafkas_tasks(options, theirs, ours), told
    return "refused" if ours.error else "rows" if ours.rows else "none"


@pytest.mark.thorough
def test_random_options(sources: TwoSources) -> None:
    """Both sources return equal rows in the same number of tasks, or both refuse."""
    assert {"rows", "refused"} <= {compare(sources, seed) for seed in range(4)}


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_thousands_of_random_options(sources: TwoSources) -> None:
    """Each failure is printed at once, because a long run may be interrupted (``pytest -s``)."""
    failed: list[str] = []
    ended: Counter[str] = Counter()
    for seed in range(4, 2100):
        try:
            ended[compare(sources, seed)] += 1
        except AssertionError as error:
            failed.append(str(error)[:2000])
            print(failed[-1], flush=True)
        if seed % 100 == 99:
            print(f"to seed {seed}: {dict(ended)}, {len(failed)} differ", flush=True)

    assert not failed, "\n".join(failed)


ONE = {"subscribe": "b"}
THREE = {"subscribe": "a"}
TIMES = "startingOffsetsByTimestamp"

#: Options, words of Spark's error, and words of our error, in the order of the checks.
REFUSED = [
    ({"subscribe": "a", "assign": '{"a":[0]}'}, "Only one of", "give only one of"),
    ({"assign": ""}, "No topicpartitions to assign", "assign"),
    ({"assign": "a"}, "No topicpartitions to assign", "give JSON such as"),
    ({"assign": "{a}"}, "Expected e.g.", "give JSON such as"),
    ({"subscribe": " , "}, "No topics to subscribe", "at least one"),
    ({"subscribePattern": ""}, "Pattern to subscribe is empty", "give a Java regular expression"),
    (ONE | {"minPartitions": "0"}, "must be positive", "give a number from 1"),
    (ONE | {"minPartitions": "1.0"}, "1.0", "give a number from 1"),
    (ONE | {"maxRecordsPerPartition": "-1"}, "must be positive", "give a number from 1"),
    (ONE | {"kafka.auto.offset.reset": "none"}, "startingoffsets", "startingOffsets"),
    (ONE | {"kafka.key.deserializer": "x"}, "not supported", "not supported"),
    (ONE | {"kafka.value.deserializer": "x"}, "not supported", "not supported"),
    (ONE | {"kafka.enable.auto.commit": "x"}, "not supported", "not supported"),
    (ONE | {"kafka.interceptor.classes": "x"}, "not supported", "not supported"),
    (ONE | {"startingOffsets": "latest"}, "can't be latest", "may not start at latest"),
    (ONE | {"startingOffsets": '{"b":{"0":-1}}'}, "b-0 can't be latest", "as b-0 does"),
    (ONE | {"endingOffsets": "earliest"}, "can't be earliest", "may not end at earliest"),
    (ONE | {"endingOffsets": '{"b":{"0":-2}}'}, "b-0 can't be earliest", "as b-0 does"),
    (ONE | {"startingTimestamp": "soon"}, "long value", "give milliseconds"),
    (ONE | {"endingTimestamp": "1.5"}, "long value", "give milliseconds"),
    (ONE | {"startingOffsets": "{"}, "Expected e.g.", "earliest"),
    (ONE | {"startingOffsets": '{"b":[1]}'}, "Expected e.g.", "earliest"),
    (ONE | {"endingOffsets": '{"b":{"0":"x"}}'}, "Expected e.g.", "latest"),
    (ONE | {TIMES: '{"b":{"0":"x"}}'}, "Expected e.g.", "startingOffsetsByTimestamp"),
    (ONE | {"startingOffsetsByTimestampStrategy": "x"}, "No value found", "error or latest"),
    (
        THREE | {"startingOffsets": '{"a":{"0":1}}', "endingOffsets": '{"a":{"0":1,"1":1,"2":1}}'},
        "should have the same topic-partitions",
        "names different partitions",
    ),
    (
        ONE | {"startingOffsets": '{"b":{"0":5}}', "endingOffsets": '{"b":{"0":4}}'},
        "greater than",
        "startingOffsets",
    ),
    (
        ONE | {TIMES: '{"b":{"0":5}}', "endingOffsetsByTimestamp": '{"b":{"0":4}}'},
        "greater than",
        "startingOffsetsByTimestamp",
    ),
    (THREE | {"startingOffsets": '{"a":{"0":6}}'}, "don't match", "exactly the partitions"),
    (THREE | {TIMES: '{"a":{"0":6}}'}, "don't match", "exactly the partitions"),
    (ONE | {"startingTimestamp": "1900000000000"}, "No offset matched", "b-0"),
    (ONE | {"startingOffsets": '{"b":{"0":99}}'}, "greater than", "99"),
    (
        ONE | {"startingTimestamp": "1700000000060", "endingTimestamp": "1700000000001"},
        "greater than",
        "b-0",
    ),
    ({"subscribe": "nothing"}, "UnknownTopicOrPartition", "nothing"),
    (ONE | {"kafka.isolation.level": "x"}, "must be one of", "read_uncommitted or read_committed"),
    (THREE | {"startingOffsets": '{"a":{"0":-2,"1":1,"2":-2}}'}, "data may have been lost", "a-1"),
]


@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.slow)])
def test_refusals_mean_the_same(sources: TwoSources, every: int) -> None:
    """Both sources refuse, and each names the mistake. All differences are listed."""
    wrong = []
    for options, in_theirs, in_ours in REFUSED[::every]:
        theirs, ours = sources.outcomes(options)
        if in_theirs not in theirs.error or in_ours not in ours.error:
            wrong.append(f"{options}\n kafka: {theirs.error[:600]}\n ours: {ours.error[:600]}")

    assert not wrong, "\n".join(wrong)


@pytest.mark.thorough
def test_the_same_data_frames_see_what_a_topic_has_become(
    served: tuple[Broker, JavaClient], sources: TwoSources
) -> None:
    """With `lateBinding`, DataFrames see the new earliest and the new latest, as in `kafka`."""
    broker, client = served
    client.create_topic("grows", 3, retention_ms=-1)

    def produce(*numbers: int) -> None:
        """Send this number of records to each partition."""
        partitions = [p for p, n in enumerate(numbers) for _ in range(n)]
        client.produce("grows", [Outgoing(None, b"v", partition=each) for each in partitions])

    bounds = {
        "startingOffsets": '{"grows":{"0":-2,"1":-2,"2":0}}',
        "endingOffsets": '{"grows":{"0":-1,"1":-1,"2":1}}',
    }
    produce(10, 10, 1)
    frames = []
    for more in ({}, bounds, {"minPartitions": "6"}):
        options = {"subscribe": "grows", **more}
        frames.append([sources.kafka(options), sources.ours(options | {"lateBinding": "true"})])

    def n_rows(frames: list[list[DataFrame]]) -> list[int]:
        """The number of rows of each pair of DataFrames, which have equal rows."""
        found = [
            [sorted(tuple(row) for row in frame.collect()) for frame in pair] for pair in frames
        ]
        assert all(theirs == ours for theirs, ours in found)
        return [len(ours) for _, ours in found]

    assert [21, 21, 21] == n_rows(frames)
    assert 6 <= min(frame.rdd.getNumPartitions() for frame in frames[2])
    produce(0, 5, 9)
    assert [35, 26, 35] == n_rows(frames)
    client.delete_records("grows", 0, 4)
    wait_for_log_start(broker, "grows 0 4")
    assert [31, 22] == n_rows(frames[:2])
