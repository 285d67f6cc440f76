"""Prepare logs for an append, as a starting broker would.

Commits, compaction, erasures and moves of log starts begin with it.  In a directory without the
mark of a clean stop, bytes that may not have reached the disk are recovered.  A writer recovers
only if no promised byte is lost: at and after the recovery point no byte was ever known to be
synced.  Damage below that point is left to `segmentlog recover`, and so are whole batches below
the high watermark that follow a damaged one: readers have seen them.
"""

import logging
import os
from collections.abc import Collection, Mapping
from typing import NamedTuple

from segmentlog.errors import LogDirectoryError
from segmentlog.format.names import (
    CLEAN_SHUTDOWN_FILE,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_CHECKPOINT,
    partition_path,
)
from segmentlog.format.topic_config import TopicConfig
from segmentlog.log.checkpoint import read_leader_epochs, write_leader_epochs
from segmentlog.log.index_builder import rebuild_indexes
from segmentlog.log.leader_epochs import EpochStarts
from segmentlog.log.listing import list_segments, remove_indexes_without_log
from segmentlog.log.segment import Segment, find_log_end
from segmentlog.log.swaps import settle_swaps
from segmentlog.model import LARGEST_LONG, TopicPartition
from segmentlog.store.durable import do_together, sync_directory
from segmentlog.store.readable import exists, status_of
from segmentlog.txn.change import HeldDirectory
from segmentlog.txn.guard import SegmentSizes
from segmentlog.txn.recover_log import RecoveryPlan, plan_recovery, recover_log

logger = logging.getLogger(__name__)

_ANY_OFFSET = LARGEST_LONG
_REMEDY = (
    "nothing can be appended to this log: segmentlog verify shows the place, and segmentlog "
    "recover cuts the log there, as a broker would, or leaves out the damage alone "
    "(--on-corrupt-batch skip)"
)

#: `segmentlog.recover` believes the mark, as a starting broker does.
_REMEDY_OF_CLEAN = (
    f"nothing can be appended to this log: segmentlog verify shows the place; without "
    f"{CLEAN_SHUTDOWN_FILE}, segmentlog recover cuts the log there, as a broker would; segmentlog "
    "recover --on-corrupt-batch skip leaves out the damage alone"
)


class ReadyLog(NamedTuple):
    """A log that a change may append to."""

    sizes: SegmentSizes  # of its active segment
    end: int  # its log end offset


