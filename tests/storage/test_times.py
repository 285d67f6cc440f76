"""Times and durations as users write them in Python, on the command line and in Spark."""

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest

from segmentlog.errors import OptionError
from segmentlog.times import Time, epoch_milliseconds, likely_unit, parse_duration, parse_time

NOON = 1_769_860_800_000  # 2026-01-31T12:00:00Z


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        (0, 0),
        (NOON, NOON),
        (datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), 1_000),
        (datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), 0),
        (datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC), 1),  # no record lies between 0 and 1 ms
        (datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), 0),
        (datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC), 253_402_300_799_999),
        (date(2026, 1, 31), NOON - 43_200_000),
        ("2026-01-31", NOON - 43_200_000),
        ("2026-01-31T12:00:00Z", NOON),
        (" 2026-01-31 14:00:00.000001+02:00 ", NOON + 1),
        ("1970-01-21T00:00Z", 1_728_000_000),
        ("20250230", 20_250_230),  # no date
        (str(NOON), NOON),
        ("2h", NOON - 7_200_000),
        ("1 day 12 hours", NOON - 129_600_000),
        (timedelta(minutes=5), NOON - 300_000),
        ("9999999 weeks", 0),
    ],
)
def test_times_are_milliseconds(time: Time, expected: int) -> None:
    """Each form is exact, without floating-point rounding. A duration ends now."""
    assert expected == epoch_milliseconds("since", time, now_ms=NOON)


@pytest.mark.parametrize(
    ("time", "message"),
    [
        (datetime(2026, 1, 1), "no zone, and no zone is guessed"),
        ("2026-01-01T12:00", "no zone, and no zone is guessed"),
        (1.5, "give a time such as"),
        (True, "give a time such as"),
        (-1, "give a time such as"),
        ("-1", "give a time such as"),
        ("1969-12-31", "give a time such as"),
        ("yesterday", "give a time such as"),
        ("2 years", "give a time such as"),
        ("0s", "give a time such as"),
        (timedelta(0), "longer than zero"),
        ("20260131", "probably a date, .* give 2026-01-31"),
        (20_260_131, "probably a date, .* give 2026-01-31"),
    ],
)
def test_a_time_that_means_nothing_by_itself_is_refused(time: Any, message: str) -> None:
    """The message names the option. The machine's time zone is not used."""
    with pytest.raises(OptionError, match=rf"'until' .*{message}"):
        epoch_milliseconds("until", time)


@pytest.mark.parametrize("time", [1_760_000_000, "1760000000"])
def test_a_time_in_seconds_is_refused_with_its_likely_meaning(time: Time) -> None:
    """The message has the time that was probably meant, in both forms."""
    with pytest.raises(OptionError) as caught:
        epoch_milliseconds("since", time)

    assert "give 1760000000000 or 2025-10-09T08:53:20Z" in str(caught.value)


def test_a_text_is_a_time_or_a_duration_and_never_both() -> None:
    """A bare number is milliseconds since 1970. A duration needs a unit."""
    assert (500, 500) == (parse_time("500"), parse_duration("500ms"))
    with pytest.raises(ValueError, match=r"^$"):
        parse_time("500ms")
    with pytest.raises(ValueError, match=r"^$"):
        parse_duration("500")


@pytest.mark.parametrize(
    ("timestamp_ms", "unit"),
    [
        (1_700_000_000_000, None),
        (1_700_000_000, "seconds"),
        (1_700_000_000_000_000, "microseconds"),
        (1_700_000_000_000_000_000, "nanoseconds"),
        (0, None),
        (-1, None),
        (2**63 - 1, None),
        (-(2**63), None),
    ],
)
def test_a_time_shows_its_unit(timestamp_ms: int, unit: str | None) -> None:
    """Only times that are credible in another unit, and not in milliseconds, have one."""
    found = likely_unit(timestamp_ms)

    assert unit == (found and found[0])
    assert found is None or 1_700_000_000_000 == found[1]
