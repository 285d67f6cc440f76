"""One pass returns what two passes return, and stops before batches that are not usual.

It inflates with functions of installed wheels, and its memory goes from one slice to the next.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import lz4.frame
import numpy as np
import pyarrow as pa
import pytest
from both_ways import decode_log, with_slack

import segmentlog
from segmentlog.errors import TimestampOverflowError
from segmentlog.format.checksum import crc32c
from segmentlog.format.kernels.memory import COPY_SLACK
from segmentlog.format.records import native_codecs
from segmentlog.format.records.columns import record_schema
from segmentlog.format.records.decoder import BatchScanner, RecordDecoder
from segmentlog.format.records.one_pass import OnePassDecoder, ReadMemory, Stop
from segmentlog.model import Codec, OffsetRange, TopicPartition
from segmentlog.testing.reference import Record, encode_batch

WHERE = TopicPartition("t", 0)
CONTROL, APPEND_TIME = 0x20, 0x08
GOLDEN = Path(__file__).parents[3] / "golden"


def batch(
    base: int, n: int = 5, *, attributes: int = 0, headers: tuple = (), codec: int = 0
) -> bytes:
    """A batch of records with keys and values of several sizes, some of them null."""
    sizes = (0, 5, 40, 90, 200, 700)
    records = [
        Record(
            base + i,
            1_700_000_000_000 + i * 1000,
            None if i % 4 == 3 else bytes([i & 0xFF]) * (i % 30),
            None if i % 5 == 4 else bytes(sizes[i % 6]),
            headers,
        )
        for i in range(n)
    ]
    return encode_batch(records, attributes=attributes, codec=codec)


def emptied(base: int) -> bytes:
    """A batch of which compaction has left only the header."""
    return encode_batch([], base_offset=base, last_offset=base, max_timestamp_ms=0)


def decode(
    data: bytes,
    columns: list[str] | None = None,
    offsets: tuple[int, int] = (0, 2**62),
    *,
    in_one_pass: bool,
) -> list[pa.RecordBatch]:
    buf, schema, wanted = with_slack(data), record_schema(columns), OffsetRange(*offsets)
    one_pass = OnePassDecoder(WHERE, schema, wanted) if in_one_pass else None
    decoder = RecordDecoder(WHERE, schema, wanted)
    return [*decode_log(buf, len(data), BatchScanner("x.log", 0), decoder, one_pass)]


def stops(data: bytes, columns: list[str] | None = None) -> list[int]:
    """Bytes of the batches at which one pass stops."""
    buf, found, at, next_offset = with_slack(data), [], 0, 0
    one_pass = OnePassDecoder(WHERE, record_schema(columns))
    scanner = BatchScanner("x.log", 0)
    while at < len(data):
        list(one_pass.decode(buf, at, len(data), next_offset))
        if one_pass.stop != Stop.UNUSUAL:
            break
        found.append(one_pass.position)
        scanner.next_offset = one_pass.next_offset
        batches = scanner.scan(buf, one_pass.position, len(data), 0, 1)
        at, next_offset = batches.end, batches.next_offset
    return found


USUAL = {
    "plain": batch(0) + batch(5, 300) + batch(305),
    "one record each": b"".join(batch(i, 1) for i in range(50)),
    "more records than the first rows": batch(0, 3_000) + batch(3_000),
    "gaps": batch(0) + batch(1_000),
    "a control batch": batch(0) + batch(5, 1, attributes=CONTROL) + batch(6),
    "an emptied batch": batch(0) + emptied(5) + batch(6),
    "two types of timestamps": batch(0) + batch(5, attributes=APPEND_TIME) + batch(10),
    "lz4": batch(0, codec=Codec.LZ4) + batch(5, 3_000, codec=Codec.LZ4) + batch(3_005),
    "zstd": batch(0) + batch(5, 3_000, codec=Codec.ZSTD) + batch(3_005, codec=Codec.ZSTD),
    "headers that nobody wants": batch(0, headers=((b"h", b"v"), (b"g", None))) + batch(5),
}
COLUMNS = [
    None,
    ["offset", "timestamp"],
    ["offset"],
    ["timestamp", "topic"],
    ["value", "offset"],
    ["headers", "value"],
]


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("name", USUAL)
def test_one_pass_takes_usual_batches_whole(name: str, columns: list[str] | None) -> None:
    """One pass leaves nothing of a usual batch to the two passes, and returns the same rows."""
    data = USUAL[name]
    found = decode(data, columns, in_one_pass=True)
    for each in found:
        each.validate(full=True)
    expected = decode(data, columns, in_one_pass=False)

    has_headers = name == "headers that nobody wants" and "headers" in (columns or ())
    assert ([0] if has_headers else []) == stops(data, columns)
    assert pa.Table.from_batches(expected) == pa.Table.from_batches(found)


def flipped(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 0x10
    return bytes(changed)


@pytest.mark.parametrize(
    "make",  # not made while pytest collects tests: the largest takes a second
    [
        lambda: encode_batch([Record(5, 0, b"k", bytes(90))], codec=Codec.GZIP),
        lambda: batch(5, 50_001),
        lambda: encode_batch([Record(5, 2**60, b"k", b"v")]),
        lambda: flipped(batch(5), 80),
        lambda: flipped(batch(5), 0),
        lambda: batch(4),
    ],
    ids=["gzip", "too many rows", "far in the future", "checksum", "base offset", "goes back"],
)
def test_one_pass_stops_before_an_unusual_batch(make: Callable[[], bytes]) -> None:
    """The pass returns the position and offset of the unusual batch, and the rows before it."""
    before = batch(0)
    data = before + make()
    one_pass = OnePassDecoder(WHERE, record_schema())
    rows = [*one_pass.decode(with_slack(data), 0, len(data), 0, offset_limit=2**60)]
    rows += one_pass.flush()

    assert (Stop.UNUSUAL, len(before), 5) == (
        one_pass.stop,
        one_pass.position,
        one_pass.next_offset,
    )
    assert 5 == sum(each.num_rows for each in rows) == one_pass.flushed_offset


@pytest.mark.parametrize("n_bytes", [1, 16, 17, 60, 61, 100])
def test_one_pass_says_when_a_batch_is_not_whole(n_bytes: int) -> None:
    """The status makes the caller read more bytes."""
    data = batch(0) + batch(5)[:n_bytes]
    one_pass = OnePassDecoder(WHERE, record_schema())
    list(one_pass.decode(with_slack(data), 0, len(data), 0))

    assert (Stop.CUT_SHORT, len(batch(0))) == (one_pass.stop, one_pass.position)


def test_the_last_bytes_of_a_buffer_without_slack_are_left_alone() -> None:
    """Copies in vectors may read beyond the end of a batch.

    So the last batches go to the two passes.
    """
    data = batch(0) + batch(5)
    one_pass = OnePassDecoder(WHERE, record_schema())
    list(one_pass.decode(with_slack(data)[: len(data) + COPY_SLACK - 1], 0, len(data), 0))

    assert (Stop.UNUSUAL, len(batch(0))) == (one_pass.stop, one_pass.position)


@pytest.mark.parametrize("offsets", [(0, 12), (3, 12), (5, 10), (7, 8), (11, 99), (15, 99)])
def test_a_range_cuts_batches(offsets: tuple[int, int]) -> None:
    """Batches below the range are skipped.

    A batch that the end of the range cuts goes to the two passes.
    """
    data = b"".join(batch(base) for base in (0, 5, 10))
    found = decode(data, ["offset"], offsets, in_one_pass=True)

    start, end = offsets
    assert [i for i in range(15) if start <= i < end] == [
        offset for each in found for offset in each["offset"].to_pylist()
    ]


@pytest.mark.parametrize("columns", [*COLUMNS, ["key"]])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("start", [1, 7, 39, 40, 2_041, 2_049])
def test_a_range_may_begin_inside_a_batch(
    start: int, codec: int, columns: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pass decodes the whole batch and drops its first rows; nulls keep their places."""
    data = b"".join(batch(base, n, codec=codec) for base, n in ((0, 40), (40, 2_000), (2_040, 10)))
    expected = decode(data, columns, (start, 2**62), in_one_pass=False)
    monkeypatch.setattr(RecordDecoder, "decode", None)  # the careful decoder is not needed
    found = decode(data, columns, (start, 2**62), in_one_pass=True)
    for each in found:
        each.validate(full=True)

    assert 2_050 - start == sum(each.num_rows for each in found)
    assert pa.Table.from_batches(expected) == pa.Table.from_batches(found)


