"""What kernels take and return, from their annotations."""

import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Array", "Lowered", "arrays", "signatures"]


class Array(NamedTuple):
    """An array in C order; `itemsize` in bytes."""

    dtype: str
    n_dimensions: int

    @property
    def itemsize(self) -> int:
        """Bytes of an item."""
        return np.dtype(self.dtype).itemsize


class Lowered(NamedTuple):
    """One kernel for arguments of one kind.

    `name` is ``module.function``, `symbol` is LLVM's name, and `written` has the numbers of the
    arrays that the kernel writes to.  An argument is ``int``, an `Array`, or a list for a named
    tuple; a result is None, ``int``, ``bool``, or a list of ``int``.
    """

    name: str
    symbol: str
    arguments: list[Any]
    result: Any
    written: frozenset[int] = frozenset()


def arrays(kinds: list[Any]) -> Iterator[Array]:
    """The arrays among arguments, with those in named tuples."""
    for each in kinds:
        if isinstance(each, list):
            yield from arrays(each)
        elif isinstance(each, Array):
            yield each


def signatures(func: Callable[..., object]) -> tuple[list[list[Any]], Any]:
    """The arguments of a kernel, once for each type of `Ends` that it takes, and its result."""
    hints = typing.get_type_hints(func, include_extras=True)
    result = hints.pop("return")
    made = [[_kind(hint, ends) for hint in hints.values()] for ends in ("int32", "int64")]
    if result not in (int, bool, types.NoneType):
        result = list(typing.get_args(result))
    return made[: 1 + (made[0] != made[1])], None if result is types.NoneType else result


def _kind(hint: Any, ends: str) -> Any:
    if hint is int:
        return int
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return Array(ends, 1)
    if isinstance(hint, type) and issubclass(hint, tuple):
        fields = typing.get_type_hints(hint, include_extras=True)
        return [_kind(each, ends) for each in fields.values()]
    n_dimensions = 1
    if typing.get_origin(hint) is typing.Annotated:
        hint, n_dimensions = typing.get_args(hint)
    dtype = typing.get_args(typing.get_args(hint)[1])[0]
    return Array(np.dtype(dtype).name, n_dimensions)
