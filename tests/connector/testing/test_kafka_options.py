"""Options of `as_kafka` that are checked without Spark."""

import pytest
from pyspark.errors import AnalysisException, IllegalArgumentException, NumberFormatException

from pyspark_segmentlog.testing.kafka_options import (
    check_async_progress,
    check_layout,
    check_read,
    options_of_read,
)
from segmentlog import OptionError

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


def test_a_read_without_attempts_or_time_is_refused() -> None:
    """With a broker, it fails."""
    check_read({**GIVEN, "fetchoffset.retryintervalms": "-1"}, is_stream=False)
    for name in ("fetchoffset.numretries", "kafkaconsumer.polltimeoutms"):
        with pytest.raises(OptionError, match="Spark's kafka source fails with less than 1"):
            check_read({**GIVEN, name: "0"}, is_stream=False)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("name", ["includeheaders", "failondataloss"])
def test_booleans_are_those_of_scala(name: str, is_stream: bool) -> None:
    """In any case, and without blanks."""
    check_read({**GIVEN, name: "TRUE"}, is_stream=is_stream)
    for text in ("yes", "1", "", " true"):
        with pytest.raises(IllegalArgumentException, match=f'For input string: "{text}"'):
            check_read({**GIVEN, name: text}, is_stream=is_stream)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"minpartitions": str(2**31)}, NumberFormatException),
        ({"maxrecordsperpartition": str(2**63)}, NumberFormatException),
        ({"fetchoffset.numretries": str(2**31)}, NumberFormatException),
        ({"startingtimestamp": str(2**63)}, IllegalArgumentException),
        ({"startingtimestamp": "1_700_000_000_000"}, IllegalArgumentException),
        ({"minoffsetspertrigger": "5", "maxoffsetspertrigger": "1"}, IllegalArgumentException),
        ({"minoffsetspertrigger": "x", "maxoffsetspertrigger": "1"}, NumberFormatException),
    ],
)
def test_numbers_are_those_of_java(options: dict[str, str], error: type[Exception]) -> None:
    """Those of limits are compared in a batch, too, which has no use for them."""
    check_read({**GIVEN, "minpartitions": str(2**31 - 1)}, is_stream=False)
    check_read({**GIVEN, "maxoffsetspertrigger": "x"}, is_stream=False)
    for is_stream in (False, True):
        with pytest.raises(error):
            check_read({**GIVEN, **options}, is_stream=is_stream)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("15m", 900_000),
        (" 2MIN ", 120_000),
        ("5", 5),
        ("1500us", 1),
        ("10us", 1),
        ("-1h", 1),
        ("1d", 86_400_000),
    ],
)
def test_delays_have_the_units_of_spark(text: str, milliseconds: int) -> None:
    """A delay of zero is over at once, as the least one of ours."""
    options = {**GIVEN, "maxtriggerdelay": text}
    check_read(options, is_stream=True)

    assert str(milliseconds) == options_of_read(options, is_stream=True)["maxtriggerdelay"]
    assert "maxtriggerdelay" not in options_of_read(GIVEN, is_stream=True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("10 minutes", "Failed to parse"),
        ("", "Failed to parse"),
        ("1.5h", "Failed to parse"),
        ("2hours", 'Invalid suffix: "hours"'),
    ],
)
def test_other_delays_are_refused(text: str, reason: str) -> None:
    """With Spark's words; a batch does not look at them."""
    options = {**GIVEN, "maxtriggerdelay": text}
    check_read(options, is_stream=False)
    with pytest.raises(NumberFormatException, match=f"Time must be specified as .*\n{reason}"):
        check_read(options, is_stream=True)


def test_asynchronous_progress_needs_a_trigger_that_goes_on() -> None:
    """Only with the option, which has to be a boolean."""
    name, now = "asyncprogresstrackingenabled", {"availableNow": True}
    check_async_progress({}, now)
    check_async_progress({name: "False"}, now)
    check_async_progress({name: "True"}, {"processingTime": "1 second"})
    for trigger, shown in ((now, "AvailableNow"), ({"once": True}, "Once")):
        with pytest.raises(IllegalArgumentException, match=f"cannot be used with {shown} trigger"):
            check_async_progress({name: "true"}, trigger)
    with pytest.raises(IllegalArgumentException, match='For input string: "yes"'):
        check_async_progress({name: "yes"}, {})
    with pytest.raises(NumberFormatException):
        check_async_progress({name: "true", "asyncprogresstrackingcheckpointintervalms": "x"}, {})


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
