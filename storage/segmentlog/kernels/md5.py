"""MD5 of one key of any length (RFC 1321); `md5_lanes` takes several short ones at once.

Words are kept in signed numbers of 64 bits, cut to 32 bits after each sum, so that the same code
runs in plain Python.
"""

import numpy as np

from segmentlog.kernels._jit import inlined, kernel
from segmentlog.kernels._md5_vectors import BLOCK_BYTES, N_WORDS, SINES, START
from segmentlog.kernels.memory import Bytes, Int64s, load_u8, load_u32

__all__ = ["N_WORDS", "md5"]

_WORD = 0xFFFFFFFF
_SINES: Int64s = np.array(SINES, np.int64)
_A, _B, _C, _D = START
_ENDS_MESSAGE = 0x80


@inlined
def _step(word: int, mixed: int, n_bits: int, plus: int) -> int:
    """A word of the next state: `word` and what is mixed to it, turned to the left, and `plus`."""
    word = (word + mixed) & _WORD
    return (((word << n_bits) | (word >> (32 - n_bits))) + plus) & _WORD


@kernel
def _mix(words: Int64s, a: int, b: int, c: int, d: int) -> tuple[int, int, int, int]:
    """The state behind one block, whose `words` are loaded."""
    old_a, old_b, old_c, old_d = a, b, c, d
    for i in range(0, 16, 4):
        a = _step(a, (d ^ (b & (c ^ d))) + words[i] + _SINES[i], 7, b)
        d = _step(d, (c ^ (a & (b ^ c))) + words[i + 1] + _SINES[i + 1], 12, a)
        c = _step(c, (b ^ (d & (a ^ b))) + words[i + 2] + _SINES[i + 2], 17, d)
        b = _step(b, (a ^ (c & (d ^ a))) + words[i + 3] + _SINES[i + 3], 22, c)
    for i in range(16, 32, 4):
        at = 5 * i + 1
        a = _step(a, (c ^ (d & (b ^ c))) + words[at & 15] + _SINES[i], 5, b)
        d = _step(d, (b ^ (c & (a ^ b))) + words[at + 5 & 15] + _SINES[i + 1], 9, a)
        c = _step(c, (a ^ (b & (d ^ a))) + words[at + 10 & 15] + _SINES[i + 2], 14, d)
        b = _step(b, (d ^ (a & (c ^ d))) + words[at + 15 & 15] + _SINES[i + 3], 20, c)
    for i in range(32, 48, 4):
        at = 3 * i + 5
        a = _step(a, (b ^ c ^ d) + words[at & 15] + _SINES[i], 4, b)
        d = _step(d, (a ^ b ^ c) + words[at + 3 & 15] + _SINES[i + 1], 11, a)
        c = _step(c, (d ^ a ^ b) + words[at + 6 & 15] + _SINES[i + 2], 16, d)
        b = _step(b, (c ^ d ^ a) + words[at + 9 & 15] + _SINES[i + 3], 23, c)
    for i in range(48, 64, 4):
        at = 7 * i
        a = _step(a, (c ^ (b | (d ^ _WORD))) + words[at & 15] + _SINES[i], 6, b)
        d = _step(d, (b ^ (a | (c ^ _WORD))) + words[at + 7 & 15] + _SINES[i + 1], 10, a)
        c = _step(c, (a ^ (d | (b ^ _WORD))) + words[at + 14 & 15] + _SINES[i + 2], 15, d)
        b = _step(b, (d ^ (c | (a ^ _WORD))) + words[at + 21 & 15] + _SINES[i + 3], 21, c)
    return (a + old_a) & _WORD, (b + old_b) & _WORD, (c + old_c) & _WORD, (d + old_d) & _WORD


@kernel
def _load_tail(buf: Bytes, at: int, end: int, words: Int64s) -> None:
    """Load the last bytes of a message, fewer than a block, and the bit that ends it."""
    word = 0
    while at + 4 <= end:
        words[word] = np.int64(load_u32(buf, at))
        word += 1
        at += 4
    last = _ENDS_MESSAGE << (8 * (end - at))
    for i in range(end - at):
        last |= load_u8(buf, at + i) << (8 * i)
    words[word] = last
    for i in range(word + 1, N_WORDS):
        words[i] = 0


@inlined
def _joined(low: int, high: int) -> int:
    """Two words as one signed number of 64 bits."""
    return low | ((high - ((high & 0x80000000) << 1)) << 32)


@kernel
def md5(buf: Bytes, start: int, end: int, words: Int64s) -> tuple[int, int]:
    """MD5 of ``buf[start:end]``, as two little-endian signed numbers of 64 bits.

    Parameters
    ----------
    buf : uint8 array, shape (n_bytes,); read only
    start, end : half-open byte range; ``0 <= start <= end <= n_bytes``, checked by the caller
    words : int64 array, shape (`N_WORDS`,); room for the words of a block
    """
    a, b, c, d = _A, _B, _C, _D
    at = start
    while at + BLOCK_BYTES <= end:
        for i in range(N_WORDS):
            words[i] = np.int64(load_u32(buf, at + 4 * i))
        a, b, c, d = _mix(words, a, b, c, d)
        at += BLOCK_BYTES
    _load_tail(buf, at, end, words)
    if end - at >= BLOCK_BYTES - 8:  # the length takes a block of its own
        a, b, c, d = _mix(words, a, b, c, d)
        for i in range(N_WORDS):
            words[i] = 0
    n_bits = (end - start) << 3
    words[14], words[15] = n_bits & _WORD, n_bits >> 32
    a, b, c, d = _mix(words, a, b, c, d)
    return _joined(a, b), _joined(c, d)