def test_a_range_may_begin_after_the_records_of_a_batch() -> None:
    """Compaction keeps the last offset of a batch even if it has removed the last records."""
    cut = encode_batch([Record(i, 0, b"k", b"v") for i in (0, 2)], last_offset=9)
    found = decode(cut + batch(10), ["offset"], (5, 2**62), in_one_pass=True)

    assert [[10, 11, 12, 13, 14]] == [each["offset"].to_pylist() for each in found]
    assert [] == decode(cut, None, (5, 2**62), in_one_pass=True)


def test_a_time_that_nobody_wants_may_be_far_off() -> None:
    """A record below the range may have a time that does not fit microseconds."""
    data = encode_batch([Record(0, 2**60, b"k", b"v"), Record(1, 5, b"k", b"w")])
    found = decode(data, None, (1, 2**62), in_one_pass=True)

    assert [[b"w"]] == [each["value"].to_pylist() for each in found]
    with pytest.raises(TimestampOverflowError):
        decode(data, in_one_pass=True)


def test_rows_of_several_buffers_come_in_one_arrow_batch() -> None:
    """The first Arrow batch is small, so that the first rows come early.

    Later ones are nearly full.
    """
    one_pass = OnePassDecoder(WHERE, record_schema(["offset"]))
    sizes = []
    first = batch(0, 500)
    for base in range(0, 200_000, 500):
        data = base.to_bytes(8, "big") + first[8:]  # no checksum covers the base offset
        found = one_pass.decode(with_slack(data), 0, len(data), base)
        sizes += [each.num_rows for each in found]
    sizes += [each.num_rows for each in one_pass.flush()]

    assert [1_000, 50_000, 50_000, 50_000, 49_000] == sizes
    assert 200_000 == one_pass.flushed_offset


