"""The progress of a query as with Spark's ``kafka`` source and sink: descriptions and lags.

A source in Python gives Spark neither, so both are filled in where a progress comes to Python:
from a query, or in a listener.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from typing import Any, NamedTuple

from pyspark.sql.streaming.listener import StreamingQueryProgress

from pyspark_segmentlog.progress import ends_of
from segmentlog.errors import SegmentLogError
from segmentlog.reads import offsets_as_topics, offsets_of_json

#: How long a listener waits for a query whose start has not returned.
_LONGEST_WAIT = 10.0


class _QuerySource(NamedTuple):
    description: str
    directory: str
    isolation_level: str


#: Sources, by their options `initial_offsets.OPTION`.
_SOURCES: dict[str, _QuerySource] = {}

#: By the run of a query: its sources, None for those of other formats; and the numbers of rows by
#: micro-batch that its sink has written, None for a sink of another format.
_RUNS: dict[str, tuple[Sequence[_QuerySource | None], Mapping[int, int] | None]] = {}

#: Threads of a job change `_BEGUN` under it.  A run is noted while its start is in `_BEGUN`, so a
#: listener that waits for both misses none.
_CHANGED = threading.Condition()
_BEGUN: list[object] = []  # starts that have not returned

_TABLE = "org.apache.spark.sql.kafka010.KafkaSourceProvider$KafkaTable"


def describe_source(place: str, options: Mapping[str, str], directory: str) -> None:
    """Note what a source subscribes to, in the words of Spark's source."""
    if "assign" in options:
        assigned = json.loads(options["assign"]).items()
        shown = ", ".join(f"{topic}-{each}" for topic, listed in assigned for each in listed)
        said = f"Assign[{shown}]"
    elif "subscribe" in options:
        topics = [each.strip() for each in options["subscribe"].split(",") if each.strip()]
        said = f"Subscribe[{', '.join(topics)}]"
    else:
        said = f"SubscribePattern[{options['subscribepattern'].strip()}]"
    level = options.get("kafka.isolation.level", "read_uncommitted")
    _SOURCES[place] = _QuerySource(f"KafkaV2[{said}]", directory, level)


@contextmanager
def starting() -> Iterator[Callable[..., None]]:
    """Begin a query, and note it with the function that the block gets."""

    def note(
        query: Any,  # noqa: ANN401
        links: Sequence[str | None],
        written: Mapping[int, int] | None,
    ) -> None:
        names = [None if each is None else _SOURCES.get(each) for each in links]
        if written is not None or any(names):
            _RUNS[str(query.runId)] = names, written

    with _CHANGED:
        _BEGUN.append(note)
    try:
        yield note
    finally:
        with _CHANGED:
            _BEGUN.remove(note)
            _CHANGED.notify_all()


def is_starting() -> bool:
    """Whether a query begins."""
    return bool(_BEGUN)


def forget() -> None:
    """Forget all queries."""
    _SOURCES.clear()
    _RUNS.clear()


def described(progress: StreamingQueryProgress, document: dict[str, Any]) -> Any:  # noqa: ANN401
    """The progress and its JSON with what Spark's source and sink say of themselves."""
    run = str(progress.runId)
    with _CHANGED:
        _CHANGED.wait_for(lambda: run in _RUNS or not _BEGUN, _LONGEST_WAIT)
    names, written = _RUNS.get(run, ((), None))
    if not names and written is None:
        return progress
    sources = zip(names, progress["sources"], document["sources"], strict=False)
    for ours, source, in_document in sources:
        if ours is not None:
            _add_latest(in_document, ours)
            _fill_in(source, in_document, ours.description, metrics=_metrics(in_document))
        if ours is not None and progress._jprogress is not None:
            source.update(_offsets(in_document))
    if written is not None:
        rows = written.get(progress["batchId"], progress["sink"]["numOutputRows"])
        shown = f"{_TABLE}@{hash(run) & 0xFFFFFFFF:x}"
        _fill_in(progress["sink"], document["sink"], shown, numOutputRows=rows)
    progress._jprogress, progress._jdict = None, document
    return progress


def _add_latest(source: dict[str, Any], ours: _QuerySource) -> None:
    """Add the ends of the partitions, which Spark does not ask a source of Python for before 4.2.

    They are those of now.
    """
    read = offsets_of_json(json.dumps(source.get("endOffset")))
    if source.get("latestOffset") is None and read is not None:
        with suppress(SegmentLogError):  # the topic may be gone
            ends = ends_of(ours.directory, read, isolation_level=ours.isolation_level)
            source["latestOffset"] = offsets_as_topics(ends)


def _fill_in(part: Any, document: dict[str, Any], description: str, **more: object) -> None:  # noqa: ANN401
    document.update(description=description, **more)
    part.update(description=description, **more)
    part._jprogress, part._jdict = None, document


def _offsets(source: Mapping[str, Any]) -> dict[str, str]:
    """Offsets as a listener gets those of Spark's source: its JSON has no blanks."""
    return {
        name: json.dumps(source[name], separators=(",", ":"))
        for name in ("startOffset", "endOffset", "latestOffset")
        if source.get(name) is not None
    }


def _metrics(source: Mapping[str, Any]) -> dict[str, str]:
    """How many offsets a source has yet to read; it has read none of an unknown partition."""
    ends, latest = source["endOffset"], source["latestOffset"]
    behind = [
        offset - ends.get(topic, {}).get(partition, 0)
        for topic, offsets in (latest or {}).items()
        for partition, offset in offsets.items()
        if ends is not None
    ]
    if not behind:
        return {}
    mean = sum(behind) / len(behind)
    return {
        "minOffsetsBehindLatest": str(min(behind)),
        "maxOffsetsBehindLatest": str(max(behind)),
        "avgOffsetsBehindLatest": _of_java(mean),
    }


def _of_java(number: float) -> str:
    _, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    if number < 10_000_000:
        return repr(number)
    first, *rest = map(str, digits)
    return f"{first}.{''.join(rest) or '0'}E{len(rest) + int(exponent)}"
