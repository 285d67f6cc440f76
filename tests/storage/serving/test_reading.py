"""What a client reads: topics, offsets, and batches as they are stored."""

import errno
import hashlib
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka_protocol import RawClient, batches_of, consume

import segmentlog
from segmentlog.serving.apis import APIS
from segmentlog.serving.open_server import Server
from segmentlog.serving.stored import Asked, StoredBatches
from segmentlog.serving.wire import Held, Records, Stored, answer
from segmentlog.testing.kafka_log import KafkaLog
from segmentlog.testing.legacy import encode_message
from segmentlog.testing.reference import Record

_EARLIEST, _LATEST, _NEWEST = -2, -1, -3


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> KafkaLog:
    """Two topics: one of several batches, and one of transactions, of which one is open."""
    made = KafkaLog(tmp_path_factory.mktemp("kafka"))
    for first in range(0, 60, 20):
        rows = [
            {"key": str(i), "value": f"v{i}", "timestamp": 1000 + i, "headers": {"h": b"x"}}
            for i in range(first, first + 20)
        ]
        made.write("orders", rows, partition=first // 20 % 2, num_partitions=3)
    for i in range(3):
        with made.transaction() as transaction:
            transaction.write("paid", [f"{i}-{n}" for n in range(4)], num_partitions=1)
            if i == 1:
                transaction.abort()
    made.transaction().write("paid", ["open"])
    made.write("paid", ["after"])
    return made


@pytest.fixture(scope="module")
def server(log: KafkaLog) -> Iterator[Server]:
    with segmentlog.serve(log.path) as found:
        yield found


@pytest.fixture
def client(server: Server) -> Iterator[RawClient]:
    with RawClient(server.bootstrap_servers) as found:
        yield found


def bytes_of(directory: Path) -> dict[str, tuple[str, int, int]]:
    """Contents, inode and time of every file."""
    return {
        str(each): (
            hashlib.sha256(each.read_bytes()).hexdigest(),
            each.stat().st_ino,
            each.stat().st_mtime_ns,
        )
        for each in directory.rglob("*")
        if each.is_file()
    }


def test_versions_that_are_not_known_are_answered_with_those_that_are(client: RawClient) -> None:
    client.sock.sendall(bytes.fromhex("0000000c 0012 0063 00000001 ffff 0000".replace(" ", "")))
    answer = client.take(int.from_bytes(client.take(4), "big"))

    assert b"\0\0\0\x01" + b"\0\x23" == answer[:6]  # UNSUPPORTED_VERSION


def test_metadata_has_every_partition_and_ids(client: RawClient, log: KafkaLog) -> None:
    """Of one topic, by name and by id; an unknown one is an error of its own."""
    found = client.ask(3, 13, topics=None)
    topics = {each.name: each for each in found.topics}
    by_id = client.ask(3, 13, topics=[{"topic_id": topics["paid"].topic_id, "name": None}])
    unknown = client.ask(3, 13, topics=[{"name": "none"}])

    assert {"orders": 3, "paid": 1} == {name: len(t.partitions) for name, t in topics.items()}
    assert {found.brokers[0].node_id} == {p.leader_id for t in found.topics for p in t.partitions}
    assert segmentlog.open_log_dir(log.path).log("paid", 0).topic_id is not None
    assert ["paid"] == [each.name for each in by_id.topics]
    assert 3 == unknown.topics[0].error_code


def test_pages_of_partitions_come_one_after_the_other(client: RawClient) -> None:
    """Each partition once, two at a time."""
    found, cursor = [], None
    while True:
        answer = client.ask(75, 0, topics=[], response_partition_limit=2, cursor=cursor)
        found += [(t.name, p.partition_index) for t in answer.topics for p in t.partitions]
        assert all(p.last_known_elr == () for t in answer.topics for p in t.partitions)
        if answer.next_cursor is None:
            break
        cursor = {
            "topic_name": answer.next_cursor.topic_name,
            "partition_index": answer.next_cursor.partition_index,
        }

    assert [("orders", 0), ("orders", 1), ("orders", 2), ("paid", 0)] == found


def test_partitions_that_are_not_here_have_no_leader(tmp_path: Path) -> None:
    """A disk of one broker has some of them; clients know partitions by their number."""
    made = KafkaLog(tmp_path / "kafka")
    made.create_topic("t", 3)
    made.write("t", ["a"], partition=2)
    (made.path / "t-0").rename(tmp_path / "t-0")
    with segmentlog.serve(made.path) as server, RawClient(server.bootstrap_servers) as client:
        topic = client.ask(3, 9, topics=[{"name": "t"}]).topics[0]

        assert [-1, 0, 0] == [each.leader_id for each in topic.partitions]
        assert 5 == topic.partitions[0].error_code  # LEADER_NOT_AVAILABLE
        assert [b"a"] == [each.value for each in consume(client, "t", 2)]
        assert 3 == client.fetch("t", 0, 0).error_code


def test_batches_come_as_they_are_stored(client: RawClient, log: KafkaLog) -> None:
    """In every version, from each offset on, byte for byte; a small limit gives one batch."""
    (path,) = (log.path / "orders-0").glob("*.log")
    stored = path.read_bytes()
    first, second = (each.data for each in batches_of(stored))

    for version in range(4, 13):
        assert stored == client.fetch("orders", 0, 0, version=version).records
    assert first == client.fetch("orders", 0, 3, max_bytes=1).records
    assert second == client.fetch("orders", 0, 20).records
    assert first == client.fetch("orders", 0, 0, max_bytes=len(stored) - 1).records


def test_topics_are_fetched_by_their_ids(client: RawClient, log: KafkaLog) -> None:
    """From version 13 on, as the newest clients do, also where a consumer goes on."""
    (path,) = (log.path / "orders-0").glob("*.log")
    first, second = (each.data for each in batches_of(path.read_bytes()))
    topics = client.ask(3, 12, topics=[{"name": "orders", "topic_id": None}]).topics
    topic_id = topics[0].topic_id
    assert topic_id is not None
    for version in range(13, APIS[1].most + 1):
        for offset, batch in ((0, first), (20, second)):
            found = client.fetch("", 0, offset, version=version, max_bytes=1, topic_id=topic_id)
            assert batch == found.records
        assert 3 == client.fetch("", 9, 0, version=version, topic_id=topic_id).error_code
        other = uuid.UUID(int=topic_id.int ^ 1)
        assert 100 == client.fetch("", 0, 0, version=version, topic_id=other).error_code


def test_a_topic_may_be_named_again_for_each_partition(client: RawClient) -> None:
    """As some clients do; a partition that is named twice is answered once."""
    topics = [
        {"topic": "orders", "partitions": [{"partition": each, "partition_max_bytes": 1 << 20}]}
        for each in (0, 1, 0)
    ]
    found = client.ask(1, 12, max_bytes=1 << 20, topics=topics).responses
    numbers = [each.partition_index for topic in found for each in topic.partitions]
    assert [0, 1] == sorted(numbers)
    assert all(each.records for topic in found for each in topic.partitions)

    asked = [{"name": "orders", "partition_indexes": [each]} for each in (0, 1, 0)]
    topics = client.ask(61, 0, topics=asked).topics
    assert [0, 1] == [each.partition_index for topic in topics for each in topic.partitions]


def test_an_answer_that_waits_holds_no_file(tmp_path: Path) -> None:
    """`kio` keeps the ranges of files as they are; small ones are read, within a bound."""
    made = KafkaLog(tmp_path / "kafka")
    made.write("t", [b"a" * 100_000])
    made.write("u", [b"b"])
    logs = [segmentlog.open_log_dir(made.path).log(topic, 0) for topic in ("t", "u")]
    n_before = len(os.listdir("/dev/fd"))
    (large,), (small,) = (
        tuple.__iter__(
            StoredBatches(log)
            .fetch(Asked(0, 1 << 20, takes_first=True, is_committed=False), 1)
            .records
        )
        for log in logs
    )

    assert n_before == len(os.listdir("/dev/fd"))
    assert (made.path / "u-0" / f"{0:020d}.log").read_bytes() == small
    partitions = [{"records": Records([large]), "high_watermark": 1}]
    parts = answer(1, 12, 0, {"responses": [{"topic": "t", "partitions": partitions}]}).parts
    assert isinstance(large, Stored)
    assert not large.place
    assert large in parts
    with large.opened() as file:
        assert file.descriptor is not None
        assert Held.read(file, 0, large.size) is not None
        assert Held.read(file, 0, large.size + 1) is None
        assert Held.read(file, 0, 1 << 40) is None


def _unable(*_: int) -> int:
    raise OSError(errno.EINVAL, "not from this file")


@pytest.mark.parametrize("able", ["always", "never", "for a while", "at once"])
def test_the_system_sends_local_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, able: str
) -> None:
    """Without Python's copying; what it does not send, as of some file systems, comes, too."""
    log = KafkaLog(tmp_path / "kafka")
    for i in range(4):
        log.write("t", [bytes([i]) * 1_000_000])
    (path,) = Path(log.path).glob("t-0/*.log")
    sent = [0]

    def send(out: int, file: int, at: int, n_bytes: int) -> int:
        if able == "for a while" and sent[0] > 500_000:
            return _unable()
        n_bytes = os_sendfile(out, file, at, n_bytes)
        sent[0] += n_bytes
        return n_bytes

    os_sendfile = os.sendfile
    monkeypatch.setattr(os, "sendfile", _unable if able == "never" else send)
    if able == "at once":  # nothing can be waited for: too many files are open
        monkeypatch.setattr(os, "dup", _unable)
    with (
        segmentlog.serve(log.path) as server,
        RawClient(server.bootstrap_servers) as client,
    ):
        for _ in range(2):
            answer = client.fetch("t", 0, 0, max_bytes=50 << 20).records
            assert path.read_bytes() == answer
    if able in ("always", "never"):
        assert sent[0] == (0 if able == "never" else 2 * path.stat().st_size)


