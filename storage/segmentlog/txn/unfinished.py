"""Finish a decided change, or undo an undecided one, of any writer.

To undo, bytes after the old ends are cut off.  To finish, the effects of the intent are applied.
Both give the same result when they are repeated, so either can be begun again after a crash in the
middle.
"""

import contextlib
import errno
import logging
import os
import time
from enum import Enum, auto

from segmentlog.errors import LogDirectoryError
from segmentlog.format.names import (
    CLEAN_SHUTDOWN_FILE,
    LOG_AND_SPARSE_INDEXES,
    FileKind,
    parse_segment_file,
    partition_path,
    segment_file_name,
)
from segmentlog.store.durable import (
    cut_file,
    do_together,
    remove_directory,
    remove_file,
    rename,
    sync_directory,
    sync_file,
    writable,
)
from segmentlog.store.readable import exists, is_directory, list_names, status_of
from segmentlog.store.system_errors import FULL
from segmentlog.txn.guard import (
    INTENT_FILE,
    Guard,
    Intent,
    PartitionIntent,
    SegmentSizes,
    list_guards,
)
from segmentlog.txn.state import State

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
    """The progress of a commit, by its intent and the state of the directory."""
    # An intent that builds on another state than the present one has begun nothing either: its
    # writer had lost the lock (`segmentlog.txn.change.raise_guard`).
    if intent is None or state.token not in {guard.token, intent.after}:
        return Fate.NOT_BEGUN
    return Fate.DECIDED if state.token == guard.token else Fate.UNDECIDED


def topics_taken_out(directory: str) -> set[str]:
    """Topics whose deletion is decided, but not finished: readers must not find them."""
    try:
        guards = list_guards(directory)
    except (FileNotFoundError, NotADirectoryError):
        return set()
    gone: set[str] = set()
    for guard in guards:
        intent = guard.intent()
        if intent is not None and fate_of(guard, intent, State.read(directory)) is Fate.DECIDED:
            gone |= intent.taken_out
    return gone


