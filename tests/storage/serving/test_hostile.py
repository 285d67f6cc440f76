"""Requests of strangers: sizes, garbage, mutated requests, and what may not be reached."""

import random
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from kafka_protocol import RawClient, consume
from kio.schema.index import api_key_map
from waiting import wait_for

import segmentlog
from segmentlog.errors import OptionError
from segmentlog.serving import connection
from segmentlog.serving.apis import APIS
from segmentlog.serving.open_server import Server
from segmentlog.testing.kafka_log import KafkaLog

_WRITES = [0, 19, 20, 21, 22, 24, 25, 26, 28, 30, 31, 33, 37, 42, 43, 44, 45, 47, 49, 51]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = KafkaLog(tmp_path_factory.mktemp("kafka"))
    made.write("t", ["a", "b"])
    with segmentlog.serve(made.path) as found:
        yield found


def is_well(server: Server) -> bool:
    with RawClient(server.bootstrap_servers) as client:
        return [b"a", b"b"] == [each.value for each in consume(client, "t", 0)]


@pytest.mark.parametrize(
    "data",
    [
        b"\x7f\xff\xff\xff",
        b"\xff\xff\xff\xff",
        b"\0\0\0\0",
        b"\0\0\0\x08" + bytes(8),
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\x0c\0\x12\0\x03\0\0\0\x01\x7f\xff\0\0",
        b"\0\0\0\x14\0\x03\0\x01\0\0\0\x01\0\0\x7f\xff\xff\xff" + bytes(6),
        b"\0\0\0\x0a\xff\xff\xff\xff\0\0\0\x01\0\0",
        b"\x16\x03\x01\x02\x00\x01\x00",
    ],
)
def test_what_is_no_request_ends_its_connection_alone(server: Server, data: bytes) -> None:
    """At once, with no memory for a length that is only claimed."""
    with RawClient(server.bootstrap_servers) as client:
        client.sock.sendall(data)
        with pytest.raises(ConnectionError):
            client.take(1)
    assert is_well(server)


@pytest.mark.parametrize(
    ("key", "version", "end"),
    [
        (3, 1, b"\x7f\xff\xff\xff"),  # topics
        (3, 12, b"\xff\xff\xff\xff\x07"),
        (1, 4, bytes(17) + b"\x7f\xff\xff\xff"),
        (1, 4, bytes(17) + b"\xff\xff\xff\xfe"),
        (1, 12, bytes(25) + b"\xff\xff\xff\xff\x0f"),
        (19, 2, b"\x30\0\0\0"),
    ],
)
def test_arrays_that_are_only_claimed_take_no_memory(
    server: Server, key: int, version: int, end: bytes
) -> None:
    """`kio` would ask the system for them, and the process would end where it refuses."""
    with RawClient(server.bootstrap_servers) as client:
        is_flexible = version == 12
        head = struct.pack(">hhih", key, version, 1, -1) + b"\0" * is_flexible
        client.sock.sendall(len(head + end).to_bytes(4, "big") + head + end)
        with pytest.raises(ConnectionError):
            client.take(1)
    assert is_well(server)


def test_requests_that_are_too_large_are_not_read(server: Server) -> None:
    """Only a producer's may have more than a MiB: its records are refused, and not cut off."""
    with RawClient(server.bootstrap_servers) as client:
        client.sock.sendall((2 << 20).to_bytes(4, "big") + b"\0\x03" + bytes(100))
        with pytest.raises(ConnectionError):
            client.take(1)
    with RawClient(server.bootstrap_servers) as client:
        data = [{"name": "t", "partition_data": [{"index": 0, "records": bytes(2 << 20)}]}]
        found = client.ask(0, 8, acks=1, topic_data=data)
        assert 29 == found.responses[0].partition_responses[0].error_code


def test_mutated_requests_are_answered_or_end_their_connection(server: Server) -> None:
    """Bytes of requests of every API are changed, cut and doubled; the server stays."""
    rng = random.Random(72)
    client = RawClient(server.bootstrap_servers, seconds=5)
    keys = [each for each in APIS if each not in (11, 14)]  # these may wait for others
    for _ in range(60):
        key = rng.choice(keys)
        version = rng.randint(max(APIS[key].least, 3 if key == 0 else 0), APIS[key].most)
        values = {"max_wait": 0} if key == 1 else {}
        data = bytearray(client.frame(key, version, **values)[4:])
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(8, len(data)) if len(data) > 8 else 0] = rng.choice(
                [0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)]
            )
        if rng.random() < 0.3:
            data = data[: rng.randint(8, len(data))]
        try:
            client.sock.sendall(len(data).to_bytes(4, "big") + data)
            client.take(int.from_bytes(client.take(4), "big"))
        except ConnectionError:
            client.sock.close()
            client = RawClient(server.bootstrap_servers, seconds=5)
    client.sock.close()
    assert is_well(server)


