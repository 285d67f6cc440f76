"""Varints of every length are read and written as Kafka does it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from segmentlog.format.kernels.varint import FAILED, read_varint, read_varlong, varint_word
from segmentlog.testing.reference import zigzag

READ_INT: Callable[..., Any] = read_varint
READ_LONG: Callable[..., Any] = read_varlong


def test_words_are_the_bytes_of_the_reference() -> None:
    """The numbers lie around each number that needs one more bit or byte."""
    for bits in range(56):
        for groups in {2**bits - 1, 2**bits, 2**bits + 1} - {2**56}:
            word, n_bytes = varint_word(groups)
            number = (groups >> 1) ^ -(groups & 1)

            assert zigzag(number) == int(word).to_bytes(8, "little")[:n_bytes], groups
            assert int(word) >> (8 * n_bytes) == 0


@pytest.mark.parametrize(
    ("encoded", "expected"),
    [
        ("00", 0),
        ("01", -1),
        ("02", 1),
        ("7e", 63),
        ("7f", -64),
        ("8001", 64),
        ("808001", 8192),
        ("feffffff0f", 2**31 - 1),
        ("ffffffff0f", -(2**31)),
    ],
)
def test_varints_of_the_format_are_read(encoded: str, expected: int) -> None:
    """Kafka's own vectors are read as an int and as a long."""
    buf = np.frombuffer(bytes.fromhex(encoded), np.uint8)

    assert (expected, len(buf)) == READ_INT(buf, 0, len(buf))
    assert (expected, len(buf)) == READ_LONG(buf, 0, len(buf))
    assert zigzag(expected) == buf.tobytes()
    assert READ_INT(buf, 0, len(buf) - 1)[1] == FAILED


def test_a_varint_that_does_not_end_fails() -> None:
    """An int has at most five bytes, and a long has at most ten."""
    buf = np.full(12, 0xFF, np.uint8)
    largest = np.frombuffer(bytes.fromhex("feffffffffffffffff01"), np.uint8)

    assert READ_INT(buf, 0, 12)[1] == FAILED
    assert READ_LONG(buf, 0, 12)[1] == FAILED
    assert (2**63 - 1, 10) == READ_LONG(largest, 0, 10)
