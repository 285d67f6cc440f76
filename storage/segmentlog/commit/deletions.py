"""Deleted topics, as `segmentlog.state` remembers them.

A topic may be made again under its name.  Offsets of the old topic mean nothing in the new one,
and inodes do not distinguish the two, because file systems reuse them.  A reader that has opened
the directory before recognizes the deletion by its token.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from segmentlog.commit.numbered_writes import FORGOTTEN_AFTER_MS

__all__ = ["Deletion", "decode_deletions", "forget_deletions"]


class Deletion(NamedTuple):
    """A topic that was deleted at `time_ms` (epoch); `token` identifies the deletion."""

    topic: str
    token: str
    time_ms: int


def decode_deletions(found: Sequence[Sequence[Any]]) -> tuple[Deletion, ...]:
    """The deletions in a file.

    Raises
    ------
    TypeError
        If `found` has another form.
    """
    deletions = tuple(Deletion(*each) for each in found)
    if any([type(field) for field in each] != [str, str, int] for each in deletions):
        raise TypeError(f"expected topic, token and time; found {str(found)[:80]!r}")
    return deletions


def forget_deletions(deletions: Sequence[Deletion], now_ms: int) -> tuple[Deletion, ...]:
    """The deletions of the last 30 days; no reader is expected to stay open for longer.

    Accepted: if a clock jumps forward by as much, an open reader may mistake a topic that was made
    again for the topic that it has opened.
    """
    first = now_ms - FORGOTTEN_AFTER_MS
    return tuple(each for each in deletions if each.time_ms >= first)
