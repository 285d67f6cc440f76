"""Each way to a checksum, also those that this processor would not choose."""

from collections.abc import Callable

import numpy as np
import pytest

from segmentlog.kernels import _crc_block, crc32c
from segmentlog.kernels._jit import kernel
from segmentlog.testing.reference import crc32c as bit_by_bit

#: Two whole blocks and more, the largest of which has 16 KiB.
DATA = np.random.default_rng(1).integers(0, 256, 40_000, dtype=np.uint8)
PORTABLE = kernel(crc32c._crc32c_portable)

by_words = pytest.param(
    crc32c._crc32c_words,
    marks=pytest.mark.skipif(not _crc_block.HAS_WORDS, reason="needs SSE 4.2 and PCLMULQDQ"),
)
by_vectors = pytest.param(
    crc32c._crc32c_vectors,
    marks=pytest.mark.skipif(not _crc_block.HAS_VECTORS, reason="needs AVX2 and VPCLMULQDQ"),
)


def test_tables_agree_with_the_reference() -> None:
    """The reference goes bit by bit: too slow for the sizes that are compared below."""
    for n in (0, 1, 7, 8, 9, 300, 5000):
        assert bit_by_bit(DATA[:n].tobytes()) == PORTABLE(DATA, 0, n)


@pytest.mark.parametrize("way", [by_words, by_vectors])
def test_every_length(way: Callable[..., int]) -> None:
    """From nothing to several lines of all streams, and around the largest blocks."""
    checksum = kernel(way)
    largest = [64 * 128, 64 * 256]
    near = [size * n + extra for size in largest for n in (1, 2) for extra in range(-9, 10)]
    for n in (*range(1300), *near):
        for start in (0, 3, 64):
            assert PORTABLE(DATA, start, start + n) == checksum(DATA, start, start + n), (start, n)


@pytest.mark.parametrize("way", [by_words, by_vectors])
def test_every_bit_counts(way: Callable[..., int]) -> None:
    """The checksum with any one bit of a stream turned is another one."""
    checksum = kernel(way)
    data = DATA[:2000].copy()
    whole = checksum(data, 0, len(data))
    for at in range(len(data)):
        data[at] ^= 1 << (at % 8)
        assert whole != checksum(data, 0, len(data))
        data[at] ^= 1 << (at % 8)
