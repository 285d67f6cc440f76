"""Scan a partition for an analysis: several threads, each a slice, and the parts put together."""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

from segmentlog.analysis.batch_stats import BatchStats
from segmentlog.analysis.record_sketch import COLUMNS, RecordSketch
from segmentlog.analysis.sample import Sample, Sampler
from segmentlog.analysis.sketch_pass import SketchPass
from segmentlog.cluster.directory_settings import known_losses
from segmentlog.errors import CorruptLogError, SegmentLogError, UnsupportedFormatError
from segmentlog.format.kernels import sketches
from segmentlog.format.records.read_memory import ReadMemory
from segmentlog.model import LogSlice, OffsetRange, OnCorruptBatch, ReadUpTo, ScanPolicy
from segmentlog.reads.log import Log
from segmentlog.reads.ordered_reads import cut_for_threads, n_threads_of
from segmentlog.reads.scan import scan_slice

logger = logging.getLogger(__name__)

# A sample of 32 KiB takes as long as the scan of some MiB, and Python makes it while no other
# thread runs: with a sample in each slice, two threads analyzed no more than one.
_SAMPLED = 4  #: of so many slices, one is sampled
_MOST_SAMPLED = 8  #: partitions of a topic of which more is taken


class Part:
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

    def merge(self, other: "Part") -> None:
        """Add the part that follows."""
        self.batches.merge(other.batches)
        self._add(other)

    def merge_beside(self, other: "Part") -> None:
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

    def _add(self, other: "Part") -> None:
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
    def from_json(cls, found: Mapping[str, Any]) -> "Part":
        """The inverse of `to_json`, of whole partitions."""
        part = cls(0, BatchStats.from_json(found["batches"]))
        part.records = RecordSketch.from_json(found["records"])
        part.sample = Sample.from_json(found["sample"])
        for name in _COUNTERS:
            setattr(part, name, int(found[name]))
        return part


_COUNTERS = ("n_bytes", "n_segments", "n_offsets", "n_deleted", "n_lost", "n_unreadable")


class ScannedPartition(NamedTuple):
    """A partition, its offsets, what was found in it, and what could not be read."""

    part: Part
    offsets: OffsetRange
    problems: tuple[str, ...]


def scan_partition(
    log: Log,
    now_ms: int,
    read_up_to: ReadUpTo = ReadUpTo.HIGH_WATERMARK,
    on_bytes: Callable[[int], object] = lambda _: None,
    *,
    use_threads: bool = True,
) -> ScannedPartition:
    """Read all records of a partition; damage ends nothing, and is one of the problems.

    Raises `SegmentLogError` if the partition cannot be read at all.
    """
    problems: list[str] = []
    offsets = log.bounds(
        read_up_to=read_up_to, on_corrupt_batch=OnCorruptBatch.SKIP, fail_on_data_loss=False
    )
    whole = Part(now_ms)
    whole.n_bytes, whole.n_segments = log.size_bytes, len(log.segments)
    whole.n_offsets = offsets.end_offset - offsets.start_offset
    whole.n_deleted = offsets.start_offset
    for lost in known_losses(log):
        begin = max(lost.start_offset, offsets.start_offset)
        whole.n_lost += max(0, min(lost.end_offset, offsets.end_offset) - begin)
        problems.append(str(lost))
    if log.lost_offsets:
        problems.append(str(log.lost_offsets))
    if log.lost_start:
        problems.append(str(log.lost_start))
    slices = cut_for_threads(log.slices, offsets)
    left = whole.n_bytes
    with ReadMemory() as memory:

        def read(number: int) -> tuple[Part, str]:
            def sampler() -> Sampler | None:
                if number % _SAMPLED:
                    return None
                takes_more = number == 0 and log.topic_partition.partition < _MOST_SAMPLED
                return Sampler(log.topic_partition, takes_more=takes_more)

            return _read(slices[number], now_ms, memory, sampler)

        n_threads = n_threads_of(use_threads=use_threads and len(slices) > 1)
        for each, (part, problem) in zip(
            slices, _in_order(read, len(slices), n_threads), strict=True
        ):
            whole.merge(part)
            if problem:
                problems.append(problem)
            done = min(each.n_bytes, left)  # slices share the batches at their bounds
            left -= done
            on_bytes(done)
    on_bytes(left)
    return ScannedPartition(whole, offsets, tuple(problems))


def _in_order(
    read: Callable[[int], tuple[Part, str]], n_slices: int, n_threads: int
) -> Iterator[tuple[Part, str]]:
    """The parts of the slices; no more of them are ahead than there are threads."""
    if n_threads == 1:
        yield from map(read, range(n_slices))
        return
    with ThreadPoolExecutor(n_threads, "segmentlog-analyze") as pool:
        waiting: deque[Future[tuple[Part, str]]] = deque()
        try:
            for number in range(n_slices):
                waiting.append(pool.submit(read, number))
                if len(waiting) > n_threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for each in waiting:
                each.cancel()


def _read(
    log_slice: LogSlice, now_ms: int, memory: ReadMemory, sampler: Callable[[], Sampler | None]
) -> tuple[Part, str]:
    """What is in a slice, and its damage, without which it is then read again."""
    try:
        return _read_with(log_slice, now_ms, memory, sampler(), OnCorruptBatch.FAIL), ""
    except CorruptLogError as error:
        problem: SegmentLogError = error
    except UnsupportedFormatError as error:
        part = Part(now_ms)
        part.n_unreadable = log_slice.end_offset - log_slice.start_offset
        return part, str(error)
    logger.info("%s: read again without bad batches: %s", log_slice.topic_partition, problem)
    try:
        part = _read_with(log_slice, now_ms, memory, sampler(), OnCorruptBatch.SKIP)
    except (CorruptLogError, UnsupportedFormatError):
        part = Part(now_ms)
    part.n_unreadable = max(
        0,
        log_slice.end_offset
        - log_slice.start_offset
        - part.n_records
        - part.batches.control_records,
    )
    return part, str(problem)


def _read_with(
    log_slice: LogSlice,
    now_ms: int,
    memory: ReadMemory,
    sampler: Sampler | None,
    on_corrupt_batch: OnCorruptBatch,
) -> Part:
    part = Part(now_ms, BatchStats(log_slice.offsets, sampler))
    policy = ScanPolicy(on_corrupt_batch=on_corrupt_batch, in_milliseconds=True)
    rows = scan_slice(
        log_slice, columns=COLUMNS, policy=policy, memory=memory, see=part.batches.see,
        one_pass=partial(SketchPass, part.records, part.batches),
    )  # fmt: skip
    for batch in rows:
        part.records.add(batch, log_slice.partition)
    part.batches.finish()
    if sampler is not None:
        part.sample = sampler.finish()
    return part