def test_only_the_first_rows_of_a_read_come_in_a_small_batch() -> None:
    """Nobody waits for the first rows of a later slice."""
    data = batch(0, 500) + batch(500, 500) + batch(1000, 500)
    memory = ReadMemory()
    sizes = []
    for _ in range(2):
        one_pass = OnePassDecoder(WHERE, record_schema(["offset"]), memory=memory)
        found = list(one_pass.decode(with_slack(data), 0, len(data), 0))
        sizes.append([each.num_rows for each in (*found, *one_pass.flush())])

    assert [[1_000, 500], [1_500]] == sizes


def rows_in_small_outputs(data: bytes) -> Iterator[pa.RecordBatch]:
    one_pass = OnePassDecoder(WHERE, record_schema())
    yield from one_pass.decode(with_slack(data), 0, len(data), 0, most_bytes=300)
    assert one_pass.stop == Stop.END
    yield from one_pass.flush()


def test_a_batch_that_does_not_fit_gets_an_output_of_its_size() -> None:
    """The caller's estimate of the remaining bytes was too small."""
    data = batch(0, 1) + batch(1, 100) + batch(101, 1)
    expected = decode(data, in_one_pass=False)

    found = pa.Table.from_batches(rows_in_small_outputs(data))
    assert pa.Table.from_batches(expected) == found


