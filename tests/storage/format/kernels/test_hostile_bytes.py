"""Kernels read buffers at the end of readable memory, compiled and as plain Python."""

import pytest
from new_process import run

#: The common part of the scripts below: buffers whose last byte is followed by a page that
#: cannot be read, so that one byte too far ends the process with SIGSEGV.
IN_FRONT_OF_A_PAGE = """
import ctypes, mmap, random
import numpy as np
from segmentlog.errors import SegmentLogError
from segmentlog.format.checksum import crc32c
from segmentlog.testing.reference import Record, encode_batch

PAGE = mmap.PAGESIZE
memory = mmap.mmap(-1, 4 * PAGE)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.mprotect(ctypes.c_void_p(start + 3 * PAGE), PAGE, 0) == 0
whole = np.frombuffer(memory, np.uint8)
rng = random.Random(7)

def place(data):
    buf = whole[3 * PAGE - len(data) : 3 * PAGE]
    buf[:] = np.frombuffer(data, np.uint8)
    return buf

def mutate(data, start):
    data = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(start, len(data))
        data[at] = rng.choice([0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    return data

def records(base, n):
    return [
        Record(base + i, 10**12 + i * i * 1000, b"k" * (i % 40), None if i % 7 == 3 else bytes(i),
               ((b"h", b"x" * i),) if i % 5 == 4 else ())
        for i in range(n)
    ]
"""

#: Decodes every prefix and many mutations of two batches.
BATCHES = """
from segmentlog.model import TopicPartition
from segmentlog.format.records.columns import record_schema
from segmentlog.format.records.decoder import BatchScanner, RecordDecoder

def decode(data, columns):
    buf = place(data)
    scanner = BatchScanner("x", 0)
    decoder = RecordDecoder(TopicPartition("t", 0), record_schema(columns))
    rows = at = 0
    while at < len(buf):
        batches = scanner.scan(buf, at, len(buf), 0)
        if not len(batches.headers):
            break
        at = batches.end
        rows += sum(b.num_rows for b in decoder.decode(batches))
    return rows

good = encode_batch(records(0, 60)) + encode_batch(records(60, 9))
assert decode(good, None) == 69 == decode(good, ["headers", "offset"])
for n in range(len(good)):
    decode(good[:n], None)
outcomes = {"rows": 0, "error": 0}
for _ in range(ROUNDS):
    first = encode_batch(records(0, rng.randrange(1, 9)))
    data = mutate(first, 23)
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    try:
        decode(bytes(data), rng.choice([None, ["offset"], ["value"], ["headers", "key"]]))
        outcomes["rows"] += 1
    except SegmentLogError:
        outcomes["error"] += 1
print(outcomes["rows"] > 0, outcomes["error"] > 0)
"""

