"""SipHash-2-4 with 128 bits: nobody without the secret can choose keys whose hashes collide.

Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF" (2012), and the output of 16
bytes of their reference implementation.  Words are cut to 64 bits after each sum, so that the same
code runs in plain Python.
"""

import numpy as np

from segmentlog.format.kernels.memory import Bytes, load_u8, load_u64
from segmentlog.native import inlined

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
