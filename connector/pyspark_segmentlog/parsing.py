"""Option strings to values, for reads and writes."""

import difflib
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple, TypeVar

from segmentlog.errors import OptionError

__all__ = [
    "Option", "parse_boolean", "parse_one_of", "parse_size", "refuse_client_option",
    "unknown_option",
]  # fmt: skip

_Word = TypeVar("_Word", bound=StrEnum)

_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


class Option(NamedTuple):
    """One option, as listed in the reference in ``connector/README.md``."""

    name: str
    default: str
    accepts: str
    meaning: str


def unknown_option(name: str, value: str, names: Iterable[str]) -> OptionError:
    """The error for an unknown name: silence would give other rows than the user meant."""
    known = {each.lower(): each for each in names}
    near = difflib.get_close_matches(name.lower(), known, n=1)
    accepted = f"those that there are: {', '.join(known.values())}"
    if near:
        accepted = f"did you mean {known[near[0]]!r}?"
    return OptionError(name, value, f"there is no such option; {accepted}")


def refuse_client_option(name: str, value: str, forbidden: Mapping[str, str]) -> None:
    """Refuse options of the Kafka client that show a misunderstanding; others are not used.

    Raises
    ------
    OptionError
        If the name, without ``kafka.``, is one of `forbidden`.
    """
    if name in forbidden:
        raise OptionError(f"kafka.{name}", value, f"it is not supported: {forbidden[name]}")


def parse_boolean(name: str, given: Mapping[str, str], *, default: bool) -> bool:
    """True or false, in any case."""
    text = given.get(name.lower())
    if text is None:
        return default
    if text.strip().lower() not in {"true", "false"}:
        raise OptionError(name, text, "give true or false")
    return text.strip().lower() == "true"


def parse_one_of(
    name: str, given: Mapping[str, str], accepted: type[_Word], default: _Word
) -> _Word:
    """The word of an option that accepts a few words, in any case."""
    text = given.get(name.lower())
    if text is None:
        return default
    for word in accepted:
        if word.value.lower() == text.strip().lower():
            return word
    raise OptionError(name, text, f"give {' or '.join(accepted)}")


def parse_size(name: str, given: Mapping[str, str], *, default: int, zero: str = "") -> int:
    """Bytes, or a size such as ``64m``; 0 is allowed if `zero` describes its meaning."""
    text = given.get(name.lower())
    if text is None:
        return default
    match = re.fullmatch(r"([0-9]{1,18})([kmgt]?)b?", text.strip().lower())
    size = int(match[1]) * _UNITS[match[2]] if match else -1
    if size < 0 or (size == 0 and not zero):
        accepted = "give bytes, or a size such as 64m"
        raise OptionError(name, text, f"{accepted}; 0 for {zero}" if zero else accepted)
    return size
