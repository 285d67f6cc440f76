"""Offsets of a stream, as its checkpoint has them: the JSON of Spark's ``kafka`` source, and ids.

::

    {"orders": {"0": 23, "2": 0, "10": 7}, "payments": {"0": 122}}

A number is the offset of the next record to read.  Spark compares the texts of two offsets, so
topics and partitions come in one order: partitions by their numbers, as `kafka` sorts them.
`segmentlog.reads.stream_checkpoint` says how the ids of topics are written.

Until the first micro-batch is committed, Spark asks a source for its first offsets at each start.
`kafka` keeps its answer in ``<checkpointLocation>/sources/0/0``: a zero byte, ``v1``, a line feed,
and the offsets as JSON (``KafkaSourceInitialOffsetWriter``).  Spark does not give a Python source
the location of the checkpoint, so an option names it.  Each of the two sources can continue what
the other has begun.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from segmentlog.errors import CorruptCheckpointError, OptionError, StorageError
from segmentlog.model import TopicPartition
from segmentlog.reads import (
    offsets_as_json,
    offsets_of_topics,
    read_initial,
    readable_path,
)

Offsets: TypeAlias = Mapping[TopicPartition, int]
OffsetsJson: TypeAlias = dict[str, dict[str, int]]


def from_json(logged: object) -> dict[TopicPartition, int]:
    """Offsets that Spark has read in a checkpoint; `OptionError` if they are of another source."""
    found = offsets_of_topics(logged)
    if found is None or any(offset < 0 for offset in found.values()):
        accepted = (
            f"its offsets are {str(logged)[:100]}, which neither this source nor kafka has "
            "written: give the checkpoint of a query of this log, or a new directory"
        )
        raise OptionError("checkpointLocation", "of another source", accepted)
    return found


class InitialOffsets:
    """The file with the initial offsets of one source of a query."""

    def __init__(self, location: str) -> None:
        # `hdfs:/checkpoints` is a usual form of URLs in Spark.
        if re.match(r"\s*(?!file:)[a-z][a-z0-9+.-]+:/", location, re.IGNORECASE):
            accepted = "give a local directory: <checkpointLocation>/sources/0"
            raise OptionError("initialOffsetsLocation", location, accepted)
        self.path = Path(readable_path(location)) / "0"

    def read(self) -> tuple[dict[TopicPartition, int], dict[str, str]] | None:
        """The offsets, and known ids of their topics, by topic; None if there is no file."""
        try:
            if not self.path.exists():
                return None
            found, topic_ids = read_initial(str(self.path))
        except OSError as error:
            raise self._failed(error) from error
        if found is None or any(offset < 0 for offset in found.values()):
            reason = "it has no offsets in the form in which kafka and segmentlog keep them"
            remedy = (
                "remove the file if the query has committed no micro-batch: the query then "
                "starts where its options say"
            )
            raise CorruptCheckpointError(str(self.path), 1, reason, remedy)
        return found, topic_ids

    def write(self, offsets: Offsets, topic_ids: Mapping[str, str] = MappingProxyType({})) -> None:
        """Keep the offsets, unless another run has just kept its own; durable when it returns."""
        # The name appears when the content is on the disk, and no other content takes its place:
        # a query that reads half a file cannot be started again.
        content = f"\0v1\n{offsets_as_json(offsets, topic_ids)}"
        draft = self.path.with_name(f".0.{os.getpid()}.tmp")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            draft.unlink(missing_ok=True)  # left by a crash; a link at its name is not followed
            with draft.open("xb") as file:
                file.write(content.encode())
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(draft, self.path)
            except FileExistsError:
                return
            finally:
                draft.unlink()
            directory = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> StorageError:
        return StorageError(error.errno or 0, error.strerror or str(error), str(self.path))
