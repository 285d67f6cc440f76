"""Answers of the protocol that read: topics, offsets, epochs, and the batches themselves."""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

from segmentlog.errors import CorruptLogError, SegmentLogError, UnknownTopicOrPartitionError
from segmentlog.model import INTERNAL_TOPICS
from segmentlog.serving.stored import Asked, FoundBatches
from segmentlog.serving.view import ServedLog, View, kafka_error
from segmentlog.serving.wire import Body, Records, once, uuid_of

logger = logging.getLogger(__name__)

_OK = 0
_OFFSET_OUT_OF_RANGE, _UNKNOWN_TOPIC, _NO_LEADER, _NO_SESSION, _UNKNOWN_ID = 1, 3, 5, 70, 100
_STORAGE_ERROR = 56
_LATEST, _EARLIEST, _NEWEST, _EARLIEST_LOCAL, _LATEST_TIERED = -1, -2, -3, -4, -5

#: What clients may do here: read, describe, and describe settings.
_OPERATIONS = 1 << 3 | 1 << 8 | 1 << 10
_MOST_BYTES = 55 << 20  # of an answer, as of a broker (fetch.max.bytes)
_MOST_WAIT_SECONDS = 30.0
_PAGE = 2_000  # partitions in an answer
_MOST_ID_SECONDS = 10.0  # that an answer waits for a directory that may hang
_MOST_NEAR = 8  # partitions of a fetch that is answered without a thread


_R = TypeVar("_R")
_Answer: TypeAlias = Callable[[ServedLog], dict[str, Any]]


