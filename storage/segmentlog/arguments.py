"""Checks of the arguments of public functions, each of which raises an `OptionError`.

The error names the argument in one sentence.
"""

import functools
import inspect
import os
from collections.abc import Callable, Collection, Iterable
from enum import StrEnum
from operator import index
from typing import Concatenate, Generic, ParamSpec, SupportsIndex, TypeVar, cast, overload

from segmentlog.errors import OptionError
from segmentlog.model import (
    BYTES_OR_TEXT,
    LARGEST_LONG,
    IsolationLevel,
    OnCorruptBatch,
    OnInvalidUtf8,
    ScanPolicy,
)

_Word = TypeVar("_Word", bound=StrEnum)
_A = TypeVar("_A")
_B = TypeVar("_B")
_R = TypeVar("_R")
_Settings = TypeVar("_Settings")
_Fields = ParamSpec("_Fields")

LARGEST_INT = 2**31 - 1


def refused(option: str, value: object, accepted: str) -> OptionError:
    """The error for an argument of a wrong type, which is shown as Python writes it."""
    return OptionError(option, value if isinstance(value, str) else repr(value), accepted)


def whole_number(
    option: str, value: SupportsIndex, least: int = 0, most: int = LARGEST_LONG, what: str = ""
) -> int:
    """A whole number within bounds, of Python or NumPy; a bool is not one."""
    try:
        number = None if isinstance(value, bool) else index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        accepted = f"give {what or 'a whole number'} from {least} to {most}"
        raise refused(option, value, accepted)
    return number


def instance_of(option: str, value: object, kind: type | tuple[type, ...], accepted: str) -> None:
    """Refuse a value of another type."""
    if not isinstance(value, kind):
        raise refused(option, value, accepted)


def path_text(option: str, value: object) -> str:
    """A path as text, from a ``str``, ``bytes`` or an ``os.PathLike``."""
    instance_of(option, value, (str, bytes, os.PathLike), "give a path")
    return os.fsdecode(cast("str | bytes | os.PathLike[str]", value))


def seconds(option: str, value: object) -> float:
    """A duration in seconds, from 0 to infinity."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise refused(option, value, "give seconds, 0 or more")
    return value


def texts(option: str, values: object, accepted: str) -> tuple[str, ...]:
    """Several names, in their order; a single text is one name."""
    if isinstance(values, str):
        return (values,)
    if not isinstance(values, Iterable):
        raise refused(option, values, accepted)
    names = tuple(values)
    for name in names:
        instance_of(option, name, str, accepted)
    return names


def topic_names(option: str, values: str | Iterable[str] | None) -> Collection[str]:
    """One name or several, as a collection; empty if none is given."""
    return texts(option, values or (), "give the name of a topic, or several names")


def one_of(option: str, value: object, words: type[_Word]) -> _Word:
    """One of a few words, in Kafka's or Spark's spelling."""
    for word in words:
        if value == word:
            return word
    raise refused(option, value, f"give {' or '.join(map(repr, map(str, words)))}")


def scan_policy(
    isolation_level: str,
    on_corrupt_batch: str,
    max_inflated_batch_bytes: int,
    *,
    strings: bool = False,
    on_invalid_utf8: str = OnInvalidUtf8.FAIL,
    max_bytes_per_second: int | None = None,
    spare_page_cache: bool = False,
) -> ScanPolicy:
    """The policy of a read, checked."""
    limit = max_bytes_per_second
    if limit is not None:
        limit = whole_number("max_bytes_per_second", limit, 1, what="bytes")
    return ScanPolicy(
        one_of("isolation_level", isolation_level, IsolationLevel),
        one_of("on_corrupt_batch", on_corrupt_batch, OnCorruptBatch),
        # A negative bound would be a size of memory to the kernels.
        whole_number("max_inflated_batch_bytes", max_inflated_batch_bytes, 1),
        text=BYTES_OR_TEXT if strings else (),
        on_invalid_utf8=one_of("on_invalid_utf8", on_invalid_utf8, OnInvalidUtf8),
        max_bytes_per_second=limit,
        spare_page_cache=bool(spare_page_cache),
    )


class keywords_of(Generic[_Fields, _Settings]):  # noqa: N801 - a decorator
    """Give a function the fields of a dataclass as arguments, in place of its last parameter.

    The arguments that several functions take are listed once, in the dataclass, which these
    functions pass on as one value.
    """

    def __init__(self, settings: Callable[_Fields, _Settings]) -> None:
        self._settings = settings

    @overload
    def __call__(
        self, function: Callable[[_A, _Settings], _R]
    ) -> Callable[Concatenate[_A, _Fields], _R]: ...

    @overload
    def __call__(
        self, function: Callable[[_A, _B, _Settings], _R]
    ) -> Callable[Concatenate[_A, _B, _Fields], _R]: ...

    def __call__(self, function: Callable[..., _R]) -> Callable[..., _R]:
        """The function that users call."""
        signature = inspect.signature(function)
        *own, last = signature.parameters.values()
        fields = inspect.signature(self._settings).parameters.values()
        settings: Callable[..., _Settings] = self._settings
        outside = signature.replace(parameters=[*own, *fields])

        @functools.wraps(function)
        def called(*args: object, **kwargs: object) -> _R:
            bound = outside.bind(*args, **kwargs).arguments
            before = {each.name: bound.pop(each.name) for each in own}
            return function(**before, **{last.name: settings(**bound)})

        called.__dict__["__signature__"] = outside  # `help` and `inspect.signature` show it
        return called


def refuse_two(first: str, of_first: object, second: str, of_second: object) -> None:
    """Refuse two options for the same bound."""
    if of_first is not None and of_second is not None:
        raise OptionError(second, str(of_second), f"give {first} or {second}, not both")
