"""A clock that passes only while all threads wait, for protocols whose requests take time.

`VirtualTime` runs threads one at a time, each until it sleeps.  Then it goes on with the one that
wakes first, and sets the clock: a day of requests takes as long as the work between them.
"""

import heapq
import itertools
import random
import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

import faulty_store
import pytest
from faulty_store import FaultyClient, Killed, MemoryStore

from segmentlog.bucket import combining, proposals, sequence, upkeep
from segmentlog.writes import bucket_job

__all__ = ["LatentClient", "VirtualTime"]

_A = TypeVar("_A")
_T = TypeVar("_T")

_BEGIN = 1_700_000_000.0


class VirtualTime:
    """The clock, and the threads that live by it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self._order = itertools.count()
        self._asleep: list[tuple[float, int, threading.Event]] = []
        self._ended = threading.Event()
        self._n_threads = 0
        self._errors: list[BaseException] = []

    def sleep(self, seconds: float) -> None:
        """Let others act until some time has passed."""
        mine = threading.Event()
        heapq.heappush(self._asleep, (self.now + max(seconds, 0.0), next(self._order), mine))
        self._go_on()
        mine.wait()

    def _go_on(self) -> None:
        if self._asleep:
            self.now, _, event = heapq.heappop(self._asleep)
            event.set()
        else:
            self._ended.set()

    def _start(self, act: Callable[[], object]) -> None:
        """Begin a thread, which runs once the others sleep."""
        begins = threading.Event()
        heapq.heappush(self._asleep, (self.now, next(self._order), begins))

        def run() -> None:
            begins.wait()
            try:
                act()
            except BaseException as error:  # noqa: BLE001 - raised by `run`
                self._errors.append(error)
            self._go_on()

        threading.Thread(target=run, daemon=True).start()

    def run(self, acts: Sequence[Callable[[], object]]) -> None:
        """Run threads to their ends."""
        self._ended.clear()
        for each in acts:
            self._start(each)
        self._go_on()
        self._ended.wait()
        if self._errors:
            raise self._errors[0]

    def side_by_side(
        self, work: Callable[[_A], _T], given: Sequence[_A], most: int = 0
    ) -> list[_T]:
        """As that of the engine; an error comes once all has ended."""
        given = [*given]
        answers: dict[int, tuple[Any, BaseException | None]] = {}
        awaited = threading.Event()

        def act(number: int) -> None:
            try:
                answers[number] = work(given[number]), None
            except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
                answers[number] = None, error
            if len(answers) == len(given):
                heapq.heappush(self._asleep, (self.now, next(self._order), awaited))

        for number in range(len(given)):
            self._start(partial(act, number))
        if given:
            self._go_on()
            awaited.wait()
        for number in range(len(given)):
            if (error := answers[number][1]) is not None:
                raise error
        return [answers[number][0] for number in range(len(given))]

    def rule(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the protocol of logs in object stores live by this clock and its dice."""
        clock = SimpleNamespace(
            monotonic=lambda: self.now, sleep=self.sleep, time=lambda: _BEGIN + self.now
        )
        dice = SimpleNamespace(
            token_hex=lambda n: f"{self.random.getrandbits(8 * n):0{2 * n}x}",
            token_bytes=self.random.randbytes,
            randbelow=self.random.randrange,
        )
        for module in (combining, proposals, sequence, upkeep, bucket_job, faulty_store):
            for name, mine in (("time", clock), ("secrets", dice)):
                if hasattr(module, name):
                    monkeypatch.setattr(module, name, mine)
        for module in (combining, sequence):
            monkeypatch.setattr(module, "side_by_side", self.side_by_side)


class LatentClient(FaultyClient):
    """A client whose requests take some time; see `FaultyClient` for the faults.

    `seconds`: the least and the most that a request takes. `deadly`: share of the requests before
    or after which the process dies.
    """

    deadly = 0.0

    def __init__(
        self,
        store: MemoryStore,
        clock: VirtualTime,
        seconds: tuple[float, float],
        faults: random.Random | None = None,
    ) -> None:
        super().__init__(store, faults)
        self._clock, self._seconds = clock, seconds

    def _ask(self, kind: str, key: str, act: Callable[[], _T]) -> _T:
        clock, dice = self._clock, self._clock.random
        clock.sleep(dice.uniform(*self._seconds) / 2)
        dies = self.deadly and dice.random() < self.deadly
        if dies and dice.random() < 0.5:
            raise Killed
        try:
            found = super()._ask(kind, key, act)
        finally:
            clock.sleep(dice.uniform(*self._seconds) / 2)
        if dies:
            raise Killed
        return found
