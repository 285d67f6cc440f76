"""Offsets of a stream, as its checkpoint has them: the JSON of Spark's ``kafka`` source.

::

    {"orders": {"0": 23, "2": 0, "10": 7}, "payments": {"0": 122}}

A number is the offset of the next record to read.  Spark compares the texts of two offsets, so
topics and partitions come in one order: partitions by their numbers, as `kafka` sorts them.
"""

from collections.abc import Mapping
from typing import TypeAlias

from segmentlog.errors import OptionError
from segmentlog.model import TopicPartition

__all__ = ["Offsets", "OffsetsJson", "from_json", "to_json"]

Offsets: TypeAlias = Mapping[TopicPartition, int]
OffsetsJson: TypeAlias = dict[str, dict[str, int]]


def to_json(offsets: Offsets) -> OffsetsJson:
    """The offsets as Spark logs them."""
    topics: OffsetsJson = {}
    for topic, partition in sorted(offsets):
        topics.setdefault(topic, {})[str(partition)] = offsets[TopicPartition(topic, partition)]
    return topics


def from_json(logged: object) -> dict[TopicPartition, int]:
    """Offsets that Spark has read in a checkpoint.

    Raises
    ------
    OptionError
        If another source has written them.
    """
    try:
        return dict(_checked(logged))
    except ValueError:
        accepted = (
            f"its offsets are {str(logged)[:100]}, and neither this source nor kafka has written "
            "them: give the checkpoint of a query of this log, or a new directory"
        )
        raise OptionError("checkpointLocation", "of another source", accepted) from None


def _checked(logged: object) -> list[tuple[TopicPartition, int]]:
    """The offsets, if the value has the form of this module."""
    found = []
    for topic, partitions in _object(logged).items():
        for partition, offset in _object(partitions).items():
            if not partition.isdecimal() or type(offset) is not int or offset < 0:
                raise ValueError
            found.append((TopicPartition(topic, int(partition)), offset))
    return found


def _object(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError
    return value
