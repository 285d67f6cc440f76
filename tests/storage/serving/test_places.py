"""Where logs come from: several brokers, a tier, an object store; and who may read them."""

import contextlib
import datetime as dt
import random
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest
from kafka_protocol import FetchError, RawClient, consume
from tiers import copy_segment, remove_local, written
from waiting import wait_for

import segmentlog
from segmentlog.serving import reading, view
from segmentlog.serving.users import hashed_user
from segmentlog.store.readable import LocalDisk
from segmentlog.testing.kafka_log import KafkaLog

TOP = Path(__file__).parents[3]
BROKERS = [str(TOP / "examples" / "brokers" / name) for name in ("b1", "b2", "b3")]


def read_all(
    *places: Any, **options: Any
) -> dict[tuple[str, int], list[tuple[int, bytes | None]]]:
    """The records of all partitions that are served."""
    found: dict[tuple[str, int], list[tuple[int, Any]]] = {}
    with (
        segmentlog.serve(*places, **options) as server,
        RawClient(server.bootstrap_servers) as client,
    ):
        for topic, numbers in server.topics.items():
            for number in numbers:
                start = client.list_offset(topic, number, -2).offset
                records = consume(client, topic, number, offset=start)
                found[topic, number] = [(each.offset, each.value) for each in records]
    return found


def scanned(directory: segmentlog.LogDirectory) -> dict[tuple[str, int], list[tuple[int, Any]]]:
    """The same, as the engine reads them."""
    found: dict[tuple[str, int], list[tuple[int, Any]]] = {}
    for log in directory:
        rows = log.scan().read_all()
        columns = rows.column("offset").to_pylist(), rows.column("value").to_pylist()
        found[log.topic_partition.topic, log.topic_partition.partition] = list(
            zip(*columns, strict=True)
        )
    return found


def test_disks_of_three_brokers_are_served_as_one() -> None:
    """Each partition once, from its best copy."""
    expected = scanned(segmentlog.open_replicas(*BROKERS))

    assert expected
    assert expected == read_all(*BROKERS)


@pytest.mark.thorough
def test_a_log_that_begins_in_a_tier(tmp_path: Path) -> None:
    """Segments of the tier and of the disk, as one log."""
    partition = written(tmp_path / "kafka", n_segments=4, n_records=10)
    for base in (0, 10):
        copy_segment(partition, tmp_path / "tier", base, base + 10)
    remove_local(partition, 0, 10)
    assert [20] == [rows[0][0] for rows in read_all(tmp_path / "kafka").values()]

    found = read_all(tmp_path / "kafka", remote_storage=tmp_path / "tier")
    assert [[*range(40)]] == [[offset for offset, _ in rows] for rows in found.values()]


@pytest.mark.thorough
def test_borders_of_a_tier(tmp_path: Path) -> None:
    """A segment may be in the tier and on the disk."""
    partition = written(tmp_path / "kafka", n_segments=3, n_records=10)
    for base in (0, 10):
        copy_segment(partition, tmp_path / "tier", base, base + 10)
    remove_local(partition, 0)
    with (
        segmentlog.serve(tmp_path / "kafka", remote_storage=tmp_path / "tier") as server,
        RawClient(server.bootstrap_servers) as client,
    ):
        ends = {word: client.list_offset("t", 0, word).offset for word in (-2, -4, -5, -1)}
    assert ends == {-2: 0, -4: 10, -5: 19, -1: 30}


def test_a_log_in_an_object_store_is_followed(tmp_path: Path) -> None:
    place = f"bucket+file://{tmp_path}/log"
    with segmentlog.open_writer(place, "t", num_partitions=1) as writer:
        writer.append(rows(b"a"))
    with (
        segmentlog.serve(place, follow=True) as server,
        RawClient(server.bootstrap_servers) as client,
    ):
        assert [b"a"] == [each.value for each in consume(client, "t", 0)]
        with segmentlog.open_writer(place, "t") as writer:
            writer.append(rows(b"b"))
        found = client.fetch("t", 0, 1, wait_ms=10_000)
        assert 2 == found.high_watermark
        assert [b"a", b"b"] == [each.value for each in consume(client, "t", 0)]


def rows(*values: bytes) -> Any:
    import pyarrow as pa

    return pa.table({"value": list(values)})


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for the loopback interface, with its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(1))
        .not_valid_after(now + dt.timedelta(1))
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    pem = serialization.Encoding.PEM
    path.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + made.public_bytes(pem)
    )
    return path


