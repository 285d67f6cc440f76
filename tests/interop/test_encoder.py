"""Batches of every codec, read by Kafka's own Java classes."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kafka_here import JavaClient

from segmentlog.model import Codec, TopicPartition
from segmentlog.records.encoder import RecordEncoder
from segmentlog.records.source import record_source

pytestmark = pytest.mark.interop

N_ROWS = 300


@pytest.mark.parametrize("codec", list(Codec))
def test_java_reads_what_was_encoded(client: JavaClient, codec: Codec) -> None:
    """Checksums, offsets, times, keys, values and headers; several blocks, several batches."""
    pairs = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rng = np.random.default_rng(3)
    keys = [None if i % 7 == 0 else b"%d" % i for i in range(N_ROWS)]
    values = [None if i % 11 == 0 else rng.bytes(i * 3) + bytes(i) for i in range(N_ROWS)]
    headers = [[{"key": "h", "value": None}] * (i % 3) for i in range(N_ROWS)]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(keys, pa.binary()), pa.array(values, pa.binary()), pa.array(headers, pairs)],
        ["key", "value", "headers"],
    )
    times = np.arange(N_ROWS) + 1_700_000_000_000
    found = RecordEncoder(codec, batch_size=140_000).encode(
        TopicPartition("t", 0), record_source(batch, times), np.arange(N_ROWS)
    )
    buffer = client.jvm.java.nio.ByteBuffer.wrap(found.buffer.tobytes())
    records = client.jvm.org.apache.kafka.common.record.internal.MemoryRecords.readableRecords(
        buffer
    )

    assert len(found.table) > 1
    for each, size in zip(_each(records.batches()), found.sizes, strict=True):
        each.ensureValid()
        assert each.sizeInBytes() == size
    read = [
        (each.offset(), each.timestamp(), _bytes(client, each.key()), _bytes(client, each.value()),
         len(each.headers()))
        for each in _each(records.records())
    ]  # fmt: skip
    assert read == [(i, int(times[i]), keys[i], values[i], len(headers[i])) for i in range(N_ROWS)]


def _each(iterable: Any) -> Iterator[Any]:
    """The elements of a Java iterable that is no collection."""
    iterator = iterable.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _bytes(client: JavaClient, buffer: object) -> bytes | None:
    """The bytes of a Java buffer."""
    if buffer is None:
        return None
    return client.jvm.org.apache.kafka.common.utils.Utils.toArray(buffer)