def joined_frames(n_frames: int) -> bytes:
    """A batch of LZ4 whose records are cut into frames, as Kafka's framing allows."""
    plain = batch(0)[61:]
    frames = [
        lz4.frame.compress(plain[len(plain) * i // n_frames : len(plain) * (i + 1) // n_frames])
        for i in range(n_frames)
    ]
    return with_payload(Codec.LZ4, b"".join(frames))


def with_payload(codec: int, payload: bytes) -> bytes:
    """The batch of five records, with other bytes instead of its records."""
    changed = bytearray(batch(0)[:61] + payload)
    changed[8:12] = (len(changed) - 12).to_bytes(4, "big")
    changed[21:23] = int(codec).to_bytes(2, "big")
    changed[17:21] = crc32c(bytes(changed[21:])).to_bytes(4, "big")
    return bytes(changed)


def frame_of(codec: int) -> bytes:
    return batch(0, codec=codec)[61:]


@pytest.mark.parametrize("n_frames", [1, 2, 5])
def test_frames_of_lz4_may_follow_one_another(n_frames: int) -> None:
    """Several frames are inflated as one."""
    data = joined_frames(n_frames)

    assert [] == stops(data)
    assert decode(batch(0), in_one_pass=True) == decode(data, in_one_pass=True)


@pytest.mark.parametrize("length", [b"\x0a", b"\x8a\x80\x80\x80\x00", b"\x8a\x80\x80\x80\x10"])
@pytest.mark.parametrize("n_headers", [0, 1])
def test_lengths_may_have_bits_that_java_drops(length: bytes, n_headers: int) -> None:
    """A varint of five bytes has three excess bits, which two passes drop as Java does."""
    headers = b"\x02\x02h\x02v" if n_headers else b"\x00"
    body = b"\0\0\0\x01" + length + b"value" + headers
    record = bytes([2 * len(body)]) + body
    plain = bytearray(encode_batch([Record(0, 1000, None, b"v")])[:61] + record)
    plain[8:12] = (len(plain) - 12).to_bytes(4, "big")
    plain[17:21] = crc32c(bytes(plain[21:])).to_bytes(4, "big")
    found = decode(bytes(plain), in_one_pass=True)

    assert [b"value"] == found[0]["value"].to_pylist()
    assert decode(bytes(plain), in_one_pass=False) == found


LZ4_FRAME, ZSTD_FRAME = frame_of(Codec.LZ4), frame_of(Codec.ZSTD)
WIDE_WINDOW = ZSTD_FRAME[:4] + bytes([ZSTD_FRAME[4] & ~0xE3, 18 << 3]) + ZSTD_FRAME[6:]


@pytest.mark.parametrize(
    ("codec", "payload"),
    [
        (Codec.LZ4, flipped(LZ4_FRAME, 6)),
        (Codec.LZ4, LZ4_FRAME[:-1]),
        (Codec.LZ4, LZ4_FRAME + b"x"),
        (Codec.LZ4, b"x"),
        (Codec.ZSTD, ZSTD_FRAME[:-1]),
        (Codec.ZSTD, ZSTD_FRAME + b"x"),
        (Codec.ZSTD, ZSTD_FRAME[:5]),
        (Codec.ZSTD, WIDE_WINDOW),
        (Codec.ZSTD, b"\x50\x2a\x4d\x18" + bytes(4) + ZSTD_FRAME),
    ],
    ids=[
        "lz4 header checksum",
        "lz4 cut",
        "lz4 with more",
        "lz4 of one byte",
        "zstd cut",
        "zstd with more",
        "zstd header cut",
        "zstd window",
        "zstd skippable frame",
    ],
)
def test_unusual_frames_are_left_to_the_careful_decoder(codec: int, payload: bytes) -> None:
    """The careful decoder gives a reason in words, or accepts the frame.

    The fast decoder then still works for the next batch.
    """
    data = with_payload(codec, payload)
    buf, one_pass = with_slack(data), OnePassDecoder(WHERE, record_schema())
    usual = batch(0, codec=codec)
    for _ in range(2):
        assert [] == [*one_pass.decode(buf, 0, len(data), 0)]
        assert (Stop.UNUSUAL, 0) == (one_pass.stop, one_pass.position)
        found = [*one_pass.decode(with_slack(usual), 0, len(usual), 0), *one_pass.flush()]
        assert decode(batch(0), in_one_pass=False) == found


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("below", [0, 1])
def test_no_batch_inflates_beyond_the_bound(codec: int, below: int) -> None:
    """A batch at the bound is accepted.

    With a bound of one byte less, the careful decoder's error names the bound.
    """
    plain, data = batch(0, 400), batch(0, 400, codec=codec)
    bound = len(plain) - 61 - below
    one_pass = OnePassDecoder(WHERE, record_schema(), max_inflated_batch_bytes=bound)
    list(one_pass.decode(with_slack(data), 0, len(data), 0))

    assert (Stop.UNUSUAL if below else Stop.END) == one_pass.stop


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_a_library_without_the_functions_changes_no_row(
    codec: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If another build of a wheel hides the functions, Python inflates the batch."""
    data = batch(0, codec=codec) + batch(5, codec=codec)
    for name in ("_lz4", "_zstd"):
        monkeypatch.setattr(native_codecs, name, lambda: None)

    assert [0, len(batch(0, codec=codec))] == stops(data)
    expected = pa.Table.from_batches(decode(data, in_one_pass=False))
    assert expected == pa.Table.from_batches(decode(data, in_one_pass=True))


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Make the two passes refuse to decode."""

    def decode(*_: object) -> None:
        message = "a batch was left to the two passes"
        raise AssertionError(message)

    return lambda: monkeypatch.setattr(RecordDecoder, "decode", decode)


@pytest.mark.parametrize("columns", [None, ["offset", "timestamp"]])
@pytest.mark.parametrize(
    "topic",
    [
        "append-time",
        "append-time-zstd",
        "codec-lz4",
        "codec-none",
        "codec-zstd",
        "headers",
        "nulls",
        "segments",
        "transactions",
    ],
)
def test_scans_of_a_brokers_files_stay_in_one_pass(
    topic: str, columns: list[str] | None, refuse: Callable[[], None]
) -> None:
    """A scan of usual batches never uses the two passes."""
    log = segmentlog.open_log_dir(GOLDEN / "kafka-4.3.1").log(topic, 0)
    expected = log.scan(include_headers=True).read_all()
    refuse()
    found = log.scan(columns=columns).read_all()

    assert 0 < len(found)
    assert expected.select(found.column_names) == found


def test_slices_side_by_side_do_not_share_a_workspace() -> None:
    """The slice that ends last leaves its workspace to the next one: it is in the cache."""
    memory = ReadMemory()
    with memory.workspace() as first, memory.workspace() as second:
        assert first is not second
    with memory.workspace() as third:
        assert third is first


def test_a_slice_that_fails_or_is_given_up_leaves_no_workspace() -> None:
    """Nothing is known of the state in which its codecs are."""
    memory = ReadMemory()
    with pytest.raises(ValueError, match="bad"), memory.workspace() as failed:
        raise ValueError("bad")
    with memory.workspace() as after:
        assert after is not failed


def test_a_workspace_that_grew_for_unusual_batches_is_given_back_to_the_system() -> None:
    """A log of one huge batch would otherwise hold its memory until the read ends."""
    memory = ReadMemory()
    with memory.workspace() as grown:
        grown.window = np.empty(9 << 20, np.uint8)
    with memory.workspace() as after:
        assert after is not grown
        assert 0 == after.window.size
