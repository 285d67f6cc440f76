"""``segmentlog topics``: a line a topic, with its records over time, from indexes and checkpoints.

Records are counted by their offsets, so a topic that compaction has thinned out has fewer records.
Over time, they are counted by the time index: an entry shows how many offsets lie before a time,
and between two entries the offsets are taken to be evenly spread.
"""

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple

import numpy as np
import typer
from numpy.typing import NDArray

from segmentlog.cluster.metadata_log import newest_metadata
from segmentlog.errors import SegmentLogError
from segmentlog.logs.choose import missing_of, partitions_of
from segmentlog.logs.log import Log
from segmentlog.logs.log_directory import LogDirectory, open_log_dir
from segmentlog.model import INTERNAL_TOPICS
from segmentlog.segments.segment import Segment
from segmentlog.settings.cluster_metadata import read_partition_counts
from segmentlog.tools.arguments import (
    PROBLEM,
    READS,
    PathsOrTier,
    RemoteKeyFile,
    RemoteLayout,
    RemoteStorage,
    Topics,
    command,
    with_tier,
)
from segmentlog.tools.tables import aligned
from segmentlog.tools.text import escape, iso_time, to_json
from segmentlog.tools.usage import write_leftovers

__all__ = ["TopicSummary", "summarize", "topics"]

logger = logging.getLogger(__name__)

_BARS = " ▁▂▃▄▅▆▇█"
_N_TIMES = 24  #: pieces of time in the picture of a topic
_N_POINTS = 64  #: entries of time indexes of a partition to look at, or one a segment


@command(
    READS,
    "segmentlog topics /var/lib/kafka",
    "segmentlog topics /data1 /data2 --topic orders",
    "segmentlog topics /var/lib/kafka --json | jq 'select(.bytes > 1e9) | .topic'",
)
def topics(
    paths: PathsOrTier = None,
    topic: Topics = None,
    internal: Annotated[
        bool, typer.Option("--internal", help="List brokers' internal topics, too.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per topic.")
    ] = False,
    remote_storage: RemoteStorage = None,
    remote_storage_layout: RemoteLayout = None,
    remote_storage_key_file: RemoteKeyFile = None,
) -> None:
    """List topics: partitions in the directory, records, bytes, first and last time.

    The command reads names, checkpoints and a few index entries, so it is quick on logs of any
    size. The bars show records over time; all topics share one time axis. The exit status is 1 if
    a partition is missing or cannot be read.
    """
    tier = remote_storage, remote_storage_layout, remote_storage_key_file
    opened = open_log_dir(*with_tier(paths, *tier))
    found = list(summarize(opened, topic or (), internal=internal))
    if as_json:
        for each in found:
            sys.stdout.write(to_json(each.as_json()) + "\n")
    else:
        sys.stdout.write(_table(found))
        write_leftovers(opened)
    for each in found:
        for problem in () if as_json else each.problems:
            sys.stderr.write(f"{escape(problem)}\n")
    if any(each.problems for each in found):
        raise typer.Exit(PROBLEM)


class TopicSummary(NamedTuple):
    """A topic in a log directory.

    Attributes
    ----------
    topic : its name.
    n_here : the number of partitions in the directory.
    n_partitions : the number of all partitions, by the metadata of the cluster if it is here;
        otherwise by the numbers of partitions that are here or in the checkpoints.
    records : offsets between the starts and the ends of the logs.
    n_bytes : of ``.log`` files.
    first_ms, last_ms : the first and the last timestamp, or None without one.
    points : for each partition, times and the offsets before them.
    problems : reasons why partitions are missing or cannot be read.
    """

    topic: str
    n_here: int
    n_partitions: int
    records: int
    n_bytes: int
    first_ms: int | None
    last_ms: int | None
    points: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]
    problems: Sequence[str]

    @property
    def rate(self) -> float | None:
        """Records a second between the first and the last time, or None."""
        if self.first_ms is None or self.last_ms is None or self.last_ms <= self.first_ms:
            return None
        return self.records / (self.last_ms - self.first_ms) * 1000

    def counts(self, begin_ms: int, end_ms: int, n_times: int = _N_TIMES) -> NDArray[np.float64]:
        """Records in each of so many equal pieces of time.

        Parameters
        ----------
        begin_ms, end_ms : epoch milliseconds, of which the first is smaller.
        n_times : the number of pieces.

        Returns
        -------
        float64 array, shape (n_times,)
        """
        edges = np.linspace(begin_ms, end_ms, n_times + 1)
        found = np.zeros(n_times)
        for times, offsets in self.points:
            before = np.interp(edges, times, offsets)
            before[0] = offsets[0]  # records of the first time belong to the first piece
            found += np.diff(before)
        return found

    def as_json(self) -> dict[str, object]:
        """The fields of a line of JSON; `counts` covers the topic's own times."""
        counts: list[int] = []
        if self.first_ms is not None and self.last_ms is not None:
            end_ms = max(self.last_ms, self.first_ms + 1)
            counts = [round(each) for each in self.counts(self.first_ms, end_ms).tolist()]
        return {
            "topic": self.topic, "partitionsHere": self.n_here, "partitions": self.n_partitions,
            "records": self.records, "bytes": self.n_bytes, "recordsPerSecond": self.rate,
            "firstTimestamp": self.first_ms, "lastTimestamp": self.last_ms,
            "recordsOverTime": counts, "problems": list(self.problems),
        }  # fmt: skip


