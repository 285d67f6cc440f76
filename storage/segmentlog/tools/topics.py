"""``segmentlog topics``: a line a topic, with its records over time, from indexes and checkpoints.

Records are counted by their offsets, so a topic that compaction has thinned out has fewer records.
Over time, they are counted by the time index: an entry shows how many offsets lie before a time,
and between two entries the offsets are taken to be evenly spread.
"""

import logging
import os
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from operator import itemgetter
from typing import Annotated, NamedTuple

import numpy as np
import typer
from numpy.typing import NDArray

from segmentlog.cluster.directory_settings import (
    DirectorySettings,
    read_partition_counts,
    settings_of_cluster,
)
from segmentlog.cluster.known_losses import known_losses, missing_offsets
from segmentlog.errors import CorruptCheckpointError, SegmentLogError
from segmentlog.format.kernels import layout
from segmentlog.format.records.header import BatchHeader
from segmentlog.log.segment import OpenSegment
from segmentlog.model import INTERNAL_TOPICS, LARGEST_LONG, TopicPartition
from segmentlog.reads.choose import missing_of, partitions_of
from segmentlog.reads.cluster_image import ClusterMetadata
from segmentlog.reads.log import Log
from segmentlog.reads.log_directory import LogDirectory, open_log_dir
from segmentlog.reads.metadata_log import is_of_a_broker
from segmentlog.store.system_errors import in_words
from segmentlog.tools import arguments
from segmentlog.tools.failures import WITHOUT_LOG_START, damaged_end
from segmentlog.tools.output import aligned, escape, time_cell, write_json
from segmentlog.tools.progress import progress
from segmentlog.tools.restore import write_renamed
from segmentlog.tools.usage import leftovers_in_words
from segmentlog.tools.walk import last_offset

logger = logging.getLogger(__name__)

_BARS = " ▁▂▃▄▅▆▇█"
_N_TIMES = 24  #: pieces of time in the picture of a topic
_LEAST_MS = 946_684_800_000  #: the year 2000, when there was no Kafka
_AHEAD_MS = 366 * 86_400_000  #: that a time may lie in the future
_FEW = 0.05  #: part of the records whose times may not stretch an axis
_WINDOW_BYTES = 1 << 16  #: of the beginning of a log
_N_POINTS = 64  #: entries of time indexes of a partition to look at, or one a segment


@arguments.command(
    "segmentlog topics /var/lib/kafka",
    "segmentlog topics /data1 /data2 --topic orders",
    "segmentlog topics /var/lib/kafka --json | jq 'select(.bytes > 1e9) | .topic'",
)
@arguments.tiered
def topics(
    paths: arguments.PathsOrTier = None,
    topic: arguments.Topics = None,
    internal: Annotated[bool, typer.Option(help="List brokers' internal topics, too.")] = False,
    as_json: Annotated[bool, arguments.json_option("Print one JSON object per topic.")] = False,
    *,
    tier: arguments.Tier,
) -> None:
    """List topics: partitions in the directory, records, bytes, first and last time.

    The command reads names, checkpoints and a few index entries, so it is quick on logs of any
    size. The bars show records over time; all topics share one time axis. Times before the year
    2000, far in the future, or of a few records far from all others do not stretch it: a topic
    that has no others has an axis of its own, marked with *. Records are counted by their offsets:
    a topic that is compacted, or lacks some in the first batches of a partition, is marked with
    ≤, and has fewer. The exit status is 1 if a partition is
    missing, lacks offsets or cannot be read.
    """
    with progress("topics", None, is_bytes=False) as bar:
        opened = open_log_dir(*tier.beside(paths))
        found = list(summarize(opened, topic or (), internal=internal, begin=bar.begin))
        leftovers = "" if as_json else leftovers_in_words(opened)
    if as_json:
        for each in found:
            write_json(each.as_json())
    else:
        sys.stdout.write(_table(found))
    write_renamed(opened, topic or (), as_json=as_json)
    sys.stderr.write(leftovers)
    for each in found:
        for problem in () if as_json else each.problems:
            sys.stderr.write(f"{escape(problem)}\n")
    if any(each.problems for each in found):
        raise typer.Exit(arguments.PROBLEM)


