"""Small files that are read whole, safely for any kind of file.

An open of a pipe would wait for a writer, and a sparse file of a terabyte would take all memory
before its first byte is looked at.  On a network file system, a file that
another machine replaces while it is read is gone (``ESTALE``) until it is opened again.
"""

import errno
import stat
from collections.abc import Callable

from segmentlog.disk.contract import FileType
from segmentlog.disk.readable import open_file
from segmentlog.errors import SegmentLogError

__all__ = ["LARGEST_BYTES", "read_whole"]

#: A checkpoint of a million partitions with the longest names takes as much.
LARGEST_BYTES = 1 << 28

_ATTEMPTS = 5  # a file is replaced only so often while it is read


def read_whole(path: str, refusal: Callable[[str], SegmentLogError]) -> bytes:
    """The bytes of a file.

    Parameters
    ----------
    path : of the file.
    refusal : makes the error to raise from the reason, if the file cannot be read whole.

    Raises
    ------
    FileNotFoundError
        If the file is missing.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return _read(path, refusal)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
    return _read(path, refusal)


def _read(path: str, refusal: Callable[[str], SegmentLogError]) -> bytes:
    with open_file(path) as file:
        found = file.status()
        if found.type is not FileType.FILE:
            raise refusal(f"is not a plain file ({stat.filemode(found.mode)})")
        if found.size > LARGEST_BYTES:
            raise refusal(f"has {found.size} bytes; at the most {LARGEST_BYTES} are read")
        pieces, position = [], 0
        while piece := file.read(position, found.size + 1):
            pieces.append(piece)
            position += len(piece)
    return b"".join(pieces)
