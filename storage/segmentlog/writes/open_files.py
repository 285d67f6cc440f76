"""Files that a writing task appends to: far more files than it may have open at a time.

The system reports an error of writing back only once, to a descriptor that was open at that
moment.  So a file that has to be on the disk in the end is synced before it is closed, however
early that is.  Files that are closed early are synced together.
"""

import contextlib
import os
import resource

from segmentlog.store.beside_broker import Pace
from segmentlog.store.durable import SyncTogether, create_file, open_to_write, write_all

#: Descriptors that a task keeps.  Each file that is closed early costs a sync and an ``open``.
_MOST_WRITTEN = 1024

#: A process has other tasks and other files as well, and `SyncTogether` keeps some of its own.
_SHARE_OF_LIMIT = 4

#: A task needs this number even in a process that may open very few files.
_LEAST_OPEN = 8


class OpenFiles:
    """Creates files and appends to them; the least recently used file is closed for the next.

    `flush`: whether the bytes of all files that were not dropped are on the disk once `finish`
    returns.  `pace`: the limit of bytes a second, or None.
    """

    def __init__(self, *, flush: bool, pace: Pace | None = None) -> None:
        self._pace = pace
        self._syncs = SyncTogether() if flush else None
        # A process of macOS has 256 descriptors, one of Linux 1,024 or more.
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        share = _MOST_WRITTEN if limit == resource.RLIM_INFINITY else limit // _SHARE_OF_LIMIT
        self._most = max(_LEAST_OPEN, min(share, _MOST_WRITTEN))
        self._descriptors: dict[str, int] = {}  # of paths, the least recently used one first

    def create(self, path: str) -> None:
        """Make a file that must not exist yet."""
        self._make_room()
        self._descriptors[path] = create_file(path)

    def write(self, path: str, data: memoryview, position: int) -> None:
        """Write to a file that was created here.

        Raises `SyncFailedError` if another file, which has to be closed for this one, cannot be
        synced.
        """
        descriptor = self._descriptors.pop(path, -1)
        if descriptor < 0:
            self._make_room()
            descriptor = open_to_write(path)
        self._descriptors[path] = descriptor
        piece = len(data) if self._pace is None else self._pace.piece
        for begin in range(0, len(data), max(piece, 1)):
            part = data[begin : begin + piece]
            if self._pace is not None:
                self._pace.take(len(part))
            write_all(descriptor, part, position + begin)

    def drop(self, path: str) -> None:
        """Close a file as it is: its bytes need not be on the disk."""
        descriptor = self._descriptors.pop(path, -1)
        if descriptor >= 0:
            os.close(descriptor)

    def finish(self) -> None:
        """Close all files; only the task knows whether all bytes have been written."""
        while self._descriptors:
            self._close_oldest()
        if self._syncs is not None:
            self._syncs.finish()

    def abandon(self) -> None:
        """Close all files as they are."""
        while self._descriptors:
            with contextlib.suppress(OSError):
                os.close(self._descriptors.popitem()[1])
        if self._syncs is not None:
            self._syncs.abandon()

    def _make_room(self) -> None:
        while len(self._descriptors) >= self._most:
            self._close_oldest()

    def _close_oldest(self) -> None:
        path = next(iter(self._descriptors))
        descriptor = self._descriptors.pop(path)
        if self._syncs is None:
            os.close(descriptor)
        else:
            self._syncs.add_file(descriptor, path)
