"""A held log directory, and one atomic change of it: as a whole or not at all, at any crash.

A log directory is either *viewed*, at one moment and without a lock (`segmentlog.reads.snapshot`),
or *held*: locked, and without unfinished changes.  All that changes a directory holds it: a job
when it begins and when it commits, retention, deletions, compaction, recovery, new settings.

A commit, an overwrite, retention, deleted records and the deletion of a topic are changes.  All of
them take the steps that `ChangeStep` names.  `segmentlog.txn.guard` undoes a change that crashed
before its decision, and finishes a change that crashed after it.
"""

import contextlib
import logging
import os
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

from segmentlog.errors import (
    CommitInDoubtError,
    LogDirectoryError,
    LogLockedError,
    SegmentLogError,
    SyncFailedError,
)
from segmentlog.format.names import CLEAN_SHUTDOWN_FILE, LOCK_FILE
from segmentlog.format.topic_config import TopicConfig
from segmentlog.log.checkpoint import ReadCheckpoints
from segmentlog.model import TopicPartition
from segmentlog.store.durable import (
    SyncTogether,
    boot_id,
    create_directory,
    opened_directory,
    rename,
    replace_file,
    sync_directory,
    sync_file,
    write_new_file,
)
from segmentlog.store.lock import DirectoryLock
from segmentlog.store.readable import exists
from segmentlog.store.system_errors import FULL
from segmentlog.txn.effects import Effect
from segmentlog.txn.guard import (
    Guard,
    Intent,
    PartitionIntent,
    finish,
    give_up,
    list_guards,
    recover_commits,
    withdraw,
)
from segmentlog.txn.state import STATE_FILE, State, renew_stamp, set_later
from segmentlog.txn.topics import remove_due, topics_aside

logger = logging.getLogger(__name__)

#: The settings of a topic.
ConfigOf: TypeAlias = Callable[[str], TopicConfig]

#: The work of a change: adds to the logs, and changes nothing that was there before.  What it adds
#: to its argument is on the disk before the decision; it syncs itself what it does not add.  If
#: the disk is full, it is called again after an undo, unless the change is not repeatable.
Work: TypeAlias = Callable[[SyncTogether], object]

#: Adds to the next state what a change is to remember besides its effects.  It is called after the
#: work, and again if the work was done again; it touches no file.
Noted: TypeAlias = Callable[[State], State]


class ChangeStep(Enum):
    """The steps of a change, in their order; each is on the disk before the next begins.

    ``docs/commit.md`` prints them.
    """

    PREPARE = (
        "a change that an earlier writer has left is finished or undone, and the logs that change "
        "are made ready to append to; each gets an entry in the checkpoint of the high "
        "watermarks, because without one, readers would read to the log end"
    )
    GUARD = (
        "the guard is made, with the intent in it: from here on no broker starts, and readers "
        "take the bounds of partitions from the intent, not from the files; then the mark of a "
        "clean stop moves into the guard, because it must not vouch for the next steps"
    )
    WORK = (
        "batches, index entries and new segments are written after the ends that the intent "
        "names; nothing that was there before is changed"
    )
    DECISION = "`state` is renamed from the guard to `segmentlog.state`: **this rename decides**"
    EFFECTS = (
        "the effects that the intent lists are applied; then the mark comes back, and the guard "
        "goes: a broker may start"
    )
    REMOVAL = "the files that have left their logs are removed, if they are due"


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
            # That is on the disk first: once no checkpoint shows the loss, nobody would find it.
            before = State.read(self.directory)
            self._forget(before, before.cut(cuts))
        checkpoints.lower_to(ends)

    def forget_cut(self, each: TopicPartition, end: int) -> None:
        """Count writes as not done whose records a cut of a log takes away, before it is cut."""
        before = State.read(self.directory)
        if any(span[each][1] > end for span in before.spans.values() if each in span):
            self._forget(before, before.cut({each: end}))

    def forget_former(self, topics: Mapping[str, str]) -> None:
        """Count writes as not done that went to former topics of these names, with their ids."""
        before = State.read(self.directory)
        self._forget(before, before.without_former(topics))

    def forget_lost(self, each: TopicPartition, lost: Sequence[tuple[int, int]]) -> None:
        """Count writes as not done whose records lay in these ranges of a log, before they go."""
        before = State.read(self.directory)
        self._forget(before, before.without_offsets({each: lost}))

    def _forget(self, before: State, after: State) -> None:
        """Numbered writes and batches of streams whose records are lost count as not done."""
        if lost := before.writes_lost_in(after):
            path = os.path.join(self.directory, STATE_FILE)
            replace_file(path, after.encode())
            self.has_cut_writes = True
            renew_stamp(self.directory)
            logger.warning(
                "%s: counts as not done, because its records are lost: %s",
                self.directory,
                "; ".join(lost),
            )

    def delay_of(self, topic: str) -> int:
        """``file.delete.delay.ms`` of a topic."""
        return self.config_of(topic).file_delete_delay_ms

    def remove_due(self, topics: Collection[str] | None = ()) -> None:
        """Remove files that left their logs long enough ago (`segmentlog.txn.topics`)."""
        remove_due(self.directory, self.delay_of, topics)

    def end_changes(self, *, is_asked: bool = False) -> list[str]:
        """Finish or undo the changes that a crash has left; see `recover_commits`."""
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