def test_tls_and_a_login(tmp_path: Path, certificate: Path) -> None:
    """Nothing is read before the login, and nothing with a wrong password."""
    made = KafkaLog(tmp_path / "kafka")
    made.write("t", [b"a" * 200_000, b"b"])
    users = tmp_path / "users"
    users.write_text(hashed_user("alice", "secret") + "\n")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(certificate)
    with segmentlog.serve(
        made.path,
        bind="0.0.0.0:0",
        advertise="127.0.0.1:9",
        tls_certificate=certificate,
        users=users,
    ) as server:
        address = f"127.0.0.1:{server.address.rpartition(':')[2]}"

        def client() -> RawClient:
            found = RawClient(address)
            found.sock = context.wrap_socket(found.sock)
            return found

        with client() as stranger, pytest.raises(ConnectionError):
            stranger.ask(3, 9, topics=None)
        with client() as stranger:
            assert 33 == stranger.ask(17, 1, mechanism="GSSAPI").error_code
            assert 0 == stranger.ask(17, 1, mechanism="PLAIN").error_code
            for wrong in (b"\0alice\0guess", b"\0bob\0secret", b""):
                assert 58 == stranger.ask(36, 2, auth_bytes=wrong).error_code
            with pytest.raises(ConnectionError):
                stranger.fetch("t", 0, 0)
        with client() as alice:
            assert {17, 36} <= {each.api_key for each in alice.ask(18, 3).api_keys}
            alice.ask(17, 1, mechanism="PLAIN")
            assert 0 == alice.ask(36, 2, auth_bytes=b"\0alice\0secret").error_code
            broker = alice.ask(3, 9, topics=None).brokers[0]
            assert ("127.0.0.1", 9) == (broker.host, broker.port)
            assert [b"a" * 200_000, b"b"] == [each.value for each in consume(alice, "t", 0)]


