"""One option, and the options that a user has given: texts to values, for reads and writes."""

import re
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from segmentlog.errors import OptionError, SegmentLogError
from segmentlog.model import LARGEST_LONG
from segmentlog.times import parse_duration

_Word = TypeVar("_Word", bound=StrEnum)

#: Units of Spark's time strings, in microseconds.
_TIME_UNITS = {
    "us": 1,
    "": 1000,
    "ms": 1000,
    "s": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}

_TOO_LARGE = f"the largest size is {LARGEST_LONG} bytes"

_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


class Query(StrEnum):
    """A kind of query that reads; the value is how messages name it."""

    BATCH = "batch"
    STREAM = "streaming"


class Option(NamedTuple):
    """One option, as listed in the reference in ``connector/docs/options.md``."""

    #: as in the reference
    name: str
    default: str  # as in the reference; between backticks if it is a value, which `parse` accepts
    accepts: str  # as in the reference, and in the sentence that refuses another value
    meaning: str
    #: from the text to the value; raises `ValueError`, with a reason or without, or `OptionError`,
    #: if it does not accept the text.  None for a text that is taken as it is.
    parse: Callable[[str], Any] | None = None
    #: queries in which the option has an effect.  Others accept it, as `kafka` does.
    used_by: tuple[Query, ...] = (Query.BATCH, Query.STREAM)

    def value_of(self, text: str) -> Any:  # noqa: ANN401 (each option has its type)
        """The value of a text, or `OptionError`, or the error of a file that it names."""
        if self.parse is None:
            return text
        try:
            return self.parse(text)
        except SegmentLogError:  # many of them are a ValueError
            raise
        except ValueError as error:
            accepted = f"give {self.accepts.replace('`', '')}"
            reason = f"; {error}" if str(error) else ""
            raise OptionError(self.name, text, accepted + reason) from None


class GivenOptions:
    """The options that a user has given; each one is parsed when it is asked for, not before."""

    def __init__(self, raw: Mapping[str, str], table: Iterable[Option]) -> None:
        self.texts = {name.lower(): text for name, text in raw.items()}
        self._table = {option.name: option for option in table}

    def __contains__(self, name: str) -> bool:
        return name.lower() in self.texts

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 (the same)
        """The value, or the default: None if the table has words in its place."""
        option = self._table[name]
        text = self.texts.get(name.lower())
        if text is None:
            default = re.fullmatch("`([^`]*)`", option.default)
            return option.value_of(default[1]) if default else None
        return option.value_of(text)


def boolean(text: str) -> bool:
    """True or false, in any case."""
    if text.strip().lower() not in {"true", "false"}:
        raise ValueError
    return text.strip().lower() == "true"


def one_of(words: type[_Word]) -> Callable[[str], _Word]:
    """Parser of an option that accepts a few words, in any case."""

    def parse(text: str) -> _Word:
        for word in words:
            if word.value.lower() == text.strip().lower():
                return word
        raise ValueError

    return parse


def number(least: int, most: int = LARGEST_LONG) -> Callable[[str], int]:
    """Parser of whole numbers from `least` to `most`."""

    def parse(text: str) -> int:
        if re.fullmatch(r"-?[0-9]{1,19}", text.strip()) is None or not least <= int(text) <= most:
            raise ValueError
        return int(text)

    return parse


def size(*, zero: bool = False) -> Callable[[str], int]:
    """Parser of bytes, or of a size such as ``64m``; 0 only if `zero`."""

    def parse(text: str) -> int:
        match = re.fullmatch(r"([0-9]{1,19})([kmgt]?)b?", text.strip().lower())
        if match is None or (not zero and not int(match[1])):
            raise ValueError
        found = int(match[1]) * _UNITS[match[2]]
        if found > LARGEST_LONG:
            raise ValueError(_TOO_LARGE)
        return found

    return parse


def time_string(text: str) -> int:
    """Milliseconds of a time string of Spark (``JavaUtils.timeStringAs``), or of a duration."""
    match = re.fullmatch(r"([0-9]{1,18})([a-z]*)", text.strip().lower(), re.ASCII)
    if match is None or match[2] not in _TIME_UNITS:
        return parse_duration(text)
    return int(match[1]) * _TIME_UNITS[match[2]] // 1000
