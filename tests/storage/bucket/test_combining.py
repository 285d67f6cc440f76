"""Writes of many writers in one commit, in a time that only passes while all of them wait."""

import itertools
import json
import os
import random
import statistics
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from faulty_store import FaultyClient, Killed, MemoryStore, client_at
from virtual_time import LatentClient, VirtualTime

from segmentlog.bucket import combining, commits, sequence
from segmentlog.bucket.commits import Commit
from segmentlog.bucket.data_objects import RELATIVE, StagedExtent, StagedObjects
from segmentlog.bucket.proposals import HOT, INBOX, Proposal, parsed_key
from segmentlog.bucket.sequence import commit_key, number_of, sequence_at
from segmentlog.bucket.upkeep import remove_topic, sweep_objects
from segmentlog.errors import (
    CommitInDoubtError,
    CorruptCheckpointError,
    LogDirectoryError,
    StorageError,
)
from segmentlog.model import TopicPartition
from segmentlog.txn.state import NumberedWrite, StreamBatch
from segmentlog.writes.bucket_job import BucketJob
from segmentlog.writes.config import WriteRequest

_R = 0.0275  # seconds of a request, on average
_SECONDS = (0.015, 0.040)
_ORDERS = TopicPartition("orders", 0)
#: The first world of the slow test of kills.
_SEED = int(os.environ.get("BUCKET_SEED", "1000"))


class _Writer:
    """A process that writes; each write is one record, whose bytes are its name."""

    _numbers = itertools.count()

    def __init__(self, client: FaultyClient) -> None:
        self.client, self.location = client, client_at(client)

    def job(self, numbered: NumberedWrite | None = None) -> BucketJob:
        root = self.location.root
        request = WriteRequest(root, topic="orders", num_partitions=1, numbered=numbered)
        return BucketJob.begin_in_bucket(request)

    def stage(self, job: BucketJob, name: str, n_extents: int = 1) -> list[StagedObjects]:
        key = f"data/{job.token}/0-{next(self._numbers):08x}.batches"
        data = f"{name}\n".encode()
        extents = [
            StagedExtent("orders", 0, key, at * len(data), len(data), 1, RELATIVE, RELATIVE, 0)
            for at in range(n_extents)
        ]
        sequence_at(self.location).beside(lambda: self.client.put(key, [data * n_extents]))
        return [StagedObjects(tuple(extents))]

    def write(self, name: str, n_extents: int = 1) -> None:
        job = self.job()
        job.commit(self.stage(job, name, n_extents))


def _names(store: MemoryStore) -> list[str]:
    """What a new reader finds, in the order of the offsets."""
    state = sequence_at(client_at(FaultyClient(store))).refresh()
    log, found = state.logs[_ORDERS], []
    columns = log.extents.columns
    assert [*columns["base_offset"][: log.n_extents]] == [*range(log.end)]
    for key, start, size in zip(log.objects, columns["start"], columns["size"], strict=False):
        found.append(store.held[key][start : start + size].decode().strip())
    return found


def _bodies(store: MemoryStore) -> list[Commit]:
    numbered = ((number_of(key), data) for key, data in sorted(store.held.items()))
    return [Commit.decode(data, "") for number, data in numbered if number is not None]


