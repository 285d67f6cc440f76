"""Slices that are read side by side: order, errors, an early end, and a bound on memory."""

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from segmentlog.errors import StorageError
from segmentlog.model import LogSlice, OffsetRange, SliceFile
from segmentlog.reads import ordered_reads
from segmentlog.reads.ordered_reads import cut_for_threads, read_in_order


def batch(number: int) -> pa.RecordBatch:
    """A batch with one row."""
    return pa.record_batch({"number": pa.array([number])})


def reading(numbers: range, begun: list[int] | None = None, pause: float = 0) -> Callable:
    """A slice that yields its numbers one by one."""

    def read() -> Iterator[pa.RecordBatch]:
        for each in numbers:
            if begun is not None:
                begun.append(each)
            time.sleep(pause)
            yield batch(each)

    return read


def numbers(batches: Iterator[pa.RecordBatch]) -> list[int]:
    """All numbers, in order."""
    return [each["number"][0].as_py() for each in batches]


def alive() -> list[str]:
    """Threads of reads that are alive."""
    names = [each.name for each in threading.enumerate()]
    return [each for each in names if re.match(r"segmentlog-\d", each)]


def cut_bytes(start: int, end: int, most_bytes: int, path: str = "") -> list[LogSlice]:
    """Slices of a log in which each offset has one byte; see `Log.slices`."""
    step = most_bytes or end - start
    bounds = [(each, min(each + step, end)) for each in range(start, end, step)]
    return [
        LogSlice("t", 0, begin, after, (SliceFile(path, begin, after, begin, 0),))
        for begin, after in bounds
    ]


