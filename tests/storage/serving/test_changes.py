"""A broker that cleans, cuts or replaces the files of a server: clients ask again, or go on."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka_protocol import RawClient, batches_of

import segmentlog
from segmentlog.serving.server import Running
from segmentlog.testing.kafka_log import KafkaLog

_STORAGE_ERROR = 56
_N_BATCHES = 10


@pytest.fixture
def log(tmp_path: Path) -> KafkaLog:
    """Batches of one size, with a record each."""
    made = KafkaLog(tmp_path / "kafka")
    for i in range(_N_BATCHES):
        made.write("t", [{"key": "k", "value": f"v{i}", "timestamp": i}], num_partitions=1)
    return made


@pytest.fixture
def client(log: KafkaLog) -> Iterator[RawClient]:
    """One that has read three batches, and goes on from there."""
    with (
        segmentlog.serve(log.path, read_up_to="logEnd") as server,
        RawClient(server.bootstrap_servers) as found,
    ):
        for offset in range(3):
            assert [offset] == offsets(found, offset)
        yield found


def offsets(client: RawClient, offset: int) -> list[int] | int:
    """The batches of an answer with room for one of them, or its error."""
    found = client.fetch("t", 0, offset, max_bytes=1)
    code = int(found.error_code)
    return code or [each.base_offset for each in batches_of(found.records)]


def test_a_consumer_that_goes_on_wakes_no_thread(log: KafkaLog) -> None:
    """Its bytes are in memory; one that comes from elsewhere may have to wait for a disk."""
    with file_of(log).open("rb") as file:
        try:
            os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
        except (OSError, AttributeError):
            pytest.skip("this system does not say what is in memory")
    with (
        segmentlog.serve(log.path, read_up_to="logEnd") as server,
        RawClient(server.bootstrap_servers) as client,
    ):
        assert [0] == offsets(client, 0)
        running, woken = server._running, []

        def look_up(function: Callable[..., Any], *arguments: object, place: str = "") -> Any:
            woken.append(function)
            return Running.look_up(running, function, *arguments, place=place)

        running.look_up = look_up  # type: ignore[method-assign]
        assert [[1], [2]] == [offsets(client, 1), offsets(client, 2)]
        assert [] == woken
        assert [7] == offsets(client, 7)
        assert 1 == len(woken)


def file_of(log: KafkaLog) -> Path:
    return Path(log.path) / "t-0" / "00000000000000000000.log"


def test_a_file_that_was_cleaned_hides_nothing(log: KafkaLog, client: RawClient) -> None:
    """What was byte 3 * n of the old file is another batch of the new one."""
    file = file_of(log)
    data = file.read_bytes()
    size = len(data) // _N_BATCHES
    cleaned = file.with_name("cleaned")
    cleaned.write_bytes(data[5 * size :])
    os.replace(cleaned, file)

    assert _STORAGE_ERROR == offsets(client, 3)


def test_a_file_that_was_cut_is_no_damage(log: KafkaLog, client: RawClient) -> None:
    file = file_of(log)
    os.truncate(file, file.stat().st_size * 4 // _N_BATCHES + 10)

    assert [3] == offsets(client, 3)
    assert _STORAGE_ERROR == offsets(client, 4)


def test_another_topic_of_the_name_is_not_read(log: KafkaLog, client: RawClient) -> None:
    """Its file may have the inode of the old one."""
    client.ask(3, 12, topics=None)
    directory = file_of(log).parent
    identity = directory / "partition.metadata"
    identity.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAABA\n")

    assert _STORAGE_ERROR == offsets(client, 3)
