"""The offset and time index of a segment that grows: the entries that a broker would write."""

from typing import NamedTuple

import numpy as np

from segmentlog.format.kernels import growth
from segmentlog.format.kernels.growth import take_batches
from segmentlog.format.kernels.memory import Int64s
from segmentlog.format.topic_config import TopicConfig
from segmentlog.log.sparse_indexes import TIME_ENTRY, OffsetIndex, TimeIndex

_UNLIMITED = 2**62


class Taken(NamedTuple):
    """What a segment has taken of a run: the row after its last batch, and the new entries."""

    end: int
    offset_entries: bytes
    time_entries: bytes


class IndexBuilder:
    """Chooses and encodes the entries of one segment.

    `state` has the contents of the segment so far, as `format.kernels.growth` counts them.
    """

    def __init__(self, base_offset: int, limits: Int64s) -> None:
        self._limits = limits
        self.state: Int64s = np.zeros(growth.STATE_COLUMNS, np.int64)
        self.state[growth.BASE_OFFSET] = base_offset
        self.state[growth.FIRST_MAX_TIMESTAMP] = -1
        self.state[growth.MAX_TIMESTAMP] = self.state[growth.LAST_TIME_ENTRY] = -1

    @classmethod
    def of_topic(cls, base_offset: int, config: TopicConfig) -> "IndexBuilder":
        """For a segment that rolls at the limits of its topic."""
        limits: Int64s = np.zeros(growth.LIMIT_COLUMNS, np.int64)
        limits[growth.SEGMENT_BYTES] = config.segment_bytes
        limits[growth.SEGMENT_MS] = config.segment_ms
        limits[growth.INDEX_INTERVAL_BYTES] = config.index_interval_bytes
        limits[growth.MOST_OFFSET_ENTRIES] = config.segment_index_bytes // OffsetIndex.entry_bytes
        limits[growth.MOST_TIME_ENTRIES] = config.segment_index_bytes // TimeIndex.entry_bytes
        return cls(base_offset, limits)

    @classmethod
    def unlimited(cls, base_offset: int, interval_bytes: int) -> "IndexBuilder":
        """For a segment that takes all batches it is given."""
        limits: Int64s = np.full(growth.LIMIT_COLUMNS, _UNLIMITED, np.int64)
        limits[growth.INDEX_INTERVAL_BYTES] = interval_bytes
        return cls(base_offset, limits)

    def take(self, headers: Int64s, begin: int = 0) -> Taken:
        """Take batches from row `begin` on, until the segment has to roll.

        `headers`: int64 array, shape (n_batches, at least `layout.N_HEADER_COLUMNS`), of which
        sizes, last offsets and largest timestamps are read.
        """
        entries: Int64s = np.empty((len(headers) - begin, growth.ENTRY_COLUMNS), np.int64)
        end, n_entries = take_batches(headers, begin, self._limits, self.state, entries)
        entries = entries[:n_entries]
        pairs = entries[:, growth.ENTRY_OFFSET : growth.ENTRY_POSITION + 1]
        # The time index gets fewer entries than the other.
        timed = entries[entries[:, growth.ENTRY_TIMESTAMP] >= 0]
        times = np.empty(len(timed), TIME_ENTRY)
        times["timestamp"] = timed[:, growth.ENTRY_TIMESTAMP]
        times["offset"] = timed[:, growth.ENTRY_TIMESTAMP_OFFSET]
        return Taken(end, pairs.astype(">i4").tobytes(), times.tobytes())

    def last_time(self) -> bytes:
        """The entry that closes the time index, if it adds anything.

        By ``LogSegment.onBecomeInactive`` the newest entry holds the largest time of the segment.
        """
        state = self.state
        largest = int(state[growth.MAX_TIMESTAMP])
        if largest <= state[growth.LAST_TIME_ENTRY]:
            return b""
        offset = int(state[growth.MAX_TIMESTAMP_OFFSET] - state[growth.BASE_OFFSET])
        return np.array([(largest, offset)], TIME_ENTRY).tobytes()
