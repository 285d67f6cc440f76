"""``segmentlog.state``: the state of a log directory after its last commit."""

import contextlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from segmentlog.commit.deletions import Deletion, decode_deletions, forget_deletions
from segmentlog.commit.json_file import (
    REMEDY,
    check_types,
    from_json,
    read_bytes,
    read_json,
    to_json,
)
from segmentlog.commit.sink_versions import (
    Sinks,
    SinkVersion,
    decode_sinks,
    decode_sinks_of_format_1,
    encode_sinks,
    forget_sinks,
)
from segmentlog.errors import CorruptCheckpointError
from segmentlog.model import TopicPartition

__all__ = ["STATE_FILE", "Replaced", "State", "UnreadState"]

STATE_FILE = "segmentlog.state"
_STATE_FORMAT = 2  #: in format 1, versions of sinks had no topics and no times


class Replaced(NamedTuple):
    """Segments below `end_offset`, which a commit has removed from a log at `time_ms` (epoch)."""

    topic: str
    partition: int
    end_offset: int
    time_ms: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition of the segments."""
        return TopicPartition(self.topic, self.partition)

    @classmethod
    def decode(cls, found: Sequence[Any]) -> "Replaced":
        """The replaced segments that a file names.

        Raises
        ------
        TypeError, ValueError
            If they are malformed.  A topic that leads out of the log directory is malformed, too:
            files outside would be deleted.
        """
        check_types(found, (str, int, int, int))
        replaced = cls(*found)
        if os.sep in replaced.topic:
            raise ValueError(f"{replaced.topic!r} is not a topic")
        return replaced


@dataclass(frozen=True, slots=True)
class State:
    """The state of a log directory after its last commit.

    Attributes
    ----------
    sequence : number of commits.
    token : of the last commit.
    time_ms : time of the last commit, by the clock of its machine (epoch).
    sinks : the last version of each sink in each topic.
    replaced : segments that commits have removed from logs; readers may still need their files.
    deleted : deleted topics; a topic that has the same name now is another one.
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
            found = read_json(path, (_STATE_FORMAT, 1))
        except FileNotFoundError:
            return cls()
        try:
            return cls._decode(found)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptCheckpointError(path, 1, f"cannot be read: {error!r}", REMEDY) from None

    @classmethod
    def _decode(cls, found: Mapping[str, Any]) -> "State":
        if found["format"] == 1:
            time_ms = int(time.time() * 1000)
            sinks = decode_sinks_of_format_1(found["sinks"], time_ms)
        else:
            time_ms, sinks = found["time_ms"], decode_sinks(found["sinks"])
        sequence, token = found["sequence"], found["token"]
        check_types((sequence, token, time_ms), (int, str, int))
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
        topics : topics for which the version of `sink` counts from now on.
        """
        sinks = forget_sinks(self.sinks, self.time_ms, now_ms)
        if sink is not None:
            sinks |= {(sink.app_id, topic): (sink.version, now_ms) for topic in topics}
        deleted = forget_deletions(self.deleted, now_ms)
        return State(self.sequence + 1, token, now_ms, sinks, replaced, deleted)

    def without(self, topic: str, token: str, now_ms: int) -> "State":
        """The state once the deletion of a topic is decided, without its versions of sinks."""
        left = [each for each in self.replaced if each.topic != topic]
        after = self.next(token, None, (), left, now_ms)
        sinks = {key: found for key, found in after.sinks.items() if key[1] != topic}
        others = [each for each in after.deleted if each.topic != topic]
        deleted = (*others, Deletion(topic, token, now_ms))
        return replace(after, sinks=sinks, deleted=deleted)

    def encode(self) -> bytes:
        """Bytes of the file; `asdict` is not used, because it copies every sink."""
        return to_json(
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


class UnreadState:
    """The state file of a log directory, read now and decoded on request.

    A reader needs the state only once the directory has changed, and the table of sinks may have
    a hundred thousand rows.  A file that cannot be understood names no deletions: only a commit
    needs more of it.
    """

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, STATE_FILE)
        self._bytes = b""
        with contextlib.suppress(FileNotFoundError, CorruptCheckpointError):
            self._bytes = read_bytes(self._path)

    @cached_property
    def deletions(self) -> Mapping[str, str]:
        """Token of the last deletion of each topic."""
        if not self._bytes:
            return {}
        try:
            found = from_json(self._bytes, self._path, (_STATE_FORMAT, 1))
            return {each.topic: each.token for each in decode_deletions(found.get("deleted", ()))}
        except (CorruptCheckpointError, TypeError):
            return {}
