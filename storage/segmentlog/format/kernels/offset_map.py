"""Kafka's offset map: the last offset of each key, by the hash of the key (``SkimpyOffsetMap``).

Keys are compared by their hashes only, as a broker does.  The table uses open addressing: an entry
has the hash, and the offset plus one; an entry of zeros is free.

The map is never stored, so its hash need not be a broker's MD5. Anybody can make two keys with one
MD5, and compaction would then remove a record of the first key. The secret of SipHash is new for
each map.

That is SipHash-2-4 with 128 bits: nobody without the secret can choose keys whose hashes collide
(Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012, and the output of 16 bytes of
their reference implementation).  Words are cut to 64 bits after each sum, so that the same code
runs in plain Python.

An entry is rarely in the processor's caches.  Keys wait until there are `N_WAITING` of them, while
the cache lines of their entries arrive.
"""

import numpy as np

from segmentlog.format.kernels import layout
from segmentlog.format.kernels import status as st
from segmentlog.format.kernels.memory import Bytes, Int64s, Int64Table, load_u8, load_u64, prefetch
from segmentlog.format.kernels.record import parse_any
from segmentlog.native import inlined, internal, kernel

SECRET_BYTES = 16

_WORD = 0xFFFF_FFFF_FFFF_FFFF
_START = 0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573
#: Constants of the form of 128 bits: at the start, before the first half, before the second.
_WIDE, _FIRST_HALF, _SECOND_HALF = 0xEE, 0xEE, 0xDD
_ROUNDS_OF_WORD, _LAST_ROUNDS = 2, 4


@inlined
def _left(word: int, n_bits: int) -> int:
    """A word rotated to the left; `np.uint64`, for a compiled word may have become signed."""
    return ((word << n_bits) | (int(np.uint64(word)) >> (64 - n_bits))) & _WORD


@inlined
def _rounds(n: int, a: int, b: int, c: int, d: int) -> tuple[int, int, int, int]:
    """The state after `n` rounds."""
    for _ in range(n):
        a, c = (a + b) & _WORD, (c + d) & _WORD
        b, d = _left(b, 13) ^ a, _left(d, 16) ^ c
        a, c = (_left(a, 32) + d) & _WORD, (c + b) & _WORD
        b, d = _left(b, 17) ^ c, _left(d, 21) ^ a
        c = _left(c, 32)
    return a, b, c, d


@inlined
def _last_word(buf: Bytes, start: int, at: int, end: int) -> int:
    """The bytes from `at`, fewer than a word, below the length of the message."""
    n_left, length = end - at, end - start
    word = (length & 0xFF) << 56
    if length < 8:
        for i in range(n_left):
            word |= load_u8(buf, at + i) << (8 * i)
    elif n_left > 0:
        word |= int(load_u64(buf, end - 8)) >> (64 - 8 * n_left)
    return word


@inlined
def siphash(buf: Bytes, start: int, end: int, secret: Bytes) -> tuple[int, int]:
    """Hash of ``buf[start:end]``, as two little-endian signed numbers of 64 bits.

    Parameters
    ----------
    buf : uint8 array, shape (n_bytes,); read only
    start, end : half-open byte range; ``0 <= start <= end <= n_bytes``, checked by the caller
    secret : uint8 array, shape (`SECRET_BYTES`,); random bytes
    """
    start, end = int(start), int(end)  # numpy's would not hold a word without a sign
    low, high = int(load_u64(secret, 0)), int(load_u64(secret, 8))
    a, b, c, d = _START[0] ^ low, _START[1] ^ high ^ _WIDE, _START[2] ^ low, _START[3] ^ high
    at = start
    while at + 8 <= end:
        word = int(load_u64(buf, at))
        a, b, c, d = _rounds(_ROUNDS_OF_WORD, a, b, c, d ^ word)
        a ^= word
        at += 8
    word = _last_word(buf, start, at, end)
    a, b, c, d = _rounds(_ROUNDS_OF_WORD, a, b, c, d ^ word)
    a, b, c, d = _rounds(_LAST_ROUNDS, a ^ word, b, c ^ _FIRST_HALF, d)
    first = np.uint64(a ^ b ^ c ^ d)
    a, b, c, d = _rounds(_LAST_ROUNDS, a, b ^ _SECOND_HALF, c, d)
    second = np.uint64(a ^ b ^ c ^ d)
    return int(first.view(np.int64)), int(second.view(np.int64))


