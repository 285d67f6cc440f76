"""``segmentlog.state``: the state of a log directory after its last commit."""

import contextlib
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from segmentlog.errors import CorruptCheckpointError
from segmentlog.model import TopicPartition
from segmentlog.txn.json_file import (
    REMEDY,
    check_types,
    from_json,
    read_bytes,
    to_json,
)
from segmentlog.txn.repeated_writes import (
    FORGOTTEN_AFTER_MS,
    CommittedBatch,
    NumberedWrite,
    Spans,
    Streams,
    Versions,
    decode_spans,
    decode_streams,
    decode_versions,
    encode_spans,
    encode_streams,
    encode_versions,
    forget_old,
    with_span,
)


class Deletion(NamedTuple):
    """A topic that was deleted at `time_ms` (epoch); `token` identifies the deletion."""

    topic: str
    token: str
    time_ms: int


def decode_deletions(found: Sequence[Sequence[Any]]) -> tuple[Deletion, ...]:
    """The deletions in a file.

    Raises `TypeError` if `found` has another form.
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
    """The state of a log directory after its last commit."""

    sequence: int = 0  # number of commits
    token: str = ""  # of the last commit
    time_ms: int = 0  # time of the last commit, by the clock of its machine (epoch)
    #: the last version of each numbered write in each topic
    versions: Versions = field(default_factory=dict)
    aside: Sequence[str] = ()  # topics that have lost segments, whose files may not be removed yet
    #: deleted topics; a topic that has the same name now is another one
    deleted: Sequence[Deletion] = ()
    streams: Streams = field(default_factory=dict)  # the last batch of each streaming query
    #: the boot of the machine during which all bytes that may be unsynced were written, by
    #: `segmentlog.store.durable`; ``""`` if it is unknown
    boot: str = ""
    #: the offsets of the records of `versions` and `streams`, as far as they are known
    spans: Spans = field(default_factory=dict)

    @classmethod
    def read(cls, directory: str) -> "State":
        """State of a log directory; a fresh one when there is none.

        Raises `CorruptCheckpointError` if the file cannot be understood.
        """
        path = os.path.join(directory, STATE_FILE)
        try:
            return cls._of_bytes(read_bytes(path), path)
        except FileNotFoundError:
            return cls()

    @classmethod
    def _of_bytes(cls, data: bytes, path: str) -> "State":
        found = from_json(data, path, (_STATE_FORMAT,))
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
        spans = decode_spans(found.get("spans", ()))  # earlier writers kept none
        return cls(sequence, token, time_ms, versions, aside, deleted, streams, boot, spans)

    def next(self, token: str, now_ms: int) -> "State":
        """The state once the change with this token is decided."""
        versions = forget_old(self.versions, self.time_ms, now_ms)
        streams = forget_old(self.streams, self.time_ms, now_ms)
        deleted = forget_deletions(self.deleted, now_ms)
        known = versions.keys() | {(query, "") for query in streams}
        spans = {key: span for key, span in self.spans.items() if key in known}
        return State(
            self.sequence + 1, token, now_ms, versions, self.aside, deleted, streams, self.boot,
            spans,
        )  # fmt: skip

    def with_version(
        self,
        numbered: NumberedWrite,
        topics: Iterable[str],
        ranges: Mapping[TopicPartition, tuple[int, int]],
    ) -> "State":
        """The state of a numbered write, whose version counts for these topics from now on."""
        found = numbered.version, self.time_ms
        ours = {(numbered.app_id, topic): found for topic in topics}
        spans = with_span(self.spans, ours, ranges)
        return replace(self, versions=self.versions | ours, spans=spans)

    def with_batch(
        self, query: str, batch: CommittedBatch, ranges: Mapping[TopicPartition, tuple[int, int]]
    ) -> "State":
        """The state of a commit of a streaming query's batch."""
        spans = with_span(self.spans, [(query, "")], ranges)
        streams = {**self.streams, query: (batch, self.time_ms)}
        return replace(self, streams=streams, spans=spans)

    def cut(self, ends: Mapping[TopicPartition, int]) -> "State":
        """The state without the writes whose records lie at or after these log ends.

        The version before a lost one counts again if the records of the lost one alone are gone.
        Nobody knows where older records lie: their versions go, unless a span that stays shows
        that all older records stay, too.  A write that is done twice loses nothing.
        """
        safe = {
            each: any(span[each][0] <= end for span in self.spans.values() if each in span)
            for each, end in ends.items()
        }

        def lost(key: tuple[str, str]) -> tuple[bool, bool]:
            """Whether records of the last write are cut off, and whether also earlier ones."""
            topic, span = key[1], self.spans.get(key)
            if span is None:
                of_it = [each for each in ends if topic in ("", each.topic)]
                is_lost = not all(safe[each] for each in of_it)
                return is_lost, is_lost
            hit = [each for each, (_, end) in span.items() if ends.get(each, end) < end]
            return bool(hit), any(ends[each] < span[each][0] for each in hit)

        versions, spans = {}, dict(self.spans)
        for key, (version, time_ms) in self.versions.items():
            is_lost, are_more = lost(key)
            if not is_lost:
                versions[key] = version, time_ms
                continue
            spans.pop(key, None)
            if not are_more and version:
                versions[key] = version - 1, time_ms
        streams = {}
        for query, committed in self.streams.items():
            if lost((query, ""))[0]:
                spans.pop((query, ""), None)
            else:
                streams[query] = committed
        return replace(self, versions=versions, streams=streams, spans=spans)

    def writes_lost_in(self, after: "State") -> list[str]:
        """The writes that a later state does not count, or counts up to an earlier version."""
        versions = [
            f"version {version} of {app_id!r} in {topic!r}"
            for (app_id, topic), (version, _) in self.versions.items()
            if after.versions.get((app_id, topic), (-1, 0))[0] < version
        ]
        return versions + [
            f"batch {batch.number} of query {query}"
            for query, (batch, _) in self.streams.items()
            if query not in after.streams
        ]

    def with_writes_of(
        self, other: "State", topics: Collection[str], ends: Mapping[TopicPartition, int]
    ) -> "State":
        """The state with the writes of another directory, whose records were copied to this one.

        A write counts once all of its records are here.  Partitions that this directory lacks do
        not matter.  A write whose span is not known, because an earlier version of segmentlog has
        made it, counts, too.

        `topics`: of the partitions that were copied.  `ends`: the log ends of all partitions of
        this directory.
        """

        def is_here(key: tuple[str, str]) -> bool:
            if key[1] and key[1] not in topics:
                return False
            span = other.spans.get(key)
            if not span:
                return True
            return not span.keys().isdisjoint(ends) and all(
                ends.get(each, end) >= end for each, (_, end) in span.items()
            )

        versions = {key: found for key, found in other.versions.items() if is_here(key)}
        streams = {query: found for query, found in other.streams.items() if is_here((query, ""))}
        copied = versions.keys() | {(query, "") for query in streams}
        spans = {key: span for key, span in self.spans.items() if key not in copied}
        spans |= {key: span for key, span in other.spans.items() if key in copied}
        return replace(
            self,
            versions=self.versions | versions,
            streams=self.streams | streams,
            spans=spans,
        )

    def with_files_aside(self, topics: Iterable[str]) -> "State":
        """The state of a change by which these topics lose segments."""
        return replace(self, aside=sorted({*self.aside, *topics}))

    def without(self, topic: str) -> "State":
        """The state of a change that deletes a topic, without its numbered writes."""
        versions = {key: found for key, found in self.versions.items() if key[1] != topic}
        aside = [each for each in self.aside if each != topic]
        others = [each for each in self.deleted if each.topic != topic]
        deleted = (*others, Deletion(topic, self.token, self.time_ms))
        spans = {key: span for key, span in self.spans.items() if key[1] != topic}
        return replace(self, versions=versions, aside=aside, deleted=deleted, spans=spans)

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
                "spans": encode_spans(self.spans),
            },
        )


class LazyState:
    """The state file of a log directory: its bytes are read eagerly, and parsed on first use.

    A reader needs the state only once the directory has changed, and the versions may be
    a hundred thousand.  A file that cannot be understood names no deletions: only a commit
    needs more of it.
    """

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, STATE_FILE)
        self._bytes = b""
        with contextlib.suppress(FileNotFoundError, CorruptCheckpointError):
            self._bytes = read_bytes(self._path)

    def decoded(self) -> State:
        """The whole state; a fresh one when there is no file that can be read.

        Raises `CorruptCheckpointError` if the file cannot be understood.
        """
        return State._of_bytes(self._bytes, self._path) if self._bytes else State()

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
