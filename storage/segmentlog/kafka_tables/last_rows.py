"""The last state of a table whose history is the records of its topic."""

from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["last_rows"]


def last_rows(changes: Iterable[dict[str, Any]], *key: str) -> Iterator[dict[str, Any]]:
    """The last row of each key that was not removed after it, in the order of first rows.

    Parameters
    ----------
    changes : rows of a history, with a column ``change``.
    key : names of the columns that make the key.
    """
    last: dict[tuple[object, ...], dict[str, Any]] = {}
    for row in changes:
        name = tuple(row.get(each) for each in key)
        if row["change"] == "removed":
            last.pop(name, None)
        else:
            last[name] = row
    yield from last.values()
