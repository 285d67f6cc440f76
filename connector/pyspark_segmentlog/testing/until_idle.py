"""Run a job whose queries never end until they have read all input.

Such a job waits for its queries.  Where it begins to wait, the queries process what is there, and
are stopped; then the wait ends, as it does when an operator stops the job.  A job that sleeps, or
waits for something else that never comes, is interrupted as by an operator's Ctrl-C.
"""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeVar

_T = TypeVar("_T")

#: Modules whose waits are not those of a job.
_NOT_OF_JOBS = {*sys.stdlib_module_names, "pyspark", "py4j", "pyspark_segmentlog"} - {"__main__"}

#: A job is interrupted when it has slept so many seconds, or so many times, without new rows; none
#: of these seconds passes.
_LONGEST_SLEEP = 600

#: How long a wait for something else goes on when all queries have ended, in seconds; and how many
#: waits for an ended query are a loop.
_LONGEST_WAIT, _MOST_WAITS = 5.0, 20


class Stopped(KeyboardInterrupt):
    """Ends a job that waits for ever."""


_RUNS: list["Run"] = []


def running() -> "Run | None":
    """The run of the job, if there is one."""
    return _RUNS[-1] if _RUNS else None


class Run:
    """One run of a job.

    `timeout`: seconds for the queries to process their input, each time that the job waits.
    `keeps_session`: whether a session is there that the job must not stop.
    """

    def __init__(self, timeout: float, *, keeps_session: bool) -> None:
        self.keeps_session = keeps_session
        self._timeout = timeout
        self._queries: list[Any] = []
        self._reported = set[str]()
        self._looks: dict[str, int] = {}
        # Threads of the job may wait at once: one of them at a time lets the queries catch up.
        self._settling = threading.RLock()
        self._thread = threading.get_ident()
        self._last: list[Any] = []
        self._slept, self._n_waits = 0.0, 0
        self._is_over = self._is_interrupted = False
        self._late: TimeoutError | None = None

    def __call__(self, job: Callable[[], _T]) -> _T | None:
        """Run the job to its end; its errors, and those of its queries, are raised."""
        _RUNS.append(self)
        try:
            found: _T | None = None
            try:
                with self._waits_replaced():
                    found = job()
            except SystemExit as error:
                if error.code and not self._is_interrupted:
                    raise
            except Stopped:
                pass
            self.settle()
        finally:
            _RUNS.remove(self)
            self._stop()
        if self._late is not None:  # the job may have caught it
            raise self._late
        for query in self._queries:
            failure = query.exception()
            if failure is not None and query.runId not in self._reported:
                raise failure
        return found

    def note(self, query: Any) -> None:  # noqa: ANN401
        """Note a query that has begun."""
        self._queries.append(query)
        self._is_over, self._slept, self._n_waits = False, 0.0, 0

    def wait(self, wait: Callable[[float | None], _T], timeout: float | None) -> _T:
        """Wait for a query as the job does, when all of them have processed their input."""
        is_over = self._is_over  # and the session may have forgotten the ended queries
        self._n_waits += is_over
        self.settle()
        try:
            found = wait(_LONGEST_WAIT if is_over else timeout)
        except BaseException:
            self._reported.update(each.runId for each in self._queries if each.exception())
            raise
        if is_over and (found is False or self._n_waits > _MOST_WAITS + len(self._queries)):
            self._interrupt()
        return found

    def look(self, query: Any, is_active: bool) -> bool:  # noqa: ANN401
        """Whether a query is active: a job that asks again waits for its end."""
        self._looks[query.runId] = self._looks.get(query.runId, 0) + is_active
        if is_active and self._looks[query.runId] > 1:
            self.settle()
            return False
        return is_active

    def settle(self) -> None:
        """Let all queries process their input, and stop them; `TimeoutError` if input remains."""
        self._catch_up()
        self._stop()
        self._is_over = bool(self._queries)

    def _catch_up(self) -> None:
        """One query may write what another one reads, so it ends when none has read more."""
        end = time.monotonic() + self._timeout
        with self._settling:
            before: list[Any] | None = None
            while before != (now := [_newest(each) for each in self._queries]):
                before = now
                for query in [*self._queries]:
                    self._process(query, end)

    def _sleep(self, seconds: float) -> None:
        """Process all input instead of sleeping, until the job has slept for long without any."""
        self._catch_up()
        newest = [_newest(each) for each in self._queries]
        if newest != self._last:
            self._last, self._slept = newest, 0.0
        if self._slept >= _LONGEST_SLEEP:
            self._interrupt()
        self._slept += max(seconds, 1)

    def _await(self, wait: Callable[[float], bool], timeout: float | None) -> bool:
        """Wait for what a query may bring about, or the end of one; else it never comes."""
        if wait(0):
            return True
        if timeout is not None:
            self._sleep(timeout)
            return wait(0)
        self._catch_up()
        if not wait(0):
            self.settle()
            if not wait(_LONGEST_WAIT):
                self._interrupt()
        return True

    def _interrupt(self) -> None:
        self.settle()
        self._is_interrupted = True
        message = "run_until_idle: the job waits for ever, and its queries have read all input"
        raise Stopped(message)

    @contextmanager
    def _waits_replaced(self) -> Iterator[None]:
        """Replace the waits of the job's own code, in its thread, once it has queries."""
        sleep, pause, wait = time.sleep, getattr(signal, "pause", None), threading.Event.wait

        def is_of_job() -> bool:
            caller = sys._getframe(2).f_globals.get("__name__", "").partition(".")[0]
            is_here = threading.get_ident() == self._thread and caller not in _NOT_OF_JOBS
            # A module that the job has imported keeps the name for good.
            return is_here and bool(self._queries) and self in _RUNS

        def new_sleep(seconds: float, /) -> None:
            (self._sleep if is_of_job() else sleep)(seconds)

        def new_pause() -> None:
            if is_of_job():
                self._interrupt()
            pause()  # type: ignore[misc]

        def new_wait(event: threading.Event, timeout: float | None = None) -> bool:
            if is_of_job():
                return self._await(lambda seconds: wait(event, seconds), timeout)
            return wait(event, timeout)

        changed: list[tuple[Any, str, Any]] = [(threading.Event, "wait", wait)]
        setattr(*changed[0][:2], new_wait)
        new = {id(sleep): new_sleep, id(pause): new_pause} if pause else {id(sleep): new_sleep}
        for module in list(sys.modules.values()):
            if isinstance(module, ModuleType):
                for name, found in list(vars(module).items()):
                    if id(found) in new:
                        changed.append((module, name, found))
                        setattr(module, name, new[id(found)])
        try:
            yield
        finally:
            for owner, name, found in changed:
                setattr(owner, name, found)

    def _process(self, query: Any, end: float) -> None:  # noqa: ANN401
        def process() -> None:
            try:
                query.processAllAvailable()
            except Exception:  # noqa: BLE001 - the query has failed, and whoever waits is told
                return

        thread = threading.Thread(target=process, daemon=True)
        thread.start()
        thread.join(max(end - time.monotonic(), 0))
        if thread.is_alive():
            self._stop()
            message = (
                f"the query {query.name or query.id} still had input after {self._timeout:g} "
                "seconds: give run_until_idle a longer timeout, or the job a source that ends"
            )
            self._late = TimeoutError(message)
            raise self._late

    def _stop(self) -> None:
        for query in self._queries:
            query.stop()


def _newest(query: Any) -> tuple[str, int]:  # noqa: ANN401
    """The last micro-batch of a query that had rows."""
    numbers = (each["batchId"] for each in query.recentProgress if each["numInputRows"])
    return query.runId, max(numbers, default=-1)
