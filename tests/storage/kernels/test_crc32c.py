"""Every implementation of the checksum, including those that this processor does not prefer."""

from collections.abc import Callable

import numpy as np
import pytest

from segmentlog.kernels import _crc_block, crc32c
from segmentlog.kernels._jit import kernel
from segmentlog.testing.reference import crc32c as bit_by_bit

#: More than two whole blocks; the largest block has 16 KiB.
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
    """The reference computes bit by bit, and is too slow for the sizes in the tests below."""
    for n in (0, 1, 7, 8, 9, 300, 5000):
        assert bit_by_bit(DATA[:n].tobytes()) == PORTABLE(DATA, 0, n)


@pytest.mark.parametrize("way", [by_words, by_vectors])
def test_every_length(way: Callable[..., int]) -> None:
    """Lengths go from zero to several lines of all streams, and lie around the largest blocks."""
    checksum = kernel(way)
    largest = [64 * 128, 64 * 256]
    near = [size * n + extra for size in largest for n in (1, 2) for extra in range(-9, 10)]
    for n in (*range(1300), *near):
        for start in (0, 3, 64):
            assert PORTABLE(DATA, start, start + n) == checksum(DATA, start, start + n), (start, n)


@pytest.mark.parametrize("way", [by_words, by_vectors])
def test_every_bit_counts(way: Callable[..., int]) -> None:
    """A change of any single bit changes the checksum."""
    checksum = kernel(way)
    data = DATA[:2000].copy()
    whole = checksum(data, 0, len(data))
    for at in range(len(data)):
        data[at] ^= 1 << (at % 8)
        assert whole != checksum(data, 0, len(data))
        data[at] ^= 1 << (at % 8)
