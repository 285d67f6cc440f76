"""Zig-zag varints of records (``org.apache.kafka.common.utils.ByteUtils``).

The least significant seven bits come first; a set high bit means that another byte follows.  An
int takes at most five bytes, a long ten.  Bits beyond the type's width are dropped, as in Java.
"""

import numpy as np

from segmentlog.format.kernels.memory import (
    Bytes,
    leading_zeros,
    load_u8,
    load_u64,
    store_u8,
    trailing_zeros,
)
from segmentlog.native import inlined, internal

#: Bytes that must be readable from the place where `read_groups_quick` begins.
VARINT_SLACK = 8

#: Bytes at which `read_groups_quick` may find the end of an int: the first five …
INT_STOPS = np.uint64(0x8080808080)
#: … and of a long: all bytes that it reads.
LONG_STOPS = np.uint64(0x8080808080808080)

_ODD_GROUPS, _EVEN_GROUPS = np.uint64(0x7F007F007F007F00), np.uint64(0x007F007F007F007F)
_ODD_PAIRS, _EVEN_PAIRS = np.uint64(0x3FFF00003FFF0000), np.uint64(0x00003FFF00003FFF)
_HIGH_HALF, _LOW_HALF = np.uint64(0x0FFFFFFF00000000), np.uint64(0x000000000FFFFFFF)
_ONE, _TWO, _FOUR = np.uint64(1), np.uint64(2), np.uint64(4)

#: Replaces the position after a varint that does not end in time.  It lies after every buffer,
#: so a read from it fails as well, and one check at the end of a record is enough.
FAILED = 2**62


@internal
def _read_long_form(buf: Bytes, at: int, end: int, max_bytes: int) -> tuple[int, int]:
    """Unsigned value of a varint of any length, and the position after it or `FAILED`."""
    value = 0
    for i in range(max_bytes):
        if at + i >= end:
            return 0, FAILED
        byte = load_u8(buf, at + i)
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value, at + i + 1
    return 0, FAILED


@inlined
def read_varint(buf: Bytes, at: int, end: int) -> tuple[int, int]:
    """Signed 32-bit value of the varint at byte `at`, and the position after it or `FAILED`.

    Parameters
    ----------
    buf : uint8 array, shape (n_bytes,); read only
    at, end : half-open byte range; ``end <= n_bytes``, checked by the caller
    """
    if at < end:
        byte = load_u8(buf, at)
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), at + 1
        if at + 1 < end:
            high = load_u8(buf, at + 1)
            if high < 0x80:
                value = (byte & 0x7F) | (high << 7)
                return (value >> 1) ^ -(value & 1), at + 2
    value, after = _read_long_form(buf, at, end, 5)
    value = ((value & 0xFFFFFFFF) >> 1) ^ -(value & 1)
    return value, after