#: Decodes them in one pass, with the slack that it needs before the page, and without the slack.
#: Where two passes report a fault, one pass with all columns has stopped.
ONE_PASS = """
import lz4.frame, zstandard
from segmentlog.format.kernels.memory import COPY_SLACK
from segmentlog.model import TopicPartition
from segmentlog.format.records.columns import record_schema
from segmentlog.format.records.decoder import BatchScanner, RecordDecoder
from segmentlog.format.records.one_pass import OnePassDecoder, Stop
from segmentlog.analysis.batch_stats import BatchStats
from segmentlog.analysis.record_sketch import RecordSketch
from segmentlog.analysis.sketch_pass import SketchPass
from segmentlog.model import OffsetRange

def sketch(buf, end, decoder, rows):
    records, batches = RecordSketch(0), BatchStats(OffsetRange(0, 2**62))
    sketched = SketchPass(records, batches, TopicPartition("t", 0), record_schema())
    assert not [*sketched.decode(buf, 0, end, 0)]
    batches.finish()
    assert decoder.stop == sketched.stop, (decoder.stop, sketched.stop)
    assert records[0] == batches.batch_records == sum(each.num_rows for each in rows)

def decode(data, columns, slack=COPY_SLACK, n_inflated=None):
    one_pass = OnePassDecoder(TopicPartition("t", 0), record_schema(columns))
    buf = bytearray(data + bytes([0x81]) * slack)
    if n_inflated is None:
        buf = place(buf)
    else:  # the page follows the inflated bytes
        buf = np.frombuffer(buf, np.uint8)
        one_pass._scratch = place(bytes([0x81]) * (n_inflated + COPY_SLACK))
    found = [*one_pass.decode(buf, 0, len(data), 0), *one_pass.flush()]
    if columns is None and n_inflated is None:
        sketch(buf, len(data), one_pass, found)
    return one_pass, found

def rows_of_two_passes(data):
    batches = BatchScanner("x", 0).scan(place(data), 0, len(data), 0)
    return [*RecordDecoder(TopicPartition("t", 0), record_schema()).decode(batches)]

good = encode_batch(records(0, 60)) + encode_batch(records(60, 9))
COLUMNS = [None, ["offset"], ["value"], ["offset", "timestamp"], ["key", "offset"]]
for columns in COLUMNS:
    assert decode(good, columns)[0].stop == Stop.END
    for n in range(len(good)):
        decode(good[:n], columns)
    for slack in range(COPY_SLACK):
        decode(good, columns, slack)

def sealed(record):
    data = bytearray(encode_batch([Record(0, 0, b"", b"")])[:61] + record)
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)

# One length reaches into the page, or has no end: that of the record, of a field, or of both.
FAR, ENDLESS, FILL = PAGE // 2, bytes([0xFF] * 10), bytes(62)
far = [bytes([2 * n & 0x7F | 0x80, n >> 6]) for n in (FAR, FAR + 7, FAR + 8)]
rest = b"\\2k\\x6e" + bytes(56)
assert decode(sealed(b"\\x7c\\0\\0\\0" + rest), None)[0].stop == Stop.END
for record in (
    b"\\x7d\\0\\0\\0" + rest, b"\\x7c\\0\\0\\1" + rest, b"\\x7c\\0\\0\\2" + rest,
    b"\\x7c\\0\\0\\0" + rest + b"\\0",
    far[1] + b"\\0\\0\\0\\1" + far[0] + FILL, far[2] + b"\\0\\0\\0" + far[0] + FILL, b"\\2\\0",
    *((start + 7 * ENDLESS)[:63] for start in (b"", b"\\x7c\\0", b"\\x7c\\0\\0")),
):
    for slack in (0, COPY_SLACK):
        assert all(decode(sealed(record), each, slack)[0].stop == Stop.UNUSUAL for each in COLUMNS)
for fields in [start + n for start in (b"\\0\\0\\0", b"\\0\\0\\0\\1") for n in (ENDLESS, far[0])]:
    assert decode(sealed(b"\\x7c" + (fields + FILL)[:62]), None)[0].stop == Stop.UNUSUAL
outcomes = {"rows": 0, "stop": 0, "inflated": 0}
for _ in range(ROUNDS):
    data = mutate(encode_batch(records(0, rng.randrange(1, 9))), 23)
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    columns = rng.choice(COLUMNS)
    one_pass, found = decode(bytes(data), columns)
    outcomes["rows" if one_pass.stop == Stop.END else "stop"] += 1
    if columns is None and one_pass.stop == Stop.END:
        assert found == rows_of_two_passes(bytes(data))
    inflated = bytes(data[61:])
    codec, deflate = rng.choice([(3, lz4.frame.compress), (4, zstandard.compress)])
    data[61:] = deflate(inflated)
    if rng.randrange(4) == 0:
        data = mutate(data, 61)
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    data[22] = data[22] & 0xF8 | codec
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    again, _ = decode(bytes(data), columns, n_inflated=len(inflated))
    outcomes["inflated"] += again.stop == one_pass.stop == Stop.END
print(outcomes["rows"] > outcomes["inflated"] > 0, outcomes["stop"] > 0)
"""

