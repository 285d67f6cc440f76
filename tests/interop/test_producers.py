"""Idempotent producers of a broker and ours take turns on one log."""

import re
import socket
import struct
import time
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from kafka_here import Broker, JavaClient
from kafka_here.java import Outgoing
from plain_writes import numbered_rows
from producer_batches import batch
from soundness import assert_verified

import segmentlog
from segmentlog import Producer
from segmentlog.log.producer_snapshot import list_snapshots, read_snapshot, snapshot_path

pytestmark = [pytest.mark.interop, pytest.mark.thorough]


OUT_OF_ORDER = 45  #: ``Errors.OUT_OF_ORDER_SEQUENCE_NUMBER``
FENCED = 47  #: ``Errors.INVALID_PRODUCER_EPOCH``

_VERSION = 7  # the last one whose answer has no list of refused records
_SECONDS = 30


class Answer(NamedTuple):
    """Error code of the partition, and the offset of the first record, or -1."""

    error: int
    base_offset: int


def produce(port: int, topic: str, batch: bytes, partition: int = 0) -> Answer:
    """Send one batch to a broker on this machine."""
    name = struct.pack(">h", len(topic)) + topic.encode()
    body = (
        struct.pack(">hhih", 0, _VERSION, 1, -1)  # a header without a client id
        + struct.pack(">hhi", -1, -1, 1000 * _SECONDS)  # no transaction, all replicas
        + struct.pack(">i", 1)
        + name
        + struct.pack(">iii", 1, partition, len(batch))
        + batch
    )
    with socket.create_connection(("localhost", port), timeout=_SECONDS) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        with connection.makefile("rb") as answers:
            (size,) = struct.unpack(">i", answers.read(4))
            answer = answers.read(size)
    at = 4 + 4 + len(name) + 4 + 4  # correlation id, topics, name, partitions, partition
    return Answer(*struct.unpack_from(">hq", answer, at))


_N = 30  # records of each turn


def rows(first: int) -> pa.Table:
    """The records of one turn."""
    return numbered_rows(first, _N, 1).select(["value"])


def snapshot(partition: Path, producer_id: int) -> tuple[int, int, int]:
    """Epoch, last sequence and last offset of a producer in the newest snapshot."""
    newest = list_snapshots(str(partition))[0]
    (found,) = [
        each
        for each in read_snapshot(snapshot_path(str(partition), newest))
        if each.producer_id == producer_id
    ]
    return found.producer_epoch, found.last_sequence, found.last_offset


def dumped(broker: Broker, partition: Path) -> str:
    """The newest snapshot, as Kafka's dump tool prints it."""
    newest = list_snapshots(str(partition))[0]
    return broker.dump([Path(snapshot_path(str(partition), newest))])


def write(directory: Path, topic: str, producer: Producer, first: int) -> segmentlog.Appended:
    """Write one of our turns."""
    with segmentlog.open_writer(directory, topic, producer=producer) as writer:
        writer.append(rows(first))
    (answer,) = writer.appended
    return answer


def bytes_at(partition: Path, offset: int) -> bytes:
    """The batch at an offset of a log with one segment, as its client sent it."""
    data, at = (partition / f"{0:020d}.log").read_bytes(), 0
    while int.from_bytes(data[at : at + 8], "big") != offset:
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    return bytes(8) + data[at + 8 : at + size]  # a leader takes base offset 0 only


def test_producers_take_turns(new_version: str, tmp_path: Path) -> None:
    """The turns are Java's producer, ours, Java's under our id, and ours again."""
    broker = Broker(tmp_path, new_version)
    with broker, JavaClient(broker) as client:
        for topic in ("theirs", "ours"):
            client.create_topic(topic)
        producer = client.producer(linger_ms=0, enable_idempotence="true")
        for first in range(0, _N, 10):
            numbers = range(first, first + 10)
            client.send(producer, "theirs", [Outgoing(None, b"%d" % i) for i in numbers])
        producer.close()
    logs = broker.log_dir
    theirs, ours = logs / "theirs-0", logs / "ours-0"

    # Ours, after Java's producer, under its id; and a producer that no broker has ever seen.
    (known,) = segmentlog.open_log_dir(logs).log("theirs", 0).producers().to_pylist()
    java_id, epoch = known["producer_id"], known["producer_epoch"]
    assert (epoch, _N - 1, _N - 1) == snapshot(theirs, java_id)
    answer = write(logs, "theirs", Producer(java_id, epoch), _N)
    assert (_N, 0, _N) == (answer.first_sequence, answer.n_duplicates, answer.base_offset)
    again = write(logs, "theirs", Producer(java_id, epoch, _N), _N)
    assert (_N, _N) == (again.n_duplicates, again.base_offset)
    write(logs, "ours", Producer(900_000, 3), 0)
    said = dumped(broker, theirs)
    assert re.search(rf"producerId: {java_id} producerEpoch: {epoch} .*lastSequence: 59 ", said)
    assert re.search(r"producerId: 900000 producerEpoch: 3 ", dumped(broker, ours))
    assert_verified(logs)

    repeated = {"theirs": bytes_at(theirs, _N), "ours": bytes_at(ours, 0)}
    expected = [b"%d" % i for i in range(2 * _N)]
    with broker, JavaClient(broker) as client:
        # The broker knows our batches as if it had appended them itself.
        _until_led(broker.port, "theirs", repeated["theirs"])
        assert Answer(0, _N) == produce(broker.port, "theirs", repeated["theirs"])
        assert Answer(0, 0) == produce(broker.port, "ours", repeated["ours"])
        assert OUT_OF_ORDER == produce(broker.port, "theirs", batch(java_id, epoch, 61)).error
        assert FENCED == produce(broker.port, "ours", batch(900_000, 2, _N)).error
        next_one = batch(java_id, epoch, 2 * _N, 5)
        assert Answer(0, 2 * _N) == produce(broker.port, "theirs", next_one)
        values = [record.value for record in client.consume("theirs")]
        assert expected == values[: 2 * _N]
        assert 2 * _N + 5 == len(values)
        assert _N == len(client.consume("ours"))

    # Ours again: the broker's batch is a repeated one, and the sequence continues after it.
    assert (epoch, 2 * _N + 4, 2 * _N + 4) == snapshot(theirs, java_id)
    with segmentlog.open_writer(logs, "theirs") as writer:
        writer.append_batches(next_one, 0)
    assert [(5, 2 * _N)] == [(each.n_duplicates, each.base_offset) for each in writer.appended]
    last = write(logs, "theirs", Producer(java_id, epoch), 2 * _N)
    assert (2 * _N + 5, 2 * _N + 5) == (last.first_sequence, last.base_offset)
    (run,) = segmentlog.open_log_dir(logs).log("theirs", 0).producers().to_pylist()
    assert (0, 3 * _N + 4, [], []) == (
        run["first_sequence"],
        run["last_sequence"],
        run["gaps"],
        run["repeats"],
    )


def _until_led(port: int, topic: str, repeated: bytes) -> None:
    """Wait until a started broker leads the partition, without sending records."""
    deadline = time.monotonic() + 30
    while produce(port, topic, repeated).error in {3, 5, 6} and time.monotonic() < deadline:
        time.sleep(0.1)
