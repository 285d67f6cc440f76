"""``segmentlog.state``: the state of a log directory after its last commit."""

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from segmentlog.commit.json_file import (
    REMEDY,
    check_types,
    from_json,
    read_bytes,
    read_json,
    to_json,
)
from segmentlog.commit.repeated_writes import (
    FORGOTTEN_AFTER_MS,
    CommittedBatch,
    NumberedWrite,
    Streams,
    Versions,
    decode_streams,
    decode_versions,
    encode_streams,
    encode_versions,
    forget_old,
)
from segmentlog.errors import CorruptCheckpointError

__all__ = [
    "STATE_FILE",
    "Deletion",
    "State",
    "UnreadState",
    "decode_deletions",
    "forget_deletions",
]


class Deletion(NamedTuple):
    """A topic that was deleted at `time_ms` (epoch); `token` identifies the deletion."""

    topic: str
    token: str
    time_ms: int


def decode_deletions(found: Sequence[Sequence[Any]]) -> tuple[Deletion, ...]:
    """The deletions in a file.

    Raises
    ------
    TypeError
        If `found` has another form.
    """
    deletions = tuple(Deletion(*each) for each in found)
    if any([type(field) for field in each] != [str, str, int] for each in deletions):
        raise TypeError(f"expected topic, token and time; found {str(found)[:80]!r}")
    return deletions


def forget_deletions(deletions: Sequence[Deletion], now_ms: int) -> tuple[Deletion, ...]:
    """The deletions of the last 30 days; no reader is expected to stay open for longer.

    Accepted: if a clock jumps forward by as much, an open reader may mistake a topic that was made
    again for the topic that it has opened.
    """
    first = now_ms - FORGOTTEN_AFTER_MS
    return tuple(each for each in deletions if each.time_ms >= first)


STATE_FILE = "segmentlog.state"
_STATE_FORMAT = 1


@dataclass(frozen=True, slots=True)
class State:
    """The state of a log directory after its last commit.

    Attributes
    ----------
    sequence : number of commits.
    token : of the last commit.
    time_ms : time of the last commit, by the clock of its machine (epoch).
    versions : the last version of each numbered write in each topic.
    streams : the last batch of each streaming query.
    aside : topics that have lost segments, whose files may not be removed yet.
    deleted : deleted topics; a topic that has the same name now is another one.
    boot : the boot of the machine during which all bytes that may be unsynced were written, by
        `segmentlog.disk.boot`; ``""`` if it is unknown.
    """

    sequence: int = 0
    token: str = ""
    time_ms: int = 0
    versions: Versions = field(default_factory=dict)
    aside: Sequence[str] = ()
    deleted: Sequence[Deletion] = ()
    streams: Streams = field(default_factory=dict)
    boot: str = ""

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
            found = read_json(path, (_STATE_FORMAT,))
        except FileNotFoundError:
            return cls()
        try:
            return cls._decode(found)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptCheckpointError(path, 1, f"cannot be read: {error!r}", REMEDY) from None

    @classmethod
    def _decode(cls, found: Mapping[str, Any]) -> "State":
        sequence, token, time_ms = found["sequence"], found["token"], found["time_ms"]
        boot = found["boot"]
        check_types((sequence, token, time_ms, boot), (int, str, int, str))
        aside = found["aside"]
        check_types((aside, *aside), (list,) + (str,) * len(aside))
        versions, deleted = decode_versions(found["versions"]), decode_deletions(found["deleted"])
        streams = decode_streams(found["streams"])
        return cls(sequence, token, time_ms, versions, aside, deleted, streams, boot)

    def next(self, token: str, now_ms: int) -> "State":
        """The state once the change with this token is decided."""
        versions = forget_old(self.versions, self.time_ms, now_ms)
        streams = forget_old(self.streams, self.time_ms, now_ms)
        deleted = forget_deletions(self.deleted, now_ms)
        sequence = self.sequence + 1
        return State(sequence, token, now_ms, versions, self.aside, deleted, streams, self.boot)

    def with_version(self, numbered: NumberedWrite, topics: Iterable[str]) -> "State":
        """The state of a numbered write, whose version counts for these topics from now on."""
        found = numbered.version, self.time_ms
        ours = {(numbered.app_id, topic): found for topic in topics}
        return replace(self, versions=self.versions | ours)

    def with_batch(self, query: str, batch: CommittedBatch) -> "State":
        """The state of a commit of a streaming query's batch."""
        return replace(self, streams={**self.streams, query: (batch, self.time_ms)})

    def with_files_aside(self, topics: Iterable[str]) -> "State":
        """The state of a change by which these topics lose segments."""
        return replace(self, aside=sorted({*self.aside, *topics}))

    def without(self, topic: str) -> "State":
        """The state of a change that deletes a topic, without its numbered writes."""
        versions = {key: found for key, found in self.versions.items() if key[1] != topic}
        aside = [each for each in self.aside if each != topic]
        others = [each for each in self.deleted if each.topic != topic]
        deleted = (*others, Deletion(topic, self.token, self.time_ms))
        return replace(self, versions=versions, aside=aside, deleted=deleted)

    def encode(self) -> bytes:
        """Bytes of the file; `asdict` is not used, because it copies every version."""
        return to_json(
            _STATE_FORMAT,
            {
                "sequence": self.sequence,
                "token": self.token,
                "time_ms": self.time_ms,
                "boot": self.boot,
                "aside": list(self.aside),
                "deleted": list(self.deleted),
                "versions": encode_versions(self.versions),
                "streams": encode_streams(self.streams),
            },
        )


class UnreadState:
    """The state file of a log directory, read now and decoded on request.

    A reader needs the state only once the directory has changed, and the versions may be
    a hundred thousand.  A file that cannot be understood names no deletions: only a commit
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
            found = from_json(self._bytes, self._path, (_STATE_FORMAT,))
            return {each.topic: each.token for each in decode_deletions(found["deleted"])}
        except (CorruptCheckpointError, KeyError, TypeError):
            return {}