@pytest.mark.thorough
def test_readers_that_stop_do_not_hold_up_others(tmp_path: Path, certificate: Path) -> None:
    """Over TLS, where the bytes of an answer pass through memory."""
    made = KafkaLog(tmp_path / "kafka")
    for number in range(10):
        made.write("large", [random.randbytes(900_000)], partition=number, num_partitions=10)
    made.write("t", [b"a" * 100_000])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(certificate)
    with (
        segmentlog.serve(made.path, tls_certificate=certificate) as server,
        contextlib.ExitStack() as stack,
    ):
        clients = [stack.enter_context(RawClient(server.bootstrap_servers)) for _ in range(13)]
        for each in clients:
            each.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            each.sock = context.wrap_socket(each.sock)
        asked = [
            {"partition": each, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
            for each in range(10)
        ]
        topics = [{"topic": "large", "partitions": asked}]
        for each in clients[1:]:
            each.sock.sendall(each.frame(1, 12, max_bytes=50 << 20, max_wait=0, topics=topics))
        running = server._running
        wait_for(
            lambda: running._bounds.n_by_memory == 12,
            lambda: "some do not wait",
            seconds=30,
            pause=0.01,
        )
        assert [100_000] == [len(each.value or b"") for each in consume(clients[0], "t", 0)]
        assert 12 == running._bounds.n_by_memory


@pytest.mark.parametrize("on_corrupt_batch", [None, "fail", "skip"])
def test_damage_is_an_error_or_is_left_out(tmp_path: Path, on_corrupt_batch: str | None) -> None:
    """Without checks, the client sees the wrong checksum."""
    made = KafkaLog(tmp_path / "kafka")
    for value in ("a", "b", "c"):
        made.write("t", [value])
    (path,) = (made.path / "t-0").glob("*.log")
    data = bytearray(path.read_bytes())
    size = 12 + int.from_bytes(data[8:12], "big")
    data[2 * size - 2] ^= 1
    path.write_bytes(data)
    with (
        segmentlog.serve(made.path, on_corrupt_batch=on_corrupt_batch) as server,
        RawClient(server.bootstrap_servers) as client,
    ):
        if on_corrupt_batch == "skip":
            assert [b"a", b"c"] == [each.value for each in consume(client, "t", 0)]
        elif on_corrupt_batch == "fail":
            with pytest.raises(FetchError, match="2"):
                consume(client, "t", 0)
        else:
            assert bytes(data) == client.fetch("t", 0, 0).records


def test_a_file_system_that_hangs_holds_up_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are opened, and read, in threads; the server answers others, and ends."""
    log = KafkaLog(tmp_path / "kafka")
    for topic in ("hanging", "well"):
        for i in range(3):
            log.write(topic, [bytes([i]) * 50_000], num_partitions=1)
    hangs, goes_on, reached = threading.Event(), threading.Event(), threading.Event()

    def opened(self: LocalDisk, path: str, *, follow: bool = True) -> Any:
        if hangs.is_set() and "/hanging-0" in path:
            reached.set()
            goes_on.wait()
        return as_before(self, path, follow=follow)

    as_before = LocalDisk.open
    monkeypatch.setattr(LocalDisk, "open", opened)
    monkeypatch.setattr(view, "may_hang", lambda path: "/hanging-0" in path)
    with (
        segmentlog.serve(log.path, read_up_to="logEnd") as server,
        RawClient(server.bootstrap_servers, 0.5) as waiting,
        RawClient(server.bootstrap_servers) as other,
    ):
        for offset in range(2):
            assert waiting.fetch("hanging", 0, offset, max_bytes=1).records
        hangs.set()
        with pytest.raises(TimeoutError):
            waiting.fetch("hanging", 0, 2, max_bytes=1)
        assert reached.is_set()
        for offset in range(3):
            assert other.fetch("well", 0, offset, max_bytes=1).records
        assert other.ask(3, 9, topics=None).topics
    goes_on.set()


def test_a_file_system_that_hangs_keeps_no_thread_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More requests than threads wait for it, of each kind that reads files."""
    n_threads, goes_on, hangs = 8, threading.Event(), threading.Event()
    hanging, well = KafkaLog(tmp_path / "hanging"), KafkaLog(tmp_path / "well")
    for i in range(2 * n_threads):
        hanging.write("hanging", [bytes([i]) * 50_000], partition=i, num_partitions=2 * n_threads)
    for i in range(3):
        well.write("well", [bytes([i]) * 50_000], num_partitions=1)
    waiting = list[str]()

    def opened(self: LocalDisk, path: str, *, follow: bool = True) -> Any:
        if hangs.is_set() and path.startswith(str(hanging.path)):
            waiting.append(path)
            goes_on.wait()
        return as_before(self, path, follow=follow)

    as_before = LocalDisk.open
    monkeypatch.setattr(LocalDisk, "open", opened)
    monkeypatch.setattr(view, "may_hang", lambda path: path.startswith(str(hanging.path)))
    monkeypatch.setattr(reading, "_MOST_ID_SECONDS", 0.1)
    with contextlib.ExitStack() as stack:
        stack.callback(goes_on.set)
        server = stack.enter_context(
            segmentlog.serve(hanging.path, well.path, read_up_to="logEnd", follow=True)
        )
        clients = [
            stack.enter_context(RawClient(server.bootstrap_servers))
            for _ in range(4 * n_threads + 1)
        ]
        other = clients.pop()
        assert other.ask(18, 3).api_keys
        hangs.set()
        for i, each in enumerate(clients):
            n = {"partition_index": i // 2, "partition": i // 2, "timestamp": 0}
            name = {"topic": "hanging", "name": "hanging", "partitions": [n]}
            key, version = ((1, 12), (2, 9), (23, 4), (61, 0))[i % 4]
            indexes = {"partition_indexes": [i // 2]}
            each.sock.sendall(each.frame(key, version, topics=[name | indexes]))
        wait_for(lambda: waiting, lambda: "nothing is asked of it")
        hidden = other.ask(3, 9, topics=[{"name": "hanging"}]).topics
        assert [5] == [each.error_code for each in hidden]  # LEADER_NOT_AVAILABLE
        known = other.ask(3, 9, topics=[{"name": "well"}]).topics
        assert [0] == [each.error_code for each in known]
        for offset in range(3):
            assert other.fetch("well", 0, offset, max_bytes=1).records
        assert 3 == other.list_offset("well", 0, -1).offset
        assert not other.ask(9, 5, group_id="g", topics=None).topics
        with RawClient(server.bootstrap_servers) as late:
            assert late.fetch("well", 0, 0).records
        server.close()


def test_the_metadata_is_read_before_clients_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer about a topic needs it: its directory may hang later."""
    log = KafkaLog(tmp_path / "kafka")
    log.write("t", ["a"], num_partitions=1)
    reads = list[object]()

    def read(metadata: object) -> dict[str, int]:
        reads.append(metadata)
        return {}

    monkeypatch.setattr(view, "read_partition_counts", read)
    with segmentlog.serve(log.path) as server, RawClient(server.bootstrap_servers) as client:
        assert 1 == len(reads)
        assert 1 == len(client.ask(3, 9, topics=[{"name": "t"}]).topics[0].partitions)
        assert 1 == len(reads)
