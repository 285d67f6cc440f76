"""A log in a store that is used by everybody at once, and badly.

Writers that share commits, each a process with a wrong clock, write as fast as they can.  They are
killed, and stopped for a while, as a machine is that sleeps.  Beside them others compact, erase,
sweep, change settings, and mirror the log to a directory and another directory into it.  The store
fails, forgets and lags (`LatentServer.trouble`), and the place is emptied and made again.

What was acknowledged has to be there once, unless the place was emptied since; what was refused
must not be there; a reader sees each write whole or not at all.
"""

import itertools
import json
import os
import random
import re
import secrets
import signal
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
from latent_store import LATEST_SECONDS, LatentServer
from nursery import Nursery, serve
from spoiled_requests import location_of, new_process

import segmentlog
from segmentlog.bucket import checkpoint_objects
from segmentlog.bucket.clients import objects_at
from segmentlog.bucket.commits import Commit
from segmentlog.bucket.proposals import INBOX
from segmentlog.bucket.sequence import commit_key, sequence_at
from segmentlog.bucket.upkeep import sweep_objects
from segmentlog.errors import (
    CommitInDoubtError,
    CorruptCheckpointError,
    CorruptLogError,
    SegmentLogError,
)
from segmentlog.store.remote.requests import side_by_side

__all__ = ["Adversary", "Outcome"]

_TOPIC, _MIRRORED, _VICTIM = "orders", "mirrored", "victim"
_N_ROWS = 3
_MS = (5.0, 20.0)  # of a request
_MOST_SKEW_SECONDS = 6 * 3600

#: Milliseconds for a sweep of all that no record lies in: no clock is so far ahead.
_OF_ANY_AGE = -5_000.0 * _MOST_SKEW_SECONDS

#: A request of an earlier log has come so late that nobody can make another one: the place has to
#: be emptied again.
_NOT_EMPTY = re.compile(r"holds other objects, such as (?:segmentlog/)?(\w+)")

#: Seconds after a place was emptied for which a writer may not know it: its last look counts for
#: one, and its requests take the rest.
_UNKNOWN_SECONDS = 3.0


class Outcome(NamedTuple):
    """An attempt to write, by a clock of all processes; open if its process was killed."""

    name: str
    kind: str  # done, refused or open
    begun: float
    ended: float


def _say(*what: object) -> None:
    os.write(1, (json.dumps(what) + "\n").encode())


# --- what processes do


def _work(kind: str, skew: float, **given: Any) -> int:
    """One piece of work; says how it ended."""
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + skew
    time.time_ns = lambda: real_ns() + int(skew * 1e9)
    checkpoint_objects._EVERY = 4
    try:
        _WORKS[kind](**given)
    except (CorruptLogError, CorruptCheckpointError) as error:  # nobody has damaged anything
        _say("fault", f"{kind}: {error!r}: {error}")
        return 4
    except SegmentLogError as error:
        _say("error", f"{type(error).__name__}: {error}")
        return 3
    except BaseException as error:  # noqa: BLE001 - no other error may come
        _say("fault", f"{kind}: {error!r}")
        return 4
    return 0


def _tried(name: str, write: Callable[[], object]) -> None:
    begun = time.monotonic()
    _say("begun", name, begun)
    try:
        write()
    except CommitInDoubtError:
        _say("open", name, begun, time.monotonic())
        raise
    except SegmentLogError:
        _say("refused", name, begun, time.monotonic())
        raise
    _say("done", name, begun, time.monotonic())


def _rows(name: str) -> pa.Table:
    is_victim = name.startswith(_VICTIM)
    keys = [_VICTIM if is_victim else f"{name}-{i}" for i in range(_N_ROWS)]
    return pa.table({"key": keys, "value": [name] * _N_ROWS})


