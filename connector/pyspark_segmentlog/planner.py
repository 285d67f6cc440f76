"""From options to slices of partitions, offsets and bytes; on the driver.

A read is a snapshot: the ends are looked up here, once for the whole directory, and a task reads
exactly its slice.
"""

import logging
import re
from collections.abc import Iterable

from pyspark_segmentlog.offsets import EARLIEST, LATEST
from pyspark_segmentlog.options import ReadOptions
from segmentlog import LogDirectory, open_log_dir
from segmentlog.errors import (
    LogChangedError,
    OffsetOutOfRangeError,
    OptionError,
    UnknownTopicOrPartitionError,
)
from segmentlog.files.location import is_url
from segmentlog.files.paths import readable_path
from segmentlog.files.readable import exists
from segmentlog.log import Log
from segmentlog.model import INTERNAL_TOPICS, LogSlice, TopicPartition

__all__ = ["plan_slices"]

logger = logging.getLogger(__name__)

_ATTEMPTS = 5
_OF_SEVERAL = set("*?[{,")


def plan_slices(options: ReadOptions) -> list[LogSlice]:
    """Slices of all records that `options` select, sorted by topic, partition and offset.

    Raises
    ------
    OptionError
        If offsets are given for partitions that are not read, or a start lies behind its end.
    UnknownTopicOrPartitionError
        If a subscribed or assigned topic does not exist.
    OffsetOutOfRangeError
        If requested offsets are gone or do not exist yet, unless ``failOnDataLoss=false``.
    LogDirectoryError, CorruptCheckpointError, CorruptLogError
        If the directory cannot be read.
    LogChangedError
        If records were removed during each attempt to plan.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return _plan(options)
        except LogChangedError as change:  # retention, or a first writer, has changed the log
            logger.info("planning again: %s", change)
    return _plan(options)


def _plan(options: ReadOptions) -> list[LogSlice]:
    """The slices, from one moment of the whole directory."""
    _check_single(options.paths)
    directory = open_log_dir(*options.paths)
    assigned = _assigned(options, directory)
    starts = options.starting_offsets.resolve(assigned)
    ends = options.ending_offsets.resolve(assigned)
    latest = directory.end_offsets(assigned, options.read_up_to, options.policy.isolation_level)
    slices: list[LogSlice] = []
    for topic_partition in assigned:
        log = directory.log(*topic_partition)
        asked = starts[topic_partition], ends[topic_partition]
        start, end = _resolve(options, log, asked, latest[topic_partition])
        slices += log.slices(start, end, options.max_bytes_per_partition)
    return slices


def _check_single(paths: Iterable[str]) -> None:
    """Refuse a path that means several paths: only Spark's file sources expand it."""
    for path in paths:
        found = readable_path(path)  # behind a URL stand options
        if _OF_SEVERAL & set(found) and not exists(found):
            accepted = (
                "nothing has that name, and a path is neither expanded nor split: give one log "
                'directory, or a list of one broker\'s, load(["/d1", "/d2"]); its topics are '
                "chosen with subscribe or subscribePattern"
            )
            raise OptionError("path", found if is_url(found) else path, accepted)


def _assigned(options: ReadOptions, directory: LogDirectory) -> list[TopicPartition]:
    """Partitions to read, sorted; brokers' internal topics are read only if they are named."""
    known = directory.topic_partitions()
    topics = {each.topic for each in known}
    for topic in {*options.subscribe, *(each.topic for each in options.assign)} - topics:
        raise _unknown(directory, topic)
    if options.assign:
        missing = sorted(set(options.assign) - set(known))
        if missing:
            logger.warning(
                "option 'assign' names partitions that are not there, and that are left out: %s; "
                "a broker's log directory holds only its own replicas",
                ", ".join(map(str, missing)),
            )
        return sorted(set(options.assign) - set(missing))
    if options.subscribe:
        return [each for each in known if each.topic in options.subscribe]
    pattern = re.compile(options.subscribe_pattern or "")
    return [
        each for each in known if each.topic not in INTERNAL_TOPICS and pattern.search(each.topic)
    ]


def _unknown(directory: LogDirectory, topic: str) -> UnknownTopicOrPartitionError:
    try:
        directory.log(topic, 0)
    except UnknownTopicOrPartitionError as error:
        return error
    return UnknownTopicOrPartitionError(topic, -1, ", ".join(directory.paths))


def _resolve(
    options: ReadOptions, log: Log, asked: tuple[int, int], latest: int
) -> tuple[int, int]:
    """The range of one partition in numbers, checked against the existing offsets."""
    earliest = log.log_start_offset
    start = earliest if asked[0] == EARLIEST else asked[0]
    end = latest if asked[1] == LATEST else asked[1]
    if asked[0] >= 0 and asked[1] >= 0 and start > end:
        accepted = (
            f"{log.topic_partition} would start at {start} and end at {end}: give a start that is "
            "not behind the one of endingOffsets"
        )
        raise OptionError(options.starting_offsets.option, options.starting_offsets.text, accepted)
    if earliest <= start and max(start, end) <= latest:
        return start, end
    missing = start if not earliest <= start <= latest else end
    if options.fail_on_data_loss:
        raise OffsetOutOfRangeError(str(log.topic_partition), missing, earliest, latest)
    logger.warning(
        "%s: offsets [%d, %d) are asked for, [%d, %d) are there; reading those, because "
        "failOnDataLoss is false",
        log.topic_partition, start, end, earliest, latest,
    )  # fmt: skip
    return max(start, earliest), min(end, latest)
