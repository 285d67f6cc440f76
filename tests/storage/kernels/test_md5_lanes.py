"""MD5 of several keys at once against the standard library's."""

import hashlib

import numpy as np
import pytest

from segmentlog.kernels import md5_lanes
from segmentlog.kernels._jit import kernel
from segmentlog.kernels.md5_lanes import HASH_0, HASH_1, N_LANES, hash_lanes, put_key
from segmentlog.kernels.memory import Bytes, Int64s


@kernel
def put_compiled(blocks, lanes, lane, buf, start, end):
    """A kernel that is inlined compiles into another one only."""
    put_key(blocks, lanes, lane, buf, start, end)


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize("n_keys", [1, 3, N_LANES])
def test_keys_side_by_side(n_keys: int, is_compiled: bool) -> None:
    """Lengths below and above a block, in each lane, at the end of a buffer, after other keys."""
    put = put_compiled if is_compiled else put_key.py_func
    hash_them = hash_lanes if is_compiled else hash_lanes.py_func
    data = bytes(i * 7 % 256 for i in range(130))
    blocks: Bytes = np.full(md5_lanes.BLOCKS_BYTES, 255, np.uint8)
    lanes: Int64s = np.full((md5_lanes.LANE_ROWS, N_LANES), -1, np.int64)
    lengths = [*range(70), 119, 120, 128, 0, 55, 56, 8]
    for first in range(0, len(lengths) - n_keys + 1, 5):
        keys = [data[len(data) - length :] for length in lengths[first : first + n_keys]]
        for lane, key in enumerate(keys):
            buf = np.frombuffer(bytearray(b"x" * lane + key), np.uint8)
            put(blocks, lanes, lane, buf, lane, lane + len(key))
        hash_them(blocks, lanes, n_keys)

        for lane, key in enumerate(keys):
            found = lanes[[HASH_0, HASH_1], lane].tobytes()
            assert hashlib.md5(key, usedforsecurity=False).digest() == found, (lane, len(key))
