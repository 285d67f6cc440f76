"""Kafka's offset map: the last offset of each key, by the MD5 of the key (``SkimpyOffsetMap``).

Keys are compared by their hashes only, as a broker does.  The table uses open addressing: an entry
has the hash, and the offset plus one; an entry of zeros is free.
"""

from segmentlog.kernels import layout
from segmentlog.kernels import status as st
from segmentlog.kernels._jit import inlined, kernel
from segmentlog.kernels.keyed_record import parse_any
from segmentlog.kernels.md5 import md5
from segmentlog.kernels.memory import Bytes, Int64s

__all__ = ["ENTRY_COLUMNS", "STATE_COLUMNS", "offset_of", "put_keys"]

# Columns of the table.
_HASH_0 = 0
_HASH_1 = 1
_BEHIND = 2  #: the offset plus one
ENTRY_COLUMNS = 3

# The state of the map.
N_KEYS = 0
MOST_KEYS = 1  #: at so many keys, the map is full
LATEST_OFFSET = 2  #: up to which the map knows the keys, or -1
STATE_COLUMNS = 3


@inlined
def _entry_of(table: Int64s, hash_0: int, hash_1: int) -> int:
    """Row of the entry of a hash, or of the free entry where it belongs."""
    n_entries = table.shape[0]
    row = ((hash_0 & 0xFFFFFFFF) * n_entries) >> 32
    while table[row, _BEHIND] != 0 and (
        table[row, _HASH_0] != hash_0 or table[row, _HASH_1] != hash_1
    ):
        row += 1
        if row == n_entries:
            row = 0
    return int(row)


@inlined
def offset_of(table: Int64s, buf: Bytes, start: int, end: int, words: Int64s) -> int:
    """Offset of the key ``buf[start:end]``, or -1 if the map does not know it."""
    hash_0, hash_1 = md5(buf, start, end, words)
    return int(table[_entry_of(table, hash_0, hash_1), _BEHIND]) - 1


@kernel
def _put_batch(
    source: Bytes, header: Int64s, start_offset: int, table: Int64s, state: Int64s, words: Int64s
) -> int:
    """Put the keys of one batch; the status."""
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
        if state[N_KEYS] >= state[MOST_KEYS]:
            return st.TABLE_FULL
        hash_0, hash_1 = md5(source, key_at, key_at + key_length, words)
        row = _entry_of(table, hash_0, hash_1)
        if table[row, _BEHIND] == 0:
            table[row, _HASH_0], table[row, _HASH_1] = hash_0, hash_1
            state[N_KEYS] += 1
        table[row, _BEHIND] = offset + 1
        state[LATEST_OFFSET] = offset
    return st.OK if at == header[layout.RECORDS_END] else st.TRAILING_BYTES


@kernel
def put_keys(
    window: Bytes, inflated: Bytes, headers: Int64s, is_left_out: Bytes, start_offset: int,
    table: Int64s, state: Int64s, words: Int64s,
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
    words : int64 array, shape (`md5.N_WORDS`,); room

    Returns
    -------
    status : `OK` when all batches are done, `TABLE_FULL`, or the fault of a batch
    row : of `headers`
    """
    for row in range(headers.shape[0]):
        header = headers[row]
        if is_left_out[row] == 0:
            source = window if header[layout.ATTRIBUTES] & layout.CODEC_MASK == 0 else inflated
            status = _put_batch(source, header, start_offset, table, state, words)
            if status != st.OK:
                return status, row
        if header[layout.LAST_OFFSET] >= start_offset:
            state[LATEST_OFFSET] = header[layout.LAST_OFFSET]
    return st.OK, headers.shape[0]
