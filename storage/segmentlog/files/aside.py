"""Files that leave the log: renamed, as a broker renames them, and found by reads under way.

A read that was planned before needs the bytes that it has planned.  Compaction puts another file
under the name, in which records may have gone for newer ones behind the end of the read.
"""

import contextlib
import os

from segmentlog.files.names import FileKind, FileState

__all__ = ["names_aside", "set_aside"]

_LOG = f".{FileKind.LOG}"


def set_aside(directory: str, name: str) -> None:
    """Rename a file of a segment to ``.deleted``; the caller syncs the directory.

    Two compactions within ``file.delete.delay.ms`` set aside two files of one name.  The earlier
    log gets a name with its inode, and stays as long as the later one.  Brokers remove both when
    they start (``LogLoader`` goes by the ending).

    Parameters
    ----------
    directory : of the partition.
    name : of the file, which is part of the log.
    """
    aside = os.path.join(directory, f"{name}.{FileState.DELETED}")
    if name.endswith(_LOG):
        with contextlib.suppress(FileNotFoundError):
            _, by_inode = names_aside(os.path.join(directory, name), os.stat(aside).st_ino)
            os.rename(aside, by_inode)
    os.rename(os.path.join(directory, name), aside)


def names_aside(path: str, inode: int) -> tuple[str, str]:
    """The two paths at which a file may be that has left the log."""
    return f"{path}.{FileState.DELETED}", f"{path}.{inode}.{FileState.DELETED}"
