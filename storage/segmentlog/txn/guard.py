"""The guard of an unfinished change, the intent in it, and what becomes of both after a crash.

::

    segmentlog.unfinished.<token>/    the guard: stands while a change is unfinished
        intent                        the partitions before and after, and the effects
        state                         the next state; renamed to `segmentlog.state`, it decides

A broker refuses to start on a directory with a guard, because a partition cannot have the name of
a guard, and prints that name.  Both files are JSON.

A decided change is finished, and an undecided one is undone, of any writer.  To undo, bytes after
the old ends are cut off.  To finish, the effects of the intent are applied.  Both give the same
result when they are repeated, so either can be begun again after a crash in the middle.
"""

import contextlib
import errno
import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum, auto
from typing import Any, NamedTuple

from segmentlog.errors import CorruptCheckpointError, LogDirectoryError
from segmentlog.format.names import (
    CLEAN_SHUTDOWN_FILE,
    LOG_AND_SPARSE_INDEXES,
    FileKind,
    parse_segment_file,
    partition_path,
    segment_file_name,
)
from segmentlog.log.segment import Segment
from segmentlog.model import TopicPartition
from segmentlog.store.durable import (
    cut_file,
    do_together,
    parent_of,
    remove_directory,
    remove_file,
    rename,
    rename_directory,
    sync_directory,
    sync_file,
    writable,
)
from segmentlog.store.readable import FileType, exists, is_directory, list_names, status_of
from segmentlog.store.system_errors import FULL
from segmentlog.txn.effects import (
    Effect,
    Follow,
    TakeOut,
    check_topic_path,
    decode_effects,
    encode_effects,
)
from segmentlog.txn.state import REMEDY, State, check_types, read_json, to_json

logger = logging.getLogger(__name__)

INTENT_FILE = "intent"
GUARD_PREFIX = "segmentlog.unfinished."
_RECOVERING = ".recovering"
_INTENT_FORMAT = 1


class SegmentSizes(NamedTuple):
    """Bytes of a segment's files: an undo cuts those of an active segment; base -1 for none."""

    base_offset: int
    log: int
    offset_index: int
    time_index: int

    @classmethod
    def of(cls, segment: Segment) -> "SegmentSizes":
        """The sizes of a segment; a missing index counts as empty."""
        indexes = (segment.offset_index_path, segment.time_index_path)
        # The files count, and not their entries, as in Kafka.
        sizes = (status_of(each).size if exists(each) else 0 for each in indexes)
        return cls(segment.base_offset, segment.size, *sizes)


@dataclass(frozen=True, slots=True)
class PartitionIntent:
    """One partition of a commit.

    ::

        log start           visible_end               end_offset               new_end
        |  readers see it   |  above the high         |  what the work adds    |
        |  before, too      |  watermark, or nothing  |  readers see all of it once it is decided

    An overwrite has its `new_start` at `end_offset`, and retention before it.
    """

    topic: str
    partition: int
    #: of the active segment before the change; `end_offset` is the log end before the change
    sizes: SegmentSizes
    end_offset: int
    visible_end: int  # where reads ended before: at the high watermark, or else at the log end
    new_end: int  # the log end, and the high watermark, afterwards
    #: the log start afterwards, where a new segment begins; -1 if the start stays
    new_start: int = -1

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)

    @classmethod
    def decode(cls, found: Mapping[str, Any]) -> "PartitionIntent":
        """The partition's part of an intent that a file holds; errors as of `Intent.decode`."""
        check_types(found["sizes"], (int, int, int, int))
        intent = cls(**{**found, "sizes": SegmentSizes(*found["sizes"])})
        ends = intent.end_offset, intent.visible_end, intent.new_end, intent.new_start
        check_types((intent.topic, intent.partition, *ends), (str, int, int, int, int, int))
        # A topic that leads out of the log directory: an undo would cut files outside.
        check_topic_path(intent.topic)
        return intent


