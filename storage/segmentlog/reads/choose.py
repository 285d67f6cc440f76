"""What a read takes of a directory, and what it leaves out: missing partitions, records elsewhere.

Records of a diskless topic (``diskless.enable``; KIP-1150, Inkless) are in no log directory.
Brokers put its records into an object store, and the coordinator of the batches knows them.  A
partition that was switched has its earlier records in files, up to an offset (the seal) in a
tagged field of its record in the metadata.
"""

import logging
import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from segmentlog.errors import LogDirectoryError, SegmentLogError, UnknownTopicOrPartitionError
from segmentlog.format.messages.reader import UNKNOWN_TAGS
from segmentlog.format.names import LOG_START_CHECKPOINT
from segmentlog.log.checkpoint import read_offsets
from segmentlog.model import OffsetRange, TopicPartition
from segmentlog.reads.cluster_image import RECORDS, fold
from segmentlog.reads.metadata_log import metadata_path, read_metadata
from segmentlog.store.paths import is_tiered, plain_path
from segmentlog.store.readable import is_url, list_names, open_file, status_of

if TYPE_CHECKING:
    from segmentlog.reads.log_directory import LogDirectory

logger = logging.getLogger(__name__)

MOST_NAMED = 5  #: partitions or paths that a message names before it says "and … more"

_SETTING = "diskless.enable"
_SEAL_TAG, _SEAL_BYTES = 100, 8

#: One of these is in the bytes of any metadata with a diskless topic: they are not compressed.
_TRACES = (_SETTING.encode(), bytes([_SEAL_TAG, _SEAL_BYTES, 0, 0]))
_WINDOW_BYTES = 1 << 20

_OF_METADATA = (".log", ".checkpoint")

#: A running broker writes metadata all the time; a topic becomes diskless once.  Within a minute,
#: only new files are looked at.
_KEPT_SECONDS = 60.0

#: What a reader that follows logs was told before, by its subject; None for a single read.
Told: TypeAlias = dict[tuple[str, TopicPartition], str] | None


class MissingPartition(NamedTuple):
    """A partition that had records according to a checkpoint, and whose directory is gone.

    Attributes
    ----------
    topic_partition : its topic and number.
    high_watermark : its entry in the checkpoint; above 0.
    checkpoint : path of the ``replication-offset-checkpoint`` that names it.
    """

    topic_partition: TopicPartition
    high_watermark: int
    checkpoint: str

    @property
    def reason(self) -> str:
        """The promise that is broken, as messages word it."""
        promised = f"its high watermark is {self.high_watermark} in {self.checkpoint}"
        return f"{promised}, but its log is gone"


def report_missing(
    missing: Sequence[MissingPartition], option: str, *, fail_on_data_loss: bool
) -> None:
    """Refuse a read of topics that lack partitions, or log what it leaves out.

    `option`: how the caller asks for the other partitions, such as ``failOnDataLoss=false``.
    """
    if not missing:
        return
    first, more = missing[0], len(missing) - 1
    if fail_on_data_loss:
        also = f" (and {more} more partitions)" if more else ""
        hint = (
            f"{first.reason}{also}: put the log back, or also read the directory to which it was "
            f"moved; {option} reads the other partitions"
        )
        directory = os.path.dirname(first.checkpoint)
        raise UnknownTopicOrPartitionError(*first.topic_partition, directory, hint)
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
        log = directory.log(*each)
        parent = os.path.dirname(log.path)
        if parent not in known:
            known[parent] = read_offsets(parent, LOG_START_CHECKPOINT)
        # While the commit of a deletion is unfinished, the checkpoint has the start before it.
        start = max(known[parent].get(each, log.log_start_offset), log.log_start_checkpoint)
        if start < log.log_start_offset:
            found[each] = OffsetRange(start, log.log_start_offset)
    return found


def report_diskless(
    directory: "LogDirectory",
    topic_partitions: Iterable[TopicPartition],
    option: str,
    *,
    fail_on_data_loss: bool,
    told: Told = None,
) -> None:
    """Refuse a read to the latest records of partitions that have these elsewhere, or warn."""
    diskless = diskless_partitions(directory._snapshots)
    found = {}
    for each in topic_partitions if diskless else ():
        if each in diskless:
            log = directory.log(*each)
            found[each] = elsewhere(diskless[each], log.log_end_offset)
            if fail_on_data_loss:
                reason = f"{found[each]}; {option} reads those that are here"
                raise LogDirectoryError(log.path, reason)
    for each in news("elsewhere", found, told):
        logger.warning("%s: %s; they are not read", directory.log(*each).path, found[each])


def news(where: str, found: Mapping[TopicPartition, str], told: Told) -> list[TopicPartition]:
    """The partitions of which something is not read, and of which this was not told before."""
    news = [
        each
        for each, text in found.items()
        if text and (told is None or told.get((where, each)) != text)
    ]
    if told is not None:
        told.update({(where, each): text for each, text in found.items()})
    return news


def diskless_partitions(directories: Iterable[str]) -> Mapping[TopicPartition, int | None]:
    """The seal of each diskless partition, by the metadata in log directories."""
    # None is that of a partition that was diskless from the beginning, or is not switched yet.
    found: dict[TopicPartition, int | None] = {}
    for each in directories:
        path = None if is_url(each) else metadata_path(each)
        if path is None:
            continue
        try:
            names = sorted(each for each in list_names(path) if each.endswith(_OF_METADATA))
            found |= _in(path, int(time.monotonic() / _KEPT_SECONDS), tuple(names))
        except (SegmentLogError, OSError) as error:  # others report it; records need no metadata
            logger.info("whether topics are diskless is not known: %s", error)
    return found


def elsewhere(seal: int | None, log_end_offset: int) -> str:
    """That later records are elsewhere, in words."""
    begin = log_end_offset if seal is None else seal
    return (
        f"the topic is diskless: records from offset {begin} on are in its object store, and in "
        "no log directory"
    )


@lru_cache(maxsize=16)
def _in(path: str, _minute: int, names: tuple[str, ...]) -> Mapping[TopicPartition, int | None]:
    if not any(_has_trace(f"{path}/{name}") for name in names):
        return {}
    wanted = {*RECORDS["partitions"], *RECORDS["configs"]}
    tables = fold(read_metadata(path, wanted)).tables
    diskless = {
        row["resource_name"]
        for row in tables["configs"].values()
        if row["resource_type"] == "topic"
        and row["name"] == _SETTING
        and row["value"].lower() == "true"
    }
    found: dict[TopicPartition, int | None] = {}
    for row in tables["partitions"].values():
        tag = row.get(UNKNOWN_TAGS, {}).get(_SEAL_TAG, b"")
        seal = int.from_bytes(tag, "big", signed=True) if len(tag) == _SEAL_BYTES else -1
        if seal >= 0 or row["topic"] in diskless:
            found[TopicPartition(row["topic"], row["partition"])] = seal if seal >= 0 else None
    return found


def _has_trace(path: str) -> bool:
    """Whether the bytes of a file have what every diskless topic leaves."""
    size, at = status_of(path).size, 0
    with open_file(path) as file:
        while at < size:
            data = file.read(at, min(_WINDOW_BYTES, size - at))
            if any(each in data for each in _TRACES):
                return True
            if len(data) < _WINDOW_BYTES:
                return False
            at += len(data) - len(_TRACES[0])
    return False
