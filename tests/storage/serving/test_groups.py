"""Groups of consumers: members, generations, and the offsets that they commit."""

import asyncio
import contextlib
import json
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka_protocol import RawClient
from waiting import wait_for

import segmentlog
from segmentlog.errors import LogDirectoryError
from segmentlog.serving import groups
from segmentlog.serving.open_server import Server
from segmentlog.testing.kafka_log import KafkaLog


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> KafkaLog:
    made = KafkaLog(tmp_path_factory.mktemp("kafka"))
    made.write("t", ["a", "b"], num_partitions=1)
    return made


@pytest.fixture(scope="module")
def server(log: KafkaLog) -> Iterator[Server]:
    with segmentlog.serve(log.path) as found:
        yield found


def join(client: RawClient, group: str, member: str = "", **more: Any) -> Any:
    values = {
        "group_id": group,
        "session_timeout": 10_000,
        "rebalance_timeout": 200,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"m"}],
    }
    return client.ask(11, 9, member_id=member, **(values | more))


def joined(client: RawClient, group: str, **more: Any) -> Any:
    """The answer to a new member, which gets its id first."""
    asked = join(client, group, **more)
    assert 79 == asked.error_code  # MEMBER_ID_REQUIRED
    return join(client, group, asked.member_id, **more)


def commit(
    client: RawClient, group: str, offset: int, place: tuple[str, int] = ("t", 0), **more: Any
) -> int:
    topic, number = place
    asked = [{"partition_index": number, "committed_offset": offset, "committed_metadata": "m"}]
    topics = [{"name": topic, "partitions": asked}]
    found = client.ask(8, 7, group_id=group, topics=topics, **more)
    return int(found.topics[0].partitions[0].error_code)


def committed(client: RawClient, group: str) -> int:
    found = client.ask(9, 5, group_id=group, topics=None)
    return next((p.committed_offset for t in found.topics for p in t.partitions), -1)


def test_members_share_a_generation_and_the_leader_assigns(server: Server) -> None:
    """The second member makes the first one join again; both get the part of the leader's plan."""
    with (
        RawClient(server.bootstrap_servers) as first,
        RawClient(server.bootstrap_servers) as second,
    ):
        patient: Any = {"rebalance_timeout": 60_000}  # on a machine with much else to do
        one = joined(first, "two", **patient)
        assert (1, one.member_id) == (one.generation_id, one.leader)
        assert "the-plan" == assigned(first, "two", one, {one.member_id: b"the-plan"})

        asked = join(second, "two", **patient)
        answers: list[Any] = []
        other = threading.Thread(
            target=lambda: answers.append(join(second, "two", asked.member_id, **patient))
        )
        other.start()
        beat = {"group_id": "two", "generation_id": 1, "member_id": one.member_id}
        while first.ask(12, 4, **beat).error_code != 27:  # REBALANCE_IN_PROGRESS
            pass
        again = join(first, "two", one.member_id, **patient)
        other.join()

        assert 2 == again.generation_id == answers[0].generation_id
        assert [] == list(answers[0].members)
        members = {each.member_id for each in again.members}
        assert members == {one.member_id, asked.member_id}
        waiting = threading.Thread(
            target=lambda: answers.append(assigned(second, "two", answers[0], {}))
        )
        waiting.start()
        plan = {each: each.encode() for each in members}
        assert one.member_id == assigned(first, "two", again, plan)
        waiting.join()
        assert asked.member_id == answers[1]

        left = first.ask(13, 5, group_id="two", members=[{"member_id": one.member_id}])
        assert 0 == left.members[0].error_code
        assert 25 == first.ask(12, 4, **beat).error_code  # UNKNOWN_MEMBER_ID


def assigned(client: RawClient, group: str, member: Any, plan: dict[str, bytes]) -> str:
    assignments = [{"member_id": name, "assignment": part} for name, part in plan.items()]
    found = client.ask(
        14,
        5,
        group_id=group,
        generation_id=member.generation_id,
        member_id=member.member_id,
        assignments=assignments,
    )
    assert 0 == found.error_code
    return bytes(found.assignment).decode()