class _Race:
    """Writers at once: how long each of their writes took, in `_R`, and how many requests."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, n_writers: int, n_writes: int) -> None:
        clock = VirtualTime(n_writers)
        clock.rule(monkeypatch)
        self.store, self.times = MemoryStore(), list[float]()
        writers = [_Writer(LatentClient(self.store, clock, _SECONDS)) for _ in range(n_writers)]

        def write(number: int, n: int, times: list[float]) -> None:
            for each in range(n):
                begun = clock.now
                writers[number].write(f"{number}-{each}-{times is self.times}")
                times.append((clock.now - begun) / _R)

        clock.run([lambda: writers[0].write("first")])  # makes the log
        clock.run([partial(write, each, 2, []) for each in range(n_writers)])
        self.store.requests.clear()
        begun = clock.now
        clock.run([partial(write, each, n_writes, self.times) for each in range(n_writers)])
        self.seconds, total = clock.now - begun, len(self.times)
        self.requests = len(self.store.requests) / total
        self.times.sort()
        self.p99 = self.times[int(0.99 * total)]
        expected = [f"{w}-{i}-True" for w in range(n_writers) for i in range(n_writes)]
        found = _names(self.store)
        assert len(found) == len({*found}) == total + 2 * n_writers + 1
        assert {*expected} <= {*found}


def test_many_writers_share_commits(monkeypatch) -> None:
    race = _Race(monkeypatch, 6, 2)
    assert race.p99 <= 12
    assert race.requests <= 7
    assert max(len(each.parts) for each in _bodies(race.store)) >= 3


def test_one_writer_asks_three_times(monkeypatch) -> None:
    race = _Race(monkeypatch, 1, 12)
    assert race.requests <= 3.1
    assert statistics.median(race.times) <= 2.3
    assert all(not each.parts for each in _bodies(race.store))
    assert not any(key.startswith(INBOX) or key == HOT for key in race.store.held)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_writers", "least_per_second", "most_requests", "most_median"),
    [(2, 13, 6, 5.2), (4, 20, 6.3, 7), (8, 40, 6.3, 7), (16, 60, 6, 7), (32, 60, 6.3, 8)],
)
def test_no_writer_starves(
    monkeypatch, n_writers, least_per_second, most_requests, most_median
) -> None:
    race = _Race(monkeypatch, n_writers, max(800 // n_writers, 60))
    print(
        f"{n_writers} writers: {len(race.times) / race.seconds:.1f} commits/s, median "
        f"{statistics.median(race.times):.1f} R, p99 {race.p99:.1f} R, "
        f"{race.requests:.2f} requests"
    )
    assert len(race.times) / race.seconds >= least_per_second
    assert statistics.median(race.times) <= most_median
    assert race.p99 <= 12
    assert race.requests <= most_requests


def test_a_rare_writer_gets_its_turn_beside_a_steady_one(monkeypatch) -> None:
    clock = VirtualTime(1)
    clock.rule(monkeypatch)
    store, times = MemoryStore(), list[float]()
    steady, rare = (_Writer(LatentClient(store, clock, _SECONDS)) for _ in range(2))
    clock.run([lambda: steady.write("first")])

    def often() -> None:
        for number in itertools.count():
            steady.write(f"steady {number}")
            if len(times) == 2:
                return

    def seldom() -> None:
        for number in range(2):
            clock.sleep(0.4)
            begun = clock.now
            rare.write(f"rare {number}")
            times.append((clock.now - begun) / _R)

    clock.run([often, seldom])
    assert max(times) <= 16  # the first one opens the log


# --- one step after the other


class _Held(FaultyClient):
    """A client that lets somebody act before it makes a commit."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.before: list[Callable[[], object]] = []

    def create(self, key: str, data: bytes) -> str | None:
        if number_of(key) is not None and self.before:
            self.before.pop()()
        return super().create(key, data)


@pytest.fixture
def store() -> MemoryStore:
    """A log with one record."""
    store = MemoryStore()
    _Writer(FaultyClient(store)).write("first")
    return store


@pytest.mark.parametrize("n_extents", [1, 300])
def test_who_commits_takes_proposals_along(store: MemoryStore, n_extents: int) -> None:
    """Small ones are in their keys, large ones in their objects."""
    left, combiner = _Writer(FaultyClient(store)), _Writer(FaultyClient(store))
    _propose(left, "left", n_extents)
    sequence_at(combiner.location)._writes.heat()
    combiner.write("own")
    assert _names(store) == ["first", "own", *["left"] * n_extents]
    combiner.write("next")
    assert [len(each.parts) for each in _bodies(store)] == [0, 1, 0]


def test_a_clone_of_a_topic_without_records_is_no_proposal(
    store: MemoryStore, monkeypatch
) -> None:
    """Others would place it after their own rows, and it has told where its records begin."""
    writer, asked = _Writer(FaultyClient(store)), list[int | None]()
    monkeypatch.setattr(sequence.Sequence, "append", lambda *given: asked.append(given[2]))
    for ends in ({}, {0: 1}, None):
        job = writer.job()
        job.commit(writer.stage(job, "clone"), ends=ends)
    assert asked == [None, None, job.begun_ms]


