"""Topics of every shape that messages of magic 0 and 1 take on disk, on a broker of Kafka 2.

A topic's ``message.format.version`` sets the format.  The Java client sends magic 2, which the
broker converts; librdkafka, with that setting, sends the old formats itself.
"""

import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from waiting import wait_for

from kafka_here.broker import Broker
from kafka_here.java import JavaClient, KafkaRecord, Outgoing

_T0 = 1_700_000_000_000
_VERSIONS = {0: "0.9.0", 1: "0.10.2", 2: "2.8"}
_CODECS = ("none", "gzip", "snappy", "lz4")
_TIMESTAMP_TYPES = ("NoTimestampType", "CreateTime", "LogAppendTime")
_SECONDS = 30


class DumpedBatch(NamedTuple):
    """A batch as the dump tool prints it; a single message is a batch of one record."""

    file: str
    magic: int
    codec: str
    timestamp_type: str
    offsets: list[int]

    @property
    def has_gaps(self) -> bool:
        """Whether records between the first and the last one are missing."""
        return len(self.offsets) < self.offsets[-1] - self.offsets[0] + 1


class LegacyShape(NamedTuple):
    """A recipe for a topic, and a check that the topic has this shape."""

    make: Callable[[Broker, JavaClient, str], None]
    check: Callable[[Sequence[DumpedBatch], Sequence[KafkaRecord]], bool]


def dumped_batches(dump: str) -> dict[str, list[DumpedBatch]]:
    """Batches that the dump tool of Kafka 2 prints, by topic."""
    found: dict[str, list[DumpedBatch]] = {}
    path = Path()
    for line in dump.splitlines():
        fields = dict(re.findall(r"([A-Za-z]+): (\S+)", line))
        if line.startswith("Dumping "):
            path = Path(line.removeprefix("Dumping "))
        elif line.startswith(("offset:", "baseOffset:")):
            kind = next(name for name in _TIMESTAMP_TYPES if name in fields)
            batch = DumpedBatch(
                path.name, int(fields["magic"]), fields["compresscodec"].lower(), kind, []
            )
            found.setdefault(path.parent.name.rpartition("-")[0], []).append(batch)
        elif line.startswith("| offset:"):
            batch.offsets.append(int(fields["offset"]))
    return found


def legacy_records(n: int, seed: int = 1) -> list[Outgoing]:
    """Keys and values of mixed sizes, some null, some empty; times rise and fall."""
    rng = random.Random(seed)
    found = []
    for i in range(n):
        key = rng.choice([None, b"", f"key-{i % 17}".encode()])
        value = rng.choice([None, b"", rng.randbytes(rng.randrange(120)), b"same text " * 9])
        found.append(Outgoing(key, value, (), _T0 + i * 7 - rng.choice([0, 0, 0, 5000])))
    return found


def _plain(magic: int, codec: str, timestamp_type: str = "CreateTime") -> LegacyShape:
    def make(_: Broker, client: JavaClient, topic: str) -> None:
        client.create_topic(
            topic,
            message_format_version=_VERSIONS[magic],
            message_timestamp_type=timestamp_type,
        )
        client.produce(
            topic,
            legacy_records(60),
            compression_type=codec,
            batch_size=900,
            linger_ms=5000,  # batches are cut by their size, also on a slow machine
        )

    expected = timestamp_type if magic else "NoTimestampType"

    def check(seen: Sequence[DumpedBatch], rows: Sequence[KafkaRecord]) -> bool:
        sizes = [len(batch.offsets) for batch in seen]
        return (
            _formats(seen) == {(magic, codec)}
            and {batch.timestamp_type for batch in seen} == {expected}
            and (max(sizes) == 1 if codec == "none" else 1 < min(sizes) < max(sizes) < 60)
            and len(rows) == 60
        )

    return LegacyShape(make, check)


def _librdkafka(magic: int, codec: str) -> LegacyShape:
    """Sets of an old client, which the broker stores as they are."""

    def make(broker: Broker, client: JavaClient, topic: str) -> None:
        from confluent_kafka import Producer

        client.create_topic(topic, message_format_version=_VERSIONS[magic])
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "api.version.request": "false",
                "broker.version.fallback": _VERSIONS[magic],
                "compression.codec": codec,
                "linger.ms": 5000,  # until the flush: one message alone would not be compressed
                "log_level": 2,
                "broker.address.family": "v4",
            }
        )
        for records in (legacy_records(20, 5), legacy_records(20, 6)):
            for record in records:
                producer.produce(
                    topic, record.value, record.key, 0, timestamp=record.timestamp_ms or 0
                )
            if producer.flush(_SECONDS):
                message = "librdkafka did not deliver everything"
                raise RuntimeError(message)

    def check(seen: Sequence[DumpedBatch], rows: Sequence[KafkaRecord]) -> bool:
        # On a slow machine a flush overtakes messages: one that is sent alone is not compressed.
        alone = (magic, "none")
        return _formats(seen) - {alone} == {(magic, codec)} - {alone} and len(rows) == 40

    return LegacyShape(make, check)


