"""Spark's ``kafka`` source and ours, given the same options on the same running broker."""

import random
from collections.abc import Iterator

import pytest
from kafka_here import Broker, JavaClient
from pyspark.sql import SparkSession
from two_sources import TwoSources, fill, random_options

pytestmark = [pytest.mark.interop, pytest.mark.spark]


@pytest.fixture(scope="module")
def sources(
    new_version: str, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TwoSources]:
    """Both sources over one broker, whose partitions nobody changes any more."""
    with Broker(tmp_path_factory.mktemp("kafka"), new_version) as broker:
        with JavaClient(broker) as client:
            fill(client)
        yield TwoSources(spark, broker)


def compare(sources: TwoSources, seed: int) -> str:
    """Compare one random combination; return how both ended."""
    options = random_options(random.Random(seed))
    theirs, ours = sources.outcomes(options)
    assert theirs.in_short == ours.in_short, (seed, options, theirs.error[:400], ours.error[:400])
    return "refused" if ours.error else "rows" if ours.rows else "none"


@pytest.mark.parametrize("start", range(0, 100, 25))
def test_random_options(sources: TwoSources, start: int) -> None:
    """Equal rows in equally many tasks, or two refusals."""
    ends = {compare(sources, seed) for seed in range(start, start + 25)}

    assert {"rows", "refused"} <= ends


@pytest.mark.slow
def test_many_random_options(sources: TwoSources) -> None:
    """Two thousand combinations; those that fail are all told of."""
    failed = []
    for seed in range(100, 2100):
        try:
            compare(sources, seed)
        except AssertionError as error:
            failed.append(str(error)[:900])

    assert [] == failed