class Broker(Protocol):
    """The server, as answers see it."""

    node_id: int
    host: str
    port: int

    @property
    def view(self) -> View:
        """What is served now."""

    async def look_up(
        self, function: Callable[..., _R], *arguments: object, place: str = ""
    ) -> _R:
        """Call a function that reads files, in a thread.

        `place`: the directory that may hang, if they are in one.  It has threads of its own.
        """

    def soon(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function once what is ready has been sent."""

    async def log_in(self, function: Callable[..., _R], *arguments: object) -> _R:
        """Call a function that hashes a password; strangers keep no thread from readers."""

    async def wait_for_change(self, view: View, seconds: float) -> None:
        """Wait until something else than `view` is served, or so long."""


def _node(broker: Broker) -> dict[str, Any]:
    return {
        "node_id": broker.node_id,
        "broker_id": broker.node_id,
        "host": broker.host,
        "port": broker.port,
    }


async def _slow_topics(broker: Broker, view: View, names: Iterable[str]) -> Container[str]:
    """Those of some topics whose ids cannot be read in time; clients ask again."""
    by_place: dict[str, list[str]] = {}
    for each in names:
        if place := view.place_of(each, next(iter(view.topics.get(each, ())), -1)):
            by_place.setdefault(place, []).append(each)
    found = set[str]()

    async def read(place: str, topics: list[str]) -> None:
        try:
            reading = broker.look_up(view.read_ids, topics, place=place)
            await asyncio.wait_for(reading, _MOST_ID_SECONDS)
        except TimeoutError:
            found.update(topics)

    await asyncio.gather(*(read(*each) for each in by_place.items()))
    return found


def _topic(broker: Broker, view: View, topic: str, slow: Container[str]) -> dict[str, Any]:
    """A topic; partitions that are not here have no leader, as those of a dead broker."""
    if topic in slow:
        return {"error_code": _NO_LEADER, "name": topic}
    here, node = view.topics[topic], [broker.node_id]
    partitions = [
        {"partition_index": each, "leader_id": node[0], "replica_nodes": node, "isr_nodes": node}
        if each in here
        else {"partition_index": each, "leader_id": -1, "error_code": _NO_LEADER}
        for each in range(view.n_partitions(topic))
    ]
    return {
        "name": topic,
        "topic_id": uuid_of(view.topic_id(topic)),
        "partitions": partitions,
        "is_internal": topic in INTERNAL_TOPICS,
        "topic_authorized_operations": _OPERATIONS,
    }


def _asked(view: View, asked: Iterable[Any]) -> Iterable[dict[str, Any] | str]:
    """Names of topics that are asked for, or the error in place of one."""
    for each in once(asked, lambda each: (each.name, getattr(each, "topic_id", None))):
        name, topic_id = each.name, getattr(each, "topic_id", None)
        if name is None:
            name = view.ids.get(topic_id)
            if name is None:
                yield {"error_code": _UNKNOWN_ID, "topic_id": topic_id, "name": None}
                continue
        if name not in view.topics:
            yield {"error_code": _UNKNOWN_TOPIC, "name": name}
            continue
        yield name


async def metadata(broker: Broker, body: Body, version: int) -> Mapping[str, Any]:
    """Topics, their partitions, and this server as their only broker."""
    view = broker.view
    names_all = body.topics is None or (version == 0 and not body.topics)
    asked = None if names_all else body.topics
    names = view.topics if asked is None else (each.name for each in asked)
    slow = await _slow_topics(broker, view, names)
    return await broker.look_up(_metadata, broker, view, body, asked, slow)


def _metadata(
    broker: Broker, view: View, body: Body, asked: Body, slow: Container[str]
) -> Mapping[str, Any]:
    found = sorted(view.topics) if asked is None else _asked(view, asked)
    topics = [
        _topic(broker, view, each, slow) if isinstance(each, str) else each for each in found
    ]
    if not getattr(body, "include_topic_authorized_operations", False):
        for each in topics:
            each.pop("topic_authorized_operations", None)
    return {
        "brokers": [_node(broker)],
        "cluster_id": view.cluster_id,
        "controller_id": broker.node_id,
        "topics": topics,
    }


async def describe_cluster(broker: Broker, body: Body, _: int) -> Mapping[str, Any]:
    """The server as a cluster of one broker."""
    found = {
        "brokers": [_node(broker)],
        "cluster_id": broker.view.cluster_id or "",
        "controller_id": broker.node_id,
        "endpoint_type": getattr(body, "endpoint_type", 1),
    }
    if body.include_cluster_authorized_operations:
        found["cluster_authorized_operations"] = _OPERATIONS
    return found


async def describe_topic_partitions(broker: Broker, body: Body, _: int) -> Mapping[str, Any]:
    """Topics in pages of partitions, as the newest tools ask for them."""
    view = broker.view
    names = sorted({each.name for each in body.topics} or view.topics)
    slow = await _slow_topics(broker, view, names)
    return await broker.look_up(_topic_partitions, broker, view, body, names, slow)


def _topic_partitions(
    broker: Broker, view: View, body: Body, names: Sequence[str], slow: Container[str]
) -> Mapping[str, Any]:
    left = max(1, min(body.response_partition_limit, _PAGE))
    first = 0
    if body.cursor is not None:
        names = [each for each in names if each >= body.cursor.topic_name]
        if names and names[0] == body.cursor.topic_name:
            first = max(body.cursor.partition_index, 0)
    topics, cursor = [], None
    for name in names:
        if not left:
            cursor = {"topic_name": name, "partition_index": 0}
            break
        if name not in view.topics:
            topics.append({"error_code": _UNKNOWN_TOPIC, "name": name})
            continue
        found = _topic(broker, view, name, slow)
        page = found.get("partitions", ())[first : first + left]
        if first + len(page) < len(found.get("partitions", ())):
            cursor = {"topic_name": name, "partition_index": first + len(page)}
        # Kafka's tools fail at a null list.
        page = [{**each, "eligible_leader_replicas": [], "last_known_elr": []} for each in page]
        topics.append({**found, "partitions": page})
        left, first = left - len(page), 0
        if cursor:
            break
    return {"topics": topics, "next_cursor": cursor}


def _of_partition(view: View, topic: str, partition: int, answer: _Answer) -> dict[str, Any]:
    """What `answer` says of a partition, or its error, which is logged.

    A broker that cuts or replaces files meanwhile is no damage: clients ask again.
    """
    log = None
    try:
        log = view.log(topic, partition)
        return answer(log)
    except UnknownTopicOrPartitionError:
        return {"error_code": _UNKNOWN_TOPIC}
    except CorruptLogError as error:
        logger.warning("%s-%d: %s", topic, partition, error)
        is_damage = log is None or not log.has_changed()
        return {"error_code": kafka_error(error) if is_damage else _STORAGE_ERROR}
    except (SegmentLogError, OSError) as error:
        logger.warning("%s-%d: %s", topic, partition, error)
        return {"error_code": kafka_error(error)}


async def _by_partition(
    broker: Broker, body: Body, topic_field: str, partition_field: str, answer: Callable[..., Any]
) -> Mapping[str, Any]:
    """What `answer` says of each partition that a request names, in fields of these names."""
    view = broker.view
    topics: list[dict[str, Any]] = []
    by_place: dict[str, list[tuple[str, Any, dict[str, Any]]]] = {}
    for topic in body.topics:
        name = getattr(topic, topic_field)
        topics.append({topic_field: name, "partitions": []})
        for each in topic.partitions:
            found = {partition_field: (n := getattr(each, partition_field))}
            topics[-1]["partitions"].append(found)
            by_place.setdefault(view.place_of(name, n), []).append((name, each, found))

    def say(asked: Iterable[tuple[str, Any, dict[str, Any]]]) -> None:
        for name, each, found in asked:
            n = found[partition_field]
            found.update(_of_partition(view, name, n, partial(answer, asked=each)))

    for place, rows in by_place.items():
        await broker.look_up(say, rows, place=place)
    return {"topics": topics}


async def list_offsets(broker: Broker, body: Body, version: int) -> Mapping[str, Any]:
    """Offsets by time, or by the words for the ends of a log."""
    level = getattr(body, "isolation_level", 0)

    def offset(log: ServedLog, asked: Any) -> dict[str, Any]:  # noqa: ANN401 - of kio's classes
        timestamp = asked.timestamp
        found: tuple[int, int] | None = None
        if timestamp == _LATEST:
            found = -1, log.end_offset(level)
        elif timestamp == _EARLIEST:
            found = -1, log.start_offset
        elif timestamp == _NEWEST:
            found = log.newest(level)
        elif timestamp == _EARLIEST_LOCAL:
            found = -1, log.local_start_offset
        elif timestamp == _LATEST_TIERED:
            found = -1, log.latest_tiered_offset
        elif timestamp >= 0:
            found = log.offset_for_time(timestamp, level)
        if found is None:
            return {"timestamp": -1, "offset": -1}
        is_record = timestamp >= 0 or timestamp == _NEWEST
        epoch = (log.batch_epoch_at if is_record else log.leader_epoch_at)(found[1])
        return {"timestamp": found[0], "offset": found[1], "leader_epoch": epoch}

    return await _by_partition(broker, body, "name", "partition_index", offset)


async def offset_for_leader_epoch(broker: Broker, body: Body, _: int) -> Mapping[str, Any]:
    """The end of an epoch (``LeaderEpochFileCache.endOffsetFor``)."""

    def end(log: ServedLog, asked: Any) -> dict[str, Any]:  # noqa: ANN401 - of kio's classes
        epoch = asked.leader_epoch
        known = log.leader_epochs
        later = [start for each, start in known if each > epoch]
        if not known or (not later and epoch != known[-1][0]):
            return {"leader_epoch": -1, "end_offset": -1}
        of = max((each for each, _ in known if each <= epoch), default=epoch)
        return {"leader_epoch": of, "end_offset": later[0] if later else log.high_watermark}

    return await _by_partition(broker, body, "topic", "partition", end)


async def fetch(broker: Broker, body: Body, _: int) -> Mapping[str, Any]:
    """Batches as they are stored; waits for `min_bytes` of them as a broker does."""
    if getattr(body, "session_id", 0):
        return {"error_code": _NO_SESSION}
    wait = min(max(body.max_wait.total_seconds(), 0.0), _MOST_WAIT_SECONDS)
    deadline = time.monotonic() + wait
    is_near = sum(len(topic.partitions) for topic in body.topics) <= _MOST_NEAR
    while True:
        view = broker.view
        if body.topics and not hasattr(body.topics[0], "topic") and not view.knows_ids:
            await broker.look_up(getattr, view, "ids", place="ids of all topics")
        fetched = _Fetched(view, body)
        if not is_near or not fetched.add_from_memory():
            for place, asked in itertools.groupby(fetched.asked, fetched.place_of):
                await broker.look_up(fetched.add, [*asked], place=place)
        left = deadline - time.monotonic()
        if fetched.n_bytes >= body.min_bytes or fetched.must_be_told or left <= 0:
            if fetched.n_bytes and is_near:
                broker.soon(fetched.look_ahead)
            return {"responses": fetched.responses()}
        await broker.wait_for_change(view, left)
        if broker.view is view:  # nothing came: the same answer, at the end of the time
            deadline = 0.0


class _FarError(Exception):
    """Bytes that are asked for may have to be read from a disk."""


class _Fetched:
    """What a fetch has found so far, and what is left of its bytes."""

    def __init__(self, view: View, body: Body) -> None:
        self._view, self._is_committed = view, bool(body.isolation_level)
        self._most = min(max(body.max_bytes, 0), _MOST_BYTES)
        self.n_bytes = 0  # that were found
        self._found: list[tuple[Any, dict[str, Any]]] = []
        #: Topics and partitions that are asked for, each once.
        self.asked = once(
            ((topic, each) for topic in body.topics for each in topic.partitions),
            lambda both: (_named(both[0]), both[1].partition),
        )

    def place_of(self, asked: tuple[Any, Any]) -> str:
        """The directory that may hang, if a partition is in one."""
        topic, each = asked
        name = _name_of(self._view, topic)
        return self._view.place_of(name, each.partition) if name else ""

    def add(self, asked: Iterable[tuple[Any, Any]], *, from_memory: bool = False) -> None:
        """Look for the batches of some partitions; raises `_FarError` if they may be on a disk."""
        read = _batches_in_memory if from_memory else _batches
        for topic, each in asked:
            name = _name_of(self._view, topic)
            if from_memory:
                log = self._view.opened(name, each.partition) if name else None
                if log is None or log.place:
                    raise _FarError
            wanted = Asked(
                each.fetch_offset,
                min(max(each.partition_max_bytes, 0), self._most - self.n_bytes),
                not self.n_bytes,
                self._is_committed,
            )
            said = (
                _of_partition(self._view, name, each.partition, partial(read, asked=wanted))
                if name
                else {"error_code": _UNKNOWN_ID}
            )
            answer = {
                "partition_index": each.partition,
                "high_watermark": -1,
                "error_code": _OK,
                "aborted_transactions": None,
                "records": Records(),
                **said,
            }
            self.n_bytes += len(answer["records"])
            self._found.append((topic, answer))

    def add_from_memory(self) -> bool:
        """Whether all is found without a disk, in less time than it takes to wake a thread."""
        try:
            self.add(self.asked, from_memory=True)
        except _FarError:
            self.n_bytes, self._found = 0, []
            return False
        return True

    @property
    def must_be_told(self) -> bool:
        """Whether it is answered at once, also without bytes."""
        return not self._found or any(each["error_code"] for _, each in self._found)

    def responses(self) -> Sequence[dict[str, Any]]:
        """The answer; some clients name a topic again for each of its partitions."""
        return [
            {
                "topic": _name_of(self._view, topic),
                "topic_id": getattr(topic, "topic_id", None),
                "partitions": [each for _, each in found],
            }
            for topic, found in itertools.groupby(self._found, lambda both: both[0])
        ]

    def look_ahead(self) -> None:
        """Look for what a consumer will ask for next, while it handles the answer."""
        for (topic, each), (_, answer) in zip(self.asked, self._found, strict=True):
            name = _name_of(self._view, topic) if answer["records"] else None
            log = self._view.opened(name, each.partition) if name else None
            if log is None or log.place or not log.held.acquire(blocking=False):
                continue
            try:
                next_offset, most = answer["next_offset"], each.partition_max_bytes
                wanted = Asked(next_offset, most, False, self._is_committed)
                log.batches.make_ready(wanted, log.end_offset(int(self._is_committed)))
            except (SegmentLogError, OSError):
                pass  # the fetch itself meets it
            finally:
                log.held.release()


def _named(topic: Any) -> Any:  # noqa: ANN401 - of kio's classes
    """How a fetch names a topic: by its id from version 13 on."""
    return topic.topic if hasattr(topic, "topic") else topic.topic_id


def _name_of(view: View, topic: Any) -> str | None:  # noqa: ANN401 - of kio's classes
    """The name of a topic of a fetch; None if no topic has its id."""
    name: str | None = getattr(topic, "topic", None)
    return view.ids.get(topic.topic_id) if name is None else name


def _batches(log: ServedLog, asked: Asked) -> dict[str, Any]:
    with log.held:
        return _answered(log, asked, log.batches.fetch)


def _batches_in_memory(log: ServedLog, asked: Asked) -> dict[str, Any]:
    """The same from memory alone; raises `_FarError` if something may have to wait."""

    def going_on(asked: Asked, end_offset: int) -> FoundBatches:
        found = log.batches.going_on(asked, end_offset)
        if found is None:
            raise _FarError
        return found

    if not log.held.acquire(blocking=False):
        raise _FarError
    try:
        return _answered(log, asked, going_on)
    finally:
        log.held.release()


def _answered(log: ServedLog, asked: Asked, find: Callable[..., FoundBatches]) -> dict[str, Any]:
    offset = asked.offset
    start, high_watermark = log.start_offset, log.high_watermark
    found: dict[str, Any] = {"high_watermark": high_watermark, "log_start_offset": start}
    if not start <= offset <= max(high_watermark, log.log.log_end_offset):
        return {**found, "error_code": _OFFSET_OUT_OF_RANGE}
    end = high_watermark
    if asked.is_committed:
        found["last_stable_offset"] = end = log.last_stable_offset()
    if offset >= end or not (asked.max_bytes or asked.takes_first):
        return found
    batches = find(asked, end)
    if not batches.records and high_watermark > log.log.log_end_offset <= offset:
        raise log.missing(offset)
    log.check_topic(offset, batches.next_offset)
    found |= {"records": batches.records, "next_offset": batches.next_offset}
    found["aborted_transactions"] = [
        {"producer_id": producer_id, "first_offset": first}
        for producer_id, first in batches.aborted
    ]
    return found