def _propose(writer: _Writer, name: str, n_extents: int = 1) -> Proposal:
    """Publish a write whose writer dies then."""
    job, found = writer.job(), sequence_at(writer.location)
    staged = writer.stage(job, name, n_extents)
    judged = list[Commit]()

    def append(make: Callable, begun_ms: int | None) -> None:
        assert begun_ms is not None
        judged.append(make(found.known))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sequence.Sequence, "append", lambda _, *given: append(*given))
        job.commit(staged)
    proposal = Proposal.of(judged[0], found.known, job.begun_ms)
    assert proposal is not None
    key, data = proposal.encode()
    assert bool(data) == (n_extents > 1)
    writer.client.put(key, [data])
    return proposal


def test_threads_of_a_process_commit_together(store: MemoryStore) -> None:
    writer = _Writer(_Held(store))
    n_threads, errors = 6, list[Exception]()
    jobs = [writer.job() for _ in range(n_threads)]
    staged = [writer.stage(job, f"thread {number}") for number, job in enumerate(jobs)]
    writes = sequence_at(writer.location)._writes

    def commit(number: int) -> None:
        try:
            jobs[number].commit(staged[number])
        except LogDirectoryError as error:
            errors.append(error)

    threads = [threading.Thread(target=commit, args=(each,)) for each in range(n_threads)]

    def others_come() -> None:
        writes_of_sweeps = client_at(FaultyClient(store))
        for thread in threads[1:]:
            thread.start()
        while len(writes._waiting) < n_threads - 1:
            threading.Event().wait(0.001)
        sequence_at(writes_of_sweeps).append(
            lambda state: Commit(state.number + 1, "sweep", "", 0, retired=[jobs[3].token])
        )

    writer.client.before.append(others_come)
    threads[0].start()
    for each in threads:
        each.join()
    # The first one loses its number to the sweep, which has ended one of the jobs.
    assert len(errors) == 1
    assert "a sweep has ended it" in str(errors[0])
    assert sorted(_names(store)) == ["first", *(f"thread {each}" for each in (0, 1, 2, 4, 5))]
    assert [len(each.parts) for each in _bodies(store)] == [0, 0, 0, n_threads - 3]


def test_who_has_not_the_right_version_refuses(store: MemoryStore, monkeypatch) -> None:
    left, combiner = _Writer(FaultyClient(store)), _Writer(FaultyClient(store))
    _propose(left, "left")
    sequence_at(combiner.location)._writes.heat()
    combiner.write("own")
    monkeypatch.setattr(commits, "KNOWN_FEATURES", frozenset())
    with pytest.raises(CorruptCheckpointError, match="does not know: parts"):
        sequence_at(client_at(FaultyClient(store))).refresh()


def test_a_write_is_given_up_only_once_nobody_can_name_it(store: MemoryStore) -> None:
    """Its topic goes after it was proposed: its writer ends its own job, and then says so."""
    writer = _Writer(_Held(store))
    writer.write("second")
    job = writer.job()
    staged = writer.stage(job, "third")
    topic_id = sequence_at(writer.location).known.topics["orders"].topic_id
    sequence_at(writer.location)._writes.heat()
    writer.client.before.append(
        lambda: remove_topic(client_at(FaultyClient(store)), "orders", topic_id)
    )
    with pytest.raises(LogDirectoryError, match="no longer has"):
        job.commit(staged)
    (key,) = [key for key in store.held if key.startswith(INBOX)]
    assert _bodies(store)[-1].retired == [job.token]
    other = _Writer(FaultyClient(store))
    other.write("again")
    sequence_at(other.location)._writes.heat()
    other.write("more")
    assert _names(store) == ["again", "more"]
    assert key in sweep_objects(other.location, 1e12, 1e12, dry_run=False).keys


def test_a_sweep_ends_proposals(store: MemoryStore) -> None:
    left, combiner = _Writer(FaultyClient(store)), _Writer(FaultyClient(store))
    _propose(left, "left")
    combiner.job()
    swept = sweep_objects(client_at(FaultyClient(store)), -1, -1, dry_run=False)
    assert len(swept.retired) == 1
    assert not any(key.startswith(INBOX) for key in store.held)
    for key in swept.keys:
        store.put(key, b"")  # requests of the dead writer that come late
    sequence_at(combiner.location)._writes.heat()
    combiner.write("own")
    assert _names(store) == ["first", "own"]


