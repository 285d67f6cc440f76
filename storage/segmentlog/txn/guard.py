"""The guard of an unfinished change, and the intent in it.

::

    segmentlog.unfinished.<token>/    the guard: stands while a change is unfinished
        intent                        the partitions before and after, and the effects
        state                         the next state; renamed to `segmentlog.state`, it decides

A broker refuses to start on a directory with a guard, because a partition cannot have the name of
a guard, and prints that name.  Both files are JSON.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from segmentlog.errors import CorruptCheckpointError
from segmentlog.format.names import CLEAN_SHUTDOWN_FILE
from segmentlog.log.segment import Segment
from segmentlog.model import TopicPartition
from segmentlog.store.durable import parent_of, remove_file, rename
from segmentlog.store.readable import FileType, exists, is_directory, list_names, status_of
from segmentlog.store.system_errors import FULL
from segmentlog.txn.effects import (
    Effect,
    TakeOut,
    check_topic_path,
    decode_effects,
    encode_effects,
)
from segmentlog.txn.state import REMEDY, check_types, read_json, to_json

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
    """One partition of a commit."""

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
            rename(self.path, self.path + _RECOVERING)
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
