"""Times and durations as users give them: in Spark's options, in Python, on the command line.

A time is one of these:

- a text in ISO 8601 with its zone (``2026-01-31T10:00:00Z``), or a date, which means its midnight
  in UTC;
- milliseconds since 1970, as a number or as a text of digits;
- in Python also a datetime with its time zone, or a date.

Where a time is a bound of a read in Python or on the command line, a duration (``2h``,
``10 minutes``, a timedelta) stands for the time so long before now.
"""

import re
import time as clock
from datetime import UTC, date, datetime, time, timedelta
from typing import TypeAlias

from segmentlog import model
from segmentlog.arguments import refused
from segmentlog.errors import OptionError
from segmentlog.model import LARGEST_LONG

Time: TypeAlias = model.Time

#: The accepted forms, for help texts and messages.
A_TIME = "a time such as 2026-01-31T10:00:00Z, a date, or milliseconds since 1970"

_ACCEPTED = f"give {A_TIME}; or a duration before now such as 2h"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_NO_ZONE = (
    "this time has no zone, and no zone is guessed: add Z for UTC, or an offset such as +02:00"
)

#: Seconds since 1970 have ten digits from 2001 to 2286.  As milliseconds, the same numbers are
#: times of January to April 1970, before there was Kafka.
_SECONDS = range(10**9, 10**10)

#: A date without its dashes has eight digits.  As milliseconds, the same numbers are times of the
#: first day of 1970.
_DATES = range(19_700_101, 21_000_101)

_UNITS = {
    "ms": 1,
    "millisecond": 1,
    "s": 1000,
    "second": 1000,
    "min": 60_000,
    "minute": 60_000,
    "m": 60_000,
    "h": 3_600_000,
    "hour": 3_600_000,
    "d": 86_400_000,
    "day": 86_400_000,
    "week": 604_800_000,
}


#: Milliseconds from 1990 to 2100: records have such times, and no such number of another unit.
_CREDIBLE_MS = range(631_152_000_000, 4_102_444_800_000)


def likely_unit(timestamp_ms: int) -> tuple[str, int] | None:
    """The unit that a producer has probably given instead of milliseconds, and the time in it.

    None for a credible time, and for a time that is not credible in any unit.
    """
    others = {
        "seconds": timestamp_ms * 1000,
        "microseconds": timestamp_ms // 1000,
        "nanoseconds": timestamp_ms // 10**6,
    }
    if timestamp_ms in _CREDIBLE_MS:
        return None
    return next((each for each in others.items() if each[1] in _CREDIBLE_MS), None)


def epoch_milliseconds(option: str, given: Time, now_ms: int | None = None) -> int:
    """Milliseconds since 1970 UTC of a time, or of a duration before now.

    A time between two milliseconds counts as the later one.  A record's timestamp is a whole
    number of milliseconds, so the same records are at or after either of the two.

    `now_ms`: the time from which a duration is counted back; by default, this machine's clock.
    Raises `OptionError` if `given` is not one of the forms of this module; if a time of day has no
    zone, because the zone of a machine is not guessed; if the time lies before 1970; if a number
    has ten digits, because it is then probably a time in seconds, or is a date without its dashes.
    """
    try:
        found = _milliseconds(given, now_ms)
    except ValueError as error:
        raise OptionError(option, str(given), str(error) or _ACCEPTED) from None
    if found is None:
        raise refused(option, given, _ACCEPTED)
    return found


def _milliseconds(given: object, now_ms: int | None) -> int | None:
    """Milliseconds since 1970, or None if the value has another type."""
    if isinstance(given, str):
        if not _is_duration(given):
            return parse_time(given)
        return _before(parse_duration(given), now_ms)
    if isinstance(given, timedelta):
        if given <= timedelta():
            reason = "a duration must be longer than zero"
            raise ValueError(reason)
        return _before(-(given // -_MILLISECOND), now_ms)
    if isinstance(given, datetime):
        return _since_1970(given)
    if isinstance(given, date):
        return _since_1970(datetime.combine(given, time(), UTC))
    if isinstance(given, bool) or not hasattr(given, "__index__"):
        return None
    try:
        number: int = given.__index__()
    except TypeError:  # an array has the method, too
        return None
    return refuse_seconds(number)


def _before(milliseconds: int, now_ms: int | None) -> int:
    now_ms = clock.time_ns() // 1_000_000 if now_ms is None else now_ms
    return max(now_ms - milliseconds, 0)


def refuse_seconds(milliseconds: int) -> int:
    """The number, if it can be milliseconds since 1970.

    Raises `ValueError` if it is negative or larger than 64 bits hold, or has the ten digits of a
    time in seconds, or the eight digits of a date.
    """
    if not 0 <= milliseconds <= LARGEST_LONG:
        raise ValueError
    if milliseconds in _DATES and (day := _as_date(milliseconds)):
        reason = (
            f"{milliseconds} is probably a date, but as a number it is milliseconds since 1970: "
            f"give {day}"
        )
        raise ValueError(reason)
    if milliseconds in _SECONDS:
        meant = (_EPOCH + timedelta(seconds=milliseconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
        reason = (
            f"{milliseconds} is probably a time in seconds, but this option takes milliseconds: "
            f"give {1000 * milliseconds} or {meant}"
        )
        raise ValueError(reason)
    return milliseconds


def _as_date(digits: int) -> date | None:
    """The date that eight digits are in ISO 8601, or None."""
    try:
        return date(digits // 10_000, digits // 100 % 100, digits % 100)
    except ValueError:
        return None


def parse_time(text: str) -> int:
    """Milliseconds since 1970 of a text: digits, a time in ISO 8601 with its zone, or a date.

    Raises `ValueError` if the text is none of these; the error has a reason if there is a more
    precise one.
    """
    text = text.strip()
    if re.fullmatch(r"[0-9]{1,19}", text):
        return refuse_seconds(int(text))
    if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        text += "T00:00:00Z"
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError from None  # the error of the option contains the text
    return _since_1970(when)


def _since_1970(when: datetime) -> int:
    """Milliseconds, rounded up."""
    if when.utcoffset() is None:
        raise ValueError(_NO_ZONE)
    milliseconds = -((_EPOCH - when) // _MILLISECOND)
    if milliseconds < 0:
        raise ValueError
    return milliseconds


def _is_duration(text: str) -> bool:
    return re.fullmatch(r"\s*(?:[0-9]{1,12}\s*[a-z]+\s*)+", text.lower(), re.ASCII) is not None


def parse_duration(text: str) -> int:
    """Milliseconds of a duration: ``10 minutes``, ``1 day 12 hours``, ``2h``, ``500ms``.

    Raises `ValueError` if it is not a duration, or is zero.
    """
    if not _is_duration(text):
        raise ValueError
    total = 0
    for number, unit in re.findall(r"([0-9]{1,12})\s*([a-z]+)", text.lower()):
        name = unit if unit in _UNITS else unit.removesuffix("s")
        if name not in _UNITS:
            raise ValueError
        total += int(number) * _UNITS[name]
    if not total:
        raise ValueError
    return total


def iso_time(timestamp_ms: int) -> str:
    """A time in ISO 8601, UTC; the number itself if no calendar date exists for it."""
    if timestamp_ms == -1:
        return "none"
    try:
        time = _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return str(timestamp_ms)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