def test_everything_that_writes_is_refused_at_once(server: Server) -> None:
    """In the oldest and the newest version, with an error in each place that can have one."""
    asked = {
        "acks": 1,
        "topics": [{"name": "t", "partitions": [{"partition_index": 0}]}],
        "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": b"x"}]}],
        "groups_names": ["g"],
        "topic_names": ["t"],
        "resources": [{"resource_type": 2, "resource_name": "t"}],
    }
    with RawClient(server.bootstrap_servers) as client:
        for key in _WRITES:
            for version in (3 if key == 0 else APIS[key].least, APIS[key].most):
                transactional = None if key in (0, 22) else "x"
                answer = client.ask(key, version, **asked, transactional_id=transactional)
                if key in (0, 19, 20, 21, 37, 42):
                    codes = [int(code) for code in codes_of(answer)]
                    assert codes, (api_key_map[key], version)
                    assert set(codes) <= {29, 31}, (api_key_map[key], version)
        assert client.ask(22, 4).throttle_time  # Java's producer asks on and on


def codes_of(answer: object) -> Iterator[int]:
    """All error codes of an answer."""
    for name in getattr(answer, "__dataclass_fields__", ()):
        value = getattr(answer, name)
        if name == "error_code":
            yield value
        for each in value if isinstance(value, tuple) else ():
            yield from codes_of(each)


@pytest.mark.parametrize("version", [2, 9])
def test_a_producer_that_waits_for_no_answer_is_cut_off(server: Server, version: int) -> None:
    """``acks=0`` has none; a version that nothing can read has none either."""
    with RawClient(server.bootstrap_servers) as client:
        data = client.frame(0, max(version, 3), acks=0, topic_data=[])
        client.sock.sendall(data[:6] + version.to_bytes(2, "big") + data[8:])
        with pytest.raises(ConnectionError):
            client.take(1)


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\0\0\x40\0", b"\0\0\0\x40\0\x03\0"], ids=len)
def test_a_request_that_stops_ends_its_connection(
    server: Server, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    """Wherever it stops; one that has not begun has the time of an idle connection."""
    monkeypatch.setattr(connection, "_STALLED_SECONDS", 0.02 if data else 60)
    monkeypatch.setattr(connection, "_IDLE_SECONDS", 60 if data else 0.02)
    with RawClient(server.bootstrap_servers) as client:
        client.sock.sendall(data)
        with pytest.raises(ConnectionError):
            client.take(1)


def test_who_waits_and_vanishes_is_let_go(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """A member may wait for others for half an hour, but not if it is gone."""
    caplog.set_level("INFO", "segmentlog.serving.access")
    place = {"partition": 0, "fetch_offset": 2, "partition_max_bytes": 1}
    clients = [RawClient(server.bootstrap_servers) for _ in range(2)]
    hosts = [each.sock.getsockname() for each in clients]
    for each in clients:
        each.sock.sendall(
            each.frame(
                1, 12, max_wait=30_000, min_bytes=1, topics=[{"topic": "t", "partitions": [place]}]
            )
        )
    reset = struct.pack("ii", 1, 0)
    clients[0].sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
    for each in clients:
        each.sock.close()
    for host, port in hosts:
        wait_for(
            lambda: f"{host}:{port} closed" in caplog.text,  # noqa: B023 - called here
            lambda: "it is still connected",
            10,
            0.02,
        )


def test_what_is_named_again_and_again_is_answered_once(server: Server) -> None:
    """A MiB may name a topic 100,000 times; the answer would have its partitions as often."""
    n = 3
    with RawClient(server.bootstrap_servers) as client:
        named = [{"name": "t"}] * n
        assert 1 == len(client.ask(3, 9, topics=named).topics)
        assert 1 == len(client.ask(15, 5, groups=["g"] * n).groups)
        assert 1 == len(client.ask(69, 1, group_ids=["g"] * n).groups)
        assert 1 == len(client.ask(65, 0, transactional_ids=["g"] * n).transaction_states)
        resources = [{"resource_type": 2, "resource_name": "t", "configuration_keys": None}] * n
        assert 1 == len(client.ask(32, 4, resources=resources).results)
        places = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}] * n
        fetched = client.ask(
            1, 12, max_bytes=1 << 20, topics=[{"topic": "t", "partitions": places}]
        )
        assert 1 == len(fetched.responses[0].partitions)
        found = client.ask(61, 0, topics=[{"name": "t", "partition_indexes": [0] * n}] * 2).topics
        assert [1] == [len(each.partitions) for each in found]


