"""Options of `as_kafka` that are checked without Spark."""

import pytest
from pyspark.errors import AnalysisException, IllegalArgumentException, NumberFormatException

from pyspark_segmentlog.testing.kafka_options import check_layout, check_read, options_of_read

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


@pytest.mark.parametrize("text", ["x", "1.5", "1_0", " 1", ""])
@pytest.mark.parametrize(
    "name",
    ["fetchoffset.numretries", "fetchoffset.retryintervalms", "kafkaconsumer.polltimeoutms"],
)
def test_numbers_without_effect_are_numbers(name: str, text: str) -> None:
    """Spark's own source parses them before it reads."""
    check_read({**GIVEN, name: "1"}, is_stream=False)
    with pytest.raises(NumberFormatException, match=f'For input string: "{text}"'):
        check_read({**GIVEN, name: text}, is_stream=False)


def test_a_stream_takes_no_isolation_level_with_blanks() -> None:
    """A batch does, as with Spark's own source."""
    options = {**GIVEN, "kafka.isolation.level": "read_committed "}
    check_read(options, is_stream=False)
    with pytest.raises(IllegalArgumentException, match="No enum constant"):
        check_read(options, is_stream=True)


def test_buckets_are_refused() -> None:
    """With Spark's words: they are for tables alone."""
    check_layout(())
    for calls, told in (
        ({"bucketBy"}, "'save' does not support bucketBy right now."),
        ({"bucketBy", "sortBy"}, "'save' does not support bucketBy and sortBy right now."),
        ({"sortBy"}, "sortBy must be used together with bucketBy"),
    ):
        with pytest.raises(AnalysisException, match=told):
            check_layout(calls)
