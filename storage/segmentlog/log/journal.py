"""The two small files that make a commit atomic: the intent in its guard, and the state.

::

    segmentlog.state                  the last commit: its token, and how far each sink has come
                                      in each topic
    segmentlog.unfinished.<token>/    the guard: stands while a commit is unfinished
        intent                        sizes and ends of the partitions, before and after
        state                         the next state; renamed to `segmentlog.state`, it decides

A broker refuses to start on a directory with a guard, because its name is no partition's, and says
its name.  Both files are JSON.
"""

import errno
import json
import os
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, cast

from segmentlog.errors import CorruptCheckpointError
from segmentlog.files.names import CLEAN_SHUTDOWN_FILE
from segmentlog.files.whole import read_whole
from segmentlog.log.deletions import Deletion, decode_deletions, forget_deletions
from segmentlog.log.sink_versions import (
    Sinks,
    SinkVersion,
    decode_sinks,
    decode_sinks_of_format_1,
    encode_sinks,
    forget_sinks,
)
from segmentlog.model import TopicPartition

__all__ = [
    "INTENT_FILE",
    "STATE_FILE",
    "Guard",
    "Intent",
    "PartitionIntent",
    "Replaced",
    "SegmentSizes",
    "SinkVersion",
    "State",
    "list_guards",
]

STATE_FILE = "segmentlog.state"
INTENT_FILE = "intent"
_GUARD_PREFIX = "segmentlog.unfinished."
_RECOVERING = ".recovering"
_STATE_FORMAT = 2  #: 1 had versions of sinks without topics and times
_INTENT_FORMAT = 1
_REMEDY = "it was not written by this version of segmentlog; restore it, or ask for help with it"


class SegmentSizes(NamedTuple):
    """Bytes of the files of an active segment: what an undo cuts them back to."""

    base_offset: int
    log: int
    offset_index: int
    time_index: int


class Replaced(NamedTuple):
    """Segments below `end_offset` are no part of a log any more, since `time_ms` (epoch)."""

    topic: str
    partition: int
    end_offset: int
    time_ms: int

    @property
    def topic_partition(self) -> TopicPartition:
        """Whose they are."""
        return TopicPartition(self.topic, self.partition)

    @classmethod
    def decode(cls, found: Sequence[Any]) -> "Replaced":
        """One that a file holds.

        Raises
        ------
        TypeError, ValueError
            If it is none; one whose topic leads out of the log directory would delete there.
        """
        _check_types(found, (str, int, int, int))
        replaced = cls(*found)
        if os.sep in replaced.topic:
            raise ValueError(f"{replaced.topic!r} is no topic")
        return replaced


