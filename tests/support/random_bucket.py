"""Random operations on a log in an object store, whose server loses, delays and refuses requests.

`World` plays operations one after the other, with other clients in between, and knows the states
that may hold: an operation that is done has taken place, one that is refused has not, and of one
that is in doubt, or whose process was killed, nobody knows.  A reader must see one of them.
"""

import itertools
import random
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import pyarrow as pa
from proxies import FAULTS, Fault, FaultyServer, Sent
from spoiled_requests import hasty_clients, location_of, new_place, new_process

import segmentlog
from segmentlog.bucket import clients, objects
from segmentlog.bucket.sequence import sequence_at
from segmentlog.bucket.upkeep import sweep_objects
from segmentlog.errors import CommitInDoubtError, SegmentLogError, StorageError

_N_PARTITIONS = 2
_MOST_STATES = 24
_MOST_OPEN = 1

#: Seconds after which a client may give up without a fault: the machine itself stood still.
_PATIENCE = 4.0

#: Of the operations at a place, the other client's have another region in their signatures.
REGION, _OTHER_REGION = "us-east-1", "us-east-2"

#: Faults of single requests; no client of this model waits for an answer that never comes.
_FAULTS = {
    **{name: each for name, each in FAULTS.items() if each.status >= 0},
    "late": Fault(False, 0, when="late"),
    "stale list": Fault(True, 0, when="stale"),
}
_ON_LISTS = ("stale list",)
_ON_WRITES = (
    "late",
    "reset after",
    "500 after",
    "503 after",
    "409 after",
    "412 after",
    "403 after",
)

#: Log start and values of each partition, None for offsets without a record; and the last version
#: that a numbered write has.
_Values = tuple[str | None, ...]
_Logs = Mapping[tuple[str, int], tuple[int, _Values]]

#: Topics are compacted by key so far as there are two records of one.
_BY_KEY = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.0001"}


class Held(NamedTuple):
    """What a log holds."""

    logs: _Logs
    version: int = -1
    named: frozenset[int] = frozenset()  # open operations of earlier steps that have taken place

    def with_rows(self, topic: str, rows: Mapping[int, tuple[str, ...]]) -> "Held":
        """With further rows."""
        changed = {(topic, number): self.log(topic, number) for number in range(_N_PARTITIONS)}
        changed |= {
            (topic, number): (start, values + rows.get(number, ()))
            for (_, number), (start, values) in changed.items()
        }
        return self._replace(logs={**self.logs, **changed})

    def log(self, topic: str, partition: int) -> tuple[int, _Values]:
        """One partition."""
        return self.logs.get((topic, partition), (0, ()))

    def starting_at(self, topic: str, partition: int, offset: int) -> "Held | None":
        """Without records below an offset; None if the log does not reach it."""
        if (topic, partition) not in self.logs:
            return None
        start, values = self.logs[topic, partition]
        if offset > start + len(values):
            return None
        changed = (max(offset, start), values[max(offset - start, 0) :])
        return self._replace(logs={**self.logs, (topic, partition): changed})

    def kept(self, topic: str, keeps: Callable[[_Values], _Values], *parts: int) -> "Held | None":
        """With what is kept of the values of some partitions, or all; None if there is none."""
        found = {
            (topic, number): (start, keeps(values))
            for (name, number), (start, values) in self.logs.items()
            if name == topic and (not parts or number in parts)
        }
        return self._replace(logs={**self.logs, **found}) if found else None

    def without(self, topic: str) -> "Held | None":
        """Without a topic; None if there is none."""
        left = {key: log for key, log in self.logs.items() if key[0] != topic}
        return self._replace(logs=left) if len(left) < len(self.logs) else None


Effect = Callable[[Held], Held | None]


class Operation(NamedTuple):
    """What is done at a place, and what it makes of a state; None if the state refuses it."""

    name: str
    act: Callable[[str], object]
    effect: Effect
    is_read: bool = False  # what it has seen has to be a state from its begin to its end
    #: parts of it that take place or not, whatever it says in the end
    parts: tuple[Effect, ...] = ()


