"""``segmentlog.state``: the state of a log directory after its last commit.

Like our other files, it is one object in JSON, with the number of its format.  It remembers writes
that may be repeated, so that each is done once:

**Numbered writes**: the last version under each name in each topic.  Every commit reads and writes
the whole table, and a program that takes a new name for each run adds a row each time.  So the
table is kept small: four columns in the file, plain tuples in memory, and old rows are forgotten.

**Batches of streaming queries**: the last batch of each query.  A query that fails after a commit,
and before Spark has noted it, repeats the batch.  Only the last batch can be repeated: Spark
begins a batch once the batch before is noted.  An earlier batch, or another number of records,
shows that the checkpoint is not the one that the log knows.  Its rows may be others, so it is an
error: to leave it out would lose them, and to write it could repeat them.

**Spans**: the offsets at which the records of these writes lie.  A write whose records are cut off
counts as not done, or its repetition would be left out and its records would be lost.  Only the
spans of the last commits are kept, up to `MOST_SPANS` partitions.
"""

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar, cast

from segmentlog.errors import CorruptCheckpointError, StreamBatchError
from segmentlog.format.names import (
    CLEAN_SHUTDOWN_FILE,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    META_PROPERTIES_FILE,
    RECOVERY_POINT_CHECKPOINT,
)
from segmentlog.model import TopicPartition
from segmentlog.store.durable import TIME_STEPS_NS, replace_file
from segmentlog.store.readable import Stamp, exists, open_file, read_whole, status_of
from segmentlog.store.system_errors import is_gone

logger = logging.getLogger(__name__)

_Key = TypeVar("_Key")
_Found = TypeVar("_Found")

#: Counted from the last commit under a name to a topic; a failed query is retried much sooner.
FORGOTTEN_AFTER_MS = 30 * 24 * 3600 * 1000

_MOST_NAMED = 10  #: topics in a warning

#: By id and topic: the version that was committed last, and the time (epoch ms).
Versions = dict[tuple[str, str], tuple[int, int]]
KnownVersions = Mapping[tuple[str, str], tuple[int, int]]


class NumberedWrite(NamedTuple):
    """A numbered write: a ``txnAppId`` with its ``txnVersion``."""

    # It counts for each topic by itself: a batch in ``foreachBatch`` may go to several topics, one
    # after the other, and each of these writes may be retried.
    app_id: str
    version: int

    def left_out(self, versions: KnownVersions, topics: Iterable[str]) -> dict[str, int]:
        """Topics that have this version or a later one, each with its version."""
        found = {topic: versions.get((self.app_id, topic), (-1, 0))[0] for topic in topics}
        return {topic: version for topic, version in found.items() if version >= self.version}

    def warn(self, place: str, left_out: Mapping[str, int]) -> None:
        """Name the topics of a log that are left out.

        A counter that has begun again would lose job after job in silence.
        """
        named = [f"{topic!r}, which has version {left_out[topic]}" for topic in sorted(left_out)]
        if len(named) > _MOST_NAMED:
            named[_MOST_NAMED:] = [f"{len(named) - _MOST_NAMED} more"]
        logger.warning(
            "%s: version %d of %r is not written to %s",
            place,
            self.version,
            self.app_id,
            "; ".join(named),
        )


def forget_old(
    table: Mapping[_Key, tuple[_Found, int]], last_ms: int, now_ms: int
) -> dict[_Key, tuple[_Found, int]]:
    """Versions, or batches of streams, whose commit is recent enough to be remembered."""
    # A version that is forgotten too early may be written twice. A version that is kept too long
    # costs a few bytes. So a clock that has moved forward by more than `FORGOTTEN_AFTER_MS` since
    # the last commit is not believed: it was wrong then, or it is wrong now (a machine that has
    # just started may not have asked for the time yet). All times are then moved by as much, and
    # each version keeps its age. A time that is more than `FORGOTTEN_AFTER_MS` ahead counts as
    # now. So no version is forgotten because a clock goes off by years and comes back, in
    # whichever direction it went first. Accepted: the first commit after a pause of that length
    # forgets nothing, either. If a clock is off by less, versions are forgotten earlier or later
    # by the same amount.
    passed = now_ms - last_ms
    if passed > FORGOTTEN_AFTER_MS:
        return {key: (found, time_ms + passed) for key, (found, time_ms) in table.items()}
    first, last = now_ms - FORGOTTEN_AFTER_MS, now_ms + FORGOTTEN_AFTER_MS
    return {
        key: found if found[1] <= last else (found[0], now_ms)
        for key, found in table.items()
        if found[1] >= first
    }


