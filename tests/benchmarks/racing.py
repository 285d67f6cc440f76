"""Writers that commit at once, in as many processes as there are processor cores.

Writers of one process would share the lock of its interpreter, which writers on several machines
do not.  What bounds many writers here are the cores, which they share with the server.  So a race
of requests without our code says what server and cores give: its writers make the same requests as
those of a log, as many of each kind, and wait for the same ones.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import obstore
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake
from latent_store import BUCKET, LatentServer
from obstore.store import S3Store

import segmentlog

__all__ = ["SMALL", "Raced", "delta_options", "race"]

SMALL = pa.table({"value": [b"x" * 100] * 10})

_N_LISTED = 64  # what a list of proposals shows


class Raced(NamedTuple):
    """How long each write took; all of them; and their requests by methods."""

    times: list[float]
    seconds: float
    counts: Counter[str]

    @property
    def rate(self) -> float:
        """Commits a second."""
        return len(self.times) / self.seconds

    @property
    def requests(self) -> float:
        """Requests of a commit."""
        return self.counts.total() / len(self.times)


def race(
    server: LatentServer,
    kind: str,
    places: Sequence[str],
    n_commits: int,
    ms: tuple[float, float],
    shares: dict[str, float] | None = None,
) -> Raced:
    """Let writers of a kind write at once, each as often, as fast as they can.

    `places`: of each writer.  `ms`: what a request takes.  `shares`: of the kind `plain`, requests
    of a commit by methods.
    """
    server.wait(0, 0)
    n_processes = min(os.cpu_count() or 1, len(places))
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, kind, str(server.port), json.dumps(shares or {}), *each],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for each in (places[begin::n_processes] for begin in range(n_processes))
    ]

    def ask(n: int) -> list[float]:
        for each in processes:
            assert each.stdin is not None
            print(n, file=each.stdin, flush=True)
        return [seconds for each in processes for seconds in _answer(each)]

    try:
        ask(0)  # all are ready
        server.wait(*ms)
        ask(2)
        server.counts()
        begin = time.perf_counter()
        times = ask(max(n_commits // len(places), 2))
        return Raced(times, time.perf_counter() - begin, server.counts())
    finally:
        for process in processes:
            process.communicate()
        server.wait(0, 0)


def _answer(process: "subprocess.Popen[str]") -> list[float]:
    assert process.stdout is not None
    found: list[float] = json.loads(process.stdout.readline())
    return found


def delta_options(port: int) -> dict[str, str]:
    """Options with which Delta writes to the server."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_SKIP_SIGNATURE": "true",
        "conditional_put": "etag",
    }


def _of_log(place: str, *_: object) -> Callable[[], object]:
    writer = segmentlog.open_writer(place, "orders")

    def write() -> None:
        writer.append(SMALL)
        writer.flush()

    return write


def _of_delta(place: str, port: int, _: object) -> Callable[[], object]:
    table = DeltaTable(place, storage_options=delta_options(port))
    retries = CommitProperties(max_commit_retries=10_000)
    return lambda: write_deltalake(table, SMALL, mode="append", commit_properties=retries)


def _plain(place: str, port: int, shares: dict[str, float]) -> Callable[[], object]:
    """Requests one after the other, but that a list has a GET beside it."""
    config = {"endpoint": f"http://127.0.0.1:{port}", "region": "us-east-1"}
    store = S3Store(
        BUCKET,
        prefix=place,
        config=config | {"skip_signature": True},  # type: ignore[arg-type]
        client_options={"allow_http": True},
    )
    obstore.put(store, "read", b"x" * 5000, use_multipart=False)
    for number in range(_N_LISTED):
        obstore.put(store, f"inbox/{number:020d}-{'x' * 250}", b"", use_multipart=False)
    due, number = Counter[str](), 0
    acts: dict[str, Callable[[], object]] = {
        "PUT": lambda: obstore.put(store, f"data/{number}", b"x" * 1200, use_multipart=False),
        "LIST": lambda: [*obstore.list(store, "inbox")],
        "GET": lambda: obstore.get(store, "read").bytes(),
    }

    def write() -> None:
        nonlocal number
        number += 1
        left = Counter[str]()
        for kind, share in shares.items():
            due[kind] += share  # type: ignore[assignment]
            left[kind] = int(due[kind])
            due[kind] -= left[kind]
        for _ in range(left["PUT"]):
            acts["PUT"]()
        for _ in range(left["LIST"]):
            beside = threading.Thread(target=acts["GET"] if left["GET"] else int)
            left["GET"] -= 1
            beside.start()
            acts["LIST"]()
            beside.join()
        for _ in range(left["GET"]):
            acts["GET"]()

    return write


def _often(write: Callable[[], object], n: int, times: list[float]) -> None:
    for _ in range(n):
        begin = time.perf_counter()
        write()
        times.append(time.perf_counter() - begin)


def _main(kind: str, port: str, shares: str, *places: str) -> None:
    """A process of writers: for each number that it is told, all of them write so often."""
    kinds: dict[str, Callable[[str, int, dict[str, float]], Callable[[], object]]] = {
        "log": _of_log,
        "delta": _of_delta,
        "plain": _plain,
    }
    writes = [kinds[kind](place, int(port), json.loads(shares)) for place in places]
    for line in sys.stdin:
        times = list[float]()
        begin = partial(threading.Thread, target=_often)
        threads = [begin(args=(each, int(line), times)) for each in writes]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        print(json.dumps(times), flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