#: Every prefix and many mutations of messages, and of messages inside wrappers, with correct
#: checksums, pass through the kernels of `segmentlog.format.kernels.record` and their callers.
MESSAGES = """
import struct, zlib
from segmentlog.format.kernels import layout, output, status
from segmentlog.format.kernels.decode import fill_records
from segmentlog.format.kernels.record import check_message, resolve_wrappers
from segmentlog.format.kernels.scan import scan_batches
from segmentlog.format.records.columns import Output
from segmentlog.format.records.columns import record_schema
from segmentlog.testing.legacy import encode_message

def decode(buf, headers, inflated):
    state = np.zeros(output.N_STATE, np.int64)
    state[output.RECORD] = -1
    room = Output(record_schema(["offset", "timestamp", "key", "value"]), 20, 4096, 0)
    room.begin(state)
    return fill_records(buf, inflated, headers, 0, 2**62, 1, room.arrays, state)

def scan(data):
    buf = place(data)
    headers = np.zeros((9, layout.N_HEADER_COLUMNS), np.int64)
    code, _, n_batches = scan_batches(buf, 0, len(buf), 0, headers)
    headers = headers[:n_batches]
    headers = headers[headers[:, layout.ATTRIBUTES] & layout.CODEC_MASK == 0]
    return code if code else decode(buf, headers, buf[:0])

def resolve(data, magic):
    buf = place(data)
    headers = np.zeros((1, layout.N_HEADER_COLUMNS), np.int64)
    without_time = 0 if magic else layout.NO_TIMESTAMP_MASK
    headers[0, layout.ATTRIBUTES] = 1 | layout.LEGACY_MASK | without_time
    headers[0, layout.LAST_OFFSET] = 8
    headers[0, layout.RECORDS_END] = len(buf)
    code, _ = resolve_wrappers(buf, headers)
    return code if code else decode(buf[:0], headers, buf)

def seal(message):
    message[12:16] = zlib.crc32(message[16:]).to_bytes(4, "big")
    return bytes(message)

def message(offset, magic):
    key, value = rng.choice([None, b"", b"key"]), rng.choice([None, b"", bytes(30)])
    return encode_message(Record(offset, 1000, key, value), magic=magic)

codes = {"scan": set(), "resolve": set()}
for magic in (0, 1):
    messages = [message(i, magic) for i in range(9)]
    good = b"".join(messages)
    assert scan(good) == resolve(good, magic) == status.OK
    for n in range(len(good)):
        scan(good[:n])
        resolve(good[:n], magic)
    for n in range(26, len(messages[0])):
        check_message(place(seal(bytearray(messages[0][:n]))), 0, n)
    for _ in range(ROUNDS):
        mutated = seal(mutate(message(8, magic), rng.choice([0, 16])))
        codes["scan"].add(scan(mutated))
        codes["resolve"].add(resolve(b"".join(messages[:3]) + mutated, magic))
print(all(status.OK in each and len(each) > 4 for each in codes.values()), True)
"""

#: Every prefix and many mutations of end markers pass through
#: `segmentlog.format.kernels.transactions`.
MARKERS = """
from segmentlog.format.kernels import layout, status
from segmentlog.format.kernels.transactions import (
    N_MARKER_COLUMNS, collect_markers, flag_aborted, walk_headers
)

def walk(data, headers):
    buf = place(data)
    code, _, n_batches = walk_headers(buf, 0, len(buf), headers)
    headers = headers[:n_batches]
    inside = headers[:, layout.RECORDS_END] <= len(buf)  # only control batches have to be
    assert inside[headers[:, layout.ATTRIBUTES] & layout.CONTROL_MASK != 0].all()
    markers = np.zeros((n_batches, N_MARKER_COLUMNS), np.int64)
    n_markers, bad_row = collect_markers(buf, headers, markers)
    markers = markers[:n_markers]
    is_aborted = np.zeros(n_batches, np.uint8)
    flag_aborted(headers, 0, markers, is_aborted, 1)
    flag_aborted(headers, 0, markers, is_aborted, 2**31)
    return code, n_markers, bad_row, n_batches - int(is_aborted.sum())

def end(offset, kind, attributes=48):
    key = bytes([0, 0, 0, kind])
    return encode_batch([Record(offset, 1000, key, bytes(6))], attributes=attributes)

headers = np.zeros((8, layout.N_HEADER_COLUMNS), np.int64)
data = encode_batch([Record(0, 1000, b"k", b"v")], attributes=16)
good = data + end(1, 0) + encode_batch([Record(2, 1000, b"k", b"v")], attributes=16) + end(3, 1)
assert walk(good, headers) == (status.OK, 2, -1, 3)
assert walk(4 * good, headers[:5])[0] == status.TABLE_FULL
for n in range(len(good)):
    walk(good[:n], headers)
seen = set()
for _ in range(ROUNDS):
    marker = mutate(end(1, rng.randrange(3)), rng.choice([0, 61, 61]))
    marker = marker[: rng.choice([len(marker), rng.randrange(61, len(marker) + 1)])]
    marker[8:12] = (len(marker) - 12).to_bytes(4, "big")
    marker[17:21] = crc32c(bytes(marker[21:])).to_bytes(4, "big")
    seen.add(walk(data + marker, headers)[:3])
print({code for code, _, _ in seen} >= {status.OK}, {bad for _, _, bad in seen} == {-1, 1})
"""

