"""Bytes that recovery removes from a log are kept beside it, in ``.broken`` files.

``segmentlog.<segment>.log.<byte>.broken`` holds the bytes of that segment from that byte on, up to
its end, or to the next good batch if the batches after the bad bytes stay in the log.  No
reader and no broker takes such a file for part of the log.  A broker looks at the end of a name
and at the digits at its beginning.  The end keeps the file from being loaded.  The beginning keeps
it from being removed when an interrupted compaction is finished.
"""

import contextlib
import itertools
import os
from collections.abc import Iterator

from segmentlog.store.durable import (
    create_file,
    cut_file,
    remove_file,
    rename,
    sync_directory,
    sync_file,
    write_all,
)
from segmentlog.store.readable import ReadableFile, after_zeros, exists, open_file

_PIECE_BYTES = 16 << 20


def is_zeros(path: str, position: int) -> bool:
    """Whether a file holds only zeros from byte `position` on: preallocation."""
    with open_file(path, follow=False) as file:
        size = file.status().size
        return after_zeros(file, position, size) >= size


def keep_tail(path: str, position: int, end: int | None = None) -> str:
    """Copy the bytes of a segment from `position` to `end`, and return the path of the copy."""
    # A recovery that is repeated after a crash finds its own copy, and makes no other.
    for kept in _names(path, position):
        if not exists(kept):
            break
        with open_file(path, follow=False) as segment, open_file(kept, follow=False) as copy:
            to, size = segment.status().size if end is None else end, copy.status().size
            pieces = itertools.zip_longest(_pieces(segment, position, to), _pieces(copy, 0, size))
            if to - position == size and all(piece == copied for piece, copied in pieces):
                return kept
    temporary = f"{kept}.tmp"
    remove_file(temporary, missing_ok=True)  # left by a crash
    copy_bytes(path, temporary, position, end)
    rename(temporary, kept)
    sync_directory(os.path.dirname(path))
    return kept


def copy_bytes(path: str, to: str, begin: int, end: int | None = None) -> None:
    """Copy bytes of a file to a new file, and sync them; the caller syncs its name.

    Zeros stay holes.  A copy that fails, as on a full disk, leaves nothing.
    """
    with open_file(path, follow=False) as source:
        target = create_file(to)
        try:
            end = source.status().size if end is None else end
            for at, piece in _pieces(source, begin, end):
                write_all(target, piece, at)
            cut_file(target, end - begin)
            sync_file(target, to)
        except BaseException:
            with contextlib.suppress(OSError):
                remove_file(to)
            raise
        finally:
            os.close(target)


def keep_segment(path: str) -> str:
    """Rename a whole segment, so that it leaves the log; the caller syncs the directory."""
    kept = next(name for name in _names(path, 0) if not exists(name))
    rename(path, kept)
    return kept


def _names(path: str, position: int) -> "itertools.chain[str]":
    """Possible names for the copy; the first one is taken only after earlier damage."""
    directory, name = os.path.split(path)
    stem = os.path.join(directory, f"segmentlog.{name}.{position}")
    again = (f"{stem}.{number}.broken" for number in itertools.count(2))
    return itertools.chain([f"{stem}.broken"], again)


def _pieces(file: ReadableFile, position: int, end: int) -> Iterator[tuple[int, bytes]]:
    """The bytes of a file up to `end`, but for zeros, each with its distance from `position`."""
    at = position
    while (at := after_zeros(file, at, end)) < end:
        piece = file.read(at, min(_PIECE_BYTES, end - at))
        yield at - position, piece.rstrip(b"\0")  # zeros of a piece stay a hole, too
        at += len(piece)
