"""Messages of magic 0 and 1 of Kafka 2.8, against that broker's own consumer."""

import dataclasses
import itertools
import random
from pathlib import Path

import pytest
from kafka_here import JavaClient, OldBroker, legacy_shapes
from kafka_here.records import rows_of
from kafka_protocol import RawClient

import segmentlog

# An older broker; `tests/golden` has a directory of it.
pytestmark = [pytest.mark.interop, pytest.mark.slow]

_LATEST = -1
_NO_TIMES = 43  # UNSUPPORTED_FOR_MESSAGE_FORMAT, which newer brokers do not say any more


@pytest.mark.parametrize("topic", legacy_shapes.LEGACY_SHAPES)
def test_rows_equal_the_consumers(legacy: tuple, topic: str) -> None:
    """Every field of every record equals what the broker's own consumer returned."""
    log_dir, records, dump, _ = legacy
    seen = legacy_shapes.dumped_batches(dump)
    shape = legacy_shapes.LEGACY_SHAPES[topic]

    assert shape.check(seen[topic], records[topic]), "the shape is not in the data"
    table = segmentlog.open_log_dir(log_dir).log(topic, 0).scan(include_headers=True).read_all()
    assert records[topic] == rows_of(table)


def test_every_offset_is_where_the_log_can_be_cut(legacy: tuple) -> None:
    """A read may start and end at any offset, also in the middle of a compressed set."""
    log_dir, records, _, _ = legacy
    directory = segmentlog.open_log_dir(log_dir)
    for topic in ("magic-0.gzip", "magic-1.lz4", "compacted.magic-1-gzip", "mixed.magic-0-1-2"):
        log = directory.log(topic, 0)
        offsets = [record.offset for record in records[topic]]
        for start in range(0, log.log_end_offset, 3):
            end = min(start + 5, log.log_end_offset)
            found = log.scan(start, end, columns=["offset"]).read_all()["offset"].to_pylist()

            assert [offset for offset in offsets if start <= offset < end] == found, (topic, start)


def test_look_ups_by_time_answer_as_the_broker_did(legacy: tuple) -> None:
    """The first offset at or after each time equals the broker's answer."""
    log_dir, _, _, looked_up = legacy
    directory = segmentlog.open_log_dir(log_dir)
    assert looked_up
    for topic, time, answer in looked_up:
        found = directory.log(topic, 0).offset_for_timestamp(time)

        assert answer == (None if found is None else found.offset), (topic, time)


def test_serve_answers_look_ups_as_the_broker_does(old_version: str, tmp_path: Path) -> None:
    """By time and by the words for ends, on the same files."""
    rng = random.Random(72)
    times = [1_700_000_000_000 + each for each in (-6_000, 0, 150, 9_000)]
    times += [1_700_000_000_000 + rng.randint(-6_000, 9_000) for _ in range(20)]
    with OldBroker(tmp_path / "kafka", old_version) as broker:
        with JavaClient(broker) as client:
            for topic, shape in legacy_shapes.LEGACY_SHAPES.items():
                shape.make(broker, client, topic)
        with (
            segmentlog.serve(broker.log_dir, read_up_to="logEnd") as server,
            RawClient(server.bootstrap_servers) as ours,
            RawClient(broker.bootstrap_servers) as theirs,
        ):
            asked = itertools.product(
                legacy_shapes.LEGACY_SHAPES, [0], [-1, -2, 0, *times], [0, 1]
            )
            for each in asked:
                found, expected = (it.list_offset(*each, version=6) for it in (ours, theirs))
                if expected.error_code == _NO_TIMES:
                    assert "magic-0" in each[0]
                    assert (0, -1) == (found.error_code, found.offset), each
                    continue
                if each[2] == _LATEST:  # the broker leads in an epoch that no record is of
                    expected = dataclasses.replace(expected, leader_epoch=found.leader_epoch)
                assert found == expected, each
