"""Groups of consumers in memory, by Kafka's classic protocol, and the offsets that they commit.

A group passes through the states of a coordinator (``ClassicGroup``): members join until all
members of the last generation have come again or their time is over, the leader assigns, and each
member gets its part.  Groups end with the server.  Their commits do, too, unless a file keeps
them.  A group that a client names for the first time begins with the offsets that
``__consumer_offsets`` has.
"""

import asyncio
import json
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from segmentlog.errors import LogDirectoryError, SegmentLogError
from segmentlog.model import LARGEST_LONG
from segmentlog.serving.wire import Body, once
from segmentlog.store.durable import replace_file
from segmentlog.store.readable import read_whole

logger = logging.getLogger(__name__)

_UNKNOWN_MEMBER, _ILLEGAL_GENERATION, _REBALANCING = 25, 22, 27
_INCONSISTENT_PROTOCOL, _INVALID_SESSION, _INVALID_GROUP = 23, 26, 24
_MEMBER_ID_REQUIRED, _FENCED, _FULL = 79, 82, 81
_UNKNOWN_TOPIC = 3
_NOT_COORDINATOR = 16  # as of a broker that cannot write: clients try again

_MOST_GROUPS, _MOST_MEMBERS, _MOST_COMMITS = 1_000, 2_000, 200_000
_MOST_SUBSCRIPTION_BYTES = 64 << 10  # of a member
_MOST_METADATA_BYTES = 4_096  # of a commit, as of a broker
_MOST_TEXTS = 16 << 20  # characters of the metadata of all commits, and of their groups
_LARGEST_INT = 2**31 - 1
_JOIN_SECONDS = 0.3  # that a new group waits for more members
_SESSION_MS = (10, 1_800_000)


class CommittedOffset(NamedTuple):
    """An offset that a group has committed."""

    offset: int
    leader_epoch: int
    metadata: str


Places = dict[tuple[str, int], CommittedOffset]  # by topic and partition


