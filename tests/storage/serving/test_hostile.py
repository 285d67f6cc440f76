"""Requests of strangers: sizes, garbage, mutated requests, and what may not be reached."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka_protocol import RawClient, consume
from kio.schema.index import api_key_map

import segmentlog
from segmentlog.errors import OptionError
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
        b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\x08" + bytes(8),
        b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x0c\0\x12\0\x03\0\0\0\x01\x7f\xff\0\0",
        b"\0\0\0\x14\0\x03\0\x01\0\0\0\x01\0\0\x7f\xff\xff\xff" + bytes(6),
        b"\0\0\0\x0a\xff\xff\xff\xff\0\0\0\x01\0\0", b"\x16\x03\x01\x02\x00\x01\x00",
    ],
)  # fmt: skip
def test_what_is_no_request_ends_its_connection_alone(server: Server, data: bytes) -> None:
    """At once, with no memory for a length that is only claimed."""
    with RawClient(server.bootstrap_servers) as client:
        client.sock.sendall(data)
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
        "acks": 1, "topics": [{"name": "t", "partitions": [{"partition_index": 0}]}],
        "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": b"x"}]}],
        "groups_names": ["g"], "topic_names": ["t"],
        "resources": [{"resource_type": 2, "resource_name": "t"}],
    }  # fmt: skip
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


@pytest.mark.parametrize("bind", ["0.0.0.0:0", "[::]:0", "192.0.2.1:9092", ":9092", "nowhere"])
def test_other_machines_need_tls_and_users(tmp_path: Path, bind: str) -> None:
    made = KafkaLog(tmp_path / "kafka")
    with pytest.raises(OptionError, match="bind"):
        segmentlog.serve(made.path, bind=bind)
