"""Reads slices on several threads, and hands out their batches in the order of the slices."""

import atexit
import errno
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from segmentlog.errors import StorageError
from segmentlog.format.records.columns import n_bytes_of
from segmentlog.model import LogSlice, OffsetRange
from segmentlog.store.readable import is_url
from segmentlog.store.remote.requests import end_requests

Read = Callable[[], Iterator[pa.RecordBatch]]

_MOST_THREADS = 8  # more of them would wait for the consumer

#: Smaller slices are dominated by overhead.  Larger ones buffer too much, or stall their threads:
#: with 64 MiB of zstd in a slice, two threads took as long as one.
_SLICE_BYTES = 16 << 20
_FAR_SLICE_BYTES = 64 << 20  # in a store, where the look-up of an end takes several requests
_MOST_SLICES = 1_000  # of a partition: a filter is compared with each

_LAST_PIECES, _LEAST_BYTES = 4, 1 << 20  # pieces of each of the last slices, and their bytes

#: Most bytes of rows that all threads together hold ahead, apart from one batch for each thread.
#: A slice of zstd becomes 70 MiB and more.  With 40, 48, 56 and 64 MiB, two threads read it
#: equally quickly, in 155 to 187, 143 to 190, 156 to 188 and 163 to 230 MB; with 128 MiB in 80 MB
#: more.
_AHEAD_BYTES = 48 << 20


