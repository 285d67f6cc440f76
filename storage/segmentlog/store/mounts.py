"""The file system of a directory: object stores look like file systems, but are not.

On a FUSE mount of an object store, a rename copies, locks hold on one machine only, and a sync
guarantees nothing.  A commit rests on all three.
"""

import os
import re

from segmentlog.errors import LogDirectoryError

_MOUNTS = "/proc/self/mountinfo"
_OBJECT_STORES = re.compile(
    r"s3fs|gcsfuse|goofys|geesefs|blobfuse2?|rclone|mountpoint-s3|ossfs|cosfs|dbfs|hdfs|tigrisfs",
    re.IGNORECASE,
)
_ESCAPED = re.compile(r"\\([0-7]{3})")


def refuse_object_store(directory: str, mounts: str = _MOUNTS) -> None:
    """Refuse to write where an object store is mounted.

    `directory`: absolute path, of something that exists.  `mounts`: the system's table of mounts;
    nothing is refused if there is none (macOS).  Raises `LogDirectoryError` with the kind of the
    mount.
    """
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as table:
            lines = table.readlines()
    except OSError:
        return
    path = os.path.realpath(directory)
    longest, kind = "", ""
    for line in lines:
        before, _, after = line.partition(" - ")
        point = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), before.split()[4])
        within = path == point or path.startswith(point.rstrip("/") + "/")
        if within and len(point) >= len(longest):  # a later mount hides an earlier one
            longest, kind = point, " ".join(after.split()[:2])
    if kind.startswith("fuse") and _OBJECT_STORES.search(kind):
        reason = (
            f"is an object store ({kind} at {longest}), which has neither the locks nor the "
            "renames that a commit needs; write to a local file system or to NFS 4, and copy the "
            "log to the store"
        )
        raise LogDirectoryError(directory, reason)
