"""Index entries as `segmentlog.kernels.append` chooses them, to the bytes of index files."""

import numpy as np

from segmentlog.files.readable import open_file
from segmentlog.index.offset import OffsetIndex
from segmentlog.index.time import TIME_ENTRY, TimeIndex
from segmentlog.kernels import append as columns
from segmentlog.kernels import layout
from segmentlog.kernels.memory import Int64s

__all__ = ["encode_offsets", "encode_times", "last_time", "new_state", "state_of"]


def encode_offsets(entries: Int64s) -> bytes:
    """Entries for the ``.index``; int64 array, shape (n, `kernels.append.ENTRY_COLUMNS`)."""
    pairs = entries[:, columns.ENTRY_OFFSET : columns.ENTRY_POSITION + 1]
    return pairs.astype(">i4").tobytes()


def encode_times(entries: Int64s) -> bytes:
    """The same for the ``.timeindex``, which does not get one with each of them."""
    timed = entries[entries[:, columns.ENTRY_TIMESTAMP] >= 0]
    times = np.empty(len(timed), TIME_ENTRY)
    times["timestamp"] = timed[:, columns.ENTRY_TIMESTAMP]
    times["offset"] = timed[:, columns.ENTRY_TIMESTAMP_OFFSET]
    return times.tobytes()


def last_time(state: Int64s) -> bytes:
    """The entry that closes a time index, if it says something new.

    By ``LogSegment.onBecomeInactive`` the newest entry tells the largest time of the segment.
    """
    largest = int(state[columns.MAX_TIMESTAMP])
    if largest <= state[columns.LAST_TIME_ENTRY]:
        return b""
    offset = int(state[columns.MAX_TIMESTAMP_OFFSET] - state[columns.BASE_OFFSET])
    return np.array([(largest, offset)], TIME_ENTRY).tobytes()


def new_state(base_offset: int) -> Int64s:
    """What an empty segment has seen; see `segmentlog.kernels.append`."""
    state: Int64s = np.zeros(columns.STATE_COLUMNS, np.int64)
    state[columns.BASE_OFFSET] = base_offset
    state[columns.FIRST_MAX_TIMESTAMP] = -1
    state[columns.MAX_TIMESTAMP] = state[columns.LAST_TIME_ENTRY] = -1
    return state


def state_of(log_path: str, base_offset: int, size: int) -> Int64s:
    """What a segment of `size` bytes has seen, by its first header and its last index entries."""
    state = new_state(base_offset)
    state[columns.SIZE] = size
    with open_file(log_path) as file:
        head = file.read(0, layout.HEADER_BYTES)
    if len(head) == layout.HEADER_BYTES and head[layout.MAGIC_AT] == layout.MAGIC:
        time = head[layout.MAX_TIMESTAMP_AT : layout.PRODUCER_ID_AT]
        state[columns.FIRST_MAX_TIMESTAMP] = int.from_bytes(time, "big", signed=True)
    stem = log_path.removesuffix(".log")
    with OffsetIndex(f"{stem}.index", base_offset, mapped=False) as index:
        state[columns.N_OFFSET_ENTRIES] = index.n_entries
    with TimeIndex(f"{stem}.timeindex", base_offset, mapped=False) as times:
        state[columns.N_TIME_ENTRIES] = times.n_entries
        state[columns.LAST_TIME_ENTRY], state[columns.MAX_TIMESTAMP_OFFSET] = times.last()
    state[columns.MAX_TIMESTAMP] = state[columns.LAST_TIME_ENTRY]
    return state