class _Reads:
    """Slices that threads have read and that the consumer has not taken yet.

    Each thread reads the first slice that no thread reads.  The consumer does so, too, instead of
    waiting for a batch.  If it only waited, we would need one more thread, and they would contend
    for cores. Memory is bounded, because a slice is not begun if it is further ahead of the
    consumer than the number of threads.
    """

    def __init__(self, reads: Iterator[Read], n_threads: int) -> None:
        self._reads = reads
        self._n_threads = n_threads
        self._ahead_bytes = _AHEAD_BYTES // n_threads
        self.process = os.getpid()
        # The threads and the consumer change what follows under `_changed`; only the consumer sets
        # `_own`.
        self._changed = threading.Condition()
        self._queues: dict[int, _Queue] = {}
        self._n_begun = 0
        self._current = 0  # the slice of which the consumer takes
        self._is_last_begun = False
        self._is_closed = False
        self._own: _Queue | None = None  # the slice that the consumer reads
        self._threads = [
            threading.Thread(target=self._work, name=f"segmentlog-{i}", daemon=True)
            for i in range(1, n_threads)
        ]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All batches, in order; closing it ends the threads."""
        _under_way.add(self)
        try:
            for each in self._threads:
                each.start()
            while (queue := self._next_queue()) is not None:
                while (batch := self._take(queue)) is not None:
                    yield batch
        finally:
            self.close()

    def close(self) -> None:
        """End the threads; a slice is left at the next batch."""
        if self.process == os.getpid():  # a forked process has no threads, and perhaps a held lock
            self.begin_to_close()
            # The garbage collector may close an iterator in one of its own threads, under the lock
            # that the other threads need to end: then no thread is waited for.
            if threading.current_thread() in self._threads:
                return
            for each in self._threads:
                if each.is_alive():  # not if it could not be started
                    each.join()

    def begin_to_close(self) -> None:
        """Tell the threads to end."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _refuse_in_fork(self) -> None:
        """Raise an error in a forked process: it has no threads, and would wait for ever."""
        if self.process != os.getpid():
            reason = "a forked process does not have the reading threads of its parent"
            raise StorageError(errno.EDEADLK, reason)

    def _next_queue(self) -> "_Queue | None":
        """The queue of the next slice, or None after the last."""
        self._refuse_in_fork()
        with self._changed:
            i = self._current
            if i not in self._queues and not self._is_closed and not self._is_last_begun:
                self._own = self._begin_next()
            if i not in self._queues and not self._is_last_begun:
                raise _ended()
            return self._queues.pop(i, None)

    def _take(self, queue: "_Queue") -> pa.RecordBatch | None:
        """The next batch of a slice, or None after its last."""
        self._refuse_in_fork()
        while not queue.batches and not queue.is_done and self._read_one():
            pass
        with self._changed:
            self._changed.wait_for(lambda: queue.batches or queue.is_done or self._is_closed)
            if queue.batches:
                batch, n_bytes = queue.batches.popleft()
                queue.n_bytes -= n_bytes
            elif queue.error is not None:
                raise queue.error
            elif not queue.is_done:
                raise _ended()
            else:
                batch = None
                self._current += 1
            self._changed.notify_all()
            return batch

    def _read_one(self) -> bool:
        """Read a batch of the consumer's slice; False if there is no room for one."""
        with self._changed:
            if self._is_closed:
                return False
            if self._own is None or self._own.is_done:
                self._own = self._begin_next() if self._is_near() else None
            own = self._own
            if own is None or own.n_bytes >= self._ahead_bytes:
                return False
        self._advance(own)
        return True

    def _work(self) -> None:
        queue = self._begin()
        while queue is not None and self._read(queue):
            queue = self._begin()

    def _read(self, queue: "_Queue") -> bool:
        """Read a slice to its end; False if nobody wants more."""
        while not queue.is_done:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._is_closed or queue.n_bytes < self._ahead_bytes
                )
                if self._is_closed:
                    return False
            self._advance(queue)
        return True

    def _advance(self, queue: "_Queue") -> None:
        """Read a batch of a slice, or note its end or its error."""
        batch, n_bytes = None, 0
        try:
            batch = queue.next_batch()
            n_bytes = 0 if batch is None else n_bytes_of(batch)
        except BaseException as error:
            if queue is self._own and not isinstance(error, Exception):
                raise  # the user interrupts the consumer
            queue.error = error
        with self._changed:
            if batch is None:
                queue.is_done = True
            else:
                queue.batches.append((batch, n_bytes))
                queue.n_bytes += n_bytes
            self._changed.notify_all()

    def _begin(self) -> "_Queue | None":
        """The slice to read next, once the consumer is near enough; None at the end."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_closed or self._is_last_begun or self._is_near()
            )
            if self._is_closed or self._is_last_begun:
                return None
            return self._begin_next()

    def _is_near(self) -> bool:
        """Whether the consumer is near enough for another slice to be begun."""
        return not self._is_last_begun and self._n_begun <= self._current + self._n_threads

    def _begin_next(self) -> "_Queue | None":
        """The slice to read next; None if there is none.  The caller has the lock."""
        try:
            read = next(self._reads, None)
        except BaseException as error:  # noqa: BLE001 - the consumer raises it
            read = None
            self._queues[self._n_begun] = _Queue(lambda: iter(()), error=error, is_done=True)
        self._changed.notify_all()
        if read is None:
            self._is_last_begun = True
            return None
        queue = self._queues[self._n_begun] = _Queue(read)
        self._n_begun += 1
        return queue


def _ended() -> StorageError:
    """The error of a consumer at the end of the interpreter: it would wait for ever."""
    return StorageError(errno.ECANCELED, "reading ahead has ended, because the process is ending")


#: Reads whose threads live.
_under_way: weakref.WeakSet[_Reads] = weakref.WeakSet()


@atexit.register
def _end_threads() -> None:
    """End the threads of iterators that nobody has closed, while there is an interpreter."""
    # They are daemon threads, since the interpreter waits for others before it gets here, and
    # these wait for their consumers. But an ending interpreter freezes daemon threads, and then
    # waits for them as soon as it closes the iterator: one process in three never ended.
    under_way = [each for each in _under_way if each.process == os.getpid()]
    for each in under_way:
        each.begin_to_close()
    if under_way:
        end_requests()  # a thread may wait for one
    for each in under_way:
        each.close()


@dataclass(eq=False)
class _Queue:
    """One slice that a thread reads."""

    read: Read
    batches: deque[tuple[pa.RecordBatch, int]] = field(default_factory=deque)  # and their bytes
    n_bytes: int = 0
    error: BaseException | None = None
    is_done: bool = False
    _rows: Iterator[pa.RecordBatch] | None = None

    def next_batch(self) -> pa.RecordBatch | None:
        """The next batch of the slice, which one thread reads; None at its end."""
        if self._rows is None:
            self._rows = self.read()
        return next(self._rows, None)


def cut_for_threads(
    cut: Callable[[int, int, int], list[LogSlice]], offsets: OffsetRange, *, is_last: bool = True
) -> list[LogSlice]:
    """The slices of one partition, large enough to be worth a look-up of their ends.

    Cutting twice costs two look-ups: only the one slice shows how many bytes there are.

    `is_last`: whether threads find no slice after these.  Then the last slices are smaller, so
    that the threads end together: of 170 MB of zstd, one thread read the last slice for a tenth of
    the time, while the other thread had nothing to read.
    """
    whole = cut(*offsets, 0)
    n_bytes = sum(each.n_bytes for each in whole)
    is_far = any(is_url(each.files[0].path) for each in whole[:1])
    most_bytes = max(_FAR_SLICE_BYTES if is_far else _SLICE_BYTES, n_bytes // _MOST_SLICES)
    if n_bytes <= most_bytes:
        return whole
    slices = cut(*offsets, most_bytes)
    if not is_last or is_far:
        return slices
    n_threads = n_threads_of(use_threads=True)
    return slices[:-n_threads] + [
        piece
        for each in slices[-n_threads:]
        for piece in cut(*each.offsets, max(each.n_bytes // _LAST_PIECES, _LEAST_BYTES))
    ]


def n_threads_of(*, use_threads: bool) -> int:
    """How many threads may read side by side."""
    return min(pa.cpu_count(), _MOST_THREADS) if use_threads else 1


def read_in_order(reads: Iterable[Read], n_threads: int) -> Iterator[pa.RecordBatch]:
    """Batches of all `reads`, in their order; the result is the same on any number of threads.

    `reads`: each begins to read one slice.  `n_threads`: how many are read side by side; the
    calling thread reads, too.  At most ``n_threads + 1`` slices are in memory, each with at most
    ``48 / n_threads`` MiB of batches and one batch more.  Closing the iterator ends the threads.
    """
    if n_threads > 1:
        return _Reads(iter(reads), n_threads).batches()
    return (batch for read in reads for batch in read())
