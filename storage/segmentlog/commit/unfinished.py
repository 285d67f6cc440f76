"""Finish a decided commit, or undo an undecided one, of any writer.

To undo, bytes after the old ends are cut off.  To finish, Kafka's checkpoints are derived from
the intent.  Both give the same result when they are repeated, so either can be begun again after
a crash in the middle.
"""

import contextlib
import errno
import logging
import os
import time
from collections.abc import Mapping
from enum import Enum, auto

from segmentlog.commit.deleted import remove_taken_out, take_out
from segmentlog.commit.guard import INTENT_FILE, Guard, Intent, SegmentSizes, list_guards
from segmentlog.commit.put_aside import put_aside
from segmentlog.commit.stamp import renew_stamp
from segmentlog.commit.state import State
from segmentlog.disk.aside import remove_deleted
from segmentlog.disk.durable import cut_file, sync_directory, sync_file, writable
from segmentlog.disk.readable import exists, is_directory, list_names, status_of
from segmentlog.disk.system_errors import FULL
from segmentlog.errors import CorruptLogError, LogDirectoryError, UnsupportedFormatError
from segmentlog.layout.checkpoint import read_offsets, write_offsets
from segmentlog.model import TopicPartition
from segmentlog.names import (
    CLEAN_SHUTDOWN_FILE,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_AND_INDEXES,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    FileKind,
    parse_segment_file,
    partition_path,
    segment_file_name,
)

__all__ = ["Fate", "fate_of", "finish", "give_up", "recover_commits", "withdraw"]

logger = logging.getLogger(__name__)

#: Errors of an unlink, or of the removal of a directory, if files are open.
_IN_USE = {errno.EBUSY, errno.ENOTEMPTY, errno.EEXIST}
_MOST_SECONDS = 5.0
_POLL_SECONDS = 0.05


class Fate(Enum):
    """The progress of a guard's commit."""

    NOT_BEGUN = auto()  #: the guard is only removed
    UNDECIDED = auto()  #: the commit is undone
    DECIDED = auto()  #: the commit is finished


def fate_of(guard: Guard, intent: Intent | None, state: State) -> Fate:
    """The progress of a commit, by its intent and the state of the directory.

    An intent that builds on another state than the present one has begun nothing either: its
    writer had lost the lock (`segmentlog.commit.decision.stand`).
    """
    if intent is None or state.token not in {guard.token, intent.after}:
        return Fate.NOT_BEGUN
    return Fate.DECIDED if state.token == guard.token else Fate.UNDECIDED


def recover_commits(directory: str, *, is_asked: bool = False) -> list[str]:
    """Finish or undo the commits that a crash has left; the caller holds the lock.

    Parameters
    ----------
    is_asked : whether a person has asked for the recovery.  It then goes on even if synced bytes
        are missing, and the caller reports what was done.

    Returns
    -------
    done : a sentence for each guard.

    Raises
    ------
    LogDirectoryError
        If a log is shorter than before the commit began: something else has cut it.
    """
    done = []
    for found in list_guards(directory):
        # Seized before the state is read: a writer that is only slow could otherwise decide in
        # between, and its decided commit would be undone.
        guard = found.seize()
        intent = guard.intent()
        fate = fate_of(guard, intent, State.read(directory))
        if intent is None or fate is Fate.NOT_BEGUN:
            withdraw(directory, guard)
            done.append(f"removed {found.path}, which had not begun to write")
        elif fate is Fate.DECIDED:
            finish(directory, guard, intent)
            done.append(f"finished the commit of {found.path}")
            if intent.deletes:
                remove_taken_out(directory, intent.deletes)
        else:
            _undo(directory, guard, intent, is_asked=is_asked)
            done.append(f"undid the commit of {found.path}")
    if not is_asked:  # otherwise the caller reports them
        for sentence in done:
            logger.warning("%s", sentence)
    return done


def finish(directory: str, guard: Guard, intent: Intent) -> None:
    """Derive the checkpoints of a decided commit, and remove its guard.

    On a full disk, what the commit deletes goes first: the guard would otherwise stand until
    somebody makes room, and keep out all that could.
    """
    try:
        _derive(directory, intent)
    except OSError as error:
        if error.errno not in FULL or not (intent.deletes or intent.removes):
            raise
        _remove_now(directory, intent)
        _derive(directory, intent)
    # The guard goes last: without it, readers take the high watermarks of the checkpoint, and the
    # earlier ones hide the records of the commit.  The mark vouches for all bytes, so it does not
    # come back if some were not synced.
    _leave(directory, guard, is_clean=intent.was_clean and intent.is_flushed)


def _derive(directory: str, intent: Intent) -> None:
    """The steps after the decision, but for the guard; all of them can be repeated."""
    if intent.deletes:
        take_out(directory, intent.deletes)
        # A reader that listed names meanwhile may find no guard any more, but finds a new stamp.
        renew_stamp(directory)
    ends = {each.topic_partition: each.new_end for each in intent.partitions}
    starts = _new_starts(intent)
    news = {LOG_START_CHECKPOINT: starts, HIGH_WATERMARK_CHECKPOINT: ends}
    # The point moves only over synced bytes; all bytes before the commit's own are synced by then.
    # A power cut may take the others, and a loss below the point counts as damage.
    if intent.is_flushed:
        news[RECOVERY_POINT_CHECKPOINT] = ends
    for name, offsets in news.items():
        if offsets:
            write_offsets(directory, name, {**read_offsets(directory, name), **offsets})
    if intent.removes:
        for topic_partition, start in starts.items():
            put_aside(partition_path(directory, topic_partition), start)
    if intent.keeps_producers:
        _keep_producers(directory, ends)