def summarize(
    directory: LogDirectory, topics: Sequence[str] = (), *, internal: bool = False
) -> Iterator[TopicSummary]:
    """Summarize topics, including those of which only checkpoints are left.

    Parameters
    ----------
    directory : the opened directories.
    topics : names of topics; all but brokers' own if empty.
    internal : whether brokers' own topics are listed, too.

    Raises
    ------
    UnknownTopicOrPartitionError
        If the directories have no such topic.
    """
    missing = missing_of(directory, topics)
    there: dict[str, list[int]] = {}
    lost: dict[str, list[int]] = {}
    for topic, partition in partitions_of(directory, topics, (), missing):
        there.setdefault(topic, []).append(partition)
    for each in missing:
        lost.setdefault(each.topic_partition.topic, []).append(each.topic_partition.partition)
    reasons = {each.topic_partition: each.reason for each in missing}
    known = _partition_counts(directory)
    for topic in sorted({*there, *lost}):
        if topic in INTERNAL_TOPICS and not (internal or topics):
            continue
        problems = [f"{each}: {reason}" for each, reason in reasons.items() if each.topic == topic]
        numbers = [*there.get(topic, ()), *lost.get(topic, ())]
        yield _summary(
            topic, [directory.log(topic, each) for each in there.get(topic, ())],
            known.get(topic, max(numbers) + 1), problems,
        )  # fmt: skip


def _partition_counts(directory: LogDirectory) -> Mapping[str, int]:
    """The numbers of partitions by the metadata of the cluster, if it is in a directory."""
    try:
        found = newest_metadata(directory.paths)
        return {} if found is None else read_partition_counts(found)
    except (SegmentLogError, OSError) as error:  # the other sources are left
        logger.warning("the number of partitions is not known: %s", error)
        return {}


def _summary(
    topic: str, logs: Sequence[Log], n_partitions: int, problems: list[str]
) -> TopicSummary:
    records = n_bytes = 0
    points = []
    for log in logs:
        try:
            n_bytes += log.size_bytes
            records += log.log_end_offset - log.log_start_offset
            found = _points(log)
        except (SegmentLogError, OSError) as error:
            problems.append(f"{log.topic_partition}: {error}")
            continue
        if found is not None:
            points.append(found)
    first = min((int(times[0]) for times, _ in points), default=None)
    last = max((int(times[-1]) for times, _ in points), default=None)
    return TopicSummary(
        topic, len(logs), n_partitions, records, n_bytes, first, last, points, problems
    )


def _points(log: Log) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Times that rise, and the number of offsets of a log before or at each; None without any."""
    start, end = log.log_start_offset, log.log_end_offset
    segments = [segment for segment in log.untorn_segments if segment.size]
    if not segments or end <= start:
        return None
    ends = [*(segment.base_offset for segment in segments[1:]), end]
    first = next(iter(segments[0].headers(0)), None)
    if first is None:
        return None
    found = [(first.header.first_timestamp, start)]
    n_entries = max(1, _N_POINTS // len(segments))
    for segment, segment_end in zip(segments, ends, strict=True):
        found += _entries(segment, n_entries, segment_end)
    pairs = np.array([each for each in found if each[0] >= 0], np.int64).reshape(-1, 2)
    if not len(pairs):
        return None
    times = np.maximum.accumulate(pairs[:, 0])
    offsets = np.clip(np.maximum.accumulate(pairs[:, 1]), start, end)
    return times, offsets - start


def _entries(segment: Segment, most: int, end: int) -> Iterator[tuple[int, int]]:
    """Some entries of the time index of a segment, and its largest time at its end."""
    with segment.opened() as opened:
        index = opened.time_index
        slots = np.linspace(0, index.n_entries - 1, min(most, index.n_entries)).astype(np.int64)
        for slot in dict.fromkeys(slots.tolist()):
            timestamp_ms, offset = index.entry(slot)
            yield timestamp_ms, offset + 1
        yield opened.largest_timestamp(), end


def _table(found: Sequence[TopicSummary]) -> str:
    begin = min((each.first_ms for each in found if each.first_ms is not None), default=0)
    end = max((each.last_ms for each in found if each.last_ms is not None), default=0)
    names = ["topic", "partitions", "records", "bytes", "records/s", "from", "to", "over time"]
    rows = [
        [
            escape(each.topic), _partitions(each), f"{each.records:,}", f"{each.n_bytes:,}",
            "-" if each.rate is None else f"{each.rate:,.3g}", _time(each.first_ms),
            _time(each.last_ms), _bars(each.counts(begin, max(end, begin + 1))),
        ]
        for each in found
    ]  # fmt: skip
    right = [False, False, True, True, True, False, False, False]
    return aligned(names, rows, right)


def _partitions(summary: TopicSummary) -> str:
    if summary.n_here == summary.n_partitions:
        return str(summary.n_here)
    return f"{summary.n_here} of {summary.n_partitions}"


def _time(time_ms: int | None) -> str:
    return "-" if time_ms is None else iso_time(time_ms - time_ms % 1000).replace(".000", "")


def _bars(counts: NDArray[np.float64]) -> str:
    """A bar for each number; the largest one is full, and those above 0 can be seen."""
    most = counts.max(initial=0)
    if not most:
        return ""
    heights = np.ceil(counts / most * (len(_BARS) - 1) - 1e-9).astype(int)
    return "".join(_BARS[max(each, 0)] for each in heights.tolist())
