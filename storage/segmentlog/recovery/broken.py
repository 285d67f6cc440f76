"""Bytes that recovery removes from a log are kept beside it, in ``.broken`` files.

``segmentlog.<segment>.log.<byte>.broken`` holds the bytes of that segment from that byte on.  No
reader and no broker takes such a file for part of the log.  A broker looks at the end of a name
and at the digits at its beginning.  The end keeps the file from being loaded.  The beginning keeps
it from being removed when an interrupted compaction is finished.
"""

import contextlib
import itertools
import os

from segmentlog.disk.durable import create_file, sync_directory, sync_file, write_all
from segmentlog.disk.readable import exists, open_file

__all__ = ["copy_bytes", "is_zeros", "keep_segment", "keep_tail"]

_PIECE_BYTES = 16 << 20


def is_zeros(path: str, position: int) -> bool:
    """Whether a file holds only zeros from byte `position` on: preallocation."""
    with open_file(path, follow=False) as file:
        while piece := file.read(position, _PIECE_BYTES):
            if piece.strip(b"\0"):
                return False
            position += len(piece)
    return True


def keep_tail(path: str, position: int) -> str:
    """Copy the bytes of a segment from `position` on, durably, and return the path of the copy.

    A recovery that is repeated after a crash finds its own copy, and makes no other.
    """
    for kept in _names(path, position):
        if not exists(kept):
            break
        if _is_copy(path, position, kept):
            return kept
    temporary = f"{kept}.tmp"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)  # left by a crash
    copy_bytes(path, temporary, position)
    os.replace(temporary, kept)
    sync_directory(os.path.dirname(path))
    return kept


def copy_bytes(path: str, to: str, begin: int, end: int = 2**63 - 1) -> None:
    """Copy bytes of a file to a new file, and sync them; the caller syncs its name."""
    with open_file(path, follow=False) as source:
        target = create_file(to)
        try:
            at = begin
            while at < end and (piece := source.read(at, min(_PIECE_BYTES, end - at))):
                write_all(target, piece, at - begin)
                at += len(piece)
            sync_file(target, to)
        finally:
            os.close(target)


def keep_segment(path: str) -> str:
    """Rename a whole segment, so that it leaves the log; the caller syncs the directory."""
    kept = next(name for name in _names(path, 0) if not exists(name))
    os.rename(path, kept)
    return kept


def _names(path: str, position: int) -> "itertools.chain[str]":
    """Possible names for the copy; the first one is taken only after earlier damage."""
    directory, name = os.path.split(path)
    stem = os.path.join(directory, f"segmentlog.{name}.{position}")
    again = (f"{stem}.{number}.broken" for number in itertools.count(2))
    return itertools.chain([f"{stem}.broken"], again)


def _is_copy(path: str, position: int, kept: str) -> bool:
    """Whether `kept` holds the bytes of the segment from `position` on."""
    with open_file(path, follow=False) as segment, open_file(kept, follow=False) as copy:
        if segment.status().size - position != copy.status().size:
            return False
        at = 0
        while piece := segment.read(position + at, _PIECE_BYTES):
            if copy.read(at, _PIECE_BYTES) != piece:
                return False
            at += len(piece)
    return True
