"""Processes that write to a log in an object store, and are killed at their requests.

Writers and sweepers run side by side, each behind a proxy, which kills its process when a chosen
request comes.  The server then carries the request out, or has never got it.  A writer that was
killed is started again with the same version.  A reader looks all the time whether it finds all
rows of a version or none.

A process may write several times, as fast as it can: then writers meet, and their writes share
commits.  Each write that it has acknowledged has to be there once, also if it has no version.
"""

import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from typing import Any, NamedTuple

import pyarrow as pa
from nursery import Nursery, serve
from proxies import Fault, FaultyServer, Sent
from spoiled_requests import location_of, new_process, port_in

import segmentlog
from segmentlog.bucket.clients import objects_at
from segmentlog.bucket.commits import Commit
from segmentlog.bucket.sequence import commit_key, sequence_at
from segmentlog.bucket.upkeep import sweep_objects
from segmentlog.errors import LogDirectoryError, SegmentLogError
from segmentlog.store.remote.requests import side_by_side

_N_ROWS = 40
_TOPIC = "orders"
#: The request of a kill is drawn below; a write has some 18, so half of them end.
_MOST_REQUESTS = 36
#: The same for each of several writes.
_REQUESTS_OF_WRITE = 6


class Kills(NamedTuple):
    """What was played, and what was wrong in the end."""

    n_kills: int
    n_commits: int
    n_looks: int  # of the reader
    n_lost: int
    n_repeated: int
    n_half: int
    n_unswept: int  # objects that no commit names, and no sweep has found
    n_shared: int  # writes that another writer's commit has named

    @property
    def is_right(self) -> bool:
        """Whether nothing was lost, repeated, seen in part, or left."""
        return not any((self.n_lost, self.n_repeated, self.n_half, self.n_unswept))


def _work(url: str, writer: str, version: int, names: list[str]) -> int:
    """Sweep, or write: a version of a numbered write, and then other rows by one writer."""
    try:
        if writer == "sweeper":
            sweep_objects(location_of(url), -1, -1, dry_run=False)
            return 0
        given: dict[str, Any] = {"txn_app_id": writer, "txn_version": version}
        with segmentlog.open_writer(url, _TOPIC, num_partitions=4, **given) as opened:
            opened.append(_rows(f"{writer}/{version}"))
        _acknowledge(f"{writer}/{version}")
        if names:
            with segmentlog.open_writer(url, _TOPIC) as opened:
                for name in names:
                    opened.append(_rows(name))
                    opened.flush()
                    _acknowledge(name)
    except LogDirectoryError:  # a sweep has ended the job, or there is no log yet
        return 3
    except SegmentLogError as error:
        print(error, file=sys.stderr, flush=True)
        return 4
    return 0


def _rows(name: str) -> pa.Table:
    return pa.table({"value": [name] * _N_ROWS})


def _acknowledge(name: str) -> None:
    os.write(1, f"{name}\n".encode())


class _Player(threading.Thread):
    """One writer, or the sweeper, with its proxy.

    `n_more`: writes of a process after that which is numbered. `acknowledged`: all writes that
    have to be there, and `tried`: those that may be.
    """

    def __init__(self, name: str, url: str, over: threading.Event, n_more: int = 0) -> None:
        super().__init__(name=name)
        self._url, self._random, self._over = url, random.Random(name), over
        self._n_more, self._n_runs = n_more, 0
        self.n_kills = self.n_done = 0
        self.refused: Counter[int] = Counter()
        self.acknowledged, self.tried = set[str](), set[str]()

    def run(self) -> None:
        """Work until all is over; the last version without kills."""
        port = port_in(self._url)
        with FaultyServer(port) as proxy, Nursery(__file__) as nursery:
            url = self._url.replace(f":{port}", f":{proxy.port}")
            while True:
                is_last = self._over.is_set()
                status = self._once(proxy, nursery, url, spares=is_last)
                self.n_done += f"{self.name}/{self.n_done}" in self.acknowledged
                if status == 0:
                    if is_last:
                        return
                elif os.WIFSIGNALED(status):
                    self.n_kills += 1
                else:
                    self.refused[os.WEXITSTATUS(status)] += 1

    def _once(self, proxy: FaultyServer, nursery: Nursery, url: str, *, spares: bool) -> int:
        most = _MOST_REQUESTS + _REQUESTS_OF_WRITE * self._n_more
        chosen = -1 if spares else self._random.randrange(most)
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
        self._n_runs += 1
        names = [f"{self.name}/run {self._n_runs}/{i}" for i in range(self._n_more)]
        self.tried |= {*names, f"{self.name}/{self.n_done}"}
        work = {"url": url, "writer": self.name, "version": self.n_done, "names": names}
        process.append(nursery.begin(work))
        is_known.set()
        status, acknowledged = nursery.await_end()
        self.acknowledged |= {*acknowledged}
        return status


def _counts(url: str) -> Counter[str]:
    location = location_of(url)
    if not sequence_at(location).is_made():
        return Counter()
    if _TOPIC not in sequence_at(location).refresh().topics:
        return Counter()
    found = segmentlog.read(url, _TOPIC, columns=["value"])["value"].to_pylist()
    return Counter(each.decode() for each in found)


def play_kills(url: str, n_kills: int, n_writers: int = 3, n_more: int = 0) -> Kills:
    """Play until so many processes were killed.

    `url`: an empty place.  `n_more`: writes of each process after the first.
    """
    over = threading.Event()
    players = [_Player(f"writer{i}", url, over, n_more) for i in range(n_writers)]
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
    wanted = {name for each in players for name in each.acknowledged}
    tried = {name for each in players for name in each.tried}
    sweep_objects(location_of(url), -1, -1, dry_run=False)
    state = sequence_at(location_of(url)).refresh()
    objects = objects_at(location_of(url))
    held = {each.key for each in objects.list("data/")}
    bodies = side_by_side(objects.get, [commit_key(1 + each) for each in range(state.number)], 32)
    shared = sum(len(Commit.decode(each or b"", "").parts) for each in bodies)
    return Kills(
        sum(each.n_kills for each in (*players, sweeper)),
        state.number,
        n_looks,
        len(wanted - counts.keys()),
        sum(n > _N_ROWS for n in counts.values()) + len(counts.keys() - tried),
        n_half + sum(n < _N_ROWS for n in counts.values()),
        len(held ^ state.objects()),
        shared,
    )


if __name__ == "__main__":
    serve(_work)
