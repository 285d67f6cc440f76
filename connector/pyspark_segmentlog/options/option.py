"""Option strings to values, for reads and writes."""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from segmentlog.errors import OptionError

__all__ = [
    "GivenOptions", "Option", "boolean", "nearest", "one_of", "parse_boolean", "parse_size",
    "positive", "refuse_client_option", "size", "unknown_option",
]  # fmt: skip

_Word = TypeVar("_Word", bound=StrEnum)

_BOOLEAN = "`true` or `false`"
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


class Option(NamedTuple):
    """One option, as listed in the reference in ``connector/README.md``.

    Attributes
    ----------
    name, meaning : as in the reference.
    default : as in the reference; between backticks if it is a value, which `parse` accepts.
    accepts : as in the reference, and in the sentence that refuses another value.
    parse : from the text to the value; raises `ValueError`, with a reason or without, or
        `OptionError`, if it does not accept the text.  None for a text that is taken as it is.
    is_used : whether the option has an effect, or is only accepted, for code written for `kafka`.
    """

    name: str
    default: str
    accepts: str
    meaning: str
    parse: Callable[[str], Any] | None = None
    is_used: bool = True

    def value_of(self, text: str) -> Any:  # noqa: ANN401 (each option has its type)
        """The value of a text.

        Raises
        ------
        OptionError
            If the text is not accepted.
        """
        if self.parse is None:
            return text
        try:
            return self.parse(text)
        except OptionError:
            raise
        except ValueError as error:
            accepted = f"give {self.accepts.replace('`', '')}"
            reason = f"; {error}" if str(error) else ""
            raise OptionError(self.name, text, accepted + reason) from None


class GivenOptions:
    """The options that a user has given; each one is parsed when it is asked for, not before.

    Parameters
    ----------
    raw : texts by name, in any case.
    table : all options.
    """

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
            default = option.default.strip("`")
            return option.value_of(default) if default != option.default else None
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


def positive(largest: int) -> Callable[[str], int]:
    """Parser of whole numbers from 1 to `largest`."""

    def parse(text: str) -> int:
        if re.fullmatch(r"[0-9]{1,19}", text.strip()) is None or not 0 < int(text) <= largest:
            raise ValueError
        return int(text)

    return parse


def size(*, zero: bool = False) -> Callable[[str], int]:
    """Parser of bytes, or of a size such as ``64m``; 0 only if `zero`."""

    def parse(text: str) -> int:
        match = re.fullmatch(r"([0-9]{1,18})([kmgt]?)b?", text.strip().lower())
        if match is None or (not zero and not int(match[1])):
            raise ValueError
        return int(match[1]) * _UNITS[match[2]]

    return parse


def unknown_option(name: str, value: str, names: Iterable[str]) -> OptionError:
    """The error for an unknown name: silence would give other rows than the user meant."""
    known = list(names)
    near = nearest(name, known, cutoff=0.6)
    accepted = f"did you mean {near!r}?" if near else f"those that there are: {', '.join(known)}"
    return OptionError(name, value, f"there is no such option; {accepted}")


def nearest(name: str, names: Iterable[str], *, cutoff: float) -> str | None:
    """The name that is most like `name`, in any case, or None if none is."""
    known = {each.lower(): each for each in names}
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=cutoff)
    return known[near[0]] if near else None


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
    return (
        default if text is None else bool(Option(name, "", _BOOLEAN, "", boolean).value_of(text))
    )


def parse_size(name: str, given: Mapping[str, str], *, default: int, zero: str = "") -> int:
    """Bytes, or a size such as ``64m``; 0 is allowed if `zero` describes its meaning."""
    accepts = "bytes, or a size such as 64m" + (f"; 0 for {zero}" if zero else "")
    option = Option(name, "", accepts, "", size(zero=bool(zero)))
    text = given.get(name.lower())
    return default if text is None else int(option.value_of(text))
