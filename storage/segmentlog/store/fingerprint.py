"""Fingerprints of files, and when two equal ones prove that a file is unchanged.

Inode, size and times show most changes.  They do not show a change in the same step of the file
system's clock as the look: both leave the same time.  So a look proves something only once the
clock has moved on since the file was last changed.  Until then the caller has to read again, and
to compare contents.
"""

import time
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from segmentlog.store.readable import Stamp, open_file, status_of
from segmentlog.store.system_errors import is_gone

_SECOND_NS = 1_000_000_000
#: The kernel's clock for files moves on every 1 to 10 ms; on a busy virtual machine, later.
_STEP_NS = _SECOND_NS
_COARSE_STEP_NS = 2 * _SECOND_NS + _STEP_NS  #: FAT keeps steps of two seconds
_SERVERS_DIFFER_NS = 60 * _SECOND_NS  #: a server's clock sets the times of its files


class Fingerprint(NamedTuple):
    """A look at a file or a directory."""

    stamp: Stamp | None  # inode, size and times; None if there was no file
    first_ns: int  # time of the first look that found this stamp, by a clock that nobody sets
    #: whether the clock of the file system had moved on since the file was changed.  A later
    #: change then has a later time.
    is_settled: bool

    def following(self, before: "Fingerprint") -> "Fingerprint":
        """The look with the knowledge that an earlier one found the same stamp."""
        if self.is_settled or self.stamp is None or self.stamp != before.stamp:
            return self
        seen_for_ns = self.first_ns - before.first_ns
        return Fingerprint(self.stamp, before.first_ns, seen_for_ns >= _step_ns(self.stamp))


#: Paths, and what was seen there before it was read, in the order of the looks.
Evidence: TypeAlias = Sequence[tuple[str, Fingerprint]]


def still_proven(evidence: Evidence) -> bool:
    """Whether it proves that nothing at its paths has changed; no evidence proves nothing."""
    return bool(evidence) and all(fingerprint(path, seen) is seen for path, seen in evidence)


def fingerprint(path: str, before: Fingerprint | None = None) -> Fingerprint:
    """Look at a file or a directory; links are followed.

    Look before you read the file: a change between the two is then read, and found again by the
    next look.

    `before`: an earlier look at it.  Returns `before` itself if nothing has changed since the file
    was read after that look.  Any other look means that the file may have changed.
    """
    try:
        stamp, is_remembered = _stamp(path)
    except OSError as error:
        found = Fingerprint(None, 0, is_settled=is_gone(error))  # any other error proves nothing
        return before if found == before and found.is_settled else found
    if before is not None and before.stamp == stamp and before.is_settled:
        return before
    now = Fingerprint(stamp, time.monotonic_ns(), _is_old(stamp, is_remembered=is_remembered))
    return now if before is None else now.following(before)


def _stamp(path: str) -> tuple[Stamp, bool]:
    """The stamp, and whether a server's clock may have set the times."""
    found = status_of(path, follow=True)
    is_remembered = found.is_remembered
    # A client of a network file system asks the server only when the file is opened.
    if is_remembered:
        with open_file(path) as file:
            found = file.status()
    return found.stamp, is_remembered


def _step_ns(stamp: Stamp) -> int:
    return _STEP_NS if stamp[2] % _SECOND_NS else _COARSE_STEP_NS


def _is_old(stamp: Stamp, *, is_remembered: bool) -> bool:
    """Whether the file was last changed longer ago than a step of its clock."""
    # That clock is our own, but for files of a server.
    age_ns = time.time_ns() - max(stamp[2:])
    return age_ns >= (_SERVERS_DIFFER_NS if is_remembered else _step_ns(stamp))
