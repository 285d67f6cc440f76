"""Our batches equal those of Kafka's Java producer, and Kafka's classes read every codec."""

import gzip
from collections.abc import Iterator, Sequence
from typing import Any

import crc32c
import numpy as np
import pyarrow as pa
import pytest
from kafka_here import Broker, JavaClient
from kafka_here.gateway import Gateway
from kafka_here.java import Outgoing
from py4j.protocol import Py4JError

from segmentlog.errors import CorruptLogError
from segmentlog.format.kernels import layout
from segmentlog.format.kernels.source import SourceArrays
from segmentlog.format.records.decoder import BatchReader
from segmentlog.format.records.encoder import RecordEncoder, record_source
from segmentlog.model import Codec, TopicPartition
from segmentlog.testing.reference import Record, encode_batch

pytestmark = pytest.mark.interop

N_ROWS = 300
PAIRS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
LEVELS = {
    Codec.GZIP: [-1, *range(1, 10)],
    Codec.LZ4: range(1, 18),
    Codec.ZSTD: [-131072, -1000, *range(-20, 23)],
}


@pytest.mark.parametrize("codec", list(Codec))
def test_java_reads_what_was_encoded(java: Gateway, codec: Codec) -> None:
    """Checksums, offsets, times, keys, values and headers are those that were encoded."""
    rng = np.random.default_rng(3)
    keys = [None if i % 7 == 0 else b"%d" % i for i in range(N_ROWS)]
    values = [None if i % 11 == 0 else rng.bytes(i * 3) + bytes(i) for i in range(N_ROWS)]
    headers = [[{"key": "h", "value": None}] * (i % 3) for i in range(N_ROWS)]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(keys, pa.binary()), pa.array(values, pa.binary()), pa.array(headers, PAIRS)],
        ["key", "value", "headers"],
    )
    times = np.arange(N_ROWS) + 1_700_000_000_000
    found = RecordEncoder(codec, batch_size=140_000).encode(
        TopicPartition("t", 0), record_source(batch, times), np.arange(N_ROWS)
    )
    records = _readable(java, found.buffer.tobytes())

    assert len(found.table) > 1
    for each, size in zip(_each(records.batches()), found.sizes, strict=True):
        each.ensureValid()
        assert each.sizeInBytes() == size
    read = [
        (
            each.offset(),
            each.timestamp(),
            _bytes(java, each.key()),
            _bytes(java, each.value()),
            len(each.headers()),
        )
        for each in _each(records.records())
    ]
    assert read == [(i, int(times[i]), keys[i], values[i], len(headers[i])) for i in range(N_ROWS)]


@pytest.mark.parametrize("codec", list(LEVELS))
def test_java_reads_every_level(java: Gateway, codec: Codec) -> None:
    """The levels are all of Kafka's, of zstd some below -20. The records compress."""
    values = [b"%d" % i * 200 for i in range(20)]
    batch = pa.RecordBatch.from_pydict({"value": pa.array(values)})
    source, rows = record_source(batch, np.zeros(20, np.int64)), np.arange(20)
    found = [
        RecordEncoder(codec, level).encode(TopicPartition("t", 0), source, rows)
        for level in LEVELS[codec]
    ]
    records = _readable(java, b"".join(each.buffer.tobytes() for each in found))

    for each in _each(records.batches()):
        each.ensureValid()
    read = [_bytes(java, each.value()) for each in _each(records.records())]
    assert read == values * len(LEVELS[codec])


@pytest.mark.parametrize("batch_size", [0, 700, 16_384])
def test_a_java_producer_makes_the_same_bytes(
    shared: tuple[Broker, JavaClient], batch_size: int
) -> None:
    """A producer that lingers ends its batches at the same records."""
    broker, client = shared
    topic = f"made-{batch_size}"
    rng = np.random.default_rng(batch_size)
    sent = [
        Outgoing(
            None if i % 5 == 0 else b"%d" % i,
            None if i % 13 == 0 else rng.bytes(int(rng.integers(0, 1200 if i % 40 == 0 else 90))),
            [("h", b"1"), ("h", None)][: i % 3],
            1_700_000_000_000 + int(rng.integers(-500, 500)) * (100 if i % 50 == 0 else 1),
            0,
        )
        for i in range(N_ROWS * 2)
    ]
    client.create_topic(topic, 1)
    client.produce(
        topic, sent, batch_size=batch_size, linger_ms=600_000, enable_idempotence="false"
    )
    encoder = RecordEncoder(batch_size=batch_size)
    found = encoder.encode(TopicPartition(topic, 0), _source(sent), np.arange(len(sent)))

    (log,) = (broker.log_dir / f"{topic}-0").glob("*.log")
    assert log.read_bytes() == found.buffer.tobytes()
    assert len(found.table) > 2


def _source(sent: Sequence[Outgoing]) -> SourceArrays:
    """The records as columns."""
    headers = [[{"key": key, "value": value} for key, value in each.headers] for each in sent]
    batch = pa.RecordBatch.from_pydict(
        {
            "key": pa.array([each.key for each in sent], pa.binary()),
            "value": pa.array([each.value for each in sent], pa.binary()),
            "headers": pa.array(headers, PAIRS),
        }
    )
    return record_source(batch, np.array([each.timestamp_ms for each in sent]))


def _readable(java: Gateway, data: bytes) -> Any:
    """Record batches as Java objects."""
    buffer = java.jvm.java.nio.ByteBuffer.wrap(data)
    return java.jvm.org.apache.kafka.common.record.internal.MemoryRecords.readableRecords(buffer)


def _each(iterable: Any) -> Iterator[Any]:
    """The elements of a Java iterable that is not a collection."""
    iterator = iterable.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _bytes(java: Gateway, buffer: object) -> bytes | None:
    """The bytes of a Java buffer."""
    if buffer is None:
        return None
    return java.jvm.org.apache.kafka.common.utils.Utils.toArray(buffer)


#: An empty member, without the time at which it was made: each process has to find equal tests.
NOTHING = gzip.compress(b"", mtime=0)


@pytest.mark.parametrize(
    ("after", "is_right"),
    [
        (b"", True),
        (bytes(1), True),
        (bytes(40), True),
        (b"A" * 10_000, True),
        (NOTHING, True),
        (NOTHING[:18], True),
        (b"?" + NOTHING, True),
        (NOTHING[:19], False),
        (NOTHING + bytes(30), True),
        (NOTHING[:-1] + b"\1", False),
    ],
)
def test_java_reads_bytes_after_gzip_as_we_do(java: Gateway, after: bytes, is_right: bool) -> None:
    """The records are the same, or both refuse the batch."""
    plain = encode_batch([Record(i, 0, None, b"%d" % i) for i in range(3)])
    payload = gzip.compress(plain[layout.HEADER_BYTES :]) + after
    covered = bytes([0, 1]) + plain[layout.ATTRIBUTES_AT + 2 : layout.HEADER_BYTES] + payload
    inner = plain[12:17] + crc32c.crc32c(covered).to_bytes(4, "big") + covered
    batch = plain[:8] + len(inner).to_bytes(4, "big") + inner
    records = _readable(java, batch)
    try:
        read = [_bytes(java, each.value()) for each in _each(records.records())]
        assert [b"0", b"1", b"2"] == read
    except Py4JError:
        assert not is_right
    try:
        (found,) = BatchReader("").records(batch, 0)
        assert [b"0", b"1", b"2"] == found["value"].to_pylist()
    except CorruptLogError:
        assert not is_right
    else:
        assert is_right
