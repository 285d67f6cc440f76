"""A server that takes hardly any time: what Kafka's clients reach if nothing waits for the server.

``python canned.py ADDRESS DIRECTORY``: places of batches are looked for at its start, and each
client has a thread, in which the system sends.  All requests but fetches are relayed to the server
at ADDRESS.  Its first line names its address.
"""

import bisect
import contextlib
import itertools
import os
import socket
import struct
import sys
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import segmentlog
from segmentlog.format.kernels import layout
from segmentlog.log.batches import walk_batches
from segmentlog.serving.wire import (
    Records,
    Stored,
    answer,
    key_and_version,
    read_request,
    uuid_of,
)
from segmentlog.store.readable import open_file

_INT = struct.Struct(">i")
_FETCH = 1
_SENT_BYTES = 100 << 10  # as of a broker


class Segment(NamedTuple):
    """The batches of a segment: their offsets, and the byte of each, and of the end."""

    opened: Callable[[], Any]
    bases: list[int]
    places: list[int]


class Canned:
    """The answers to fetches of a directory."""

    def __init__(self, directory: str) -> None:
        self.logs: dict[tuple[str, int], tuple[list[Segment], int]] = {}
        self.names: dict[uuid.UUID | None, str] = {}
        for log in segmentlog.open_log_dir(directory):
            segments = []
            for segment in log.segments:
                bases, sizes = [], [0]
                for walked in walk_batches([segment], segment.base_offset):
                    bases += walked.scanned.headers[:, layout.BASE_OFFSET].tolist()
                    sizes += walked.scanned.headers[:, layout.SIZE].tolist()
                file = open_file(segment.path)
                opened = partial(contextlib.nullcontext, file)
                segments.append(Segment(opened, bases, [*itertools.accumulate(sizes)]))
            self.logs[log.topic_partition] = segments, log.log_end_offset
            self.names[uuid_of(log.known_topic_id)] = log.topic_partition.topic

    def fetch(self, body: Any) -> list[dict[str, Any]]:
        """What answers a fetch."""
        found = []
        for topic in body.topics:
            topic_id = getattr(topic, "topic_id", None)
            name = self.names[topic_id] if topic_id is not None else topic.topic
            partitions = [self._partition(name, each) for each in topic.partitions]
            found.append({"topic": name, "topic_id": topic_id, "partitions": partitions})
        return found

    def _partition(self, topic: str, asked: Any) -> dict[str, Any]:
        segments, end = self.logs[topic, asked.partition]
        found = {
            "partition_index": asked.partition,
            "high_watermark": end,
            "last_stable_offset": end,
            "records": Records(),
        }
        if asked.fetch_offset < end:
            begins = [each.bases[0] for each in segments if each.bases]
            opened, bases, places = segments[bisect.bisect_right(begins, asked.fetch_offset) - 1]
            begin = places[bisect.bisect_right(bases, asked.fetch_offset) - 1]
            last = bisect.bisect_right(places, begin + asked.partition_max_bytes) - 1
            found["records"] = Records([Stored(opened, begin, places[last] - begin, "")])
        return found


def _take(sock: socket.socket, n_bytes: int) -> bytes:
    found = sock.recv(n_bytes, socket.MSG_WAITALL)
    if len(found) < n_bytes:
        raise ConnectionError
    return found


def _relay(upstream: socket.socket, frame: bytes, ports: tuple[bytes, bytes]) -> bytes:
    """The answer of the other server, in which this one has its place."""
    upstream.sendall(_INT.pack(len(frame)) + frame)
    size = _take(upstream, 4)
    return size + _take(upstream, _INT.unpack(size)[0]).replace(*ports)


def _serve(client: socket.socket, canned: Canned, other: tuple[str, int], port: int) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SENT_BYTES)
    ports = _INT.pack(other[1]), _INT.pack(port)
    with client, socket.create_connection(other) as upstream, contextlib.suppress(OSError):
        while True:
            frame = _take(client, _INT.unpack(_take(client, 4))[0])
            key, version, correlation_id = key_and_version(frame)
            if key != _FETCH:
                client.sendall(_relay(upstream, frame, ports))
                continue
            body = read_request(frame).body
            responses = canned.fetch(body)
            if not any(each["records"] for topic in responses for each in topic["partitions"]):
                time.sleep(body.max_wait.total_seconds())
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
            for part in answer(_FETCH, version, correlation_id, {"responses": responses}).parts:
                if not isinstance(part, Stored):
                    client.sendall(part)
                    continue
                at, end = part.position, part.position + part.size
                with part.opened() as file:
                    while at < end:
                        at += os.sendfile(client.fileno(), file.descriptor or 0, at, end - at)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)


def main(address: str, directory: str) -> None:
    """Serve until this process is ended."""
    canned = Canned(directory)
    host, _, port = address.rpartition(":")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        here = listening.getsockname()[1]
        print(f"127.0.0.1:{here}", flush=True)
        while True:
            client, _ = listening.accept()
            serve = partial(_serve, client, canned, (host, int(port)), here)
            threading.Thread(target=serve, daemon=True).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