@inlined
def read_varlong(buf: Bytes, at: int, end: int) -> tuple[int, int]:
    """Signed 64-bit value of the varint at byte `at`, and the position after it or `FAILED`.

    Parameters
    ----------
    buf : uint8 array, shape (n_bytes,); read only
    at, end : half-open byte range; ``end <= n_bytes``, checked by the caller
    """
    if at < end:
        byte = load_u8(buf, at)
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), at + 1
        if at + 1 < end:
            high = load_u8(buf, at + 1)
            if high < 0x80:
                value = (byte & 0x7F) | (high << 7)
                return (value >> 1) ^ -(value & 1), at + 2
    value, after = _read_long_form(buf, at, end, 10)
    value = ((value >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(value & 1)
    return value, after


@inlined
def signed(groups: int) -> int:
    """The number of a varint whose groups, joined, are below 2**63."""
    return (groups >> 1) ^ -(groups & 1)


@inlined
def read_groups_quick(buf: Bytes, at: int, stop_bits: np.uint64) -> tuple[int, int]:
    """Groups of a varint of up to eight bytes, joined, and the position after it or `FAILED`.

    `signed` converts them to a number.  The lowest bit is set for a negative number; otherwise the
    other bits are the number itself, so a length takes less work.

    Reads eight bytes at once and joins their groups of seven bits without a loop, so batches
    whose deltas take three bytes or five are as quick as those of two.  Bits beyond the 32nd in
    the fifth byte of an int are not dropped: a caller that gets too large a number reads it again
    with `read_varint`.

    Parameters
    ----------
    buf : uint8 array, shape (n_bytes,); read only
    at : where the varint begins; ``at + VARINT_SLACK <= n_bytes``, checked by the caller
    stop_bits : `INT_STOPS` or `LONG_STOPS`
    """
    byte = load_u8(buf, at)
    if byte < 0x80:
        return byte, at + 1
    high = load_u8(buf, at + 1)
    if high < 0x80:
        return (byte & 0x7F) | (high << 7), at + 2
    word = load_u64(buf, at)
    stops = ~word & stop_bits
    if stops == 0:
        return 0, FAILED
    n_bits = trailing_zeros(stops)
    word &= stops ^ (stops - _ONE)
    word = (word & _EVEN_GROUPS) | ((word & _ODD_GROUPS) >> _ONE)
    word = (word & _EVEN_PAIRS) | ((word & _ODD_PAIRS) >> _TWO)
    joined = int(np.int64((word & _LOW_HALF) | ((word & _HIGH_HALF) >> _FOUR)))
    return joined, at + 1 + (n_bits >> 3)


@inlined
def read_varint_quick(buf: Bytes, at: int, stop_bits: np.uint64) -> tuple[int, int]:
    """Signed value of a varint, as `read_groups_quick` reads it, and the position after it."""
    groups, after = read_groups_quick(buf, at, stop_bits)
    return signed(groups), after


@inlined
def varint_word(groups: int) -> tuple[int, int]:
    """The varint of an unsigned number below 2**56 as a little-endian word, and its bytes.

    Its groups of seven bits are moved apart without a loop, as `read_groups_quick` joins them.
    """
    if groups < 0x80:
        return groups, 1
    if groups < 0x4000:
        return (groups & 0x7F) | 0x80 | ((groups & 0x3F80) << 1), 2
    n_bytes = ((70 - leading_zeros(groups)) * 37) >> 8  # divided by 7 and rounded up
    word = (groups & 0xFFFFFFF) | ((groups & 0xFFFFFFF0000000) << 4)
    word = (word & 0x3FFF00003FFF) | ((word & 0xFFFC0000FFFC000) << 2)
    word = (word & 0x7F007F007F007F) | ((word & 0x3F803F803F803F80) << 1)
    return word | (0x80808080808080 & ((1 << (8 * (n_bytes - 1))) - 1)), n_bytes


@inlined
def varint_bytes(number: int) -> int:
    """Bytes that `write_varint` takes for a signed number of up to 64 bits."""
    n_bits = 64 - leading_zeros((number << 1) ^ (number >> 63) | 1)
    return ((n_bits + 6) * 37) >> 8  # divided by 7 and rounded up


@internal
def _write_long_form(buf: Bytes, at: int, groups: int) -> int:
    """Write an unsigned number of any size; return the position after it."""
    while groups < 0 or groups >= 0x80:
        store_u8(buf, at, groups | 0x80)
        groups = (groups >> 7) & 0x1FFFFFFFFFFFFFF
        at += 1
    store_u8(buf, at, groups)
    return at + 1


@inlined
def write_varint(buf: Bytes, at: int, number: int) -> int:
    """Write a signed number of up to 64 bits at byte `at`; return the position after it.

    Parameters
    ----------
    buf : uint8 array; written; the caller has checked that `varint_bytes` are left after `at`
    """
    groups = (number << 1) ^ (number >> 63)
    if 0 <= groups < 0x80:
        store_u8(buf, at, groups)
        return at + 1
    if 0 <= groups < 0x4000:
        store_u8(buf, at, groups | 0x80)
        store_u8(buf, at + 1, groups >> 7)
        return at + 2
    return _write_long_form(buf, at, groups)
