"""The lag of a streaming query, from its progress: Spark reports no metrics of a Python source."""

import json
from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark_segmentlog.options.option import Query
from pyspark_segmentlog.options.read_options import ReadOptions
from pyspark_segmentlog.reads.planner import PlannedMoment
from segmentlog.arguments import one_dialect
from segmentlog.errors import OptionError
from segmentlog.model import TopicPartition
from segmentlog.reads import offsets_of_json

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress


class PartitionLag(NamedTuple):
    """The lag of one partition."""

    source: int  # number of the source in the query, from 0
    topic: str
    partition: int
    offset: int  # the next offset that the query reads
    latest_offset: int  # the end of the log, when the progress was reported
    lag: int  # number of offsets between the two


@one_dialect()
def lag(
    progress: "StreamingQueryProgress | Mapping[str, Any] | str | None",
    path: str | PathLike[str] | Sequence[str | PathLike[str]] | None = None,
) -> list[PartitionLag]:
    """The number of offsets that a streaming query has yet to read, for each partition.

    ::

        pyspark_segmentlog.lag(query.lastProgress)
        spark.createDataFrame(pyspark_segmentlog.lag(query.lastProgress))

    Spark 4.0 and 4.1 have no latest offset of a Python source in their progress: give the
    directory that the query reads.

    A partition that the query has not read yet counts from offset 0, as in the metrics
    ``offsetsBehindLatest`` of ``KafkaMicroBatchStream``.  Offsets count, and not records:
    compaction and transactions leave gaps.

    Parameters
    ----------
    progress : a progress report, classic or Spark Connect; its JSON, as listeners get it;
        or None, which `query.lastProgress` is before the first batch.
    path : a log directory, or several of one broker, whose ends count where the progress has none.

    Returns
    -------
    list of PartitionLag
        In the order of sources, topics and partitions.  Sources whose offsets are not those of
        partitions, or which report no latest offset, have none.

    Raises
    ------
    OptionError
        If it is not the progress of a query.
    LogDirectoryError
        If there is no log directory at `path`.
    UnknownTopicOrPartitionError
        If it lacks a topic of the query.
    """
    if progress is None:
        return []
    found = []
    for number, source in enumerate(_sources(progress)):
        ends, latest = (_offsets(source.get(name)) for name in ("endOffset", "latestOffset"))
        if ends is not None and latest is None and path is not None:
            latest = ends_of(path, ends)
        if ends is None or latest is None:
            continue
        for each, latest_offset in latest.items():
            offset = max(ends.get(each, 0), 0)
            left = latest_offset - offset
            found.append(PartitionLag(number, *each, offset, latest_offset, left))
    return found


def _sources(progress: "Mapping[str, Any] | str") -> list[Mapping[str, Any]]:
    # Spark 4.0 and 4.1 make offsets in an object a text of Python; its JSON has them as they are.
    loaded: object = getattr(progress, "json", progress)
    if isinstance(loaded, str):
        try:
            loaded = json.loads(loaded)
        except (ValueError, RecursionError):
            raise _refused(progress) from None
    sources = loaded.get("sources") if isinstance(loaded, Mapping) else None
    if not isinstance(sources, list) or not all(isinstance(each, Mapping) for each in sources):
        raise _refused(progress)
    return sources


def ends_of(
    path: str | PathLike[str] | Sequence[str | PathLike[str]],
    read: Mapping[TopicPartition, int],
    *,
    isolation_level: str = "read_uncommitted",
) -> Mapping[TopicPartition, int]:
    """The ends of the topics that a query has read, as a stream finds them."""
    paths = [path] if isinstance(path, str | PathLike) else path
    raw = {
        "paths": json.dumps([fspath(each) for each in paths]),
        "subscribe": ",".join(sorted({each.topic for each in read})),
        "kafka.isolation.level": isolation_level,
        "failOnDataLoss": "false",
    }
    return PlannedMoment(ReadOptions.parse(raw, Query.STREAM)).ends() if read else {}


def _refused(progress: object) -> OptionError:
    accepted = "give query.lastProgress, an element of query.recentProgress, or its JSON"
    return OptionError("progress", str(progress)[:80], accepted)


def _offsets(given: object) -> Mapping[TopicPartition, int] | None:
    """Offsets as a text or as a dictionary: JSON of a progress has the latter."""
    return offsets_of_json(given if isinstance(given, str) else json.dumps(given, default=str))
