"""Make the directories beside this file with real brokers, and the manifest of their files.

Run from the top of the checkout: ``python tests/golden/make_golden.py [version ...]``.
"""

import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))

from golden_manifest import MANIFEST, write_manifest  # noqa: E402
from kafka_here import (  # noqa: E402
    Broker,
    JavaClient,
    KafkaRecord,
    OldBroker,
    legacy_shapes,
    shapes,
)
from kafka_here.golden import Expected, checksums, copy_log_dir, write_expected  # noqa: E402
from kafka_here.java import Outgoing  # noqa: E402
from waiting import wait_for  # noqa: E402

VERSIONS = ("2.8.2", "3.9.2", "4.3.1")
_NODES = {
    "2": "one broker with ZooKeeper, stopped cleanly",
    "3": "one KRaft node, stopped cleanly",
    "4": "one KRaft node, stopped cleanly",
}


_T0 = 1_700_000_000_000
_FAR_MS = 4_000_000_000_000  # in 2096, so that retention by time leaves it
_NEVER_MS = 2**40

#: Retention runs all the time; the topics that must not lose anything have none.
BROKER_SETTINGS = {"log.retention.check.interval.ms": 300, "log.initial.task.delay.ms": 300}


class GoldenTopic(NamedTuple):
    """A recipe for a topic, its contents, and a check of its dump."""

    make: Callable[[Broker, JavaClient, str], None]
    about: str
    check: Callable[[Sequence[Mapping[str, str]], Sequence[KafkaRecord]], bool]


def golden_topics(version: str) -> dict[str, GoldenTopic]:
    """Topics to make on a broker of `version`; those of Kafka 2 are of magic 0 and 1."""
    if version.startswith("2"):
        return _legacy()
    # Kafka 4 does not allow applications to set segments below 1 MiB by the usual name.
    return _current("segment_bytes" if version.startswith("3") else "internal_segment_bytes")


_LEGACY_ABOUT = {
    "append-time": "60 records with message.timestamp.type=LogAppendTime",
    "compacted": "compacted by the broker's cleaner: gaps, also inside of sets; tombstones",
    "librdkafka": "two sets of 20 records that librdkafka made itself",
    "magic-0": "60 records, keys and values of mixed sizes, some null, some empty",
    "magic-1": "60 records, keys and values of mixed sizes, some null, some empty",
    "mixed": "one segment, message.format.version raised from 0.9.0 to 0.10.2 to 2.8; all codecs",
    "segments": "60 records in several segments with indexes",
}


def _legacy() -> dict[str, GoldenTopic]:
    left_out = (".snappy", "magic-1.none", ".gzip")  # elsewhere in the same form
    return {
        name: GoldenTopic(
            shape.make, _LEGACY_ABOUT[name.partition(".")[0]], lambda seen, rows: True
        )
        for name, shape in legacy_shapes.LEGACY_SHAPES.items()
        if not (name.startswith(("append-time", "librdkafka")) and name.endswith(left_out))
    }


def _codec(codec: str) -> GoldenTopic:
    def make(_: Broker, client: JavaClient, topic: str) -> None:
        client.create_topic(topic)
        records = shapes.mixed_records(40)
        client.produce(topic, records, compression_type=codec, batch_size=1500)

    def check(seen: Sequence[Mapping[str, str]], rows: Sequence[KafkaRecord]) -> bool:
        codecs = {batch["compresscodec"].lower() for batch in seen}
        return codecs == {codec} and len(seen) > 1 and len(rows) == 40

    return GoldenTopic(make, f"40 records, {codec}; some with headers, null or empty", check)


def _numbered(n: int, size: int = 40, at: int = _T0) -> list[Outgoing]:
    return [Outgoing(b"k%d" % i, b"%-*d" % (size, i), (), at + i) for i in range(n)]


def _append_time(codec: str) -> Callable[[Broker, JavaClient, str], None]:
    def make(_: Broker, client: JavaClient, topic: str) -> None:
        client.create_topic(topic, message_timestamp_type="LogAppendTime")
        for _turn in range(2):
            client.produce(topic, _numbered(15), compression_type=codec)

    return make


