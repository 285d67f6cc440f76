"""Kafka's offset map: the last offset of each key, by the MD5 of the key (``SkimpyOffsetMap``).

Keys are compared by their hashes only, as a broker does.  The table uses open addressing: an entry
has the hash, and the offset plus one; an entry of zeros is free.
"""

from segmentlog.kernels import layout
from segmentlog.kernels import status as st
from segmentlog.kernels._jit import inlined, kernel
from segmentlog.kernels.keyed_record import parse_any
from segmentlog.kernels.md5_lanes import (
    AT,
    HASH_0,
    HASH_1,
    N_LANES,
    OFFSET,
    hash_lanes,
    put_key,
)
from segmentlog.kernels.memory import Bytes, Int64s, prefetch

__all__ = ["ENTRY_COLUMNS", "STATE_COLUMNS", "find_keys", "offset_of", "put_keys"]

# Columns of the table.
_HASH_0 = 0
_HASH_1 = 1
_BEHIND = 2  #: the offset plus one
ENTRY_COLUMNS = 3

# The state of the map.
N_KEYS = 0
MOST_KEYS = 1  #: at so many keys, the map is full
LATEST_OFFSET = 2  #: up to which the map knows the keys, or -1
_N_PENDING = 3  #: keys that wait in lanes
STATE_COLUMNS = 4


@inlined
def _first_row(hash_0: int, n_entries: int) -> int:
    """Row at which the search for a hash begins."""
    return int(((hash_0 & 0xFFFFFFFF) * n_entries) >> 32)


@inlined
def _entry_of(table: Int64s, hash_0: int, hash_1: int) -> int:
    """Row of the entry of a hash, or of the free entry where it belongs."""
    n_entries = table.shape[0]
    row = _first_row(hash_0, n_entries)
    while table[row, _BEHIND] != 0 and (
        table[row, _HASH_0] != hash_0 or table[row, _HASH_1] != hash_1
    ):
        row += 1
        if row == n_entries:
            row = 0
    return int(row)


@kernel
def find_keys(blocks: Bytes, lanes: Int64s, n_keys: int, table: Int64s) -> None:
    """Hash the keys of the first lanes, and ask for the cache lines of their entries."""
    hash_lanes(blocks, lanes, n_keys)
    n_entries = table.shape[0]
    for lane in range(n_keys):
        at = _first_row(lanes[HASH_0, lane], n_entries) * ENTRY_COLUMNS
        prefetch(table, at)
        prefetch(table, at + _BEHIND)


@inlined
def offset_of(table: Int64s, lanes: Int64s, lane: int) -> int:
    """Offset of the key that `find_keys` has hashed, or -1 if the map does not know it."""
    row = _entry_of(table, lanes[HASH_0, lane], lanes[HASH_1, lane])
    return int(table[row, _BEHIND]) - 1


@kernel
def _put_pending(table: Int64s, state: Int64s, blocks: Bytes, lanes: Int64s) -> int:
    """Put the keys of the lanes; the status.

    A map that is full knows the keys up to the offset that the first refused key has noted.
    """
    n_keys, state[_N_PENDING] = state[_N_PENDING], 0
    find_keys(blocks, lanes, n_keys, table)
    for lane in range(n_keys):
        if state[N_KEYS] >= state[MOST_KEYS]:
            state[LATEST_OFFSET] = lanes[AT, lane]
            return st.TABLE_FULL
        hash_0, hash_1 = lanes[HASH_0, lane], lanes[HASH_1, lane]
        row = _entry_of(table, hash_0, hash_1)
        if table[row, _BEHIND] == 0:
            table[row, _HASH_0], table[row, _HASH_1] = hash_0, hash_1
            state[N_KEYS] += 1
        table[row, _BEHIND] = lanes[OFFSET, lane] + 1
    return st.OK


@kernel
def _put_batch(
    source: Bytes, header: Int64s, start_offset: int, table: Int64s, state: Int64s,
    blocks: Bytes, lanes: Int64s,
) -> int:  # fmt: skip
    """Put the keys of one batch, but for those that stay in the lanes; the status."""
    at, previous = header[layout.RECORDS_START], header[layout.BASE_OFFSET] - 1
    for _ in range(header[layout.RECORDS_COUNT]):
        status, fields = parse_any(source, header, at)
        if status != st.OK:
            return status
        at, offset, _, key_length, key_at, _, _, _, _ = fields
        if offset <= previous or offset > header[layout.LAST_OFFSET]:
            return st.RECORD_OFFSET_OUTSIDE
        previous = offset
        if key_length < 0 or offset < start_offset:
            continue
        lane = state[_N_PENDING]
        put_key(blocks, lanes, lane, source, key_at, key_at + key_length)
        lanes[OFFSET, lane], lanes[AT, lane] = offset, state[LATEST_OFFSET]
        state[LATEST_OFFSET] = offset
        state[_N_PENDING] = lane + 1
        if lane + 1 == N_LANES and _put_pending(table, state, blocks, lanes) != st.OK:
            return st.TABLE_FULL
    return st.OK if at == header[layout.RECORDS_END] else st.TRAILING_BYTES


@kernel
def put_keys(
    window: Bytes, inflated: Bytes, headers: Int64s, is_left_out: Bytes, start_offset: int,
    table: Int64s, state: Int64s, blocks: Bytes, lanes: Int64s,
) -> tuple[int, int]:  # fmt: skip
    """Put the keys of batches into the map, until it is full (``buildOffsetMapForSegment``).

    A full map takes no further record, not even one of a key that it knows.

    Parameters
    ----------
    window : uint8 array; holds the records of uncompressed batches; read only
    inflated : uint8 array; holds the inflated records of compressed batches; read only
    headers : int64 array, shape (n_batches, `layout.N_HEADER_COLUMNS`); read only
    is_left_out : uint8 array, shape (n_batches,); 1 for batches whose keys do not count: control
        batches, and those of aborted transactions
    start_offset : records below it are passed over
    table : int64 array, shape (n_entries, `ENTRY_COLUMNS`); read and written; the caller has
        checked that n_entries is below 2**31, and above ``state[MOST_KEYS]``
    state : int64 array, shape (`STATE_COLUMNS`,); read and written
    blocks, lanes : of `segmentlog.kernels.md5_lanes`; room

    Returns
    -------
    status : `OK` when all batches are done, `TABLE_FULL`, or the fault of a batch
    row : of `headers`, behind the batches that were read
    """
    state[_N_PENDING] = 0
    status, row = st.OK, 0
    while row < headers.shape[0]:
        header = headers[row]
        if is_left_out[row] == 0:
            source = window if header[layout.ATTRIBUTES] & layout.CODEC_MASK == 0 else inflated
            status = _put_batch(source, header, start_offset, table, state, blocks, lanes)
            if status == st.TABLE_FULL:
                return status, row
            if status != st.OK:
                break
        if header[layout.LAST_OFFSET] >= start_offset:
            state[LATEST_OFFSET] = header[layout.LAST_OFFSET]
        row += 1
    # A map that the keys in front of a fault fill up does not come to the fault.
    if _put_pending(table, state, blocks, lanes) != st.OK:
        return st.TABLE_FULL, row
    return status, row
