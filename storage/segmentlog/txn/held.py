"""A held log directory: locked, and without unfinished changes.

A log directory is either *viewed*, at one moment and without a lock
(`segmentlog.reads.snapshot`), or *held*.  All that changes a directory holds it: a job when
it begins and when it commits, retention, deletions, compaction, recovery, new settings.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TypeAlias

from segmentlog.errors import LogDirectoryError
from segmentlog.format.names import CLEAN_SHUTDOWN_FILE, LOCK_FILE
from segmentlog.format.topic_config import TopicConfig
from segmentlog.log.checkpoint import ReadCheckpoints
from segmentlog.model import TopicPartition
from segmentlog.store.durable import replace_file
from segmentlog.store.lock import DirectoryLock
from segmentlog.store.readable import exists
from segmentlog.store.system_errors import FULL
from segmentlog.txn.effects import Effect
from segmentlog.txn.guard import list_guards
from segmentlog.txn.state import STATE_FILE, State, renew_stamp
from segmentlog.txn.topics import remove_due
from segmentlog.txn.unfinished import recover_commits

logger = logging.getLogger(__name__)

#: The settings of a topic.
ConfigOf: TypeAlias = Callable[[str], TopicConfig]


class HeldDirectory:
    """A log directory whose lock this process holds, but for a dry run, which changes no file.

    `has_cut_writes`: whether `lower_to` has changed the state of the directory.
    """

    def __init__(
        self,
        directory: str,
        config_of: ConfigOf = lambda _: TopicConfig(),
        *,
        lock: DirectoryLock | None = None,
        dry_run: bool = False,
    ) -> None:
        self.directory = directory
        self.config_of = config_of
        self.lock = lock
        self.may_write = not dry_run
        self.has_cut_writes = False
        self._checkpoints: ReadCheckpoints | None = None

    @property
    def is_clean(self) -> bool:
        """Whether the directory has the mark of a clean stop: all bytes are then synced."""
        return exists(os.path.join(self.directory, CLEAN_SHUTDOWN_FILE))

    @property
    def checkpoints(self) -> ReadCheckpoints:
        """The checkpoints by which logs are prepared; the caller that changes them writes them."""
        if self._checkpoints is None:
            self._checkpoints = ReadCheckpoints(self.directory)
        return self._checkpoints

    def forget_checkpoints(self) -> None:
        """Read the checkpoints again at their next use: a change replaces the files."""
        self._checkpoints = None

    def lower_to(
        self, ends: Mapping[TopicPartition, int], known: ReadCheckpoints | None = None
    ) -> None:
        """Lower checkpoints that exceed the ends of their logs, which have lost records."""
        checkpoints = self.checkpoints if known is None else known
        promised = checkpoints.high_watermarks.offsets
        cuts = {each: end for each, end in ends.items() if promised.get(each, end) > end}
        if cuts:
            # Numbered writes and batches of streams whose records are lost count as not done. That
            # is on the disk first: once no checkpoint shows the loss, nobody would find it.
            before = State.read(self.directory)
            after = before.cut(cuts)
            if lost := before.writes_lost_in(after):
                path = os.path.join(self.directory, STATE_FILE)
                replace_file(path, after.encode())
                self.has_cut_writes = True
                renew_stamp(self.directory)
                logger.warning(
                    "%s: counts as not done, because its records are lost: %s",
                    self.directory, "; ".join(lost),
                )  # fmt: skip
        checkpoints.lower_to(ends)

    def delay_of(self, topic: str) -> int:
        """``file.delete.delay.ms`` of a topic."""
        return self.config_of(topic).file_delete_delay_ms

    def remove_due(self, topics: Collection[str] | None = ()) -> None:
        """Remove files that left their logs long enough ago; see `put_aside.remove_due`."""
        remove_due(self.directory, self.delay_of, topics)

    def end_changes(self, *, is_asked: bool = False) -> list[str]:
        """Finish or undo the changes that a crash has left; see `unfinished.recover_commits`."""
        return recover_commits(self.directory, is_asked=is_asked)

    def refuse_unfinished(self) -> None:
        """Refuse a directory in which a change is unfinished, by `LogDirectoryError`."""
        if list_guards(self.directory):
            reason = "has an unfinished commit; run segmentlog recover first"
            raise LogDirectoryError(self.directory, reason)


@contextlib.contextmanager
def take(
    directory: str, timeout_seconds: float, *, dry_run: bool = False
) -> Iterator[HeldDirectory]:
    """Hold a directory as it is, with changes that a crash has left; or raise `LogLockedError`.

    A dry run makes no lock file: without one, no other process holds the directory.  A lock file
    on a file system that is mounted read-only, such as a snapshot, cannot be locked either.
    """
    if dry_run:
        has_lock = exists(os.path.join(directory, LOCK_FILE))
        if not has_lock or os.statvfs(directory).f_flag & os.ST_RDONLY:
            yield HeldDirectory(directory, dry_run=True)
            return
    with DirectoryLock(directory, timeout_seconds) as lock:
        yield HeldDirectory(directory, lock=None if dry_run else lock, dry_run=dry_run)


@contextlib.contextmanager
def hold(
    directory: str,
    timeout_seconds: float,
    config_of: ConfigOf | None = None,
    *,
    dry_run: bool = False,
    make_room: Callable[[HeldDirectory], object] | None = None,
    effects: Callable[[], Iterable[Effect]] = tuple,
    held: HeldDirectory | None = None,
) -> Iterator[HeldDirectory]:
    """Hold a directory in which no change is unfinished: each is finished or undone first.

    `config_of`: the settings of its topics.  They are asked for under the lock: another process
    may change them while this one waits.  `make_room`: is called first if files may be changed.  A
    full disk would otherwise keep out the very command that frees space, because a guard and a
    state need some.  `effects`: of the change that the caller is about to make, as far as they
    make room.  They are asked for if the disk is too full to finish a decided change: its guard
    would otherwise keep out every command that frees space.  `held`: the directory, if the caller
    holds it already; then its lock is neither taken nor given up.  Raises `LogLockedError` if a
    broker or a writer holds the directory.  Raises `LogDirectoryError` if this is a dry run, and a
    change is unfinished; if an unfinished change cannot be undone.  Raises
    `CorruptCheckpointError` if a change is unfinished, and its intent or the state cannot be read.
    """
    taken = take(directory, timeout_seconds, dry_run=dry_run)
    with taken if held is None else contextlib.nullcontext(held) as found:
        if config_of is not None:
            found.config_of = config_of
        if dry_run:
            found.refuse_unfinished()
        else:
            if make_room is not None:
                make_room(found)
            try:
                found.end_changes()
            except OSError as error:
                is_full = error.errno in FULL
                if not is_full or True not in [each.make_room(directory) for each in effects()]:
                    raise
                found.end_changes()
        yield found