class TopicSummary(NamedTuple):
    """A topic in a log directory."""

    topic: str
    n_here: int  # the number of partitions in the directory
    #: the number of all partitions, by the metadata of the cluster if it is here; otherwise by the
    #: numbers of partitions that are here or in the checkpoints
    n_partitions: int
    records: int  # offsets between the starts and the ends of the logs
    n_bytes: int  # of ``.log`` files
    #: the first and the last timestamp, or None without one
    first_ms: int | None
    last_ms: int | None
    #: for each partition, times and the offsets before them; without absurd times if there are
    #: others
    points: Sequence[tuple[Sequence[int], Sequence[int]]]
    problems: Sequence[str]  # reasons why partitions are missing or cannot be read
    is_compacted: bool = False  # so that there are at most so many records as offsets

    @property
    def rate(self) -> float | None:
        """Records a second between the ends of `span`, or None."""
        first, last = self.span or (0, 0)
        return self.records / (last - first) * 1000 if last > first else None

    @property
    def span(self) -> tuple[int, int] | None:
        """The first and the last time of `points`, or None without one."""
        if not self.points:
            return None
        first = min(times[0] for times, _ in self.points)
        return first, max(times[-1] for times, _ in self.points)

    def counts(self, begin_ms: int, end_ms: int, n_times: int = _N_TIMES) -> NDArray[np.float64]:
        """Records in each of so many equal pieces of time.

        `begin_ms`, `end_ms`: epoch milliseconds, of which the first is smaller.  Returns a float64
        array, shape (n_times,).
        """
        edges = np.linspace(begin_ms, end_ms, n_times + 1)
        found = np.zeros(n_times)
        for times, offsets in self.points:
            before = np.interp(edges, times, offsets)
            before[0] = offsets[0]  # records of the first time belong to the first piece
            found += np.diff(before)
        return found

    def as_json(self) -> dict[str, object]:
        """The fields of a line of JSON; `counts` covers the times of `points`."""
        counts: list[int] = []
        if self.span is not None:
            counts = [round(each) for each in self.counts(*_axis([self.span])).tolist()]
        return {
            "topic": self.topic,
            "partitionsHere": self.n_here,
            "partitions": self.n_partitions,
            "records": self.records,
            "bytes": self.n_bytes,
            "recordsPerSecond": self.rate,
            "firstTimestamp": self.first_ms,
            "lastTimestamp": self.last_ms,
            "recordsOverTime": counts,
            "problems": list(self.problems),
            "recordsAtMost": self.is_compacted,
        }


def summarize(
    directory: LogDirectory,
    topics: Sequence[str] = (),
    *,
    internal: bool = False,
    begin: Callable[[str], object] = lambda _: None,
) -> Iterator[TopicSummary]:
    """Summarize topics, including those of which only checkpoints are left.

    `topics`: names of topics; all but brokers' own if empty.  `internal`: whether brokers' own
    topics are listed, too.  `begin`: takes the name of each partition before it is looked at.
    """
    missing = missing_of(directory, topics)
    there: dict[str, list[int]] = {}
    lost: dict[str, list[int]] = {}
    for topic, partition in partitions_of(directory, topics, (), missing):
        there.setdefault(topic, []).append(partition)
    for each in missing:
        lost.setdefault(each.topic_partition.topic, []).append(each.topic_partition.partition)
    reasons = {each.topic_partition: each.reason for each in missing}
    known, compacted = _of_cluster(directory, {*there, *lost})
    for topic in sorted({*there, *lost}):
        if topic in INTERNAL_TOPICS and not (internal or topics):
            continue
        problems = [f"{each}: {reason}" for each, reason in reasons.items() if each.topic == topic]
        numbers = [*there.get(topic, ()), *lost.get(topic, ())]
        logs = []
        for partition in there.get(topic, ()):
            try:
                logs.append(directory.log(topic, partition))
            except CorruptCheckpointError as error:
                place = TopicPartition(topic, partition)
                problems.append(f"{place}: {error}; {WITHOUT_LOG_START}")
                logs.append(directory.log_without_checkpoints(place))
            except SegmentLogError as error:
                problems.append(f"{TopicPartition(topic, partition)}: {error}")
        n_here = len(there.get(topic, ()))
        n_partitions = known.get(topic, max(numbers) + 1)
        yield _summary(
            topic, logs, n_here, n_partitions, problems, begin, is_compacted=topic in compacted
        )


