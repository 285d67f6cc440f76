"""Kernels on buffers that end where memory ends, and the same kernels as plain Python."""

import subprocess
import sys

import numpy as np
import pytest

from segmentlog.kernels import layout, output, status
from segmentlog.kernels.decode import fill_records
from segmentlog.kernels.scan import scan_batches
from segmentlog.kernels.varint import FAILED, read_varint, read_varlong
from segmentlog.records.columns import Output, record_schema
from segmentlog.testing.reference import Record, encode_batch, zigzag

#: Decodes every prefix and many mutations of two batches whose last byte is followed by a page
#: that cannot be read: one byte too far ends the process with SIGSEGV.
UNREADABLE = """
import ctypes, mmap, random
import numpy as np
from segmentlog.errors import SegmentLogError
from segmentlog.kernels import output
from segmentlog.model import LogSlice
from segmentlog.records.columns import record_schema
from segmentlog.records.decoder import BatchScanner, RecordDecoder
from segmentlog.testing.reference import Record, crc32c, encode_batch

PAGE = mmap.PAGESIZE
memory = mmap.mmap(-1, 4 * PAGE)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.mprotect(ctypes.c_void_p(start + 3 * PAGE), PAGE, 0) == 0
whole = np.frombuffer(memory, np.uint8)

def place(data):
    buf = whole[3 * PAGE - len(data) : 3 * PAGE]
    buf[:] = np.frombuffer(data, np.uint8)
    return buf

def decode(data, columns):
    buf = place(data)
    scanner = BatchScanner("x", 0)
    decoder = RecordDecoder(LogSlice("t", 0, 0, 2**62, ()), record_schema(columns))
    rows = at = 0
    while at < len(buf):
        headers, behind = scanner.scan(buf, at, len(buf), 0)
        if not len(headers):
            break
        rows += sum(b.num_rows for b in decoder.decode("x", buf, headers, 0))
        at = behind
    return rows

def records(base, n):
    return [
        Record(base + i, 10**12 + i * i * 1000, b"k" * (i % 40), None if i % 7 == 3 else bytes(i),
               ((b"h", b"x" * i),) if i % 5 == 4 else ())
        for i in range(n)
    ]

good = encode_batch(records(0, 60)) + encode_batch(records(60, 9))
assert decode(good, None) == 69 == decode(good, ["headers", "offset"])
for n in range(len(good)):
    decode(good[:n], None)
rng = random.Random(7)
outcomes = {"rows": 0, "error": 0}
for _ in range(ROUNDS):
    first = encode_batch(records(0, rng.randrange(1, 9)))
    data = bytearray(first)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(23, len(data))
        data[at] = rng.choice([0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    try:
        decode(bytes(data), rng.choice([None, ["offset"], ["value"], ["headers", "key"]]))
        outcomes["rows"] += 1
    except SegmentLogError:
        outcomes["error"] += 1
print(outcomes["rows"] > 0, outcomes["error"] > 0)
"""


def run(code: str, **variables: str) -> str:
    """What a new interpreter prints for `code`."""
    import os

    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | variables,
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"exit {done.returncode}: {done.stderr[-2000:]}"
    return done.stdout.strip()


def test_no_kernel_reads_past_the_end_of_its_buffer() -> None:
    """Every cut and thousands of mutations in front of an unreadable page: no signal."""
    assert run(UNREADABLE.replace("ROUNDS", "4000")) == "True True"


def test_bounds_checked_kernels_find_nothing_to_report() -> None:
    """The same with numba's bounds checks: an index outside an array would raise."""
    import tempfile

    with tempfile.TemporaryDirectory() as cache:  # the cache does not know of the setting
        printed = run(
            UNREADABLE.replace("ROUNDS", "500"), NUMBA_BOUNDSCHECK="1", NUMBA_CACHE_DIR=cache
        )

    assert printed == "True True"


def test_kernels_give_the_same_as_plain_python() -> None:
    """Without compilation the kernels still decode: what `py_func` is."""
    code = (
        "from segmentlog.testing.reference import Record, encode_batch\n"
        "import numpy as np\n"
        "from segmentlog.records.columns import record_schema\n"
        "from segmentlog.records.decoder import BatchScanner, RecordDecoder\n"
        "from segmentlog.model import LogSlice\n"
        "records = [Record(i, i, b'k' * i, None, ((b'h', b'v'),) if i % 2 else ())"
        " for i in range(9)]\n"
        "buf = np.frombuffer(encode_batch(records), np.uint8)\n"
        "headers, _ = BatchScanner('x', 0).scan(buf, 0, len(buf), 0)\n"
        "schema = record_schema(include_headers=True)\n"
        "decoder = RecordDecoder(LogSlice('t', 0, 0, 99, ()), schema)\n"
        "(batch,) = decoder.decode('x', buf, headers, 0)\n"
        "print(batch.column('offset').to_pylist(), batch.column('headers').null_count)\n"
    )

    assert run(code, NUMBA_DISABLE_JIT="1") == run(code) == f"{list(range(9))} 5"


@pytest.mark.parametrize(
    ("encoded", "expected"),
    [
        ("00", 0), ("01", -1), ("02", 1), ("7e", 63), ("7f", -64), ("8001", 64),
        ("808001", 8192), ("feffffff0f", 2**31 - 1), ("ffffffff0f", -(2**31)),
    ],
)  # fmt: skip
def test_varints_of_the_format_are_read(encoded: str, expected: int) -> None:
    """Kafka's own vectors, as an int and as a long."""
    buf = np.frombuffer(bytes.fromhex(encoded), np.uint8)

    assert (expected, len(buf)) == read_varint.py_func(buf, 0, len(buf))
    assert (expected, len(buf)) == read_varlong.py_func(buf, 0, len(buf))
    assert zigzag(expected) == buf.tobytes()
    assert read_varint.py_func(buf, 0, len(buf) - 1)[1] == FAILED


def test_a_varint_that_does_not_end_fails() -> None:
    """Five bytes for an int and ten for a long, and no more."""
    buf = np.full(12, 0xFF, np.uint8)
    largest = np.frombuffer(bytes.fromhex("feffffffffffffffff01"), np.uint8)

    assert read_varint.py_func(buf, 0, 12)[1] == FAILED
    assert read_varlong.py_func(buf, 0, 12)[1] == FAILED
    assert (2**63 - 1, 10) == read_varlong.py_func(largest, 0, 10)


def test_a_full_output_is_resumed_where_it_stopped() -> None:
    """Rows and bytes run out in the middle of a batch; nothing is lost and nothing comes twice."""
    records = [Record(i, i, b"key", bytes(i % 50)) for i in range(100)]
    buf = np.frombuffer(encode_batch(records), np.uint8)
    headers = np.empty((4, layout.N_HEADER_COLUMNS), np.int64)
    assert (status.OK, len(buf), 1) == scan_batches(buf, 0, len(buf), 0, headers)
    state = np.zeros(output.N_STATE, np.int64)
    state[output.RECORD] = -1
    seen, calls = [], 0
    while state[output.BATCH] < 1:
        room = Output(record_schema(["offset", "value"]), 7, 200, 0)
        room.begin(state)
        code = fill_records(
            buf, np.empty(0, np.uint8), headers[:1], 0, 99, 1000, room.arrays, state
        )
        assert code in (status.OK, status.OUTPUT_FULL)
        seen += room.arrays.offsets[: state[output.N_ROWS]].tolist()
        calls += 1

    assert list(range(99)) == seen
    assert calls > 10
