"""Topics of every shape that records take on disk, made by real clients on a real broker.

Each shape is a function that produces a topic of its name, and a check on what Kafka's own dump
tool then prints of its files, so that a test knows that the shape really exists.
"""

import asyncio
import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from kafka_here.broker import Broker
from kafka_here.java import JavaClient, KafkaRecord, Outgoing

Batch = Mapping[str, str]
_T0 = 1_700_000_000_000
_DAY_MS = 86_400_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class Shape(NamedTuple):
    """A recipe for a topic, and a check that the topic has this shape."""

    make: Callable[[Broker, JavaClient, str], None]
    check: Callable[[Sequence[Batch], Sequence[KafkaRecord]], bool]


def batches(dump: str) -> dict[str, list[Batch]]:
    """Batch lines of the dump tool as dictionaries, with the name of the file, by topic."""
    found: dict[str, list[Batch]] = {}
    topic, path = "", Path()
    for line in dump.splitlines():
        if line.startswith("Dumping "):
            path = Path(line)
            topic = path.parent.name.rpartition("-")[0]
        elif line.startswith("baseOffset:"):
            fields = dict(re.findall(r"([A-Za-z]+): (\S+)", line)) | {"file": path.name}
            found.setdefault(topic, []).append(fields)
    return found


def mixed_records(n: int, seed: int = 1) -> list[Outgoing]:
    """Keys and values of mixed sizes, some null, some empty, some with headers."""
    rng = random.Random(seed)
    found = []
    for i in range(n):
        key = rng.choice([None, b"", f"key-{i % 17}".encode()])
        value = rng.choice([None, b"", rng.randbytes(rng.randrange(200)), b"same text " * 9])
        headers = rng.choice([(), (), (("trace", b"1"), ("trace", None), ("", b""))])
        found.append(Outgoing(key, value, headers, _T0 + i * 7))
    return found


def _java(codec: str) -> Shape:
    def make(_: Broker, client: JavaClient, topic: str) -> None:
        client.create_topic(topic)
        client.produce(topic, mixed_records(300), compression_type=codec, batch_size=4096)

    return Shape(make, lambda seen, rows: {codec} == _codecs(seen) and len(rows) == 300)


def _codecs(seen: Sequence[Batch]) -> set[str]:
    return {batch["compresscodec"].lower() for batch in seen}


def _librdkafka(codec: str) -> Shape:
    def make(broker: Broker, client: JavaClient, topic: str) -> None:
        from confluent_kafka import Producer

        client.create_topic(topic)
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "compression.codec": codec,
                "linger.ms": 5000,  # until the flush: one message alone is not compressed
                "broker.address.family": "v4",
            }
        )
        for record in mixed_records(200, seed=2):
            producer.produce(
                topic,
                record.value,
                record.key,
                0,
                timestamp=record.timestamp_ms or 0,
                headers=list(record.headers),
            )
        if producer.flush(30):
            message = "librdkafka did not deliver everything"
            raise RuntimeError(message)

    def is_compressed(seen: Sequence[Batch], rows: Sequence[KafkaRecord]) -> bool:
        """Whether batches of several records are compressed; single messages may not be."""
        several = [batch for batch in seen if batch["count"] != "1"]
        return {codec} == _codecs(several) and len(rows) == 200

    return Shape(make, is_compressed)


def _aiokafka(codec: str) -> Shape:
    def make(broker: Broker, client: JavaClient, topic: str) -> None:
        from aiokafka import AIOKafkaProducer

        async def send() -> None:
            producer = AIOKafkaProducer(
                bootstrap_servers=broker.bootstrap_servers,
                compression_type=None if codec == "none" else codec,
                linger_ms=50,
            )
            await producer.start()
            try:
                sent = [
                    await producer.send(
                        topic,
                        record.value,
                        record.key,
                        0,
                        record.timestamp_ms,
                        list(record.headers),
                    )
                    for record in mixed_records(150, seed=3)
                    if all(value is not None for _, value in record.headers)
                    and (record.key, record.value) != (None, None)  # aiokafka refuses it
                ]
                await asyncio.gather(*sent)
            finally:
                await producer.stop()

        client.create_topic(topic)
        asyncio.run(send())

    return Shape(make, lambda seen, rows: {codec} == _codecs(seen) and len(rows) > 50)


def _headers(_: Broker, client: JavaClient, topic: str) -> None:
    kinds: list[Sequence[tuple[str, bytes | None]]] = [
        (),
        (("a", b"1"),),
        (("a", b"1"), ("a", b"2")),
        (("n", None),),
        (("e", b""),),
        (("", b"empty key"),),
        (("ключ", b"\xff\xfe"),),
        tuple((f"h{i}", b"x" * i) for i in range(40)),
    ]
    client.create_topic(topic)
    client.produce(topic, [Outgoing(b"k", b"v", kind, _T0) for kind in kinds * 3])


def _nulls(_: Broker, client: JavaClient, topic: str) -> None:
    client.create_topic(topic)
    pairs = [(key, value) for key in (None, b"", b"k") for value in (None, b"", b"v")]
    client.produce(topic, [Outgoing(key, value, (), _T0) for key, value in pairs * 5])


def _append_time(_: Broker, client: JavaClient, topic: str) -> None:
    client.create_topic(topic, message_timestamp_type="LogAppendTime")
    client.produce(topic, [Outgoing(b"k", b"%d" % i, (), _T0 + i) for i in range(50)])


