"""Checks of arguments where users give them: a wrong one ends in one sentence that names it."""

from collections.abc import Collection, Iterable
from operator import index
from typing import SupportsIndex

from segmentlog.errors import OptionError

__all__ = ["LARGEST_LONG", "refused", "seconds", "topic_names", "whole_number"]

LARGEST_LONG = 2**63 - 1


def refused(option: str, value: object, accepted: str) -> OptionError:
    """The error for an argument of a wrong type, which is shown as Python writes it."""
    return OptionError(option, value if isinstance(value, str) else repr(value), accepted)


def whole_number(
    option: str, value: SupportsIndex, least: int = 0, most: int = LARGEST_LONG, what: str = ""
) -> int:
    """A whole number within bounds, of Python or NumPy; a bool is not one.

    Parameters
    ----------
    option, value : the argument.
    least, most : both are accepted.
    what : what is counted, for the sentence; by default "a whole number".

    Raises
    ------
    OptionError
        If the value is not such a number.
    """
    try:
        number = None if isinstance(value, bool) else index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        accepted = f"give {what or 'a whole number'} from {least} to {most}"
        raise refused(option, value, accepted)
    return number


def seconds(option: str, value: object) -> float:
    """A duration in seconds, from 0 to infinity.

    Raises
    ------
    OptionError
        If the value is not such a number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise refused(option, value, "give seconds, from 0 on")
    return value


def topic_names(option: str, value: str | Iterable[str] | None) -> Collection[str]:
    """One name or several as a collection of names, in their order; empty if none is given.

    Raises
    ------
    OptionError
        If a name is not text.
    """
    accepted = "give the name of a topic, or several names"
    if value is None or isinstance(value, str):
        return (value,) if value else ()
    try:
        names = tuple(value)
    except TypeError:
        raise refused(option, value, accepted) from None
    for name in names:
        if not isinstance(name, str):
            raise refused(option, name, accepted)
    return names
