"""Scan partitions for an analysis: several threads, each a slice, and the parts put together."""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from segmentlog.analysis.batch_stats import BatchStats
from segmentlog.analysis.record_sketch import COLUMNS, RecordSketch
from segmentlog.analysis.sample import Sample, Sampler
from segmentlog.analysis.sketch_pass import SketchPass
from segmentlog.cluster.known_losses import known_losses
from segmentlog.errors import (
    CorruptCheckpointError,
    CorruptLogError,
    SegmentLogError,
    StorageError,
    UnsupportedFormatError,
)
from segmentlog.format.kernels import sketches
from segmentlog.format.records.one_pass import ReadMemory
from segmentlog.model import (
    LogSlice,
    OffsetRange,
    OnCorruptBatch,
    ReadUpTo,
    ScanPolicy,
    TopicPartition,
)
from segmentlog.reads.log import Log
from segmentlog.reads.log_directory import LogDirectory
from segmentlog.reads.ordered_reads import cut_for_threads, n_threads_of
from segmentlog.reads.scan import cut_around, scan_slice
from segmentlog.store.system_errors import is_gone, storage_error

logger = logging.getLogger(__name__)

# A sample of 32 KiB takes as long as the scan of some MiB, and Python makes it while no other
# thread runs: with a sample in each slice, two threads analyzed no more than one.
_SAMPLED = 4  #: of so many slices, one is sampled
_MOST_SAMPLED = 8  #: partitions of a topic of which more is taken


class ScannedPart:
    """What was found in a part of a log: in a slice, a partition, or several partitions.

    `n_bytes`: of its files.  `n_deleted`, `n_lost`: offsets before its start, and in segments that
    are gone.  `n_unreadable`: offsets of damaged slices that are in no record.
    """

    def __init__(self, now_ms: int, batches: BatchStats | None = None) -> None:
        self.records = RecordSketch(now_ms)
        self.batches = batches or BatchStats(OffsetRange(0, 0))
        self.sample = Sample()
        self.n_bytes = self.n_segments = 0
        self.n_offsets = self.n_deleted = self.n_lost = self.n_unreadable = 0

    def merge(self, other: "ScannedPart") -> None:
        """Add the part that follows."""
        self.batches.merge(other.batches)
        self._add(other)

    def merge_beside(self, other: "ScannedPart") -> None:
        """Add a part of another partition, whose order says nothing about the order of this."""
        n_back, most_back = (
            self.records[each] + other.records[each]
            for each in (sketches.N_BACK, sketches.MOST_BACK_MS)
        )
        most_back = max(self.records[sketches.MOST_BACK_MS], other.records[sketches.MOST_BACK_MS])
        self.batches.merge_beside(other.batches)
        self._add(other)
        self.records.counters[sketches.N_BACK] = n_back
        self.records.counters[sketches.MOST_BACK_MS] = most_back

    def _add(self, other: "ScannedPart") -> None:
        self.records.merge(other.records)
        self.sample.merge(other.sample)
        for name in _COUNTERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def n_records(self) -> int:
        """The number of records."""
        return self.records[sketches.N_RECORDS]

    @property
    def n_removed(self) -> int:
        """Offsets of which nothing explains that they are gone, except compaction."""
        known = self.n_records + self.batches.control_records + self.n_lost + self.n_unreadable
        return max(0, self.n_offsets - known)

    def to_json(self) -> dict[str, Any]:
        """All of it, for another process; `from_json` is the inverse."""
        found: dict[str, Any] = {name: getattr(self, name) for name in _COUNTERS}
        for name in ("records", "batches", "sample"):
            found[name] = getattr(self, name).to_json()
        return found

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "ScannedPart":
        """The inverse of `to_json`, of whole partitions."""
        part = cls(0, BatchStats.from_json(found["batches"]))
        part.records = RecordSketch.from_json(found["records"])
        part.sample = Sample.from_json(found["sample"])
        for name in _COUNTERS:
            setattr(part, name, int(found[name]))
        return part


_COUNTERS = ("n_bytes", "n_segments", "n_offsets", "n_deleted", "n_lost", "n_unreadable")