# Columns of the table.
_HASH_0 = 0
_HASH_1 = 1
_NEXT_OFFSET = 2  #: the offset plus one
ENTRY_COLUMNS = 3

# The state of the map.
N_KEYS = 0
MOST_KEYS = 1  #: the map is full at this many keys
LATEST_OFFSET = 2  #: the map contains the keys up to this offset, or -1
_N_WAITING_NOW = 3
STATE_COLUMNS = 4

#: Keys whose entries are awaited together.
N_WAITING = 16

# Columns of a key that waits.
HASH_0 = 0
HASH_1 = 1
OFFSET = 2  #: of the record
AT = 3  #: a note of the caller
WAITING_COLUMNS = 4


@inlined
def _first_row(hash_0: int, n_entries: int) -> int:
    """Row at which the search for a hash begins."""
    return int(((hash_0 & 0xFFFFFFFF) * n_entries) >> 32)


@inlined
def _entry_of(table: Int64s, hash_0: int, hash_1: int) -> int:
    """Row of the entry of a hash, or of the free entry where it belongs."""
    n_entries = table.shape[0]
    row = _first_row(hash_0, n_entries)
    while table[row, _NEXT_OFFSET] != 0 and (
        table[row, _HASH_0] != hash_0 or table[row, _HASH_1] != hash_1
    ):
        row += 1
        if row == n_entries:
            row = 0
    return int(row)


@inlined
def seek_key(
    source: Bytes, start: int, end: int, table: Int64s, secret: Bytes, waiting: Int64s
) -> None:
    """Hash the key ``source[start:end]``, and ask for the cache lines of its entry.

    Parameters
    ----------
    source : uint8 array; holds the key
    start, end : half-open byte range; checked by the caller
    table : int64 array, shape (n_entries, `ENTRY_COLUMNS`)
    secret : uint8 array, shape (`siphash.SECRET_BYTES`,)
    waiting : int64 array, shape (`WAITING_COLUMNS`,); the hash is written
    """
    waiting[HASH_0], waiting[HASH_1] = siphash(source, start, end, secret)
    at = _first_row(waiting[HASH_0], table.shape[0]) * ENTRY_COLUMNS
    prefetch(table, at)
    prefetch(table, at + _NEXT_OFFSET)


@inlined
def offset_of(table: Int64s, waiting: Int64s) -> int:
    """Offset of the key that `seek_key` has hashed, or -1 if the map does not contain it."""
    row = _entry_of(table, waiting[HASH_0], waiting[HASH_1])
    return int(table[row, _NEXT_OFFSET]) - 1


@internal
def _put_waiting(table: Int64s, state: Int64s, waiting: Int64s) -> int:
    """Put the keys that wait; the status.

    A map that is full contains the keys up to the offset that the first refused key has noted.
    """
    n_keys, state[_N_WAITING_NOW] = state[_N_WAITING_NOW], 0
    for i in range(n_keys):
        if state[N_KEYS] >= state[MOST_KEYS]:
            state[LATEST_OFFSET] = waiting[i, AT]
            return st.TABLE_FULL
        hash_0, hash_1 = waiting[i, HASH_0], waiting[i, HASH_1]
        row = _entry_of(table, hash_0, hash_1)
        if table[row, _NEXT_OFFSET] == 0:
            table[row, _HASH_0], table[row, _HASH_1] = hash_0, hash_1
            state[N_KEYS] += 1
        table[row, _NEXT_OFFSET] = waiting[i, OFFSET] + 1
    return st.OK