def encode_versions(versions: KnownVersions) -> dict[str, list[Any]]:
    """Four columns: JSON takes three times as long for an object for each version."""
    return {
        "app_id": [app_id for app_id, _ in versions],
        "topic": [topic for _, topic in versions],
        "version": [version for version, _ in versions.values()],
        "time_ms": [time_ms for _, time_ms in versions.values()],
    }


def decode_versions(found: Mapping[str, Any]) -> Versions:
    """The inverse; raises `KeyError` or `TypeError` or `ValueError` if `found` is malformed."""
    ids, topics = list_of(found["app_id"], str), list_of(found["topic"], str)
    versions, times = list_of(found["version"], int), list_of(found["time_ms"], int)
    keys = zip(ids, topics, strict=True)
    return dict(zip(keys, zip(versions, times, strict=True), strict=True))


def list_of(found: object, kind: type) -> list[Any]:
    """A list of nothing but `kind`; a JSON ``true`` does not count as a number."""
    if not isinstance(found, list) or not set(map(type, found)) <= {kind}:
        raise TypeError(f"expected a list of {kind.__name__}, found {str(found)[:80]!r}")
    return found


class CommittedBatch(NamedTuple):
    """The last batch of a query: its number, the run that committed it, and its records."""

    number: int
    run: str
    n_records: int


#: By query: its last batch, and the time of the commit (epoch ms).
Streams = dict[str, tuple[CommittedBatch, int]]


class StreamBatch(NamedTuple):
    """A batch that is about to be committed."""

    query: str  # id of the query, which its checkpoint keeps
    number: int  # of the batch in the query
    run: str  # id of this run of the query

    def committed(self, n_records: int) -> CommittedBatch:
        """The batch as its commit records it."""
        return CommittedBatch(self.number, self.run, n_records)

    def is_repeated(self, place: str, streams: Streams, n_records: int) -> bool:
        """Whether the batch was committed before; `StreamBatchError` if it was another one.

        `place`: of the log, for the warning that the batch is left out.
        """
        if self.query not in streams:
            return False
        last, _ = streams[self.query]
        if self.number > last.number:
            return False
        if (self.number, n_records) != (last.number, last.n_records):
            raise StreamBatchError(
                self.query, self.number, n_records, last.number, last.n_records, last.run
            )
        logger.warning(
            "%s: batch %d of query %s was committed before, and is not written again",
            place,
            self.number,
            self.query,
        )
        return True


def encode_streams(streams: Streams) -> list[list[Any]]:
    """A list for each query."""
    return [[query, *batch, time_ms] for query, (batch, time_ms) in streams.items()]


def decode_streams(found: Iterable[Any]) -> Streams:
    """The inverse; raises `TypeError` or `ValueError` if `found` is malformed."""
    streams: Streams = {}
    for query, *batch, time_ms in found:
        check_types((query, *batch, time_ms), (str, int, str, int, int))
        streams[query] = CommittedBatch(*batch), time_ms
    return streams


#: Of a write: the half-open range of offsets in each partition.
Ranges = Mapping[TopicPartition, tuple[int, int]]

#: By id and topic of a numbered write, or by query and ``""``.  The last commit comes last.
Spans = dict[tuple[str, str], Ranges]

MOST_SPANS = 4096  #: partitions of them that are kept


def with_span(spans: Spans, keys: Iterable[tuple[str, str]], ranges: Ranges) -> Spans:
    """The spans with those of a new commit; the oldest ones are forgotten."""
    ours = spans_of(keys, ranges)
    others = {key: each for key, each in spans.items() if key not in ours}
    return newest_spans(others | ours)


