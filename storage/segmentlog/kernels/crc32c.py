"""CRC-32C (Castagnoli) over a byte range, for kernels that check many batches a call.

One stream of x86's crc32 instruction waits three cycles for its own result; four streams over
neighbouring blocks run side by side and are then joined.  Joining moves a checksum past the
bytes of the blocks behind it, which is linear over bits: four look-ups in a table made once for
each block length.  Processors without the instruction take eight bytes at a time from tables.
"""

import numpy as np
from numba.extending import overload
from numpy.typing import NDArray

from segmentlog.kernels import _llvm
from segmentlog.kernels._jit import inlined, kernel
from segmentlog.kernels.crc_tables import append_zero_byte, byte_tables, checksum_by_table
from segmentlog.kernels.memory import Bytes

__all__ = ["checksum", "crc32c"]

_POLYNOMIAL = 0x82F63B78  # Castagnoli, bits reversed
_LONG = 1024  # bytes that a stream takes in one round of four, while 4 KiB are left
_SHORT = 64  # the same while 256 bytes are left

_U8, _U16, _U24, _U32 = np.uint64(8), np.uint64(16), np.uint64(24), np.uint64(32)
_BYTE = np.uint64(0xFF)
_ONES = np.uint64(0xFFFFFFFF)


_TABLES = byte_tables(_POLYNOMIAL)


def _shift_tables(n_bytes: int) -> NDArray[np.uint32]:
    """What `n_bytes` of zero make of a checksum, by each of its four bytes; shape (4, 256)."""
    parts = np.arange(256, dtype=np.uint64)[None, :] << np.array([[0], [8], [16], [24]], np.uint64)
    for _ in range(n_bytes):
        parts = append_zero_byte(parts, _TABLES[0])
    return parts.astype(np.uint32)


_SHIFT_LONG = _shift_tables(_LONG)
_SHIFT_SHORT = _shift_tables(_SHORT)


@inlined
def _shift(crc, tables):
    return np.uint64(
        tables[0, crc & _BYTE]
        ^ tables[1, (crc >> _U8) & _BYTE]
        ^ tables[2, (crc >> _U16) & _BYTE]
        ^ tables[3, (crc >> _U24) & _BYTE]
    )


@inlined
def _four_streams(crc, buf, at, n, tables):
    second = third = fourth = np.uint64(0)
    for line in range(at, at + n, 64):
        for ahead in range(4, 8):
            _llvm.prefetch(buf, line + ahead * n)
        for i in range(line, line + 64, 8):
            crc = _llvm.x86_crc32_u64(crc, _llvm.load_le64(buf, i))
            second = _llvm.x86_crc32_u64(second, _llvm.load_le64(buf, i + n))
            third = _llvm.x86_crc32_u64(third, _llvm.load_le64(buf, i + 2 * n))
            fourth = _llvm.x86_crc32_u64(fourth, _llvm.load_le64(buf, i + 3 * n))
    crc = _shift(crc, tables) ^ second
    crc = _shift(crc, tables) ^ third
    return _shift(crc, tables) ^ fourth


def _crc32c_x86(buf, start, end):
    crc = _ONES
    at = start
    while at + 4 * _LONG <= end:
        crc = _four_streams(crc, buf, at, _LONG, _SHIFT_LONG)
        at += 4 * _LONG
    while at + 4 * _SHORT <= end:
        crc = _four_streams(crc, buf, at, _SHORT, _SHIFT_SHORT)
        at += 4 * _SHORT
    while at + 8 <= end:
        crc = _llvm.x86_crc32_u64(crc, _llvm.load_le64(buf, at))
        at += 8
    while at < end:
        crc = _llvm.x86_crc32_u8(crc, np.uint64(buf[at]))
        at += 1
    return np.int64(crc ^ _ONES)


def _crc32c_portable(buf, start, end):
    return checksum_by_table(buf, start, end, _TABLES)


def crc32c(buf: Bytes, start: int, end: int) -> int:
    """Checksum of ``buf[start:end]``, as a number from 0 to 2**32 - 1; to call from kernels."""
    return int(_crc32c_portable(buf, start, end))


@overload(crc32c)
def _crc32c(buf, start, end):
    return _crc32c_x86 if _llvm.HAS_X86_CRC32 else _crc32c_portable


@kernel
def checksum(buf: Bytes, start: int, end: int) -> int:
    """`crc32c` of ``buf[start:end]``, to call from Python.

    Parameters
    ----------
    buf : uint8 array, shape (n_bytes,); read only
    start, end : half-open byte range; ``0 <= start <= end <= n_bytes``, checked by the caller
    """
    return crc32c(buf, start, end)