@dataclass
class Member:
    """A member of a group; `joined` and `synced` are the answers that it waits for."""

    id: str
    client_id: str
    host: str
    instance_id: str | None
    session_seconds: float
    rebalance_seconds: float
    protocol_type: str
    protocols: Mapping[str, bytes]
    seen: float = field(default_factory=time.monotonic)
    assignment: bytes = b""
    joined: "asyncio.Future[dict[str, Any]] | None" = None
    synced: "asyncio.Future[dict[str, Any]] | None" = None

    @property
    def waits(self) -> bool:
        """Whether it waits for an answer; if its connection ends meanwhile, it does not."""
        return any(each is not None and not each.done() for each in (self.joined, self.synced))

    def answer(self, name: str, values: dict[str, Any]) -> None:
        """Answer the request that it waits for, if there is one."""
        waiting = getattr(self, name)
        setattr(self, name, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(values)


class ServedGroup:
    """One group, whose state follows from what its members wait for."""

    def __init__(self, group_id: str) -> None:
        self.id = group_id
        self.generation = 0
        self.protocol_type = ""
        self.protocol = ""
        self.leader = ""
        self.members: dict[str, Member] = {}
        self.pending: dict[str, float] = {}  # ids that were given, and until when they may be used
        self.is_assigned = False
        self._rebalance: asyncio.TimerHandle | None = None

    @property
    def state(self) -> str:
        """Kafka's name of its state."""
        if not self.members:
            return "Empty"
        if self._rebalance is not None:
            return "PreparingRebalance"
        return "Stable" if self.is_assigned else "CompletingRebalance"

    def begin_rebalance(self) -> None:
        """Let all members join again, and end when they have, or when their time is over."""
        self.is_assigned = False
        for each in self.members.values():
            each.answer("synced", {"error_code": _REBALANCING})
        if self._rebalance is None:
            is_new = self.generation == 0
            most = max((each.rebalance_seconds for each in self.members.values()), default=0)
            loop = asyncio.get_running_loop()
            delay = min(most, _JOIN_SECONDS) if is_new else most
            self._rebalance = loop.call_later(delay, self.end_rebalance)
        elif self.generation == 0:
            return
        self.end_if_all_joined()

    def end_if_all_joined(self) -> None:
        """End a rebalance for which no member of the last generation is missing."""
        all_joined = all(each.joined is not None for each in self.members.values())
        if self._rebalance is not None and self.generation > 0 and all_joined:
            self.end_rebalance()

    def end_rebalance(self) -> None:
        """Begin the next generation with the members that have joined."""
        if self._rebalance is not None:
            self._rebalance.cancel()
            self._rebalance = None
        self.members = {i: each for i, each in self.members.items() if each.joined is not None}
        self.generation += 1
        if not self.members:
            return
        if self.leader not in self.members:
            self.leader = next(iter(self.members))
        common = [
            name
            for name in self.members[self.leader].protocols
            if all(name in each.protocols for each in self.members.values())
        ]
        self.protocol = common[0] if common else ""
        members = [
            {
                "member_id": each.id,
                "group_instance_id": each.instance_id,
                "metadata": each.protocols.get(self.protocol, b""),
            }
            for each in self.members.values()
        ]
        for each in list(self.members.values()):
            each.assignment, each.seen = b"", time.monotonic()
            each.answer(
                "joined",
                {
                    "generation_id": self.generation,
                    "protocol_type": self.protocol_type,
                    "protocol_name": self.protocol,
                    "leader": self.leader,
                    "member_id": each.id,
                    "members": members if each.id == self.leader else [],
                },
            )

    def of_instance(self, instance_id: str | None) -> Member | None:
        """The member with the id that its client has been given (``group.instance.id``)."""
        found = (each for each in self.members.values() if each.instance_id == instance_id)
        return None if instance_id is None else next(found, None)

    def remove(self, member_id: str) -> None:
        """Remove a member, whose partitions the others get."""
        member = self.members.pop(member_id, None)
        if member is not None:
            for name in ("joined", "synced"):
                member.answer(name, {"error_code": _UNKNOWN_MEMBER})
            if self.members:
                self.begin_rebalance()

    def expire(self) -> None:
        """Remove members that have not been heard of, unless they wait for an answer."""
        now = time.monotonic()
        self.pending = {i: until for i, until in self.pending.items() if until > now}
        for each in list(self.members.values()):
            if not each.waits and each.seen + each.session_seconds < now:
                logger.info("group %s: member %s is gone", self.id, each.id)
                self.remove(each.id)

    def fault(self, member_id: str, instance_id: str | None, generation: int | None) -> int:
        """The error of a request that names a member, or 0."""
        member = self.members.get(member_id)
        if member is None:
            return _FENCED if self.of_instance(instance_id) is not None else _UNKNOWN_MEMBER
        member.seen = time.monotonic()
        return 0 if generation in (None, self.generation) else _ILLEGAL_GENERATION


class Coordinator:
    """All groups.

    `file`: keeps the commits; empty for none.  `on_disk`: gives what ``__consumer_offsets`` has
    for a group, for places that are not committed here.  `is_served`: whether a partition is here;
    nothing is committed for others.
    """

    def __init__(
        self, file: str, on_disk: Callable[[str], Places], is_served: Callable[[str, int], bool]
    ) -> None:
        self.groups: dict[str, ServedGroup] = {}
        self._file, self._on_disk, self._is_served = file, on_disk, is_served
        self.committed: dict[str, Places] = _read(file) if file else {}
        self._n_texts = sum(
            len(group) + sum(len(each.metadata) for each in places.values())
            for group, places in self.committed.items()
        )
        self._writing = asyncio.Lock()

    def expire(self) -> None:
        """Remove members, and groups without any, that are not heard of any more."""
        for name, each in list(self.groups.items()):
            each.expire()
            if not each.members and not each.pending:
                del self.groups[name]

    async def join(self, body: Body, version: int, client_id: str, host: str) -> dict[str, Any]:
        """JoinGroup: answered when the next generation begins."""
        refusal = self._refuse_join(body)
        if refusal:
            return {"error_code": refusal, "member_id": body.member_id}
        group = self.groups.setdefault(body.group_id, ServedGroup(body.group_id))
        member_id, instance_id = body.member_id, getattr(body, "group_instance_id", None)
        same = group.of_instance(instance_id)
        if not member_id:
            member_id = f"{(instance_id or client_id)[:200]}-{uuid.uuid4()}"
            if same is None and instance_id is None and version >= 4:
                group.pending[member_id] = time.monotonic() + body.session_timeout.total_seconds()
                return {"error_code": _MEMBER_ID_REQUIRED, "member_id": member_id}
        elif member_id not in group.members and group.pending.pop(member_id, None) is None:
            code = _FENCED if same is not None else _UNKNOWN_MEMBER
            return {"error_code": code, "member_id": member_id}
        if same is not None and same.id != member_id:  # it has started again
            group.members.pop(same.id)
            for name in ("joined", "synced"):
                same.answer(name, {"error_code": _FENCED, "member_id": same.id})
        session = body.session_timeout.total_seconds()
        rebalance = getattr(body, "rebalance_timeout", None)
        seconds = session if rebalance is None else rebalance.total_seconds()
        member = Member(
            member_id,
            client_id,
            host,
            instance_id,
            session,
            seconds if seconds > 0 else session,
            body.protocol_type,
            {each.name: bytes(each.metadata) for each in body.protocols},
        )
        if (before := group.members.get(member_id)) is not None:
            before.answer("joined", {"error_code": _REBALANCING, "member_id": member_id})
        if not group.members:
            group.protocol_type = body.protocol_type
        group.members[member_id] = member
        member.joined = asyncio.get_running_loop().create_future()
        joined = member.joined
        group.begin_rebalance()
        return await joined

    def _refuse_join(self, body: Body) -> int:
        """The error of a request to join, or 0."""
        group = self.groups.get(body.group_id)
        if not body.group_id:
            return _INVALID_GROUP
        session_ms = body.session_timeout.total_seconds() * 1000
        if not _SESSION_MS[0] <= session_ms <= _SESSION_MS[1]:
            return _INVALID_SESSION
        n_all = sum(len(each.members) + len(each.pending) for each in self.groups.values())
        if sum(len(each.metadata) for each in body.protocols) > _MOST_SUBSCRIPTION_BYTES:
            return _INCONSISTENT_PROTOCOL
        if group is None:
            is_full = len(self.groups) >= _MOST_GROUPS or n_all >= _MOST_MEMBERS
            return _FULL if is_full else 0
        if n_all >= _MOST_MEMBERS and body.member_id not in {**group.members, **group.pending}:
            return _FULL
        others = [each for each in group.members.values() if each.id != body.member_id]
        if not body.protocols:
            return _INCONSISTENT_PROTOCOL
        if not others:
            return 0
        common = {each.name for each in body.protocols}
        for each in others:
            common &= each.protocols.keys()
        is_same_type = body.protocol_type == group.protocol_type
        return 0 if common and is_same_type else _INCONSISTENT_PROTOCOL

    async def sync(self, body: Body) -> dict[str, Any]:
        """SyncGroup: answered once the leader has assigned."""
        group = self.groups.get(body.group_id)
        if group is None:
            return {"error_code": _UNKNOWN_MEMBER}
        fault = group.fault(body.member_id, _instance(body), body.generation_id)
        if fault or group.state == "PreparingRebalance":
            return {"error_code": fault or _REBALANCING}
        member = group.members[body.member_id]
        if body.member_id == group.leader and not group.is_assigned:
            group.is_assigned = True
            given = {each.member_id: bytes(each.assignment) for each in body.assignments}
            for each in group.members.values():
                each.assignment = given.get(each.id, b"")
                each.answer("synced", self._synced(group, each))
        if group.is_assigned:
            return self._synced(group, member)
        member.answer("synced", {"error_code": _REBALANCING})
        member.synced = asyncio.get_running_loop().create_future()
        return await member.synced

    def _synced(self, group: ServedGroup, member: Member) -> dict[str, Any]:
        return {
            "assignment": member.assignment,
            "protocol_type": group.protocol_type,
            "protocol_name": group.protocol,
        }

    def heartbeat(self, body: Body) -> dict[str, Any]:
        """Heartbeat: whether the member has to join again."""
        group = self.groups.get(body.group_id)
        if group is None:
            return {"error_code": _UNKNOWN_MEMBER}
        fault = group.fault(body.member_id, _instance(body), body.generation_id)
        is_moving = group.state == "PreparingRebalance"
        return {"error_code": fault or (_REBALANCING if is_moving else 0)}

    def leave(self, body: Body) -> dict[str, Any]:
        """LeaveGroup, of one or of several members."""
        group = self.groups.get(body.group_id)

        def left(each: Body) -> dict[str, Any]:
            member_id, instance_id = each.member_id, _instance(each)
            if group is not None and not member_id:
                same = group.of_instance(instance_id)
                member_id = "" if same is None else same.id
            is_known = group is not None and member_id in group.members
            if group is not None:
                group.remove(member_id)
            names = {"member_id": each.member_id, "group_instance_id": instance_id}
            return {**names, "error_code": 0 if is_known else _UNKNOWN_MEMBER}

        members = getattr(body, "members", None)
        return left(body) if members is None else {"members": [*map(left, members)]}

    async def commit(self, body: Body) -> dict[str, Any]:
        """OffsetCommit, of a member, or of a client that assigns its partitions itself."""
        group = self.groups.get(body.group_id)
        generation = body.generation_id_or_member_epoch
        fault = 0
        if generation >= 0 or body.member_id:
            fault = (
                _ILLEGAL_GENERATION
                if group is None
                else group.fault(body.member_id, _instance(body), generation)
            )
        elif group is not None and group.members:
            fault = _UNKNOWN_MEMBER
        elif not body.group_id:
            fault = _INVALID_GROUP
        codes: dict[tuple[str, int], int] = {}
        if not fault:
            async with self._writing:
                codes, fault = await self._keep(body)
        return {
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [
                        {
                            "partition_index": each.partition_index,
                            "error_code": fault
                            or codes.get((topic.name, each.partition_index), 0),
                        }
                        for each in topic.partitions
                    ],
                }
                for topic in body.topics
            ]
        }

    async def _keep(self, body: Body) -> tuple[dict[tuple[str, int], int], int]:
        """Take over commits, once the file has them; the errors of some, or that of all."""
        codes = {}
        places = dict(self.committed.get(body.group_id, {}))
        n_all = sum(map(len, self.committed.values()))
        n_texts = self._n_texts + (0 if body.group_id in self.committed else len(body.group_id))
        for topic in body.topics:
            for each in topic.partitions:
                key = topic.name, each.partition_index
                metadata = each.committed_metadata or ""
                more = len(metadata) - (len(places[key].metadata) if key in places else 0)
                if not self._is_served(*key):
                    codes[key] = _UNKNOWN_TOPIC
                elif len(metadata.encode()) > _MOST_METADATA_BYTES:
                    codes[key] = 12  # OFFSET_METADATA_TOO_LARGE
                elif (key not in places and n_all >= _MOST_COMMITS) or (
                    n_texts + more > _MOST_TEXTS and (more > 0 or not places)
                ):
                    codes[key] = 28  # INVALID_COMMIT_OFFSET_SIZE
                else:
                    n_all += key not in places
                    n_texts += more
                    epoch = getattr(each, "committed_leader_epoch", -1)
                    places[key] = CommittedOffset(each.committed_offset, epoch, metadata)
        committed = {**self.committed, body.group_id: places} if places else self.committed
        if self._file:
            try:
                await asyncio.to_thread(lambda: replace_file(self._file, _written(committed)))
            except (SegmentLogError, OSError) as error:
                logger.warning("%s: commits are refused: %s", self._file, error)
                return {}, _NOT_COORDINATOR
        if committed is not self.committed:
            self.committed, self._n_texts = committed, n_texts
        return codes, 0

    def places(self, group_id: str) -> Places:
        """All offsets of a group: those that are committed here, and others from the disk."""
        return {**self._on_disk(group_id), **self.committed.get(group_id, {})}

    def fetch_offsets(self, body: Body) -> dict[str, Any]:
        """OffsetFetch, of one group or of several."""
        asked = getattr(body, "groups", None)
        if asked is None:
            return {"topics": self._offsets(body.group_id, body.topics)}
        return {
            "groups": [
                {"group_id": each.group_id, "topics": self._offsets(each.group_id, each.topics)}
                for each in once(asked, lambda each: each.group_id)
            ]
        }

    def _offsets(self, group_id: str, topics: Body) -> list[dict[str, Any]]:
        places = self.places(group_id)
        wanted: dict[str, list[int]] = {}
        if topics is None:
            for topic, partition in sorted(places):
                wanted.setdefault(topic, []).append(partition)
        else:
            for each in topics:
                wanted.setdefault(each.name, []).extend(each.partition_indexes)
        none = CommittedOffset(-1, -1, "")
        return [
            {
                "name": topic,
                "partitions": [
                    {
                        "partition_index": each,
                        "committed_offset": found.offset,
                        "committed_leader_epoch": found.leader_epoch,
                        "metadata": found.metadata,
                    }
                    for each in partitions
                    for found in [places.get((topic, each), none)]
                ],
            }
            for topic, partitions in wanted.items()
        ]


