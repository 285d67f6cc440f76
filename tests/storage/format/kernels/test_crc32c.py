"""The checksum is compared with another implementation, for lengths around all of its blocks."""

import crc32c as package
import numpy as np

from segmentlog.format.kernels.crc32c import checksum

#: More than two whole blocks; the largest block has 16 KiB.
DATA = np.random.default_rng(1).integers(0, 256, 40_000, dtype=np.uint8)


def bit_by_bit(data: bytes) -> int:
    """Castagnoli checksum of `data`, as its polynomial defines it; slow."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_the_package_agrees_with_the_polynomial() -> None:
    """The package is what the tests below, and `segmentlog.testing.reference`, compare with."""
    for n in (*range(70), 300, 5000):
        assert bit_by_bit(DATA[:n].tobytes()) == package.crc32c(DATA[:n].data)


def test_every_length() -> None:
    """Lengths go from zero to several lines of all streams, and lie around the largest blocks."""
    largest = [64 * 128, 64 * 256]
    near = [size * n + extra for size in largest for n in (1, 2) for extra in range(-9, 10)]
    for n in (*range(1300), *near):
        for start in (0, 3, 64):
            assert package.crc32c(DATA[start : start + n].data) == checksum(
                DATA, start, start + n
            ), n


def test_every_bit_counts() -> None:
    """A change of any single bit changes the checksum."""
    data = DATA[:2000].copy()
    whole = checksum(data, 0, len(data))
    for at in range(len(data)):
        data[at] ^= 1 << (at % 8)
        assert whole != checksum(data, 0, len(data))
        data[at] ^= 1 << (at % 8)
