"""Produce requests with batches of any producer; Kafka's clients cannot choose producer ids."""

import socket
import struct
from typing import NamedTuple

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
        + struct.pack(">i", 1) + name
        + struct.pack(">iii", 1, partition, len(batch)) + batch
    )  # fmt: skip
    with socket.create_connection(("localhost", port), timeout=_SECONDS) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        with connection.makefile("rb") as answers:
            (size,) = struct.unpack(">i", answers.read(4))
            answer = answers.read(size)
    at = 4 + 4 + len(name) + 4 + 4  # correlation id, topics, name, partitions, partition
    return Answer(*struct.unpack_from(">hq", answer, at))
