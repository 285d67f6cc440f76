"""Batches of a run that the active segment still takes, and those that get index entries.

Rules: ``UnifiedLog.maybeRoll``, ``LogSegment.shouldRoll`` and ``LogSegment.append``, for appends
of one batch each, which is also how ``LogSegment.recover`` builds indexes.
"""

from segmentlog.format.kernels import layout
from segmentlog.format.kernels.memory import Int64s, Int64Table
from segmentlog.native import internal, kernel

# The state of a segment: its contents so far.
BASE_OFFSET = 0
SIZE = 1
SINCE_ENTRY = 2  #: bytes since the last entry of the offset index
#: largest timestamp of the first batch, from which the age of the segment counts; or -1
FIRST_MAX_TIMESTAMP = 3
MAX_TIMESTAMP = 4
MAX_TIMESTAMP_OFFSET = 5  #: last offset of the first batch that has the largest timestamp
LAST_TIME_ENTRY = 6  #: timestamp of the newest entry of the time index, or -1
N_OFFSET_ENTRIES = 7
N_TIME_ENTRIES = 8
STATE_COLUMNS = 9

# The limits of a segment.
SEGMENT_BYTES = 0
SEGMENT_MS = 1
INDEX_INTERVAL_BYTES = 2
MOST_OFFSET_ENTRIES = 3
MOST_TIME_ENTRIES = 4
LIMIT_COLUMNS = 5

# An entry of the offset index, and the entry of the time index beside it.
ENTRY_OFFSET = 0
ENTRY_POSITION = 1
ENTRY_TIMESTAMP = 2  #: -1 when the time index gets no entry
ENTRY_TIMESTAMP_OFFSET = 3
ENTRY_COLUMNS = 4


@kernel
def take_batches(
    headers: Int64Table, begin: int, limits: Int64s, state: Int64s, entries: Int64Table
) -> tuple[int, int]:
    """Take batches into a segment until it has to roll.

    Parameters
    ----------
    headers : int64 array, shape (n_batches, at least `layout.N_HEADER_COLUMNS`)
    begin : row of the first batch to take
    limits : int64 array, shape (`LIMIT_COLUMNS`,)
    state : int64 array, shape (`STATE_COLUMNS`,); read and written
    entries : int64 array, shape (at least n_batches - begin, `ENTRY_COLUMNS`); written

    Returns
    -------
    end : row after the last batch that the segment takes
    n_entries : rows of `entries` that were filled
    """
    n_entries = 0
    for row in range(begin, headers.shape[0]):
        size, max_ms = headers[row, layout.SIZE], headers[row, layout.MAX_TIMESTAMP]
        last = headers[row, layout.LAST_OFFSET]
        if _has_to_roll(limits, state, size, max_ms, last):
            return row, n_entries
        if state[SIZE] == 0:
            state[FIRST_MAX_TIMESTAMP] = max_ms
        if max_ms > state[MAX_TIMESTAMP]:
            state[MAX_TIMESTAMP], state[MAX_TIMESTAMP_OFFSET] = max_ms, last
        if state[SINCE_ENTRY] > limits[INDEX_INTERVAL_BYTES]:
            entries[n_entries, ENTRY_OFFSET] = last - state[BASE_OFFSET]
            entries[n_entries, ENTRY_POSITION] = state[SIZE]
            entries[n_entries, ENTRY_TIMESTAMP] = -1
            entries[n_entries, ENTRY_TIMESTAMP_OFFSET] = 0
            if state[MAX_TIMESTAMP] > state[LAST_TIME_ENTRY]:
                entries[n_entries, ENTRY_TIMESTAMP] = state[MAX_TIMESTAMP]
                entries[n_entries, ENTRY_TIMESTAMP_OFFSET] = (
                    state[MAX_TIMESTAMP_OFFSET] - state[BASE_OFFSET]
                )
                state[LAST_TIME_ENTRY] = state[MAX_TIMESTAMP]
                state[N_TIME_ENTRIES] += 1
            state[N_OFFSET_ENTRIES] += 1
            state[SINCE_ENTRY] = 0
            n_entries += 1
        state[SINCE_ENTRY] += size
        state[SIZE] += size
    return headers.shape[0], n_entries


@internal
def _has_to_roll(limits: Int64s, state: Int64s, size: int, max_ms: int, last_offset: int) -> bool:
    """Whether a batch belongs to the next segment.

    An empty segment takes every batch whose offsets it can hold.
    """
    if state[SIZE] == 0:
        return bool(last_offset - state[BASE_OFFSET] >= layout.SEGMENT_OFFSETS)
    first_ms = state[FIRST_MAX_TIMESTAMP]
    return bool(
        size > limits[SEGMENT_BYTES] - state[SIZE]
        or (first_ms >= 0 and max_ms - first_ms > limits[SEGMENT_MS])
        or last_offset - state[BASE_OFFSET] >= layout.SEGMENT_OFFSETS
        or state[N_OFFSET_ENTRIES] >= limits[MOST_OFFSET_ENTRIES]
        # One place is kept free for the entry that closes the segment.
        or state[N_TIME_ENTRIES] >= limits[MOST_TIME_ENTRIES] - 1
    )
