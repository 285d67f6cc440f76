"""Times as users give them: epoch milliseconds, or a datetime with a time zone."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from segmentlog.arguments import LEAST_LONG, refused, whole_number
from segmentlog.errors import OptionError

__all__ = ["epoch_milliseconds", "one_bound"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def epoch_milliseconds(option: str, time: datetime | int) -> int:
    """Milliseconds since 1970 UTC; a datetime between two milliseconds counts as the later one.

    A record's timestamp is a whole number of milliseconds.  So the same records are at or after
    either of the two.

    Parameters
    ----------
    option : name of the option, for errors.
    time : the value that the user gave.

    Raises
    ------
    OptionError
        If it is neither an int nor a datetime, or a datetime without a time zone: the time zone of
        the machine is not guessed.
    """
    if isinstance(time, datetime):
        if time.utcoffset() is None:
            accepted = "a datetime needs a time zone: datetime(…, tzinfo=UTC)"
            raise OptionError(option, time.isoformat(), accepted)
        return -((_EPOCH - time) // _MILLISECOND)
    if isinstance(time, bool) or not isinstance(time, int):
        accepted = "it is epoch milliseconds, or a datetime with a time zone"
        raise refused(option, time, accepted)
    return whole_number(option, time, LEAST_LONG, what="epoch milliseconds")


def one_bound(
    names: tuple[str, str],
    offset: int | None,
    time: datetime | int | None,
    find: Callable[[int], int],
) -> int | None:
    """The offset of a bound that is given as an offset, as a time, or not at all.

    Parameters
    ----------
    names : of the two options, for errors.
    offset, time : their values.
    find : the offset for a time in epoch milliseconds.

    Raises
    ------
    OptionError
        If both are given, or the time has no time zone.
    """
    if time is None:
        return offset
    if offset is not None:
        raise OptionError(names[1], str(time), f"give {names[0]} or {names[1]}, not both")
    return find(epoch_milliseconds(names[1], time))
