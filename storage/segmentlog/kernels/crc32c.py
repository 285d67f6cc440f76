"""CRC-32C (Castagnoli) over a byte range, for kernels that check many batches a call.

x86 has instructions for it, which work in blocks (`_crc_block`).  A block is as large as the bytes
allow, because joining the streams of a block costs the same for every size.  With streams of one
length, 64 bytes or 1 KiB, the joins took a third of the time.  Other processors take eight bytes
at a time from tables.
"""

import numpy as np
from numba.extending import overload

from segmentlog.kernels import _crc_block, _llvm
from segmentlog.kernels._jit import kernel
from segmentlog.kernels.crc_tables import CASTAGNOLI, byte_tables, checksum_by_table
from segmentlog.kernels.memory import Bytes

__all__ = ["checksum", "crc32c"]

_ONES = np.uint64(0xFFFFFFFF)
_MOST_LINES = 64  # of a stream: blocks of 16 KiB with vectors
_JOINTS = np.array([0, *_crc_block.joints(_MOST_LINES)], np.uint64)  # by the number of lines
_TABLES = byte_tables(CASTAGNOLI)


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
        while at + 8 <= end:
            crc = _llvm.x86_crc32_u64(crc, _llvm.load_le64(buf, at))
            at += 8
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


@overload(crc32c)
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