def _months(_: Broker, client: JavaClient, topic: str) -> None:
    client.create_topic(topic, segment_ms=2**40)
    days = [0, 90, -300, 1, -1, 700, 0, 30]
    records = [
        Outgoing(b"k", b"%d" % day, (), _T0 + day * _DAY_MS + i) for i, day in enumerate(days)
    ]
    client.produce(topic, [*records, Outgoing(b"k", b"epoch", (), 0)], linger_ms=500)


def _transactions(_: Broker, client: JavaClient, topic: str) -> None:
    client.create_topic(topic)
    records = [Outgoing(b"k%d" % i, b"v", (), _T0 + i) for i in range(20)]
    client.produce(topic, records, transactions=["commit", "abort", "commit"])


def _compacted(broker: Broker, client: JavaClient, topic: str) -> None:
    client.create_topic(
        topic,
        cleanup_policy="compact",
        segment_ms=500,
        min_cleanable_dirty_ratio=0.01,
        delete_retention_ms=3_600_000,
    )
    for update in range(4):
        records = [
            Outgoing(
                b"k%d" % (i % 9), None if update == 3 and i >= 27 else b"u%d" % update, (), _T0 + i
            )
            for i in range(30)
        ]
        client.produce(topic, records, batch_size=200, enable_idempotence=True)
    client.wait_until_compacted(broker.log_dir / f"{topic}-0", fewer_than=40)


def _is_compacted(seen: Sequence[Batch], rows: Sequence[KafkaRecord]) -> bool:
    gaps = any(int(b["count"]) < int(b["lastOffset"]) - int(b["baseOffset"]) + 1 for b in seen)
    empty = any(int(batch["count"]) == 0 for batch in seen)
    horizon = any(batch["deleteHorizonMs"] != "OptionalLong.empty" for batch in seen)
    return gaps and empty and horizon and len(rows) < 40


def _deleted_records(_: Broker, client: JavaClient, topic: str) -> None:
    client.create_topic(topic)
    client.produce(topic, [Outgoing(b"k", b"%d" % i, (), _T0 + i) for i in range(100)])
    client.delete_records(topic, 0, 37)


def _segments(_: Broker, client: JavaClient, topic: str) -> None:
    client.create_topic(topic, 3, segment_bytes=1 << 20, index_interval_bytes=1024)
    records = [
        Outgoing(b"k%d" % i, bytes([i % 251]) * 1500, (), _T0 + i, i % 2) for i in range(3000)
    ]  # partition 2 stays empty
    client.produce(topic, records, compression_type="none", batch_size=8192)


def _large(_: Broker, client: JavaClient, topic: str) -> None:
    client.create_topic(topic)
    sizes = [900_000, 1, 100_000, 0, 900_000]
    client.produce(topic, [Outgoing(b"k", b"x" * size, (), _T0) for size in sizes])


def _single(_: Broker, client: JavaClient, topic: str) -> None:
    client.create_topic(topic)
    records = [Outgoing(b"k", b"%d" % i, (), _T0 + i) for i in range(300)]
    client.produce(topic, records, one_by_one=True, linger_ms=0)


def _thousands(_: Broker, client: JavaClient, topic: str) -> None:
    client.create_topic(topic)
    client.produce(
        topic,
        [Outgoing(b"k", b"%d" % i, (), _T0 + i) for i in range(2500)],
        linger_ms=10_000,
        batch_size=900_000,
    )


def _any(seen: Sequence[Batch], field: str, value: str) -> bool:
    return any(batch[field] == value for batch in seen)


SHAPES: dict[str, Shape] = {
    **{f"java-{codec}": _java(codec) for codec in CODECS},
    **{f"librdkafka-{codec}": _librdkafka(codec) for codec in CODECS},
    **{f"aiokafka-{codec}": _aiokafka(codec) for codec in CODECS},
    "headers.of-every-kind": Shape(_headers, lambda seen, rows: len(rows) == 24),
    "nulls": Shape(_nulls, lambda seen, rows: len(rows) == 45),
    "append-time": Shape(
        _append_time, lambda seen, rows: all("LogAppendTime" in batch for batch in seen)
    ),
    "months": Shape(_months, lambda seen, rows: _any(seen, "count", "9")),
    "transactions": Shape(
        _transactions, lambda seen, rows: _any(seen, "isControl", "true") and len(rows) == 60
    ),
    "compacted": Shape(_compacted, _is_compacted),
    "deleted-records": Shape(
        _deleted_records, lambda seen, rows: rows[0].offset == 37 and len(rows) == 63
    ),
    "segments": Shape(_segments, lambda seen, rows: len(rows) == 3000),
    "large-values": Shape(
        _large, lambda seen, rows: sum(int(b["size"]) for b in seen) > 1_900_000
    ),
    "one-record-batches": Shape(_single, lambda seen, rows: len(seen) == 300 == len(rows)),
    "thousands-in-a-batch": Shape(
        _thousands, lambda seen, rows: max(int(batch["count"]) for batch in seen) > 2000
    ),
}


class Made(NamedTuple):
    """The topics of all shapes on a broker."""

    log_dir: Path
    rows: Mapping[str, Sequence[KafkaRecord]]


def make(broker: Broker, client: JavaClient) -> Made:
    """Make every shape on `broker`, and read it with the broker's own consumer."""
    for topic, shape in SHAPES.items():
        shape.make(broker, client, topic)
    return Made(broker.log_dir, client.consume_each(SHAPES))
