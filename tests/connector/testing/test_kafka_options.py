"""Options of `as_kafka` that are checked without Spark."""

import pytest
from pyspark.errors import IllegalArgumentException

from pyspark_segmentlog.testing.kafka_options import check_read, options_of_read

GIVEN = {"kafka.bootstrap.servers": "broker:9092", "subscribe": "a"}


def test_a_stream_does_not_look_at_an_ending_timestamp() -> None:
    """Spark's own source refuses the other two ending options of a stream, and ignores this."""
    options = {**GIVEN, "endingtimestamp": "bad"}
    check_read(options, is_stream=True)

    assert "endingtimestamp" not in options_of_read(options, is_stream=True)
    assert "bad" == options_of_read(options, is_stream=False)["endingtimestamp"]
    with pytest.raises(IllegalArgumentException, match="Expected a single long value, got bad"):
        check_read(options, is_stream=False)
    with pytest.raises(IllegalArgumentException, match="got bad"):
        check_read({**GIVEN, "startingtimestamp": "bad"}, is_stream=True)
