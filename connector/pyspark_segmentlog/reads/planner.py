"""Turn options into slices of partitions, offsets and bytes, on the driver.

A read is a snapshot: the ends are looked up here, once for the whole directory, and a task reads
exactly its slice.  With ``lateBinding`` the cuts are made in the same way, and the outer edges of
a partition are left to its first and its last task, as Spark's ``KafkaOffsetReader`` does.
"""

import logging
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pyspark_segmentlog.options.bounds import LastDuration, LastRecords, check_start
from pyspark_segmentlog.options.offsets import EARLIEST, LATEST, OffsetBound
from pyspark_segmentlog.options.read_options import ReadOptions
from pyspark_segmentlog.options.timestamps import TimestampBound
from pyspark_segmentlog.options.topic_pattern import compile_topic_pattern
from pyspark_segmentlog.reads.available import available
from pyspark_segmentlog.reads.offset_ranges import PartitionRange, split_ranges
from pyspark_segmentlog.reads.task_groups import group_slices
from segmentlog.errors import LogChangedError, OptionError, UnknownTopicOrPartitionError
from segmentlog.logs import (
    LogDirectory,
    exists,
    is_url,
    open_log_dir,
    readable_path,
    report_missing,
)
from segmentlog.model import INTERNAL_TOPICS, LogSlice, OffsetRange, TopicPartition
from segmentlog.reads import without_collector

__all__ = ["LateRange", "plan_late_ranges", "plan_slices", "plan_tasks"]

logger = logging.getLogger(__name__)

_ATTEMPTS = 5
_OF_SEVERAL = set("*?[{,")


class LateRange(NamedTuple):
    """Offsets of a partition for a task that looks earliest and latest up itself.

    `start_offset` may be `EARLIEST`, and `end_offset` `LATEST`.  `n_bytes` is the size of what the
    range held when it was planned.
    """

    topic_partition: TopicPartition
    start_offset: int
    end_offset: int
    n_bytes: int = 0


class _Planned(NamedTuple):
    """A partition's part of a read: the range as it was asked for, and its slices."""

    topic_partition: TopicPartition
    asked: OffsetRange
    slices: list[LogSlice]


@without_collector()
def plan_tasks(options: ReadOptions) -> list[tuple[LogSlice | LateRange, ...]]:
    """The part that each task reads: a slice or a range, and several only with ``maxPartitions``.

    Raises the errors of `plan_slices`.
    """
    parts: list[LogSlice | LateRange] = []
    parts += plan_late_ranges(options) if options.late_binding else plan_slices(options)
    if options.max_partitions is None:
        return [(part,) for part in parts]
    return group_slices(parts, options.max_partitions, options.partition_assignor)


def plan_slices(options: ReadOptions) -> list[LogSlice]:
    """Slices of all records that `options` select, sorted by topic, partition and offset.

    Raises
    ------
    OptionError
        If offsets are given for partitions that are not read, a start lies after its end, or
        no record is as new as a starting timestamp.
    UnknownTopicOrPartitionError
        If a subscribed or assigned topic does not exist.
    OffsetOutOfRangeError
        If requested offsets are gone or do not exist yet, unless ``failOnDataLoss=false``.
    LogDirectoryError, CorruptCheckpointError, CorruptLogError
        If the directory cannot be read.
    LogChangedError
        If records were removed during each attempt to plan.
    """
    return [log_slice for planned in _plan(options) for log_slice in planned.slices]


def plan_late_ranges(options: ReadOptions) -> list[LateRange]:
    """The same range in the same pieces, with earliest and latest left to the tasks.

    Raises the errors of `plan_slices`.
    """
    return [late for planned in _plan(options) for late in _late(planned)]


def _late(planned: _Planned) -> list[LateRange]:
    topic_partition, (start, end), slices = planned
    cuts = [each.start_offset for each in slices[1:]]
    sizes = [each.n_bytes for each in slices] or [0]
    return [
        LateRange(topic_partition, first, behind, n_bytes)
        for first, behind, n_bytes in zip([start, *cuts], [*cuts, end], sizes, strict=True)
        if first < 0 or behind < 0 or first < behind
    ]


def _plan(options: ReadOptions) -> list[_Planned]:
    for _ in range(_ATTEMPTS - 1):
        try:
            return _plan_once(options)
        except LogChangedError as change:  # retention, or a first writer, has changed the log
            logger.info("planning again: %s", change)
    return _plan_once(options)