def test_the_last_slices_of_a_read_are_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise one thread reads the last one, and the others wait."""
    monkeypatch.setattr(ordered_reads, "n_threads_of", lambda *, use_threads: 2)
    slice_bytes = 16 << 20
    offsets = OffsetRange(0, 5 * slice_bytes)

    slices = cut_for_threads(cut_bytes, offsets)
    others = cut_for_threads(cut_bytes, offsets, is_last=False)

    assert [slice_bytes] * 3 + [slice_bytes // 4] * 8 == [each.n_bytes for each in slices]
    assert [slice_bytes] * 5 == [each.n_bytes for each in others]
    for found in (slices, others):
        ends = [0, *(each.end_offset for each in found)]
        assert ends[:-1] == [each.start_offset for each in found]
        assert offsets.end_offset == ends[-1]
    assert 1 == len(cut_for_threads(cut_bytes, OffsetRange(0, slice_bytes)))
    far = cut_for_threads(partial(cut_bytes, path="s3://bucket/t-0/0.log"), offsets)
    # A look-up there takes requests.
    assert [4 * slice_bytes, slice_bytes] == [each.n_bytes for each in far]


@pytest.mark.parametrize("n_threads", [1, 2, 8])
def test_batches_come_in_the_order_of_the_slices(n_threads: int) -> None:
    """The order is that of the slices, although later slices are read faster."""
    reads = [reading(range(10 * i, 10 * i + 10), pause=0.005 / (i + 1)) for i in range(9)]
    empty = [reading(range(0))]

    assert [*range(90)] == numbers(read_in_order(empty + reads + empty, n_threads))
    assert [] == numbers(read_in_order([], n_threads))
    assert [] == alive()


def test_a_consumer_that_would_wait_reads_slices_itself() -> None:
    """The other thread does not end its slice before the consumer has read one."""
    is_read = threading.Event()
    consumer = threading.current_thread()

    def read() -> Iterator[pa.RecordBatch]:
        if threading.current_thread() is consumer:
            is_read.set()
        assert is_read.wait(timeout=60)
        yield batch(0)

    assert [0] * 9 == numbers(read_in_order([read] * 9, 2))
    assert is_read.is_set()


def test_an_interrupt_ends_a_consumer_that_reads_at_once() -> None:
    """It does not wait until the slice that was interrupted has its turn."""
    consumer = threading.current_thread()

    def read() -> Iterator[pa.RecordBatch]:
        if threading.current_thread() is consumer:
            raise KeyboardInterrupt
        while True:  # without the interrupt, this slice would not end
            yield batch(0)

    batches = read_in_order([read] * 9, 2)
    with pytest.raises(KeyboardInterrupt):
        numbers(batches)
    assert [] == alive()


@pytest.mark.parametrize("n_threads", [1, 2, 8])
def test_an_error_comes_in_its_place(n_threads: int) -> None:
    """An error is raised after the batches before it, even if finding the slices fails."""

    def failing() -> Iterator[pa.RecordBatch]:
        yield batch(10)
        message = "of the disk"
        raise OSError(message)

    def finding() -> Iterator[Callable]:
        yield reading(range(10))
        message = "of the listing"
        raise ValueError(message)

    slices = [reading(range(10)), failing, reading(range(11, 20))]
    for reads, error, expected in ((slices, OSError, 11), (finding(), ValueError, 10)):
        found = []
        batches = read_in_order(reads, n_threads)
        with pytest.raises(error, match="of the"):
            found.extend(each["number"][0].as_py() for each in batches)
        assert [*range(expected)] == found
        assert [] == alive()


def test_threads_end_when_nobody_wants_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads end when the iterator is closed.

    Until then they read a bounded number of bytes ahead.
    """
    monkeypatch.setattr(ordered_reads, "_AHEAD_BYTES", 2 * 3 * batch(0).nbytes)
    begun: list[int] = []
    reads = [reading(range(100 * i, 100 * i + 100), begun) for i in range(50)]
    batches = read_in_order(reads, 2)

    assert [0, 1, 2] == [next(batches)["number"][0].as_py() for _ in range(3)]
    time.sleep(0.2)
    assert {0, 1} >= {each // 100 for each in begun}
    assert len(begun) <= 3 + 2 * 5
    batches.close()
    assert [] == alive()
    assert len(begun) <= 3 + 2 * 6


def test_small_slices_are_not_read_far_ahead() -> None:
    """Only a few more slices than there are threads are read to their ends."""
    begun: list[int] = []
    batches = read_in_order([reading(range(i, i + 1), begun) for i in range(50)], 2)

    assert [0, 1] == [next(batches)["number"][0].as_py() for _ in range(2)]
    time.sleep(0.2)
    assert len(begun) <= 2 + 2 + 1
    assert [*range(2, 50)] == numbers(batches)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_forked_process_continues_with_an_error_or_drops_the_iterator(goes_on: bool) -> None:
    """A forked process has none of the threads, and the lock may be held there for ever."""
    batches = read_in_order([reading(range(3))] * 4, 2)
    next(batches)
    lock = batches.gi_frame.f_locals["self"]._changed
    is_held, ends = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            is_held.set()
            ends.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    is_held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        code = 1
        try:
            if goes_on:
                with pytest.raises(StorageError, match=r"forked.*: open the directory"):
                    next(batches)
            batches.close()
            ordered_reads._end_threads()
            code = 7
        finally:
            os._exit(code)
    ends.set()
    holder.join()

    assert 7 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert 11 == len(numbers(batches))


def test_a_thread_that_cannot_begin_leaves_no_other_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A user may have a limited number of threads.

    If one cannot begin, the other threads end with the error.
    """
    start, n_begun = threading.Thread.start, 0

    def begin(thread: threading.Thread) -> None:
        nonlocal n_begun
        n_begun += 1
        if n_begun == 3:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", begin)
    batches = read_in_order([reading(range(10))] * 9, 4)

    with pytest.raises(RuntimeError, match="can't start"):
        next(batches)
    assert [] == alive()


def test_an_iterator_that_its_own_thread_collects_is_closed() -> None:
    """The collector may run in any thread, even in one that holds the lock.

    No thread waits for itself.
    """
    held: list[Iterator[pa.RecordBatch]] = []
    is_dropped, is_closed = threading.Event(), threading.Event()

    class Collecting:
        """A batch whose size is looked at while the lock is held."""

        type = pa.int64()

        @property
        def columns(self) -> "list[Collecting]":
            return [self]

        @property
        def nbytes(self) -> int:
            if is_dropped.is_set() and held:
                held.pop().close()  # as the collector closes it
                is_closed.set()
            return 1

    def read() -> Iterator[Any]:
        yield Collecting()
        is_dropped.wait(10)
        yield Collecting()

    held.append(read_in_order([read] * 2, 2))
    next(held[0])
    is_dropped.set()

    assert is_closed.wait(10)
    for each in threading.enumerate():
        if each.name.startswith("segmentlog-"):
            each.join(10)
    assert [] == alive()


def test_a_read_that_an_ending_process_continues_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The threads of an ending process have ended.

    A function that reads at exit would wait for ever.
    """
    batches = read_in_order([reading(range(100), pause=0.001)] * 9, 2)
    next(batches)
    monkeypatch.setattr(ordered_reads, "end_requests", lambda: None)
    ordered_reads._end_threads()

    with pytest.raises(StorageError, match="the process is ending: finish the read before"):
        numbers(batches)
    assert [] == alive()
