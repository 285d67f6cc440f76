"""Kernels that write use columns and outputs at the end of accessible memory."""

import pytest
from new_process import run

#: Encodes random rows. The last byte of each column, and of the output, is followed by a page that
#: can neither be read nor written. Half of the rows come with wrong bounds.
UNREADABLE = """
import ctypes, mmap, random
import numpy as np
import pyarrow as pa
from segmentlog.errors import SegmentLogError
from segmentlog.model import TopicPartition
from segmentlog.writes.stager import Partitioner, group_rows
from segmentlog.format.records import encoder
from segmentlog.format.records.encoder import record_source
from segmentlog.testing.reference import Record, encode_batch, read_batch

PAGE, PAGES = mmap.PAGESIZE, 64
libc = ctypes.CDLL(None, use_errno=True)

def guarded():
    memory = mmap.mmap(-1, (PAGES + 1) * PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert libc.mprotect(ctypes.c_void_p(start + PAGES * PAGE), PAGE, 0) == 0
    return np.frombuffer(memory, np.uint8)[: PAGES * PAGE]

places = [guarded() for _ in range(20)]

def place(number, data):
    buf = places[number][PAGES * PAGE - len(data) :]
    buf[:] = np.frombuffer(data, np.uint8)
    return pa.py_buffer(buf)

def binary(number, values, rng, lie):
    ends = np.cumsum([0, *(len(v or b"") for v in values)]).astype(np.int32)
    if lie:
        ends[rng.randrange(len(ends))] = rng.choice([-1, 1, 2**31 - 1, -(2**31), 10_000])
    bits = np.packbits(np.array([v is not None for v in values], bool), bitorder="little")
    data = b"".join(v or b"" for v in values)
    buffers = [place(number, bits.tobytes()), place(number + 1, ends.tobytes()),
               place(number + 2, data)]
    nulls = sum(v is None for v in values)
    return pa.Array.from_buffers(pa.binary(), len(values), buffers, nulls)

n_outputs, pooled = 0, encoder.pooled_array

def output(n_items, dtype):
    global n_outputs
    if dtype != np.uint8:
        return pooled(n_items, dtype)
    n_outputs += 1
    return places[11][len(places[11]) - n_items * np.dtype(dtype).itemsize :]

encoder.pooled_array = output

def headers(number, rng, n, lie):
    ends = np.cumsum([0, *(rng.randrange(3) for _ in range(n))]).astype(np.int32)
    names = [rng.randbytes(rng.choice(sizes)) for _ in range(ends[-1])]
    data = values(rng, len(names))
    lies = lie and n % 3 == 0
    columns = [binary(number, names, rng, lies), binary(number + 3, data, rng, False)]
    pairs = pa.StructArray.from_arrays(columns, ["key", "value"])
    if lie:
        ends[rng.randrange(len(ends))] = rng.choice([-1, 2**31 - 1, -(2**31), 10_000])
    bounds = [None, place(number + 6, ends.tobytes())]
    kind = pa.list_(pairs.type)
    found = pa.Array.from_buffers(kind, n, bounds, children=[pairs])
    return found, [list(zip(names[a:b], data[a:b])) for a, b in zip(ends, ends[1:])]
sizes = [0, 1, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 300]

def values(rng, n):
    return [None if rng.random() < 0.1 else rng.randbytes(rng.choice(sizes)) for _ in range(n)]

rng = random.Random(5)
outcomes = {"rows": 0, "refused": 0}
for number in range(ROUNDS):
    n, lie = rng.randrange(1, 25), number % 2
    keys, data = values(rng, n), values(rng, n)
    if number % 3 == 0:
        keys, data = ([value or b"" for value in each] for each in (keys, data))
    try:
        columns = {"key": binary(0, keys, rng, lie), "value": binary(3, data, rng, lie and n % 2)}
        pairs = [[]] * n
        if number % 4 < 2:
            columns["headers"], pairs = headers(12, rng, n, lie and n % 5 == 0)
        batch = pa.RecordBatch.from_pydict(columns)
        source = record_source(batch, np.arange(n))
        chosen = Partitioner("t", 3, 500).choose(source)
        rows, starts = group_rows(chosen, 3)
        for p in range(3):
            mine = rows[starts[p] : starts[p + 1]]
            found = encoder.RecordEncoder(batch_size=700).encode(
                TopicPartition("t", p), source, mine
            )
            read = []
            for at, size in zip(found.positions, found.sizes):
                read += read_batch(found.buffer[at : at + size].tobytes())
            if not lie:
                assert [(r.key, r.value, list(r.headers)) for r in read] == [
                    (keys[i], data[i], pairs[i]) for i in mine
                ]
        outcomes["rows"] += 1
    except (pa.ArrowInvalid, SegmentLogError):
        outcomes["refused"] += 1
print(outcomes["rows"] > ROUNDS // 3, outcomes["refused"] > ROUNDS // 10, n_outputs > ROUNDS)
"""

PLAIN = """
import numpy as np
import pyarrow as pa
from segmentlog.format.kernels.encode import assign_offsets
from segmentlog.model import TopicPartition
from segmentlog.writes.stager import Partitioner, group_rows
from segmentlog.format.records.encoder import RecordEncoder
from segmentlog.format.records.encoder import record_source
from segmentlog.testing.reference import read_batch

pairs = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
columns = {
    "key": pa.array([None if i % 5 == 0 else b"k" * i for i in range(70)], pa.binary()),
    "value": pa.array([bytes(i * i) for i in range(70)], pa.binary()),
    "headers": pa.array([[{"key": "h", "value": None}] * (i % 3) for i in range(70)], pairs),
}
for names in (["key", "value"], ["key", "value", "headers"]):
    batch = pa.RecordBatch.from_pydict({name: columns[name] for name in names})
    source = record_source(batch, np.arange(70) ** 5)
    rows, starts = group_rows(Partitioner("t", 2, 1000).choose(source), 2)
    found = RecordEncoder(batch_size=1000).encode(TopicPartition("t", 0), source, rows)
    assign_offsets(found.buffer, np.ascontiguousarray(found.positions), 10**10, 3)
    print(starts.tolist(), len(found.buffer), hash(found.buffer.tobytes().hex()))
    print(read_batch(found.buffer[: found.sizes[0]].tobytes())[0])
"""


def test_no_kernel_leaves_its_buffers() -> None:
    """Values need copies of every width before an unreadable page, and some bounds are wrong."""
    assert run(UNREADABLE.replace("ROUNDS", "1500")) == "True True True"


@pytest.mark.slow
@pytest.mark.timeout(1800)  # which three variants take on a busy machine
def test_other_kernels_find_nothing_to_report(other_kernels: dict[str, str]) -> None:
    """With bounds checks, an index outside an array would raise an error."""
    code = UNREADABLE.replace("ROUNDS", "300")

    assert run(code, **other_kernels) == "True True True"


def test_kernels_write_the_same_as_plain_python() -> None:
    """Compiled kernels and plain Python write equal bytes, with headers and without."""
    assert run(PLAIN, PYTHONHASHSEED="0") == run(
        PLAIN, PYTHONHASHSEED="0", SEGMENTLOG_PYTHON_KERNELS="1"
    )
