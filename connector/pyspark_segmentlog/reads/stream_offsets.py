"""Offsets of a stream, as its checkpoint has them: the JSON of Spark's ``kafka`` source, and ids.

::

    {"orders": {"0": 23, "2": 0, "10": 7}, "payments": {"0": 122}}

A number is the offset of the next record to read.  Spark compares the texts of two offsets, so
topics and partitions come in one order: partitions by their numbers, as `kafka` sorts them.
`segmentlog.reads.stream_checkpoint` says how the ids of topics are written.
"""

from collections.abc import Mapping
from typing import TypeAlias

from segmentlog.errors import OptionError
from segmentlog.model import TopicPartition
from segmentlog.reads import offsets_as_topics, offsets_of_topics, topic_ids_of

__all__ = ["Offsets", "OffsetsJson", "from_json", "to_json", "topic_ids_of"]

Offsets: TypeAlias = Mapping[TopicPartition, int]
OffsetsJson: TypeAlias = dict[str, dict[str, int]]

to_json = offsets_as_topics


def from_json(logged: object) -> dict[TopicPartition, int]:
    """Offsets that Spark has read in a checkpoint.

    Raises `OptionError` if another source has written them.
    """
    found = offsets_of_topics(logged)
    if found is None or any(offset < 0 for offset in found.values()):
        accepted = (
            f"its offsets are {str(logged)[:100]}, which neither this source nor kafka has "
            "written: give the checkpoint of a query of this log, or a new directory"
        )
        raise OptionError("checkpointLocation", "of another source", accepted)
    return found