def _write(url: str, names: list[str], numbered: str, version: int) -> None:
    def write_numbered() -> None:
        with segmentlog.open_writer(
            url, _TOPIC, num_partitions=4, txn_app_id=numbered, txn_version=version
        ) as writer:
            writer.append(_rows(f"{numbered}/{version}"))

    _tried(f"{numbered}/{version}", write_numbered)
    with segmentlog.open_writer(url, _TOPIC, num_partitions=4) as writer:

        def write(name: str) -> None:
            writer.append(_rows(name))
            writer.flush()

        for name in names:
            _tried(name, partial(write, name))


def _keep_up(url: str, seed: int) -> None:
    """Upkeep of any kind."""
    rng = random.Random(seed)
    match rng.choice(["compact", "erase", "sweep", "end jobs", "settings"]):
        case "compact":
            segmentlog.compact(url)
        case "erase":
            begun = time.monotonic()
            segmentlog.erase(url, _VICTIM, _TOPIC)
            _say("erased", begun, time.monotonic())
        case "sweep":
            sweep_objects(location_of(url), 4_000, 6_000, dry_run=False)
        case "end jobs":
            sweep_objects(location_of(url), _OF_ANY_AGE, _OF_ANY_AGE, dry_run=False)
        case _:
            policy = rng.choice(["compact", "delete"])
            given = {"cleanup.policy": policy, "min.cleanable.dirty.ratio": "0.0001"}
            segmentlog.alter_settings(url, _TOPIC, given)


def _mirror_down(url: str, directory: str) -> None:
    segmentlog.mirror(url, to=directory, topics=_TOPIC)
    _check_whole(_counts_of(directory, _TOPIC), "in a mirror")


def _mirror_up(url: str, directory: str, name: str) -> None:
    with segmentlog.open_writer(directory, _MIRRORED, num_partitions=2) as writer:
        writer.append(_rows(name))
    segmentlog.mirror(directory, to=url)


_WORKS: dict[str, Callable[..., None]] = {
    "write": _write,
    "keep up": _keep_up,
    "mirror down": _mirror_down,
    "mirror up": _mirror_up,
}


def _counts_of(place: str, topic: str) -> Counter[str]:
    found = segmentlog.read(place, topic, columns=["value"])["value"].to_pylist()
    return Counter(each.decode() for each in found)


def _check_whole(counts: Counter[str], where: str) -> None:
    for name, n in counts.items():
        is_right = n <= _N_ROWS if name.startswith(_VICTIM) else n == _N_ROWS
        assert is_right, f"{name} has {n} rows of {_N_ROWS} {where}"


# --- who lets them