def spans_of(keys: Iterable[tuple[str, str]], ranges: Ranges) -> Spans:
    """The spans of a commit: a numbered write counts for each topic by itself."""
    of_topics: dict[str, dict[TopicPartition, tuple[int, int]]] = {}
    for each, offsets in ranges.items():
        of_topics.setdefault(each.topic, {})[each] = offsets
    return {(name, topic): of_topics.get(topic, {}) if topic else ranges for name, topic in keys}


def newest_spans(found: Spans) -> Spans:
    """The last spans of many."""
    n_left = MOST_SPANS
    kept: list[tuple[str, str]] = []
    for key in reversed(found):
        n_left -= len(found[key]) + 1
        if kept and n_left < 0:
            break
        kept.append(key)
    return {key: found[key] for key in reversed(kept)}


def encode_spans(spans: Spans) -> list[list[Any]]:
    """A list for each partition of each write; a write without records has one of its own."""
    return [
        [*key, *each]
        for key, ranges in spans.items()
        for each in [(*at, *offsets) for at, offsets in ranges.items()] or [("", -1, 0, 0)]
    ]


def decode_spans(found: Iterable[Any]) -> Spans:
    """The inverse; raises `TypeError` or `ValueError` if `found` is malformed."""
    spans: dict[tuple[str, str], dict[TopicPartition, tuple[int, int]]] = {}
    for name, key, topic, partition, start, end in found:
        check_types((name, key, topic, partition, start, end), (str, str, str, int, int, int))
        ranges = spans.setdefault((name, key), {})
        if partition >= 0:
            ranges[TopicPartition(topic, partition)] = start, end
    return {**spans}


def _decode_ids(found: object) -> dict[str, str]:
    """Ids of topics; raises `TypeError` if `found` is malformed."""
    if not isinstance(found, dict):
        raise TypeError(f"expected ids of topics, found {str(found)[:80]!r}")
    list_of([*found.values()], str)
    return found


REMEDY = "this version of segmentlog did not write the file; restore it, or ask for help with it"


def to_json(number: int, fields: Mapping[str, Any]) -> bytes:
    """Bytes of the file.  There is no indent: with one, `json` does not use its encoder in C."""
    return json.dumps({"format": number, **fields}, separators=(",", ":")).encode()


def read_json(path: str, numbers: Sequence[int]) -> dict[str, Any]:
    """The object in one of our own files, if the file has one of these formats."""
    return from_json(read_bytes(path), path, numbers)


def read_bytes(path: str) -> bytes:
    """Bytes of one of our own files, or `CorruptCheckpointError`, or `FileNotFoundError`."""
    return read_whole(path, lambda reason: CorruptCheckpointError(path, 1, reason, REMEDY))


