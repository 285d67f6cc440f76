"""MD5 against the standard library's."""

import hashlib

import numpy as np
import pytest

from segmentlog.kernels.md5 import N_WORDS, md5


@pytest.mark.parametrize("is_compiled", [True, False])
def test_md5(is_compiled: bool) -> None:
    """Lengths around the ends of blocks, anywhere in a buffer."""
    digest = md5 if is_compiled else md5.py_func
    data = bytes(i * 7 % 256 for i in range(300))
    buf, words = np.frombuffer(bytearray(data), np.uint8), np.zeros(N_WORDS, np.int64)
    for start, length in [(s, n) for s in (0, 3) for n in (*range(70), 119, 120, 128, 200)]:
        end = start + length
        halves = digest(buf, start, end, words)

        found = b"".join(int(half).to_bytes(8, "little", signed=True) for half in halves)
        assert hashlib.md5(data[start:end], usedforsecurity=False).digest() == found