@internal
def _put_batch(
    source: Bytes,
    header: Int64s,
    start_offset: int,
    table: Int64s,
    state: Int64s,
    secret: Bytes,
    waiting: Int64s,
) -> int:
    """Put the keys of one batch, except the keys that still wait; the status."""
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
        i = state[_N_WAITING_NOW]
        seek_key(source, key_at, key_at + key_length, table, secret, waiting[i])
        waiting[i, OFFSET], waiting[i, AT] = offset, state[LATEST_OFFSET]
        state[LATEST_OFFSET] = offset
        state[_N_WAITING_NOW] = i + 1
        if i + 1 == N_WAITING and _put_waiting(table, state, waiting) != st.OK:
            return st.TABLE_FULL
    return st.OK if at == header[layout.RECORDS_END] else st.TRAILING_BYTES


@kernel
def put_keys(
    window: Bytes,
    inflated: Bytes,
    headers: Int64Table,
    is_left_out: Bytes,
    start_offset: int,
    table: Int64Table,
    state: Int64s,
    secret: Bytes,
    waiting: Int64Table,
) -> tuple[int, int]:
    """Put the keys of batches into the map, until it is full (``buildOffsetMapForSegment``).

    A full map takes no further record, not even a record of a key that it contains.

    Parameters
    ----------
    window : uint8 array; holds the records of uncompressed batches; read only
    inflated : uint8 array; holds the inflated records of compressed batches; read only
    headers : int64 array, shape (n_batches, `layout.N_HEADER_COLUMNS`); read only
    is_left_out : uint8 array, shape (n_batches,); 1 for batches whose keys do not count: control
        batches, and those of aborted transactions
    start_offset : records below it are skipped
    table : int64 array, shape (n_entries, `ENTRY_COLUMNS`); read and written; the caller has
        checked that n_entries is below 2**31, and above ``state[MOST_KEYS]``
    state : int64 array, shape (`STATE_COLUMNS`,); read and written
    secret : uint8 array, shape (`siphash.SECRET_BYTES`,); random bytes, the same for the whole map
    waiting : int64 array, shape (`N_WAITING`, `WAITING_COLUMNS`); room

    Returns
    -------
    status : `OK` when all batches are done, `TABLE_FULL`, or the fault of a batch
    row : of `headers`, after the batches that were read
    """
    state[_N_WAITING_NOW] = 0
    status, row = st.OK, 0
    while row < headers.shape[0]:
        header = headers[row]
        if is_left_out[row] == 0:
            source = window if header[layout.ATTRIBUTES] & layout.CODEC_MASK == 0 else inflated
            status = _put_batch(source, header, start_offset, table, state, secret, waiting)
            if status == st.TABLE_FULL:
                return status, row
            if status != st.OK:
                break
        if header[layout.LAST_OFFSET] >= start_offset:
            state[LATEST_OFFSET] = header[layout.LAST_OFFSET]
        row += 1
    # If the keys before a fault fill the map, the fault is not reached.
    if _put_waiting(table, state, waiting) != st.OK:
        return st.TABLE_FULL, row
    return status, row


@kernel
def put_all(
    keys: Bytes,
    ends: Int64s,
    offset: int,
    table: Int64Table,
    state: Int64s,
    secret: Bytes,
    waiting: Int64Table,
) -> int:
    """Put keys that come from no log, all at one offset; the status.

    Parameters
    ----------
    keys : uint8 array; the keys, one after another
    ends : int64 array, shape (n_keys,); end of each key in `keys`, in rising order
    offset : of each key, below 2**63 - 1: an entry has the offset plus one
    table, state, secret, waiting : see `put_keys`
    """
    state[_N_WAITING_NOW] = start = 0
    for i in range(ends.shape[0]):
        j = state[_N_WAITING_NOW]
        seek_key(keys, start, ends[i], table, secret, waiting[j])
        waiting[j, OFFSET], waiting[j, AT] = offset, state[LATEST_OFFSET]
        state[_N_WAITING_NOW] = j + 1
        start = ends[i]
        if j + 1 == N_WAITING and _put_waiting(table, state, waiting) != st.OK:
            return st.TABLE_FULL
    state[LATEST_OFFSET] = offset
    return _put_waiting(table, state, waiting)
