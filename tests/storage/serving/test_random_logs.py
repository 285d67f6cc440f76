"""Random logs: consumers get what `segmentlog.read` gives, from any offset on."""

import random
from pathlib import Path
from typing import Any

import pytest
from kafka_protocol import RawClient, consume

import segmentlog
from segmentlog.testing.kafka_log import KafkaLog, Transaction

confluent_kafka = pytest.importorskip("confluent_kafka")

LEVELS = ("read_committed", "read_uncommitted")
STEPS = [*2 * ("write", "begin", "end"), "end", "gap", "roll", "compact", "delete"]
Rows = list[tuple[int, bytes | None]]


def make(path: Path, rng: random.Random) -> KafkaLog:
    """A log of transactions that overlap, gaps, rolls, compactions and a moved start."""
    made = KafkaLog(path)
    made.write("t", ["first"], num_partitions=1)
    unfinished: list[Transaction] = []
    for _ in range(rng.randint(5, 30)):
        rows: list[Any] = [
            {"key": f"k{rng.randint(0, 9)}", "value": rng.randbytes(rng.choice([0, 50, 500]))}
            for _ in range(rng.randint(1, 6))
        ]
        step = rng.choice(STEPS)
        if step == "write":
            made.write("t", rows)
        elif step == "begin":
            unfinished.append(made.transaction())
            unfinished[-1].write("t", rows)
        elif step == "end" and unfinished:
            one = unfinished.pop(rng.randrange(len(unfinished)))
            if rng.random() < 0.5:
                one.write("t", rows)
            rng.choice([one.commit, one.abort])()
        elif step == "gap":
            made.gap("t", rng.randint(1, 50))
        elif step == "roll":
            with segmentlog.open_writer(path, "t") as writer:
                writer.roll()
        elif step == "compact":
            made.compact("t")
        elif step == "delete":
            log = segmentlog.open_log_dir(path).log("t", 0)
            made.delete_records("t", rng.randint(log.log_start_offset, log.log_end_offset - 1))
    return made


def by_librdkafka(servers: str, level: str, offset: int) -> Rows:
    """All records from an offset on."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "g",
            "enable.partition.eof": True,
            "isolation.level": level,
            "fetch.wait.max.ms": 10,
            "check.crcs": True,
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([confluent_kafka.TopicPartition("t", 0, offset)])
    found: Rows = []
    try:
        while True:
            message = consumer.poll(10)
            assert message is not None, "neither a record nor the end"
            error = message.error()
            if error is None:
                found.append((message.offset(), message.value()))
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                return found
            else:
                raise confluent_kafka.KafkaException(error)
    finally:
        consumer.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_consumers_get_what_is_read(tmp_path: Path, seed: int) -> None:
    """A batch at a time, some, and all at once; also with librdkafka."""
    rng = random.Random(seed)
    made = make(tmp_path / "kafka", rng)
    log = segmentlog.open_log_dir(made.path).log("t", 0)
    start, end = log.log_start_offset, log.log_end_offset
    with segmentlog.serve(made.path) as server, RawClient(server.bootstrap_servers) as client:
        for level in LEVELS:
            rows = log.scan(isolation_level=level).read_all()
            columns = rows.column("offset").to_pylist(), rows.column("value").to_pylist()
            expected = list(zip(*columns, strict=True))
            for n_bytes in (1, rng.randint(1, 2_000), 1 << 20):
                at = rng.randint(start, end)
                found = consume(
                    client,
                    "t",
                    0,
                    offset=at,
                    is_committed=level == "read_committed",
                    max_bytes=n_bytes,
                )
                assert [each for each in expected if each[0] >= at] == [
                    (each.offset, each.value) for each in found
                ]
            assert expected == by_librdkafka(server.bootstrap_servers, level, start)
        assert 1 == client.fetch("t", 0, end + 1).error_code
        assert (1 if start else 0) == client.fetch("t", 0, max(start - 1, 0)).error_code
        assert log.last_stable_offset() == client.list_offset("t", 0, -1, 1).offset
