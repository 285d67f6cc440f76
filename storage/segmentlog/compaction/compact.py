"""Compaction without a broker: keep the last record of each key, as a broker's cleaner does.

`segmentlog.compaction.cleanable` decides which logs are due, and up to where they are cleaned;
`segmentlog.compaction.clean_partition` cleans one; `segmentlog.compaction.swap_segments` has the
durable steps.
"""

import os
from functools import partial

from segmentlog.arguments import keywords_of
from segmentlog.compaction.job import begin_compaction
from segmentlog.compaction.plan import CompactedPartition
from segmentlog.compaction.settings import CompactionSettings
from segmentlog.disk.system_errors import storage_errors

__all__ = ["compact"]


@storage_errors()
@keywords_of(CompactionSettings)
def compact(path: str | os.PathLike[str], given: CompactionSettings) -> list[CompactedPartition]:
    """Compact the logs of a directory on which no broker is running, as far as a broker would now.

    Operations that a crash has interrupted are finished or undone first.  Each partition is
    compacted by itself: a reader, or a broker after a crash, finds it as it was before or as it is
    after a pass.

    Parameters
    ----------
    path : the log directory.
    topics : one name or several; by default all whose ``cleanup.policy`` has ``compact``, but none
        of brokers' own if `settings` are given.
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
    roll : whether active segments with records are closed first, so that they are compacted, too.
        A dry run closes none, and shows the logs as they are.
    purge : whether files that left these logs go at once, and not ``file.delete.delay.ms`` later.
        A reader that still needs one fails with `LogChangedError`.

    Returns
    -------
    list of CompactedPartition
        The partitions that were due, in their order.

    Raises
    ------
    OptionError
        If a setting is unknown, or has a value that is not accepted; if no file
        contains the settings of a broker's topics; if the memory holds no key.
    UnknownTopicOrPartitionError
        If the directory does not hold a topic.
    LogDirectoryError
        If `path` is not a log directory; if a log is damaged, or may not be written to.
    LogLockedError
        If a broker or a writer holds the directory.
    CorruptLogError, UnsupportedFormatError, CorruptCheckpointError
        If a batch is damaged, which it names: nothing of this pass over the partition is replaced;
        if a checkpoint or the settings cannot be read.
    SyncFailedError, StorageError
        If the disk is full or fails, or if this user lacks a permission.
    """
    from segmentlog.compaction.clean_partition import clean_partition  # the kernels load here

    done: list[CompactedPartition] = []
    with begin_compaction(path, given) as job:
        if job.lock is None:
            return [each.summary for each in job.due]
        for each in job.due:
            job.begin(each)
            reached = partial(job.reached, each)
            found = clean_partition(job.directory, each, job.limits, on_pass=reached)
            done += [found] if found else []
            job.end(each)
    return done
