"""Commit staged batches: visible in all partitions at once, or in none, whatever dies when.

The order of the durable steps is the argument; each is on the disk before the next begins.

1. The guard, with the intent in it.  From here on no broker starts, and readers take the ends of
   the partitions from the intent, not from the files.
2. The mark of a clean stop goes into the guard, so that it cannot vouch for what follows.
3. Batches and index entries, behind the ends that the intent has written down.
4. ``state`` is renamed from the guard to `segmentlog.state`: **the decision**.
5. Kafka's checkpoints, derived from the intent; then the mark comes back, and the guard goes.

A crash before 4 is undone by the next writer (what is behind the old ends is cut off), one after
it is finished.  Both can be done again from the start if they crash as well.
"""

import contextlib
import logging
import os
from collections.abc import Iterable, Sequence

from segmentlog.files.checkpoint import read_leader_epochs, read_offsets, write_offsets
from segmentlog.files.durable import replace_file, sync_directory, write_new_file
from segmentlog.files.names import (
    CLEAN_SHUTDOWN_FILE,
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    FileKind,
    parse_segment_file,
    partition_path,
    segment_file_name,
)
from segmentlog.log.append import LogAppender
from segmentlog.log.config import TopicConfig
from segmentlog.log.journal import (
    INTENT_FILE,
    STATE_FILE,
    Guard,
    Intent,
    PartitionIntent,
    SegmentSizes,
    SinkVersion,
    State,
    list_guards,
)
from segmentlog.log.ready import ready_to_append
from segmentlog.log.stage import Extent
from segmentlog.log.staged import staged_batches
from segmentlog.model import TopicPartition
from segmentlog.write_errors import CommitInDoubtError

__all__ = ["commit_staged", "recover"]

logger = logging.getLogger(__name__)


def commit_staged(
    directory: str,
    token: str,
    extents: Sequence[Extent],
    config: TopicConfig,
    *,
    flush: bool = True,
    sink: SinkVersion | None = None,
) -> bool:
    """Commit what tasks have staged; the caller holds the lock, and has recovered.

    Parameters
    ----------
    directory : the log directory.
    token : of the job, without a dash.
    extents : in the order in which their records are to follow each other.
    config : of the topics.
    flush : whether everything is synced before it is decided.
    sink : whose numbered write this is; one that was committed before is not again.

    Returns
    -------
    is_committed : False when `sink` says that it had been.

    Raises
    ------
    CommitInDoubtError
        If the system does not say whether the decision has reached the disk.
    OSError, CorruptLogError
        If a step before the decision failed; nothing is visible then.
    """
    state = State.read(directory)
    if state.has(sink):
        _unlink_staged(directory, extents)
        return False
    grouped: dict[TopicPartition, list[Extent]] = {}
    for extent in extents:
        grouped.setdefault(extent.topic_partition, []).append(extent)
    intent = _intend(directory, token, grouped, config, flush=flush)
    guard = Guard.of_job(directory, token)
    try:
        _stand(directory, guard, intent)
        for each in intent.partitions:
            _append(directory, each, grouped[each.topic_partition], config, flush=flush)
        _decide(directory, guard, state.next(token, sink))
    except BaseException:
        if State.read(directory).token != token:  # an interrupt may come behind the decision
            _give_up(directory, guard, intent)
        raise
    try:
        _finish(directory, guard, intent)
    except OSError as error:  # decided is decided: the next writer does the rest
        logger.warning("%s: committed, but the guard still stands: %s", guard.path, error)
    _unlink_staged(directory, extents)
    return True


def recover(directory: str) -> list[str]:
    """Finish or undo what a crash has left; the caller holds the lock.

    Returns
    -------
    done : what was done, a sentence for each guard.

    Raises
    ------
    CommitInDoubtError
        If a log is shorter than before the commit began: something else has been at it.
    """
    done = []
    for found in list_guards(directory):
        guard = found.seize()
        intent = guard.intent()
        if intent is None:
            _remove_guard(directory, guard)
            done.append(f"removed {guard.path}, which had not begun to write")
        elif State.read(directory).token == guard.token:
            _finish(directory, guard, intent)
            done.append(f"finished the commit of {guard.path}")
        else:
            _undo(directory, guard, intent)
            done.append(f"undid the commit of {guard.path}")
    for sentence in done:
        logger.warning("%s", sentence)
    return done


def _intend(
    directory: str,
    token: str,
    grouped: dict[TopicPartition, list[Extent]],
    config: TopicConfig,
    *,
    flush: bool,
) -> Intent:
    """What the partitions are now, and what they will be."""
    was_clean = os.path.exists(os.path.join(directory, CLEAN_SHUTDOWN_FILE))
    high_watermarks = read_offsets(directory, HIGH_WATERMARK_CHECKPOINT)
    partitions = []
    ends = {}
    for topic_partition, extents in grouped.items():
        path = partition_path(directory, topic_partition)
        sizes, end = ready_to_append(path, config, is_clean=was_clean)
        visible = ends[topic_partition] = min(high_watermarks.get(topic_partition, end), end)
        new_end = end + sum(extent.n_records for extent in extents)
        partitions.append(PartitionIntent(*topic_partition, sizes, end, visible, new_end))
    if not ends.keys() <= high_watermarks.keys():  # without one, readers take the log end
        write_offsets(directory, HIGH_WATERMARK_CHECKPOINT, {**high_watermarks, **ends})
    return Intent(token, was_clean, flush, partitions)


