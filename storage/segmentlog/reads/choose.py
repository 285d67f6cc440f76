"""The partitions that a read takes of a directory, and those that it lacks.

A checkpoint names partitions whose directories are gone; the records of others are in a tier, and
not on these disks.  What is left out is reported, to a reader that follows logs only once.
`segmentlog.reads.diskless` has the records that no directory holds.
"""

import logging
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from segmentlog.errors import (
    LogDirectoryError,
    SegmentLogError,
    UnknownTopicOrPartitionError,
)
from segmentlog.format.names import LOG_START_CHECKPOINT
from segmentlog.log.checkpoint import read_offsets
from segmentlog.model import OffsetRange, TopicPartition
from segmentlog.store.paths import is_tiered, plain_path

if TYPE_CHECKING:
    from segmentlog.reads.log_directory import LogDirectory

logger = logging.getLogger(__name__)

MOST_NAMED = 5  #: partitions or paths that a message names before it says "and … more"

#: What a reader that follows logs was told before, by its subject; None for a single read.
Told: TypeAlias = dict[tuple[str, TopicPartition], str] | None


class MissingPartition(NamedTuple):
    """A partition that had records according to a checkpoint, and whose directory is gone.

    Attributes
    ----------
    topic_partition : its topic and number.
    high_watermark : its entry in the checkpoint; above 0.
    checkpoint : path of the ``replication-offset-checkpoint`` that names it.
    entry : what is there in place of its directory: a file or a link; empty if there is nothing.
    """

    topic_partition: TopicPartition
    high_watermark: int
    checkpoint: str
    entry: str = ""

    @property
    def reason(self) -> str:
        """The promise that is broken, as messages word it."""
        promised = f"its high watermark is {self.high_watermark} in {self.checkpoint}"
        return f"{promised}, but {self.entry or 'its log is gone'}"


def gone(
    missing: MissingPartition, more: str = "", remedy: str = ""
) -> UnknownTopicOrPartitionError:
    """The error of a partition; `more` follows the reason, and `remedy` those for all reads."""
    hint = (
        f"{missing.reason}{more}: put the log back, or also read the directory to which it was "
        f"moved{remedy}"
    )
    directory = os.path.dirname(missing.checkpoint)
    return UnknownTopicOrPartitionError(*missing.topic_partition, directory, hint)


def report_missing(
    missing: Sequence[MissingPartition], option: str, *, fail_on_data_loss: bool
) -> None:
    """Refuse a read of topics that lack partitions, or log what it leaves out.

    `option`: how the caller asks for the other partitions, such as ``failOnDataLoss=false``; empty
    if it cannot.
    """
    if not missing:
        return
    first, more = missing[0], len(missing) - 1
    if fail_on_data_loss:
        also = f" (and {more} more partitions)" if more else ""
        raise gone(first, also, f"; {option} reads the other partitions" if option else "")
    for each in missing[:MOST_NAMED]:
        logger.warning(
            "%s is left out, because of %s: %s", each.topic_partition, option, each.reason
        )
    if more >= MOST_NAMED:
        logger.warning("%d more partitions are left out", len(missing) - MOST_NAMED)


def partitions_of(
    directory: "LogDirectory",
    topics: Collection[str],
    partitions: Collection[int] = (),
    missing: Collection[MissingPartition] = (),
) -> list[TopicPartition]:
    """The chosen topic-partitions, sorted; brokers' own topics, too.

    A topic may have only partitions that `missing_of` has found, if the caller reports them.
    Raises `UnknownTopicOrPartitionError` if one of `topics` does not exist, or has none of
    `partitions`; `LogDirectoryError` if no topic has one of `partitions`.
    """
    known = directory.topics(internal=True)
    lost = {each.topic_partition.topic for each in missing}
    for topic in topics:
        is_there = topic in known and (not partitions or {*partitions} & {*known[topic]})
        if not is_there and topic not in lost:
            directory.log(topic, min(partitions, default=-1))
    chosen = [
        found
        for found in directory.topic_partitions()
        if (not topics or found.topic in topics)
        and (not partitions or found.partition in partitions)
    ]
    if partitions and not chosen and not missing:
        numbers = ", ".join(map(str, sorted(partitions)))
        reason = f"no topic has a partition {numbers} here: give other numbers, or none for all"
        raise LogDirectoryError(", ".join(map(plain_path, directory.paths)), reason)
    return chosen


def missing_of(
    directory: "LogDirectory", topics: Collection[str], partitions: Collection[int] = ()
) -> list[MissingPartition]:
    """The chosen topic-partitions whose directories are gone, sorted."""
    return [
        each
        for each in directory.missing_partitions(topics or None)
        if not partitions or each.topic_partition.partition in partitions
    ]


def only_in_a_tier(
    directory: "LogDirectory", chosen: Iterable[TopicPartition]
) -> dict[TopicPartition, OffsetRange]:
    """Offsets of logs that are in remote storage and not on these disks."""
    # A broker writes an entry below the first local offset only for a log with remote segments.
    # Nothing is found in a directory that was opened with its tier.
    found: dict[TopicPartition, OffsetRange] = {}
    known: dict[str, Mapping[TopicPartition, int]] = {}
    for each in () if is_tiered(directory.paths[0]) else chosen:
        try:
            log = directory.log(*each)
            first = log.log_start_offset
        except (SegmentLogError, OSError):  # a read of the log reports that
            continue
        parent = os.path.dirname(log.path)
        if parent not in known:
            known[parent] = read_offsets(parent, LOG_START_CHECKPOINT)
        # While the commit of a deletion is unfinished, the checkpoint has the start before it.
        start = max(known[parent].get(each, first), log.log_start_checkpoint)
        if start < first:
            found[each] = OffsetRange(start, first)
    return found


def news(where: str, found: Mapping[TopicPartition, str], told: Told) -> list[TopicPartition]:
    """The partitions of which something is not read, and of which this was not told before."""
    new = [
        each
        for each, text in found.items()
        if text and (told is None or told.get((where, each)) != text)
    ]
    if told is not None:
        told.update({(where, each): text for each, text in found.items()})
    return new
