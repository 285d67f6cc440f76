"""The steps that all commits share: the guard stands, the state decides, the rest is derived.

`segmentlog.append.commit_staged` has the steps before the decision.  The deletion of a topic has
none.
"""

import contextlib
import logging
import os

from segmentlog.commit.guard import Guard, Intent, list_guards
from segmentlog.commit.stamp import renew_stamp, set_later
from segmentlog.commit.state import STATE_FILE, State
from segmentlog.commit.unfinished import finish, withdraw
from segmentlog.disk.durable import adopt, replace_file, sync_directory, write_new_file
from segmentlog.errors import CommitInDoubtError, LogLockedError, SegmentLogError, SyncFailedError
from segmentlog.names import CLEAN_SHUTDOWN_FILE

__all__ = ["decide", "finish_decided", "stand"]

logger = logging.getLogger(__name__)


def stand(directory: str, guard: Guard, intent: Intent) -> None:
    """Make the guard, and put the mark of a clean stop into it.

    The lock excludes other writers unless it was lost while its holder was held up: a lease of a
    network file system expired, or the machine was suspended.  Another writer's commit, finished
    or in progress, is detected here.  Our intent then describes an outdated state and must never
    be used to undo.

    Raises
    ------
    LogLockedError
        If another writer has come in between.
    """
    os.mkdir(guard.path)
    adopt(guard.path)
    replace_file(guard.intent_path, intent.encode())
    sync_directory(directory)
    # Our guard stands before we look for another's: of two writers that looked first, each would
    # find itself alone.
    guards = [each.path for each in list_guards(directory)]
    is_alone = guards == [guard.path]
    if is_alone and State.read(directory).token == intent.after:
        renew_stamp(directory)  # before the first byte is written, for readers
        if not intent.was_clean:
            return
        # The mark moves once nothing can make us withdraw: `withdraw` deletes a mark that it finds
        # in the guard, and then the next start would check every log.
        mark = os.path.join(directory, CLEAN_SHUTDOWN_FILE)
        with contextlib.suppress(FileNotFoundError):  # another's commit has it
            os.rename(mark, os.path.join(guard.path, CLEAN_SHUTDOWN_FILE))
            return
    with contextlib.suppress(OSError):  # it may have been taken over, and be gone
        withdraw(directory, guard)
    raise LogLockedError(directory, 0, 0.0)


def decide(directory: str, guard: Guard, state: State) -> None:
    """Put the state of the guard in the place of the last one.

    Raises
    ------
    CommitInDoubtError
        If the system does not say whether that has reached the disk.
    """
    path = os.path.join(directory, STATE_FILE)
    write_new_file(guard.state_path, state.encode())
    # Before the rename: a file that got its time afterwards could have the stamp of the state
    # before for a moment, and a listing across the decision would pass for one of one moment.
    with contextlib.suppress(PermissionError):  # a mount that forces another owner
        set_later(guard.state_path, path)
    try:
        os.replace(guard.state_path, path)
    except OSError:  # a network file system may have done what it reports as failed
        if State.read(directory).token != state.token:
            raise
    try:
        sync_directory(directory)
    except SyncFailedError as error:
        raise CommitInDoubtError(guard.path, str(error)) from error


def finish_decided(directory: str, guard: Guard, intent: Intent) -> bool:
    """Derive what follows from our decision, and remove the guard.

    Decided is decided: a failure is only a warning, and the next writer does the rest.

    Returns
    -------
    is_finished : whether the guard is gone.
    """
    try:
        finish(directory, guard, intent)
    except (OSError, SegmentLogError) as error:
        logger.warning("%s: decided, but the guard still stands: %s", guard.path, error)
        return False
    return True