def _stand(directory: str, guard: Guard, intent: Intent) -> None:
    """Steps 1 and 2."""
    os.mkdir(guard.path)
    replace_file(guard.intent_path, intent.encode())
    sync_directory(directory)
    if intent.was_clean:
        os.rename(
            os.path.join(directory, CLEAN_SHUTDOWN_FILE),
            os.path.join(guard.path, CLEAN_SHUTDOWN_FILE),
        )
        sync_directory(guard.path)
        sync_directory(directory)


def _append(
    directory: str,
    intent: PartitionIntent,
    extents: Iterable[Extent],
    config: TopicConfig,
    *,
    flush: bool,
) -> None:
    """Step 3, for one partition."""
    path = partition_path(directory, intent.topic_partition)
    epochs = read_leader_epochs(os.path.join(path, LEADER_EPOCH_CHECKPOINT))
    epoch = epochs[-1][0] if epochs else 0
    appender = LogAppender(path, config, intent.sizes)
    next_offset = intent.end_offset
    try:
        for extent in extents:
            for buffer, headers in staged_batches(directory, extent, next_offset, epoch):
                appender.append(buffer, headers)
            next_offset += extent.n_records
    finally:
        appender.close(flush=flush)


def _decide(directory: str, guard: Guard, state: State) -> None:
    """Step 4."""
    path = os.path.join(directory, STATE_FILE)
    write_new_file(guard.state_path, state.encode())
    sync_directory(guard.path)
    os.replace(guard.state_path, path)
    try:
        sync_directory(directory)
    except OSError as error:
        raise CommitInDoubtError(guard.path, str(error)) from error


def _finish(directory: str, guard: Guard, intent: Intent) -> None:
    """Step 5; everything here can be done twice."""
    ends = {each.topic_partition: each.new_end for each in intent.partitions}
    if ends:
        names = [HIGH_WATERMARK_CHECKPOINT]
        if intent.is_flushed and intent.was_clean:  # it vouches for all that stands before it
            names.append(RECOVERY_POINT_CHECKPOINT)
        for name in names:
            write_offsets(directory, name, {**read_offsets(directory, name), **ends})
    _leave(directory, guard, is_clean=intent.was_clean and intent.is_flushed)


def _give_up(directory: str, guard: Guard, intent: Intent) -> None:
    """Undo our own commit, if it is still ours: whoever has taken it over may have appended."""
    try:
        seized = guard.seize()
    except FileNotFoundError:
        return
    _undo(directory, seized, intent)


def _undo(directory: str, guard: Guard, intent: Intent) -> None:
    """Cut every log back to what it was; everything here can be done twice."""
    for each in intent.partitions:
        path = partition_path(directory, each.topic_partition)
        _cut_back(path, each.sizes, guard, was_clean=intent.was_clean)
    _leave(directory, guard, is_clean=intent.was_clean)


def _cut_back(path: str, sizes: SegmentSizes, guard: Guard, *, was_clean: bool) -> None:
    """Remove the segments behind the active one, and cut its files back to their sizes.

    A file that is shorter has lost what an earlier job with ``flush=none`` never synced, and the
    next writer looks for its end; where all had been synced, something else has been at it.
    """
    kinds = (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX)
    for name in os.listdir(path):
        parsed = parse_segment_file(name)
        if parsed and parsed.kind in kinds and parsed.offset > sizes.base_offset:
            os.unlink(os.path.join(path, name))
    for kind, size in zip(kinds, sizes[1:], strict=True):
        file = os.path.join(path, segment_file_name(sizes.base_offset, kind))
        found = os.path.getsize(file)
        if found < size and was_clean:
            reason = f"{file} has {found} bytes, and had {size} before the commit began"
            raise CommitInDoubtError(guard.path, reason)
        descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.ftruncate(descriptor, min(found, size))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    sync_directory(path)


def _leave(directory: str, guard: Guard, *, is_clean: bool) -> None:
    """Put the mark of a clean stop back, if it still tells the truth, and remove the guard.

    The mark comes first: a crash in between leaves a guard, and no harm.
    """
    mark = os.path.join(guard.path, CLEAN_SHUTDOWN_FILE)
    with contextlib.suppress(FileNotFoundError):
        if is_clean:
            os.rename(mark, os.path.join(directory, CLEAN_SHUTDOWN_FILE))
        else:
            os.unlink(mark)
    sync_directory(directory)
    _remove_guard(directory, guard)


def _remove_guard(directory: str, guard: Guard) -> None:
    # The intent last: a guard with one can be taken up again, and without one is only removed.
    names = sorted(os.listdir(guard.path), key=lambda name: name == INTENT_FILE)
    for name in names:
        os.unlink(os.path.join(guard.path, name))
    os.rmdir(guard.path)
    sync_directory(directory)


def _unlink_staged(directory: str, extents: Iterable[Extent]) -> None:
    for name in {extent.name for extent in extents}:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(directory, name))