def _transactions(setting: str) -> Callable[[Broker, JavaClient, str], None]:
    """Three producers with concurrent transactions, and records outside of any transaction."""

    def make(_: Broker, client: JavaClient, topic: str) -> None:
        client.create_topic(
            topic, segment_ms=_NEVER_MS, index_interval_bytes=100, **{setting: 900}
        )
        one, two, three = (
            client.producer(
                transactional_id=f"{topic}-{i}",
                compression_type=codec,
                transaction_timeout_ms=900_000,
            )
            for i, codec in enumerate(["none", "lz4", "none"])
        )
        for producer in (one, two, three):
            producer.initTransactions()
        for turn in range(3):
            one.beginTransaction()
            client.send(one, topic, _numbered(3))
            two.beginTransaction()
            client.send(two, topic, _numbered(4))
            client.produce(topic, _numbered(2))
            client.send(one, topic, _numbered(2))
            (one.abortTransaction if turn == 1 else one.commitTransaction)()
            client.send(two, topic, _numbered(1))
            (two.commitTransaction if turn == 1 else two.abortTransaction)()
        three.beginTransaction()
        client.send(three, topic, _numbered(2))
        one.beginTransaction()
        client.send(one, topic, _numbered(2))
        one.commitTransaction()
        client.produce(topic, _numbered(2))
        one.close()
        two.close()
        # The third is not closed: that would abort what is to stay open.

    return make


def _has_transactions(seen: Sequence[Mapping[str, str]], rows: Sequence[KafkaRecord]) -> bool:
    controls = [batch for batch in seen if batch["isControl"] == "true"]
    lz4 = any(batch["compresscodec"].lower() == "lz4" for batch in seen)
    return len(controls) == 7 and lz4 and len({batch["file"] for batch in seen}) > 2


def _compacted_transactions(broker: Broker, client: JavaClient, topic: str) -> None:
    client.create_topic(
        topic, cleanup_policy="compact", segment_ms=500, min_cleanable_dirty_ratio=0.01
    )
    for keys, ends in ((range(8), ["abort", "commit"]), (range(4, 12), ["commit", "abort"])):
        records = [Outgoing(b"k%d" % i, b"v", (), _T0 + i) for i in keys]
        client.produce(topic, records, transactions=ends)
    client.wait_until_compacted(broker.log_dir / f"{topic}-0", fewer_than=22)
    client.wait_until_settled(topic)


def _is_cleaned(seen: Sequence[Mapping[str, str]], rows: Sequence[KafkaRecord]) -> bool:
    controls = [batch for batch in seen if batch["isControl"] == "true"]
    horizon = any(batch["deleteHorizonMs"] != "OptionalLong.empty" for batch in controls)
    return horizon and len(controls) == 4 and len(rows) < 22


def _deleted_records(_: Broker, client: JavaClient, topic: str) -> None:
    client.create_topic(topic)
    for _turn in range(3):
        client.produce(topic, _numbered(20))
    client.delete_records(topic, 0, 27)


def _retention(
    setting: str, limit: Mapping[str, int], last_at: int = _FAR_MS
) -> Callable[[Broker, JavaClient, str], None]:
    """A topic whose first segments are removed by retention."""

    def make(_: Broker, client: JavaClient, topic: str) -> None:
        client.create_topic(
            topic,
            segment_ms=_NEVER_MS,
            index_interval_bytes=100,
            file_delete_delay_ms=100,
            **{setting: 700},
        )
        client.produce(topic, _numbered(30), batch_size=300)
        client.produce(topic, _numbered(30, at=last_at), batch_size=300)
        client.alter_topic(topic, **limit)
        wait_for(lambda: client.offsets(topic)[0][0], lambda: f"retention took nothing: {topic}")
        client.wait_until_settled(topic)

    return make


def _segments(setting: str) -> Callable[[Broker, JavaClient, str], None]:
    def make(_: Broker, client: JavaClient, topic: str) -> None:
        client.create_topic(topic, 3, index_interval_bytes=200, **{setting: 1500})
        records = [
            record._replace(partition=i % 2) for i, record in enumerate(_numbered(100, size=60))
        ]  # partition 2 stays empty
        client.produce(topic, records, batch_size=400)

    return make


def _files(seen: Sequence[Mapping[str, str]]) -> int:
    return len({batch["file"] for batch in seen})


def _settled(broker: Broker, client: JavaClient, topic: str) -> None:
    """A compacted topic as the cleaner leaves it."""
    shapes.SHAPES["compacted"].make(broker, client, topic)
    client.wait_until_settled(topic)


