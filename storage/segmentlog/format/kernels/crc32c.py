"""CRC-32C (Castagnoli) over a byte range, for kernels that check many batches a call.

Here are also reflected 32-bit checksums of any polynomial from tables, eight bytes at a time
("slicing by eight").
"""

import numpy as np
from numpy.typing import NDArray

from segmentlog.format.kernels.memory import Bytes
from segmentlog.native import inlined, kernel

CASTAGNOLI = 0x82F63B78  #: the polynomial of CRC-32C, bits reversed

_U8 = np.uint64(8)
_BYTE = np.uint64(0xFF)
_ONES = np.uint64(0xFFFFFFFF)


def byte_tables(polynomial: int) -> NDArray[np.uint64]:
    """Row k holds the raw checksum of each byte with k zero bytes after it; shape (8, 256).

    Parameters
    ----------
    polynomial : with its bits reversed.
    """
    crcs = np.arange(256, dtype=np.uint64)
    for _ in range(8):
        odd = (crcs & np.uint64(1)).astype(bool)
        crcs = (crcs >> np.uint64(1)) ^ np.where(odd, np.uint64(polynomial), np.uint64(0))
    rows = [crcs]
    while len(rows) < 8:
        rows.append(rows[0][(rows[-1] & _BYTE).astype(np.intp)] ^ (rows[-1] >> _U8))
    return np.stack(rows)


def powers_of_x(polynomial: int, exponents: range) -> list[int]:
    """Powers of x, to rising `exponents`, modulo the `polynomial`; bits reversed."""
    found, power = [], 1 << 31
    for exponent in range(exponents[-1] + 1):
        if exponent in exponents:
            found.append(power)
        power = (power >> 1) ^ (polynomial if power & 1 else 0)
    return found


@inlined
def checksum_by_table(buf: Bytes, start: int, end: int, tables: NDArray[np.uint64]) -> np.int64:
    """Checksum of ``buf[start:end]`` by the `tables` of its polynomial; to call from kernels."""
    crc = _ONES
    at = start
    while at + 8 <= end:
        word = crc
        for i in range(4):
            word ^= np.uint64(buf[at + i]) << np.uint64(8 * i)
        crc = np.uint64(0)
        for i in range(4):
            crc ^= tables[7 - i, (word >> np.uint64(8 * i)) & _BYTE]
            crc ^= tables[3 - i, np.uint64(buf[at + 4 + i])]
        at += 8
    while at < end:
        crc = tables[0, (crc ^ np.uint64(buf[at])) & _BYTE] ^ (crc >> _U8)
        at += 1
    return np.int64(crc ^ _ONES)


def crc32c(buf: Bytes, start: int, end: int) -> int:
    """Checksum of ``buf[start:end]``, as a number from 0 to 2**32 - 1; to call from kernels."""
    import crc32c as package  # a build has numpy alone

    return int(package.crc32c(buf[start:end].data))


@kernel
def checksum(buf: Bytes, start: int, end: int) -> int:
    """`crc32c` of ``buf[start:end]``, to call from Python.

    Parameters
    ----------
    buf : uint8 array, shape (n_bytes,); read only
    start, end : half-open byte range; ``0 <= start <= end <= n_bytes``, checked by the caller
    """
    return crc32c(buf, start, end)
