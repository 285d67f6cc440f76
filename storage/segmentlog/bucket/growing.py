"""A table that grows from state to state of a log, and is shared by all of them.

A log remembers each job, version and object of the last weeks.  To copy such a table for each
commit would make a commit the slower the more of them there were: after 100,000 jobs, the copy
took longer than the commit itself.
"""

from collections.abc import Callable, ItemsView, Iterator, Mapping
from math import isqrt
from typing import TypeVar

_Key = TypeVar("_Key")
_Found = TypeVar("_Found")

_MOST_NEW = 64


class Growing(Mapping[_Key, _Found]):
    """A table that never changes; `grown` makes a larger one, at the cost of what is new in it.

    New rows wait in a small table of their own until there are about as many as the root of all:
    only then is the large one copied.
    """

    __slots__ = ("_new", "_old")

    def __init__(
        self, old: Mapping[_Key, _Found] | None = None, new: Mapping[_Key, _Found] | None = None
    ) -> None:
        self._old, self._new = old or {}, new or {}

    def grown(self, rows: Mapping[_Key, _Found]) -> "Growing[_Key, _Found]":
        """The table with more rows, which replace those of the same keys."""
        if not rows:
            return self
        new = {**self._new, **rows}
        if len(new) <= _MOST_NEW + isqrt(len(self._old)):
            return Growing(self._old, new)
        return Growing({**self._old, **new})

    def without(self, is_gone: Callable[[_Key], bool]) -> "Growing[_Key, _Found]":
        """The table without some rows; all of it is copied."""
        return Growing({key: found for key, found in self.items() if not is_gone(key)})

    def __getitem__(self, key: _Key) -> _Found:
        return self._new[key] if key in self._new else self._old[key]

    def __iter__(self) -> Iterator[_Key]:
        yield from self._old
        yield from (key for key in self._new if key not in self._old)

    def items(self) -> ItemsView[_Key, _Found]:
        """All rows; one at a time, a million of them would take seconds."""
        return {**self._old, **self._new}.items()

    def __len__(self) -> int:
        return len(self._old) + sum(key not in self._old for key in self._new)
