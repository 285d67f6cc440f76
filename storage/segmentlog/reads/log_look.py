"""A look at the files of one log, and whether a later look proves that its listing still holds.

Segments are rolled, put aside and compacted by making and renaming files, which changes the time
of the partition's directory.  Records are appended to the active segment, which changes the time
of that file.  Nothing else changes the end of a log.
"""

from collections.abc import Sequence
from typing import NamedTuple

from segmentlog.log.listing import SegmentFiles
from segmentlog.store.fingerprint import Fingerprint, fingerprint


class LogLook(NamedTuple):
    """A look at a partition's directory, from before its listing, and at its active segment.

    `active` is None without a segment, or if the segment was written to since the listing.
    """

    directory: Fingerprint
    active: Fingerprint | None

    def following(self, before: "LogLook") -> "LogLook":
        """The look with the knowledge of an earlier one that found the same."""
        active = self.active
        if active is not None and before.active is not None:
            active = active.following(before.active)
        return LogLook(self.directory.following(before.directory), active)

    def still_holds(self, path: str, files: Sequence[SegmentFiles]) -> bool:
        """Whether the log is proven to be as it was listed; without proof, it may still be so.

        `path`: of the partition's directory.
        """
        if fingerprint(path, self.directory) is not self.directory:
            return False
        if not files:
            return True
        return self.active is not None and fingerprint(files[-1].path, self.active) is self.active


def look_at_log(directory: Fingerprint, files: Sequence[SegmentFiles]) -> LogLook:
    """The look that belongs to a listing which has just been made.

    `directory`: the look at the partition's directory before the listing.
    """
    if not files:
        return LogLook(directory, None)
    listed = files[-1]
    active = fingerprint(listed.path)
    is_listed = active.stamp is not None and active.stamp[:2] == (listed.inode, listed.size)
    return LogLook(directory, active if is_listed else None)
