"""Turn options into slices of partitions, offsets and bytes, on the driver.

A read is a snapshot: the ends are looked up here, once for the whole directory, and a task reads
exactly its slice.  With ``lateBinding`` the cuts are made in the same way, and the outer edges of
a partition are left to its first and its last task, as Spark's ``KafkaOffsetReader`` does.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, TypeAlias, TypeVar

from pyspark_segmentlog.options.bounds import LastDuration, LastRecords, check_start
from pyspark_segmentlog.options.offsets import EARLIEST, LATEST, OffsetBound
from pyspark_segmentlog.options.read_options import ReadOptions
from pyspark_segmentlog.options.timestamps import TimestampBound
from pyspark_segmentlog.options.topic_pattern import compile_topic_pattern
from pyspark_segmentlog.reads.offset_ranges import PartitionRange, available, split_ranges
from pyspark_segmentlog.reads.pushed import PushedBounds
from pyspark_segmentlog.reads.task_groups import group_slices
from segmentlog.errors import (
    LogChangedError,
    OptionError,
    StreamOffsetError,
    UnknownTopicOrPartitionError,
)
from segmentlog.model import INTERNAL_TOPICS, LogSlice, OffsetRange, TopicPartition
from segmentlog.native import check_compiled
from segmentlog.reads import (
    LogDirectory,
    exists,
    find_offset,
    is_url,
    made_again,
    readable_path,
    report_diskless,
    report_missing,
    without_collector,
)

logger = logging.getLogger(__name__)

Ranges: TypeAlias = Mapping[TopicPartition, OffsetRange]
Cuts: TypeAlias = dict[TopicPartition, list[LogSlice]]

_ATTEMPTS = 5
_Found = TypeVar("_Found")
_OF_SEVERAL = set("*?[{,")


class LateRange(NamedTuple):
    """Offsets of a partition for a task that looks earliest and latest up itself.

    `start_offset` may be `EARLIEST`, and `end_offset` `LATEST`.  `n_bytes` is the size of what the
    range held when it was planned, and `topic_id` the id of its topic, if that was known.
    """

    topic_partition: TopicPartition
    start_offset: int
    end_offset: int
    n_bytes: int = 0
    topic_id: str = ""

    def ranges(self, options: ReadOptions) -> "list[LateRange]":
        """The range alone; see `LatePartitions`."""
        return [self]


class LatePartitions(NamedTuple):
    """The partitions that a task finds, and that were not there when the read was planned."""

    planned: frozenset[TopicPartition]
    topic_ids: Mapping[str, str]  # of their topics, where they are known

    def ranges(self, options: ReadOptions) -> list[LateRange]:
        """The whole of each partition that the options select, and that was not planned."""
        there = selected(options, options.open_directory())
        return [
            LateRange(each, EARLIEST, LATEST, 0, self.topic_ids.get(each.topic, ""))
            for each in there
            if each not in self.planned
        ]


Part: TypeAlias = LogSlice | LateRange | LatePartitions


@without_collector()
def plan_tasks(options: ReadOptions, bounds: PushedBounds | None = None) -> list[tuple[Part, ...]]:
    """The part that each task reads: a slice or a range, and several only with ``maxPartitions``.

    With `bounds`, parts are left out that hold none of the rows within them.  The last task of a
    read that ends at the latest offsets, with ``lateBinding``, also reads the partitions that have
    come since.
    """
    check_compiled()
    if not options.late_binding:
        return _grouped(options, plan_slices(options, bounds))
    ids, asked, cuts = _plan(options, bounds)
    tasks = _grouped(options, _late_ranges(ids, asked, cuts))
    ends = [
        each.everywhere if isinstance(each, OffsetBound) else None
        for each in (options.start, options.end)
    ]
    if bounds is not None or options.assign or ends != [EARLIEST, LATEST]:
        return tasks
    *others, last = tasks or [()]
    of_topics = {each.topic: topic_id for each, topic_id in ids.items()}
    return [*others, (*last, LatePartitions(frozenset(asked), of_topics))]


def _grouped(
    options: ReadOptions, planned: Sequence[LogSlice] | Sequence[LateRange]
) -> list[tuple[Part, ...]]:
    parts: list[LogSlice | LateRange] = [*planned]
    if options.max_partitions is None:
        return [(part,) for part in parts]
    return [*group_slices(parts, options.max_partitions, options.partition_assignor)]


def plan_slices(options: ReadOptions, bounds: PushedBounds | None = None) -> list[LogSlice]:
    """Slices of all records that `options` select, sorted by topic, partition and offset."""
    *_, cuts = _plan(options, bounds)
    return [log_slice for slices in cuts.values() for log_slice in slices]


def plan_late_ranges(options: ReadOptions, bounds: PushedBounds | None = None) -> list[LateRange]:
    """The ranges of `plan_slices`, with earliest and latest left to the tasks."""
    return _late_ranges(*_plan(options, bounds))


def _late_ranges(ids: Mapping[TopicPartition, str], asked: Ranges, cuts: Cuts) -> list[LateRange]:
    found = []
    for each, (start, end) in asked.items():
        between = [part.start_offset for part in cuts[each][1:]]
        sizes = [part.n_bytes for part in cuts[each]] or [0]
        found += [
            LateRange(each, first, last, n_bytes, ids.get(each, ""))
            for first, last, n_bytes in zip([start, *between], [*between, end], sizes, strict=True)
            if first < 0 or last < 0 or first < last
        ]
    return found


def _plan(
    options: ReadOptions, bounds: PushedBounds | None
) -> tuple[Mapping[TopicPartition, str], Ranges, Cuts]:
    """Topic ids, the ranges as they were asked for, and their slices, from one moment."""

    def once() -> tuple[Mapping[TopicPartition, str], Ranges, Cuts]:
        moment = PlannedMoment(options)
        asked = moment.asked()
        if bounds is not None:
            asked = moment.within(bounds, asked)
        return moment.topic_ids, asked, moment.cut(asked)

    return look_again(once, (LogChangedError,))  # retention, or a first writer, changes the log


def look_again(
    look_up: Callable[[], _Found],
    changes: tuple[type[Exception], ...],
    begin_anew: Callable[[], object] = lambda: None,
) -> _Found:
    """The result of `look_up`, which is repeated if files change while it looks."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return look_up()
        except changes as change:
            logger.info("looking again: %s", change)
            begin_anew()
    return look_up()


