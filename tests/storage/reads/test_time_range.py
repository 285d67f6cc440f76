"""Times as bounds of a read."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from segmentlog.errors import OptionError
from segmentlog.reads.time_range import epoch_milliseconds


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        (0, 0),
        (-5, -5),
        (datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), 1_000),
        (datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), 0),
        (datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC), 1),  # no record lies between 0 and 1 ms
        (datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), 0),
        (datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC), 253_402_300_799_999),
    ],
)
def test_times_are_milliseconds(time: datetime | int, expected: int) -> None:
    """Exactly, without the rounding of floating point."""
    assert expected == epoch_milliseconds("starting_timestamp", time)


@pytest.mark.parametrize("time", [datetime(2026, 1, 1), "2026-01-01", 1.5, True])
def test_a_time_that_means_nothing_by_itself_is_refused(time: Any) -> None:
    """A datetime without a zone is not taken as the machine's."""
    with pytest.raises(OptionError, match=r"'ending_timestamp' .* zone"):
        epoch_milliseconds("ending_timestamp", time)
