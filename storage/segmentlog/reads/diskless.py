"""Diskless topics: their later records are in no log directory.

Brokers put the records of a diskless topic (``diskless.enable``; KIP-1150, Inkless) into an object
store, and the coordinator of the batches knows them.  A partition that was switched has its
earlier records in files, up to an offset (the seal) in a tagged field of its record in the
metadata.
"""

import logging
import os
import time
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from segmentlog.errors import LogDirectoryError, SegmentLogError
from segmentlog.format.messages.reader import UNKNOWN_TAGS
from segmentlog.model import TopicPartition
from segmentlog.reads.choose import Told, news
from segmentlog.reads.cluster_image import ClusterMetadata
from segmentlog.reads.metadata_log import metadata_path
from segmentlog.store.readable import is_url, list_names, open_file, status_of

if TYPE_CHECKING:
    from segmentlog.reads.log_directory import LogDirectory

logger = logging.getLogger(__name__)

_SETTING = "diskless.enable"
_SEAL_TAG, _SEAL_BYTES = 100, 8

#: One of these is in the bytes of any metadata with a diskless topic: they are not compressed.
_TRACES = (_SETTING.encode(), bytes([_SEAL_TAG, _SEAL_BYTES, 0, 0]))
_WINDOW_BYTES = 1 << 20

_OF_METADATA = (".log", ".checkpoint")

#: A running broker writes metadata all the time; a topic becomes diskless once.  Within a minute,
#: only new files are looked at.
_KEPT_SECONDS = 60.0


def report_diskless(
    directory: "LogDirectory",
    topic_partitions: Iterable[TopicPartition],
    option: str,
    *,
    fail_on_data_loss: bool,
    told: Told = None,
) -> None:
    """Refuse a read to the latest records of partitions that have these elsewhere, or warn.

    `option`: as of `segmentlog.reads.choose.report_missing`.
    """
    diskless = diskless_partitions(directory._snapshots)
    found = {}
    for each in topic_partitions if diskless else ():
        if each in diskless:
            log = directory.log(*each)
            found[each] = elsewhere(diskless[each], log.log_end_offset)
            if fail_on_data_loss:
                remedy = f"; {option} reads those that are here" if option else ""
                raise LogDirectoryError(log.path, f"{found[each]}{remedy}")
    for each in news("elsewhere", found, told):
        logger.warning("%s: %s; they are not read", directory.log(*each).path, found[each])


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
    tables = ClusterMetadata([os.path.dirname(path)]).tables("partitions", "configs")
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
