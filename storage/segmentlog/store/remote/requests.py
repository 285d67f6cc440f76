"""Requests to a store, with a deadline: none waits for ever, and none fails for one lost packet.

Requests run in their own threads, which do not keep a process from ending.  Once a request is past
its deadline, another thread takes the place of its thread.  Without that, sixteen requests that
never end would be the last requests of their process.
"""

import atexit
import contextlib
import errno
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError, wait
from typing import Any, TypeVar

from segmentlog.errors import SegmentLogError, StorageError, store_code_in
from segmentlog.store.remote.location import without_secrets

#: Requests that a process has under way; more of them wait.
_THREADS = 32

#: Requests for the same bytes.  Each of them is repeated by the store's client as well (S3: three
#: times in all), so a store that is down for a moment goes unnoticed.
_TRIES = 2

_PAUSE_SECONDS = 0.2

#: Seconds until a request has to be answered in full, its repetitions included.
_DEADLINE_SECONDS = 120.0

#: Seconds that an ending process waits for requests under way.
_PATIENCE_SECONDS = 2.0

_FORBIDDEN = ("ACCESS_DENIED", "HTTP status 401", "HTTP status 403", "INVALID_ACCESS_KEY")

_REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EINVAL})

_A = TypeVar("_A")
_T = TypeVar("_T")


