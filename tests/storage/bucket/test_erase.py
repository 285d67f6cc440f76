"""Erasing keys from a log in an object store: no object has them in the end; all else stays."""

import errno
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from faulty_store import DyingClient, FaultyClient, Killed, MemoryStore, client_at

import segmentlog
from segmentlog.bucket import sequence
from segmentlog.bucket.commits import Commit
from segmentlog.bucket.log_state import LogState
from segmentlog.bucket.rewriting import Replacement
from segmentlog.bucket.sequence import sequence_at
from segmentlog.bucket.upkeep import sweep_objects
from segmentlog.errors import (
    CommitInDoubtError,
    LogDirectoryError,
    StorageError,
)
from segmentlog.store.paths import BucketLocation

_SECRET = b"forget-me"


def _process(store: MemoryStore) -> BucketLocation:
    return client_at(FaultyClient(store))


def _write(root: str, keys: list[str], topic: str = "orders") -> None:
    """A commit whose rows go to two partitions in turn."""
    with segmentlog.open_writer(root, topic, num_partitions=2) as writer:
        parts = pa.array([i % 2 for i in range(len(keys))], pa.int32())
        writer.append(pa.table({"key": keys, "value": keys, "partition": parts}))


def _rows(root: str, topic: str = "orders") -> list[tuple[int, int, bytes]]:
    return _in_order(segmentlog.read(root, topic))


def _in_order(found: pa.Table) -> list[tuple[int, int, bytes]]:
    return sorted((each["partition"], each["offset"], each["key"]) for each in found.to_pylist())


def _has_it(store: MemoryStore) -> list[str]:
    return [key for key, data in store.held.items() if _SECRET in data]


def _without(rows: list[tuple[int, int, bytes]]) -> list[tuple[int, int, bytes]]:
    return [each for each in rows if each[2] != _SECRET]


def _filled(store: MemoryStore) -> BucketLocation:
    location = _process(store)
    _write(location.root, ["a", "b", "c", "d"])
    _write(location.root, ["a", _SECRET.decode(), "c", _SECRET.decode()])
    _write(location.root, ["e", "f"])
    return location


def test_no_object_has_it_once_a_sweep_has_followed() -> None:
    store = MemoryStore()
    location, beside = _filled(store), _process(store)
    _write(location.root, [_SECRET.decode()], "other")
    rows = _rows(beside.root)
    planned = segmentlog.erase(location.root, _SECRET, "orders", dry_run=True)
    assert [(each.partition, each.records, each.segments) for each in planned] == [(1, 2, (2,))]
    assert _rows(beside.root) == rows
    left, done = segmentlog.erase(location.root, _SECRET, "orders")
    assert done._replace(bytes_after=-1) == planned[0]
    (copy,) = left.remaining
    assert (copy.kind, copy.records, "1 objects" in copy.reason) == ("objects", -1, True)
    assert _rows(beside.root) == _rows(_process(store).root) == _without(rows)
    assert {each.kind for each in segmentlog.verify(location.root)} <= {"offset-gap"}
    assert len(_has_it(store)) == 2  # the old object, and that of the other topic
    (left,) = segmentlog.erase(location.root, _SECRET, "orders")
    assert left.remaining == (copy,)
    sweep_objects(_process(store), -1, -1, dry_run=False)
    assert len(_has_it(store)) == 1
    assert segmentlog.erase(location.root, _SECRET, "orders") == []
    segmentlog.erase(location.root, _SECRET, purge=True)
    assert _has_it(store) == []
    assert _rows(beside.root) == _without(rows)
    _write(beside.root, ["g", "h"])
    assert _rows(location.root)[-1] == (1, 5, b"h")


def test_records_that_have_left_the_log_go_from_objects_that_stay() -> None:
    store = MemoryStore()
    location = _process(store)
    _write(location.root, [_SECRET.decode(), "b"])
    _write(location.root, ["c", "d"])
    segmentlog.delete_records(location.root, "orders", 0, offset=1)
    sweep_objects(location, -1, -1, dry_run=False)
    assert _has_it(store)  # partition 1 has a record in the object
    rows = _rows(location.root)
    segmentlog.erase(location.root, _SECRET, purge=True)
    assert _has_it(store) == []
    assert _rows(_process(store).root) == rows


