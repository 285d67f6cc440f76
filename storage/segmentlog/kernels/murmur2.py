"""Kafka's hash of keys (``org.apache.kafka.common.utils.Utils.murmur2``)."""

import numpy as np

from segmentlog.kernels._jit import kernel
from segmentlog.kernels.memory import Bytes, load_u8, load_u32

__all__ = ["murmur2"]

_SEED, _M = np.uint64(0x9747B28C), np.uint64(0x5BD1E995)
_LOW = np.uint64(0xFFFFFFFF)
_8, _13, _15, _16, _24 = (np.uint64(n) for n in (8, 13, 15, 16, 24))


@kernel
def murmur2(data: Bytes, start: int, end: int) -> int:
    """Hash of ``data[start:end]``, from 0 to 2**32 - 1: Java's int, unsigned.

    Parameters
    ----------
    data : uint8 array, shape (n_bytes,); read only
    start, end : half-open byte range; ``0 <= start <= end <= n_bytes``, checked by the caller
    """
    # 64-bit words hold the products of 32-bit ones, also in plain Python.
    mixed = _SEED ^ np.uint64(end - start)
    at = start
    while at + 4 <= end:
        word = (load_u32(data, at) * _M) & _LOW
        word = ((word ^ (word >> _24)) * _M) & _LOW
        mixed = ((mixed * _M) & _LOW) ^ word
        at += 4
    if at < end:
        if at + 2 < end:
            mixed ^= np.uint64(load_u8(data, at + 2)) << _16
        if at + 1 < end:
            mixed ^= np.uint64(load_u8(data, at + 1)) << _8
        mixed = ((mixed ^ np.uint64(load_u8(data, at))) * _M) & _LOW
    mixed = ((mixed ^ (mixed >> _13)) * _M) & _LOW
    return int(mixed ^ (mixed >> _15))
