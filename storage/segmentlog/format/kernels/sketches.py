"""What an analysis keeps of records: counters and sketches of a fixed size.

Distinct keys are counted by HyperLogLog (Flajolet et al., 2007): each key sets one of
`N_REGISTERS` to the most zeros that a hash of 64 bits has had after the bits of its register.

The heaviest keys are found as by Misra and Gries (1982), with the purges of the "frequent items"
sketch of Apache DataSketches: when the table is full, a number is taken from all counts, and the
keys whose count is used up leave.  A count is never too large, and too small by at most the sum of
these numbers.

Both can be merged, in any order.  The hash has no secret: processes that merge must agree.
"""

import numpy as np

from segmentlog.format.kernels.memory import (
    Bytes,
    Int64s,
    Int64Table,
    leading_zeros,
    load_i32,
    load_u8,
    load_u32,
    load_u64,
)
from segmentlog.format.kernels.source import BinaryArrays, length_of
from segmentlog.native import inlined, internal, kernel

_WORD = 0xFFFF_FFFF_FFFF_FFFF
#: Odd numbers without a pattern, at least 2**63: the fractions of the golden ratio, and of the
#: square root of 3.
_MULTIPLIER, _SECOND = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B

REGISTER_BITS = 14
N_REGISTERS = 1 << REGISTER_BITS  #: the standard error is 1.04 / sqrt(N_REGISTERS), 0.8 %

#: Rows of the table of the heaviest keys, and how many of them are used before a purge.
HEAVY_ROWS = 2048
MOST_HEAVY = 1536
HASH = 0
COUNT = 1  #: 0 in a free row
LENGTH = 2  #: bytes of the key
PARTITION = 3  #: of a record with the key …
OFFSET = 4  #: … and its offset
HEAVY_COLUMNS = 5

#: Rows of the table of schema ids, and how many of them are used.
ID_ROWS = 512
MOST_IDS = 256
ID = 0
ID_COUNT = 1  #: 0 in a free row
ID_COLUMNS = 2

#: Sizes of keys, and of values, by the number of bits of their lengths: 0 for no byte, 1 for one
#: byte, 2 for two or three …
SIZE_COLUMNS = 33
KEY_SIZES = 0
VALUE_SIZES = 1

# Counters.  Lengths are in bytes, times in epoch milliseconds.
N_RECORDS = 0
NULL_KEYS = 1
KEY_BYTES = 2
LARGEST_KEY = 3
NULL_VALUES = 4
TOMBSTONES = 5  #: records with a key and without a value
VALUE_BYTES = 6
LARGEST_VALUE = 7
JSON_VALUES = 8  #: that begin and end as an object or an array
FRAMED_VALUES = 9  #: that begin as with the id of a schema
OTHER_IDS = 10  #: framed values whose id the table of ids had no room for
N_IDS = 11  #: in the table
N_HEAVY = 12  #: keys in the table
HEAVY_ERROR = 13  #: by which a count of the heaviest keys may be too small, at most
NO_TIME = 14  #: records with `NO_TIMESTAMP`; the times below are those of the others
FIRST_MS = 15
LAST_MS = 16
LEAST_MS = 17
LARGEST_MS = 18
N_BACK = 19  #: records that are older than the record before them
MOST_BACK_MS = 20  #: that a record is older than any record before it
BEFORE = 21  #: records with a timestamp before `EARLIEST_MS`
AFTER = 22  #: records with a timestamp after `NOW_MS`
EARLIEST_MS = 23  #: given: a time when there was no Kafka
NOW_MS = 24  #: given
N_COUNTERS = 25

FRAME_BYTES = 5  #: a byte 0, and the id of a schema
NO_TIMESTAMP = -1


@inlined
def _word(number: int) -> int:
    """A number as a word without a sign: a compiled product of both kinds would be a float."""
    return int(np.uint64(number & _WORD))


@inlined
def _mixed(word: int, other: int) -> int:
    """Two words as one; every bit of the result depends on all lower bits of the sum."""
    mixed = ((word ^ other) * _MULTIPLIER) & _WORD
    return mixed ^ (int(np.uint64(mixed)) >> 32)


@inlined
def hash_of(buf: Bytes, start: int, end: int) -> int:
    """Hash of ``buf[start:end]``, a number of 64 bits.

    Parameters
    ----------
    buf : uint8 array, shape (n_bytes,); read only
    start, end : half-open byte range; ``0 <= start <= end <= n_bytes``, checked by the caller
    """
    start, end = int(start), int(end)
    length, at = end - start, start
    mixed = _mixed(_word(length), _SECOND)
    while at + 8 <= end:
        mixed = _mixed(mixed, _word(int(load_u64(buf, at))))
        at += 8
    if at < end:
        if length >= 8:
            last = _word(int(load_u64(buf, end - 8)))
        elif length >= 4:
            last = _word(load_u32(buf, start) | load_u32(buf, end - 4) << 32)
        else:
            middle = load_u8(buf, start + (length >> 1)) << 8
            last = _word(load_u8(buf, start) | middle | load_u8(buf, end - 1) << 16)
        mixed = _mixed(mixed, last)
    return _mixed(_mixed(mixed, _SECOND), mixed)


