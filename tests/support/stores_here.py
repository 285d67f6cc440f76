"""Stores on this machine for tests: directories and memory, with URLs."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from segmentlog.store.remote import object_store, stores
from segmentlog.store.remote.location import Location
from segmentlog.store.remote.stores import ArrowStore, Facts, Opened, Store


def store_of(directory: Path) -> Store:
    """A directory as a store."""
    return ArrowStore(SubTreeFileSystem(str(directory), LocalFileSystem()), "")


def serve(monkeypatch: pytest.MonkeyPatch, store: Store, bucket: str) -> str:
    """The URL of a store, valid during a test."""
    known = stores.store_at

    def store_at(location: Location) -> Store:
        return store if location.host == bucket else known(location)

    monkeypatch.setattr(object_store, "store_at", store_at)
    monkeypatch.setattr(object_store, "_disks", {})
    return f"test://{bucket}"


class CountingStore:
    """A store that passes requests to another store, notes them, and spoils answers.

    `requests`: the kind of each request, its key, and its range. `spoil`: takes a key, a position
    and the bytes that were read, and returns other bytes.
    """

    opens_at_once = False

    def __init__(self, store: Store) -> None:
        self._store = store
        self.requests: list[tuple[str, str, int, int]] = []
        self.spoil: Callable[[str, int, bytes], bytes] = lambda key, position, found: found

    def listing(self, key: str, *, deep: bool) -> Iterator[tuple[str, Facts]]:
        """See `Store`."""
        self.requests.append(("list", key, 0, 0))
        return self._store.listing(key, deep=deep)

    def facts(self, key: str) -> Facts:
        """See `Store`."""
        self.requests.append(("facts", key, 0, 0))
        return self._store.facts(key)

    def open(self, key: str) -> Opened:
        """See `Store`."""
        self.requests.append(("open", key, 0, 0))
        opened = self._store.open(key)

        def fetch(position: int, n_bytes: int) -> bytes:
            self.requests.append(("read", key, position, position + n_bytes))
            return self.spoil(key, position, opened.fetch(position, n_bytes))

        return opened._replace(fetch=fetch)
