"""A sorted array of fixed-size entries in a file, and Kafka's binary search over it.

Offset and time index share everything but the entry: entries are appended, both fields grow, a
file may be preallocated with zeros after its last entry, and there is no checksum.  So an index
is a hint, and its users check each entry against the log.
"""

from segmentlog.disk.closing import Closing
from segmentlog.disk.index_file import IndexFile

__all__ = ["SparseIndex"]

#: Bytes at the end of an index in which look-ups for recent data stay, so that they do not touch
#: the pages before (``AbstractIndex.warmEntries``).
_WARM_BYTES = 8192


class SparseIndex(Closing):
    """Entries of one index file, opened for a few look-ups.

    Parameters
    ----------
    path : the file; a missing, empty or damaged file merely holds fewer entries.
    base_offset : of the segment; entries hold offsets relative to it.
    mapped : whether the file may be memory-mapped, see `segmentlog.disk.index_file`.

    Attributes
    ----------
    entry_bytes : bytes of an entry.
    key_bytes : bytes of the number by which it is sorted, which comes first.
    """

    entry_bytes: int
    key_bytes: int

    def __init__(self, path: str, base_offset: int, *, mapped: bool) -> None:
        self.path = path
        self.base_offset = base_offset
        self._file = IndexFile(path, mapped=mapped)
        self.n_entries = self._count_entries()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _raw(self, slot: int) -> bytes:
        return self._file.read(slot * self.entry_bytes, self.entry_bytes)

    def _count_entries(self) -> int:
        """Entries before the zeros of preallocation; fields grow, so zeros are only at the end."""
        low, high = 0, self._file.size // self.entry_bytes
        zeros = bytes(self.entry_bytes)
        if high and self._raw(high - 1) != zeros:
            return high  # trimmed, as every closed segment's index is
        while low < high:
            middle = (low + high) // 2
            if self._raw(middle) == zeros:
                high = middle
            else:
                low = middle + 1
        return low

    def _stored(self, slot: int) -> int:
        """The sort key of entry `slot`, as the file has it."""
        key = self._file.read(slot * self.entry_bytes, self.key_bytes)
        return int.from_bytes(key, "big", signed=True)

    def _floor(self, target: int) -> int:
        """Slot of the greatest stored key not above `target`, or -1 (``indexSlotRangeFor``)."""
        if not self.n_entries:
            return -1
        last = self.n_entries - 1
        first_warm = max(0, last - _WARM_BYTES // self.entry_bytes)
        if self._stored(first_warm) < target:
            return self._floor_between(target, first_warm, last)
        if self._stored(0) > target:
            return -1
        return self._floor_between(target, 0, first_warm)

    def _floor_between(self, target: int, low: int, high: int) -> int:
        """Binary search in the slots from `low`, whose key is not above `target`, to `high`."""
        while low < high:
            middle = (low + high + 1) // 2
            if self._stored(middle) <= target:
                low = middle
            else:
                high = middle - 1
        return low
