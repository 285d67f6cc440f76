"""Topics that were deleted, as `segmentlog.state` remembers them.

A topic may be made again under its name.  Offsets of the old one say nothing of the new one, and
neither do inodes, which file systems give out again: whoever has opened the directory before is
told by the token of the deletion.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from segmentlog.journal.sink_versions import FORGOTTEN_AFTER_MS

__all__ = ["Deletion", "decode_deletions", "forget_deletions"]


class Deletion(NamedTuple):
    """A topic that was deleted at `time_ms` (epoch); `token` is that of the deletion."""

    topic: str
    token: str
    time_ms: int


def decode_deletions(found: Sequence[Sequence[Any]]) -> tuple[Deletion, ...]:
    """Those that a file holds.

    Raises
    ------
    TypeError
        If they are none.
    """
    deletions = tuple(Deletion(*each) for each in found)
    if any([type(field) for field in each] != [str, str, int] for each in deletions):
        raise TypeError(f"expected topic, token and time; found {str(found)[:80]!r}")
    return deletions


def forget_deletions(deletions: Sequence[Deletion], now_ms: int) -> tuple[Deletion, ...]:
    """Those that somebody may have to be told of: no reader is open for longer.

    Accepted: where a clock jumps forward by as much, a reader that is open may take a topic that
    was made again for the one that it has opened.
    """
    first = now_ms - FORGOTTEN_AFTER_MS
    return tuple(each for each in deletions if each.time_ms >= first)