def recover_commits(directory: str, *, is_asked: bool = False) -> list[str]:
    """Finish or undo the commits that a crash has left; the caller holds the lock.

    `is_asked`: whether a person has asked for the recovery.  It then continues even if synced
    bytes are missing, and the caller reports what was done.  Raises `LogDirectoryError` if a log
    is shorter than before the commit began: something else has cut it; `CorruptCheckpointError` if
    there is a guard, and its intent or the state cannot be read.
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
            done.append(f"removed {found.path}, whose commit had not begun to write")
        elif fate is Fate.DECIDED:
            finish(directory, guard, intent)
            done.append(f"finished the commit of {found.path}")
            for each in intent.effects:
                each.tidy(directory, None)
        else:
            _undo(directory, guard, intent, is_asked=is_asked)
            done.append(f"undid the commit of {found.path}")
    if not is_asked:  # otherwise the caller reports them
        for sentence in done:
            logger.warning("%s", sentence)
    return done


def finish(directory: str, guard: Guard, intent: Intent) -> None:
    """Apply the effects of a decided change, and remove its guard."""
    # On a full disk, what the change removes goes first: the guard would otherwise stay until
    # somebody makes room, and would keep out every command that could make room.

    def apply() -> None:
        for each in intent.effects:
            each.apply(directory, intent)

    try:
        apply()
    except OSError as error:
        is_full = error.errno in FULL
        if not is_full or True not in [each.free(directory, intent) for each in intent.effects]:
            raise
        logger.warning("%s: the disk is full, so deleted files are removed at once", directory)
        apply()
    # The guard goes last: without it, readers take the high watermarks of the checkpoint, and the
    # earlier ones hide the records of the change.  The mark vouches for all bytes, so it does not
    # come back if some were not synced.
    _release_guard(directory, guard, is_clean=intent.was_clean and intent.is_flushed)


def give_up(directory: str, guard: Guard, intent: Intent) -> None:
    """Undo our own commit, unless another writer has taken it over and may have appended."""
    try:
        seized = guard.seize()
    except FileNotFoundError:
        return
    _undo(directory, seized, intent)


def _undo(directory: str, guard: Guard, intent: Intent, *, is_asked: bool = False) -> None:
    """Cut every log back to its earlier size; every step can be done twice."""
    # A file that is shorter than its earlier size has lost bytes. If an earlier job with
    # ``flush=none`` never synced them, the next writer finds the new end of the log. If they had
    # been synced, something else has cut the file.
    losses: list[str] = []

    def cut_back(each: PartitionIntent) -> None:
        path = partition_path(directory, each.topic_partition)
        if not is_directory(path):  # its topic was deleted, and there is nothing to cut
            return
        lost = _cut_back(path, each.sizes)
        if not lost:
            return
        losses.append(lost)
        if intent.was_clean and not is_asked:
            reason = (
                f"this commit did not take place, and cannot be undone: {lost} before it began: "
                "another program has cut the file. Restore the file from a copy, or continue "
                "without the missing records: segmentlog recover"
            )
            raise LogDirectoryError(guard.path, reason)

    do_together(cut_back, intent.partitions)
    for effect in intent.effects:
        effect.undo(directory)
    _release_guard(directory, guard, is_clean=intent.was_clean and not losses)


def _cut_back(path: str, sizes: SegmentSizes) -> str:
    """Remove later segments, and cut the active one's files to their sizes; the loss in words.

    An index that is missing or shorter is not a loss: the next writer builds it again.
    """
    lost = ""
    for name in list_names(path):
        parsed = parse_segment_file(name)
        if parsed and parsed.kind in LOG_AND_SPARSE_INDEXES and parsed.offset > sizes.base_offset:
            remove_file(os.path.join(path, name))
    had_segment = sizes.base_offset >= 0
    for kind, size in zip(LOG_AND_SPARSE_INDEXES if had_segment else (), sizes[1:], strict=False):
        file = os.path.join(path, segment_file_name(sizes.base_offset, kind))
        found = status_of(file).size if exists(file) else -1
        if kind is FileKind.LOG and found < size:
            has = f"has {found} bytes" if found >= 0 else "is missing"
            lost = f"{file} {has}, and had {size} bytes"
        elif 0 <= found < size:
            remove_file(file)
            continue
        if found >= 0:
            with writable(file) as descriptor:
                cut_file(descriptor, min(found, size))
                sync_file(descriptor, file)
    sync_directory(path)
    return lost


def _release_guard(directory: str, guard: Guard, *, is_clean: bool) -> None:
    """Put the mark of a clean stop back if it is still true, and remove the guard."""
    # The mark comes first: a crash in between leaves a guard, and does no harm.
    mark = os.path.join(guard.path, CLEAN_SHUTDOWN_FILE)
    with contextlib.suppress(FileNotFoundError):
        if is_clean:
            rename(mark, os.path.join(directory, CLEAN_SHUTDOWN_FILE))
        else:
            remove_file(mark)
    until = time.monotonic() + _MOST_SECONDS
    while True:
        try:
            _remove(guard)
            break
        except OSError as error:
            # A file that a reader has open on the same NFS mount stays, as ``.nfs…``, until the
            # reader closes it; a reader has an intent open for as long as it takes to read it.
            if error.errno not in _IN_USE or time.monotonic() >= until:
                raise
            time.sleep(_POLL_SECONDS)
    sync_directory(directory)


def withdraw(directory: str, guard: Guard) -> None:
    """Remove a guard whose commit has written nothing, without undoing anything."""
    # The intent goes first: any writer that finds a guard without an intent only removes it.
    remove_file(guard.intent_path, missing_ok=True)
    _release_guard(directory, guard, is_clean=False)


def _remove(guard: Guard) -> None:
    # The intent goes last: a guard with an intent can be recovered again, and a guard without one
    # is only removed.
    for name in sorted(list_names(guard.path), key=lambda name: name == INTENT_FILE):
        path = os.path.join(guard.path, name)
        if path == guard.state_path and is_directory(path):  # last, with the guard itself
            continue
        remove_file(path, missing_ok=True)  # a reader has closed its ``.nfs…`` file
    with contextlib.suppress(FileNotFoundError):
        remove_directory(guard.state_path)
    remove_directory(guard.path)