@dataclass(frozen=True, slots=True)
class Intent:
    """A change that is about to be made: enough to finish it, and to undo it."""

    token: str  # of the change
    after: str  # token of the state this intent builds on; with any other state the intent is void
    was_clean: bool  # whether the directory had a broker's mark of a clean stop
    is_flushed: bool  # whether appended bytes are synced before the change is decided
    #: partitions that the change appends to, or whose bounds it moves
    partitions: Sequence[PartitionIntent]
    effects: Sequence[Effect]  # what is applied once the change is decided, in this order

    @property
    def new_starts(self) -> dict[TopicPartition, int]:
        """The log starts that move."""
        return {
            each.topic_partition: each.new_start for each in self.partitions if each.new_start >= 0
        }

    @property
    def taken_out(self) -> set[str]:
        """The topics that the change deletes."""
        return {each.topic for each in self.effects if isinstance(each, TakeOut)}

    @property
    def exchanged(self) -> dict[TopicPartition, tuple[int, str]]:
        """Of each log whose end is exchanged, the offset from which on old segments leave it.

        The second item is the name of the oldest new ``.log`` file.
        """
        return {
            each.topic_partition: (each.first, each.oldest_log)
            for effect in self.effects
            if isinstance(effect, Follow)
            for each in effect.followed()
            if each.oldest_log
        }

    def encode(self) -> bytes:
        """Bytes of the file."""
        fields = asdict(replace(self, effects=()))
        return to_json(_INTENT_FORMAT, fields | {"effects": encode_effects(self.effects)})

    @classmethod
    def decode(cls, found: Mapping[str, Any]) -> "Intent":
        """The intent that a file holds; malformed, it raises what `Guard.intent` catches."""
        fields = {name: each for name, each in found.items() if name != "format"}
        fields["partitions"] = [PartitionIntent.decode(each) for each in found["partitions"]]
        fields["effects"] = decode_effects(found["effects"])
        intent = cls(**fields)
        check_types(
            (intent.token, intent.after, intent.was_clean, intent.is_flushed),
            (str, str, bool, bool),
        )
        return intent


class Guard:
    """The directory that stands while a commit is unfinished."""

    def __init__(self, directory: str, name: str) -> None:
        self.path = os.path.join(directory, name)
        self.intent_path = os.path.join(self.path, INTENT_FILE)
        self.state_path = os.path.join(self.path, "state")
        self.token = name.removeprefix(GUARD_PREFIX).removesuffix(_RECOVERING)

    @classmethod
    def of_job(cls, directory: str, token: str) -> "Guard":
        """The guard of a job that is about to commit."""
        return cls(directory, GUARD_PREFIX + token)

    def intent(self) -> Intent | None:
        """The intent; None if nothing was touched yet.  May raise `CorruptCheckpointError`."""
        try:
            found = read_json(self.intent_path, (_INTENT_FORMAT,))
        except FileNotFoundError:
            return None
        try:
            return Intent.decode(found)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            path = self.intent_path
            raise CorruptCheckpointError(path, 1, f"cannot be read: {error!r}", REMEDY) from None

    def seize(self) -> "Guard":
        """Take the guard over from a writer that is gone."""
        # If the writer is not gone after all, its decision fails: the path from which it renames
        # is gone. On a network file system this does not suffice. There a rename uses the handles
        # of its directories: a client that remembers the guard, or repeats a request that was held
        # up, succeeds in the guard under any name. So every file that a late writer could still
        # rename is removed, and a directory is put in the place of the state: it can neither
        # create nor rename a file there.
        seized = self
        if not self.path.endswith(_RECOVERING):
            rename_directory(self.path, self.path + _RECOVERING)
            seized = Guard(*os.path.split(self.path + _RECOVERING))
        seized._bar()
        return seized

    def _bar(self) -> None:
        while not is_directory(self.state_path):
            for name in list_names(self.path):
                # To finish or undo takes the intent, and puts the mark back.
                if name not in {INTENT_FILE, CLEAN_SHUTDOWN_FILE}:
                    remove_file(os.path.join(self.path, name))
            try:
                with parent_of(self.state_path) as (parent, name):
                    os.mkdir(name, dir_fd=parent)
            except FileExistsError:  # the writer has just made the file
                continue
            except OSError as error:
                if error.errno not in FULL:
                    raise
                return  # a full disk takes no new state either, and an undo has to make room


