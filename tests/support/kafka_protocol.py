"""A client of Kafka's protocol that sends one request after the other, and a consumer on it."""

import socket
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from segmentlog.serving.wire import Parts, entity
from segmentlog.testing.legacy import read_message
from segmentlog.testing.reference import Record, read_batch

_CONTROL, _TRANSACTIONAL = 0x20, 0x10
_MOST_BYTES = 64 << 20  # that a batch may inflate to


class RawClient:
    """One connection to a server."""

    def __init__(self, servers: str, seconds: float = 10) -> None:
        host, _, port = servers.rpartition(":")
        self.sock = socket.create_connection((host, int(port)), seconds)
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def frame(self, key: int, version: int, **values: Any) -> bytes:
        """A request as it is sent."""
        kind = load_request_schema(key, version)
        header, parts = kind.__header_schema__, Parts()
        self._number += 1
        head = {
            "request_api_key": key,
            "request_api_version": version,
            "correlation_id": self._number,
            "client_id": "raw",
        }
        buffer: Any = parts
        entity_writer(header)(buffer, entity(header, head))
        entity_writer(kind)(buffer, entity(kind, values))
        data = bytes(parts.parts[0])  # type: ignore[arg-type]
        return len(data).to_bytes(4, "big") + data

    def ask(self, key: int, version: int, **values: Any) -> Any:
        """The answer to a request."""
        self.sock.sendall(self.frame(key, version, **values))
        return self.answer(key, version)

    def answer(self, key: int, version: int) -> Any:
        """The next answer; raises `ConnectionError` if the server has closed the connection."""
        data = self.take(int.from_bytes(self.take(4), "big"))
        kind = load_response_schema(key, version)
        header, at = entity_reader(kind.__header_schema__)(data, 0)
        assert self._number == header.correlation_id
        found, size = entity_reader(kind)(data, at)
        assert len(data) == at + size
        return found

    def take(self, n_bytes: int) -> bytes:
        """The next bytes of the server."""
        data = b""
        while len(data) < n_bytes:
            more = self.sock.recv(n_bytes - len(data))
            if not more:
                raise ConnectionError("the server has closed the connection")
            data += more
        return data

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        version: int = 12,
        max_bytes: int = 1 << 20,
        is_committed: bool = False,
        min_bytes: int = 1,
        wait_ms: int = 0,
        topic_id: uuid.UUID | None = None,
    ) -> Any:
        """What a fetch of one partition answers; from version 13 on, the id names its topic."""
        asked = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": max_bytes}
        found = self.ask(
            1,
            version,
            max_wait=wait_ms,
            min_bytes=min_bytes,
            isolation_level=int(is_committed),
            topics=[{"topic": topic, "topic_id": topic_id, "partitions": [asked]}],
        )
        return found.responses[0].partitions[0]

    def list_offset(
        self, topic: str, partition: int, timestamp: int, level: int = 0, *, version: int = 9
    ) -> Any:
        """What a look-up by time answers for one partition."""
        asked = {"partition_index": partition, "timestamp": timestamp}
        topics = [{"name": topic, "partitions": [asked]}]
        found = self.ask(2, version, replica_id=-1, isolation_level=level, topics=topics)
        return found.topics[0].partitions[0]


class FetchError(Exception):
    """The code that a fetch has answered."""


class Stored(NamedTuple):
    """A batch of magic 2 as it came."""

    base_offset: int
    last_offset: int
    attributes: int
    producer_id: int
    data: bytes


def batches_of(data: bytes) -> Iterator[Stored]:
    """The batches of an answer; all of them are whole."""
    while data:
        size = 12 + int.from_bytes(data[8:12], "big")
        assert size <= len(data)
        base = int.from_bytes(data[:8], "big")
        if data[16] < 2:
            yield Stored(base, base, 0, -1, data[:size])
        else:
            yield Stored(
                base,
                base + int.from_bytes(data[23:27], "big"),
                int.from_bytes(data[21:23], "big"),
                int.from_bytes(data[43:51], "big"),
                data[:size],
            )
        data = data[size:]


def records_of(batch: bytes) -> list[Record]:
    """The records of a batch, whose checksum is checked, as clients do."""
    if batch[16] < 2:
        return read_message(batch, 0, _MOST_BYTES)[1]
    return read_batch(batch, 0, _MOST_BYTES)


def consume(
    client: RawClient,
    topic: str,
    partition: int,
    *,
    offset: int = 0,
    is_committed: bool = False,
    max_bytes: int = 1 << 20,
) -> list[Record]:
    """All records up to the end, by the rules of a consumer (``CompletedFetch``)."""
    found: list[Record] = []
    while True:
        answer = client.fetch(
            topic, partition, offset, max_bytes=max_bytes, is_committed=is_committed
        )
        if answer.error_code:
            raise FetchError(int(answer.error_code))
        end = answer.last_stable_offset if is_committed else answer.high_watermark
        if not answer.records:
            assert offset >= end or not found or offset > found[-1].offset
            return found
        aborted = [
            (each.first_offset, each.producer_id) for each in answer.aborted_transactions or ()
        ]
        assert aborted == sorted(aborted)
        dropped: set[int] = set()
        before = offset
        for each in batches_of(answer.records):
            while is_committed and aborted and aborted[0][0] <= each.last_offset:
                dropped.add(aborted.pop(0)[1])
            if each.attributes & _CONTROL:
                dropped.discard(each.producer_id)
            elif not (each.attributes & _TRANSACTIONAL and each.producer_id in dropped):
                found += [record for record in records_of(each.data) if record.offset >= offset]
            offset = each.last_offset + 1
        assert offset > before
