"""The start of a stream in its checkpoint, where Spark's ``kafka`` source keeps it.

Our source keeps it where ``initialOffsetsLocation`` says.  A checkpoint is named when a query
starts, and the option is needed when its source is loaded.  So the option names a link, which
leads to the checkpoint once this is known.  Each query of a DataFrame leads its link elsewhere:
to its own checkpoint, or to a new directory if the checkpoint is temporary or not local.
"""

import shutil
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

OPTION = "initialOffsetsLocation"

_PREFIX = "segmentlog-initial-offsets-"

#: How long a query waits for an earlier query of its DataFrame, and between two looks.
_LONGEST_WAIT, _PAUSE = 60.0, 0.02

_CALLS = 6  #: from the warning to the call of a job that starts a query

_DIRECTORIES: list[str] = []

#: The last query of each link.
_QUERIES: dict[str, Any] = {}


def new_link() -> str:
    """A path at which nothing is yet."""
    _DIRECTORIES.append(tempfile.mkdtemp(prefix=_PREFIX))
    return str(Path(_DIRECTORIES[-1], "link"))


def remove_links() -> None:
    """Remove all links; what they lead to stays."""
    _QUERIES.clear()
    while _DIRECTORIES:
        shutil.rmtree(_DIRECTORIES.pop(), ignore_errors=True)


def links_of(writer: Any) -> list[str | None]:  # noqa: ANN401
    """The link of each stream of a query, in the order in which Spark numbers them."""
    return list(_links_of(writer))


def warn_of_older_checkpoint(checkpoint: str | None, directories: Iterable[str]) -> None:
    """Warn of a checkpoint that is older than all topics: it is of a run with other logs.

    `checkpoint`: as of `lead_to_checkpoint`.  `directories`: those that stand for servers.
    """
    path = (checkpoint or "").removeprefix("file://").removeprefix("file:")
    if not path or "://" in path:
        return
    try:
        written = [each.stat().st_mtime_ns for each in Path(path, "offsets").glob("[0-9]*")]
        made = [
            each.stat().st_mtime_ns
            for directory in set(directories)
            for each in Path(directory).glob("*/partition.metadata")
        ]
    except OSError:  # a job removes or makes them just now
        return
    if written and made and max(written) < min(made):
        message = (
            f"the checkpoint {path} is older than all topics of as_kafka: it is of an earlier "
            "test, so the query goes on from offsets of another log, and may read nothing; give "
            "each test a checkpointLocation of its own, or remove it"
        )
        warnings.warn(message, stacklevel=_CALLS)


def lead_to_checkpoint(links: Sequence[str | None], checkpoint: str | None) -> None:
    """Let the links of a query's sources lead to its checkpoint.

    `checkpoint`: a local path, or a ``file:`` URL; other URLs keep no start.  None for a temporary
    checkpoint.  Raises `TimeoutError` if an earlier query of the same DataFrame does not read its
    own start.
    """
    path = (checkpoint or "").removeprefix("file://").removeprefix("file:")
    for number, place in enumerate(links):
        if place is None:
            continue
        link = Path(place)
        if path and "://" not in path:
            kept = Path(path, "sources", str(number)).absolute()
            kept.mkdir(parents=True, exist_ok=True)
        else:
            kept = Path(tempfile.mkdtemp(dir=link.parent))
        if place in _QUERIES:
            _await_start(_QUERIES.pop(place))
        link.unlink(missing_ok=True)
        link.symlink_to(kept)


def remember(links: Iterable[str | None], query: Any) -> None:  # noqa: ANN401
    """Note that a query has begun, which will read its start through these links."""
    _QUERIES.update({place: query for place in links if place is not None})


def _await_start(query: Any) -> None:  # noqa: ANN401
    """Wait until a query has read its start, or has ended."""
    # It reads its start before it knows whether there are records, and before it waits for records
    # or for its trigger.
    end = time.monotonic() + _LONGEST_WAIT
    while query.isActive and query.lastProgress is None:
        status = query.status
        if status["isDataAvailable"] or status["message"].startswith("Waiting for"):
            return
        if time.monotonic() > end:
            message = (
                f"the query {query.name or query.id} has not begun to read after "
                f"{_LONGEST_WAIT:.0f} seconds, and another query of its DataFrame would take its "
                "place: load the stream once for each query"
            )
            raise TimeoutError(message)
        time.sleep(_PAUSE)


def _links_of(writer: Any) -> Iterator[str | None]:  # noqa: ANN401
    if hasattr(writer, "_write_proto"):
        yield from dict.fromkeys(_of_message(writer._write_proto.input))
        return
    leaves = writer._df._jdf.queryExecution().analyzed().collectLeaves()
    found = {}
    for i in range(leaves.size()):
        leaf = leaves.apply(i)
        kind = leaf.getClass().getSimpleName()
        if kind.startswith("StreamingRelation"):
            place = leaf.extraOptions().get(OPTION) if kind.endswith("V2") else None
            found[place or i] = place
    yield from found.values()


def _of_message(message: Any) -> Iterator[str | None]:  # noqa: ANN401
    """The option of each stream in a plan of Spark Connect."""
    if message.DESCRIPTOR.name == "Read":
        if message.is_streaming:
            yield message.data_source.options.get(OPTION)
        return
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for each in [value] if hasattr(value, "ListFields") else value:
            yield from _of_message(each)