def key_of(value: str) -> str:
    """The key of a record."""
    return f"k{value.rpartition('-')[2]}"


def _newest(values: _Values) -> _Values:
    """The last value of each key."""
    last = {key_of(each): i for i, each in enumerate(values) if each is not None}
    return tuple(
        each if each is not None and last[key_of(each)] == i else None
        for i, each in enumerate(values)
    )


def _erased(key: str, values: _Values) -> _Values:
    return tuple(None if each is None or key_of(each) == key else each for each in values)


def seen(url: str) -> _Logs:
    """What a reader sees; raises `AssertionError` if offsets are missing or repeated."""
    if not sequence_at(location_of(url)).is_made():
        return {}
    log_dir, found = segmentlog.open_log_dir(url), {}
    for topic, partition in log_dir.topic_partitions():
        found[topic, partition] = _values_of(log_dir.log(topic, partition))
    return found


def _seen_in_time(url: str) -> _Logs:
    began = time.monotonic()
    try:
        return seen(url)
    except StorageError:
        if time.monotonic() - began < _PATIENCE:
            raise
        return seen(url)


def _values_of(log: segmentlog.Log) -> tuple[int, _Values]:
    rows = log.scan(columns=["offset", "key", "value"]).read_all().to_pylist()
    offsets = [each["offset"] for each in rows]
    assert offsets == sorted({*offsets}), offsets
    held = {each["offset"]: each["value"].decode() for each in rows}
    assert [each["key"].decode() for each in rows] == [key_of(each) for each in held.values()]
    start, end = log.log_start_offset, log.log_end_offset
    assert not offsets or start <= offsets[0] <= offsets[-1] < end, offsets
    return start, tuple(held.get(offset) for offset in range(start, end))