@dataclass(frozen=True, slots=True)
class State:
    """What the last commit has left.

    Attributes
    ----------
    sequence : number of commits.
    token : of the last one.
    time_ms : when it took place, by the clock of its machine (epoch).
    sinks : version that each sink has come to in each topic.
    replaced : what commits have taken out of logs, whose files still stand for readers.
    deleted : topics that were deleted: one that has the same name now is another one.
    """

    sequence: int = 0
    token: str = ""
    time_ms: int = 0
    sinks: Sinks = field(default_factory=dict)
    replaced: Sequence[Replaced] = ()
    deleted: Sequence[Deletion] = ()

    @classmethod
    def read(cls, directory: str) -> "State":
        """State of a log directory; a fresh one when there is none.

        Raises
        ------
        CorruptCheckpointError
            If the file cannot be understood.
        """
        path = os.path.join(directory, STATE_FILE)
        try:
            found = _read_json(path, (_STATE_FORMAT, 1))
        except FileNotFoundError:
            return cls()
        try:
            return cls._decode(found)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptCheckpointError(path, 1, f"cannot be read: {error!r}", _REMEDY) from None

    @classmethod
    def _decode(cls, found: Mapping[str, Any]) -> "State":
        if found["format"] == 1:
            time_ms = int(time.time() * 1000)
            sinks = decode_sinks_of_format_1(found["sinks"], time_ms)
        else:
            time_ms, sinks = found["time_ms"], decode_sinks(found["sinks"])
        sequence, token = found["sequence"], found["token"]
        _check_types((sequence, token, time_ms), (int, str, int))
        replaced = [Replaced.decode(each) for each in found.get("replaced", ())]
        deleted = decode_deletions(found.get("deleted", ()))
        return cls(sequence, token, time_ms, sinks, replaced, deleted)

    def next(
        self,
        token: str,
        sink: SinkVersion | None,
        topics: Iterable[str],
        replaced: Sequence[Replaced],
        now_ms: int,
    ) -> "State":
        """The state once the commit with this token is decided.

        Parameters
        ----------
        topics : for which the version of `sink` counts from now on.
        """
        sinks = forget_sinks(self.sinks, self.time_ms, now_ms)
        if sink is not None:
            sinks |= {(sink.app_id, topic): (sink.version, now_ms) for topic in topics}
        deleted = forget_deletions(self.deleted, now_ms)
        return State(self.sequence + 1, token, now_ms, sinks, replaced, deleted)

    def without(self, topic: str, token: str, now_ms: int) -> "State":
        """The state once the deletion of a topic is decided; versions of sinks go with it."""
        left = [each for each in self.replaced if each.topic != topic]
        after = self.next(token, None, (), left, now_ms)
        sinks = {key: found for key, found in after.sinks.items() if key[1] != topic}
        others = [each for each in after.deleted if each.topic != topic]
        deleted = (*others, Deletion(topic, token, now_ms))
        return replace(after, sinks=sinks, deleted=deleted)

    def encode(self) -> bytes:
        """Bytes of the file; not by `asdict`, which copies every sink."""
        return _to_json(
            _STATE_FORMAT,
            {
                "sequence": self.sequence,
                "token": self.token,
                "time_ms": self.time_ms,
                "replaced": list(self.replaced),
                "deleted": list(self.deleted),
                "sinks": encode_sinks(self.sinks),
            },
        )


@dataclass(frozen=True, slots=True)
class PartitionIntent:
    """One partition of a commit.

    Attributes
    ----------
    sizes : of the active segment before; `end_offset` the log end there.
    visible_end : where reads ended before: the high watermark, or the log end without one.
    new_end : the log end, and the high watermark, afterwards.
    new_start : the log start afterwards, where a new segment begins; -1 when it stays.
    """

    topic: str
    partition: int
    sizes: SegmentSizes
    end_offset: int
    visible_end: int
    new_end: int
    new_start: int = -1

    @property
    def topic_partition(self) -> TopicPartition:
        """Which one."""
        return TopicPartition(self.topic, self.partition)

    @classmethod
    def decode(cls, found: Mapping[str, Any]) -> "PartitionIntent":
        """One that a file holds.

        Raises
        ------
        KeyError, TypeError, ValueError
            If it is none; one whose topic leads out of the log directory would cut files there.
        """
        _check_types(found["sizes"], (int, int, int, int))
        intent = cls(**{**found, "sizes": SegmentSizes(*found["sizes"])})
        ends = intent.end_offset, intent.visible_end, intent.new_end, intent.new_start
        _check_types((intent.topic, intent.partition, *ends), (str, int, int, int, int, int))
        if os.sep in intent.topic:
            raise ValueError(f"{intent.topic!r} is no topic")
        return intent


@dataclass(frozen=True, slots=True)
class Intent:
    """What a commit is about to do: enough to finish it, and to undo it.

    Attributes
    ----------
    token : of the job.
    after : token of the `State` that it was made after: of another one it says nothing.
    was_clean : whether the directory had a broker's mark of a clean stop.
    is_flushed : whether what it appends is synced before it is decided.
    partitions : that it appends to.
    deletes : the topic that it deletes instead.
    """

    token: str
    after: str
    was_clean: bool
    is_flushed: bool
    partitions: Sequence[PartitionIntent]
    deletes: str = ""

    def encode(self) -> bytes:
        """Bytes of the file."""
        return _to_json(_INTENT_FORMAT, asdict(self))

    @classmethod
    def decode(cls, found: Mapping[str, Any]) -> "Intent":
        """The intent that a file holds.

        Raises
        ------
        KeyError, TypeError, ValueError, AttributeError
            If it is none.
        """
        fields = {name: each for name, each in found.items() if name != "format"}
        fields["partitions"] = [PartitionIntent.decode(each) for each in found["partitions"]]
        intent = cls(**fields)
        _check_types(
            (intent.token, intent.after, intent.was_clean, intent.is_flushed, intent.deletes),
            (str, str, bool, bool, str),
        )
        return intent


