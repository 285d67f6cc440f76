"""A broker serves what a log in an object store holds, by a mirror and by a restoration."""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from kafka_here import Broker, JavaClient, assert_dump_is_sound
from kafka_here.java import KafkaRecord
from kafka_here.rows import rows_of

import segmentlog
from segmentlog.model import Codec
from segmentlog.writes.config import ProducerConfig

pytestmark = [pytest.mark.interop, pytest.mark.thorough]

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