class World:
    """One place, its clients, and the states that it may have."""

    def __init__(self, rng: random.Random, server: FaultyServer, url: str) -> None:
        self._rng, self._server = rng, server
        self.url = new_place(url, server)
        self._others_url = self.url.replace(REGION, _OTHER_REGION)
        # Else both would wait for each other: one of them acts while the other holds its turn.
        assert self._others_url != self.url
        self._source = tempfile.mkdtemp()
        self._names = itertools.count()
        self._version = 0
        self._is_proposed = False  # whether a write of which nobody knows may still be named
        self._open: list[Operation] = []  # such operations, each of which takes place once at most
        self.states = [Held({})]
        self.counts, self.told = Counter[str](), list[str]()

    def close(self) -> None:
        """Remove what is beside the place."""
        shutil.rmtree(self._source)

    # Operations.

    def _rows(self) -> dict[int, tuple[str, ...]]:
        name = next(self._names)
        parts = range(self._rng.randint(1, _N_PARTITIONS))
        return {
            each: tuple(f"{name}-{i}" for i in range(self._rng.randint(1, 5))) for each in parts
        }

    def _draw(self, *, is_other: bool = False) -> Operation:
        rng, rows = self._rng, self._rows()
        names = [
            "write",
            "write",
            "write",
            "overwrite",
            "delete records",
            "delete a topic",
            "sweep",
            "join",
            "compact",
            "erase",
        ]
        name = rng.choice(names if is_other else [*names, "numbered", "numbered", *_ALONE])
        topic = rng.choice(["orders", "clicks"])
        match name:
            case "write":
                proposes = rng.random() < 0.5
                return Operation(
                    name,
                    partial(_write, topic, rows, proposes=proposes),
                    lambda held: held.with_rows(topic, rows),
                )
            case "overwrite":

                def replaced(held: Held) -> Held:
                    for number in range(_N_PARTITIONS):
                        start, values = held.log(topic, number)
                        moved = held.with_rows(topic, {}).starting_at(
                            topic, number, start + len(values)
                        )
                        assert moved is not None
                        held = moved
                    return held.with_rows(topic, rows)

                return Operation(name, partial(_write, topic, rows, overwrite=True), replaced)
            case "numbered":
                version = self._version

                def once(held: Held) -> Held:
                    if held.version >= version:
                        return held
                    return held.with_rows("numbers", rows)._replace(version=version)

                given: dict[str, Any] = {"txn_app_id": "app", "txn_version": version}
                given["proposes"] = rng.random() < 0.5
                return Operation(name, partial(_write, "numbers", rows, **given), once)
            case "delete records":
                partition = rng.randrange(_N_PARTITIONS)
                start, values = rng.choice(self.states).log(topic, partition)
                offset = rng.randint(start, start + len(values))
                return Operation(
                    name,
                    lambda url: segmentlog.delete_records(url, topic, partition, offset=offset),
                    lambda held: held.starting_at(topic, partition, offset),
                )
            case "delete a topic":
                return Operation(
                    name,
                    lambda url: segmentlog.delete_topic(url, topic),
                    lambda held: held.without(topic),
                )
            case "join":
                return Operation(name, _join, _same)
            case "compact":
                return Operation(
                    name,
                    lambda url: segmentlog.compact(url, topic, settings=_BY_KEY),
                    lambda held: held.kept(topic, _same_values),
                    parts=tuple(partial(_compacted, topic, each) for each in range(_N_PARTITIONS)),
                )
            case "erase":
                key = key_of(f"-{rng.randrange(5)}")
                return Operation(
                    name,
                    lambda url: segmentlog.erase(url, key, topic),
                    lambda held: held.kept(topic, partial(_erased, key)),
                )
            case "mirror up":
                _write("mirrored", rows, self._source, overwrite=rng.random() < 0.3)
                copied = _local(self._source)
                return Operation(
                    name,
                    lambda url: segmentlog.mirror(self._source, to=url),
                    lambda held: held._replace(logs={**held.logs, **copied}),
                )
            case "mirror down":
                return Operation(
                    name, _mirror_down, lambda held: held if held.logs else None, is_read=True
                )
            case "read":
                return Operation(name, seen, _same, is_read=True)
            case _:
                return Operation(name, _sweep, _same)

    # Faults.

    def play(self, n_operations: int) -> None:
        """Play operations, and look at the log after each of them and at the end."""
        for _ in range(n_operations):
            operation = self._draw()
            ending = self._step(operation)
            if operation.name == "numbered":
                while ending != "done":  # by new processes, as jobs are repeated
                    new_process()
                    ending = self._step(operation)
                self._version += 1
            self._look()
        while self._server.late:
            self._server.late.pop(0)()
        self._look()
        new_process()
        if any(each.logs for each in self.states):
            assert [
                each for each in segmentlog.verify(self.url) if each.kind != "offset-gap"
            ] == []
        location = location_of(self.url)
        if sequence_at(location).is_made():
            sweep_objects(location, -1, -1, dry_run=False)
            held = {each.key for each in clients.objects_at(location).list("data/")}
            assert held == sequence_at(location).refresh().objects()
        self._look()

    def _step(self, operation: Operation) -> str:
        """One operation with faults, and others in between; how it has ended."""
        rng, server = self._rng, self._server
        if rng.random() < 0.4:
            new_process()
        share = rng.choice([0.0, 0.02, 0.05, 0.15])
        killed_at = rng.randrange(25) if rng.random() < 0.15 else None
        others = rng.choice([0, 0, 0, 1, 2]) if operation.name not in _ALONE[:1] else 0
        n_sent = itertools.count()
        lasting, lasts = dict[tuple[str, str], Fault](), rng.random() < 0.3
        played = [(operation, "")]
        turn, has_fault, is_killed = threading.Lock(), False, False
        begun, had_late = [*self.states], bool(server.late)
        # A proposal that an earlier operation left may have been named, or be named by this one.
        refuses = any if self._is_proposed else all

        def before(_sent: Sent) -> None:
            nonlocal others
            if not turn.acquire(blocking=False):  # within another client's operation
                return
            try:
                if server.late and rng.random() < 0.1:
                    server.late.pop(rng.randrange(len(server.late)))()
                if others and rng.random() < 0.15:
                    others -= 1
                    other = self._draw(is_other=True)
                    played.append((other, self._ended(other, self._others_url)[0]))
            finally:
                turn.release()

        def choose(_number: int, sent: Sent) -> Fault | None:
            nonlocal has_fault, is_killed
            if f"/{_OTHER_REGION}/" not in sent.headers.get("authorization", ""):
                if is_killed:
                    return FAULTS["refused"]
                if next(n_sent) == killed_at:
                    is_killed = has_fault = True
                    return FAULTS[rng.choice(["refused", "reset after"])]
            key = sent.method, sent.target.partition("?")[0]
            if key in lasting:  # and its repetitions
                return lasting[key]
            if rng.random() >= share * (4 if sent.method == "PUT" or sent.is_listing else 1):
                return None
            has_fault = True
            names = _ON_LISTS if sent.is_listing else _ON_WRITES if sent.method == "PUT" else ()
            name = rng.choice(names if names and rng.random() < 0.5 else [*FAULTS])
            if name not in _FAULTS or (name == "stale list" and not sent.is_listing):
                return None
            if name == "late" and "uploadId" in sent.target:  # moto fails at a part of no upload
                return None
            self.counts[f"fault: {name}"] += 1
            if lasts and name != "stale list":
                lasting[key] = _FAULTS[name]
            return _FAULTS[name]

        server.before, server.choose = before, choose
        began = time.monotonic()
        ending, found = self._ended(operation, self.url)
        has_fault |= time.monotonic() - began > _PATIENCE
        with turn:  # another client may still be at work beside one of several requests
            others = 0
        server.reset()
        if is_killed:
            ending = "killed"
            new_process()
        n_others = len(played) - 1
        played[0] = (operation, ending)
        named = [*played]
        for each, _ in named:
            played += [(Operation(each.name, seen, part), "perhaps") for part in each.parts]
        self.told.append("; during it ".join(f"{each.name}: {how}" for each, how in named))
        self.counts.update(f"{each.name}: {how}" for each, how in named)
        earlier = [*self._open]
        for i, (each, how) in enumerate(named):
            if how in {"in doubt", "killed"}:
                self._is_proposed = True
                if not (each.is_read or each.effect is _same):
                    once = partial(_once, next(self._names), each.effect)
                    played[i] = each._replace(effect=once), how
                    self._open.append(played[i][0])
        during, after = _outcomes(begun, [*played, *((each, "perhaps") for each in earlier)])
        if ending.startswith("refused") and not has_fault and not n_others and not had_late:
            assert refuses(operation.effect(each) is None for each in begun), self.said()
        assert after, f"no state allows that: {self.said()}"
        if operation.is_read and ending == "done":
            assert any(_equal(found, each) for each in during), f"{self.said()}\n{found}\n{during}"
        self.states = after
        return ending

    def _ended(self, operation: Operation, url: str) -> tuple[str, Any]:
        try:
            return "done", operation.act(url)
        except CommitInDoubtError:
            return "in doubt", None
        except SegmentLogError as error:
            return f"refused ({type(error).__name__})", None

    def _look(self) -> None:
        """Compare what a new process sees, and forget the states that are not there."""
        self._server.reset()
        new_process()
        is_much = len(self.states) > _MOST_STATES or len(self._open) > _MOST_OPEN
        if self._is_proposed and (self._rng.random() < 0.3 or is_much):
            _sweep(self.url)  # which ends the jobs of such writes
            self._is_proposed = bool(self._server.late)
        found = _seen_in_time(self.url)
        fitting = [each for each in self.states if _equal(found, each)]
        assert fitting, f"{self.said()}\n{found}\nis none of {self.states}"
        if len(self.states) > _MOST_STATES:
            while self._server.late:
                self._server.late.pop(0)()
            found = _seen_in_time(self.url)
            fitting = [each for each in self.states if _equal(found, each)]
            assert fitting, f"{self.said()}\n{found}\nis none of {self.states}"
        if not self._server.late and not self._is_proposed:
            self._open.clear()
            self.states = _distinct(each._replace(named=frozenset()) for each in fitting)

    def said(self) -> str:
        """What was played."""
        return "\n".join(self.told)