def _of_cluster(
    directory: LogDirectory, topics: Iterable[str]
) -> tuple[Mapping[str, int], Collection[str]]:
    """The numbers of partitions by the metadata of the cluster, and the topics that it compacts.

    A copy of a compacted log may be without the checkpoint of the cleaner.
    """
    metadata, compacted = ClusterMetadata(directory.paths), set[str]()
    try:
        metadata.tables("topics", "partitions", "configs", "features")  # all of them at once
        known = read_partition_counts(metadata)
    except (SegmentLogError, OSError) as error:  # the other sources are left
        logger.warning("the number of partitions is not known: %s", error)
        return {}, compacted
    for path in directory.paths:
        try:
            place = None if metadata.path is None else os.path.dirname(metadata.path)
            settings = DirectorySettings.read(
                path,
                metadata=place if is_of_a_broker(path) else None,
                is_optional=True,
                cluster_at=lambda _: settings_of_cluster(metadata),
            )
            compacted |= {
                each for each in topics if "compact" in settings.config(each).cleanup_policy
            }
        except (SegmentLogError, OSError) as error:
            logger.warning("which topics are compacted is not known: %s", error)
    return known, compacted


def _summary(
    topic: str,
    logs: Sequence[Log],
    n_here: int,
    n_partitions: int,
    problems: list[str],
    begin: Callable[[str], object],
    *,
    is_compacted: bool,
) -> TopicSummary:
    records, n_bytes = 0, 0
    points, times = [], list[int]()
    for log in logs:
        begin(str(log.topic_partition))
        try:
            n_bytes += log.size_bytes
            records += log.log_end_offset - log.log_start_offset
            losses = known_losses(log)
            records -= sum(lost.end_offset - lost.start_offset for lost in losses)
            # A compaction may then have removed records between others.
            is_compacted |= log.cleaned_to > log.log_start_offset
            reasons = missing_offsets(log, losses)
            problems += [f"{log.topic_partition}: {reason}" for reason in reasons]
            if log.end.damaged_from is not None:
                problems.append(f"{log.topic_partition}: {damaged_end(log.end.damaged_from)}")
            found = _points(log)
        except (SegmentLogError, OSError) as error:
            problems.append(f"{log.topic_partition}: {in_words(error)}")
            continue
        if found is not None:
            pairs, start, end, is_thinned = found
            is_compacted |= is_thinned
            times += [pairs[0][0], max(pairs)[0]]
            points.append(_rising(pairs, start, end))
    first, last = min(times, default=None), max(times, default=None)
    return TopicSummary(
        topic, n_here, n_partitions, records, n_bytes, first, last, points, problems, is_compacted
    )


def _is_plausible(time_ms: int) -> bool:
    """Whether a time may be a record's: one in seconds, or in nanoseconds, is far off."""
    return _LEAST_MS <= time_ms <= time.time() * 1000 + _AHEAD_MS