class ScannedPartition(NamedTuple):
    """A partition, its offsets, what was found in it, and what could not be read.

    `log` is None, and nothing was found, if an error ended the scan.
    """

    partition: int
    part: ScannedPart
    offsets: OffsetRange
    n_not_read: int
    problems: tuple[str, ...]
    log: Log | None


def scan_partitions(
    directory: LogDirectory,
    partitions: Sequence[TopicPartition],
    now_ms: int,
    read_up_to: ReadUpTo = ReadUpTo.HIGH_WATERMARK,
    on_bytes: Callable[[int], object] = lambda _: None,
    *,
    use_threads: bool = True,
) -> Iterator[ScannedPartition]:
    """Read all records of partitions, in their order; an error is one of the problems of its own.

    `on_bytes` is called with the bytes of ``.log`` files done since the last call.
    """
    n_threads = n_threads_of(use_threads=use_threads)
    with ReadMemory() as memory, ThreadPoolExecutor(n_threads, "segmentlog-analyze") as pool:

        def begun() -> Iterator[tuple[_Scan, Future[_Read] | None]]:
            # While threads read, this one plans the next partition, which takes an eighth of the
            # time of a scan.
            for each in partitions:
                scan = _Scan(directory, each, now_ms, read_up_to, is_last=each is partitions[-1])
                for number in range(len(scan.slices)):
                    if scan.has_failed:
                        break
                    read = partial(scan.read, number, memory)
                    yield scan, pool.submit(read) if n_threads > 1 else _at_once(read)
                yield scan, None

        steps = begun()
        ahead = deque(islice(steps, n_threads + 1))
        try:
            while ahead:
                scan, read = ahead.popleft()
                if read is not None:
                    scan.add(read, on_bytes)
                else:
                    yield scan.finish(on_bytes)
                ahead.extend(islice(steps, 1))
        finally:
            for _, read in ahead:
                if read is not None:
                    read.cancel()


_Read = tuple[ScannedPart, str]  # what is in a slice, and its damage


def _at_once(read: Callable[[], _Read]) -> Future[_Read]:
    """What `read` does, in this thread."""
    done: Future[_Read] = Future()
    try:
        done.set_result(read())
    except (SegmentLogError, OSError) as error:
        done.set_exception(error)
    return done


class _Scan:
    """The scan of one partition, slice by slice."""

    def __init__(
        self,
        directory: LogDirectory,
        topic_partition: TopicPartition,
        now_ms: int,
        read_up_to: ReadUpTo,
        *,
        is_last: bool,
    ) -> None:
        self._topic_partition, self._now_ms = topic_partition, now_ms
        self._whole, self._offsets, self._n_not_read = ScannedPart(now_ms), OffsetRange(0, 0), 0
        self._problems: list[str] = []
        self._log: Log | None = None
        self._left = 0
        self.has_failed = False
        self.slices: list[LogSlice] = []
        try:
            try:
                self._plan(directory.log(*topic_partition), read_up_to, is_last=is_last)
            except CorruptCheckpointError as error:
                self._problems.append(f"{error}; the whole log was analyzed")
                log = directory.log_without_checkpoints(topic_partition)
                self._plan(log, ReadUpTo.LOG_END, is_last=is_last)
        except (SegmentLogError, OSError) as error:
            self._fail(error)

    def _plan(self, log: Log, read_up_to: ReadUpTo, *, is_last: bool) -> None:
        self._left = log.size_bytes
        offsets = log.bounds(
            read_up_to=read_up_to, on_corrupt_batch=OnCorruptBatch.SKIP, fail_on_data_loss=False
        )
        whole = self._whole
        whole.n_bytes, whole.n_segments = self._left, len(log.segments)
        whole.n_offsets = offsets.end_offset - offsets.start_offset
        whole.n_deleted = offsets.start_offset
        for lost in known_losses(log):
            begin = max(lost.start_offset, offsets.start_offset)
            whole.n_lost += max(0, min(lost.end_offset, offsets.end_offset) - begin)
            self._problems.append(str(lost))
        if log.lost_offsets:
            self._problems.append(str(log.lost_offsets))
        self.slices = cut_for_threads(log.slices, offsets, is_last=is_last)
        self._log, self._offsets = log, offsets
        self._n_not_read = max(0, log.log_end_offset - offsets.end_offset)

    def _fail(self, error: SegmentLogError | OSError) -> None:
        self.has_failed = True
        self._log, self._whole, self._offsets = None, ScannedPart(self._now_ms), OffsetRange(0, 0)
        self._n_not_read = 0
        self._problems.append(told(error, self._topic_partition))

    def read(self, number: int, memory: ReadMemory) -> _Read:
        """What is in a slice, in any thread."""

        def sampler() -> Sampler | None:
            if number % _SAMPLED:
                return None
            takes_more = number == 0 and self._topic_partition.partition < _MOST_SAMPLED
            return Sampler(self._topic_partition, takes_more=takes_more)

        return _read(self.slices[number], self._now_ms, memory, sampler)

    def add(self, read: Future[_Read], on_bytes: Callable[[int], object]) -> None:
        """Add the next slice."""
        try:
            part, problem = read.result()
        except (SegmentLogError, OSError) as error:
            if not self.has_failed:
                self._fail(error)
            return
        if self.has_failed:  # a slice before it
            return
        self._whole.merge(part)
        if problem:
            self._problems.append(problem)
        done = min(part.batches.n_bytes, self._left)  # the log may have grown since it was listed
        self._left -= done
        on_bytes(done)

    def finish(self, on_bytes: Callable[[int], object]) -> ScannedPartition:
        """The partition, of which all slices were added."""
        on_bytes(self._left)
        number, problems = self._topic_partition.partition, tuple(self._problems)
        return ScannedPartition(
            number, self._whole, self._offsets, self._n_not_read, problems, self._log
        )