class _Threads:
    """Daemon threads that take work from one queue; `concurrent.futures` waits for its own."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.is_ending = False
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        # Under the lock, by those who ask, the threads that answer, and the end of the process.
        # Of `_unanswered`, a future that is done takes itself out, in whatever thread ends it.
        self._n_threads = 0
        self._unanswered: set[Future[Any]] = set()
        self._replaced: set[Future[Any]] = set()
        self._lock = threading.Lock()

    def submit(self, work: Callable[[], _T]) -> "Future[_T]":
        future: Future[_T] = Future()
        with self._lock:
            if self.is_ending:
                future.set_exception(_ended())
                return future
            self._unanswered.add(future)
            future.add_done_callback(self._unanswered.discard)
            if self._n_threads < _THREADS:
                self._n_threads += 1
                # The last function that is registered runs first, and the client of S3 registers
                # one when the first request loads it: that one waits for all its requests.
                atexit.unregister(end_requests)
                atexit.register(end_requests)
                self._start()
        self._work.put((future, work))
        return future

    def _start(self) -> None:
        threading.Thread(target=self._run, name="segmentlog store", daemon=True).start()

    def _run(self) -> None:
        _here.is_awaited = True
        while True:
            future, work = self._work.get()
            if future.set_running_or_notify_cancel():
                _answer(future, work)
            with self._lock:
                is_replaced = future in self._replaced
                self._replaced.discard(future)
            if is_replaced:
                return
            del future, work

    def give_up(self, future: "Future[Any]") -> None:
        """Start another thread in place of the one that runs a request; it ends if this does."""
        with self._lock:
            if not future.done() and future not in self._replaced and not self.is_ending:
                self._replaced.add(future)
                self._start()

    def end(self) -> None:
        """Begin no more requests, wait a moment for those under way, and answer the others."""
        with self._lock:
            self.is_ending = True
            unanswered = list(self._unanswered)
        under_way = [each for each in unanswered if not each.cancel()]
        wait(under_way, _PATIENCE_SECONDS)
        for each in under_way:
            with contextlib.suppress(InvalidStateError):
                each.set_exception(_ended())


def _answer(future: "Future[_T]", work: Callable[[], _T]) -> None:
    with contextlib.suppress(InvalidStateError):  # `_Threads.end` has answered
        try:
            found = work()
        except BaseException as error:  # noqa: BLE001 - raised where the answer is awaited
            future.set_exception(error)
        else:
            future.set_result(found)


def _ended() -> OSError:
    return OSError(errno.ECANCELED, "the process is ending")


_threads = _Threads()

_here = threading.local()  # `is_awaited`: whether somebody waits with a deadline for this thread


class _Waited(threading.Thread):
    """A daemon thread that does one piece of work after the other; see `in_time`."""

    def __init__(self) -> None:
        super().__init__(name="segmentlog request", daemon=True)
        self.given: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self.done: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        _here.is_awaited = True
        while (work := self.given.get()) is not None:
            try:
                answer: tuple[Any, BaseException | None] = work(), None
            except BaseException as error:  # noqa: BLE001 - raised by who waits
                answer = None, error
            self.done.put(answer)
            del work, answer


#: Any thread takes the last one, and puts it back: each of the two is one step for all threads.
_idle: list[_Waited] = []


def in_time(seconds: float, work: Callable[[], _T]) -> _T:
    """The result of some work; `TimeoutError` if it takes longer.

    A client in native code can be interrupted by nobody, and has waited for half an hour once.  So
    its request has a thread of its own, which is left to itself then.  In a thread for which
    somebody waits with a deadline, the work is just done.
    """
    if getattr(_here, "is_awaited", False):
        return work()
    try:
        thread = _idle.pop() if _idle else _Waited()
    except IndexError:  # another thread was quicker
        thread = _Waited()
    except RuntimeError:  # the process is ending, and no thread can be begun
        return work()
    thread.given.put(work)
    try:
        found, error = thread.done.get(timeout=seconds)
    except BaseException as late:  # also a user who interrupts
        thread.given.put(None)  # the end of the thread, once it has done the work
        if isinstance(late, queue.Empty):
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)) from None
        raise
    _idle.append(thread)
    if error is not None:
        raise error
    answer: _T = found
    return answer


def end_requests() -> None:
    """End the requests of a process that ends; later ones fail."""
    # A client in C++ that a request has under way is torn down with the process: one process in
    # six that ended during requests to Google Cloud Storage died of SIGSEGV. A request that takes
    # longer than `_PATIENCE_SECONDS` does not keep the process alive.
    if _threads.process == os.getpid():
        _threads.end()


class Pending:
    """A request under way, which nobody waits for yet.

    `what`: the request in words: "listing" or "reading bytes 0 to 61".  `work`: makes the request;
    it may be called again.
    """

    def __init__(self, path: str, what: str, work: Callable[[], Any]) -> None:
        global _threads  # noqa: PLW0603 - a forked process has none of the threads
        if _threads.process != os.getpid():
            _threads = _Threads()
        self._path, self._what = path, what
        self._ends = time.monotonic() + _DEADLINE_SECONDS
        self._future = _threads.submit(lambda: _repeated(work, self._ends))

    def result(self) -> Any:  # noqa: ANN401 - of any request
        """The answer.

        Raises `FileNotFoundError` if there is no such file or directory; `StorageError` if the
        request failed, or was not answered in time.
        """
        try:
            return self._future.result(max(self._ends - time.monotonic(), 0.0))
        except TimeoutError:
            if not self._future.done():
                if not self._future.cancel():
                    _threads.give_up(self._future)
                said = f"{self._what} took more than {_DEADLINE_SECONDS:g} s"
                raise StorageError(errno.ETIMEDOUT, said, self._path) from None
            raise self._failed(TimeoutError("timed out")) from None
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._path) from None
        except CancelledError:
            raise self._failed(_ended()) from None
        except SegmentLogError:
            raise
        except Exception as error:  # noqa: BLE001 - clients of stores raise errors of any kind
            raise self._failed(error) from None

    def cancel(self) -> None:
        """Forget the answer; a request that has not begun is not made."""
        self._future.cancel()

    def _failed(self, error: Exception) -> StorageError:
        text = without_secrets(str(error) or type(error).__name__)
        is_forbidden = isinstance(error, PermissionError) or any(
            each in text for each in _FORBIDDEN
        )
        number = errno.EACCES if is_forbidden else errno.EIO
        code = store_code_in(text)
        return StorageError(number, f"{self._what} failed: {text}", self._path, code)


def _repeated(work: Callable[[], _T], ends: float) -> _T:
    attempt = 0
    while True:
        attempt += 1
        try:
            return work()
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            raise
        except OSError as error:
            is_last = attempt >= _TRIES or time.monotonic() > ends or _threads.is_ending
            is_last |= error.errno in _REFUSED
            if is_last or any(each in str(error) for each in _FORBIDDEN):
                raise
        time.sleep(_PAUSE_SECONDS)


def side_by_side(work: Callable[[_A], _T], given: Sequence[_A], most: int = _THREADS) -> list[_T]:
    """Results of `work`, which waits for requests, in order; an error comes once all has ended.

    `most`: requests at once.
    """
    from concurrent.futures import ThreadPoolExecutor

    most = min(most, len(given))
    if most < 2:
        return [work(each) for each in given]
    with ThreadPoolExecutor(most - 1, "segmentlog plan") as threads:
        futures = [threads.submit(work, each) for each in given[:-1]]
        last = work(given[-1])  # this thread would only wait: another one takes longer to begin
        return [*(each.result() for each in futures), last]


def request(path: str, what: str, work: Callable[[], _T]) -> _T:
    """Make a request, and wait for its answer; see `Pending.result` for errors."""
    found: _T = Pending(path, what, work).result()
    return found