@dataclass(frozen=True, slots=True)
class Change:
    """A change that is about to be made; `begin` looks at the directory before it."""

    held: HeldDirectory  # the log directory, without unfinished changes
    token: str  # names the change, and its guard
    before: State  # the state of the directory, on which the change builds
    was_clean: bool  # whether the directory had a broker's mark of a clean stop

    @classmethod
    def begin(cls, held: HeldDirectory, token: str | None = None) -> "Change":
        """A change of the directory as it is now."""
        return cls(held, token or secrets.token_hex(8), State.read(held.directory), held.is_clean)

    @property
    def directory(self) -> str:
        """The log directory."""
        return self.held.directory

    @property
    def boot(self) -> str:
        """The boot during which all bytes that may be unsynced were written; ``""`` if unknown."""
        # A directory with the mark of a clean stop has no such bytes yet. A directory that had
        # lost the mark before this boot may have lost bytes, too.
        return boot_id() if self.was_clean or self.before.boot == boot_id() else ""

    def carry_out(
        self,
        partitions: Sequence[PartitionIntent],
        effects: Sequence[Effect],
        work: Work = lambda _: None,
        *,
        is_flushed: bool = True,
        is_repeatable: bool = True,
        noted: Noted = lambda state: state,
    ) -> None:
        """Make the change: all steps after `ChangeStep.PREPARE`.

        A callback does the work, and not the body of a ``with``: an interrupt between that body
        and ``__exit__`` would neither undo nor decide.

        `partitions`: before and after the change; their logs are ready to append to.  `effects`:
        what follows from the decision, in this order.  `is_flushed`: whether all that `work`
        writes is synced.  `is_repeatable`: whether `work` can be done again after an undo.  If the
        disk is full, the effects make room, and the change is made once more.  Raises
        `LogLockedError` if another writer has committed meanwhile, although the lock should have
        excluded it.  Raises `CommitInDoubtError` if the system does not say whether the decision
        has reached the disk.  Raises `OSError` or `SegmentLogError` if another step before the
        decision failed, which is then undone.  Raises `SyncFailedError` if the disk did not keep
        the bytes: nothing is visible, and the guard stands until the next writer, because a disk
        that fails cannot be trusted to carry out the undo either.
        """
        # Logs that have lost records change the state when they are prepared.
        before = State.read(self.directory) if self.held.has_cut_writes else self.before
        intent = Intent(self.token, before.token, self.was_clean, is_flushed, partitions, effects)
        self.held.forget_checkpoints()
        try:
            self._reach_decision(intent, before, work, noted)
        except OSError as error:
            is_full = is_repeatable and error.errno in FULL
            if not is_full or True not in [each.make_room(self.directory) for each in effects]:
                raise
            self._reach_decision(intent, before, work, noted)
        self._follow_decision(intent)

    def _reach_decision(
        self,
        intent: Intent,
        before: State,
        work: Work,
        noted: Noted,
    ) -> None:
        """From the guard to the decision; a failure undoes it, but for a lost sync or lock."""
        guard, syncs = Guard.of_job(self.directory, self.token), SyncTogether()
        is_begun = False
        try:
            # GUARD.
            raise_guard(self.directory, guard, intent)
            is_begun = True
            # WORK, synced before the decision: in the other order, a power cut leaves a
            # change that is decided for all partitions, and has batches in some of them only.
            work(syncs)
            syncs.finish()
            # DECISION, with the time after the work, which may take long.
            state = noted(before.next(self.token, int(time.time() * 1000)))
            aside = topics_aside(self.directory, state.aside)
            state = replace(state, aside=aside, boot=self.boot)
            for effect in intent.effects:
                state = effect.noted_in(state)
            decide(self.directory, guard, state)
        except (SyncFailedError, LogLockedError):
            raise
        except BaseException:
            # An interrupt may follow the decision.
            if State.read(self.directory).token != self.token:
                give_up(self.directory, guard, intent, is_begun=is_begun)
            raise
        finally:
            syncs.abandon()

    def _follow_decision(self, intent: Intent) -> None:
        """The effects and removals.  Decided is decided: the next writer does what fails here."""
        guard = Guard.of_job(self.directory, self.token)
        # EFFECTS.
        try:
            finish(self.directory, guard, intent)
        except (OSError, SegmentLogError) as error:
            logger.warning("%s: decided, but its guard is still there: %s", guard.path, error)
            return
        # REMOVAL, without the guard: they may take long, and a crash in them must not keep a
        # broker from starting.
        for each in intent.effects:
            try:
                each.tidy(self.directory, self.held.delay_of)
            except (OSError, SegmentLogError) as error:
                logger.warning("%s: files of removed records remain: %s", self.directory, error)


