"""Spark's ``kafka`` source and ours read one running broker with the same options."""

import random
from collections import Counter
from collections.abc import Iterator

import pytest
from kafka_here import Broker, JavaClient
from kafka_here.java import Outgoing
from pyspark.sql import DataFrame, SparkSession
from two_sources import (
    BROKER,
    TwoSources,
    fill,
    has_kafkas_tasks,
    is_stricter,
    random_options,
    wait_for_log_start,
)

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
        "should have the same topic-partitions", "names different partitions",
    ),
    (
        ONE | {"startingOffsets": '{"b":{"0":5}}', "endingOffsets": '{"b":{"0":4}}'},
        "greater than", "startingOffsets",
    ),
    (
        ONE | {TIMES: '{"b":{"0":5}}', "endingOffsetsByTimestamp": '{"b":{"0":4}}'},
        "greater than", "startingOffsetsByTimestamp",
    ),
    (THREE | {"startingOffsets": '{"a":{"0":6}}'}, "don't match", "exactly the partitions"),
    (THREE | {TIMES: '{"a":{"0":6}}'}, "don't match", "exactly the partitions"),
    (ONE | {"startingTimestamp": "1900000000000"}, "No offset matched", "b-0"),
    (ONE | {"startingOffsets": '{"b":{"0":99}}'}, "greater than", "99"),
    (ONE | {"startingTimestamp": "1700000000060", "endingTimestamp": "1700000000001"},
     "greater than", "b-0"),
    ({"subscribe": "nothing"}, "UnknownTopicOrPartition", "nothing"),
    (ONE | {"kafka.isolation.level": "x"}, "must be one of", "read_uncommitted or read_committed"),
    (THREE | {"startingOffsets": '{"a":{"0":-2,"1":1,"2":-2}}'}, "data may have been lost", "a-1"),
]  # fmt: skip


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
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
