"""The two small files that make a commit atomic: the intent in its guard, and the state.

::

    segmentlog.state                  the last commit: its token, and how far each sink has come
    segmentlog.unfinished.<token>/    the guard: stands while a commit is unfinished
        intent                        sizes and ends of the partitions, before and after
        state                         the next state; renamed to `segmentlog.state`, it decides

A broker refuses to start on a directory with a guard, because its name is no partition's, and says
its name.  Both files are JSON.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from segmentlog.errors import CorruptCheckpointError
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
_VERSION = 1
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


class SinkVersion(NamedTuple):
    """A numbered write: a streaming query's batch, or a ``txnAppId`` with its ``txnVersion``."""

    app_id: str
    version: int


@dataclass(frozen=True, slots=True)
class State:
    """What the last commit has left.

    Attributes
    ----------
    sequence : number of commits.
    token : of the last one.
    sinks : version that each sink has come to, by its id.
    replaced : what commits have taken out of logs, whose files still stand for readers.
    """

    sequence: int = 0
    token: str = ""
    sinks: Mapping[str, int] = field(default_factory=dict)
    replaced: Sequence[Replaced] = ()

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
            found = _read_json(path)
        except FileNotFoundError:
            return cls()
        try:
            sinks = {str(name): int(version) for name, version in found["sinks"].items()}
            replaced = [Replaced(*each) for each in found.get("replaced", ())]
            return cls(int(found["sequence"]), str(found["token"]), sinks, replaced)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptCheckpointError(path, 1, f"cannot be read: {error!r}", _REMEDY) from None

    def next(self, token: str, sink: SinkVersion | None, replaced: Sequence[Replaced]) -> "State":
        """The state once the commit with this token is decided."""
        sinks = dict(self.sinks)
        if sink is not None:
            sinks[sink.app_id] = sink.version
        return State(self.sequence + 1, token, sinks, replaced)

    def has(self, sink: SinkVersion | None) -> bool:
        """Whether a sink's write has been committed before."""
        return sink is not None and self.sinks.get(sink.app_id, -1) >= sink.version

    def encode(self) -> bytes:
        """Bytes of the file."""
        return _to_json(asdict(self))


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
    """

    token: str
    after: str
    was_clean: bool
    is_flushed: bool
    partitions: Sequence[PartitionIntent]

    def encode(self) -> bytes:
        """Bytes of the file."""
        return _to_json(asdict(self))


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
            found = _read_json(self.intent_path)
        except FileNotFoundError:
            return None
        try:
            partitions = [
                PartitionIntent(**{**each, "sizes": SegmentSizes(*each["sizes"])})
                for each in found.pop("partitions")
            ]
            found.pop("format", None)
            return Intent(partitions=partitions, **found)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            path = self.intent_path
            raise CorruptCheckpointError(path, 1, f"cannot be read: {error!r}", _REMEDY) from None

    def seize(self) -> "Guard":
        """Take the guard over from a writer that is gone.

        If it is not gone after all, its decision fails: the path that it renames from is no more.
        """
        if self.path.endswith(_RECOVERING):
            return self
        os.rename(self.path, self.path + _RECOVERING)
        directory, name = os.path.split(self.path + _RECOVERING)
        return Guard(directory, name)


def list_guards(directory: str) -> list[Guard]:
    """Guards of unfinished commits; writers exclude each other, so more than one is a crash's."""
    names = sorted(name for name in os.listdir(directory) if name.startswith(_GUARD_PREFIX))
    # A topic may be called like a guard; the directories of its partitions have a dash.
    return [Guard(directory, name) for name in names if "-" not in name]


def _to_json(fields: Mapping[str, Any]) -> bytes:
    return json.dumps({"format": _VERSION, **fields}, indent=1).encode()


def _read_json(path: str) -> dict[str, Any]:
    """The object that a file of ours holds, if this version knows it."""
    with open(path, "rb") as file:
        data = file.read()
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpointError(path, 1, f"is no JSON: {error}", _REMEDY) from None
    if not isinstance(found, dict) or found.get("format") != _VERSION:
        reason = f"expected format {_VERSION}, found {str(found)[:80]!r}"
        raise CorruptCheckpointError(path, 1, reason, _REMEDY)
    return found