def ready_to_append(
    held: HeldDirectory,
    partitions: Collection[TopicPartition],
    *,
    flush: bool,
    no_reboot: bool = False,
) -> dict[TopicPartition, ReadyLog]:
    """Make logs ready for a change that appends to them.

    The caller writes the checkpoints of `held`: after several calls, perhaps.

    `held`: the log directory; its `config_of` has the settings of the topics.  `flush`: whether an
    active segment that may not be synced is synced.  `no_reboot`: whether all bytes that may not
    be synced were written since the machine has started, so that none can be lost.  Unless `flush`
    is set, only the end of an active segment is checked then: to check the segment would take
    longer with each commit.  Raises `LogDirectoryError` if a log has no segment, is damaged where
    it had been synced, or has committed records after damage.
    """
    # With the mark of a clean stop, all bytes are synced, and indexes can be trusted.
    directory, checkpoints, is_clean = held.directory, held.checkpoints, held.is_clean
    starts, points = checkpoints.starts, checkpoints.points.offsets
    configs = {partition_path(directory, each): held.config_of(each.topic) for each in partitions}
    plans, ready, synced_to = {}, {}, {}
    for each in partitions:
        path, point = partition_path(directory, each), points.get(each, 0)
        committed_to = checkpoints.high_watermarks.offsets.get(each, _ANY_OFFSET)
        plans[each] = _plan(
            path,
            point,
            starts.get(each, 0),
            committed_to,
            is_clean=is_clean,
            no_reboot=no_reboot and not flush,
        )
    # All logs stay as they are if one is refused.
    for each in plans:
        remove_indexes_without_log(partition_path(directory, each))

    def recover(plan: RecoveryPlan) -> None:
        loss = plan.loss
        last_epoch = EpochStarts(plan.path).last
        kept = recover_log(plan, configs[plan.path].index_interval_bytes, syncs_active=flush)
        epochs = os.path.join(plan.path, LEADER_EPOCH_CHECKPOINT)
        if not read_leader_epochs(epochs):
            # Consumers ask for the epoch of the batches to come.  The last leader has written its
            # epoch before any batch; the recovery has forgotten it with the offset at which it
            # began.
            write_leader_epochs(epochs, [(max(last_epoch, 0), plan.end_offset)])
        if kept:
            logger.warning("%s: %s; kept in %s", plan.path, loss, ", ".join(kept))

    do_together(recover, [plan for plan, _ in plans.values() if plan is not None])
    for each, (_, end) in plans.items():
        path, point = partition_path(directory, each), points.get(each, 0)
        sizes = _sizes(path, configs[path])
        ready[each] = ReadyLog(sizes, end)
        # The mark vouches for all bytes, also in a directory that was copied without the points.
        # Without the point, a recovery would not know that retention or compaction has removed
        # batches, and that they were not lost.
        synced_to[each] = end if flush or is_clean else max(sizes.base_offset, point)
    # A writer that died while it made a partition may not have synced its name, or those in it.
    empty = [each for each, log in ready.items() if not log.sizes.log]
    do_together(sync_directory, [partition_path(directory, each) for each in empty])
    if empty:
        sync_directory(directory)
    # Points move once all logs are recovered.  If a crash came between a point that moved first
    # and its log, the next writer would refuse the log, as one that has lost synced bytes.
    moved = {each: point for each, point in synced_to.items() if points.get(each) != point}
    checkpoints.points.put(moved)
    held.lower_to({each: log.end for each, log in ready.items()})
    return ready


def check_ready(held: HeldDirectory, topic_partition: TopicPartition) -> None:
    """Raise the error with which `ready_to_append` would refuse a log; no file is changed."""
    checkpoints = held.checkpoints
    _plan(
        partition_path(held.directory, topic_partition),
        checkpoints.points.offsets.get(topic_partition, 0),
        checkpoints.starts.get(topic_partition, 0),
        checkpoints.high_watermarks.offsets.get(topic_partition, _ANY_OFFSET),
        is_clean=held.is_clean,
        no_reboot=False,
        settles=False,
    )


def as_they_are(
    directory: str, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, ReadyLog]:
    """What `ready_to_append` returns, for a change that appends nothing: no file is changed.

    A full disk may not take the indexes and copies of a log that is made ready.
    """
    found = {}
    for each in partitions:
        active = Segment(list_segments(partition_path(directory, each))[-1], is_sealed=False)
        end = find_log_end(active, warns=False).offset
        found[each] = ReadyLog(SegmentSizes.of(active), end)
    return found