@pytest.mark.parametrize(
    "kind", ["another log", "too late", "of the future", "damaged", "no data"]
)
def test_what_cannot_follow_is_passed_over(store: MemoryStore, kind: str, monkeypatch) -> None:
    left, combiner = _Writer(FaultyClient(store)), _Writer(FaultyClient(store))
    combiner.job()
    proposal = _propose(left, "left")
    (key,) = [key for key in store.held if key.startswith(INBOX)]
    data = store.held.pop(key)
    if kind == "another log":
        key, data = proposal._replace(seen="of another backup").encode()
    elif kind == "of the future":
        key, data = proposal._replace(made_at=5).encode()
    elif kind == "damaged":
        key = f"{key[:-9]}{'A' if key[-9] != 'A' else 'B'}{key[-8:]}"
    elif kind == "no data":
        parsed = parsed_key(key)
        assert parsed is not None
        key = key.removesuffix(parsed.text)
    if kind == "too late":
        for number in range(17):
            combiner.write(f"own {number}")
    store.put(key, data)
    sequence_at(combiner.location)._writes.heat()
    combiner.write("own")
    assert "left" not in _names(store)
    assert all(not each.parts for each in _bodies(store))
    waits = list[float]()
    monkeypatch.setattr(combining.time, "sleep", waits.append)
    combiner.write("next")
    assert not waits  # nobody waits once more for a writer whose write no commit can have


def test_an_old_proposal_is_taken_along_within_four_commits(store: MemoryStore) -> None:
    """Most lists of proposals are short."""
    left, combiner = _Writer(FaultyClient(store)), _Writer(FaultyClient(store))
    _propose(left, "left")
    for number in range(8):
        combiner.write(f"own {number}")
    sequence_at(combiner.location)._writes.heat()
    for number in range(8, 12):
        combiner.write(f"own {number}")
    assert "left" in _names(store)


def test_a_proposal_that_spoils_a_commit_fails_nobody_else(store: MemoryStore) -> None:
    left, combiner = _Writer(FaultyClient(store)), _Writer(FaultyClient(store))
    proposal = _propose(left, "left")
    (extent,) = proposal.commit.extents
    token = "f" * 32
    spoiled = replace(proposal.commit, token=token, extents=[extent._replace(object="data/..")])
    for each in (spoiled, replace(proposal.commit, token="e" * 32, extents=[extent, extent])):
        key, data = proposal._replace(commit=each).encode()
        store.put(key, data)
    sequence_at(combiner.location)._writes.heat()
    combiner.write("own")
    assert "own" in _names(store)


def test_a_write_that_was_proposed_is_in_doubt_if_the_store_fails(store: MemoryStore) -> None:
    """Another writer may yet name it."""
    writer, combiner = _Writer(_Held(store)), _Writer(FaultyClient(store))
    writer.write("second")
    job = writer.job()
    staged = writer.stage(job, "third")

    def fail() -> None:
        raise StorageError(13, "not permitted", "commits")

    sequence_at(writer.location)._writes.heat()
    writer.client.before.append(fail)
    with pytest.raises(CommitInDoubtError, match="was proposed to others"):
        job.commit(staged)
    combiner.job()
    sequence_at(combiner.location)._writes.heat()
    combiner.write("fourth")
    assert _names(store) == ["first", "second", "fourth", "third"]


@pytest.mark.parametrize(
    "change",
    [
        {"features": []},
        {"parts": [{"token": "a"}]},
        {"parts": ["a"]},
        {"parts": {}},
        {"number of a part": 4},
        {"parts of a part": []},
        {"job": ""},
        {"job": "first"},
        {"objects": ["../../x"]},
    ],
    ids=str,
)
def test_a_damaged_commit_with_parts_is_refused(store: MemoryStore, change: dict) -> None:
    left, combiner = _Writer(FaultyClient(store)), _Writer(FaultyClient(store))
    _propose(left, "left")
    sequence_at(combiner.location)._writes.heat()
    combiner.write("own")
    body = json.loads(store.held[commit_key(2)])
    for name, found in change.items():
        if name in {"features", "parts"}:
            body[name] = found
        elif name == "job":
            body["parts"][0][name] = _bodies(store)[0].job if found else ""
        else:
            body["parts"][0][name.removesuffix(" of a part")] = found
    store.put(commit_key(2), json.dumps(body).encode())
    with pytest.raises(CorruptCheckpointError):
        sequence_at(client_at(FaultyClient(store))).refresh()