def list_guards(directory: str, names: Iterable[str] | None = None) -> list[Guard]:
    """Guards of unfinished commits."""
    # Writers exclude each other, so a writer that finds a guard finds one that a crash has left.
    names = list_names(directory) if names is None else names
    names = sorted(name for name in names if name.startswith(GUARD_PREFIX))
    # A topic may have a guard's name, but the directories of its partitions have a dash.
    return [
        Guard(directory, name)
        for name in names
        if "-" not in name and _is_no_link(os.path.join(directory, name))
    ]


def _is_no_link(path: str) -> bool:
    """Whether the path is a directory and no link; brokers pass over everything else."""
    try:
        return status_of(path).type is FileType.DIRECTORY
    except FileNotFoundError:
        return False


#: Errors of an unlink, or of the removal of a directory, if files are open.
_IN_USE = {errno.EBUSY, errno.ENOTEMPTY, errno.EEXIST}
_MOST_SECONDS = 5.0
_POLL_SECONDS = 0.05


class CommitFate(Enum):
    """The progress of a guard's commit."""

    NOT_BEGUN = auto()  #: the guard is only removed
    UNDECIDED = auto()  #: the commit is undone
    DECIDED = auto()  #: the commit is finished


def fate_of(guard: Guard, intent: Intent | None, state: State) -> CommitFate:
    """The progress of a commit, by its intent and the state of the directory."""
    # An intent that builds on another state than the present one has begun nothing either: its
    # writer had lost the lock (`segmentlog.txn.change.raise_guard`).
    if intent is None or state.token not in {guard.token, intent.after}:
        return CommitFate.NOT_BEGUN
    return CommitFate.DECIDED if state.token == guard.token else CommitFate.UNDECIDED


def decided_intents(directory: str) -> list[Intent]:
    """The changes that are decided, and whose effects are perhaps not applied yet."""
    try:
        guards = list_guards(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = []
    for guard in guards:
        intent = guard.intent()
        if (
            intent is not None
            and fate_of(guard, intent, State.read(directory)) is CommitFate.DECIDED
        ):
            found.append(intent)
    return found


def topics_taken_out(directory: str) -> set[str]:
    """Topics whose deletion is decided, but not finished: readers must not find them."""
    return {topic for intent in decided_intents(directory) for topic in intent.taken_out}


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
        if intent is None or fate is CommitFate.NOT_BEGUN:
            withdraw(directory, guard)
            done.append(f"removed {found.path}, whose commit had not begun to write")
        elif fate is CommitFate.DECIDED:
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


def give_up(directory: str, guard: Guard, intent: Intent, *, is_begun: bool) -> None:
    """Undo our own commit, unless another writer has taken it over and may have appended.

    `is_begun`: whether our guard was found to be the only one, on the state of the intent.
    """
    try:
        seized = guard.seize()
    except FileNotFoundError:
        return
    if is_begun:
        _undo(directory, seized, intent)
    else:
        # If the lock was lost, the bytes after the ends in the intent are another writer's. A mark
        # in the guard is true: it moves there last.
        withdraw(directory, seized, is_clean=intent.was_clean)


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


def withdraw(directory: str, guard: Guard, *, is_clean: bool = False) -> None:
    """Remove a guard whose commit has written nothing, without undoing anything."""
    # The intent goes first: any writer that finds a guard without an intent only removes it.
    remove_file(guard.intent_path, missing_ok=True)
    _release_guard(directory, guard, is_clean=is_clean)


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