def visible_ends(
    held: HeldDirectory, ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """The ends of reads of some logs: their high watermarks, or else the log ends.

    A log without a high watermark gets one, because readers would take the log end that a commit
    moves.
    """
    high_watermarks = held.checkpoints.high_watermarks
    known = high_watermarks.offsets
    visible = {each: min(known.get(each, end), end) for each, end in ends.items()}
    if not visible.keys() <= known.keys():
        high_watermarks.put(visible)
        high_watermarks.write()
    return visible


def _plan(
    path: str,
    point: int,
    log_start: int,
    committed_to: int,
    *,
    is_clean: bool,
    no_reboot: bool,
    settles: bool = True,
) -> tuple[RecoveryPlan | None, int]:
    """The recovery of a log, if it needs one, and its end; refused if it would lose records.

    `settles`: whether a compaction that a crash has interrupted is finished or undone first.
    """
    if settles:
        settle_swaps(path)
    segments = list_segments(path)
    if not segments:
        raise LogDirectoryError(path, "holds no segment; segmentlog recover mends that")
    # Closed segments that were never synced are checked and synced once, before the recovery point
    # moves after them.
    damaged_from = None
    if is_clean or (no_reboot and segments[-1].base_offset <= point):
        active = Segment(segments[-1], is_sealed=False)
        end = find_log_end(active, warns=False)
        damaged_from = end.damaged_from
        is_short = end.offset < committed_to < _ANY_OFFSET
        if is_clean and is_short and damaged_from is None:
            # A broker does the same in silence when it starts on such a log.
            logger.warning(
                "%s: offsets [%d, %d) were below the high watermark of a cleanly stopped log and "
                "are gone; new records get these offsets again",
                path,
                end.offset,
                committed_to,
            )
        is_whole = active.size == end.position and damaged_from is None
        if is_whole and (is_clean or not is_short):
            if end.offset < log_start:
                raise _start_beyond(path, log_start, end.offset)
            return None, end.offset
    read_from = segments[-1].base_offset if is_clean else point
    plan = plan_recovery(
        path, read_from, log_start, -1 if committed_to == _ANY_OFFSET else committed_to
    )
    if plan.log_start < log_start:
        raise _start_beyond(path, log_start, plan.end_offset)
    if is_clean and damaged_from is not None:  # and not of a newer format, which nothing may cut
        reason = f"is damaged from offset {damaged_from} on; {_REMEDY_OF_CLEAN}"
        raise LogDirectoryError(segments[-1].path, reason)
    if plan.end_offset < point:
        reason = (
            f"has lost its records from offset {plan.end_offset} on, although it was synced up "
            f"to {point}; {_REMEDY}"
        )
        raise LogDirectoryError(path, reason)
    if plan.good_from is not None and plan.good_from < committed_to:
        to = min(plan.lost_to, committed_to)
        reason = (
            f"is damaged at offset {plan.end_offset}, before committed records up to {to}: a cut "
            f"there would lose these records; {_REMEDY}, and keeps the bytes that it cuts off in "
            ".broken files"
        )
        raise LogDirectoryError(path, reason)
    return plan, plan.end_offset


def _start_beyond(path: str, log_start: int, end: int) -> LogDirectoryError:
    reason = (
        f"has its log start at {log_start}, beyond its log end {end}, so that no reader would see "
        f"new records: segmentlog recover corrects {LOG_START_CHECKPOINT}"
    )
    return LogDirectoryError(path, reason)


def _sizes(path: str, config: TopicConfig) -> SegmentSizes:
    """Sizes of the active segment, once its indexes are there and trimmed."""
    active = Segment(list_segments(path)[-1], is_sealed=False)
    if not _are_trimmed(active):
        rebuild_indexes(active, config.index_interval_bytes)
    # `SegmentSizes.of` takes a missing index for an empty one.  Here it shows that the rebuild has
    # failed, and is an error.
    index, times = map(status_of, (active.offset_index_path, active.time_index_path))
    return SegmentSizes(active.base_offset, active.size, index.size, times.size)


def _are_trimmed(segment: Segment) -> bool:
    """Whether both indexes exist, hold whole entries and no zeros, and fit the log."""
    paths = (segment.offset_index_path, segment.time_index_path)
    if not all(map(exists, paths)):
        return False
    with segment.opened() as opened:
        index, times = opened.offset_index, opened.time_index
        if any(
            each.n_entries * each.entry_bytes != status_of(each.path).size
            for each in (index, times)
        ):
            return False
        if times.n_entries and opened.indexed_time()[0].timestamp_ms < 0:
            return False
        if not index.n_entries:
            return True
        entry = index.entry(index.n_entries - 1)
        return opened.header_at(entry.position, up_to_offset=entry.offset) is not None
