"""The partitions of a log directory for which compaction is due, and its results for each.

Planning reads headers and checkpoints.  A planned partition can be pickled:
`segmentlog.maintain.compaction.clean_partition.clean_partition` cleans it, here or elsewhere.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from segmentlog.cluster.directory_settings import DirectorySettings
from segmentlog.format.topic_config import TopicConfig
from segmentlog.maintain.compaction.cleanable import Cleanable, find_cleanable
from segmentlog.model import TopicPartition
from segmentlog.reads.log import Log
from segmentlog.reads.log_directory import open_log_dir
from segmentlog.store.failures import Failures

_FIRST_LEVEL_OF_4_4 = 31  #: of ``metadata.version``: 4.4-IV0


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


class PlannedPartition(NamedTuple):
    """A partition, the settings of its topic, and the cleanable part of its log.

    `checkpoint` is its entry in ``cleaner-offset-checkpoint``, or None.  `log_start` and
    `high_watermark` are the bounds of the log, which do not move while the lock is held.
    `keeps_last_batch` is whether each pass keeps the batch at its end, as up to Kafka 4.3.
    `is_active_dirty` is whether all closed segments are clean, and the active one has records.
    """

    topic_partition: TopicPartition
    config: TopicConfig
    checkpoint: int | None
    cleanable: Cleanable
    log_start: int = 0
    high_watermark: int | None = None
    is_active_dirty: bool = False
    keeps_last_batch: bool = True

    @property
    def is_due(self) -> bool:
        """Whether a broker would compact it now."""
        return self.cleanable.is_due(self.config.min_cleanable_dirty_ratio)

    def why_not(self) -> str:
        """The reason for which a broker would not compact it now, in words."""
        if self.cleanable.cleanable_bytes:
            ratio = self.config.min_cleanable_dirty_ratio
            return f"at most the min.cleanable.dirty.ratio of {ratio} is dirty"
        if self.is_active_dirty:
            return "only the active segment has new records (--roll closes it)"
        return "no new records, or they wait for min.compaction.lag.ms or an open transaction"

    @property
    def summary(self) -> CompactedPartition:
        """The result of a dry run."""
        part = self.cleanable
        return CompactedPartition(
            *self.topic_partition,
            part.first_dirty_offset,
            part.end_offset,
            part.dirty_ratio,
            segments_before=part.n_segments,
            bytes_before=part.n_bytes,
        )


def plan_compaction(
    directory: str,
    partitions: Iterable[TopicPartition],
    settings: DirectorySettings,
    checkpoints: Mapping[TopicPartition, int],
    now_ms: int,
    failures: Failures,
) -> list[PlannedPartition]:
    """The cleanable part of each log whose ``cleanup.policy`` has ``compact``.

    `checkpoints`: the entries of ``cleaner-offset-checkpoint``.  `now_ms`: the time by which ages
    are computed (epoch).  `failures`: gets the logs that cannot be listed, or whose headers cannot
    be true.  Raises `OptionError` if a setting is not accepted.
    """
    opened = open_log_dir(directory)
    keeps_last_batch = (settings.metadata_level or 0) < _FIRST_LEVEL_OF_4_4
    plans = []
    for each in partitions:
        config = settings.config(each.topic)
        if "compact" in config.cleanup_policy:
            with failures.of(each):
                plan = _plan(opened.log(*each), config, checkpoints.get(each), now_ms)
                plans.append(plan._replace(keeps_last_batch=keeps_last_batch))
    return plans


def _plan(log: Log, config: TopicConfig, checkpoint: int | None, now_ms: int) -> PlannedPartition:
    cleanable = find_cleanable(log, checkpoint, config, now_ms)
    # A damaged checkpoint of high watermarks does not matter to a log that stays as it is.
    end = log.high_watermark_checkpoint if cleanable.cleanable_bytes else None
    start, active = log.log_start_offset, log.segments[-1:]
    is_active_dirty = not cleanable.cleanable_bytes and any(
        segment.size > 0
        and (len(log.segments) == 1 or cleanable.end_offset == segment.base_offset)
        for segment in active
    )
    return PlannedPartition(
        log.topic_partition, config, checkpoint, cleanable, start, end, is_active_dirty
    )