class _Actor(threading.Thread):
    """Lets processes do one kind of work, one after the other, and lets some of them suffer."""

    def __init__(self, world: "Adversary", kind: str, number: int) -> None:
        super().__init__(name=f"{kind} {number}")
        self._world, self._kind, self._number = world, kind, number
        self._random = random.Random(f"{world.seed} {self.name}")
        self._version = 0
        self._names = itertools.count()
        self._directory = tempfile.TemporaryDirectory()

    def run(self) -> None:
        try:
            with Nursery(__file__) as nursery:
                while not self._world.is_over.is_set():
                    self._once(nursery)
        except BaseException as error:  # noqa: BLE001 - the world ends, and raises it
            self._world.faults.append(f"{self.name}: {error!r}")
            self._world.is_over.set()
        finally:
            self._directory.cleanup()

    def _given(self) -> dict[str, Any]:
        rng, url = self._random, self._world.url
        match self._kind:
            case "write":
                names = [f"{self.name}/{next(self._names)}" for _ in range(rng.randint(1, 12))]
                names = [f"{_VICTIM} {each}" if rng.random() < 0.1 else each for each in names]
                given = {"names": names, "numbered": f"n{self._number}", "version": self._version}
            case "keep up":
                given = {"seed": rng.getrandbits(32)}
            case "mirror down":
                given = {"directory": self._directory.name}
            case _:
                name = f"{self.name}/{next(self._names)}"
                given = {"directory": self._directory.name, "name": name}
        skew = rng.choice([0, 0, 1, -1]) * rng.uniform(0, _MOST_SKEW_SECONDS)
        return {"kind": self._kind, "skew": skew, "url": url, **given}

    def _once(self, nursery: Nursery) -> None:
        world, rng, fate = self._world, self._random, self._random.random()
        process = nursery.begin(self._given())
        ended = threading.Event()
        harm = threading.Thread(target=self._harm, args=(process, fate, ended))
        harm.start()
        status, said = nursery.await_end()
        at = time.monotonic()
        ended.set()
        harm.join()
        self._note(said, at)
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -1
        world.count(f"{self._kind}: {({0: 'done', 3: 'refused', -1: 'killed'})[code]}")
        if code == 3 and self._kind == "mirror down":  # of a place that was emptied, perhaps
            self._directory.cleanup()
            self._directory = tempfile.TemporaryDirectory()
        if code == 0 and self._kind == "write":
            self._version += 1
        if self._kind != "write":
            world.is_over.wait(rng.uniform(0.2, 3.0))

    def _harm(self, process: int, fate: float, ended: threading.Event) -> None:
        rng, world = random.Random(fate), self._world
        if fate < 0.25:
            if not ended.wait(rng.expovariate(1.0)):
                os.kill(process, signal.SIGKILL)
        elif fate < 0.35 and not ended.wait(rng.uniform(0.05, 1.5)):
            os.kill(process, signal.SIGSTOP)
            world.count("stopped")
            longest = world.longest_sleep if rng.random() < 0.2 else 8.0
            world.is_over.wait(rng.uniform(0.0, longest))
            os.kill(process, signal.SIGCONT)

    def _note(self, said: list[str], at: float) -> None:
        world, begun = self._world, dict[str, float]()
        for line in said:
            kind, *given = json.loads(line)
            if kind == "begun":
                begun[given[0]] = given[1]
            elif kind == "erased":
                world.erased.append((given[0], given[1]))
            elif kind == "fault":
                raise AssertionError(given[0])
            elif kind == "error":
                why = _NOT_EMPTY.search(given[0])
                what = f"late {why[1]}" if why else given[0].partition(":")[0]
                world.count(f"{self._kind}: {what}")
            else:
                name, *times = given
                begun.pop(name, None)
                world.outcomes.append(Outcome(name, kind, *times))
        for name, since in begun.items():  # and its requests may be late
            world.outcomes.append(Outcome(name, "open", since, at + LATEST_SECONDS))