def test_a_member_that_has_gone_frees_the_group(server: Server) -> None:
    """It is not heard of for the time of its session; the group is then forgotten."""
    with RawClient(server.bootstrap_servers) as client:
        asked = join(client, "gone", session_timeout=300)
        member = join(client, "gone", asked.member_id, session_timeout=300)
        beat = {"group_id": "gone", "generation_id": 1, "member_id": member.member_id}
        assert 0 == client.ask(12, 4, **beat).error_code
        groups = server._running._coordinator.groups
        wait_for(lambda: "gone" not in groups, lambda: "the group is there", pause=0.05)
        assert 25 == client.ask(12, 4, **beat).error_code


def test_only_members_of_the_generation_commit(server: Server) -> None:
    with RawClient(server.bootstrap_servers) as client:
        assert 0 == commit(client, "alone", 1)  # a client that assigns its partitions itself
        assert 1 == committed(client, "alone")
        member = joined(client, "members")
        of = {"member_id": member.member_id, "generation_id_or_member_epoch": 1}
        assert 0 == commit(client, "members", 2, **of)
        assert 22 == commit(client, "members", 1, **of | {"generation_id_or_member_epoch": 0})
        assert 25 == commit(client, "members", 1)
        assert 2 == committed(client, "members")
        assert -1 == committed(client, "another")


def test_nothing_is_committed_for_what_is_not_served(server: Server) -> None:
    """Names that a client makes up would fill the memory."""
    with RawClient(server.bootstrap_servers) as client:
        assert 3 == commit(client, "made-up", 1, ("none", 0))  # UNKNOWN_TOPIC_OR_PARTITION
        assert 3 == commit(client, "made-up", 1, ("t", 1))
        assert -1 == committed(client, "made-up")
    assert "made-up" not in server._running._coordinator.committed


def test_a_member_that_goes_while_it_waits_is_missed(server: Server) -> None:
    """It waits for another member, whose time to join again is long."""
    with RawClient(server.bootstrap_servers) as one:
        member = joined(one, "waits")
        with RawClient(server.bootstrap_servers) as other:
            asked = join(other, "waits", session_timeout=100)
            other.sock.sendall(
                other.frame(
                    11,
                    9,
                    group_id="waits",
                    session_timeout=100,
                    rebalance_timeout=2**31 - 1,
                    member_id=asked.member_id,
                    protocol_type="consumer",
                    protocols=[{"name": "range", "metadata": b"m"}],
                )
            )
            group = server._running._coordinator.groups["waits"]
            wait_for(lambda: len(group.members) == 2, lambda: "nobody has come", pause=0.01)
        wait_for(lambda: [*group.members] == [member.member_id], lambda: "it is there", pause=0.01)


def test_a_file_keeps_what_groups_commit(log: KafkaLog, tmp_path: Path) -> None:
    """A later server goes on from it; a damaged file is an error, and stays as it is."""
    file = tmp_path / "offsets"
    for offset in (1, 2):
        with (
            segmentlog.serve(log.path, offsets=file) as server,
            RawClient(server.bootstrap_servers) as client,
        ):
            assert (-1 if offset == 1 else 1) == committed(client, "g")
            assert 0 == commit(client, "g", offset)
    kept = [json.loads(line) for line in file.read_text().splitlines()]
    assert [("g", "t", 0, 2, "m")] == [
        (row["group"], row["topic"], row["partition"], row["offset"], row["metadata"])
        for row in kept
    ]
    file.write_text(file.read_text() + '{"group": 1}\n')
    with pytest.raises(LogDirectoryError, match="line 2"):
        segmentlog.serve(log.path, offsets=file)


_GOOD = (
    '{"group": "g", "topic": "t", "partition": 0, "offset": 1, "leader_epoch": 0, "metadata": ""}'
)