def _rising(
    pairs: Sequence[tuple[int, int]], start: int, end: int
) -> tuple[Sequence[int], Sequence[int]]:
    """Times that rise, and the number of offsets of a log before or at each.

    A time that is far off, up or down, has most of the times after it or before it against it.
    """
    # Most logs have few pairs, for which calls of numpy would take longer.
    pairs = [each for each in pairs if _is_plausible(each[0])] or pairs
    pairs = sorted(pairs, key=itemgetter(1))
    pairs = [pairs[i] for i in _longest_rise([each for each, _ in pairs])]
    last_of_time = dict(pairs)
    times = [*last_of_time]
    offsets = [min(max(each, start), end) - start for each in last_of_time.values()]
    # At the ends, such a time leaves a long time with hardly any record.
    few, first, last = offsets[-1] * _FEW, 0, len(times) - 1
    while last - first > 1:
        most = (times[last] - times[first]) * (1 - _FEW)
        if times[first + 1] - times[first] > most and offsets[first + 1] <= few:
            first += 1
        elif times[last] - times[last - 1] > most and offsets[-1] - offsets[last - 1] <= few:
            last -= 1
        else:
            break
    times, offsets = times[first : last + 1], offsets[first : last + 1]
    offsets[-1] = end - start
    return [times[0], *times], [0, *offsets]


def _longest_rise(times: Sequence[int]) -> list[int]:
    """Numbers of the times of a longest series that does not fall."""
    tails: list[int] = []  # the least time that ends a series of each length
    ends: list[int] = []  # its number
    before = list[int]()
    for i, each in enumerate(times):
        length = bisect_right(tails, each)
        tails[length : length + 1], ends[length : length + 1] = [each], [i]
        before.append(ends[length - 1] if length else -1)
    found, at = list[int](), ends[-1]
    while at >= 0:
        found.append(at)
        at = before[at]
    return found[::-1]