def test_offsets_are_found_by_time_and_by_the_ends(client: RawClient, log: KafkaLog) -> None:
    opened = segmentlog.open_log_dir(log.path).log("orders", 0)
    for timestamp in (0, 1000, 1010, 1019, 1045, 1059, 1060):
        expected = opened.offset_for_timestamp(time_of(timestamp))
        found = client.list_offset("orders", 0, timestamp)

        assert (-1 if expected is None else expected.offset) == found.offset
    assert 0 == client.list_offset("orders", 0, _EARLIEST).offset
    assert 40 == client.list_offset("orders", 0, _LATEST).offset
    assert (0, -1) == tuple(client.list_offset("orders", 0, each).offset for each in (-4, -5))
    asked = [{"name": "orders", "partitions": [{"partition_index": 0, "timestamp": 1010}]}]
    oldest_version = client.ask(2, 1, topics=asked).topics[0].partitions[0]  # of kafka-go
    assert (10, 1010) == (oldest_version.offset, oldest_version.timestamp)
    newest = client.list_offset("orders", 0, _NEWEST)
    assert (39, 1059) == (newest.offset, newest.timestamp)


def time_of(ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(ms // 1000)) + f".{ms % 1000:03d}Z"


def test_messages_have_no_epoch(tmp_path: Path) -> None:
    """Those of magic 0 and 1, where they are found by time; a broker says the same."""
    log = KafkaLog(tmp_path / "kafka")
    log.write("t", ["a"], num_partitions=1)
    directory = Path(log.path) / "t-0"
    for path in directory.glob("*.*index"):
        path.unlink()
    records = [Record(i, 1_000 + i, None, b"v") for i in range(3)]
    data = b"".join(map(encode_message, records))
    (directory / f"{0:020d}.log").write_bytes(data)
    with (
        segmentlog.serve(log.path, read_up_to="logEnd") as server,
        RawClient(server.bootstrap_servers) as client,
    ):
        for timestamp in (1_001, _NEWEST):
            found = client.list_offset("t", 0, timestamp)
            offset = 1 if timestamp > 0 else 2
            assert (offset, 1_000 + offset, -1) == (
                found.offset,
                found.timestamp,
                found.leader_epoch,
            )


def test_an_offset_outside_of_the_log_is_an_error(client: RawClient) -> None:
    assert 1 == client.fetch("orders", 0, 41).error_code
    assert 1 == client.fetch("orders", 0, -5).error_code
    assert 0 == client.fetch("orders", 0, 40).error_code


def test_aborted_and_open_transactions_are_left_out_by_a_consumer(
    client: RawClient, log: KafkaLog
) -> None:
    """The engine's own read has the same records, for both levels of isolation."""
    opened = segmentlog.open_log_dir(log.path).log("paid", 0)
    for level in ("read_committed", "read_uncommitted"):
        rows = opened.scan(isolation_level=level).read_all()
        for n_bytes in (1, 200, 1 << 20):
            found = consume(
                client, "paid", 0, is_committed=level == "read_committed", max_bytes=n_bytes
            )

            assert rows.column("offset").to_pylist() == [each.offset for each in found]
            assert rows.column("value").to_pylist() == [each.value for each in found]
    stable = opened.last_stable_offset()
    assert stable == client.list_offset("paid", 0, _LATEST, 1).offset
    assert stable < client.list_offset("paid", 0, _LATEST, 0).offset
    assert stable <= client.list_offset("paid", 0, _NEWEST, 0).offset
    assert -1 == client.list_offset("paid", 0, _NEWEST, 1).offset  # as a broker answers
    assert stable == client.fetch("paid", 0, 0, is_committed=True).last_stable_offset


def test_ends_of_epochs(tmp_path: Path) -> None:
    made = KafkaLog(tmp_path / "kafka")
    made.write("t", [str(i) for i in range(10)])
    (made.path / "t-0" / "leader-epoch-checkpoint").write_text("0\n2\n1 0\n4 6\n")
    with segmentlog.serve(made.path) as server, RawClient(server.bootstrap_servers) as client:
        ends = {}
        for epoch in range(6):
            asked = [{"partition": 0, "leader_epoch": epoch}]
            topics = [{"topic": "t", "partitions": asked}]
            found = client.ask(23, 4, topics=topics).topics[0].partitions[0]
            ends[epoch] = found.leader_epoch, found.end_offset

    none = (-1, -1)
    assert {0: (0, 0), 1: (1, 6), 2: (1, 6), 3: (1, 6), 4: (4, 10), 5: none} == ends


def test_a_fetch_waits_for_records_that_come(tmp_path: Path) -> None:
    """A directory that is followed; a fetch at its end is answered once there is more."""
    made = KafkaLog(tmp_path / "kafka")
    made.write("t", ["a"])
    with (
        segmentlog.serve(made.path, follow=True) as server,
        RawClient(server.bootstrap_servers) as client,
    ):
        assert [b"a"] == [each.value for each in consume(client, "t", 0)]
        client.sock.sendall(
            client.frame(
                1,
                12,
                max_wait=10_000,
                min_bytes=1,
                topics=[
                    {
                        "topic": "t",
                        "partitions": [
                            {"partition": 0, "fetch_offset": 1, "partition_max_bytes": 100}
                        ],
                    }
                ],
            )
        )
        made.write("t", ["b"])
        found = client.answer(1, 12).responses[0].partitions[0]

        assert 2 == found.high_watermark
        assert 1 == next(batches_of(found.records)).base_offset


def test_a_directory_that_goes_and_comes_back(tmp_path: Path) -> None:
    """As a disk that is mounted again: clients ask on, and the topics stay."""
    made = KafkaLog(tmp_path / "kafka")
    made.write("t", ["a"])
    with (
        segmentlog.serve(made.path, follow=True) as server,
        RawClient(server.bootstrap_servers) as client,
    ):
        made.path.rename(tmp_path / "away")
        assert 56 == client.fetch("t", 0, 0).error_code  # KAFKA_STORAGE_ERROR
        assert ["t"] == [each.name for each in client.ask(3, 9, topics=None).topics]
        (tmp_path / "away").rename(made.path)
        assert [b"a"] == [each.value for each in consume(client, "t", 0)]


def test_nothing_is_changed(log: KafkaLog) -> None:
    """No file is written or touched, whatever clients ask for."""
    before = bytes_of(log.path)
    with segmentlog.serve(log.path) as server, RawClient(server.bootstrap_servers) as client:
        consume(client, "orders", 0)
        asked = [{"partition_index": 0, "committed_offset": 3}]
        topics = [{"name": "orders", "partitions": asked}]
        found = client.ask(8, 7, group_id="g", topics=topics)
        assert 0 == found.topics[0].partitions[0].error_code
        client.ask(19, 5, topics=[{"name": "new", "num_partitions": 1}])

    assert before == bytes_of(log.path)


def test_only_the_topics_that_are_asked_for(log: KafkaLog, tmp_path: Path) -> None:
    with (
        segmentlog.serve(log.path, topic="ord*") as server,
        RawClient(server.bootstrap_servers) as client,
    ):
        assert ["orders"] == [each.name for each in client.ask(3, 9, topics=None).topics]
        assert 3 == client.fetch("paid", 0, 0).error_code


def test_renamed_partitions_have_another_name(tmp_path: Path) -> None:
    """As topics of their own, so that they are not mistaken for partitions in use."""
    made = KafkaLog(tmp_path / "kafka")
    made.write("t", ["gone"])
    made.write("u", ["here"])
    (made.path / "t-0").rename(made.path / f"t-0.{32 * 'a'}-delete")
    with (
        segmentlog.serve(made.path, renamed=True) as server,
        RawClient(server.bootstrap_servers) as client,
    ):
        topics = client.ask(3, 12, topics=None).topics

        assert ["t.deleted", "u"] == [each.name for each in topics]
        assert topics[0].topic_id is None  # a topic of this id may be there, too
        assert [b"gone"] == [each.value for each in consume(client, "t.deleted", 0)]


def test_the_fixture_serves_what_a_test_writes(kafka_log: KafkaLog) -> None:
    """Also what it writes after the start; a second server is another one."""
    servers = kafka_log.serve().bootstrap_servers
    kafka_log.write("t", ["a"])
    with RawClient(servers) as client:
        while not client.ask(3, 9, topics=None).topics:
            time.sleep(0.02)
        assert [b"a"] == [each.value for each in consume(client, "t", 0)]
    assert servers != kafka_log.serve().bootstrap_servers
    kafka_log.close()
    with pytest.raises(ConnectionError):
        RawClient(servers)