def raise_guard(directory: str, guard: Guard, intent: Intent) -> None:
    """Create the guard, and move the mark of a clean stop into it; or raise `LogLockedError`."""
    create_directory(guard.path)
    replace_file(guard.intent_path, intent.encode())
    sync_directory(directory)
    # The lock excludes other writers unless it was lost while its holder was held up: a lease of a
    # network file system expired, or the machine was suspended. After another writer's change, our
    # intent describes an outdated state, and must never be used to undo. Our guard stands before
    # we look for another's: of two writers that looked first, each would find itself alone.
    guards = [each.path for each in list_guards(directory)]
    is_alone = guards == [guard.path]
    if is_alone and State.read(directory).token == intent.after:
        renew_stamp(directory)  # before the first byte is written, for readers
        if not intent.was_clean:
            return
        # The move is on the disk with the decision.  A power cut before may bring the mark back,
        # which does no harm: the guard stands, and the undo makes the mark true again.
        # The mark moves once nothing can make us withdraw: `withdraw` deletes a mark that it finds
        # in the guard, and then the next start would check every log.
        mark = os.path.join(directory, CLEAN_SHUTDOWN_FILE)
        with contextlib.suppress(FileNotFoundError):  # another's change has it
            rename(mark, os.path.join(guard.path, CLEAN_SHUTDOWN_FILE))
            return
    with contextlib.suppress(OSError):  # it may have been taken over, and be gone
        withdraw(directory, guard)
    raise LogLockedError(directory, 0, 0.0, is_lost=True)


def decide(directory: str, guard: Guard, state: State) -> None:
    """Put the state of the guard in the place of the last one, or raise `CommitInDoubtError`."""
    path = os.path.join(directory, STATE_FILE)
    write_new_file(guard.state_path, state.encode())
    # Before the rename: a file that got its time afterwards could have the stamp of the state
    # before for a moment, and a listing across the decision would pass for one of one moment.
    with contextlib.suppress(PermissionError):  # a mount that forces another owner
        set_later(guard.state_path, path)
    # Opened before the rename: with too many open files, the decision would stay in doubt.
    with opened_directory(directory) as descriptor:
        try:
            rename(guard.state_path, path)
        except OSError:  # a network file system may have done what it reports as failed
            if State.read(directory).token != state.token:
                raise
        try:
            sync_file(descriptor, directory)
        except SyncFailedError as error:
            raise CommitInDoubtError(guard.path, str(error)) from error