#: Every prefix and many mutations of batches with correct checksums pass through the kernels of
#: compaction. Their output ends before an unreadable page, too.
COMPACTION = """
from segmentlog.maintain.compaction.clean_segments import OffsetMap
from segmentlog.format.kernels import compaction, layout, status
from segmentlog.format.kernels.compaction import judge_batches
from segmentlog.format.kernels.offset_map import put_keys
from segmentlog.format.kernels.scan import scan_batches
from segmentlog.testing.legacy import encode_message

output = mmap.mmap(-1, 9 * PAGE)
output_start = ctypes.addressof(ctypes.c_char.from_buffer(output))
assert libc.mprotect(ctypes.c_void_p(output_start + 8 * PAGE), PAGE, 0) == 0
room = np.frombuffer(output, np.uint8)

def compact(data, horizon_ms):
    buf = place(data)
    headers = np.zeros((9, layout.N_HEADER_COLUMNS), np.int64)
    code, _, n_batches = scan_batches(buf, 0, len(buf), 0, headers)
    headers = headers[:n_batches]
    headers = headers[headers[:, layout.ATTRIBUTES] & layout.CODEC_MASK == 0]
    known, nothing = OffsetMap(24 * 6, 0.9, 10), np.zeros(0, np.uint8)
    is_aborted = np.array([rng.randrange(4) == 0 for _ in headers], np.uint8)
    put_keys(buf, nothing, headers, is_aborted, 0, known.table, known.state, known.secret,
             known.waiting)
    fates = np.zeros(len(headers), np.uint8)
    producers = np.zeros((2, compaction.PRODUCER_COLUMNS), np.int64)
    producers[0] = rng.choice([-1, 5]), 0, rng.randrange(2), 0, 0
    rows = np.array([int(each < 0) for each in headers[:, layout.PRODUCER_ID]], np.int64)
    aborts = np.zeros(len(headers), np.int64)
    judge_batches(buf, headers, rows, is_aborted, producers, 9, 1000, fates, aborts)
    flags = rng.choices([0, 1], k=compaction.RULE_COLUMNS - 3)
    rules = np.array([rng.randrange(9), 1000, horizon_ms, *flags], np.int64)
    total, largest, most = compaction.most_bytes(headers)
    out = room[8 * PAGE - min(total, 8 * PAGE) : 8 * PAGE]
    kept, counts = np.zeros(most, np.int64), np.zeros(compaction.COUNT_COLUMNS, np.int64)
    lines = np.zeros((len(headers), compaction.N_OUT_COLUMNS), np.int64)
    code, row, n_lines, end = compaction.filter_batches(
        buf, nothing, headers, 0, fates, rules, known.table, known.secret, known.waiting, kept,
        counts, out, lines
    )
    if code != status.OK:
        return code
    made = np.zeros((9, layout.N_HEADER_COLUMNS), np.int64)
    assert scan_batches(out, 0, end, 0, made)[::2] == (status.OK, n_lines), (code, n_lines)
    return code

def records(base, n):
    return [
        Record(base + i, rng.choice([0, 10**12, 2**62]), rng.choice([None, b"", b"k", b"key" * 9]),
               rng.choice([None, bytes(i)]), ((b"h", b"x" * i),) if i % 5 == 4 else ())
        for i in range(n)
    ]

good = encode_batch(records(0, 7)) + encode_batch(records(7, 2), attributes=16)
for n in range(len(good)):
    compact(good[:n], 2000)
outcomes = set()
for _ in range(ROUNDS):
    attributes = rng.choice([0, 8, 16, 48, 32, 64])
    data = mutate(encode_batch(records(0, rng.randrange(1, 9)), attributes=attributes), 23)
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    old = encode_message(Record(9, 1000, b"k", None), magic=rng.randrange(2))
    outcomes.add(compact(bytes(data) + old, rng.choice([2000, 2**63 - 1])))
print(status.OK in outcomes, len(outcomes) > 4)
"""

