"""Which logs compaction may clean now, up to where, and whether they are due.

As Kafka's ``LogCleanerManager`` decides it::

    log start       first dirty offset      end offset                        log end
    |  clean        |  dirty, cleanable     |  dirty, not cleanable yet       |

The clean part was compacted before: ``cleaner-offset-checkpoint`` has the offset where it ends.
The dirty part is cleanable up to the first of these: the last stable offset, which is never
beyond the high watermark; the active segment; the first segment with a record that is younger than
``min.compaction.lag.ms``.  It ends where a segment begins.

A log is due if the cleanable share of its bytes is above ``min.cleanable.dirty.ratio``, or if its
oldest dirty record is older than ``max.compaction.lag.ms``.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from segmentlog.format.topic_config import TopicConfig
from segmentlog.log.segment import Segment
from segmentlog.model import TopicPartition
from segmentlog.reads.log import Log
from segmentlog.reads.log_directory import open_log_dir
from segmentlog.store.system_errors import Failures

#: Bytes of an entry in Kafka's offset map, and in ours: a hash of 16 bytes, and an offset.
ENTRY_BYTES = 24


class CompactedPartition(NamedTuple):
    """The result of compacting a partition, or of a dry run.

    Attributes
    ----------
    first_dirty_offset : where the part of the log began that had not been compacted.
    clean_to : where it begins now; in a dry run, where it would begin at best.
    dirty_ratio : its cleanable bytes, divided by its clean and cleanable bytes together.
    n_passes : how often the log was gone through; 0 in a dry run.
    segments_before, segments_after, bytes_before, bytes_after, records_before, records_after : of
        the segments that were read; a dry run knows only `segments_before` and `bytes_before`, and
        the others are -1.
    records_without_key : records that went because they had no key.
    """

    topic: str
    partition: int
    first_dirty_offset: int
    clean_to: int
    dirty_ratio: float
    n_passes: int = 0
    segments_before: int = -1
    segments_after: int = -1
    bytes_before: int = -1
    bytes_after: int = -1
    records_before: int = -1
    records_after: int = -1
    records_without_key: int = -1


class CleanerConfig(NamedTuple):
    """What is the same for all logs of a compaction; it can be pickled."""

    dedupe_buffer_bytes: int  # memory for the keys of a pass
    load_factor: float  # share of this memory that is used
    #: time after which a producer is no longer active (``producer.id.expiration.ms``)
    producer_expiration_ms: int
    now_ms: int  # the time by which ages are computed (epoch)
    keeps_last_batch: bool  # whether each pass keeps the batch at its end, as up to Kafka 4.3


class LogToClean(NamedTuple):
    """The cleanable part of a log, and all that is needed to clean it; it can be pickled."""

    topic_partition: TopicPartition
    first_dirty_offset: int  # where the part begins
    end_offset: int  # base of the segment at which it ends
    #: of the segments before it, and in it.  A segment that is partly clean counts in both, as
    #: with a broker.
    clean_bytes: int
    cleanable_bytes: int
    #: of the segments that a pass over all of it goes through
    n_segments: int
    n_bytes: int
    config: TopicConfig
    checkpoint: int | None  # its entry in ``cleaner-offset-checkpoint``
    #: the bounds of the log, which do not move while the lock is held
    log_start: int
    high_watermark: int | None
    is_overdue: bool  # whether a record is older than ``max.compaction.lag.ms``
    #: whether the checkpoint has an offset that the log cannot have, and does not count
    is_reset: bool
    #: whether all closed segments are clean, and the active one has records
    is_active_dirty: bool

    @property
    def dirty_ratio(self) -> float:
        """The cleanable bytes, divided by the clean and cleanable bytes together."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    @property
    def is_due(self) -> bool:
        """Whether a broker would compact the log now."""
        is_dirty = self.dirty_ratio > self.config.min_cleanable_dirty_ratio
        return self.cleanable_bytes > 0 and (self.is_overdue or is_dirty)

    def why_not(self) -> str:
        """The reason for which a broker would not compact it now, in words."""
        if self.cleanable_bytes:
            ratio = self.config.min_cleanable_dirty_ratio
            return f"at most the min.cleanable.dirty.ratio of {ratio} is dirty"
        if self.is_active_dirty:
            return "only the active segment has new records (--roll closes it)"
        return "no new records, or they wait for min.compaction.lag.ms or an open transaction"

    @property
    def summary(self) -> CompactedPartition:
        """The result of a dry run."""
        return CompactedPartition(
            *self.topic_partition,
            self.first_dirty_offset,
            self.end_offset,
            self.dirty_ratio,
            segments_before=self.n_segments,
            bytes_before=self.n_bytes,
        )


