"""The marker of a log: its layout, and the id by which the log knows itself.

Layout 2 has an id in the marker and in each commit, and each commit has the token of the one
before.  So a place that was emptied and made again, or filled from a backup, is not taken for the
log that a process has known.  Layout 1 has neither: `segmentlog upgrade` moves it.
"""

import json
import secrets
from collections.abc import Sequence
from typing import NamedTuple

from segmentlog.bucket.commits import KNOWN_FEATURES, check_log_id
from segmentlog.bucket.objects import MARKER
from segmentlog.errors import LogDirectoryError
from segmentlog.txn.state import list_of

NEWEST_LAYOUT = 2
_NAME = "segmentlog bucket"


class Marker(NamedTuple):
    """What the marker says.

    `since`: number of the first commit with the id; commits before are those of layout 1.
    """

    layout: int
    log_id: str = ""
    since: int = 1

    @classmethod
    def of_new_log(cls) -> "Marker":
        """That of a log that has no commit yet."""
        return cls(NEWEST_LAYOUT, new_log_id())

    def encode(self) -> bytes:
        """The bytes of the object."""
        found = {"format": self.layout, "layout": _NAME, "id": self.log_id, "since": self.since}
        return json.dumps(found, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes, place: str) -> "Marker":
        """What an object says; raises `LogDirectoryError` if this version cannot follow it."""
        try:
            found = json.loads(data)
            layout = found["format"]
            if type(layout) is int and layout == 1:
                return cls(1)
            if type(layout) is int and layout == NEWEST_LAYOUT:
                check_log_id(found["id"])
                (since,) = list_of([found["since"]], int)
                unknown = {*list_of(found.get("features", []), str)} - KNOWN_FEATURES
                if since >= 1 and not unknown:
                    return cls(layout, found["id"], since)
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        reason = (
            f"the log has a layout that this version of segmentlog does not know: expected "
            f"format 1 or {NEWEST_LAYOUT} in {MARKER}, found {data[:80]!r}; update segmentlog "
            "here, or restore the object if it is damaged"
        )
        raise LogDirectoryError(place, reason)


def new_log_id() -> str:
    """An id that no other log has."""
    return secrets.token_hex(16)


def run_of(numbers: Sequence[int], first: int, most: int) -> list[int]:
    """The numbers that follow each other from `first` on, of a sorted list; up to `most`."""
    found = list[int]()
    for number in numbers:
        if number != first + len(found) or len(found) == most:
            break
        found.append(number)
    return found