class Guard:
    """The directory that stands while a commit is unfinished.

    Parameters
    ----------
    directory : the log directory.
    name : of the guard in it.
    """

    def __init__(self, directory: str, name: str) -> None:
        self.path = os.path.join(directory, name)
        self.intent_path = os.path.join(self.path, INTENT_FILE)
        self.state_path = os.path.join(self.path, "state")
        self.token = name.removeprefix(_GUARD_PREFIX).removesuffix(_RECOVERING)

    @classmethod
    def of_job(cls, directory: str, token: str) -> "Guard":
        """The guard of a job that is about to commit."""
        return cls(directory, _GUARD_PREFIX + token)

    def intent(self) -> Intent | None:
        """What the commit was about to do; None when it had not come to touching anything.

        Raises
        ------
        CorruptCheckpointError
            If the file cannot be understood.
        """
        try:
            found = _read_json(self.intent_path, (_INTENT_FORMAT,))
        except FileNotFoundError:
            return None
        try:
            return Intent.decode(found)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            path = self.intent_path
            raise CorruptCheckpointError(path, 1, f"cannot be read: {error!r}", _REMEDY) from None

    def seize(self) -> "Guard":
        """Take the guard over from a writer that is gone.

        If it is not gone after all, its decision fails: the path that it renames from is no more.
        On a network file system that does not do.  There a rename goes by the handles of its
        directories: a client that remembers the guard, or sends again what was held up on the
        way, gets it done in the guard under whatever name.  So what could be renamed goes, and a
        directory stands in the place of the state: no file can be made there, and the directory
        cannot be renamed over a file.
        """
        seized = self
        if not self.path.endswith(_RECOVERING):
            os.rename(self.path, self.path + _RECOVERING)
            seized = Guard(*os.path.split(self.path + _RECOVERING))
        seized._bar()
        return seized

    def _bar(self) -> None:
        while not os.path.isdir(self.state_path):
            for name in os.listdir(self.path):
                if name not in {INTENT_FILE, CLEAN_SHUTDOWN_FILE}:
                    os.unlink(os.path.join(self.path, name))
            try:
                os.mkdir(self.state_path)
            except FileExistsError:  # written right now
                continue
            except OSError as error:
                if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                    raise
                return  # a full disk takes no new state either, and an undo is to make room


def list_guards(directory: str) -> list[Guard]:
    """Guards of unfinished commits; writers exclude each other, so more than one is a crash's."""
    names = sorted(name for name in os.listdir(directory) if name.startswith(_GUARD_PREFIX))
    # A topic may be called like a guard; the directories of its partitions have a dash.
    return [
        Guard(directory, name)
        for name in names
        if "-" not in name and _is_directory(os.path.join(directory, name))
    ]


def _is_directory(path: str) -> bool:
    """Whether a directory is there, and no link: brokers pass over files of any name."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False


def _to_json(number: int, fields: Mapping[str, Any]) -> bytes:
    """Without an indent, for which `json` leaves its encoder in C."""
    return json.dumps({"format": number, **fields}, separators=(",", ":")).encode()


def _read_json(path: str, numbers: Sequence[int]) -> dict[str, Any]:
    """The object that a file of ours holds, if it is of a format with one of the numbers."""
    data = read_whole(path, lambda reason: CorruptCheckpointError(path, 1, reason, _REMEDY))
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpointError(path, 1, f"is no JSON: {error}", _REMEDY) from None
    number = found.get("format") if isinstance(found, dict) else None
    if type(number) is not int or number not in numbers:  # `true` is 1, for Python
        expected = " or ".join(map(str, sorted(numbers)))
        reason = f"expected format {expected}, found {str(found)[:80]!r}"
        raise CorruptCheckpointError(path, 1, reason, _REMEDY)
    return cast("dict[str, Any]", found)


def _check_types(found: Sequence[object], kinds: Sequence[type]) -> None:
    """Or a number that is none would be found out behind the decision."""
    if [type(each) for each in found] != list(kinds):
        expected = ", ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"expected {expected}; found {str(found)[:80]!r}")
