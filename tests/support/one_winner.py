"""Clients that create the same keys at once, in each of the servers that run here.

``python tests/support/one_winner.py`` prints what they find.  A store in which a key has two
winners would lose commits.
"""

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

from segmentlog.bucket.objects import Objects, objects_at
from segmentlog.store.paths import bucket_at


class Winners(NamedTuple):
    """What clients were told that have created the same keys."""

    n_keys: int
    n_winners: Counter[int]  # keys by their number of winners
    n_wrong: int  # keys that hold what nobody was told to have created
    seconds: float

    @property
    def is_exact(self) -> bool:
        """Whether each key has one winner, and its bytes."""
        return self.n_winners == {1: self.n_keys} and not self.n_wrong


def contend(objects: Objects, n_keys: int = 1000, n_clients: int = 16) -> Winners:
    """Let clients create the same keys in the same order, at once."""
    winners: list[list[int]] = [[] for _ in range(n_keys)]
    together = threading.Barrier(n_clients)

    def create(client: int) -> None:
        together.wait()
        for key in range(n_keys):
            if objects.create(f"contended/{key}", b"%d" % client):
                winners[key].append(client)

    threads = [threading.Thread(target=create, args=(client,)) for client in range(n_clients)]
    begin = time.monotonic()
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    seconds = time.monotonic() - begin
    wrong = 0
    for key in range(n_keys):
        held = objects.get(f"contended/{key}")
        wrong += held is None or int(held) not in winners[key]
    return Winners(n_keys, Counter(len(each) for each in winners), wrong, seconds)


@contextmanager
def _moto(*, locked: bool) -> Iterator[str]:
    from moto_here import CREDENTIALS, Moto

    os.environ.update(CREDENTIALS)
    with Moto(locked=locked) as server:
        yield server.url(f"logs-{locked}")  # all share their objects


@contextmanager
def _s3proxy() -> Iterator[str]:
    from s3_here import S3Server

    with S3Server() as server:
        yield server.url("logs")


@contextmanager
def _google() -> Iterator[str]:
    from store_servers import GoogleServer

    with GoogleServer() as server:
        yield server.log_url("logs")


@contextmanager
def _azure() -> Iterator[str]:
    from store_servers import AzureServer

    with AzureServer() as server:
        os.environ.update(server.environment)
        yield server.log_url("logs")


@contextmanager
def _directory() -> Iterator[str]:
    import tempfile

    with tempfile.TemporaryDirectory() as made:
        yield f"bucket+file://{made}/logs"


#: Contexts with the URL of an empty place in a server.
SERVERS: dict[str, Callable[[], AbstractContextManager[str]]] = {
    "a local directory": _directory,
    "moto": lambda: _moto(locked=False),
    "moto behind a lock": lambda: _moto(locked=True),
    "S3Proxy": _s3proxy,
    "fake-gcs-server": _google,
    "Azurite": _azure,
}


def main() -> None:
    """Print a table."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    print("| server | keys with one winner | with several | with none | wrong bytes | seconds |")
    print("|---|---|---|---|---|---|")
    for name, server in SERVERS.items():
        with server() as url:
            location = bucket_at(url)
            assert location is not None
            found = contend(objects_at(location))
        n = found.n_winners
        several = sum(count for number, count in n.items() if number > 1)
        print(f"| {name} | {n[1]} | {several} | {n[0]} | {found.n_wrong} | {found.seconds:.1f} |")


if __name__ == "__main__":
    main()