_ANY = ("write", "write", "write", "overwrite", "delete records", "delete a topic", "sweep")

#: Operations that no other client makes; beside the first, no other client works.
_ALONE = ("mirror up", "mirror down", "read")


def _same(held: Held) -> Held:
    return held


def _once(number: int, effect: Effect, held: Held) -> Held | None:
    if number in held.named:
        return None
    changed = effect(held)
    return changed and changed._replace(named=held.named | {number})


def _same_values(values: _Values) -> _Values:
    return values


def _compacted(topic: str, partition: int, held: Held) -> Held:
    return held.kept(topic, _newest, partition) or held


def _join(url: str) -> None:
    if sequence_at(location_of(url)).is_made():
        segmentlog.compact(url)


def _equal(found: _Logs, held: Held) -> bool:
    return {key: log for key, log in found.items() if log != (0, ())} == {
        key: log for key, log in held.logs.items() if log != (0, ())
    }


def _outcomes(
    states: list[Held], played: list[tuple[Operation, str]]
) -> tuple[list[Held], list[Held]]:
    """The states during some operations and after them, in any order of theirs."""
    during, after = [*states], list[Held]()
    may = [each for each in played if not each[1].startswith("refused")]
    for n in range(len(may) + 1):
        for some in itertools.permutations(may, n):
            is_all = {*some} >= {each for each in may if each[1] == "done"}
            for state in states:
                held: Held | None = state
                for operation, _ in some:
                    held = held and operation.effect(held)
                if held is not None:
                    during.append(held)
                    if is_all:
                        after.append(held)
    return _distinct(during), _distinct(after)


