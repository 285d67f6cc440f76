"""Memory, and the open file, that the slices of one read leave to one another."""

import contextlib
import sys
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol, Self

import numpy as np

from segmentlog.format.kernels.memory import COPY_SLACK, Bytes
from segmentlog.format.records.native_codecs import NativeCodecs

_MOST_KEPT_BYTES = 8 << 20  # a slice of unusually large batches leaves nothing to the next one


class _Closable(Protocol):
    def close(self) -> None: ...


class Workspace:
    """Working memory of one slice at a time, and the file that the slice before it ended in.

    `window`: uint8 array, shape (n_bytes,), of bytes of a file; `COPY_SLACK` belong to no batch.
    `inflated`: uint8 array, shape (n_bytes,), of one inflated batch, with `COPY_SLACK` after it.
    `codecs`: for the thread that reads the slice.
    """

    def __init__(self) -> None:
        self.window: Bytes = np.empty(0, np.uint8)
        self.inflated: Bytes = np.empty(COPY_SLACK, np.uint8)
        self.codecs = NativeCodecs()
        self._left: tuple[str, int, _Closable] | None = None

    def take_file(self, path: str, inode: int) -> Any:  # noqa: ANN401 - what `leave_file` got
        """The file that was left, for the caller to close; None if it is another one."""
        if self._left is None or self._left[:2] != (path, inode):
            self.close()
            return None
        file, self._left = self._left[2], None
        return file

    def leave_file(self, path: str, inode: int, file: _Closable) -> None:
        """Leave an open file to the next slice, most often of the same segment."""
        # The next slice does not open it, nor prove whose it is: each call of the system hands the
        # interpreter's lock over. Two threads take 3 % less time without these calls.
        self.close()
        self._left = path, inode, file

    def close(self) -> None:
        """Close the file that was left; the memory stays."""
        left, self._left = self._left, None
        if left is not None:
            left[2].close()


class ReadMemory:
    """Working memory for the threads of one read, which begins in the thread that makes it.

    `batch_bytes`: most bytes of the keys, and of the values, of an Arrow batch, unless one batch
    of the log has more; by default, each decoder has its own bound.  `are_first`: whether no rows
    were made yet; a user may wait for the first ones.
    """

    def __init__(self, batch_bytes: int = sys.maxsize) -> None:
        self.batch_bytes = batch_bytes
        self._consumer = threading.get_ident()
        self.are_first = True
        self._workspaces: deque[Workspace] = deque()
        self._is_closed = False

    @contextlib.contextmanager
    def workspace(self) -> Iterator[Workspace]:
        """Working memory for one slice, which it leaves to the next one unless it fails."""
        # With it, two threads take 5 % less time for slices of 16 MiB, 7 % for slices of zstd.
        try:
            lent = self._workspaces.pop()  # the last one is in the cache
        except IndexError:
            lent = Workspace()
        is_kept = False
        try:
            yield lent
            is_kept = lent.window.nbytes + lent.inflated.nbytes <= _MOST_KEPT_BYTES
        finally:
            if is_kept:
                self._workspaces.append(lent)
            if not is_kept or self._is_closed:  # the consumer did not wait for this thread
                lent.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files that slices have left."""
        self._is_closed = True
        for each in list(self._workspaces):  # a thread may still leave one
            each.close()

    @property
    def are_ahead(self) -> bool:
        """Whether the thread that asks is not the consumer."""
        return threading.get_ident() != self._consumer