def from_json(data: bytes, path: str, numbers: Sequence[int]) -> dict[str, Any]:
    """The object in the bytes of the file `path`, of one of these formats; or its error."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpointError(path, 1, f"is not JSON: {error}", REMEDY) from None
    number = found.get("format") if isinstance(found, dict) else None
    if type(number) is not int or number not in numbers:  # in Python, `True` equals 1
        expected = " or ".join(map(str, sorted(numbers)))
        reason = f"expected format {expected}, found {str(found)[:80]!r}"
        raise CorruptCheckpointError(path, 1, reason, REMEDY)
    return cast("dict[str, Any]", found)


def check_types(found: Sequence[object], kinds: Sequence[type]) -> None:
    """Refuse a wrong type now; otherwise it would fail a commit after its decision."""
    if [type(each) for each in found] != list(kinds):
        expected = ", ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"expected {expected}; found {str(found)[:80]!r}")


class Deletion(NamedTuple):
    """A topic that was deleted at `time_ms` (epoch); `token` identifies the deletion."""

    topic: str
    token: str
    time_ms: int


def decode_deletions(found: Sequence[Sequence[Any]]) -> tuple[Deletion, ...]:
    """The deletions in a file; raises `TypeError` if `found` is malformed."""
    for each in found:
        check_types(each, (str, str, int))
    return tuple(Deletion(*each) for each in found)


STATE_FILE = "segmentlog.state"

#: Files of a log directory, which may have no partition after the deletion of its last topic.
OF_LOG_DIRECTORIES = frozenset(
    {
        META_PROPERTIES_FILE,
        HIGH_WATERMARK_CHECKPOINT,
        LOG_START_CHECKPOINT,
        RECOVERY_POINT_CHECKPOINT,
        CLEAN_SHUTDOWN_FILE,
        STATE_FILE,
    }
)
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
    #: of the topics in `versions`, as far as they are known: a broker that deletes a topic, and
    #: makes another one of its name, knows nothing of this file
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, directory: str) -> "State":
        """State of a log directory; a fresh one when there is none."""
        path = os.path.join(directory, STATE_FILE)
        try:
            return cls._of_bytes(read_bytes(path), path)
        except FileNotFoundError:
            return cls()

    @classmethod
    def _of_bytes(cls, data: bytes, path: str) -> "State":
        found = from_json(data, path, (_STATE_FORMAT,))
        try:
            numbers = found["sequence"], found["token"], found["time_ms"]
            boot, aside = found["boot"], found["aside"]
            check_types((*numbers, boot), (int, str, int, str))
            check_types((aside, *aside), (list,) + (str,) * len(aside))
            return cls(
                *numbers,
                decode_versions(found["versions"]),
                aside,
                decode_deletions(found["deleted"]),
                decode_streams(found["streams"]),
                boot,
                decode_spans(found.get("spans", ())),  # earlier writers kept none
                _decode_ids(found.get("topic_ids", {})),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptCheckpointError(path, 1, f"cannot be read: {error!r}", REMEDY) from None

    def next(self, token: str, now_ms: int) -> "State":
        """The state once the change with this token is decided."""
        versions = forget_old(self.versions, self.time_ms, now_ms)
        streams = forget_old(self.streams, self.time_ms, now_ms)
        # No reader is expected to stay open for longer.  Accepted: if a clock jumps forward by as
        # much, an open reader may mistake a topic that was made again for the one it has opened.
        first = now_ms - FORGOTTEN_AFTER_MS
        deleted = tuple(each for each in self.deleted if each.time_ms >= first)
        known = versions.keys() | {(query, "") for query in streams}
        spans = {key: span for key, span in self.spans.items() if key in known}
        topics = {topic for _, topic in versions}
        ids = {topic: each for topic, each in self.topic_ids.items() if topic in topics}
        return State(
            self.sequence + 1,
            token,
            now_ms,
            versions,
            self.aside,
            deleted,
            streams,
            self.boot,
            spans,
            ids,
        )

    def with_version(
        self,
        numbered: NumberedWrite,
        topics: Mapping[str, str],
        ranges: Ranges,
    ) -> "State":
        """The state of a numbered write, whose version counts for these topics from now on.

        `topics`: each with its id, or with ``""`` if that is not known.
        """
        found = numbered.version, self.time_ms
        ours = {(numbered.app_id, topic): found for topic in topics}
        spans = with_span(self.spans, ours, ranges)
        ids = {**self.topic_ids, **{topic: each for topic, each in topics.items() if each}}
        return replace(self, versions=self.versions | ours, spans=spans, topic_ids=ids)

    def without_former(self, topics: Mapping[str, str]) -> "State":
        """The state without numbered writes to former topics that had the names of these.

        `topics`: each with its id now, or with ``""`` if that is not known.
        """
        former = {
            topic
            for topic, each in topics.items()
            if each and self.topic_ids.get(topic, each) != each
        }
        return self._without_writes(former) if former else self

    def with_batch(self, query: str, batch: CommittedBatch, ranges: Ranges) -> "State":
        """The state of a commit of a streaming query's batch."""
        spans = with_span(self.spans, [(query, "")], ranges)
        streams = {**self.streams, query: (batch, self.time_ms)}
        return replace(self, streams=streams, spans=spans)

    def cut(self, ends: Mapping[TopicPartition, int]) -> "State":
        """The state without the writes whose records lie at or after these log ends."""
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
            # Earlier writes may have records in partitions where the last one has none.
            elsewhere = any(topic in ("", each.topic) for each in ends.keys() - span.keys())
            return bool(hit), elsewhere or any(ends[each] < span[each][0] for each in hit)

        # The version before a lost one counts again if the records of the lost one alone are gone.
        # Nobody knows where older records lie: their versions go, unless a span that stays shows
        # that all older records stay, too. A write that is done twice loses nothing.
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

    def without_offsets(self, lost: Mapping[TopicPartition, Sequence[tuple[int, int]]]) -> "State":
        """The state without the writes that may have records in these ranges of offsets.

        The ranges are missing now, and later records are still there.
        """
        versions, streams, spans = dict(self.versions), dict(self.streams), dict(self.spans)

        def fate(key: tuple[str, str]) -> tuple[bool, bool]:
            """Whether records of the last write are lost; whether those of earlier ones may be."""
            own = self.spans.get(key, {})
            others = [span for other, span in self.spans.items() if other != key]
            is_hit = may_more = False
            for each, ranges in lost.items():
                if key[1] not in ("", each.topic):
                    continue
                begin, end = own.get(each, (-1, -1))
                for a, b in ranges:
                    is_hit |= max(a, begin) < min(b, end)
                    rest = a < begin or begin < 0
                    is_of_others = any(
                        each in span and span[each][0] <= a and b <= span[each][1]
                        for span in others
                    )
                    may_more |= rest and not is_of_others
            return is_hit, may_more

        for key, (version, time_ms) in self.versions.items():
            is_hit, may_more = fate(key)
            if may_more or (is_hit and not version):
                del versions[key]
            elif is_hit:
                versions[key] = version - 1, time_ms
            if is_hit or may_more:
                spans.pop(key, None)
        for query in self.streams:
            is_hit, may_more = fate((query, ""))
            if is_hit or (may_more and (query, "") not in self.spans):
                del streams[query]
                spans.pop((query, ""), None)
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
        self,
        other: "State",
        topics: Collection[str],
        is_copied: Callable[[TopicPartition, int, int], bool | None],
        behind: Collection[TopicPartition],
    ) -> "State":
        """The state with the writes of another directory, whose `topics` were copied to this one.

        What counts here never goes back: a later version, or a later batch of a query, has records
        here that the other directory lacks, and a repetition would write them twice.  Writes whose
        records were cut off do not count any more; `cut` comes first.

        A write of the other directory counts once all of its records are here.  Partitions that
        this directory lacks do not matter.  `is_copied`: whether the records of a partition in a
        range of offsets are here; None if this directory lacks the partition.  `behind`: the
        partitions in which records of a write may be missing whose span is not known, because an
        earlier version of segmentlog has noted it, or many others have followed.
        """

        def is_here(key: tuple[str, str]) -> bool:
            if key[1] and key[1] not in topics:
                return False
            theirs = other.topic_ids.get(key[1])
            if theirs and self.topic_ids.get(key[1], theirs) != theirs:
                return False  # of another topic of this name
            span = other.spans.get(key)
            if span is None:
                return not any(key[1] in ("", each.topic) for each in behind)
            found = [is_copied(each, *offsets) for each, offsets in span.items()]
            return not span or (False not in found and True in found)

        def merged(
            mine: Mapping[_Key, tuple[_Found, int]],
            theirs: Mapping[_Key, tuple[_Found, int]],
            number_of: Callable[[_Found], int],
            span_of: Callable[[_Key], tuple[str, str]],
        ) -> dict[_Key, tuple[_Found, int]]:
            """The later one of each name; its span comes with it."""
            found = dict(mine)
            for key, (each, time_ms) in theirs.items():
                if not is_here(span_of(key)):
                    continue
                known, known_ms = found.get(key, (None, 0))
                ahead = 1 if known is None else number_of(each) - number_of(known)
                if ahead > 0:
                    found[key] = each, time_ms
                elif not ahead and known is not None:
                    found[key] = known, max(time_ms, known_ms)
                if ahead > 0 or (not ahead and span_of(key) not in self.spans):
                    copied.add(span_of(key))
            return found

        copied = set[tuple[str, str]]()
        versions = merged(self.versions, other.versions, int, lambda key: key)
        streams = merged(
            self.streams, other.streams, lambda batch: batch.number, lambda query: (query, "")
        )
        spans = {key: span for key, span in self.spans.items() if key not in copied}
        spans |= {key: span for key, span in other.spans.items() if key in copied}
        ids = {topic: each for topic, each in other.topic_ids.items() if topic in topics}
        return replace(
            self,
            versions=versions,
            streams=streams,
            spans=spans,
            topic_ids={**ids, **self.topic_ids},
        )

    def with_files_aside(self, topics: Iterable[str]) -> "State":
        """The state of a change by which these topics lose segments."""
        return replace(self, aside=sorted({*self.aside, *topics}))

    def without(self, topic: str) -> "State":
        """The state of a change that deletes a topic, without its numbered writes."""
        aside = [each for each in self.aside if each != topic]
        others = [each for each in self.deleted if each.topic != topic]
        deleted = (*others, Deletion(topic, self.token, self.time_ms))
        return replace(self._without_writes({topic}), aside=aside, deleted=deleted)

    def _without_writes(self, topics: Collection[str]) -> "State":
        """The state without the numbered writes to these topics."""
        return replace(
            self,
            versions={key: found for key, found in self.versions.items() if key[1] not in topics},
            spans={key: span for key, span in self.spans.items() if key[1] not in topics},
            topic_ids={name: each for name, each in self.topic_ids.items() if name not in topics},
        )

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
                "topic_ids": {**self.topic_ids},
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
        """The whole state; a fresh one when there is no file that can be read."""
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


