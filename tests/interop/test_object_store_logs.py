"""A broker serves what a log in an object store holds, by a mirror and by a restoration."""

import shutil
import time
from pathlib import Path

import pyarrow as pa
import pytest
from kafka_here import Broker, JavaClient, assert_dump_is_sound
from kafka_here.java import KafkaRecord, Outgoing
from kafka_here.records import rows_of

import segmentlog
from segmentlog.model import Codec
from segmentlog.writes.config import ProducerConfig

pytestmark = pytest.mark.interop

_TOPIC, _N_PARTITIONS = "orders", 2
_KEEP = {"retention.ms": -1, "retention.bytes": -1}


def _write(url: str) -> None:
    """Commits of every codec, with headers, tombstones and times."""
    for number, codec in enumerate(Codec):
        rows = range(500 * number, 500 * (number + 1))
        header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        table = pa.table(
            {
                "key": pa.array([b"k%d" % i for i in rows]),
                "value": pa.array([None if i % 7 == 0 else b"%0100d" % i for i in rows]),
                "headers": pa.array([[("h", b"%d" % i)] if i % 3 else None for i in rows], header),
                "timestamp": pa.array([1_700_000_000_000 + i for i in rows], pa.timestamp("ms")),
            }
        )
        config = ProducerConfig(codec=codec, use_timestamps=True)
        n_partitions = None if number else _N_PARTITIONS
        with segmentlog.open_writer(
            url, _TOPIC, num_partitions=n_partitions, config=config
        ) as writer:
            writer.append(table)


def _records(path: str | Path) -> list[KafkaRecord]:
    opened = segmentlog.open_log_dir(path)
    return _in_order(
        [
            record
            for partition in range(_N_PARTITIONS)
            for record in rows_of(
                opened.log(_TOPIC, partition).scan(include_headers=True).read_all()
            )
        ]
    )


def _in_order(found: list[KafkaRecord]) -> list[KafkaRecord]:
    """Records as a consumer has them, by their places."""
    return sorted(
        (each._replace(headers=each.headers or None) for each in found), key=lambda each: each[:3]
    )


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["mirror", pytest.param("restore", marks=pytest.mark.slow)])
def test_a_broker_serves_it(way: str, tmp_path: Path) -> None:
    url = f"bucket+file://{tmp_path}/log"
    _write(url)
    expected = _records(url)
    assert len(expected) == 500 * len(Codec)
    broker = Broker(tmp_path / "kafka")
    with broker, JavaClient(broker) as client:
        client.create_topic(_TOPIC, _N_PARTITIONS, **_KEEP)
    if way == "restore":
        segmentlog.restore(url, to=broker.log_dir)
    else:
        segmentlog.mirror(url, to=tmp_path / "mirrored")
        # The topic of another cluster has another id, which stays: that of the broker's metadata.
        for partition in range(_N_PARTITIONS):
            name = f"{_TOPIC}-{partition}"
            for old in (broker.log_dir / name).glob("0*"):
                old.unlink()
            for new in (tmp_path / "mirrored" / name).glob("0*"):
                shutil.copy(new, broker.log_dir / name)
    with broker, JavaClient(broker) as client:
        assert expected == _in_order(client.consume(_TOPIC))
    assert_dump_is_sound(broker, f"{_TOPIC}-*")


def _backed_up(broker: Broker, url: str, ends: dict[int, int]) -> int:
    """Mirror a running broker up to some ends, which its checkpoint has after a while."""
    n_copied, until = 0, time.monotonic() + 60
    while time.monotonic() < until:
        done = segmentlog.mirror(broker.log_dir, to=url, topics=_TOPIC)
        n_copied += sum(each.n_copied for each in done)
        if ends == {each.partition: each.log_end_offset for each in done}:
            return n_copied
        time.sleep(0.2)
    raise AssertionError(f"the mirror does not reach {ends}")


@pytest.mark.slow
def test_a_backup_of_a_running_broker_comes_back(tmp_path: Path) -> None:
    """A broker serves its own log from the backup: records, transactions, and producers."""
    url, down = f"bucket+file://{tmp_path}/backup", tmp_path / "down"
    settings = {"replica.high.watermark.checkpoint.interval.ms": 200}
    broker = Broker(tmp_path / "kafka", settings=settings)
    kept = {**_KEEP, "segment.bytes": 1 << 20}
    with broker, JavaClient(broker) as client:
        client.create_topic(_TOPIC, _N_PARTITIONS, **kept)
        # With the times of now: a starting broker forgets producers by the times of their records.
        records = [
            Outgoing(b"k%d" % i, b"%01000d" % i, [("h", b"%d" % i)], None, i % 2)
            for i in range(3000)
        ]
        for codec in ("none", "zstd"):
            client.produce(_TOPIC, records, compression_type=codec)
        client.produce(_TOPIC, records[:10], transactions=["commit", "abort", "commit"])
        first = _backed_up(broker, url, {n: end for n, (_, end) in client.offsets(_TOPIC).items()})
        assert first > 3_000_000
        client.produce(_TOPIC, records[:20])
        opened = client.transactional_producer("open")
        opened.begin()
        opened.send(_TOPIC, records[:2])
        opened.abandon()
        ends = {n: end for n, (_, end) in client.offsets(_TOPIC).items()}
        assert 0 < _backed_up(broker, url, ends) < 50_000
        assert _backed_up(broker, url, ends) == 0
        producers = [client.active_producers(_TOPIC, n) for n in range(_N_PARTITIONS)]
        expected = {
            isolation: _in_order(client.consume(_TOPIC, isolation=isolation))
            for isolation in ("read_uncommitted", "read_committed")
        }
        assert len(expected["read_uncommitted"]) > len(expected["read_committed"]) > 6000
    compared = segmentlog.compare(broker.log_dir, url, topics=_TOPIC)
    assert [each.comparison for each in compared] == ["equal"] * _N_PARTITIONS
    assert [each for each in segmentlog.verify(url) if each.severity == "error"] == []

    segmentlog.mirror(url, to=down)
    for number in range(_N_PARTITIONS):
        partition = broker.log_dir / f"{_TOPIC}-{number}"
        shutil.rmtree(partition)
        shutil.copytree(down / partition.name, partition)
    (broker.log_dir / ".kafka_cleanshutdown").unlink()
    with broker, JavaClient(broker) as client:
        for isolation, found in expected.items():
            assert found == _in_order(client.consume(_TOPIC, isolation=isolation)), isolation
        assert producers == [client.active_producers(_TOPIC, n) for n in range(_N_PARTITIONS)]
        client.transactional_producer("open")  # which ends the transaction that was left
        client.wait_until_settled(_TOPIC)
        client.produce(_TOPIC, records[:20])
        ends = {n: end for n, (_, end) in client.offsets(_TOPIC).items()}
        assert 0 < _backed_up(broker, url, ends) < 50_000
    assert_dump_is_sound(broker, f"{_TOPIC}-*")