SCRIPTS = {
    "batches": BATCHES,
    "one pass": ONE_PASS,
    "messages": MESSAGES,
    "markers": MARKERS,
    "compaction": COMPACTION,
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_kernel_reads_past_the_end_of_its_buffer(name: str) -> None:
    """Every prefix and thousands of mutations lie before an unreadable page.

    No signal ends the process.
    """
    assert run(IN_FRONT_OF_A_PAGE + SCRIPTS[name].replace("ROUNDS", "800")) == "True True"


@pytest.mark.slow
@pytest.mark.timeout(1800)  # which three variants take on a busy machine
@pytest.mark.parametrize("name", SCRIPTS)
def test_other_kernels_find_nothing_to_report(name: str, other_kernels: dict[str, str]) -> None:
    """With bounds checks, an index outside an array would raise an error."""
    code = IN_FRONT_OF_A_PAGE + SCRIPTS[name].replace("ROUNDS", "500")

    assert run(code, **other_kernels) == "True True"


def test_kernels_give_the_same_as_plain_python() -> None:
    """Without compilation, the kernels still decode as plain Python functions."""
    code = (
        "from segmentlog.testing.reference import Record, encode_batch\n"
        "import numpy as np\n"
        "from segmentlog.format.records.columns import record_schema\n"
        "from segmentlog.format.records.decoder import BatchScanner, RecordDecoder\n"
        "from segmentlog.model import TopicPartition\n"
        "records = [Record(i, i, b'k' * i, None, ((b'h', b'v'),) if i % 2 else ())"
        " for i in range(9)]\n"
        "buf = np.frombuffer(encode_batch(records), np.uint8)\n"
        "batches = BatchScanner('x', 0).scan(buf, 0, len(buf), 0)\n"
        "schema = record_schema(include_headers=True)\n"
        "decoder = RecordDecoder(TopicPartition('t', 0), schema)\n"
        "(batch,) = decoder.decode(batches)\n"
        "print(batch.column('offset').to_pylist(), batch.column('headers').null_count)\n"
    )

    assert run(code, SEGMENTLOG_PYTHON_KERNELS="1") == run(code) == f"{list(range(9))} 5"


@pytest.mark.slow
def test_one_pass_gives_the_same_as_plain_python() -> None:
    """Decompression calls functions of C libraries in both cases."""
    code = (
        "import numpy as np\n"
        "from segmentlog.model import TopicPartition\n"
        "from segmentlog.format.records.columns import record_schema\n"
        "from segmentlog.format.records.one_pass import OnePassDecoder\n"
        "from segmentlog.testing.reference import Record, encode_batch\n"
        "data = b''.join(\n"
        "    encode_batch([Record(3 * i + j, i, b'k' * j, None) for j in range(3)], codec=codec)\n"
        "    for i, codec in enumerate((0, 3, 4)))\n"
        "buf = np.frombuffer(data + bytes(128), np.uint8).copy()\n"
        "for columns in (None, ['offset', 'timestamp']):\n"
        "    one_pass = OnePassDecoder(TopicPartition('t', 0), record_schema(columns))\n"
        "    found = [*one_pass.decode(buf, 0, len(data), 0), *one_pass.flush()]\n"
        "    print(one_pass.stop.name, found[0]['offset'].to_pylist())\n"
    )
    printed = "\n".join(2 * [f"END {list(range(9))}"])

    assert run(code, SEGMENTLOG_PYTHON_KERNELS="1") == run(code) == printed