def _current(setting: str) -> dict[str, GoldenTopic]:
    return {
        **{f"codec-{codec}": _codec(codec) for codec in shapes.CODECS},
        "append-time": GoldenTopic(
            _append_time("none"),
            "message.timestamp.type=LogAppendTime, two batches",
            lambda seen, rows: all("LogAppendTime" in batch for batch in seen),
        ),
        "append-time-zstd": GoldenTopic(
            _append_time("zstd"),
            "message.timestamp.type=LogAppendTime, two batches, zstd",
            lambda seen, rows: all("LogAppendTime" in batch for batch in seen),
        ),
        "headers": GoldenTopic(
            shapes.SHAPES["headers.of-every-kind"].make,
            "headers of every kind",
            lambda seen, rows: len(rows) == 24,
        ),
        "nulls": GoldenTopic(
            shapes.SHAPES["nulls"].make,
            "null and empty keys and values",
            lambda seen, rows: len(rows) == 45,
        ),
        "transactions": GoldenTopic(
            _transactions(setting),
            "transactions side by side, committed, aborted and one left open; small segments",
            _has_transactions,
        ),
        "compacted": GoldenTopic(
            _settled,
            "compacted by the broker's cleaner: tombstones, gaps, emptied batches, horizons",
            shapes.SHAPES["compacted"].check,
        ),
        "compacted-transactions": GoldenTopic(
            _compacted_transactions,
            "aborted and committed transactions, compacted: markers alone, with horizons",
            _is_cleaned,
        ),
        "deleted-records": GoldenTopic(
            _deleted_records,
            "DeleteRecords up to offset 27, in the middle of a batch",
            lambda seen, rows: [row.offset for row in rows] == list(range(27, 60)),
        ),
        "retention-by-size": GoldenTopic(
            _retention(setting, {"retention_bytes": 1500}),
            "the first segments are gone by retention.bytes",
            lambda seen, rows: rows[0].offset > 0 and _files(seen) > 1,
        ),
        "retention-by-time": GoldenTopic(
            _retention(setting, {"retention_ms": 1000}),
            "the first segments are gone by retention.ms",
            lambda seen, rows: rows[0].offset > 0 and _files(seen) > 1,
        ),
        "retention-of-all": GoldenTopic(
            _retention(setting, {"retention_ms": 1000}, _T0),
            "all records are gone by retention.ms; an empty segment is left",
            lambda seen, rows: not seen and not rows,
        ),
        "segments": GoldenTopic(
            _segments(setting),
            "several segments with indexes; partition 2 is empty",
            lambda seen, rows: _files(seen) > 3 and len(rows) == 100,
        ),
    }


def make(version: str) -> dict[str, object]:
    """Make a directory with a broker, and keep it; return its part of the manifest."""
    topics = golden_topics(version)
    with tempfile.TemporaryDirectory() as scratch:
        kind = OldBroker if version.startswith("2") else Broker
        broker = kind(Path(scratch), version, settings=BROKER_SETTINGS)
        with broker, JavaClient(broker) as client:
            for topic, golden in topics.items():
                golden.make(broker, client, topic)
            expected = {topic: ask(client, topic) for topic in topics}
        check(broker, version, expected)
        target = HERE / f"kafka-{version}"
        copy_log_dir(broker.log_dir, target, ["__*-[0-9]*"])
    write_expected(HERE / f"kafka-{version}.expected.json", expected)
    return {
        "version": version,
        "made": _NODES[version[0]],
        "topics": {topic: golden.about for topic, golden in topics.items()},
        "files": {path: digest for path, (_, digest) in checksums(target).items()},
    }


def ask(client: JavaClient, topic: str) -> dict[int, Expected]:
    """The broker's answers for each partition of a topic, at both isolation levels."""
    records, committed = client.consume(topic), client.consume(topic, isolation="read_committed")
    ends = client.offsets(topic)
    stable = client.offsets(topic, isolation="read_committed")
    offsets = {(row.partition, row.offset) for row in committed}
    if [row for row in records if row[1:3] in offsets] != committed:
        message = f"{topic}: committed records are not among the uncommitted ones"
        raise RuntimeError(message)
    return {
        number: Expected(
            *ends[number],
            stable[number][1],
            [row for row in records if row.partition == number],
            [row.offset for row in committed if row.partition == number],
        )
        for number in sorted(ends)
    }


def check(broker: Broker, version: str, expected: Mapping[str, Mapping[int, Expected]]) -> None:
    """Check with a dump that each topic has the intended contents."""
    dump = broker.dump(sorted(broker.log_dir.glob("[!_]*/*.log")))
    seen = shapes.batches(dump)
    for topic, golden in golden_topics(version).items():
        rows = [row for each in expected[topic].values() for row in each.records]
        if not golden.check(seen.get(topic, []), rows):
            message = f"{topic} of {version} is not what it should be: {seen.get(topic)}"
            raise RuntimeError(message)


def main() -> None:
    """Make the given versions, or all; the manifest keeps its other versions."""
    parts = tomllib.loads(MANIFEST.read_text()) if MANIFEST.exists() else {}
    for version in sys.argv[1:] or VERSIONS:
        parts[f"kafka-{version}"] = make(version)
        write_manifest(parts)


if __name__ == "__main__":
    main()