def logs_to_clean(
    directory: str,
    partitions: Iterable[TopicPartition],
    config_of: Callable[[str], TopicConfig],
    checkpoints: Mapping[TopicPartition, int],
    now_ms: int,
    failures: Failures,
) -> list[LogToClean]:
    """The cleanable part of each log whose ``cleanup.policy`` has ``compact``.

    Headers and checkpoints are read, and no more.  `checkpoints`: the entries of
    ``cleaner-offset-checkpoint``.  `now_ms`: the time by which ages are computed (epoch).
    `failures`: gets the logs that cannot be listed, or whose headers cannot be true.
    """
    opened = open_log_dir(directory)
    found = []
    for each in partitions:
        config = config_of(each.topic)
        if "compact" in config.cleanup_policy:
            with failures.of(each):
                found.append(
                    find_cleanable(opened.log(*each), checkpoints.get(each), config, now_ms)
                )
    return found


def find_cleanable(
    log: Log, checkpoint: int | None, config: TopicConfig, now_ms: int
) -> LogToClean:
    """The cleanable part of a log.

    `checkpoint`: the log's entry in ``cleaner-offset-checkpoint``, or None.  `now_ms`: the time by
    which ages are computed (epoch).
    """
    segments = log.segments
    start = first_dirty = log.log_start_offset
    is_reset = checkpoint is not None and not start <= checkpoint <= log.log_end_offset
    if checkpoint is not None and not is_reset:
        first_dirty = checkpoint
    end, clean, cleanable, is_overdue = first_dirty, 0, 0, False
    below: list[Segment] = []
    if len(segments) > 1:
        bases = [each.base_offset for each in segments]
        dirty = segments[_floor(bases, first_dirty) : -1] if first_dirty <= bases[-1] else ()
        bounds = [log.last_stable_offset(), bases[-1]]
        if config.min_compaction_lag_ms > 0:
            newest = now_ms - config.min_compaction_lag_ms
            bounds += [each.base_offset for each in dirty if each.newest_ms() > newest][:1]
        uncleanable = max(first_dirty, min(bounds))
        end = bases[-1] if uncleanable >= bases[-1] else bases[_floor(bases, uncleanable)]
        below = [each for each in segments if each.base_offset < end]
        clean = sum(each.size for each in segments if each.base_offset < first_dirty)
        cleanable = sum(each.size for each in below[_floor(bases, min(first_dirty, end)) :])
        is_overdue = _is_overdue(dirty, now_ms - config.max_compaction_lag_ms)
    is_active_dirty = (
        not cleanable
        and bool(segments)
        and segments[-1].size > 0
        and (len(segments) == 1 or end == segments[-1].base_offset)
    )
    return LogToClean(
        log.topic_partition, first_dirty, end, clean, cleanable,
        len(below), sum(each.size for each in below), config, checkpoint, start,
        # A damaged checkpoint of high watermarks does not matter to a log that stays as it is.
        log.high_watermark_checkpoint if cleanable else None,
        is_overdue, is_reset, is_active_dirty,
    )  # fmt: skip


def _floor(bases: Sequence[int], offset: int) -> int:
    """Number of the segment that may hold an offset; 0 if no segment may hold it."""
    return max(bisect_right(bases, offset) - 1, 0)


def _is_overdue(dirty: Sequence[Segment], before_ms: int) -> bool:
    """Whether the first batch of a dirty segment has a timestamp before `before_ms`."""
    if before_ms <= 0:
        return False
    for each in dirty:
        first = next(each.headers(0), None)
        if first is not None and 0 < first.header.max_timestamp < before_ms:
            return True
    return False
