"""What a read leaves out, and how it says so: missing partitions, later offsets.

Records of a diskless topic (``diskless.enable``; KIP-1150, Inkless) are in no log directory.
Brokers put its records into an object store, and the coordinator of the batches knows them.  A
partition that was switched has its earlier records in files, up to an offset (the seal) in a
tagged field of its record in the metadata.
"""

import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from segmentlog.errors import LogDirectoryError, SegmentLogError, UnknownTopicOrPartitionError
from segmentlog.format.messages.reader import UNKNOWN_TAGS
from segmentlog.model import IsolationLevel, OnCorruptBatch, ReadUpTo, TopicPartition
from segmentlog.reads.cluster_image import RECORDS, fold
from segmentlog.reads.metadata_log import metadata_path, read_metadata
from segmentlog.store.readable import is_url, list_names, open_file, status_of
from segmentlog.store.remote.requests import side_by_side

if TYPE_CHECKING:
    from segmentlog.reads.log_directory import LogDirectory

_SETTING = "diskless.enable"
_SEAL_TAG, _SEAL_BYTES = 100, 8

#: One of these is in the bytes of any metadata with a diskless topic: they are not compressed.
_TRACES = (_SETTING.encode(), bytes([_SEAL_TAG, _SEAL_BYTES, 0, 0]))
_WINDOW_BYTES = 1 << 20

#: A running broker writes metadata all the time; a topic becomes diskless once.
_KEPT_SECONDS = 60.0


def diskless_partitions(directories: Iterable[str]) -> Mapping[TopicPartition, int | None]:
    """The seal of each diskless partition, by the metadata in log directories."""
    # None is that of a partition that was diskless from the beginning, or is not switched yet.
    found: dict[TopicPartition, int | None] = {}
    for each in directories:
        path = None if is_url(each) else metadata_path(each)
        if path is None:
            continue
        try:
            found |= _in(path, int(time.monotonic() / _KEPT_SECONDS), _state(path))
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


def _state(path: str) -> tuple[str, ...]:
    """Names of the files of a metadata log; within a minute, only a new one is looked at."""
    ends = (".log", ".checkpoint")
    return tuple(sorted(each for each in list_names(path) if each.endswith(ends)))


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


logger = logging.getLogger(__name__)

MOST_NAMED = 5  #: partitions or paths that a message names before it says "and … more"

#: What is not read of partitions; empty where all is.
_Found: TypeAlias = dict[TopicPartition, str]
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
    for each in _news("elsewhere", found, told):
        logger.warning("%s: %s; they are not read", directory.log(*each).path, found[each])


def find_ends(
    directory: "LogDirectory",
    topic_partitions: Sequence[TopicPartition],
    read_up_to: ReadUpTo,
    isolation_level: IsolationLevel,
    on_corrupt_batch: OnCorruptBatch,
    *,
    told: Told,
    fail_on_data_loss: bool,
) -> dict[TopicPartition, int]:
    """`LogDirectory.end_offsets`: the ends of logs, and warnings about what lies beyond them."""
    if any(map(is_url, directory.paths)):
        side_by_side(lambda each: directory.log(*each).log_end_offset, topic_partitions)
    ends: dict[TopicPartition, int] = {}
    beyond: _Found = {}
    undecided: _Found = {}
    lost: _Found = {}
    between: _Found = {}
    short: _Found = {}
    for topic_partition in topic_partitions:
        log = directory.log(*topic_partition)
        end = log.end_offset(read_up_to, fail_on_data_loss=fail_on_data_loss, warns=False)
        short[topic_partition] = log.short_of_high_watermark(read_up_to)
        gone = None if fail_on_data_loss else log.lost_offsets
        if gone and read_up_to != ReadUpTo.LOG_END:
            lost[topic_partition] = f"[{gone.start_offset}, {gone.end_offset})"
        if not is_url(log.path):
            found = [log.lost_start, *log.lost_segments]
            gaps = [f"[{each.start_offset}, {each.end_offset})" for each in found if each]
            between[topic_partition] = ", ".join(gaps)
        if end < log.log_end_offset and told is None:
            beyond[topic_partition] = f"{log.log_end_offset - end} from {end}"
        ends[topic_partition] = end
        if isolation_level == IsolationLevel.READ_COMMITTED:
            ends[topic_partition] = stable = log.last_stable_offset(
                read_up_to, on_corrupt_batch, fail_on_data_loss=fail_on_data_loss
            )
            if stable < end and _stays(told, topic_partition, stable):
                held = f"{end - stable} " if told is None else ""
                undecided[topic_partition] = f"{held}from {stable}"

    def warn(where: str, offsets: _Found, remedy: str) -> None:
        """Say once which offsets of which partitions are not read."""
        if found := [f"{each}: {offsets[each]}" for each in _news(where, offsets, told)]:
            more = len(found) - MOST_NAMED
            logger.warning(
                "%s: offsets %s are not read (%s%s)%s",
                ", ".join(directory.paths),
                where,
                ", ".join(found[:MOST_NAMED]),
                f", and {more} more partitions" if more > 0 else "",
                remedy,
            )

    warn("beyond the high watermark", beyond, "; readUpTo=logEnd reads them")
    warn("whose segments are gone", lost, "; data loss does not fail this read")
    warn(
        "between two segments, or before the first,",
        between,
        ": segments are gone whose indexes are there; put them back",
    )
    warn("after the first open transaction", undecided, ": it was neither committed nor aborted")
    for each in _news("short", short, told):
        logger.warning("%s: %s", directory.log(*each).path, short[each])
    return ends


def _news(where: str, found: _Found, told: Told) -> list[TopicPartition]:
    """The partitions of which something is not read, and of which this was not told before."""
    news = [
        each
        for each, text in found.items()
        if text and (told is None or told.get((where, each)) != text)
    ]
    if told is not None:
        told.update({(where, each): text for each, text in found.items()})
    return news


def _stays(told: Told, topic_partition: TopicPartition, stable: int) -> bool:
    """Whether a transaction is open that was open at the last call; always without one."""
    if told is None:
        return True
    key = "last stable offset", topic_partition
    was, told[key] = told.get(key), str(stable)
    return was == str(stable)
