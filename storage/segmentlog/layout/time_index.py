"""The time index: from a timestamp to an offset (``org.apache.kafka…log.TimeIndex``).

::

     0                        8                12
    +------------------------+-----------------+
    | timestamp (epoch ms)   | relative offset |   big-endian
    +------------------------+-----------------+

An entry means: `timestamp` is the largest up to and including the batch that ends at ``base offset
+ relative offset``.  So every record with a larger timestamp stands after this batch.
"""

import struct

import numpy as np

from segmentlog.layout.index_entries import SparseIndex
from segmentlog.model import TimestampAndOffset

__all__ = ["TIME_ENTRY", "TimeIndex"]

#: An entry as in the file, for many at a time; `_ENTRY` is for one.
TIME_ENTRY = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])
_ENTRY = struct.Struct(">qi")


class TimeIndex(SparseIndex):
    """Entries of a ``.timeindex`` file."""

    entry_bytes = _ENTRY.size
    key_bytes = 8

    def entry(self, slot: int) -> TimestampAndOffset:
        """Entry `slot`, from 0."""
        timestamp_ms, relative_offset = _ENTRY.unpack(self._raw(slot))
        return TimestampAndOffset(timestamp_ms, self.base_offset + relative_offset)

    def lookup(self, timestamp_ms: int) -> TimestampAndOffset:
        """Entry with the greatest timestamp not above `timestamp_ms`, or (-1, base offset)."""
        slot = self._floor(timestamp_ms)
        return self.entry(slot) if slot >= 0 else TimestampAndOffset(-1, self.base_offset)

    def last(self) -> TimestampAndOffset:
        """The last entry, which has a closed segment's largest timestamp, or (-1, base offset)."""
        return self.entry(self.n_entries - 1) if self.n_entries else self.lookup(-(2**63))
