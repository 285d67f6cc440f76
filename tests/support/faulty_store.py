"""An object store in memory that loses answers, delays requests, and kills its clients."""

import errno
import hashlib
import itertools
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import TypeVar

import pytest

from segmentlog.bucket import clients, combining, places, sequence
from segmentlog.bucket.objects import ListedObject
from segmentlog.errors import StorageError
from segmentlog.store.paths import BucketLocation

__all__ = ["DyingClient", "FaultyClient", "Killed", "MemoryStore", "client_at", "quick_settling"]

_T = TypeVar("_T")

_numbers = itertools.count()


class Killed(BaseException):
    """The process of a client has died."""


class MemoryStore:
    """What the store holds.

    `removed`: objects that are gone, which a stale list may have.
    `late`: requests that are still under way although their clients have given them up.
    `requests`: kind and key of each request. `has_conditions`: whether a conditional write looks
    whether there is an object.
    """

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.modified_ms: dict[str, int] = {}
        self.removed: list[tuple[str, bytes]] = []  # in their order
        self.late: list[Callable[[], object]] = []
        self.requests: list[tuple[str, str]] = []
        self.has_conditions = True
        self.lock = threading.Lock()

    def create(self, key: str, data: bytes) -> str | None:
        with self.lock:
            if key in self.held and self.has_conditions:
                return None
            self.held[key] = data
            self.modified_ms[key] = int(time.time() * 1000)
            return _e_tag(data)

    def put(self, key: str, data: bytes) -> None:
        with self.lock:
            self.held[key] = data
            self.modified_ms[key] = int(time.time() * 1000)

    def exchange(self, key: str, before: bytes, data: bytes) -> bool:
        with self.lock:
            if self.held.get(key) != before:
                return False
            self.held[key] = data
            self.modified_ms[key] = int(time.time() * 1000)
            return True

    def remove(self, key: str) -> None:
        with self.lock:
            if (data := self.held.pop(key, None)) is not None:
                self.removed.append((key, data))


class FaultyClient:
    """`Objects` of one process.

    `faults`: chooses what happens to each request, or is None. `share`: of requests that something
    happens to; of reads fewer, of writes more.  As many lists are stale. `kills`: whether the
    process may die. `others`: called before some requests: other clients act meanwhile.
    """

    lists_all = False

    def __init__(self, store: MemoryStore, faults: random.Random | None = None) -> None:
        self.store, self.faults = store, faults
        self.share, self.kills = 0.2, True
        self.others: Callable[[], object] | None = None
        self._is_within = False

    def _ask(self, kind: str, key: str, act: Callable[[], _T]) -> _T:
        self.store.requests.append((kind, key))
        faults = self.faults
        if faults is None:
            return act()
        share = self.share if kind != "get" else self.share / 20  # there are twenty for each other
        if self.others is not None and not self._is_within and faults.random() < share:
            self._is_within = True
            try:
                self.others()
            finally:
                self._is_within = False
        if self.store.late and faults.random() < 0.3:
            self.store.late.pop(faults.randrange(len(self.store.late)))()
        # There are twenty reads for each commit, and few of them can do harm.
        if faults.random() >= self.share * (2 if kind in {"create", "put"} else 0.1):
            return act()
        fate = faults.randrange(6 if self.kills else 4)
        if fate == 0:  # it never came
            raise _lost(kind, key)
        if fate == 1:  # the answer was lost
            act()
            raise _lost(kind, key)
        if fate == 2 and kind in {"create", "put"}:  # it comes later
            self.store.late.append(act)
            raise _lost(kind, key)
        if fate == 3:  # the client repeats it by itself
            act()
            return act()
        if fate == 4:
            raise Killed
        if fate == 5:
            act()
            raise Killed
        return act()

    def create(self, key: str, data: bytes) -> str | None:
        return self._ask("create", key, lambda: self.store.create(key, data))

    def put(self, key: str, pieces: Iterable[bytes]) -> None:
        data = b"".join(pieces)
        self._ask("put", key, lambda: self.store.put(key, data))

    def exchange(self, key: str, before: bytes, data: bytes) -> bool:
        return self._ask("put", key, lambda: self.store.exchange(key, before, data))

    def get(self, key: str) -> bytes | None:
        return self._ask("get", key, lambda: self.store.held.get(key))

    def read(self, key: str, start: int, n_bytes: int) -> bytes:
        data = self._ask("read", key, lambda: self.store.held.get(key))
        if data is None:
            raise FileNotFoundError(key)
        return data[start : start + n_bytes]

    def list(self, prefix: str, *, after: str = "") -> Iterator[ListedObject]:
        store = self.store
        held = self._ask("list", prefix, store.held.copy)
        if self.faults is not None and self.faults.random() < self.share:
            held = self._stale(held)
        return iter(
            ListedObject(key, len(data), store.modified_ms[key], _e_tag(data))
            for key, data in sorted(held.items())
            if key.startswith(prefix) and key > after
        )

    def _stale(self, held: dict[str, bytes]) -> dict[str, bytes]:
        """A list without the newest objects, and with some that were removed a moment ago."""
        assert self.faults is not None
        keys = [*held]
        seen = keys[: max(len(keys) - self.faults.randrange(4), 0)]
        return {key: held[key] for key in seen} | dict(self.store.removed[-2:])

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._ask("delete", key, partial(self.store.remove, key))


class DyingClient(FaultyClient):
    """A client that dies before its request of some number, or after it."""

    def __init__(self, store: MemoryStore, number: int, *, after: bool) -> None:
        super().__init__(store)
        self._left, self._after = number, after

    def _ask(self, kind: str, key: str, act: Callable[[], _T]) -> _T:
        self._left -= 1
        if self._left < 0:
            if self._after and self._left == -1:
                act()
            raise Killed
        return super()._ask(kind, key, act)


def _e_tag(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def _lost(kind: str, key: str) -> StorageError:
    return StorageError(errno.EIO, f"{kind}: the connection was reset", key)


def client_at(client: FaultyClient) -> BucketLocation:
    """A place that this process reaches through a client; it remembers nothing of others."""
    location = BucketLocation("file://", f"/simulated/{next(_numbers)}")
    clients._clients[os.getpid(), location.root] = client
    places._known.clear()
    return location


def quick_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let writers ask what became of a commit without pauses, some fifty times."""
    seconds = itertools.count(0.0, 2.0)
    clock = SimpleNamespace(monotonic=lambda: next(seconds), sleep=lambda _: None, time=time.time)
    monkeypatch.setattr(sequence, "time", clock)
    hasty = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: None, time=time.time)
    monkeypatch.setattr(combining, "time", hasty)