def told(error: SegmentLogError | OSError, each: TopicPartition) -> str:
    """The message of an error that ends what is done with a partition."""
    if isinstance(error, SegmentLogError):
        return str(error)
    if is_gone(error):
        return f"{each} was removed while it was analyzed"
    return str(storage_error(error))


def _read(
    log_slice: LogSlice, now_ms: int, memory: ReadMemory, sampler: Callable[[], Sampler | None]
) -> tuple[ScannedPart, str]:
    """What is in a slice, and the first damage in it, without which it is then read again."""
    parts, problem, on_corrupt = list[ScannedPart](), "", OnCorruptBatch.FAIL
    rest = deque([log_slice])
    while rest:
        piece = rest.popleft()
        try:
            parts.append(_read_with(piece, now_ms, memory, sampler(), on_corrupt))
        except CorruptLogError as error:
            problem = problem or str(error)
            if on_corrupt is OnCorruptBatch.FAIL:
                logger.info(
                    "%s: read again without bad batches: %s", log_slice.topic_partition, error
                )
                on_corrupt = OnCorruptBatch.SKIP
                rest.appendleft(piece)
        except (UnsupportedFormatError, StorageError) as error:
            problem = problem or str(error)
            rest.extendleft(reversed(cut_around(piece, error)))
    whole, *others = parts or [ScannedPart(now_ms)]
    for each in others:
        whole.merge(each)
    if problem:
        n_found = whole.n_records + whole.batches.control_records
        n_offsets = log_slice.end_offset - log_slice.start_offset
        whole.n_unreadable = max(0, n_offsets - n_found)
    return whole, problem


def _read_with(
    log_slice: LogSlice,
    now_ms: int,
    memory: ReadMemory,
    sampler: Sampler | None,
    on_corrupt_batch: OnCorruptBatch,
) -> ScannedPart:
    part = ScannedPart(now_ms, BatchStats(log_slice.offsets, sampler))
    policy = ScanPolicy(on_corrupt_batch=on_corrupt_batch, in_milliseconds=True)
    rows = scan_slice(
        log_slice,
        columns=COLUMNS,
        policy=policy,
        memory=memory,
        see=part.batches.see,
        one_pass=partial(SketchPass, part.records, part.batches),
    )
    for batch in rows:
        part.records.add(batch, log_slice.partition)
    part.batches.finish()
    if sampler is not None:
        part.sample = sampler.finish()
    return part
