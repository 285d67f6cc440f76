"""CRC-32C (Castagnoli) over a byte range, for kernels that check many batches a call."""

from segmentlog.format.kernels.memory import Bytes
from segmentlog.native import kernel


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
