"""The offsets of rows that come in no order as bitmaps, in bounded memory.

A window has a bit for each of its offsets, so rows need neither a sort nor memory of their own.
A window that is full is a range, and its memory is used again.  If all memory is used, a window
goes to the temporary file; rows that come later for its offsets may make another bitmap of them.
"""

from collections import Counter, defaultdict

import numpy as np

from segmentlog.audits.spill import SpillFile
from segmentlog.audits.stretches import NO_STRETCHES, Stretches, joined
from segmentlog.format.kernels.memory import Bytes, Int64s
from segmentlog.format.kernels.offset_bitmaps import (
    MOST_CODES,
    NO_KEY,
    WINDOW_BITS,
    WINDOW_BYTES,
    WINDOW_OFFSETS,
    first_row,
    mark_offsets,
    window_key,
)

_MOST_WINDOWS = 512  # in memory: 64 MiB
#: Rows of a window in a run for which it gets free memory, and for which another window leaves.
_LEAST_ROWS = 256
_MANY_ROWS = WINDOW_OFFSETS >> 6  # as many bytes as the window has


class OffsetBitmaps:
    """Windows of offsets of several partitions, by the caller's numbers of these."""

    def __init__(self, spill: SpillFile) -> None:
        self._spill = spill
        self._keys: Int64s = np.full(4 * _MOST_WINDOWS, NO_KEY, np.int64)
        self._slots: Int64s = np.zeros(4 * _MOST_WINDOWS, np.int64)
        # The system gives memory to slots when they are first used.
        self._bits: Bytes = np.zeros(_MOST_WINDOWS * WINDOW_BYTES, np.uint8)
        self._counts: Int64s = np.zeros(_MOST_WINDOWS, np.int64)
        self._windows: dict[tuple[int, int], int] = {}  # slots, in the order of their creation
        self._free = [*range(_MOST_WINDOWS)][::-1]
        self._full = Counter[tuple[int, int]]()
        self._spilled: defaultdict[tuple[int, int], list[int]] = defaultdict(list)  # places

    def mark(self, codes: Int64s, offsets: Int64s) -> Int64s | None:
        """Take rows; the indices of those that are not taken, or None if all are taken.

        Left are rows of windows that have no memory, and rows whose offset another row has had.
        """
        if not self._windows:
            return np.arange(len(offsets))
        rest = np.empty(len(offsets), np.int64)
        n_rest = mark_offsets(
            codes, offsets, self._keys, self._slots, self._bits, self._counts, rest
        )
        return rest[:n_rest] if n_rest else None

    def take_dense(self, code: int, offsets: Int64s) -> Int64s:
        """Make windows where sorted offsets are dense; return the offsets that are not taken."""
        if code >= MOST_CODES:
            return offsets
        numbers = offsets >> WINDOW_BITS
        cuts = np.flatnonzero(np.diff(numbers)) + 1
        begins, ends = np.append(0, cuts), np.append(cuts, len(offsets))
        lengths = ends - begins
        is_new = False
        for i in np.flatnonzero((lengths >= _LEAST_ROWS) & (numbers[begins] >= 0)).tolist():
            window = (code, int(numbers[begins[i]]))
            if window not in self._windows and self._make_room(int(lengths[i])):
                self._windows[window] = slot = self._free.pop()
                self._bits[slot * WINDOW_BYTES : (slot + 1) * WINDOW_BYTES] = 0
                self._counts[slot] = 0
                is_new = True
        if not is_new:
            return offsets
        self._index()
        # Offsets of windows that were there before are in this run because they are marked.
        rest = self.mark(np.full(len(offsets), code, np.int64), offsets)
        return offsets[:0] if rest is None else offsets[rest]

    def _make_room(self, n_rows: int) -> bool:
        """Whether there is memory for a window with so many rows."""
        if self._free:
            return True
        for (code, number), slot in [*self._windows.items()]:
            if self._counts[slot] == WINDOW_OFFSETS:
                del self._windows[code, number]
                self._full[code, number] += 1
                self._free.append(slot)
        if self._free:
            return True
        if n_rows < _MANY_ROWS:
            return False
        window = next(iter(self._windows))
        slot = self._windows.pop(window)
        bits = self._bits[slot * WINDOW_BYTES : (slot + 1) * WINDOW_BYTES]
        self._spilled[window].append(self._spill.write(bits.view(np.int64)))
        self._free.append(slot)
        return True

    def _index(self) -> None:
        """Make the hash table again."""
        self._keys[:] = NO_KEY
        mask = len(self._keys) - 1
        for (code, number), slot in self._windows.items():
            key = window_key(code, number << WINDOW_BITS)
            at = first_row(key, mask)
            while self._keys[at] != NO_KEY:
                at = (at + 1) & mask
            self._keys[at], self._slots[at] = key, slot

    def by_code(self) -> dict[int, list[int]]:
        """The windows of each partition, in order."""
        found: defaultdict[int, list[int]] = defaultdict(list)
        for code, number in sorted({*self._full, *self._windows, *self._spilled}):
            found[code].append(number)
        return found

    def stretches(self, code: int, number: int) -> Stretches:
        """The offsets of a window."""
        window, base = (code, number), number << WINDOW_BITS
        parts = []
        if n_rows := self._full[window]:
            whole = (base, base + WINDOW_OFFSETS, n_rows)
            parts.append(Stretches(*(np.array([each], np.int64) for each in whole)))
        if window in self._windows:
            at = self._windows[window] * WINDOW_BYTES
            parts.append(_stretches_of(self._bits[at : at + WINDOW_BYTES], base))
        for place in self._spilled.get(window, ()):
            bits = self._spill.read(place, WINDOW_BYTES >> 3).view(np.uint8)
            parts.append(_stretches_of(bits, base))
        return joined(parts)


def _stretches_of(bits: Bytes, base: int) -> Stretches:
    is_set = np.unpackbits(bits, bitorder="little")
    if not is_set.any():
        return NO_STRETCHES
    bounds = np.flatnonzero(is_set[1:] != is_set[:-1]) + (base + 1)
    if is_set[0]:
        bounds = np.append(base, bounds)
    if is_set[-1]:
        bounds = np.append(bounds, base + WINDOW_OFFSETS)
    first, end = np.ascontiguousarray(bounds.reshape(-1, 2).T)
    return Stretches(first, end, np.ones(len(first), np.int64))
