"""Flat records of Avro as cells: a plain reading of each record finds the same.

Records, and all that is written, end before a page that can be neither read nor written.
"""

import pytest
from new_process import run

SCRIPT = """
import ctypes, hashlib, mmap, random, struct
import numpy as np
from segmentlog.format.kernels.memory import COPY_SLACK
from segmentlog.format.kernels.serialized import (
    BOOLEAN, DOUBLE, FLOAT, INT, LONG, TEXT, copy_texts, read_flat_records, read_frame_ids
)

PAGE, PAGES = mmap.PAGESIZE, 16
libc = ctypes.CDLL(None, use_errno=True)

class Guarded:
    def __init__(self):
        memory = mmap.mmap(-1, (PAGES + 1) * PAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        assert libc.mprotect(ctypes.c_void_p(start + PAGES * PAGE), PAGE, 0) == 0
        self.whole = np.frombuffer(memory, np.uint8)[: PAGES * PAGE]

    def place(self, items):
        data = items.tobytes()
        part = self.whole[len(self.whole) - len(data) :]
        part[:] = np.frombuffer(data, np.uint8)
        return part.view(items.dtype)

guarded = [Guarded() for _ in range(6)]
rng = random.Random(11)

def varint(number):
    groups, made = (number << 1 ^ number >> 63) & 2**64 - 1, bytearray()
    while groups > 127:
        made.append(groups & 127 | 128)
        groups >>= 7
    return bytes([*made, groups])

def a_long():
    return rng.choice([rng.randrange(-70, 70), rng.randrange(-(2**34), 2**34),
                       rng.randrange(-(2**63), 2**63), -(2**63), 2**63 - 1, -(2**31) - 1, 2**31])

def written(kind):
    if kind == BOOLEAN:
        return bytes([rng.randrange(2)])
    if kind == INT:
        return varint(rng.choice([0, -1, 2**31 - 1, -(2**31), rng.randrange(-9999, 9999)]))
    if kind == LONG:
        return varint(a_long())
    if kind in (FLOAT, DOUBLE):
        return rng.randbytes(4 if kind == FLOAT else 8)
    text = rng.randbytes(rng.choice([0, 1, 7, 31, 32, 33, 63, 64, 65, 200, 256, 257]))
    return varint(len(text)) + text

# The plain reading: what it returns for a field is a number or a text; it raises if it cannot.
def read_varint(data, at):
    groups = 0
    for n in range(10):
        groups |= (data[at + n] & 127) << 7 * n
        if data[at + n] < 128:
            assert groups < 2**64
            return (groups >> 1) ^ -(groups & 1), at + n + 1
    raise AssertionError

def read(data, at, kind):
    if kind == BOOLEAN:
        assert data[at] < 2
        return data[at], at + 1
    if kind in (INT, LONG):
        number, at = read_varint(data, at)
        assert kind == LONG or -(2**31) <= number < 2**31
        return number, at
    if kind == FLOAT:
        return struct.unpack_from("<I", data, at)[0], at + 4
    if kind == DOUBLE:
        return struct.unpack_from("<q", data, at)[0], at + 8
    n_bytes, at = read_varint(data, at)
    assert 0 <= n_bytes <= len(data) - at
    return data[at : at + n_bytes], at + n_bytes

def plain(data, fields):
    at, cells = 0, []
    try:
        for kind, of_value, of_null in fields:
            found = of_value
            if of_value >= 0:
                found, at = read_varint(data, at)
                assert found in (of_value, of_null)
            cell, at = read(data, at, kind) if found == of_value else (None, at)
            cells.append(cell)
    except (AssertionError, IndexError, struct.error):
        return None
    return cells

seen, printed = {"read": 0, "left out": 0, "null": 0}, hashlib.sha256()
for _ in range(ROUNDS):
    fields = []
    for _ in range(rng.randrange(1, 7)):
        branches = rng.choice([(-1, -1), (-1, -1), (0, 1), (1, 0), (0, -1)])
        fields.append((rng.randrange(6), *branches))
    records = []
    for _ in range(rng.randrange(0, 12)):
        data = bytearray()
        for kind, of_value, of_null in fields:
            is_null = of_null >= 0 and rng.random() < 0.3
            if of_value >= 0:
                data += varint(of_null if is_null else of_value)
            data += b"" if is_null else written(kind)
        if data and rng.random() < 0.3:
            data[rng.randrange(len(data))] = rng.choice([0, 1, 2, 127, 128, 255])
        if rng.random() < 0.2:
            del data[rng.randrange(len(data) + 1) :]
        if rng.random() < 0.1:
            data += bytes(rng.randrange(9))
        records.append(bytes(data))
    bounds = np.cumsum([0, *map(len, records)]).astype(np.int32)
    buf = guarded[0].place(np.frombuffer(b"".join(records), np.uint8))
    n, shape = len(records), (len(fields), len(records))
    kinds, of_value, of_null = np.array(fields, np.int64).T.copy()
    cells = guarded[1].place(np.full(shape, 77, np.int64).reshape(-1))
    lengths = guarded[2].place(np.full(shape, 77, np.int32).reshape(-1))
    valid = guarded[3].place(np.ones(shape, np.uint8).reshape(-1))
    is_read = guarded[4].place(np.ones(n, np.uint8))
    n_left_out = read_flat_records(
        buf, bounds[:-1], bounds[1:], kinds, of_value, of_null, cells, lengths, valid, is_read
    )
    expected = [plain(each, fields) for each in records]
    assert [each is not None for each in expected] == is_read.astype(bool).tolist()
    assert n_left_out == expected.count(None)
    cells, lengths, valid = (each.reshape(shape) for each in (cells, lengths, valid))
    for number, (kind, *_) in enumerate(fields):
        of_field = [None if each is None else each[number] for each in expected]
        assert [each is not None for each in of_field] == valid[number].astype(bool).tolist()
        if kind != TEXT:
            assert [each or 0 for each in of_field] == cells[number].tolist()
            continue
        texts = [each or b"" for each in of_field]
        assert list(map(len, texts)) == lengths[number].tolist()
        target = guarded[5].place(np.zeros(sum(map(len, texts)) + COPY_SLACK, np.uint8))
        ends = np.zeros(n + 1, np.int32)
        copy_texts(buf, cells[number], lengths[number], target, ends)
        assert np.cumsum([0, *map(len, texts)]).tolist() == ends.tolist()
        assert b"".join(texts) == target[: ends[-1]].tobytes()
    ids = guarded[5].place(np.zeros(n, np.int32))
    read_frame_ids(buf, bounds[:-1], bounds[1:], ids)
    for each, found in zip(records, ids.tolist()):
        is_framed = len(each) >= 5 and each[0] == 0
        assert found == (int.from_bytes(each[1:5], "big", signed=True) if is_framed else -1)
    for each in (cells, lengths, valid, is_read, ids):
        printed.update(each.tobytes())
    seen["read"] += n - n_left_out
    seen["left out"] += n_left_out
    seen["null"] += int((valid == 0).sum())
assert min(seen.values()) > ROUNDS // 10, seen
print(printed.hexdigest())
"""


def test_records_are_those_of_a_plain_reading() -> None:
    """Also at the end of readable memory; and in plain Python, cells are the same."""
    few = SCRIPT.replace("ROUNDS", "300")
    run(SCRIPT.replace("ROUNDS", "3_000"))
    assert run(few) == run(few, SEGMENTLOG_PYTHON_KERNELS="1")


@pytest.mark.slow
@pytest.mark.timeout(1800)  # which three variants take on a busy machine
def test_other_kernels_read_the_same(other_kernels: dict[str, str]) -> None:
    """With bounds checks, an index outside an array would raise an error."""
    code = SCRIPT.replace("ROUNDS", "3_000")
    assert run(code) == run(code, **other_kernels)
