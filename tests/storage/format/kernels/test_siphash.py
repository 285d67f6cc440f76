"""SipHash is compared with its authors' vectors, and compiled code with plain Python."""

import numpy as np

from segmentlog.format.kernels import offset_map
from segmentlog.format.kernels.offset_map import SECRET_BYTES, siphash

#: ``vectors_sip128`` of the reference implementation, by length of the message.  The bytes of the
#: secret and of each message count up from zero.
VECTORS = {
    0: "a3817f04ba25a8e66df67214c7550293",
    1: "da87c1d86b99af44347659119b22fc45",
    2: "8177228da4a45dc7fca38bdef60affe4",
    3: "9c70b60c5267a94e5f33b6b02985ed51",
    4: "f88164c12d9c8faf7d0f6e7c7bcd5579",
    5: "1368875980776f8854527a07690e9627",
    6: "14eeca338b208613485ea0308fd7a15e",
    7: "a1f1ebbed8dbc153c0b84aa61ff08239",
    8: "3b62a9ba6258f5610f83e264f31497b4",
    9: "264499060ad9baabc47f8b02bb6d71ed",
    15: "5493e99933b0a8117e08ec0f97cfc3d9",
    16: "6ee2a4ca67b054bbfd3315bf85230577",
    17: "473d06e8738db89854c066c47ae47740",
    31: "2939b0183223fafc1723de4f52c43d35",
    63: "5150d1772f50834a503e069a973fbd7c",
}


def compiled(buf, start, end, secret):
    """The hash that a map of one key has kept: only kernels call the compiled function."""
    table = np.zeros((2, offset_map.ENTRY_COLUMNS), np.int64)
    state = np.zeros(offset_map.STATE_COLUMNS, np.int64)
    state[offset_map.MOST_KEYS] = 1
    waiting = np.zeros((offset_map.N_WAITING, offset_map.WAITING_COLUMNS), np.int64)
    key = buf[start:end].copy()
    offset_map.put_all(key, np.array([len(key)]), 1, table, state, secret, waiting)
    (row,) = np.flatnonzero(table[:, -1])
    return int(table[row, 0]), int(table[row, 1])


def digest(halves) -> str:
    """Both halves of a hash in the byte order of the reference implementation."""
    return b"".join(int(half).to_bytes(8, "little", signed=True) for half in halves).hex()


def test_vectors_of_the_authors() -> None:
    """Compiled code and plain Python give the published hashes."""
    counting = np.arange(64, dtype=np.uint8)
    for hashed in (compiled, siphash):
        found = {n: digest(hashed(counting, 0, n, counting[:16])) for n in VECTORS}
        assert VECTORS == found


def test_compiled_as_in_plain_python() -> None:
    """Compiled code and plain Python agree for each length, at any place of a buffer."""
    rng = np.random.default_rng(1)
    for length in [*range(40), 255, 256, 257, 1000]:
        start = length % 5
        buf = rng.integers(0, 256, start + length, np.uint8)
        secret = rng.integers(0, 256, SECRET_BYTES, np.uint8)
        place = (buf, start, start + length, secret)

        assert siphash(*place) == compiled(*place), length


def test_each_bit_of_the_secret_counts() -> None:
    """A secret that differs in one bit gives another hash of the same key."""
    key, secret = np.arange(16, dtype=np.uint8), np.zeros(SECRET_BYTES, np.uint8)
    seen = {digest(compiled(key, 0, 16, secret))}
    for bit in range(8 * SECRET_BYTES):
        other = secret.copy()
        other[bit // 8] = 1 << bit % 8
        seen.add(digest(compiled(key, 0, 16, other)))
    assert 8 * SECRET_BYTES + 1 == len(seen)