def _points(log: Log) -> tuple[Sequence[tuple[int, int]], int, int, bool] | None:
    """Times and offsets after them, the bounds of the log, and whether its first batches are thin.

    None without any time.
    """
    start, end = log.log_start_offset, log.log_end_offset
    segments = [segment for segment in log.untorn_segments if segment.size]
    if not segments or end <= start:
        return None
    ends = [*(segment.base_offset for segment in segments[1:]), end]
    found, is_thinned = list[tuple[int, int]](), False
    n_entries = max(1, _N_POINTS // len(segments))
    for segment, segment_end in zip(segments, ends, strict=True):
        with segment.opened() as opened:
            if segment is segments[0]:
                tail = segment.tail
                whole = [] if tail is None or tail.position else tail.headers()
                headers = whole or _first_headers(opened)
                is_thinned = _is_thinned(headers)
                found += _first_times(headers, start)
                if not found:
                    return None
            found += _entries(opened, n_entries, segment_end)
    pairs = [each for each in found if each[0] >= 0]
    return (pairs, start, end, is_thinned) if pairs else None


def _first_headers(opened: OpenSegment) -> list[BatchHeader]:
    """The headers of the first batches of a segment, in one read if one of them has a time."""
    found = list[BatchHeader]()
    for placed in islice(opened.headers(0, window_bytes=_WINDOW_BYTES), _N_POINTS):
        is_far = placed.position >= _WINDOW_BYTES
        if is_far and any(_is_plausible(each.first_timestamp) for each in found):
            break
        found.append(placed.header)
    return found


def _is_thinned(headers: Sequence[BatchHeader]) -> bool:
    """Whether batches lack records, or batches between them are gone."""
    whole = [each for each in headers if each.magic >= layout.FIRST_BATCH_MAGIC]
    return any(each.records_count <= each.last_offset_delta for each in whole) or any(
        a.last_offset + 1 < b.base_offset for a, b in pairwise(whole)
    )


def _first_times(headers: Sequence[BatchHeader], start: int) -> Iterator[tuple[int, int]]:
    """The times of the first batches of a log, up to one that may be right."""
    offset = start
    for i, header in enumerate(headers):
        offset = max(header.base_offset, start) if i else start
        first = header.first_timestamp
        yield first, offset
        if _is_plausible(first):
            break


def _entries(opened: OpenSegment, most: int, end: int) -> Iterator[tuple[int, int]]:
    """Some entries of the time index of a segment, and its largest time at its end."""
    index = opened.time_index
    for slot in _spread(index.n_entries, most):
        timestamp_ms, offset = index.entry(slot)
        yield timestamp_ms, offset + 1
    largest = opened.largest_timestamp()
    if largest > time.time() * 1000 or not _is_plausible(largest):
        # Index entries after such a time are missing, so headers are looked at.
        offsets = opened.offset_index
        for slot in _spread(offsets.n_entries, most):
            entry = offsets.entry(slot)
            header = opened.header_at(entry.position, up_to_offset=entry.offset)
            if header is not None:
                yield header.max_timestamp, last_offset(header) + 1
        for placed in opened.headers(opened.floor_position(LARGEST_LONG)):
            yield placed.header.max_timestamp, last_offset(placed.header) + 1
    yield largest, end


def _spread(n_entries: int, most: int) -> Sequence[int]:
    """Numbers of some entries of an index, from its first to its last."""
    if n_entries <= most:
        return range(n_entries)
    return [i * (n_entries - 1) // max(most - 1, 1) for i in range(most)]


def _table(found: Sequence[TopicSummary]) -> str:
    spans = [each.span for each in found if each.span is not None]
    usual = [
        (each.span, each.records)
        for each in found
        if each.span is not None and all(map(_is_plausible, each.span))
    ]
    shared = _axis(_without_few(usual) or spans)
    names = ["topic", "partitions", "records", "bytes", "records/s", "from", "to", "over time"]
    rows = [
        [
            escape(each.topic),
            str(each.n_here)
            if each.n_here == each.n_partitions
            else f"{each.n_here} of {each.n_partitions}",
            f"{'≤' * each.is_compacted}{each.records:,}",
            f"{each.n_bytes:,}",
            "-" if each.rate is None else f"{each.rate:,.3g}",
            time_cell(each.first_ms),
            time_cell(each.last_ms),
            _over_time(each, shared),
        ]
        for each in found
    ]
    right = [False, False, True, True, True, False, False, False]
    return aligned(names, rows, right)


def _without_few(spans: Sequence[tuple[tuple[int, int], int]]) -> list[tuple[int, int]]:
    """The spans of topics, without those of few records that would stretch an axis tenfold."""
    left, few = list(spans), sum(records for _, records in spans) * _FEW
    for key in (lambda each: each[0][0], lambda each: -each[0][1]):
        left.sort(key=key)
        n_records = 0
        for i, (_, records) in enumerate(left[:-1]):
            n_records += records
            if n_records > few:
                break
            before, after = (_axis([span for span, _ in each]) for each in (left, left[i + 1 :]))
            if (after[1] - after[0]) * 10 < before[1] - before[0]:
                left = left[i + 1 :]
                break
    return [span for span, _ in left]


def _axis(spans: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The times that all spans lie in, which are not equal."""
    begin = min((first for first, _ in spans), default=0)
    return begin, max([begin + 1, *(last for _, last in spans)])


def _over_time(summary: TopicSummary, shared: tuple[int, int]) -> str:
    """The bars of a topic; with a mark if its times lie outside of those of the others."""
    span = summary.span
    if span is None or (span[0] <= shared[1] and shared[0] <= span[1]):
        return _bars(summary.counts(*shared))
    return f"{_bars(summary.counts(*_axis([span])))} *"


def _bars(counts: NDArray[np.float64]) -> str:
    """A bar for each number; the largest one is full, and those above 0 can be seen."""
    most = counts.max(initial=0)
    if not most:
        return ""
    heights = np.ceil(counts / most * (len(_BARS) - 1) - 1e-9).astype(int)
    return "".join(_BARS[max(each, 0)] for each in heights.tolist())
