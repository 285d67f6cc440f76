"""Ranges of bytes that were read last: in a store, a second request takes as long as the first."""

import threading

__all__ = ["KeptRanges"]


class KeptRanges:
    """Ranges of objects, up to a number of bytes; the oldest go first.  Threads may share it.

    Parameters
    ----------
    most_bytes : bytes of all ranges.
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
