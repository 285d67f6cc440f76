"""Messages of magic 0 and 1 as Kafka 2.8 leaves them, against that broker's own consumer."""

import pytest
from kafka_here import JavaClient, OldBroker, legacy_shapes
from kafka_here.rows import rows_of

import segmentlog

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def stopped(old_version: str, tmp_path_factory: pytest.TempPathFactory) -> tuple:
    """Log directory of a broker that held every legacy shape, records, and dumped batches."""
    broker = OldBroker(tmp_path_factory.mktemp("kafka"), old_version)
    with broker, JavaClient(broker) as client:
        for topic, shape in legacy_shapes.LEGACY_SHAPES.items():
            shape.make(broker, client, topic)
        records = {topic: client.consume(topic) for topic in legacy_shapes.LEGACY_SHAPES}
        # Asked for a time in a topic of magic 0, this broker refuses.
        topics = [topic for topic in records if topic.startswith(("magic-1", "mixed", "segments"))]
        times = [(topic, 1_700_000_000_000 + t) for topic in topics for t in (-6000, 0, 150, 9000)]
        answers = [client.offset_for_timestamp(topic, 0, time) for topic, time in times]
    dump = broker.dump(sorted(broker.log_dir.glob("*/*.log")))
    looked_up = [(*asked, answer) for asked, answer in zip(times, answers, strict=True)]
    return broker.log_dir, records, legacy_shapes.dumped_batches(dump), looked_up


@pytest.mark.parametrize("topic", legacy_shapes.LEGACY_SHAPES)
def test_rows_equal_the_consumers(stopped: tuple, topic: str) -> None:
    """Every field of every record is what the broker's own consumer returned."""
    log_dir, records, seen, _ = stopped

    shape = legacy_shapes.LEGACY_SHAPES[topic]
    assert shape.check(seen[topic], records[topic]), "the shape is not in the data"
    table = segmentlog.open_log_dir(log_dir).log(topic, 0).scan(include_headers=True).read_all()
    assert records[topic] == rows_of(table)


def test_every_offset_is_where_the_log_can_be_cut(stopped: tuple) -> None:
    """A read may start and end at any offset, also in the middle of a compressed set."""
    log_dir, records, _, _ = stopped
    directory = segmentlog.open_log_dir(log_dir)
    for topic in ("magic-0.gzip", "magic-1.lz4", "compacted.magic-1-gzip", "mixed.magic-0-1-2"):
        log = directory.log(topic, 0)
        offsets = [record.offset for record in records[topic]]
        for start in range(0, log.log_end_offset, 3):
            end = min(start + 5, log.log_end_offset)
            found = log.scan(start, end, columns=["offset"]).read_all()["offset"].to_pylist()

            assert [offset for offset in offsets if start <= offset < end] == found, (topic, start)


def test_look_ups_by_time_answer_as_the_broker_did(stopped: tuple) -> None:
    """The first offset at or after a time; by the broker's own answers."""
    log_dir, _, _, looked_up = stopped
    directory = segmentlog.open_log_dir(log_dir)
    for topic, time, answer in looked_up:
        found = directory.log(topic, 0).offset_for_timestamp(time)

        assert answer == (None if found is None else found.offset), (topic, time)