# The stamp of a log directory: changed before a commit touches a log, and when it is decided.
#
# A reader takes the stamp before and after it lists a partition.  If the stamp is the same, no
# commit changed the partition meanwhile.  The stamp takes one ``fstat``.  A search for guards
# would take a listing of the log directory, which may hold ten thousand partitions.
#
# The stamp is the inode, the size and the times of `segmentlog.state`.  The decision of a commit
# replaces this file and gives the new file a later time.  The inode and the size alone may equal
# those of an earlier state, and so may the time, if the clock was set back or has coarse steps.
#
# A commit also sets the file's time when it begins: after its guard and intent can be found, and
# before it writes into a log.  So a listing with a byte of the commit was made after that moment.
# Either the stamp has changed around the listing, or the guard could be found before it.  The
# stamp is the only trace of a commit that has failed: its guard has come and gone.


def read_stamp(directory: str) -> Stamp | None:
    """Stamp of a log directory; None before the first commit."""
    # The file is opened, because an NFS client asks the server only at an open. The client also
    # remembers a missing file, until the directory is opened.
    try:
        return _stamp(directory)
    except OSError as error:
        if not is_gone(error):  # a file is also gone while it is being replaced
            raise
    with contextlib.suppress(FileNotFoundError):
        open_file(directory).close()
        return _stamp(directory)
    return None


def _stamp(directory: str) -> Stamp:
    with open_file(os.path.join(directory, STATE_FILE)) as file:
        return file.status().stamp


def renew_stamp(directory: str) -> None:
    """Change the stamp; the caller holds the lock, and its guard stands with its intent."""
    path = os.path.join(directory, STATE_FILE)
    if not exists(path):
        replace_file(path, State().encode())
        return
    try:
        set_later(path, path)
    # Only a file that is written, and not just given a later time, is synced: no reader outlives a
    # power cut.
    except PermissionError:  # the mount forces another owner
        replace_file(path, read_bytes(path))


def set_later(path: str, before: str) -> None:
    """Give a file a later time than that of `before`, which may be the file itself."""
    # The time of `before` may lie in the future, set by a wrong clock, and still has to move on.
    earlier = status_of(before)
    for step in TIME_STEPS_NS:
        modified = max(time.time_ns(), earlier.modified_ns + step)
        os.utime(path, ns=(modified, modified), follow_symlinks=False)
        if status_of(path).modified_ns > earlier.modified_ns:
            return
