"""A broker serves each log from which keys were erased, and Kafka loads it after any cut."""

import shutil
from pathlib import Path

import pytest
from crashing import CALLS, Crash, Forward, around_calls, crash_at
from dirty_logs import Kind, dirty_log, write_segments
from kafka_here import Broker, JavaClient, assert_dump_is_sound, objections, shapes
from kafka_here.gateway import Gateway
from kafka_here.java import KafkaRecord, Outgoing
from kafka_here.log_classes import KafkaLogs
from kafka_here.records import rows_of

import segmentlog
from segmentlog.txn.guard import GUARD_PREFIX

pytestmark = [pytest.mark.interop, pytest.mark.thorough]

NOW_MS = 1_800_000_000_000
KEYS = [b"key-1", b"key-16", b"", b"k", b"k1", b"k3"]


def without(records: list[KafkaRecord]) -> list[KafkaRecord]:
    """The records with other keys, or without a key."""
    return [each for each in records if each.key not in KEYS]


def read(log_dir: Path, topic: str, isolation: str) -> list[KafkaRecord]:
    """The records that our reader finds."""
    opened = segmentlog.open_log_dir(log_dir)
    return [
        row
        for partition in opened.topics()[topic]
        for row in rows_of(
            opened.log(topic, partition)
            .scan(include_headers=True, isolation_level=isolation)
            .read_all()
        )
    ]


@pytest.mark.parametrize("version", ["4.3.1"], indirect=True)
def test_a_broker_serves_all_other_records(filled: tuple, version: str, tmp_path: Path) -> None:
    """All shapes of real producers are served without the keys, with and without aborted records.

    The broker objects to nothing when it starts, and the logs grow again.  The compacted topic is
    left out, because the broker may compact it again.
    """
    stopped, made = filled
    topics = [topic for topic in shapes.SHAPES if topic != "compacted"]
    broker = Broker(tmp_path / "kafka", version)
    shutil.copytree(stopped.log_dir, broker.log_dir)
    expected = {
        (topic, isolation): without(read(broker.log_dir, topic, isolation))
        for topic in topics
        for isolation in ("read_uncommitted", "read_committed")
    }
    done = segmentlog.erase(broker.log_dir, KEYS, topics)
    assert {"java-zstd", "transactions"} <= {each.topic for each in done}
    assert sum(each.emptied_batches for each in done) > 0
    for topic in topics:
        assert without(list(made.rows[topic])) == expected[topic, "read_uncommitted"]
    assert_dump_is_sound(broker, *(f"{topic}-*" for topic in topics))
    with broker, JavaClient(broker) as client:
        ends = {topic: client.offsets(topic) for topic in topics}
        for isolation in ("read_uncommitted", "read_committed"):
            served = client.consume_each(topics, isolation=isolation)
            for topic in topics:
                assert expected[topic, isolation] == served[topic], (topic, isolation)
        for topic in topics:
            client.produce(topic, [Outgoing(b"1", b"again", partition=0)])
            (added,) = client.consume(topic)[-1:] if len(ends[topic]) == 1 else [None]
            assert added is None or (added.offset, added.key) == (ends[topic][0][1], b"1")

    assert [] == objections(broker)


@pytest.mark.parametrize(
    "stride", [11, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_kafka_loads_the_log_after_every_step(java: Gateway, tmp_path: Path, stride: int) -> None:
    """Our reader finds the records that Kafka's loader finds, and no other record is lost.

    Segments without the key lie between segments with it.
    """
    made = tmp_path / "made"
    kind = Kind(producers=2, n_keys=20, n_batches=40, n_records=3)
    write_segments(made / "t-0", dirty_log(4, kind, NOW_MS), NOW_MS)
    settings = {"t": {"internal.segment.bytes": 3000}}
    with KafkaLogs(java, made, settings, NOW_MS):
        pass
    rows = rows_in(made)
    key = max({key for _, key in rows if key}, key=[key for _, key in rows].count)
    after = [each for each in rows if each[1] != key]
    (planned,) = segmentlog.erase(made, key, dry_run=True)
    n_segments = len(segmentlog.open_log_dir(made).log("t", 0).segments)
    n_calls = count_calls(Path(shutil.copytree(made, tmp_path / "counted")), key)
    sizes = set()
    for number in range(stride // 2, n_calls, stride):
        directory = Path(shutil.copytree(made, tmp_path / str(number)))
        with pytest.MonkeyPatch.context() as patch:
            crash_at(patch, number)
            with pytest.raises(Crash):
                segmentlog.erase(directory, key)
        seen = rows_in(directory)
        sizes.add(len(seen))
        assert after == [each for each in seen if each[1] != key], number
        if not [*directory.glob(f"{GUARD_PREFIX}*")]:  # a broker does not start beside a guard
            with KafkaLogs(java, directory, settings, NOW_MS) as logs:
                assert rows[-1][0] < logs.log("t").logEndOffset()
            assert seen == rows_in(directory), number
            assert not [*directory.glob("t-0/*.swap"), *directory.glob("t-0/*.cleaned")], number
        segmentlog.erase(directory, key)
        assert after == rows_in(directory), number
        shutil.rmtree(directory)

    assert 2 < len(planned.segments) < n_segments
    assert len(sizes) > 2


def rows_in(directory: Path) -> list[tuple[int, bytes | None]]:
    """Offsets and keys of all records."""
    table = segmentlog.open_log_dir(directory).log("t", 0).scan().read_all()
    return list(zip(table["offset"].to_pylist(), table["key"].to_pylist(), strict=True))


def count_calls(directory: Path, key: bytes) -> int:
    """Calls by which an erasure changes the disk."""
    made = 0

    def count(_: str, forward: Forward) -> object:
        nonlocal made
        made += 1
        return forward()

    with pytest.MonkeyPatch.context() as patch:
        around_calls(patch, CALLS, count)
        segmentlog.erase(directory, key)
    return made
