"""The offset index: from an offset to a byte position (``org.apache.kafka…log.OffsetIndex``).

::

     0                 4                 8
    +-----------------+-----------------+
    | relative offset | position        |   big-endian, one entry for every few KiB of log
    +-----------------+-----------------+

An entry means: the batch at `position` and those before it in the same append end at or before
``base offset + relative offset``.  The offset is the last offset of the append, the position is
its first byte.  So a record with a lower offset may still stand after `position`; a record with
an equal or higher offset cannot stand before it.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from segmentlog.layout.index_entries import SparseIndex

__all__ = ["OFFSET_ENTRY", "OffsetIndex", "OffsetPosition"]

#: An entry as in the file, for many at a time; `_ENTRY` is for one.
OFFSET_ENTRY = np.dtype([("offset", ">i4"), ("position", ">i4")])
_ENTRY = struct.Struct(">ii")


class OffsetPosition(NamedTuple):
    """An offset, and the byte of the log from which to look for it."""

    offset: int
    position: int


class OffsetIndex(SparseIndex):
    """Entries of an ``.index`` file."""

    entry_bytes = _ENTRY.size
    key_bytes = 4

    def entry(self, slot: int) -> OffsetPosition:
        """Entry `slot`, from 0."""
        relative_offset, position = _ENTRY.unpack(self._raw(slot))
        return OffsetPosition(self.base_offset + relative_offset, position)

    def lookup(self, offset: int) -> OffsetPosition:
        """Entry with the greatest offset not above `offset`, or the start of the segment."""
        slot = self._floor(offset - self.base_offset)
        return self.entry(slot) if slot >= 0 else OffsetPosition(self.base_offset, 0)

    def lookup_before(self, offset: int) -> OffsetPosition:
        """The entry before the one that `lookup` finds, or the start of the segment."""
        slot = self._floor(offset - self.base_offset) - 1
        return self.entry(slot) if slot >= 0 else OffsetPosition(self.base_offset, 0)

    def entries_from(self, offset: int) -> Iterator[OffsetPosition]:
        """Entries from the one with the least offset that is not below `offset`."""
        for slot in range(self._floor(offset - 1 - self.base_offset) + 1, self.n_entries):
            yield self.entry(slot)

    def last_at_or_before_position(self, position: int) -> OffsetPosition:
        """Entry with the greatest position not above `position`, or the start of the segment.

        The position of a damaged entry may be negative, and no byte of the log is there.
        """
        slot = self.slot_at_or_before_position(position)
        found = self.entry(slot) if slot >= 0 else None
        if found is None or found.position < 0:
            return OffsetPosition(self.base_offset, 0)
        return found

    def slot_at_or_before_position(self, position: int) -> int:
        """Slot of the entry with the greatest position not above `position`, or -1."""
        low, high = -1, self.n_entries - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self.entry(middle).position <= position:
                low = middle
            else:
                high = middle - 1
        return low