@inlined
def _signed(word: int) -> int:
    """A word as int64 arrays hold it."""
    return int(np.uint64(word).view(np.int64))


@inlined
def _count_distinct(registers: Bytes, hashed: int) -> None:
    register = hashed & (N_REGISTERS - 1)
    rest = int(np.uint64(hashed)) >> REGISTER_BITS
    rank = leading_zeros(rest) - REGISTER_BITS + 1
    if rank > registers[register]:
        registers[register] = rank


@inlined
def _row_of(table: Int64s, hashed: int) -> int:
    """Row of a key in the table of the heaviest keys, or the free row where it belongs."""
    row = (hashed >> REGISTER_BITS) & (HEAVY_ROWS - 1)
    while table[row, COUNT] != 0 and table[row, HASH] != hashed:
        row = (row + 1) & (HEAVY_ROWS - 1)
    return int(row)


@internal
def _purge(table: Int64s, spare: Int64s) -> tuple[int, int]:
    """Take a number from all counts that at least half of the keys do not survive.

    Returns the number of keys that are left, and the number taken.
    """
    taken, n_gone = 1, 0
    while True:
        n_gone = 0
        for row in range(HEAVY_ROWS):
            if 0 < table[row, COUNT] <= taken:
                n_gone += 1
        if 2 * n_gone >= MOST_HEAVY:
            break
        taken *= 2
    n_left = 0
    for row in range(HEAVY_ROWS):
        if table[row, COUNT] > taken:
            for column in range(HEAVY_COLUMNS):
                spare[n_left, column] = table[row, column]
            spare[n_left, COUNT] -= taken
            n_left += 1
        table[row, COUNT] = 0
    for i in range(n_left):
        row = _row_of(table, spare[i, HASH])
        for column in range(HEAVY_COLUMNS):
            table[row, column] = spare[i, column]
    return n_left, taken


