"""Ranges of bytes of objects: those that were read last, and those that a reader will come to.

In a store, a second request takes as long as the first.  So ranges that were read are kept for
some time, and the pieces of a long range are requested side by side, ahead of the reader.
"""

import threading
from collections import deque
from collections.abc import Callable

from segmentlog.store.remote.requests import Pending


class KeptRanges:
    """Ranges of objects, up to a number of bytes; those that were used longest ago go first.

    Threads may share it.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._ranges: dict[tuple[str, int], bytes] = {}
        self._starts: dict[str, list[int]] = {}
        self.n_bytes = 0
        self._lock = threading.Lock()

    def find(self, key: str, position: int, n_bytes: int) -> bytes | None:
        """The bytes, if one range holds them all."""
        with self._lock:
            for start in self._starts.get(key, ()):
                found = self._ranges[key, start]
                if start <= position and position + n_bytes <= start + len(found):
                    self._ranges[key, start] = self._ranges.pop((key, start))
                    return found[position - start : position - start + n_bytes]
        return None

    def keep(self, key: str, position: int, found: bytes) -> None:
        """Keep a range that was not found."""
        with self._lock:
            self._drop(key, position)
            self._ranges[key, position] = found
            self._starts.setdefault(key, []).append(position)
            self.n_bytes += len(found)
            while self.n_bytes > self._most_bytes:
                self._drop(*next(iter(self._ranges)))

    def _drop(self, key: str, position: int) -> None:
        found = self._ranges.pop((key, position), None)
        if found is not None:
            self.n_bytes -= len(found)
            self._starts[key].remove(position)


#: Bytes of one request: a window of a scan takes two.
PIECE_BYTES = 2 << 20

#: Pieces that are there or on their way at a time: the window that is decoded, and three more.
_PIECES = 8


class ReadAhead:
    """The bytes ``[start, end)`` of an object, read from the start to the end.

    `begin`: begins the request for a number of bytes from a position.  `start`, `end`: the range;
    nothing outside is requested.
    """

    def __init__(self, begin: Callable[[int, int], Pending], start: int, end: int) -> None:
        self._begin = begin
        self._next = start  # first byte that is not requested yet
        self._end = end
        self._at = start  # of the first piece
        self._pieces: deque[Pending | bytes] = deque()
        self._request()

    def _request(self) -> None:
        while self._next < self._end and len(self._pieces) < _PIECES:
            n_bytes = min(PIECE_BYTES, self._end - self._next)
            self._pieces.append(self._begin(self._next, n_bytes))
            self._next += n_bytes

    def read_into(self, buffer: memoryview, position: int) -> int:
        """Fill `buffer` from byte `position`; 0 if that is not where the range continues.

        Raises `StorageError` if a piece cannot be read.
        """
        filled = 0
        while filled < len(buffer) and (piece := self._piece(position + filled)) is not None:
            begin = position + filled - self._at
            n_bytes = min(len(piece) - begin, len(buffer) - filled)
            buffer[filled : filled + n_bytes] = memoryview(piece)[begin : begin + n_bytes]
            filled += n_bytes
        return filled

    def _piece(self, position: int) -> bytes | None:
        """The piece with a byte; those before it are dropped, and others requested."""
        while self._pieces and position >= self._at:
            first = self._pieces[0]
            if isinstance(first, Pending):
                first = self._pieces[0] = first.result()
            if position < self._at + len(first):
                return first
            self._at += len(first)
            self._pieces.popleft()
            self._request()
        return None

    def close(self) -> None:
        """Forget pieces that are still on their way."""
        for piece in self._pieces:
            if isinstance(piece, Pending):
                piece.cancel()
        self._pieces.clear()
        self._next = self._end