def _distinct(states: Iterable[Held]) -> list[Held]:
    known = {(tuple(sorted(each.logs.items())), each.version, each.named): each for each in states}
    return [*known.values()]


def _local(directory: str) -> _Logs:
    log_dir, found = segmentlog.open_log_dir(directory), {}
    for topic, partition in log_dir.topic_partitions():
        found[topic, partition] = _values_of(log_dir.log(topic, partition))
    return found


def _mirror_down(url: str) -> _Logs:
    with tempfile.TemporaryDirectory() as made:
        segmentlog.mirror(url, to=made)
        return _local(made)


def _write(
    topic: str,
    rows: Mapping[int, tuple[str, ...]],
    url: str,
    *,
    proposes: bool = False,
    **how: Any,
) -> None:
    if proposes:  # as a writer does that has lost a number
        sequence_at(location_of(url))._writes.heat()
    with segmentlog.open_writer(url, topic, num_partitions=_N_PARTITIONS, **how) as writer:
        for partition, values in rows.items():
            partitions = pa.array([partition] * len(values), pa.int32())
            keys = [key_of(each) for each in values]
            writer.append(pa.table({"partition": partitions, "key": keys, "value": values}))


def _sweep(url: str) -> None:
    location = location_of(url)
    if sequence_at(location).is_made():
        sweep_objects(location, -1, -1, dry_run=False)


@contextmanager
def patient_clients(part_bytes: int = 0) -> Iterator[None]:
    """Clients that wait for an answer while others work.

    `part_bytes`: of uploads, if the server takes no small parts.
    """
    with hasty_clients(), mock.patch.object(clients, "_TIMEOUT", "60s"):
        if part_bytes:
            objects.PART_BYTES = part_bytes  # until those are gone
        yield