def test_what_a_mirror_has_brought_is_erased_and_the_mirror_goes_on(tmp_path: Path) -> None:
    store = MemoryStore()
    location = _process(store)
    _write(str(tmp_path / "source"), ["a", _SECRET.decode(), "c", "d"])
    segmentlog.mirror(tmp_path / "source", to=location.root)
    rows = _rows(location.root)
    segmentlog.erase(location.root, _SECRET, purge=True)
    assert _has_it(store) == []
    assert _rows(location.root) == _without(rows)
    segmentlog.erase(tmp_path / "source", _SECRET)
    segmentlog.mirror(tmp_path / "source", to=location.root)
    assert _rows(location.root) == _without(rows)


def _appended(root: str) -> None:
    _write(root, ["x", "y"])


def _joined(root: str) -> None:
    segmentlog.compact(root)


def _deleted(root: str) -> None:
    segmentlog.delete_records(root, "orders", 1, offset=2)


@pytest.mark.parametrize("meanwhile", [_appended, _joined, _deleted])
def test_others_may_commit_meanwhile(
    meanwhile: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    location, other = _filled(store), _process(store)
    commit = Replacement.commit

    def after(self: Replacement) -> Any:
        monkeypatch.setattr(Replacement, "commit", commit)
        meanwhile(other.root)
        return commit(self)

    monkeypatch.setattr(Replacement, "commit", after)
    (*_, done) = segmentlog.erase(location.root, _SECRET)
    assert done.records == 2
    rows = _rows(other.root)
    assert rows == _without(rows)
    sweep_objects(_process(store), -1, -1, dry_run=False)
    assert _has_it(store) == []
    assert _rows(_process(store).root) == rows


def test_it_is_given_up_if_others_never_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    location = _filled(store)
    make = Replacement.commit_after

    def after_another(self: Replacement, state: LogState) -> Commit | None:
        return make(self, replace(state, logs={}))

    monkeypatch.setattr(Replacement, "commit_after", after_another)
    with pytest.raises(LogDirectoryError, match="nothing is erased"):
        segmentlog.erase(location.root, _SECRET)


def test_a_kill_at_some_requests_loses_nothing() -> None:
    _kill(range(9, 1000, 24))


@pytest.mark.slow
def test_a_kill_at_any_request_loses_nothing() -> None:
    _kill(range(1000))


def _kill(numbers: range) -> None:
    store = MemoryStore()
    _filled(store)
    held, modified_ms = dict(store.held), dict(store.modified_ms)
    rows = _rows(_process(store).root)
    for number, after in itertools.product(numbers, (False, True)):
        store.held, store.modified_ms = dict(held), dict(modified_ms)
        is_killed = False
        try:
            segmentlog.erase(client_at(DyingClient(store, number, after=after)).root, _SECRET)
        except Killed:
            is_killed = True
        assert _rows(_process(store).root) in (rows, _without(rows))
        segmentlog.erase(_process(store).root, _SECRET)
        assert _rows(_process(store).root) == _without(rows)
        location = _process(store)
        sweep_objects(location, -1, -1, dry_run=False)
        assert _has_it(store) == []
        held_data = {key for key in store.held if key.startswith("data/")}
        assert held_data == sequence_at(location).refresh().objects()
        if not is_killed:
            assert number > 8
            break


class _WatchedClient(DyingClient):
    """A process whose requests others see coming, until it dies at one of them."""

    def __init__(
        self, store: MemoryStore, number: int, *, after: bool, look: Callable[[], object]
    ) -> None:
        super().__init__(store, number, after=after)
        self._look, self._looking = look, threading.Lock()

    def _ask(self, kind: str, key: str, act: Callable[[], Any]) -> Any:
        if self._looking.acquire(blocking=False):  # some requests are made by threads
            try:
                self._look()
            finally:
                self._looking.release()
        return super()._ask(kind, key, act)


class _Readers:
    """Three readers beside an erasure: a new one, one that goes on, and one that has planned."""

    def __init__(self, store: MemoryStore) -> None:
        self._store, self.seen = store, Counter[str]()
        self._open = segmentlog.open_log_dir(_process(store).root)
        root = _process(store).root
        self._planned = segmentlog.dataset(root, topics="orders")
        self._rows = _rows(root)
        self._is_erased = False

    def look(self) -> None:
        """Each sees all of the erasure or nothing, and nobody sees an erased record again."""
        found = _rows(_process(self._store).root)
        assert found in (self._rows, _without(self._rows))
        assert found != self._rows or not self._is_erased
        self._is_erased = found != self._rows
        self.seen["erased" if self._is_erased else "whole"] += 1
        self._open = self._open.refresh()
        assert _in_order(segmentlog.read(self._open, "orders")) == found
        assert _in_order(self._planned.to_table()) in (self._rows, found)


@pytest.mark.parametrize("purge", [False, True])
def test_readers_beside_an_erasure_see_all_of_it_or_nothing(*, purge: bool) -> None:
    """At each of its requests."""
    store = MemoryStore()
    _filled(store)
    readers = _Readers(store)
    client = _WatchedClient(store, 10_000, after=False, look=readers.look)
    segmentlog.erase(client_at(client).root, _SECRET, purge=purge)
    readers.look()
    assert readers.seen["whole"] > 8
    assert readers.seen["erased"] > 1
    assert not purge or _has_it(store) == []


@pytest.mark.slow
@pytest.mark.parametrize("purge", [False, True])
def test_a_kill_at_any_request_beside_readers(*, purge: bool) -> None:
    """A new erasure ends what the killed one has left."""
    store = MemoryStore()
    _filled(store)
    held, modified_ms = dict(store.held), dict(store.modified_ms)
    for number, after in itertools.product(range(1000), (False, True)):
        store.held, store.modified_ms = dict(held), dict(modified_ms)
        readers = _Readers(store)
        client = _WatchedClient(store, number, after=after, look=lambda: None)
        is_killed = False
        try:
            segmentlog.erase(client_at(client).root, _SECRET, purge=purge)
        except Killed:
            is_killed = True
        readers.look()
        again = _WatchedClient(store, 10_000, after=False, look=readers.look)
        segmentlog.erase(client_at(again).root, _SECRET, purge=True)
        readers.look()
        assert readers.seen["erased"]
        assert _has_it(store) == []
        if not is_killed:
            assert number > 8
            return


class _FailingClient(FaultyClient):
    """A process that loses its network at a request, and whether it was done then."""

    n_left = 10_000
    is_last_done = False

    def _ask(self, kind: str, key: str, act: Callable[[], Any]) -> Any:
        self.n_left -= 1
        if self.n_left == 0 and self.is_last_done:
            super()._ask(kind, key, act)
        if self.n_left <= 0:
            raise StorageError(errno.EIO, "no network", key)
        return super()._ask(kind, key, act)


def test_an_error_says_whether_records_have_left_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that is lost around the commit, or after it."""
    seconds = itertools.count(0.0, 40.0)  # nobody waits for the network to come back
    clock = SimpleNamespace(monotonic=lambda: next(seconds), sleep=lambda _: None, time=time.time)
    monkeypatch.setattr(sequence, "time", clock)
    store = MemoryStore()
    rows = _rows(_filled(store).root)
    n_before = len(store.requests)
    segmentlog.erase(_process(store).root, [_SECRET])
    asked = store.requests[n_before:]
    (commit,) = (
        i for i, (kind, key) in enumerate(asked, 1) if kind == "create" and "/commits/" in key
    )
    outcomes = set()
    for n_left, is_last_done in itertools.product((commit, commit + 1), (False, True)):
        store = MemoryStore()
        _filled(store)
        client = _FailingClient(store)
        failing = client_at(client)
        client.n_left, client.is_last_done = n_left, is_last_done
        try:
            found = segmentlog.erase(failing.root, [_SECRET])
        except CommitInDoubtError:
            outcomes.add("in doubt")
            continue
        except StorageError:
            outcomes.add("refused")
            assert _rows(_process(store).root) == rows
            continue
        outcomes.add("done")
        assert _rows(_process(store).root) == _without(rows)
        assert [2] == [each.records for each in found if each.partition >= 0]
        (none,) = (each for each in found if each.partition < 0)
        assert "no network" in none.remaining[0].reason
    assert {"in doubt", "done"} <= outcomes