def test_the_answer_with_all_topics_is_that_of_each_request(server: Server) -> None:
    """It is made once; versions, flags and correlation ids are those of who asks."""
    with RawClient(server.bootstrap_servers) as client:
        for version in (1, 12, 1, 12, 9, 8, 5):
            for flag in (False, True, False):
                asked = {"include_topic_authorized_operations": flag} if version >= 8 else {}
                (topic,) = client.ask(3, version, topics=None, **asked).topics
                has_operations = getattr(topic, "topic_authorized_operations", -1) > 0
                assert ("t", flag and version >= 8) == (topic.name, has_operations)


@pytest.mark.slow
def test_a_thousand_connections_have_bounded_memory(tmp_path: Path) -> None:
    """10,000 partitions, clients that stop in a request, and some that read no answer."""
    directory = tmp_path / "kafka"
    made = KafkaLog(directory)
    made.write("t0", ["v" * 30_000])
    for i in range(1, 10_000):
        shutil.copytree(directory / "t0-0", directory / f"t{i // 10}-{i % 10}")
    arguments = ["serve", str(directory), "--bind", "127.0.0.1:0", "--read-up-to", "logEnd"]
    with subprocess.Popen(
        [sys.executable, "-c", _COMMAND, *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[0]
            with ExitStack() as stack:
                clients = [stack.enter_context(RawClient(address, 60)) for _ in range(995)]
                _read_all(clients)
                read = _peak(process.pid)
                _read_nothing(clients)
                unread = _peak(process.pid)
            with RawClient(address) as client:
                assert client.fetch("t1", 0, 0).records
        finally:
            process.terminate()
    assert read < 200 << 10
    assert unread < 320 << 10  # of 25 GB


#: `kio` imports hypothesis where it is installed.
_COMMAND = """
import runpy, sys
sys.modules["hypothesis"] = None
runpy.run_module("segmentlog", run_name="__main__", alter_sys=True)
"""
_OF_TEN = [{"partition": i, "fetch_offset": 0, "partition_max_bytes": 1 << 20} for i in range(10)]


def _peak(pid: int) -> int:
    """The largest resident set of a process, in KiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(each for each in lines if each.startswith("VmHWM:")).split()[1])


def _asked(client: RawClient, topics: range) -> bytes:
    return client.frame(
        1,
        12,
        max_wait=0,
        min_bytes=1,
        max_bytes=55 << 20,
        topics=[{"topic": f"t{i}", "partitions": _OF_TEN} for i in topics],
    )


def _read_all(clients: list[RawClient]) -> None:
    """All ask for all topics, and each for the records of one."""
    frames = [
        [each.frame(3, 12, topics=None) for each in clients],
        [_asked(each, range(i, i + 1)) for i, each in enumerate(clients)],
    ]
    for sent in frames:
        for each, frame in zip(clients, sent, strict=True):
            each.sock.sendall(frame)
        for each in clients:
            assert len(each.take(int.from_bytes(each.take(4), "big"))) > 200_000


def _read_nothing(clients: list[RawClient]) -> None:
    """Half of them ask for 50 MB each, and read none of it; the others stop in a request."""
    for i, each in enumerate(clients):
        half = (1 << 20).to_bytes(4, "big") + b"\0\x03" + bytes(60_000)
        each.sock.sendall(half if i % 2 else _asked(each, range(i // 2, i // 2 + 170)))
    time.sleep(3)  # the server does what it can


@pytest.mark.parametrize("bind", ["0.0.0.0:0", "[::]:0", "192.0.2.1:9092", ":9092", "nowhere"])
def test_other_machines_need_tls_and_users(tmp_path: Path, bind: str) -> None:
    made = KafkaLog(tmp_path / "kafka")
    with pytest.raises(OptionError, match="bind"):
        segmentlog.serve(made.path, bind=bind)
