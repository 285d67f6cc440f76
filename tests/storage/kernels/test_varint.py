"""Varints as words: what the plain reference writes, at every length."""

import pytest

from segmentlog.kernels.varint import varint_word
from segmentlog.testing.reference import zigzag


@pytest.mark.parametrize("word_of", [varint_word, varint_word.py_func], ids=["compiled", "plain"])
def test_words_are_the_bytes_of_the_reference(word_of) -> None:
    """On both sides of every number at which one byte or one bit more is needed."""
    for bits in range(56):
        for groups in {2**bits - 1, 2**bits, 2**bits + 1} - {2**56}:
            word, n_bytes = word_of(groups)
            number = (groups >> 1) ^ -(groups & 1)

            assert zigzag(number) == word.to_bytes(8, "little")[:n_bytes], groups
            assert word >> (8 * n_bytes) == 0
