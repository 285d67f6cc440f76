"""The start of a stream in its checkpoint, where Spark's ``kafka`` source keeps it.

Our source keeps it where ``initialOffsetsLocation`` says.  A checkpoint is named when a query
starts, and the option is needed when its source is loaded.  So the option names a link, which
leads to the checkpoint once this is known.
"""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["OPTION", "lead_to_checkpoint", "new_link", "remove_links"]

OPTION = "initialOffsetsLocation"

_PREFIX = "segmentlog-initial-offsets-"


_DIRECTORIES: list[str] = []


def new_link() -> str:
    """A path at which nothing is yet."""
    _DIRECTORIES.append(tempfile.mkdtemp(prefix=_PREFIX))
    return str(Path(_DIRECTORIES[-1], "link"))


def remove_links() -> None:
    """Remove all links; what they lead to stays."""
    while _DIRECTORIES:
        shutil.rmtree(_DIRECTORIES.pop(), ignore_errors=True)


def lead_to_checkpoint(writer: Any, checkpoint: str) -> None:  # noqa: ANN401
    """Let the links of a query's sources lead to its checkpoint.

    Parameters
    ----------
    writer : a stream writer of pyspark, classic or of Spark Connect, that is about to start.
    checkpoint : a local path, or a ``file:`` URL; other URLs keep no start.
    """
    path = checkpoint.removeprefix("file://").removeprefix("file:")
    if "://" in path:
        return
    for number, place in enumerate(_places(writer)):
        if place is None:
            continue
        kept = Path(path, "sources", str(number)).absolute()
        kept.mkdir(parents=True, exist_ok=True)
        link = Path(place)
        if link.is_dir() and not link.is_symlink():  # of a query without a checkpoint
            shutil.rmtree(link)
        link.unlink(missing_ok=True)
        link.symlink_to(kept)


def _places(writer: Any) -> Iterator[str | None]:  # noqa: ANN401
    """The option of each stream of the query, in the order in which Spark numbers them."""
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
