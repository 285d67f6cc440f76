"""Sets of offsets as bitmaps: windows of offsets that begin at multiples of their size.

A hash table has the slot of each window.  A slot is a bit for each offset of its window.
"""

from segmentlog.format.kernels.memory import Bytes, Int64s
from segmentlog.native import inlined, kernel

WINDOW_BITS = 20
WINDOW_OFFSETS = 1 << WINDOW_BITS
WINDOW_BYTES = WINDOW_OFFSETS >> 3

#: A key has the number of a window, up to that of the largest offset, and that of a partition.
_NUMBER_BITS = 63 - WINDOW_BITS
MOST_CODES = 1 << (63 - _NUMBER_BITS)
#: An odd number without a pattern; its product with a number of 30 bits fits a word.
_MULTIPLIER = 0x9E37_79B1
#: In a free row of the hash table.
NO_KEY = -1


@inlined
def window_key(code: int, offset: int) -> int:
    """Key of the window that has an offset.

    Parameters
    ----------
    code : number of a partition, less than `MOST_CODES`
    offset : not negative
    """
    return (code << _NUMBER_BITS) | (offset >> WINDOW_BITS)


@inlined
def first_row(key: int, mask: int) -> int:
    """Row of the hash table where the search for a key begins; `mask`: number of rows less one."""
    mixed = (key ^ ((key >> _NUMBER_BITS) << 10)) & 0x3FFF_FFFF
    return ((mixed * _MULTIPLIER) >> 20) & mask


@kernel
def mark_offsets(
    codes: Int64s,
    offsets: Int64s,
    keys: Int64s,
    slots: Int64s,
    bits: Bytes,
    counts: Int64s,
    rest: Int64s,
) -> int:
    """Set the bits of offsets whose window has a slot.

    Parameters
    ----------
    codes : int64 array, shape (n_rows,); read only; numbers of partitions
    offsets : int64 array, shape (n_rows,); read only
    keys : int64 array, shape (n_keys,); read only; `window_key` of each window that has a slot, at
        its `first_row` or after it, or `NO_KEY`.  `n_keys` is a power of
        two, and at least one row is free.
    slots : int64 array, shape (n_keys,); read only; the slot of each key
    bits : uint8 array, shape (n_slots * `WINDOW_BYTES`,); read and written
    counts : int64 array, shape (n_slots,); read and written: bits that are set
    rest : int64 array, shape (n_rows,); written: rows whose window has no slot, or whose offset
        was marked before

    Returns
    -------
    number of rows in `rest`
    """
    mask, n_rest = keys.shape[0] - 1, 0
    last_key, last_slot = NO_KEY, -1
    for row in range(offsets.shape[0]):
        code, offset, slot = codes[row], offsets[row], -1
        if 0 <= code < MOST_CODES and offset >= 0:
            key = window_key(code, offset)
            if key == last_key:
                slot = last_slot
            else:
                at = first_row(key, mask)
                while keys[at] != key and keys[at] != NO_KEY:
                    at = (at + 1) & mask
                if keys[at] == key:
                    slot = slots[at]
                    last_key, last_slot = key, slot
        if slot >= 0:
            place = slot * WINDOW_BYTES + ((offset & (WINDOW_OFFSETS - 1)) >> 3)
            bit = 1 << (offset & 7)
            if bits[place] & bit == 0:
                bits[place] |= bit
                counts[slot] += 1
                continue
        rest[n_rest] = row
        n_rest += 1
    return n_rest