class Adversary:
    """One place, for some time.

    `longest_sleep`: seconds for which a process is stopped at the most.
    """

    def __init__(
        self, seed: int, server: LatentServer, seconds: float, longest_sleep: float
    ) -> None:
        self.seed, self.longest_sleep = seed, longest_sleep
        self._server, self._random, self._seconds = server, random.Random(seed), seconds
        self._key = f"worlds/{seed}-{secrets.token_hex(3)}"
        self.url = server.url(self._key)
        self.is_over = threading.Event()
        self.faults, self.counts = list[str](), Counter[str]()
        self.outcomes, self.erased = list[Outcome](), list[tuple[float, float]]()
        self._wiped = float("-inf")
        self._turn = threading.Lock()

    def count(self, what: str) -> None:
        """Count something that has happened."""
        with self._turn:
            self.counts[what] += 1

    def play(self, n_writers: int) -> None:
        """Play, and compare all that is there with all that was promised."""
        rng, wipes = self._random, self._random.choice([0, 1, 2])
        kinds = [*["write"] * n_writers, "keep up", "mirror down", "mirror up"]
        actors = [_Actor(self, kind, number) for number, kind in enumerate(kinds)]
        self._server.wait(*_MS)
        shares = rng.choice([(0.0, 0.0), (0.01, 0.1), (0.03, 0.3)])
        skew = rng.uniform(-1, 1) * _MOST_SKEW_SECONDS
        self._server.trouble(*shares, skew)
        ends = time.monotonic() + self._seconds
        at = sorted(ends - self._seconds * rng.uniform(0.2, 0.8) for _ in range(wipes))
        for each in actors:
            each.start()
        try:
            while time.monotonic() < ends and not self.is_over.is_set():
                if at and time.monotonic() > at[0]:
                    self._wipe()
                    at.pop(0)
                self._look()
                self.is_over.wait(0.3)
        finally:
            self.is_over.set()
            for each in actors:
                each.join()
            time.sleep(LATEST_SECONDS)
            self._server.trouble(0, 0, skew)
        assert not self.faults, self.faults
        self._check_end()

    def _wipe(self) -> None:
        self._server.wipe(self._key)
        self._wiped = time.monotonic()
        self.count("emptied")

    def _expected(self, until: float) -> tuple[set[str], set[str], set[str]]:
        """Names that have to be there, those that must not, and all that were tried."""
        has_to, may, tried = set[str](), set[str](), set[str]()
        for name, kind, begun, ended in [*self.outcomes]:
            tried.add(name)
            if kind != "refused" and ended > self._wiped:
                may.add(name)
            if kind == "done" and ended < until and begun > self._wiped + _UNKNOWN_SECONDS:
                has_to.add(name)
        return has_to, tried - may, tried

    def _look(self) -> None:
        begun, wiped = time.monotonic(), self._wiped
        has_to, _, _ = self._expected(begun)
        new_process()
        try:
            counts = _counts_of(self.url, _TOPIC)
        except SegmentLogError as error:
            self.count(f"look: {type(error).__name__}")
            if "holds neither" in str(error) and begun > self._wiped + 3 * _UNKNOWN_SECONDS:
                self._wipe()
            return
        self.count("looks")
        _check_whole(counts, "at a look")
        if begun > wiped + _UNKNOWN_SECONDS:
            missing = {each for each in has_to if not each.startswith(_VICTIM)} - counts.keys()
            assert not missing, f"acknowledged, and not there at a look: {sorted(missing)[:5]}"
            self._check_erased(counts, begun)

    def _check_erased(self, counts: Collection[str], begun: float) -> None:
        since = max((first for first, last in self.erased if last < begun), default=-1.0)
        gone = {
            each.name
            for each in [*self.outcomes]
            if each.kind == "done" and each.ended < since and each.name.startswith(_VICTIM)
        }
        assert not gone & {*counts}, f"erased, and there: {sorted(gone & {*counts})[:5]}"

    def _check_end(self) -> None:
        new_process()
        if not sequence_at(location_of(self.url)).is_made():
            self.count("emptied in the end")
            assert not self._expected(float("inf"))[0]
            return
        has_to, must_not, tried = self._expected(float("inf"))
        counts = _counts_of(self.url, _TOPIC)
        _check_whole(counts, "in the end")
        found = {*counts}
        missing = {each for each in has_to if not each.startswith(_VICTIM)} - found
        assert not missing, f"acknowledged, and not there: {sorted(missing)[:5]}"
        assert not must_not & found, f"refused, and there: {sorted(must_not & found)[:5]}"
        assert found <= tried, sorted(found - tried)[:5]
        self._check_erased(found, time.monotonic())
        problems = [each for each in segmentlog.verify(self.url) if each.kind != "offset-gap"]
        assert not problems, problems[:3]
        location = location_of(self.url)
        sweep_objects(location, _OF_ANY_AGE, _OF_ANY_AGE, dry_run=False)
        state, objects = sequence_at(location).refresh(), objects_at(location)
        held = {each.key for each in objects.list("data/")}
        assert held == state.objects(), f"{held - state.objects()}, {state.objects() - held}"
        assert not [*objects.list(INBOX)]
        assert _counts_of(self.url, _TOPIC) == counts
        keys = [commit_key(1 + each) for each in range(state.number)]
        bodies = [Commit.decode(each or b"", "") for each in side_by_side(objects.get, keys, 32)]
        self.counts["commits"] += len(bodies)
        self.counts["writes in commits of others"] += sum(len(each.parts) for each in bodies)
        kinds = defaultdict[str, int](int)
        for each in self.outcomes:
            kinds[each.kind] += 1
        self.counts.update({f"outcome: {kind}": n for kind, n in kinds.items()})
        self.counts["acknowledged, there once"] += len(has_to)


if __name__ == "__main__":
    serve(_work)
