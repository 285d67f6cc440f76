"""The same calls of a consumer to a broker, and to `segmentlog serve` on its files.

``SERVE_CALLS_SEED`` chooses the topics and the calls, ``SERVE_CALLS`` how many consumers.
"""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from kafka_here import Broker, JavaClient
from waiting import wait_for

import segmentlog

pytestmark = [pytest.mark.interop, pytest.mark.thorough]

_FIRST_MS = 1_700_000_000_000
_N_CALLS = int(os.environ.get("SERVE_CALLS", "10"))
_SEED = int(os.environ.get("SERVE_CALLS_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
_TOPICS = {"plain": 3, "paid": 2, "compacted": 1, "deleted": 1}
_PATIENCE = 20.0

Event = tuple[Any, ...]


def _client(servers: str, **settings: Any) -> dict[str, Any]:
    names = {name.replace("_", "."): value for name, value in settings.items()}
    return {
        "bootstrap.servers": servers,
        "broker.address.family": "v4",
        "log_level": 0,
        **names,
    }


def _produce(broker: Broker, topic: str, n: int, rng: random.Random) -> None:
    """Records of one producer, of transactions that are committed or aborted, or of none."""
    in_transactions = topic == "paid" or rng.random() < 0.3
    settings: dict[str, Any] = {
        "batch_num_messages": rng.choice([1, 3, 50]),
        "compression_type": rng.choice(["none", "zstd", "lz4", "gzip", "snappy"]),
    }
    if in_transactions:
        settings["transactional_id"] = f"{topic}-{n}"
    producer = confluent_kafka.Producer(_client(broker.bootstrap_servers, **settings))
    if in_transactions:
        producer.init_transactions()
    for _ in range(rng.randint(1, 3)):
        if in_transactions:
            producer.begin_transaction()
        for _ in range(rng.randint(1, 40)):
            producer.produce(
                topic,
                rng.choice([None, b"", rng.randbytes(rng.choice([10, 900]))]),
                b"k%d" % rng.randrange(15),
                rng.randrange(_TOPICS[topic]),
                timestamp=_FIRST_MS + rng.randint(0, 6_000),
                headers={"h": rng.randbytes(3)} if rng.random() < 0.3 else None,
            )
        producer.flush()
        if in_transactions:
            rng.choice([producer.commit_transaction, producer.abort_transaction])()


class _Calls:
    """A consumer that is told what to do; what it sees."""

    def __init__(self, servers: str, rng: random.Random) -> None:
        self._rng = rng
        settings = {
            "group_id": "calls",
            "enable_auto_commit": False,
            "enable_partition_eof": True,
            "isolation_level": rng.choice(["read_committed", "read_uncommitted"]),
            "auto_offset_reset": rng.choice(["earliest", "latest", "error"]),
            "fetch_message_max_bytes": rng.choice([1, 2_000, 1 << 20]),
            "fetch_wait_max_ms": 10,
            "check_crcs": True,
        }
        self._consumer = confluent_kafka.Consumer(_client(servers, **settings))
        self.seen: list[Event] = [tuple(settings.items())]

    def run(self, ends: dict[tuple[str, int], int]) -> list[Event]:
        """Some random calls, and what each of them has shown."""
        rng = self._rng
        calls: list[Callable[..., None]] = [
            self._from, self._from, self._sought, self._paused, self._times, self._bounds,
            self._all,
        ]  # fmt: skip
        for _ in range(rng.randint(2, 6)):
            topic, partition = rng.choice([*ends])
            rng.choice(calls)(topic, partition, ends[topic, partition])
        self._consumer.close()
        return self.seen

    def _some(self, n: int, places: int = 1) -> None:
        """Up to `n` records, or all up to the ends of so many partitions."""
        by_partition: dict[Any, list[Event]] = {}
        until, n_ends = time.monotonic() + _PATIENCE, 0
        while n and n_ends < places and time.monotonic() < until:
            message = self._consumer.poll(0.5)
            if message is None:
                continue
            events = by_partition.setdefault((message.topic(), message.partition()), [])
            error = message.error()
            if error is None:
                n -= 1
                events.append(
                    (
                        message.offset(),
                        message.key(),
                        message.value(),
                        message.timestamp(),
                        message.headers(),
                        message.leader_epoch(),
                    )
                )
            else:
                n_ends += 1
                events.append((error.name(), message.offset()))
        assert time.monotonic() < until, "nothing more came"
        self.seen.append(("records", sorted(by_partition.items())))

    def _from(self, topic: str, partition: int, end: int) -> None:
        places = [*range(end + 1), end + 5, confluent_kafka.OFFSET_BEGINNING]
        offset = self._rng.choice([*places, confluent_kafka.OFFSET_END])
        self._consumer.assign([TopicPartition(topic, partition, offset)])
        self.seen.append(("from", topic, partition, offset))
        self._some(self._rng.choice([1, 5, 1_000]))
        self._positions(topic, partition)

    def _positions(self, topic: str, partition: int) -> None:
        found = self._consumer.position([TopicPartition(topic, partition)])
        self.seen.append(("position", [each.offset for each in found]))

    def _sought(self, topic: str, partition: int, end: int) -> None:
        first, then = self._rng.randint(0, end), self._rng.randint(0, end)
        self._consumer.assign([TopicPartition(topic, partition, first)])
        self._some(1)
        try:
            self._consumer.seek(TopicPartition(topic, partition, then))
        except confluent_kafka.KafkaException:  # the first place has ended the fetches: `error`
            self._consumer.assign([TopicPartition(topic, partition, then)])
        self.seen.append(("seek", topic, partition, first, then))
        self._some(self._rng.choice([1, 7, 1_000]))
        self._positions(topic, partition)

    def _paused(self, topic: str, partition: int, end: int) -> None:
        place = TopicPartition(topic, partition, self._rng.randint(0, end))
        self._consumer.assign([place])
        self._some(2)
        self._consumer.pause([place])
        assert self._consumer.poll(0.05) is None
        self._consumer.resume([place])
        self._some(self._rng.choice([3, 1_000]))

    def _times(self, topic: str, partition: int, _: int) -> None:
        asked = TopicPartition(topic, partition, _FIRST_MS + self._rng.randint(-500, 6_500))
        found = self._consumer.offsets_for_times([asked], timeout=_PATIENCE)
        self.seen.append(("times", topic, partition, asked.offset, found[0].offset))

    def _bounds(self, topic: str, partition: int, _: int) -> None:
        place = TopicPartition(topic, partition)
        found = self._consumer.get_watermark_offsets(place, timeout=_PATIENCE)
        self.seen.append(("bounds", topic, partition, found))

    def _all(self, topic: str, _: int, __: int) -> None:
        places = [TopicPartition(topic, each, 0) for each in range(_TOPICS[topic])]
        self._consumer.assign(places)
        self.seen.append(("all", topic))
        self._some(1 << 30, len(places))


def _is_better(found: Event, expected: Event) -> bool:
    """Whether a time is found that a broker does not find, as serve.md says.

    It looks into the first segment that is new enough alone, where nothing may be left of it.
    """
    is_time = found[0] == "times" and found[1] in {"compacted", "deleted"}
    return is_time and found[:-1] == expected[:-1] and expected[-1] == -1


def _files(directory: Path) -> set[tuple[str, int]]:
    return {(str(each), each.stat().st_size) for each in directory.glob("compacted-0/*.log")}


def test_a_consumer_sees_what_it_sees_from_a_broker(tmp_path: Path) -> None:
    """Transactions, compacted and deleted records; from any place, by time, after pauses."""
    rng = random.Random(_SEED)
    settings = {"log.cleaner.backoff.ms": 100, "log.initial.task.delay.ms": 100}
    with Broker(tmp_path / "kafka", settings=settings) as broker:
        with JavaClient(broker) as client:
            for topic, n in _TOPICS.items():
                compacts = {
                    "cleanup_policy": "compact",
                    "min_cleanable_dirty_ratio": 0.01,
                    "max_compaction_lag_ms": 100,
                }
                client.create_topic(
                    topic,
                    n,
                    segment_ms=300,
                    retention_ms=-1,
                    index_interval_bytes=rng.choice([300, 4_096]),
                    **(compacts if topic == "compacted" else {}),
                )
        for n in range(30):
            _produce(broker, rng.choice([*_TOPICS]), n, rng)
            time.sleep(rng.choice([0, 0, 0.35]))
        for topic in _TOPICS:
            _produce(broker, topic, 100, rng)
        consumer = confluent_kafka.Consumer(_client(broker.bootstrap_servers, group_id="ends"))
        ends = {
            (topic, each): consumer.get_watermark_offsets(TopicPartition(topic, each), 10)[1]
            for topic, n in _TOPICS.items()
            for each in range(n)
        }
        consumer.close()
        place = TopicPartition("deleted", 0, rng.randint(0, ends["deleted", 0]))
        admin = AdminClient(_client(broker.bootstrap_servers))
        (deleted,) = admin.delete_records([place]).values()
        deleted.result()
        states = [_files(broker.log_dir)]

        def is_clean() -> bool:
            time.sleep(0.5)
            states.append(_files(broker.log_dir))
            return len(states) > 3 and states[-1] == states[-2] == states[-3]

        wait_for(is_clean, lambda: "it is still cleaned")
        with segmentlog.serve(broker.log_dir, read_up_to="logEnd") as server:
            for i in range(_N_CALLS):
                theirs, ours = (
                    _Calls(each, random.Random(f"{_SEED}-{i}")).run(ends)
                    for each in (broker.bootstrap_servers, server.bootstrap_servers)
                )
                for found, expected in zip(ours, theirs, strict=True):
                    if _is_better(found, expected):
                        continue
                    assert found == expected, f"SERVE_CALLS_SEED={_SEED}, {i}: {ours[0]}"