def _plan_once(options: ReadOptions) -> list[_Planned]:
    """The parts of a read, from one moment of the whole directory."""
    _check_single(options.paths)
    directory = open_log_dir(*options.paths)
    assigned = _assigned(options, directory)
    for bound in (options.start, options.end):
        if isinstance(bound, OffsetBound | TimestampBound):
            bound.resolve(assigned)  # a map of other partitions is refused before a log is opened
    policy = options.policy
    latest = directory.end_offsets(
        assigned, options.read_up_to, policy.isolation_level, policy.on_corrupt_batch
    )
    asked = _asked(options, directory, assigned, latest)
    ranges = []
    for each in assigned:
        log = directory.log(*each)
        there = OffsetRange(log.log_start_offset, latest[each])
        left = available(each, asked[each], there, fail_on_data_loss=options.fail_on_data_loss)
        ranges.append(PartitionRange(each, *left))
    planned = {each: _Planned(each, asked[each], []) for each in assigned}
    pieces = split_ranges(ranges, options.min_partitions, options.max_records_per_partition)
    for topic_partition, start, end in pieces:
        log, max_bytes = directory.log(*topic_partition), options.max_bytes_per_partition
        planned[topic_partition].slices.extend(log.slices(start, end, max_bytes))
    return list(planned.values())


def _asked(
    options: ReadOptions,
    directory: LogDirectory,
    assigned: Iterable[TopicPartition],
    latest: Mapping[TopicPartition, int],
) -> dict[TopicPartition, OffsetRange]:
    """The range of each partition, with `EARLIEST` and `LATEST` where they were asked for.

    Raises
    ------
    OptionError
        If a start lies after its end.
    """

    def by_time(
        bound: TimestampBound, *, is_start: bool, one_segment: bool = True
    ) -> dict[TopicPartition, int]:
        """A partition without such a record is bound at its latest offset, as by ``kafka``.

        A torn tail may hold the record to start at: a read of the tail reports that.  The options
        of ``kafka`` get a broker's answer, from one segment.
        """
        level, on_corrupt = options.policy.isolation_level, options.policy.on_corrupt_batch
        times = bound.resolve(assigned)
        found = {
            each: directory.log(*each).offset_for_timestamp(
                times[each], options.read_up_to, level, on_corrupt, one_segment=one_segment
            )
            for each in times
        }
        bound.check_found(times, {each for each in found if found[each] is None})
        missing = {
            each: min(latest[each], directory.log(*each).tail.offset) if is_start else latest[each]
            for each, at in found.items()
            if at is None
        }
        return missing | {each: at.offset for each, at in found.items() if at is not None}

    start, end = options.start, options.end
    ends = end.resolve(assigned) if isinstance(end, OffsetBound) else by_time(end, is_start=False)
    known = {each: latest[each] if at == LATEST else at for each, at in ends.items()}
    earliest = {each: directory.log(*each).log_start_offset for each in assigned}
    if isinstance(start, LastRecords):
        starts = {each: max(known[each] - start.n_offsets, earliest[each]) for each in known}
    elif isinstance(start, LastDuration):
        starts = by_time(
            start.before(time.time_ns() // 1_000_000), is_start=True, one_segment=False
        )
    else:
        starts = (
            start.resolve(assigned)
            if isinstance(start, OffsetBound)
            else by_time(start, is_start=True)
        )
        for each, at in starts.items():
            first = earliest[each] if at == EARLIEST else at
            check_start(start, each, first, known[each], end.option)
    return {each: OffsetRange(starts[each], ends[each]) for each in starts}


def _check_single(paths: Iterable[str]) -> None:
    """Refuse a path that means several paths: only Spark's file sources expand it."""
    for path in paths:
        found = readable_path(path)  # options follow a URL
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
    _check_missing(options, directory)
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
    pattern = compile_topic_pattern(options.subscribe_pattern or "")
    return [
        each for each in known if each.topic not in INTERNAL_TOPICS and pattern.search(each.topic)
    ]


def _check_missing(options: ReadOptions, directory: LogDirectory) -> None:
    """Refuse or log partitions of the read whose directories are gone, as ``failOnDataLoss`` says.

    ``kafka`` asks brokers, which know the partitions of a topic.  Here the checkpoints of the
    directory name them.
    """
    if options.assign or options.subscribe:
        topics = {*options.subscribe, *(each.topic for each in options.assign)}
        missing = directory.missing_partitions(topics)
        if options.assign:
            missing = [each for each in missing if each.topic_partition in options.assign]
    else:
        pattern = compile_topic_pattern(options.subscribe_pattern or "")
        missing = [
            each
            for each in directory.missing_partitions()
            if pattern.search(each.topic_partition.topic)
        ]
    report_missing(missing, "failOnDataLoss=false", fail_on_data_loss=options.fail_on_data_loss)


def _unknown(directory: LogDirectory, topic: str) -> UnknownTopicOrPartitionError:
    try:
        directory.log(topic, 0)
    except UnknownTopicOrPartitionError as error:
        return error
    return UnknownTopicOrPartitionError(topic, -1, ", ".join(directory.paths))
