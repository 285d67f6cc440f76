"""Fetch what the thorough tests need before they begin, so that they do not wait for it."""

from collections.abc import Callable
from functools import partial

from kafka_here import artifacts

_FETCHES: list[Callable[[], object]] = [
    artifacts.spark_kafka_jars,
    partial(artifacts.kafka_jars, artifacts.VERSION),
    artifacts.logging_jars,
    artifacts.s3proxy_jars,
    partial(artifacts.shell_jars, artifacts.VERSION),
    partial(artifacts.tier_jars, artifacts.VERSION),
    partial(artifacts.schema_jars, "4.4.0"),
    artifacts.spark_avro_jars,
    artifacts.browser,
]

if __name__ == "__main__":
    for fetch in _FETCHES:
        try:
            fetch()
        except artifacts.ArtifactsError as error:  # the tests name it, too
            print(error)
