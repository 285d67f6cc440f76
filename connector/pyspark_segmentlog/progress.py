"""The lag of a streaming query, from its progress: Spark reports no metrics of a Python source."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

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
def lag(progress: "StreamingQueryProgress | Mapping[str, Any] | str | None") -> list[PartitionLag]:
    """The number of offsets that a streaming query has yet to read, for each partition.

    ::

        pyspark_segmentlog.lag(query.lastProgress)
        spark.createDataFrame(pyspark_segmentlog.lag(query.lastProgress))

    A partition that the query has not read yet counts from offset 0, as in the metrics
    ``offsetsBehindLatest`` of ``KafkaMicroBatchStream``.  Offsets count, and not records:
    compaction and transactions leave gaps.

    Parameters
    ----------
    progress : a progress report, classic or Spark Connect; its JSON, as listeners get it;
        or None, which `query.lastProgress` is before the first batch.

    Returns
    -------
    list of PartitionLag
        In the order of sources, topics and partitions.  Sources whose offsets are not those of
        partitions, or which report no latest offset, have none.

    Raises
    ------
    OptionError
        If it is not the progress of a query.
    """
    if progress is None:
        return []
    found = []
    for number, source in enumerate(_sources(progress)):
        ends, latest = (_offsets(source.get(name)) for name in ("endOffset", "latestOffset"))
        if ends is None or latest is None:
            continue
        for each, latest_offset in latest.items():
            offset = max(ends.get(each, 0), 0)
            left = latest_offset - offset
            found.append(PartitionLag(number, *each, offset, latest_offset, left))
    return found


def _sources(progress: "Mapping[str, Any] | str") -> list[Mapping[str, Any]]:
    loaded: object = progress
    if isinstance(progress, str):
        try:
            loaded = json.loads(progress)
        except (ValueError, RecursionError):
            raise _refused(progress) from None
    sources = loaded.get("sources") if isinstance(loaded, Mapping) else None
    if not isinstance(sources, list) or not all(isinstance(each, Mapping) for each in sources):
        raise _refused(progress)
    return sources


def _refused(progress: object) -> OptionError:
    accepted = "give query.lastProgress, an element of query.recentProgress, or its JSON"
    return OptionError("progress", str(progress)[:80], accepted)


def _offsets(given: object) -> Mapping[TopicPartition, int] | None:
    """Offsets as a text or as a dictionary: JSON of a progress has the latter."""
    return offsets_of_json(given if isinstance(given, str) else json.dumps(given, default=str))
