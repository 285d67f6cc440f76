"""Index entries that `format.kernels.growth` has chosen, to the bytes of index files."""

import numpy as np

from segmentlog.format.kernels import growth
from segmentlog.format.kernels.memory import Int64s
from segmentlog.log.sparse_indexes import TIME_ENTRY

__all__ = ["encode_offsets", "encode_times", "last_time", "new_state"]


def encode_offsets(entries: Int64s) -> bytes:
    """Entries for the ``.index``; int64 array, shape (n, `growth.ENTRY_COLUMNS`)."""
    pairs = entries[:, growth.ENTRY_OFFSET : growth.ENTRY_POSITION + 1]
    return pairs.astype(">i4").tobytes()


def encode_times(entries: Int64s) -> bytes:
    """Encode the ``.timeindex``, which gets fewer entries than the ``.index``."""
    timed = entries[entries[:, growth.ENTRY_TIMESTAMP] >= 0]
    times = np.empty(len(timed), TIME_ENTRY)
    times["timestamp"] = timed[:, growth.ENTRY_TIMESTAMP]
    times["offset"] = timed[:, growth.ENTRY_TIMESTAMP_OFFSET]
    return times.tobytes()


def last_time(state: Int64s) -> bytes:
    """The entry that closes a time index, if it adds anything.

    By ``LogSegment.onBecomeInactive`` the newest entry holds the largest time of the segment.
    """
    largest = int(state[growth.MAX_TIMESTAMP])
    if largest <= state[growth.LAST_TIME_ENTRY]:
        return b""
    offset = int(state[growth.MAX_TIMESTAMP_OFFSET] - state[growth.BASE_OFFSET])
    return np.array([(largest, offset)], TIME_ENTRY).tobytes()


def new_state(base_offset: int) -> Int64s:
    """The state of an empty segment; see `format.kernels.growth`."""
    state: Int64s = np.zeros(growth.STATE_COLUMNS, np.int64)
    state[growth.BASE_OFFSET] = base_offset
    state[growth.FIRST_MAX_TIMESTAMP] = -1
    state[growth.MAX_TIMESTAMP] = state[growth.LAST_TIME_ENTRY] = -1
    return state
