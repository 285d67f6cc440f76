"""MD5 of several keys at once, by which compaction tells keys apart.

A caller puts keys into lanes, and what it has to say about each of them into rows of its own.
`hash_lanes` then hashes them together.  A key of more than one block is hashed when it is put.
"""

import numpy as np
from numba.extending import overload

from segmentlog.kernels import _md5_vectors
from segmentlog.kernels._jit import inlined, kernel
from segmentlog.kernels._md5_vectors import BLOCK_BYTES, N_LANES
from segmentlog.kernels.md5 import md5
from segmentlog.kernels.memory import Bytes, Int64s, load_u8, load_u64, store_u64

__all__ = [
    "AT",
    "BLOCKS_BYTES",
    "HASH_0",
    "HASH_1",
    "LANE_ROWS",
    "N_LANES",
    "OFFSET",
    "hash_lanes",
    "put_key",
]

#: Bytes of the blocks of all lanes.
BLOCKS_BYTES = N_LANES * BLOCK_BYTES

# The rows of lanes.
HASH_0 = 0
HASH_1 = 1
OFFSET = 2  #: of the record; the caller's
AT = 3  #: what else the caller notes
_IS_LONG = 4
_LONG_0 = 5
_LONG_1 = 6
_WORDS = 7
LANE_ROWS = 8

_LENGTH_AT = BLOCK_BYTES - 8
_MOST_BYTES = _LENGTH_AT - 1  #: of a message that fits one block
_ENDS_MESSAGE = np.uint64(0x80)


def _hash_blocks(blocks: Bytes, hashes: Int64s) -> None:
    """MD5 of the messages in all blocks, to the first two rows of lanes."""
    words = blocks.view("<u4").reshape(N_LANES, -1).T
    a, b, c, d = (np.full(N_LANES, word, np.uint32) for word in _md5_vectors.START)
    for step in range(64):
        if step < 16:
            mixed = d ^ (b & (c ^ d))
        elif step < 32:
            mixed = c ^ (d & (b ^ c))
        else:
            mixed = b ^ c ^ d if step < 48 else c ^ (b | ~d)
        turn = np.uint32(_md5_vectors.TURNS[step // 16][step % 4])
        sine = np.uint32(_md5_vectors.SINES[step])
        total = a + mixed + words[_md5_vectors.place_of_word(step)] + sine
        a, b, c, d = d, ((total << turn) | (total >> (np.uint32(32) - turn))) + b, b, c
    state = [
        each + np.uint32(word) for each, word in zip((a, b, c, d), _md5_vectors.START, strict=True)
    ]
    for row, (low, high) in ((HASH_0, state[:2]), (HASH_1, state[2:])):
        hashes[row] = np.stack([low, high], 1).view(np.int64)[:, 0]


@overload(_hash_blocks)
def _hash_blocks_compiled(blocks, hashes):
    return lambda blocks, hashes: _md5_vectors.hash_blocks(blocks, hashes)


@inlined
def put_key(blocks: Bytes, lanes: Int64s, lane: int, buf: Bytes, start: int, end: int) -> None:
    """Put the key ``buf[start:end]`` into a lane.

    Parameters
    ----------
    blocks : uint8 array, shape (`BLOCKS_BYTES`,); written
    lanes : int64 array, shape (`LANE_ROWS`, `N_LANES`); written
    lane : below `N_LANES`
    buf : uint8 array, shape (n_bytes,); read only
    start, end : half-open byte range; ``0 <= start <= end <= n_bytes``, checked by the caller
    """
    length = end - start
    lanes[_IS_LONG, lane] = 0
    if length > _MOST_BYTES:
        lanes[_IS_LONG, lane] = 1
        lanes[_LONG_0, lane], lanes[_LONG_1, lane] = md5(buf, start, end, lanes[_WORDS])
        return
    to, at = lane * BLOCK_BYTES, start
    length_at = to + _LENGTH_AT
    while at + 8 <= end:
        store_u64(blocks, to, load_u64(buf, at))
        at += 8
        to += 8
    n_left = end - at
    word = np.uint64(0)
    if n_left > 0:
        if length >= 8:  # the last bytes, of which some are there already
            word = load_u64(buf, end - 8) >> np.uint64(64 - 8 * n_left)
        else:
            for i in range(n_left):
                word |= np.uint64(load_u8(buf, at + i)) << np.uint64(8 * i)
    store_u64(blocks, to, word | (_ENDS_MESSAGE << np.uint64(8 * n_left)))
    to += 8
    while to < length_at:
        store_u64(blocks, to, np.uint64(0))
        to += 8
    store_u64(blocks, length_at, np.uint64(8 * length))


@kernel
def hash_lanes(blocks: Bytes, lanes: Int64s, n_keys: int) -> None:
    """Fill the rows `HASH_0` and `HASH_1` of the first lanes, as `md5` returns its two numbers.

    Parameters
    ----------
    blocks, lanes : see `put_key`
    n_keys : lanes that hold keys; the others get a number without a meaning
    """
    _hash_blocks(blocks, lanes)
    for lane in range(n_keys):
        if lanes[_IS_LONG, lane] != 0:
            lanes[HASH_0, lane] = lanes[_LONG_0, lane]
            lanes[HASH_1, lane] = lanes[_LONG_1, lane]