class PlannedMoment:
    """The partitions of a read, as they are at one moment of the whole directory.

    A batch query looks up the ranges that its options ask for, and cuts them.  A stream needs the
    `ends` of each moment, and later cuts the range between the ends of two of them.

    `before`: an earlier moment of a stream.  `directory`: as it is now, refreshed since `before`:
    topics may be gone.  By default, it is opened now, and topics that the options name have to be
    there.  `assigned`: the partitions to read, sorted.
    """

    def __init__(
        self,
        options: ReadOptions,
        directory: LogDirectory | None = None,
        before: "PlannedMoment | None" = None,
    ) -> None:
        self._options = options
        self._known_ends: Mapping[TopicPartition, int] = {}
        self._is_checked = False
        self._known_ids: Mapping[TopicPartition, str] = {}
        self._told: dict[tuple[str, TopicPartition], str] = {} if before is None else before._told
        if directory is not None and before is not None:
            ends = before.__dict__.get("_ends", {})  # an earlier look may have failed
            self._known_ends = {each: ends[each] for each in directory.unmoved if each in ends}
            ids = before.__dict__.get("topic_ids", {})
            self._known_ids = {each: ids[each] for each in directory.unmoved if each in ids}
        if directory is not None:
            self.directory = directory
            self.assigned = selected(options, directory)
            return
        _check_single(options.paths)
        self.directory = options.open_directory()
        _check_there(options, self.directory)
        self.assigned = selected(options, self.directory)

    def ends(self) -> dict[TopicPartition, int]:
        """The latest offset of each partition, by ``readUpTo`` and the isolation level."""
        self._check_diskless(self.assigned)
        return dict(self._ends)

    def _check_diskless(self, partitions: Iterable[TopicPartition]) -> None:
        """Refuse partitions whose latest records are in no file, or warn once for a moment."""
        if not self._is_checked:
            report_diskless(
                self.directory,
                partitions,
                "failOnDataLoss=false",
                fail_on_data_loss=self._options.fail_on_data_loss,
                told=self._told,
            )
            self._is_checked = True

    @cached_property
    def _ends(self) -> Mapping[TopicPartition, int]:
        policy, known = self._options.policy, self._known_ends
        found = self.directory.end_offsets(
            [each for each in self.assigned if each not in known],
            self._options.read_up_to,
            policy.isolation_level,
            policy.on_corrupt_batch,
            told=None if self._options.triggers is None else self._told,
            fail_on_data_loss=self._options.fail_on_data_loss,
            to_log_end="readUpTo=logEnd",
        )
        return {each: known[each] if each in known else found[each] for each in self.assigned}

    @cached_property
    def topic_ids(self) -> Mapping[TopicPartition, str]:
        """The ids of the topics of the partitions, where they are known."""
        ids = {
            each: self._known_ids.get(each) or self.directory.log(*each).known_topic_id
            for each in self.assigned
        }
        return {each: topic_id for each, topic_id in ids.items() if topic_id}

    def earliest(self, topic_partition: TopicPartition) -> int:
        """The log start of a partition."""
        return self.directory.log(*topic_partition).log_start_offset

    def asked(self) -> Ranges:
        """The range that the options ask for of each partition, with `EARLIEST` and `LATEST`."""
        start, end = self._options.start, self._options.end
        for bound in (start, end):
            if isinstance(bound, OffsetBound | TimestampBound):
                bound.resolve(self.assigned)  # refuses other partitions before a log is opened
        latest = self._ends
        ends = self._resolve(end, is_start=False)
        known = {each: latest[each] if at == LATEST else at for each, at in ends.items()}
        starts = self._starts(known)
        self._check_diskless(each for each, at in ends.items() if at == LATEST)
        unread = {each for each, at in ends.items() if at == EARLIEST}  # by a checkpoint
        if not isinstance(start, LastRecords | LastDuration):
            for each, at in starts.items():
                if at != EARLIEST and each not in unread:  # nothing of it is before earliest
                    check_start(start, each, at, known[each], end.option)
        for each in unread:
            if starts[each] == EARLIEST:
                starts[each] = self.earliest(each)
            ends[each] = starts[each]
        return {each: OffsetRange(starts[each], ends[each]) for each in self.assigned}

    def starts(self) -> dict[TopicPartition, int]:
        """The offset of each partition at which a stream starts by the options."""
        latest = self._ends
        found = self._starts(latest)
        words = {each: at for each, at in found.items() if at < 0}
        return found | {
            each: latest[each] if at == LATEST else self.earliest(each)
            for each, at in words.items()
        }

    def _starts(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Starts of a read that ends at `ends`; `EARLIEST` and `LATEST` stay."""
        start = self._options.start
        if isinstance(start, LastRecords):
            return {each: max(ends[each] - start.n_offsets, self.earliest(each)) for each in ends}
        if isinstance(start, LastDuration):
            since = start.before(time.time_ns() // 1_000_000)
            return self._by_time(since, is_start=True, one_segment=False)
        return self._resolve(start, is_start=True)

    def within(self, bounds: PushedBounds, asked: Ranges) -> Ranges:
        """The parts of ranges that may hold rows within bounds; an edge like `LATEST` may stay."""
        options, found = self._options, {}
        for each, (start, end) in asked.items():
            if not bounds.holds(each):
                continue
            first, last = bounds.offsets
            log, latest = self.directory.log(*each), self._ends[each]
            if bounds.timestamps is not None and not options.late_binding:
                policy = options.policy
                at = find_offset(
                    log,
                    bounds.timestamps.start_ms,
                    options.read_up_to,
                    policy.isolation_level,
                    policy.on_corrupt_batch,
                    one_segment=False,
                )
                # A record that was found by time is preceded by older ones only.
                first = max(first, min(latest, log.end.offset) if at is None else at.offset)
            known_start = self.earliest(each) if start == EARLIEST else start
            known_end = latest if end == LATEST else end
            begins = min(first, known_end) if first > known_start else start
            ends = max(last + 1, known_start) if last + 1 < known_end else end
            may_grow = options.late_binding and ends == LATEST
            if may_grow or max(first, known_start) < min(last + 1, known_end):
                found[each] = OffsetRange(begins, ends)
        return found

    def cut(self, asked: Ranges) -> Cuts:
        """Slices of a range of each partition, as the options for the number of tasks ask.

        `asked`: by partition; `EARLIEST` and `LATEST` stand for the bounds of this moment.  A
        stream may ask for records up to the log end: its checkpoint shows that an earlier run saw
        them below a high watermark.
        """
        options = self._options
        ranges = []
        for each, range_asked in asked.items():
            there = OffsetRange(self.earliest(each), self._ends[each])
            if options.triggers and there.end_offset < range_asked.end_offset:
                there = there._replace(end_offset=self.log_end(each))
            left = available(each, range_asked, there, fail_on_data_loss=options.fail_on_data_loss)
            ranges.append(PartitionRange(each, *left))
        cuts: Cuts = {each: [] for each in asked}
        pieces = split_ranges(ranges, options.min_partitions, options.max_records_per_partition)
        for topic_partition, start, end in pieces:
            log = self.directory.log(*topic_partition)
            cuts[topic_partition] += log.slices(start, end, options.max_bytes_per_partition)
        return cuts

    def n_bytes(self, topic_partition: TopicPartition, start_offset: int, end_offset: int) -> int:
        """Bytes of ``.log`` files between two offsets."""
        slices = self.directory.log(*topic_partition).slices(start_offset, end_offset)
        return sum(each.n_bytes for each in slices)

    def end_within(
        self, topic_partition: TopicPartition, start_offset: int, end_offset: int, n_bytes: int
    ) -> int:
        """The end of a part of a range that has at most about `n_bytes`; see `Log.end_within`."""
        log = self.directory.log(*topic_partition)
        return log.end_within(start_offset, end_offset, n_bytes)

    def log_end(self, topic_partition: TopicPartition) -> int:
        """The end of the log, which may be after the high watermark and after the last commit."""
        log = self.directory.log(*topic_partition)
        return max(self._ends[topic_partition], log.log_end_offset)

    def _resolve(
        self, bound: OffsetBound | TimestampBound, *, is_start: bool
    ) -> dict[TopicPartition, int]:
        if isinstance(bound, OffsetBound):
            bound.warn_of_missing(self.assigned)
            found, known = bound.resolve(self.assigned), dict(bound.topic_ids)
            for each, at in found.items():  # a checkpoint's, in a topic that was created again?
                reason = made_again(self.topic_ids.get(each), known.get(each.topic))
                if not reason or at < 0:
                    continue
                if self._options.fail_on_data_loss:
                    remedy = f"give another {bound.option}; failOnDataLoss=false reads it"
                    raise StreamOffsetError(str(each), at, at, f"and {reason}: {remedy}")
                logger.warning("%s: offset %d is that of a checkpoint, and %s", each, at, reason)
            return found
        return self._by_time(bound, is_start=is_start)

    def _by_time(
        self, bound: TimestampBound, *, is_start: bool, one_segment: bool = True
    ) -> dict[TopicPartition, int]:
        """A partition without such a record is bound at its latest offset, as by ``kafka``."""
        # A torn tail may hold the record to start at: a read of the tail reports that. The options
        # of ``kafka`` get a broker's answer, from one segment.
        options, latest = self._options, self._ends
        level, on_corrupt = options.policy.isolation_level, options.policy.on_corrupt_batch
        times = bound.resolve(self.assigned)
        found, missing = dict[TopicPartition, int](), dict[TopicPartition, int]()
        for each, time_ms in times.items():
            log = self.directory.log(*each)
            at = find_offset(
                log, time_ms, options.read_up_to, level, on_corrupt, one_segment=one_segment
            )
            if at is not None:
                found[each] = at.offset
            else:
                missing[each] = min(latest[each], log.end.offset) if is_start else latest[each]
        bound.check_found(times, missing)
        return missing | found


def _check_single(paths: Iterable[str]) -> None:
    """Refuse a path that means several paths: only Spark's file sources expand it."""
    for path in paths:
        found = readable_path(path)  # options follow a URL
        if _OF_SEVERAL & set(found) and not exists(found):
            accepted = (
                "no file or directory has this name, and a path is neither expanded nor split: "
                "give one log directory, or a list of the log directories of one broker, "
                'load(["/d1", "/d2"]); choose topics with subscribe or subscribePattern'
            )
            raise OptionError("path", found if is_url(found) else path, accepted)


def _check_there(options: ReadOptions, directory: LogDirectory) -> None:
    """Refuse topics that the options name and the directory lacks, and log such partitions."""
    _check_missing(options, directory)
    known = directory.topic_partitions()
    topics = {each.topic for each in known}
    for topic in {*options.subscribe, *(each.topic for each in options.assign)} - topics:
        directory.log(topic, 0)  # raises, and says more
        raise UnknownTopicOrPartitionError(topic, -1, ", ".join(directory.paths))
    missing = sorted(set(options.assign) - set(known))
    if missing:
        logger.warning(
            "option 'assign' names partitions that do not exist and are left out: %s; a broker's "
            "log directory holds only its own replicas",
            ", ".join(map(str, missing)),
        )


def selected(options: ReadOptions, directory: LogDirectory) -> list[TopicPartition]:
    """Partitions to read, sorted; brokers' internal topics are read only if they are named."""
    known = directory.topic_partitions()
    if options.assign:
        return sorted(set(options.assign) & set(known))
    if options.subscribe:
        return [each for each in known if each.topic in options.subscribe]
    pattern = compile_topic_pattern(options.subscribe_pattern or "")
    return [
        each for each in known if each.topic not in INTERNAL_TOPICS and pattern.search(each.topic)
    ]


def _check_missing(options: ReadOptions, directory: LogDirectory) -> None:
    """Refuse or log partitions of the read that are gone, as ``failOnDataLoss`` says."""
    # ``kafka`` asks brokers, which know the partitions of a topic. Here the checkpoints of the
    # directory name them.
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