@kernel
def sketch_records(
    keys: BinaryArrays, values: BinaryArrays, timestamps: Int64s, offsets: Int64s, partition: int,
    registers: Bytes, heavy: Int64Table, spare: Int64Table, ids: Int64Table, sizes: Int64Table,
    counters: Int64s,
) -> None:  # fmt: skip
    """Add records, which follow those before, to counters and sketches.

    Parameters
    ----------
    keys, values : the columns; read only
    timestamps, offsets : int64 arrays, shape (n_rows,); read only
    partition : of the records
    registers : uint8 array, shape (`N_REGISTERS`,); read and written
    heavy : int64 array, shape (`HEAVY_ROWS`, `HEAVY_COLUMNS`); read and written
    spare : int64 array, shape (`HEAVY_ROWS`, `HEAVY_COLUMNS`); written
    ids : int64 array, shape (`ID_ROWS`, `ID_COLUMNS`); read and written
    sizes : int64 array, shape (2, `SIZE_COLUMNS`); read and written
    counters : int64 array, shape (`N_COUNTERS`,); read and written
    """
    n_timed = counters[N_RECORDS] - counters[NO_TIME]
    first, last = counters[FIRST_MS], counters[LAST_MS]
    least, largest = counters[LEAST_MS], counters[LARGEST_MS]
    most_back, n_back = counters[MOST_BACK_MS], counters[N_BACK]
    earliest, now = counters[EARLIEST_MS], counters[NOW_MS]
    no_time, before, after = counters[NO_TIME], counters[BEFORE], counters[AFTER]
    n_heavy, error = counters[N_HEAVY], counters[HEAVY_ERROR]
    null_keys, key_bytes, largest_key = 0, 0, counters[LARGEST_KEY]
    null_values, value_bytes, largest_value = 0, 0, counters[LARGEST_VALUE]
    tombstones = json_values = 0
    for row in range(timestamps.shape[0]):
        time = timestamps[row]
        if time == NO_TIMESTAMP:
            no_time += 1
        elif n_timed == 0:
            n_timed, first, last, least, largest = 1, time, time, time, time
            before += time < earliest
            after += time > now
        else:
            n_back += time < last
            last = time
            before += time < earliest
            after += time > now
            least, largest = min(least, time), max(largest, time)
            most_back = max(most_back, largest - time)
        length = length_of(keys, row)
        has_key = length >= 0
        if has_key:
            start = int(keys.ends[row])
            key_bytes += length
            largest_key = max(largest_key, length)
            sizes[KEY_SIZES, 64 - leading_zeros(length)] += 1
            hashed = hash_of(keys.data, start, start + length)
            _count_distinct(registers, hashed)
            found = _signed(hashed)
            at = _row_of(heavy, found)
            if heavy[at, COUNT] == 0:
                if n_heavy == MOST_HEAVY:
                    n_heavy, taken = _purge(heavy, spare)
                    error += taken
                    at = _row_of(heavy, found)
                n_heavy += 1
                heavy[at, HASH], heavy[at, LENGTH] = found, length
                heavy[at, PARTITION], heavy[at, OFFSET] = partition, offsets[row]
            heavy[at, COUNT] += 1
        else:
            null_keys += 1
        length = length_of(values, row)
        if length < 0:
            null_values += 1
            tombstones += has_key
            continue
        value_bytes += length
        largest_value = max(largest_value, length)
        sizes[VALUE_SIZES, 64 - leading_zeros(length)] += 1
        if length < 2:
            continue
        start = int(values.ends[row])
        begin = load_u8(values.data, start)
        if begin == 0:
            schema = load_i32(values.data, start + 1) if length >= FRAME_BYTES else -1
            if schema >= 0:
                counters[FRAMED_VALUES] += 1
                _count_id(ids, counters, schema, 1)
        # '{' and '}', or '[' and ']', differ by two.
        elif begin == 0x7B or begin == 0x5B:
            json_values += load_u8(values.data, start + length - 1) == begin + 2
    counters[N_RECORDS] += timestamps.shape[0]
    counters[FIRST_MS], counters[LAST_MS] = first, last
    counters[LEAST_MS], counters[LARGEST_MS] = least, largest
    counters[MOST_BACK_MS], counters[N_BACK] = most_back, n_back
    counters[NO_TIME], counters[BEFORE], counters[AFTER] = no_time, before, after
    counters[N_HEAVY], counters[HEAVY_ERROR] = n_heavy, error
    counters[NULL_KEYS] += null_keys
    counters[KEY_BYTES] += key_bytes
    counters[LARGEST_KEY] = largest_key
    counters[NULL_VALUES] += null_values
    counters[VALUE_BYTES] += value_bytes
    counters[LARGEST_VALUE] = largest_value
    counters[TOMBSTONES] += tombstones
    counters[JSON_VALUES] += json_values


@internal
def _count_id(ids: Int64s, counters: Int64s, schema: int, n: int) -> None:
    """Count the id of a schema, as often as it was found."""
    row = (schema * 0x9E37 >> 4) & (ID_ROWS - 1)
    while ids[row, ID_COUNT] != 0 and ids[row, ID] != schema:
        row = (row + 1) & (ID_ROWS - 1)
    if ids[row, ID_COUNT] == 0:
        if counters[N_IDS] == MOST_IDS:
            counters[OTHER_IDS] += n
            return
        counters[N_IDS] += 1
        ids[row, ID] = schema
    ids[row, ID_COUNT] += n


@kernel
def merge_sketches(
    registers: Bytes, heavy: Int64Table, spare: Int64Table, ids: Int64Table, counters: Int64s,
    other_registers: Bytes, other_heavy: Int64Table, other_ids: Int64Table,
) -> None:  # fmt: skip
    """Add the distinct keys, the heaviest keys and the schema ids of other records.

    Parameters
    ----------
    registers, heavy, ids, counters : of `sketch_records`; read and written
    spare : int64 array, shape (`HEAVY_ROWS`, `HEAVY_COLUMNS`); written
    other_registers, other_heavy, other_ids : of the other records; read only
    """
    for i in range(N_REGISTERS):
        if other_registers[i] > registers[i]:
            registers[i] = other_registers[i]
    for row in range(HEAVY_ROWS):
        if other_heavy[row, COUNT] == 0:
            continue
        at = _row_of(heavy, other_heavy[row, HASH])
        if heavy[at, COUNT] == 0:
            if counters[N_HEAVY] == MOST_HEAVY:
                n_heavy, taken = _purge(heavy, spare)
                counters[N_HEAVY] = n_heavy
                counters[HEAVY_ERROR] += taken
                at = _row_of(heavy, other_heavy[row, HASH])
            counters[N_HEAVY] += 1
            for column in range(HEAVY_COLUMNS):
                heavy[at, column] = other_heavy[row, column]
        else:
            heavy[at, COUNT] += other_heavy[row, COUNT]
    for row in range(ID_ROWS):
        if other_ids[row, ID_COUNT] > 0:
            _count_id(ids, counters, other_ids[row, ID], other_ids[row, ID_COUNT])