def _instance(body: Body) -> str | None:
    found: str | None = getattr(body, "group_instance_id", None)
    return found


def _written(committed: Mapping[str, Places]) -> bytes:
    """Commits as lines of JSON."""
    lines = (
        json.dumps({"group": group, "topic": topic, "partition": partition, **each._asdict()})
        for group, places in sorted(committed.items())
        for (topic, partition), each in sorted(places.items())
    )
    return "".join(f"{each}\n" for each in lines).encode()


def _read(path: str) -> dict[str, Places]:
    """The commits of a file; none if it is missing."""
    found: dict[str, Places] = {}
    try:
        data = read_whole(path, lambda reason: LogDirectoryError(path, reason), follow=True)
    except FileNotFoundError:
        replace_file(path, b"")  # an error now, if it cannot be written
        return found
    for number, line in enumerate(data.splitlines(), 1):
        try:
            group, key, each = _parsed(json.loads(line))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            reason = f"line {number} is not a commit of segmentlog serve: {error!r}"
            raise LogDirectoryError(path, reason) from None
        found.setdefault(group, {})[key] = each
    return found


def _parsed(row: Mapping[str, Any]) -> tuple[str, tuple[str, int], CommittedOffset]:
    texts = row["group"], row["topic"], row["metadata"]
    numbers = row["partition"], row["offset"], row["leader_epoch"]
    if not all(isinstance(each, str) for each in texts):
        raise TypeError("a name is not a text")
    for each in texts:
        each.encode()  # no half of a character, which could not be sent
    most = _LARGEST_INT, LARGEST_LONG, _LARGEST_INT
    if not all(
        type(each) is int and -1 <= each <= m for each, m in zip(numbers, most, strict=True)
    ):
        raise TypeError("a number is not one")
    return row["group"], (row["topic"], numbers[0]), CommittedOffset(*numbers[1:], row["metadata"])