@pytest.mark.parametrize(
    "line",
    [
        "[" * 200_000,
        '{"a":' * 200_000,
        "null",
        "[]",
        '"g"',
        "1e999",
        _GOOD.replace('"partition": 0', '"partition": true'),
        _GOOD.replace('"partition": 0', '"partition": 2147483648'),
        _GOOD.replace('"offset": 1', '"offset": 9223372036854775808'),
        _GOOD.replace('"offset": 1', '"offset": [[1]]'),
        _GOOD.replace('"leader_epoch": 0', '"leader_epoch": 4294967296'),
        _GOOD.replace('"topic": "t"', '"topic": {"t": {}}'),
        _GOOD.replace('"group": "g"', '"group": "\\ud800"'),
    ],
)
def test_lines_that_are_no_commits_are_named(log: KafkaLog, tmp_path: Path, line: str) -> None:
    """Deep ones, numbers that no answer has room for, halves of characters."""
    file = tmp_path / "offsets"
    file.write_text(f"{_GOOD}\n{line}\n")
    with pytest.raises(LogDirectoryError, match="line 2"):
        segmentlog.serve(log.path, offsets=file)
    assert file.read_text().endswith(line + "\n")


def test_texts_of_commits_are_bounded(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids of groups have tens of kilobytes, and a group for each commit would fill the memory."""
    coordinator = server._running._coordinator
    monkeypatch.setattr(groups, "_MOST_TEXTS", coordinator._n_texts + 2_000)
    with RawClient(server.bootstrap_servers) as client:
        assert 0 == commit(client, "a" * 1_500, 1)
        assert 28 == commit(client, "b" * 1_500, 1)  # INVALID_COMMIT_OFFSET_SIZE
        assert -1 == committed(client, "b" * 1_500)
        assert [0, 0] == [commit(client, "a" * 1_500, each) for each in (2, 3)]
        assert 0 == commit(client, "c", 1)
        assert 3 == committed(client, "a" * 1_500)


def test_a_commit_that_cannot_be_kept_is_refused(log: KafkaLog, tmp_path: Path) -> None:
    """As by a broker whose disk is full; the group stays where it was."""
    (tmp_path / "kept").mkdir()
    file = tmp_path / "kept" / "offsets"
    with (
        segmentlog.serve(log.path, offsets=file) as server,
        RawClient(server.bootstrap_servers) as client,
    ):
        assert 0 == commit(client, "g", 1)
        (tmp_path / "kept").rename(tmp_path / "gone")
        assert 16 == commit(client, "g", 2)  # NOT_COORDINATOR
        assert 1 == committed(client, "g")
        (tmp_path / "gone").rename(tmp_path / "kept")
        assert 0 == commit(client, "g", 2)
    assert 2 == json.loads(file.read_text())["offset"]


@pytest.mark.slow
def test_what_was_committed_survives_kills(log: KafkaLog, tmp_path: Path) -> None:
    """At any moment: the next server has the last commit that was answered, or the one after."""
    rng, file, answered = random.Random(72), tmp_path / "offsets", -1
    command = [
        sys.executable,
        "-m",
        "segmentlog",
        "serve",
        str(log.path),
        "--offsets",
        str(file),
        "--bind",
        "127.0.0.1:0",
    ]
    for _ in range(8):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            killer = threading.Timer(rng.uniform(0.05, 0.4), process.kill)
            try:
                assert process.stdout is not None
                with RawClient(process.stdout.readline().split()[0]) as client:
                    found = committed(client, "g")
                    assert answered <= found <= answered + 1
                    answered = found
                    killer.start()
                    with contextlib.suppress(ConnectionError):
                        while commit(client, "g", answered + 1) == 0:
                            answered += 1
            finally:
                process.kill()
    assert answered > 8


def test_a_generation_looks_at_each_member_a_few_times() -> None:
    """The loop of all clients waits meanwhile, also for the largest group."""
    n_members, looks = 100, Counter[str]()

    class Protocols(dict[str, bytes]):
        def get(self, *name: Any) -> Any:
            looks.update(["get"])
            return super().get(*name)

    group = groups.ServedGroup("g")
    loop = asyncio.new_event_loop()
    try:
        for i in range(n_members):
            protocols = Protocols(range=b"")
            member = groups.Member(f"{i}", "c", "h", None, 1, 1, "consumer", protocols)
            member.joined = loop.create_future()
            group.members[member.id] = member
        answers = [each.joined for each in group.members.values()]
        group.end_rebalance()
        found = [each.result()["members"] for each in answers if each is not None]
    finally:
        loop.close()

    assert [n_members] + [0] * (n_members - 1) == [*map(len, found)]
    assert n_members == looks["get"]