# --- faults and kills


class _World:
    """Writers that die, whose requests are lost, repeated or late, and sweeps that end their jobs.

    `certain`, `open` and `refused`: writes that are there, that may be, and that are not.
    """

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.random, self.clock = random.Random(seed), VirtualTime(seed)
        self.clock.rule(monkeypatch)
        self.store = MemoryStore()
        self.certain, self.open, self.refused = set[str](), set[str](), set[str]()
        self.n_kills, self._names = 0, itertools.count()
        self._is_over = False
        self.clock.run([lambda: _Writer(FaultyClient(self.store)).write("first")])
        self.certain.add("first")

    def _process(self) -> _Writer:
        client = LatentClient(self.store, self.clock, _SECONDS, self.random)
        client.share = self.random.choice([0.0, 0.02, 0.1, 0.2])
        client.deadly = self.random.choice([0.0, 0.05, 0.1, 0.2])
        return _Writer(client)

    def write_often(self, n: int) -> None:
        """One machine, whose processes follow each other."""
        process = self._process()
        for _ in range(n):
            kind = self.random.choice(["plain", "plain", "numbered", "stream"])
            name = f"{kind}-{next(self._names)}"
            numbered = NumberedWrite(name, 0) if kind == "numbered" else None
            batch = StreamBatch(name, 0, "run") if kind == "stream" else None
            while not self._write(process, name, numbered, batch):
                process = self._process()
                if kind == "plain":
                    break

    def _write(
        self,
        process: _Writer,
        name: str,
        numbered: NumberedWrite | None,
        batch: StreamBatch | None,
    ) -> bool:
        try:
            job = process.job(numbered)
            job.commit(process.stage(job, name), batch=batch)
        except CommitInDoubtError:
            self.open.add(name)
        except (StorageError, LogDirectoryError):  # the store has failed, or a sweep was early
            self.refused.add(name)
        except Killed:
            self.n_kills += 1
            self.open.add(name)
        else:
            self.certain.add(name)
            return True
        return False

    def sweep_often(self) -> None:
        """End jobs that still live, now and then."""
        while not self._is_over:
            self.clock.sleep(self.random.uniform(0.2, 2.0))
            try:
                sweep_objects(self._process().location, -1, -1, dry_run=False)
            except (LogDirectoryError, StorageError, CommitInDoubtError):
                pass
            except Killed:
                self.n_kills += 1

    def play(self, n_writers: int, n_writes: int) -> "_World":
        n_left = n_writers

        def write() -> None:
            nonlocal n_left
            try:
                self.write_often(n_writes)
            finally:
                n_left -= 1
                self._is_over = not n_left

        self.clock.run([*[write] * n_writers, self.sweep_often])
        while self.store.late:
            self.store.late.pop()()
        self.check()
        return self

    def check(self) -> None:
        """Compare what a new reader finds with what was promised."""
        found = Counter(_names(self.store))
        assert {*found.values()} == {1}
        assert self.certain <= found.keys() <= self.certain | self.open
        location = client_at(FaultyClient(self.store))
        sweep_objects(location, -1, -1, dry_run=False)
        assert Counter(_names(self.store)) == found
        state = sequence_at(location).refresh()
        assert state.objects() == {key for key in self.store.held if key.startswith("data/")}
        assert not any(key.startswith(INBOX) for key in self.store.held)


@pytest.mark.parametrize("seed", range(4))
def test_each_write_is_there_once_or_not_at_all(seed: int, monkeypatch) -> None:
    _World(seed, monkeypatch).play(3, 4)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_ten_thousand_kills_of_writers_that_combine(monkeypatch) -> None:
    n_kills = n_writes = n_parts = 0
    for seed in itertools.count(_SEED):
        with monkeypatch.context() as patched:
            world = _World(seed, patched).play(seed % 7 + 2, 30)
        n_kills += world.n_kills
        n_writes += len(world.certain)
        n_parts += sum(len(each.parts) for each in _bodies(world.store))
        if n_kills >= 10_000:
            break
    print(f"{n_kills} kills, {n_writes} writes acknowledged, {n_parts} by another writer's commit")
    assert n_parts > n_kills / 10
