"""Run a job whose queries never end until they have read all input.

Such a job waits for its queries.  Where it begins to wait, the queries process what is there, and
are stopped; then the wait ends, as it does when an operator stops the job.
"""

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["Run", "running"]

_T = TypeVar("_T")

_RUNS: list["Run"] = []


def running() -> "Run | None":
    """The run of the job, if there is one."""
    return _RUNS[-1] if _RUNS else None


class Run:
    """One run of a job.

    Parameters
    ----------
    timeout : seconds for the queries to process their input, each time that the job waits.
    keeps_session : whether a session is there that the job must not stop.
    """

    def __init__(self, timeout: float, *, keeps_session: bool) -> None:
        self.keeps_session = keeps_session
        self._timeout = timeout
        self._queries: list[Any] = []
        self._reported = set[str]()
        self._looks: dict[str, int] = {}
        self._settling = threading.RLock()

    def __call__(self, job: Callable[[], _T]) -> _T | None:
        """Run the job to its end; its errors, and those of its queries, are raised."""
        _RUNS.append(self)
        try:
            try:
                found: _T | None = job()
            except SystemExit as error:
                if error.code:
                    raise
                found = None
            self.settle()
        finally:
            _RUNS.remove(self)
            self._stop()
        for query in self._queries:
            failure = query.exception()
            if failure is not None and query.runId not in self._reported:
                raise failure
        return found

    def note(self, query: Any) -> None:  # noqa: ANN401
        """Note a query that has begun."""
        self._queries.append(query)

    def wait(self, wait: Callable[[], _T]) -> _T:
        """Wait for a query as the job does, when all of them have processed their input."""
        self.settle()
        try:
            return wait()
        except BaseException:
            self._reported.update(each.runId for each in self._queries if each.exception())
            raise

    def look(self, query: Any, is_active: bool) -> bool:  # noqa: ANN401
        """Whether a query is active: a job that asks again waits for its end."""
        self._looks[query.runId] = self._looks.get(query.runId, 0) + is_active
        if is_active and self._looks[query.runId] > 1:
            self.settle()
            return False
        return is_active

    def settle(self) -> None:
        """Let all queries process their input, and stop them.

        One query may write what another one reads, so it ends when none of them has read more.

        Raises
        ------
        TimeoutError
            If input remains.
        """
        end = time.monotonic() + self._timeout
        with self._settling:
            before: list[Any] | None = None
            while before != (now := [_newest(each) for each in self._queries]):
                before = now
                for query in [*self._queries]:
                    self._process(query, end)
            self._stop()

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
            raise TimeoutError(message)

    def _stop(self) -> None:
        for query in self._queries:
            query.stop()


def _newest(query: Any) -> tuple[str, int]:  # noqa: ANN401
    """The last micro-batch of a query that had rows."""
    numbers = (each["batchId"] for each in query.recentProgress if each["numInputRows"])
    return query.runId, max(numbers, default=-1)
