"""Writes that may be repeated, as a state remembers them, so that each is done once.

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
spans of the last commits are kept, up to `_MOST_SPANS` partitions.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from segmentlog.errors import StreamBatchError
from segmentlog.model import TopicPartition
from segmentlog.txn.json_file import check_types

_Key = TypeVar("_Key")
_Found = TypeVar("_Found")

#: Counted from the last commit under a name to a topic; a failed query is retried much sooner.
FORGOTTEN_AFTER_MS = 30 * 24 * 3600 * 1000

#: By id and topic: the version that was committed last, and the time (epoch ms).
Versions = dict[tuple[str, str], tuple[int, int]]


class NumberedWrite(NamedTuple):
    """A numbered write: a ``txnAppId`` with its ``txnVersion``.

    It counts for each topic by itself: a batch in ``foreachBatch`` may go to several topics, one
    after the other, and each of these writes may be retried.
    """

    app_id: str
    version: int

    def left_out(self, versions: Versions, topics: Iterable[str]) -> dict[str, int]:
        """Topics that have this version or a later one, each with its version."""
        found = {topic: committed_version(versions, self.app_id, topic) for topic in topics}
        return {topic: version for topic, version in found.items() if version >= self.version}


def committed_version(versions: Versions, app_id: str, topic: str) -> int:
    """The last version under a name that a topic has, or -1."""
    return versions.get((app_id, topic), (-1, 0))[0]


def forget_old(
    table: Mapping[_Key, tuple[_Found, int]], last_ms: int, now_ms: int
) -> dict[_Key, tuple[_Found, int]]:
    """Versions, or batches of streams, whose commit is recent enough to be remembered.

    A version that is forgotten too early may be written twice.  A version that is kept too long
    costs a few bytes.  So a clock that has moved forward by more than `FORGOTTEN_AFTER_MS` since
    the last commit is not believed: it was wrong then, or it is wrong now (a machine that has just
    started may not have asked for the time yet).  All times are then moved by as much, and each
    version keeps its age.  A time that is more than `FORGOTTEN_AFTER_MS` ahead counts as now.  So
    no version is forgotten because a clock goes off by years and comes back, in whichever
    direction it went first.

    Accepted: the first commit after a pause of that length forgets nothing, either.  If a clock is
    off by less, versions are forgotten earlier or later by the same amount.

    `table`: each with the time of its commit.  `last_ms`: time of the last commit, by the clock of
    its machine.  `now_ms`: time now, by this machine's clock.
    """
    passed = now_ms - last_ms
    if passed > FORGOTTEN_AFTER_MS:
        return {key: (found, time_ms + passed) for key, (found, time_ms) in table.items()}
    first, last = now_ms - FORGOTTEN_AFTER_MS, now_ms + FORGOTTEN_AFTER_MS
    return {
        key: found if found[1] <= last else (found[0], now_ms)
        for key, found in table.items()
        if found[1] >= first
    }


def encode_versions(versions: Versions) -> dict[str, list[Any]]:
    """Four columns: JSON takes three times as long for an object for each version."""
    return {
        "app_id": [app_id for app_id, _ in versions],
        "topic": [topic for _, topic in versions],
        "version": [version for version, _ in versions.values()],
        "time_ms": [time_ms for _, time_ms in versions.values()],
    }


def decode_versions(found: Mapping[str, Any]) -> Versions:
    """The inverse.

    Raises `KeyError` or `TypeError` or `ValueError` if `found` is not what `encode_versions`
    returns.
    """
    ids, topics = _column(found["app_id"], str), _column(found["topic"], str)
    versions, times = _column(found["version"], int), _column(found["time_ms"], int)
    keys = zip(ids, topics, strict=True)
    return dict(zip(keys, zip(versions, times, strict=True), strict=True))


def _column(found: object, kind: type) -> list[Any]:
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

    def is_repeated(self, streams: Streams, n_records: int) -> bool:
        """Whether the batch was committed before, with as many records.

        Raises `StreamBatchError` if another batch was committed instead.
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
        return True


def encode_streams(streams: Streams) -> list[list[Any]]:
    """A list for each query."""
    return [[query, *batch, time_ms] for query, (batch, time_ms) in streams.items()]


def decode_streams(found: Iterable[Any]) -> Streams:
    """The inverse.

    Raises `TypeError` or `ValueError` if `found` is not what `encode_streams` returns.
    """
    streams: Streams = {}
    for query, *batch, time_ms in found:
        check_types((query, *batch, time_ms), (str, int, str, int, int))
        streams[query] = CommittedBatch(*batch), time_ms
    return streams


#: By id and topic of a numbered write, or by query and ``""``: the half-open range of offsets in
#: each partition.  The last commit comes last.
Spans = dict[tuple[str, str], dict[TopicPartition, tuple[int, int]]]

_MOST_SPANS = 4096


def with_span(
    spans: Spans, keys: Iterable[tuple[str, str]], ranges: Mapping[TopicPartition, tuple[int, int]]
) -> Spans:
    """The spans with those of a new commit; the oldest ones are forgotten."""
    found = dict(spans)
    for name, topic in keys:
        found.pop((name, topic), None)
        found[name, topic] = {
            each: offsets for each, offsets in ranges.items() if topic in ("", each.topic)
        }
    n_left = _MOST_SPANS
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
    """The inverse.

    Raises `TypeError` or `ValueError` if `found` is not what `encode_spans` returns.
    """
    spans: Spans = {}
    for name, key, topic, partition, start, end in found:
        check_types((name, key, topic, partition, start, end), (str, str, str, int, int, int))
        ranges = spans.setdefault((name, key), {})
        if partition >= 0:
            ranges[TopicPartition(topic, partition)] = start, end
    return spans
