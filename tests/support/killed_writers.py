"""Processes that write to a log in an object store, and are killed at their requests.

Writers and sweepers run side by side, each behind a proxy, which kills its process when a chosen
request comes.  The server then carries the request out, or has never got it.  A writer that was
killed is started again with the same version.  A reader looks all the time whether it finds all
rows of a version or none.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import Any, NamedTuple, Self

import pyarrow as pa
from proxies import Fault, FaultyServer, Sent
from spoiled_requests import location_of, new_process, port_in

import segmentlog
from segmentlog.bucket.clients import objects_at
from segmentlog.bucket.sequence import sequence_at
from segmentlog.bucket.upkeep import sweep_objects
from segmentlog.errors import LogDirectoryError, SegmentLogError

_N_ROWS = 40
_TOPIC = "orders"
#: The request of a kill is drawn below; a write has some 18, so half of them end.
_MOST_REQUESTS = 36


class Kills(NamedTuple):
    """What was played, and what was wrong in the end."""

    n_kills: int
    n_commits: int
    n_looks: int  # of the reader
    n_lost: int
    n_repeated: int
    n_half: int
    n_unswept: int  # objects that no commit names, and no sweep has found

    @property
    def is_right(self) -> bool:
        """Whether nothing was lost, repeated, seen in part, or left."""
        return not any((self.n_lost, self.n_repeated, self.n_half, self.n_unswept))


class _Nursery:
    """A process that has imported everything, and forks one for each piece of work."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def begin(self, work: dict[str, Any]) -> int:
        """Start a piece of work; its process id."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(work) + "\n")
        self._process.stdin.flush()
        return int(self._answer())

    def await_end(self) -> int:
        """The status with which it has ended, as `os.waitpid` returns it."""
        return int(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


def _serve() -> None:
    """The program of a nursery."""
    for line in sys.stdin:
        child = os.fork()
        if not child:
            os._exit(_work(**json.loads(line)))
        print(child, flush=True)
        print(os.waitpid(child, 0)[1], flush=True)


def _work(url: str, writer: str, version: int) -> int:
    try:
        if writer == "sweeper":
            sweep_objects(location_of(url), -1, -1, dry_run=False)
            return 0
        rows = pa.table({"value": [f"{writer}/{version}"] * _N_ROWS})
        given: dict[str, Any] = {"txn_app_id": writer, "txn_version": version}
        with segmentlog.open_writer(url, _TOPIC, num_partitions=4, **given) as opened:
            opened.append(rows)
    except LogDirectoryError:  # a sweep has ended the job, or there is no log yet
        return 3
    except SegmentLogError as error:
        print(error, file=sys.stderr, flush=True)
        return 4
    return 0


class _Player(threading.Thread):
    """One writer, or the sweeper, with its proxy."""

    def __init__(self, name: str, url: str, over: threading.Event) -> None:
        super().__init__(name=name)
        self._url, self._random, self._over = url, random.Random(name), over
        self.n_kills = self.n_done = 0
        self.refused: Counter[int] = Counter()

    def run(self) -> None:
        """Work until all is over; the last version without kills."""
        port = port_in(self._url)
        with FaultyServer(port) as proxy, _Nursery() as nursery:
            url = self._url.replace(f":{port}", f":{proxy.port}")
            while True:
                is_last = self._over.is_set()
                status = self._once(proxy, nursery, url, spares=is_last)
                if status == 0:
                    self.n_done += 1
                    if is_last:
                        return
                elif os.WIFSIGNALED(status):
                    self.n_kills += 1
                else:
                    self.refused[os.WEXITSTATUS(status)] += 1

    def _once(self, proxy: FaultyServer, nursery: _Nursery, url: str, *, spares: bool) -> int:
        chosen = -1 if spares else self._random.randrange(_MOST_REQUESTS)
        acts = self._random.random() < 0.5
        process: list[int] = []
        is_known = threading.Event()

        def choose(number: int, _sent: Sent) -> Fault | None:
            if number != chosen:
                return None
            is_known.wait()
            os.kill(process[0], signal.SIGKILL)
            return Fault(acts, 0)

        proxy.reset()
        proxy.choose = choose
        work = {"url": url, "writer": self.name, "version": self.n_done}
        process.append(nursery.begin(work))
        is_known.set()
        return nursery.await_end()


def _counts(url: str) -> Counter[str]:
    location = location_of(url)
    if not sequence_at(location).is_made():
        return Counter()
    if _TOPIC not in sequence_at(location).refresh().topics:
        return Counter()
    found = segmentlog.read(url, _TOPIC, columns=["value"])["value"].to_pylist()
    return Counter(each.decode() for each in found)


def play_kills(url: str, n_kills: int) -> Kills:
    """Play until so many processes were killed.

    `url`: an empty place.
    """
    over = threading.Event()
    players = [_Player(f"writer{i}", url, over) for i in range(3)]
    sweeper = _Player("sweeper", url, over)
    for each in (*players, sweeper):
        each.start()
    n_looks = n_half = 0
    try:
        while sum(each.n_kills for each in (*players, sweeper)) < n_kills:
            n_half += sum(n != _N_ROWS for n in _counts(url).values())
            n_looks += 1
            if not all(each.is_alive() for each in (*players, sweeper)):
                raise RuntimeError("a player has ended")
            time.sleep(0.05)
    finally:
        over.set()
        for each in (*players, sweeper):
            each.join()
    new_process()
    counts = _counts(url)
    wanted = {f"{each.name}/{version}" for each in players for version in range(each.n_done)}
    sweep_objects(location_of(url), -1, -1, dry_run=False)
    state = sequence_at(location_of(url)).refresh()
    held = {each.key for each in objects_at(location_of(url)).list("data/")}
    return Kills(
        sum(each.n_kills for each in (*players, sweeper)),
        state.number,
        n_looks,
        len(wanted - counts.keys()),
        sum(n > _N_ROWS for n in counts.values()) + len(counts.keys() - wanted),
        n_half + sum(n < _N_ROWS for n in counts.values()),
        len(held ^ state.objects()),
    )


if __name__ == "__main__":
    _serve()
