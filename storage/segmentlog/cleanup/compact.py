"""Compaction without a broker: keep the last record of each key, as a broker's cleaner does.

`segmentlog.cleanup.cleanable` decides which logs are due, and up to where they are cleaned;
`segmentlog.cleanup.clean_partition` cleans one; `segmentlog.cleanup.swap_segments` has the durable
steps.
"""

import logging
import os
import time
from collections.abc import Collection, Iterable, Mapping
from functools import partial

from segmentlog.cleanup.compaction_plan import (
    CompactedPartition,
    PlannedPartition,
    plan_compaction,
)
from segmentlog.cleanup.places import locked, log_directory, partitions_of
from segmentlog.cleanup.swap_segments import remove_deleted
from segmentlog.commit.topics import check_partition_path
from segmentlog.files.checkpoint import read_offsets, write_offsets
from segmentlog.files.names import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_CHECKPOINT,
    partition_path,
)
from segmentlog.files.readable import exists
from segmentlog.files.system_errors import storage_errors
from segmentlog.model import TopicPartition
from segmentlog.recovery.swaps import finish_swaps, has_swaps
from segmentlog.settings.directory_settings import DirectorySettings

__all__ = ["compact"]

logger = logging.getLogger(__name__)


@storage_errors()
def compact(
    path: str | os.PathLike[str],
    topics: Collection[str] = (),
    *,
    settings: Mapping[str, str] | None = None,
    dry_run: bool = False,
    dedupe_buffer_bytes: int = 128 << 20,
    load_factor: float = 0.9,
    producer_expiration_ms: int = 24 * 3600 * 1000,
    now_ms: int | None = None,
    lock_timeout_seconds: float = 0.0,
    metadata: str | os.PathLike[str] | None = None,
    server_properties: str | os.PathLike[str] | None = None,
) -> list[CompactedPartition]:
    """Compact the logs of a directory on which no broker is running, as far as a broker would now.

    Operations that a crash has interrupted are finished or undone first.  Each partition is
    compacted by itself: a reader, or a broker after a crash, finds it as it was before or as it is
    after a pass.

    Parameters
    ----------
    path : the log directory.
    topics : their names; by default all whose ``cleanup.policy`` has ``compact``, but none of
        brokers' own if `settings` are given.
    settings : of all these topics, by Kafka's names (``min.cleanable.dirty.ratio``); they come
        before the settings of the directory.
    dry_run : whether nothing is changed, and the result is what would be compacted.
    dedupe_buffer_bytes : memory for the keys of a pass (``log.cleaner.dedupe.buffer.size``), 24
        bytes each; a log with more keys takes several passes.
    load_factor : share of this memory that is used (``log.cleaner.io.buffer.load.factor``).
    producer_expiration_ms : time after which an idle producer's last sequence is not kept any more
        (``producer.id.expiration.ms``).
    now_ms : the time by which ages are computed (epoch); by default now.
    lock_timeout_seconds : how long to wait for a writer.
    metadata, server_properties : see `segmentlog.topic_settings`.

    Returns
    -------
    list of CompactedPartition
        The partitions that were due, in their order.

    Raises
    ------
    OptionError
        If a setting is unknown, or has a value that is not accepted; if nothing tells the settings
        of a broker's topics; if the memory holds no key.
    UnknownTopicOrPartitionError
        If the directory does not hold a topic.
    LogDirectoryError
        If `path` is no log directory; if a log is damaged, or may not be written to.
    LogLockedError
        If a broker or a writer holds the directory.
    CorruptLogError, UnsupportedFormatError, CorruptCheckpointError
        If a batch is damaged, which it names: nothing of this pass over the partition is replaced;
        if a checkpoint or the settings cannot be read.
    SyncFailedError, StorageError
        If the disk is full or fails, or if this user lacks a permission.
    """
    from segmentlog.cleanup.clean_partition import (
        clean_partition,  # the compiled kernels load here
    )
    from segmentlog.cleanup.offset_map import MapBounds

    bounds = MapBounds(dedupe_buffer_bytes, load_factor)
    bounds.check()
    directory = log_directory(path)
    known = DirectorySettings.read(directory, settings, metadata, server_properties)
    now_ms = int(time.time() * 1000) if now_ms is None else now_ms
    done: list[CompactedPartition] = []
    with locked(directory, lock_timeout_seconds, dry_run=dry_run) as may_write:
        partitions = partitions_of(directory, topics, has_settings=bool(settings))
        if may_write:
            _finish_earlier(directory, partitions, known)
        checkpoints = read_offsets(directory, CLEANER_OFFSET_CHECKPOINT)
        planned = plan_compaction(directory, partitions, known, checkpoints, now_ms)
        if not may_write:
            return [each.summary for each in planned if each.is_due]
        _reset(directory, planned)
        for each in planned:
            if not each.is_due:
                continue
            _prepare(directory, each)
            found = clean_partition(
                directory,
                each,
                bounds=bounds,
                now_ms=now_ms,
                producer_expiration_ms=producer_expiration_ms,
                on_pass=partial(_set_checkpoint, directory, each.topic_partition),
            )
            done += [found] if found else []
            where = partition_path(directory, each.topic_partition)
            remove_deleted(where, each.config.file_delete_delay_ms)
    return done


def _finish_earlier(
    directory: str, partitions: Iterable[TopicPartition], settings: DirectorySettings
) -> None:
    """Finish or undo what a crash has left, and remove files whose time has come."""
    for each in partitions:
        config = settings.config(each.topic)
        if "compact" in config.cleanup_policy:
            where = partition_path(directory, each)
            check_partition_path(where)
            if has_swaps(where):
                finish_swaps(where)
                logger.warning("%s: finished or undid an interrupted compaction", where)
            remove_deleted(where, config.file_delete_delay_ms)


def _reset(directory: str, planned: Iterable[PlannedPartition]) -> None:
    """Replace checkpoints that their logs cannot have, as a broker does even without cleaning."""
    for each in planned:
        if each.cleanable.is_reset:
            offset = each.cleanable.first_dirty_offset
            logger.warning(
                "%s: the compacted part ended at offset %s, outside of the log; it is compacted "
                "from offset %d on", each.topic_partition, each.checkpoint, offset,
            )  # fmt: skip
            _set_checkpoint(directory, each.topic_partition, offset)


def _set_checkpoint(directory: str, topic_partition: TopicPartition, offset: int) -> None:
    """Say durably where the compacted part of a log ends."""
    offsets = read_offsets(directory, CLEANER_OFFSET_CHECKPOINT)
    write_offsets(directory, CLEANER_OFFSET_CHECKPOINT, {**offsets, topic_partition: offset})


def _prepare(directory: str, planned: PlannedPartition) -> None:
    """Make a log ready, as for an append: nothing of it is lost or half written then."""
    from segmentlog.commit.prepare import ready_to_append

    is_clean = exists(os.path.join(directory, CLEAN_SHUTDOWN_FILE))
    ready_to_append(
        directory, [planned.topic_partition], planned.config, is_clean=is_clean, flush=True
    )