def _formats(seen: Sequence[DumpedBatch]) -> set[tuple[int, str]]:
    return {(batch.magic, batch.codec) for batch in seen}


def _mixed(broker: Broker, client: JavaClient, topic: str) -> None:
    client.create_topic(topic, message_format_version=_VERSIONS[0])
    for magic, version in _VERSIONS.items():
        client.alter_topic(topic, message_format_version=version)
        path = broker.log_dir / f"{topic}-0" / f"{0:020}.log"
        _produce_until(client, topic, path, magic)
        for codec in _CODECS:
            client.produce(topic, legacy_records(9, magic), compression_type=codec)


def _produce_until(client: JavaClient, topic: str, path: Path, magic: int) -> None:
    """Produce single records until the newest one is stored as `magic`."""

    def is_taken_up() -> bool:
        size = path.stat().st_size
        client.produce(topic, [Outgoing(b"k", b"which format?", (), _T0)])
        return path.read_bytes()[size + 16] == magic

    wait_for(is_taken_up, lambda: f"{topic} did not take up magic {magic}", _SECONDS)


def _is_mixed(seen: Sequence[DumpedBatch], rows: Sequence[KafkaRecord]) -> bool:
    wanted = {(magic, codec) for magic in _VERSIONS for codec in _CODECS}
    in_order = [batch.magic for batch in seen]
    return (
        wanted == _formats(seen)
        and in_order == sorted(in_order)
        and len({batch.file for batch in seen}) == 1
        and {row.timestamp_type for row in rows} == {-1, 0}
    )


def _segments(_: Broker, client: JavaClient, topic: str) -> None:
    client.create_topic(
        topic, message_format_version=_VERSIONS[1], segment_bytes=600, index_interval_bytes=200
    )
    client.produce(topic, legacy_records(60, 4), compression_type="gzip", batch_size=500)


def _are_segments(seen: Sequence[DumpedBatch], rows: Sequence[KafkaRecord]) -> bool:
    files = {batch.file for batch in seen}
    return _formats(seen) == {(1, "gzip")} and len(files) > 2 and len(rows) == 60


def _compacted(magic: int, codec: str) -> LegacyShape:
    def make(broker: Broker, client: JavaClient, topic: str) -> None:
        client.create_topic(
            topic,
            message_format_version=_VERSIONS[magic],
            cleanup_policy="compact",
            segment_ms=500,
            min_cleanable_dirty_ratio=0.01,
        )
        for update in range(3):
            records = _updates(update)
            client.produce(topic, records, compression_type=codec, batch_size=16_384)
        client.wait_until_compacted(broker.log_dir / f"{topic}-0", fewer_than=35)
        client.wait_until_settled(topic)

    def check(seen: Sequence[DumpedBatch], rows: Sequence[KafkaRecord]) -> bool:
        offsets = [row.offset for row in rows]
        return (
            {batch.magic for batch in seen} == {magic}
            and codec in {batch.codec for batch in seen}
            and (codec == "none" or any(batch.has_gaps for batch in seen))
            and len(offsets) < offsets[-1] - offsets[0] + 1
            and any(row.value is None for row in rows)
        )

    return LegacyShape(make, check)


def _updates(update: int) -> list[Outgoing]:
    """Twenty records: a few keys are updated often, a few once, and two never."""
    found = []
    for i in range(20):
        key = b"often %d" % (i % 4) if i % 3 else b"once %d" % i
        if i in (4, 11):
            key = b"only in update %d at %d" % (update, i)
        value = None if update == 2 and i % 6 == 0 else b"update %d " % update * 3
        found.append(Outgoing(key, value, (), _T0 + i))
    return found


LEGACY_SHAPES: dict[str, LegacyShape] = {
    "compacted.magic-0": _compacted(0, "none"),
    "compacted.magic-0-gzip": _compacted(0, "gzip"),
    "compacted.magic-1": _compacted(1, "none"),
    "compacted.magic-1-gzip": _compacted(1, "gzip"),
    **{f"magic-{magic}.{codec}": _plain(magic, codec) for magic in (0, 1) for codec in _CODECS},
    **{
        f"append-time.magic-{magic}.{codec}": _plain(magic, codec, "LogAppendTime")
        for magic in (0, 1)
        for codec in _CODECS
    },
    **{
        f"librdkafka.magic-{magic}.{codec}": _librdkafka(magic, codec)
        for magic in (0, 1)
        for codec in _CODECS
    },
    "mixed.magic-0-1-2": LegacyShape(_mixed, _is_mixed),
    "segments.magic-1.gzip": LegacyShape(_segments, _are_segments),
}