def _new_starts(intent: Intent) -> dict[TopicPartition, int]:
    return {
        each.topic_partition: each.new_start for each in intent.partitions if each.new_start >= 0
    }


def _remove_now(directory: str, intent: Intent) -> None:
    """Remove what a decided commit deletes, without the delay that readers have otherwise.

    The guard stands, so readers that come know the new bounds already.  A reader of the old ones
    fails with `LogChangedError`.
    """
    logger.warning("%s: the disk is full, so deleted records are removed at once", directory)
    if intent.deletes:
        remove_taken_out(directory, intent.deletes)
    starts = _new_starts(intent) if intent.removes else {}
    for topic_partition, start in starts.items():
        path = partition_path(directory, topic_partition)
        with contextlib.suppress(OSError):  # it renames first, and then takes some bytes, too
            put_aside(path, start)
        remove_deleted(path, 0, below=start)


def _keep_producers(directory: str, ends: Mapping[TopicPartition, int]) -> None:
    """Write snapshots of producers at the log ends.

    A log that cannot be read is only a warning: the check before the commit has read it, so it
    was damaged since, and no writer could go on if this commit stayed unfinished.
    """
    from segmentlog.commit.keep_producers import keep_producers  # the kernels load here

    for topic_partition, end in ends.items():
        path = partition_path(directory, topic_partition)
        if not is_directory(path):  # its topic was deleted
            continue
        try:
            keep_producers(path, end)
        except (CorruptLogError, UnsupportedFormatError) as error:
            logger.warning("%s: no snapshot of its producers is written: %s", path, error)


def give_up(directory: str, guard: Guard, intent: Intent) -> None:
    """Undo our own commit, unless another writer has taken it over and may have appended."""
    try:
        seized = guard.seize()
    except FileNotFoundError:
        return
    _undo(directory, seized, intent)


def _undo(directory: str, guard: Guard, intent: Intent, *, is_asked: bool = False) -> None:
    """Cut every log back to its earlier size; every step can be done twice.

    A file that is shorter than its earlier size has lost bytes.  If an earlier job with
    ``flush=none`` never synced them, the next writer finds the new end of the log.  If they had
    been synced, something else has cut the file.
    """
    is_whole = True
    for each in intent.partitions:
        path = partition_path(directory, each.topic_partition)
        if not is_directory(path):  # its topic was deleted, and there is nothing to cut
            continue
        lost = _cut_back(path, each.sizes)
        if lost and intent.was_clean and not is_asked:
            reason = (
                f"this commit did not take place, and cannot be undone: {lost} before it began: "
                "something else has cut the file. Restore it from a copy, or go on without what "
                "is missing: segmentlog recover"
            )
            raise LogDirectoryError(guard.path, reason)
        is_whole = is_whole and not lost
    _leave(directory, guard, is_clean=intent.was_clean and is_whole)


def _cut_back(path: str, sizes: SegmentSizes) -> str:
    """Remove the segments after the active one, and cut its files back to their sizes.

    An index that is missing or shorter is not a loss: the next writer builds it again.

    Returns the loss as the beginning of a sentence, or an empty text.
    """
    lost = ""
    for name in list_names(path):
        parsed = parse_segment_file(name)
        if parsed and parsed.kind in LOG_AND_INDEXES and parsed.offset > sizes.base_offset:
            os.unlink(os.path.join(path, name))
    for kind, size in zip(LOG_AND_INDEXES, sizes[1:], strict=True):
        file = os.path.join(path, segment_file_name(sizes.base_offset, kind))
        found = status_of(file).size if exists(file) else -1
        if kind is FileKind.LOG and found < size:
            has = f"has {found} bytes" if found >= 0 else "is missing"
            lost = f"{file} {has}, and had {size} bytes"
        elif 0 <= found < size:
            os.unlink(file)
            continue
        if found >= 0:
            with writable(file) as descriptor:
                cut_file(descriptor, min(found, size))
                sync_file(descriptor, file)
    sync_directory(path)
    return lost


def _leave(directory: str, guard: Guard, *, is_clean: bool) -> None:
    """Put the mark of a clean stop back if it is still true, and remove the guard.

    The mark comes first: a crash in between leaves a guard, and does no harm.
    """
    mark = os.path.join(guard.path, CLEAN_SHUTDOWN_FILE)
    with contextlib.suppress(FileNotFoundError):
        if is_clean:
            os.rename(mark, os.path.join(directory, CLEAN_SHUTDOWN_FILE))
        else:
            os.unlink(mark)
    _remove_guard(directory, guard)


def withdraw(directory: str, guard: Guard) -> None:
    """Remove a guard whose commit has written nothing, without undoing anything.

    The intent goes first: any writer that finds a guard without an intent only removes it.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(guard.intent_path)
    _leave(directory, guard, is_clean=False)


def _remove_guard(directory: str, guard: Guard) -> None:
    until = time.monotonic() + _MOST_SECONDS
    while True:
        try:
            _remove(guard)
        except OSError as error:
            # A file that a reader has open on the same NFS mount stays, as ``.nfs…``, until the
            # reader closes it; a reader has an intent open for as long as it takes to read it.
            if error.errno not in _IN_USE or time.monotonic() >= until:
                raise
            time.sleep(_POLL_SECONDS)
        else:
            break
    sync_directory(directory)


def _remove(guard: Guard) -> None:
    # The intent goes last: a guard with an intent can be recovered again, and a guard without one
    # is only removed.
    for name in sorted(list_names(guard.path), key=lambda name: name == INTENT_FILE):
        path = os.path.join(guard.path, name)
        if path == guard.state_path and is_directory(path):  # last, with the guard itself
            continue
        os.unlink(path)
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(guard.state_path)
    os.rmdir(guard.path)
