"""CRC-32C (Castagnoli) over a byte range, for kernels that check many batches a call.

x86 has instructions for it, which work in blocks (`_crc_block`).  A block is as large as the bytes
allow, because joining the streams of a block costs the same for every size.  With streams of one
length, 64 bytes or 1 KiB, the joins took a third of the time.  Other processors take eight bytes
at a time from tables.
"""

import numpy as np
from numba.extending import overload

from segmentlog.kernels import _crc_block, _llvm
from segmentlog.kernels._jit import inlined, kernel
from segmentlog.kernels.crc_tables import CASTAGNOLI, byte_tables, checksum_by_table
from segmentlog.kernels.memory import Bytes

__all__ = ["checksum", "crc32c"]

_ONES, _ZERO = np.uint64(0xFFFFFFFF), np.uint64(0)
_ONE_BIT, _EIGHT_BITS, _ALL_BUT_ONE_BIT = np.uint64(1), np.uint64(8), np.uint64(63)
_MOST_LINES = 64  # of a stream: blocks of 16 KiB with vectors
_JOINTS = np.array([0, *_crc_block.joints(_MOST_LINES)], np.uint64)  # by the number of lines
_MOST_WORDS = 31  # after the blocks, the smallest of which has 32 words or 16
_LEAST_WORDS = 9  # for streams side by side: with fewer, joining them takes longer than it saves
_WORD_JOINTS = np.array([0, *_crc_block.joints(_MOST_WORDS, 8)], np.uint64)
_TABLES = byte_tables(CASTAGNOLI)


@inlined
def _take_words(buf, at, n_words, crc):
    """Raw checksum after up to `_MOST_WORDS` words: three streams, joined at once."""
    n = 0
    if n_words >= _LEAST_WORDS:
        n = n_words // 3
        second = third = _ZERO
        for begin in range(at, at + 8 * n, 8):
            crc = _llvm.x86_crc32_u64(crc, _llvm.load_le64(buf, begin))
            second = _llvm.x86_crc32_u64(second, _llvm.load_le64(buf, begin + 8 * n))
            third = _llvm.x86_crc32_u64(third, _llvm.load_le64(buf, begin + 16 * n))
        product = _crc_block.multiply(crc, _WORD_JOINTS[2 * n])
        product ^= _crc_block.multiply(second, _WORD_JOINTS[n])
        crc = _llvm.x86_crc32_u64(_ZERO, product) ^ third
    for begin in range(at + 24 * n, at + 8 * n_words, 8):
        crc = _llvm.x86_crc32_u64(crc, _llvm.load_le64(buf, begin))
    return crc


@inlined
def _take_tail(buf, end, n_bytes, crc):
    """Raw checksum after the last bytes, fewer than eight, of eight or more."""
    # The tail is the upper bytes of a word.  The checksum's bytes are added to the first of them,
    # and what the tail is too short for comes out as it is.
    n_bits = _EIGHT_BITS * np.uint64(n_bytes)
    above = _ALL_BUT_ONE_BIT - n_bits
    word = _llvm.load_le64(buf, end - 8) >> above >> _ONE_BIT
    return _llvm.x86_crc32_u64(_ZERO, (word ^ crc) << above << _ONE_BIT) ^ (crc >> n_bits)


def _by_instructions(checksum_block, n_streams):
    """Extend the function of a block to any range; `n_streams` lines make the smallest block."""
    line_bytes = n_streams * _crc_block.LINE_BYTES

    def checksum_range(buf, start, end):
        crc = _ONES
        at = start
        while at + line_bytes <= end:
            n_lines = min((end - at) // line_bytes, _MOST_LINES)
            crc = checksum_block(buf, at, n_lines, _JOINTS[n_lines], crc)
            at += n_lines * line_bytes
        n_words = (end - at) >> 3
        crc = _take_words(buf, at, n_words, crc)
        at += 8 * n_words
        if end - start >= 8:
            return np.int64(_take_tail(buf, end, end - at, crc) ^ _ONES)
        while at < end:
            crc = _llvm.x86_crc32_u8(crc, np.uint64(buf[at]))
            at += 1
        return np.int64(crc ^ _ONES)

    return checksum_range


_crc32c_vectors = _by_instructions(_crc_block.block_by_vectors, 8)
_crc32c_words = _by_instructions(_crc_block.block_by_words, 4)


def _crc32c_portable(buf, start, end):
    return checksum_by_table(buf, start, end, _TABLES)


def crc32c(buf: Bytes, start: int, end: int) -> int:
    """Checksum of ``buf[start:end]``, as a number from 0 to 2**32 - 1; to call from kernels."""
    return int(_crc32c_portable(buf, start, end))


@overload(crc32c, jit_options={"forceinline": True})
def _crc32c(buf, start, end):
    if _crc_block.HAS_VECTORS:
        return _crc32c_vectors
    return _crc32c_words if _crc_block.HAS_WORDS else _crc32c_portable


@kernel
def checksum(buf: Bytes, start: int, end: int) -> int:
    """`crc32c` of ``buf[start:end]``, to call from Python.

    Parameters
    ----------
    buf : uint8 array, shape (n_bytes,); read only
    start, end : half-open byte range; ``0 <= start <= end <= n_bytes``, checked by the caller
    """
    return crc32c(buf, start, end)
