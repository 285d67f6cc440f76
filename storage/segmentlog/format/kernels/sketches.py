"""What an analysis keeps of records: counters and sketches of a fixed size.

Distinct keys are counted by HyperLogLog (Flajolet et al., 2007): each key sets one of
`N_REGISTERS` to the most zeros that a hash of 64 bits has had after the bits of its register.

The heaviest keys are found as by Misra and Gries (1982), with the purges of the "frequent items"
sketch of Apache DataSketches: when the table is full, a number is taken from all counts, and the
keys whose count is used up leave.  After the first purge, a key enters only at its second record:
the first one sets a bit of a filter, which is cleared now and then, and is not counted.  A count
is never too large, and too small by at most the sum of these numbers and of these records.

Both can be merged, in any order.  The hash has no secret: processes that merge must agree.
"""

from typing import NamedTuple

import numpy as np

from segmentlog.format.kernels import layout
from segmentlog.format.kernels.memory import (
    Bytes,
    Int64s,
    Int64Table,
    leading_zeros,
    load_i32,
    load_item,
    load_u8,
    load_u32,
    load_u64,
    store_item,
    store_u8,
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
HEAVY_ROWS = 4096
MOST_HEAVY = 1536
# A row has two numbers, and after those of all rows a place of four: a new key touches two lines
# of the cache.  With a column for each number it touched five, and took twice as long.
HASH = 0
COUNT = 1  #: 0 in a free row
ROW_SIZE = 2
PLACES = ROW_SIZE * HEAVY_ROWS  #: where the places begin
LENGTH = 0  #: bytes of the key
PARTITION = 1  #: of a record with the key …
OFFSET = 2  #: … and its offset
HEAVY_PLACE_SIZE = 4
HEAVY_SIZE = PLACES + HEAVY_PLACE_SIZE * HEAVY_ROWS

#: Bytes of the filter in front of this table, and how many bits are set before it is cleared.
# Of keys that all differ, every sixteenth enters the table.  When all did, one core analyzed four
# million of them in 236 ms instead of 207, and the error was four times as large.
SEEN_BYTES = 1 << 13
MOST_SEEN = 1 << 13

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
VALUE_SIZES = SIZE_COLUMNS

# Counters.  Lengths are in bytes, times in epoch milliseconds.
N_RECORDS = 0
NULL_KEYS = 1
KEY_BYTES = 2
LARGEST_KEY = 3
NULL_VALUES = 4
TOMBSTONES = 5  #: records with a key and without a value
VALUE_BYTES = 6
LARGEST_VALUE = 7
OTHER_IDS = 8  #: values that begin with the id of a schema for which the table had no room
N_IDS = 9  #: in the table
N_HEAVY = 10  #: keys in the table
HEAVY_ERROR = 11  #: by which a count of the heaviest keys may be too small, at most
NO_TIME = 12  #: records with `NO_TIMESTAMP`; the times below are those of the others
FIRST_MS = 13
LAST_MS = 14
LEAST_MS = 15
LARGEST_MS = 16
N_BACK = 17  #: records that are older than the record before them
MOST_BACK_MS = 18  #: that a record is older than any record before it
BEFORE = 19  #: records with a timestamp before `EARLIEST_MS`
AFTER = 20  #: records with a timestamp after `NOW_MS`
EARLIEST_MS = 21  #: given: a time when there was no Kafka
NOW_MS = 22  #: given
N_SEEN = 23  #: bits that are set in the filter
N_COUNTERS = 24

# Where the key and the value of a record are: some records have `PLACE_SIZE` numbers each.
KEY_AT = 0
KEY_LENGTH = 1  #: -1 for null
VALUE_AT = 2
VALUE_LENGTH = 3  #: -1 for null
TIME = 4  #: epoch milliseconds
PLACE_OFFSET = 5
KEY_HASH = 6  #: filled by `add_records`
PLACE_SIZE = 8  #: a line of the cache

NO_TIMESTAMP = -1


class SketchArrays(NamedTuple):
    """Counters and sketches, to be read and written.

    `registers` has shape (`N_REGISTERS`,), `heavy` and `spare` (`HEAVY_SIZE`,), `seen`
    (`SEEN_BYTES`,), `ids` (`ID_ROWS`, `ID_COLUMNS`), `sizes` (2 * `SIZE_COLUMNS`,), and `counters`
    (`N_COUNTERS`,).  What `spare` holds does not matter.
    """

    registers: Bytes
    heavy: Int64s
    spare: Int64s
    seen: Bytes
    ids: Int64Table
    sizes: Int64s
    counters: Int64s


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
def signed(word: int) -> int:
    """A word as int64 arrays hold it."""
    return int(np.uint64(word).view(np.int64))


@inlined
def _count_distinct(registers: Bytes, hashed: int) -> None:
    register = hashed & (N_REGISTERS - 1)
    rest = int(np.uint64(hashed)) >> REGISTER_BITS
    # Whether a rank is larger is hard to predict: a branch would cost more than the write.
    rank = max(leading_zeros(rest) - REGISTER_BITS + 1, load_u8(registers, register))
    store_u8(registers, register, rank)


@inlined
def _count_size(sizes: Int64s, kind: int, length: int) -> None:
    at = kind + 64 - leading_zeros(length)
    store_item(sizes, at, load_item(sizes, at) + 1)


@inlined
def _row_of(table: Int64s, hashed: int) -> int:
    """Row of a key in the table of the heaviest keys, or the free row where it belongs."""
    row = (hashed >> REGISTER_BITS) & (HEAVY_ROWS - 1)
    while _count_at(table, row) != 0 and load_item(table, ROW_SIZE * row + HASH) != hashed:
        row = (row + 1) & (HEAVY_ROWS - 1)
    return row


@inlined
def _count_at(table: Int64s, row: int) -> int:
    """The count of a row."""
    return load_item(table, ROW_SIZE * row + COUNT)


@inlined
def _copy_row(target: Int64s, to: int, source: Int64s, row: int, count: int) -> None:
    store_item(target, ROW_SIZE * to + HASH, load_item(source, ROW_SIZE * row + HASH))
    store_item(target, ROW_SIZE * to + COUNT, count)
    for i in range(HEAVY_PLACE_SIZE):
        number = load_item(source, PLACES + HEAVY_PLACE_SIZE * row + i)
        store_item(target, PLACES + HEAVY_PLACE_SIZE * to + i, number)


@internal
def _purge(table: Int64s, spare: Int64s) -> tuple[int, int]:
    """Take a number from all counts that at least half of the keys do not survive.

    Returns the number of keys that are left, and the number taken.
    """
    taken, n_left = 1, MOST_HEAVY
    while True:
        n_left = 0
        for row in range(HEAVY_ROWS):
            n_left += _count_at(table, row) > taken
        if 2 * n_left <= MOST_HEAVY:
            break
        taken *= 2
    to = 0
    for row in range(HEAVY_ROWS):
        count = _count_at(table, row)
        if count > taken:
            _copy_row(spare, to, table, row, count - taken)
            to += 1
        store_item(table, ROW_SIZE * row + COUNT, 0)
    for i in range(n_left):
        row = _row_of(table, load_item(spare, ROW_SIZE * i + HASH))
        _copy_row(table, row, spare, i, _count_at(spare, i))
    return n_left, taken


@inlined
def _add_times(places: Int64s, n: int, counters: Int64s) -> None:
    n_timed = counters[N_RECORDS] - counters[NO_TIME]
    first, last = counters[FIRST_MS], counters[LAST_MS]
    least, largest = counters[LEAST_MS], counters[LARGEST_MS]
    most_back, n_back = counters[MOST_BACK_MS], counters[N_BACK]
    earliest, now = counters[EARLIEST_MS], counters[NOW_MS]
    no_time, before, after = counters[NO_TIME], counters[BEFORE], counters[AFTER]
    for at in range(0, n * PLACE_SIZE, PLACE_SIZE):
        time = load_item(places, at + TIME)
        if time == NO_TIMESTAMP:
            no_time += 1
            continue
        before += time < earliest
        after += time > now
        if n_timed == 0:
            n_timed, first, least, largest = 1, time, time, time
        elif time < largest:
            n_back += time < last
            least = min(least, time)
            most_back = max(most_back, largest - time)
        else:
            largest = time
        last = time
    counters[FIRST_MS], counters[LAST_MS] = first, last
    counters[LEAST_MS], counters[LARGEST_MS] = least, largest
    counters[MOST_BACK_MS], counters[N_BACK] = most_back, n_back
    counters[NO_TIME], counters[BEFORE], counters[AFTER] = no_time, before, after


@inlined
def _add_keys(
    buf: Bytes, places: Int64s, n: int, registers: Bytes, sizes: Int64s, counters: Int64s
) -> None:
    nulls, n_bytes, largest = 0, 0, counters[LARGEST_KEY]
    for at in range(0, n * PLACE_SIZE, PLACE_SIZE):
        length = load_item(places, at + KEY_LENGTH)
        if length < 0:
            nulls += 1
            continue
        n_bytes += length
        largest = max(largest, length)
        _count_size(sizes, KEY_SIZES, length)
        start = load_item(places, at + KEY_AT)
        hashed = hash_of(buf, start, start + length)
        _count_distinct(registers, hashed)
        store_item(places, at + KEY_HASH, signed(hashed))
    counters[NULL_KEYS] += nulls
    counters[KEY_BYTES] += n_bytes
    counters[LARGEST_KEY] = largest


@inlined
def _add_heavy(
    places: Int64s,
    n: int,
    partition: int,
    heavy: Int64s,
    spare: Int64s,
    seen: Bytes,
    counters: Int64s,
) -> None:
    """Count the keys that `_add_keys` has hashed.

    This is a separate loop because whether a key is in the table is hard to predict, and a wrong
    guess costs the more the later its hash is known.
    """
    n_heavy, error, n_seen = counters[N_HEAVY], counters[HEAVY_ERROR], counters[N_SEEN]
    for at in range(0, n * PLACE_SIZE, PLACE_SIZE):
        if load_item(places, at + KEY_LENGTH) < 0:
            continue
        hashed = load_item(places, at + KEY_HASH)
        if error > 0:
            byte, bit = (hashed >> 29) & (SEEN_BYTES - 1), 1 << ((hashed >> 26) & 7)
            bits = load_u8(seen, byte)
            if bits & bit == 0:
                if n_seen == MOST_SEEN:
                    seen[:] = 0
                    n_seen, bits = 0, 0
                error += n_seen == 0  # each key may lose one record until the filter is cleared
                n_seen += 1
                store_u8(seen, byte, bits | bit)
                continue
        row = _row_of(heavy, hashed)
        count = _count_at(heavy, row)
        if count == 0:
            if n_heavy == MOST_HEAVY:
                n_heavy, taken = _purge(heavy, spare)
                error += taken
                row = _row_of(heavy, hashed)
            n_heavy += 1
            store_item(heavy, ROW_SIZE * row + HASH, hashed)
            place = PLACES + HEAVY_PLACE_SIZE * row
            store_item(heavy, place + LENGTH, load_item(places, at + KEY_LENGTH))
            store_item(heavy, place + PARTITION, partition)
            store_item(heavy, place + OFFSET, load_item(places, at + PLACE_OFFSET))
        store_item(heavy, ROW_SIZE * row + COUNT, count + 1)
    counters[N_HEAVY], counters[HEAVY_ERROR], counters[N_SEEN] = n_heavy, error, n_seen


@inlined
def _add_values(
    buf: Bytes, places: Int64s, n: int, ids: Int64s, sizes: Int64s, counters: Int64s
) -> None:
    nulls, tombstones, n_bytes, largest = 0, 0, 0, counters[LARGEST_VALUE]
    for at in range(0, n * PLACE_SIZE, PLACE_SIZE):
        length = load_item(places, at + VALUE_LENGTH)
        if length < 0:
            nulls += 1
            tombstones += load_item(places, at + KEY_LENGTH) >= 0
            continue
        n_bytes += length
        largest = max(largest, length)
        _count_size(sizes, VALUE_SIZES, length)
        start = load_item(places, at + VALUE_AT)
        if length >= layout.FRAME_BYTES and load_u8(buf, start) == 0:
            schema = load_i32(buf, start + 1)
            if schema >= 0:
                _count_id(ids, counters, schema, 1)
    counters[NULL_VALUES] += nulls
    counters[VALUE_BYTES] += n_bytes
    counters[LARGEST_VALUE] = largest
    counters[TOMBSTONES] += tombstones


@inlined
def add_records(
    keys: Bytes, values: Bytes, places: Int64s, n: int, partition: int, sketch: SketchArrays
) -> None:
    """Add records, which follow those before; `places` points into the buffers of both columns."""
    counters = sketch.counters
    _add_times(places, n, counters)
    _add_keys(keys, places, n, sketch.registers, sketch.sizes, counters)
    _add_heavy(places, n, partition, sketch.heavy, sketch.spare, sketch.seen, counters)
    _add_values(values, places, n, sketch.ids, sketch.sizes, counters)
    counters[N_RECORDS] += n


@kernel
def sketch_records(
    keys: BinaryArrays,
    values: BinaryArrays,
    timestamps: Int64s,
    offsets: Int64s,
    partition: int,
    places: Int64s,
    sketch: SketchArrays,
) -> None:
    """Add records, which follow those before, to counters and sketches.

    Parameters
    ----------
    keys, values : the columns; read only
    timestamps, offsets : int64 arrays, shape (n_rows,); read only
    partition : of the records
    places : int64 array, room for at least one record; written
    sketch : read and written
    """
    row, n_rows, n_places = 0, timestamps.shape[0], places.shape[0] // PLACE_SIZE
    while row < n_rows:
        n = min(n_places, n_rows - row)
        for at in range(0, n * PLACE_SIZE, PLACE_SIZE):
            store_item(places, at + KEY_AT, keys.ends[row])
            store_item(places, at + KEY_LENGTH, length_of(keys, row))
            store_item(places, at + VALUE_AT, values.ends[row])
            store_item(places, at + VALUE_LENGTH, length_of(values, row))
            store_item(places, at + TIME, timestamps[row])
            store_item(places, at + PLACE_OFFSET, offsets[row])
            row += 1
        add_records(keys.data, values.data, places, n, partition, sketch)


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
    sketch: SketchArrays, other_registers: Bytes, other_heavy: Int64s, other_ids: Int64Table
) -> None:
    """Add the distinct keys, the heaviest keys and the schema ids of other records.

    Parameters
    ----------
    sketch : read and written
    other_registers, other_heavy, other_ids : of the other records; read only
    """
    registers, heavy, counters = sketch.registers, sketch.heavy, sketch.counters
    for i in range(N_REGISTERS):
        registers[i] = max(registers[i], other_registers[i])
    for row in range(HEAVY_ROWS):
        count = _count_at(other_heavy, row)
        if count == 0:
            continue
        hashed = load_item(other_heavy, ROW_SIZE * row + HASH)
        at = _row_of(heavy, hashed)
        if _count_at(heavy, at) == 0:
            if counters[N_HEAVY] == MOST_HEAVY:
                n_heavy, taken = _purge(heavy, sketch.spare)
                counters[N_HEAVY] = n_heavy
                counters[HEAVY_ERROR] += taken
                at = _row_of(heavy, hashed)
            counters[N_HEAVY] += 1
            _copy_row(heavy, at, other_heavy, row, count)
        else:
            store_item(heavy, ROW_SIZE * at + COUNT, _count_at(heavy, at) + count)
    for row in range(ID_ROWS):
        if other_ids[row, ID_COUNT] > 0:
            _count_id(sketch.ids, counters, other_ids[row, ID], other_ids[row, ID_COUNT])
