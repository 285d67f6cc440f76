"""A log directory as a stream follows it: from look to look, on the driver.

Spark polls `FollowedDirectory.latest` every few milliseconds while nothing happens, and plans a
micro-batch between two answers.  After a restart it plans the last micro-batch again, between
offsets of the checkpoint, before it polls.  So each plan needs nothing but its two offsets.

A micro-batch may be smaller than the backlog.  The rules for offsets are those of ``kafka``
(``KafkaMicroBatchStream``), to the number.  A limit in bytes is shared among partitions by the
same rule, and then becomes an end for each partition.
"""

import contextlib
import json
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from pyspark_segmentlog.options.offsets import OffsetBound
from pyspark_segmentlog.options.read_options import ReadOptions, Triggers
from pyspark_segmentlog.options.reference import PartitionAssignor
from pyspark_segmentlog.reads.planner import PlannedMoment, look_again
from pyspark_segmentlog.reads.stream_offsets import (
    InitialOffsets,
    Offsets,
    OffsetsJson,
    from_json,
)
from pyspark_segmentlog.reads.task_groups import group_slices
from segmentlog.errors import LogChangedError, LogDirectoryError, OptionError, StreamOffsetError
from segmentlog.model import LARGEST_LONG, LogSlice, OffsetRange, ReadUpTo, TopicPartition
from segmentlog.native import check_compiled
from segmentlog.reads import (
    OF_LOG,
    has_mark,
    is_url,
    made_again,
    newest_mark,
    offsets_as_topics,
    readable_path,
    topic_ids_of,
    without_collector,
)

logger = logging.getLogger(__name__)

#: A backup has the ids of its topics, and other records at the same offsets.
_ANOTHER_LOG = (
    "and the place was emptied and made again, or an earlier backup was restored there: start the "
    "query with a new checkpointLocation; failOnDataLoss=false continues at this offset"
)

#: A broker that moves a partition to another of its directories renames two directories.
_PAUSE_SECONDS = 0.02

#: Slices with fewer bytes share tasks of about this size: a task costs more than to read them.
_SMALL_TASK = 8 << 20

_Found = TypeVar("_Found")


class _Poll(NamedTuple):
    """The last answer to a poll, which holds while nothing of this has changed."""

    moment: PlannedMoment
    takes_all: bool
    start: OffsetsJson
    answer: OffsetsJson


class FollowedDirectory:
    """The partitions that a stream reads."""

    def __init__(self, options: ReadOptions, triggers: Triggers) -> None:
        self._options = options
        self._triggers = triggers
        self._moment: PlannedMoment | None = None
        self._next_look = 0.0
        self._looks_rarely = options.read_up_to == ReadUpTo.LOG_END or any(
            is_url(readable_path(path)) for path in options.paths
        )
        self._initial: OffsetsJson | None = None
        least, delay_ms = triggers.min_offsets, triggers.max_delay_ms
        self._delay = MinimumDelay(least, delay_ms) if least else None
        self._poll: _Poll | None = None
        self._newest: tuple[PlannedMoment, OffsetsJson] | None = None
        self._is_final = False
        self._final: Offsets | None = None
        self._topic_ids: dict[TopicPartition, str] = {}
        self._identities: list[str] = []  # of the logs in object stores that were read
        self._marks = deque[str](maxlen=16)  # commits that the log is known to have
        self._told = set[tuple[TopicPartition, int]]()

    def initial(self) -> OffsetsJson:
        """The offsets at which the query starts; the answer stays the same."""
        if self._initial is None:
            location = self._triggers.initial_offsets_location
            file = InitialOffsets(location) if location else None
            found = file.read() if file else None
            if found is None:
                self._initial = self._again(self._starts)
                if not file:
                    return self._initial
                file.write(from_json(self._initial), topic_ids_of(self._initial))
                found = file.read()
            if file and found is not None:
                self._initial = offsets_as_topics(*found)
        return self._initial or {}

    def _starts(self) -> OffsetsJson:
        moment = self._look()
        starts = moment.starts()
        self._topic_ids = dict(moment.topic_ids)
        start = self._options.start
        if self._options.fail_on_data_loss and isinstance(start, OffsetBound):
            for each, at in starts.items():
                if start.asked(each) == at > moment.log_end(each):
                    accepted = (
                        f"{each} would start at {at}, but its log ends at "
                        f"{moment.log_end(each)}: give an offset up to that end"
                    )
                    raise OptionError(start.option, f"{at} for {each}", accepted)
        return self._to_json(starts, moment)

    def _to_json(self, offsets: Offsets, moment: PlannedMoment) -> OffsetsJson:
        """Offsets for the checkpoint, with the ids of their topics."""
        if not self._triggers.topic_ids_in_checkpoint:
            return offsets_as_topics(offsets)
        ids = {each.topic: found for each, found in moment.topic_ids.items()}
        places = moment.directory.paths
        if len(places) == 1 and (mark := newest_mark(places[0])):
            ids[OF_LOG] = mark
            self._marks.append(mark)
        return offsets_as_topics(offsets, ids)

    def end_with_what_is_there(self) -> None:
        """Have the stream end at the ends of the next poll (``Trigger.AvailableNow``)."""
        self._is_final = True

    def latest(self, start: OffsetsJson, *, takes_all: bool) -> OffsetsJson:
        """The end of the next micro-batch, after `start`, without limits if `takes_all`."""

        def once() -> OffsetsJson:
            moment, last = self._look(), self._poll
            if last and self._delay is None and last[:3] == (moment, takes_all, start):
                return last.answer
            first = from_json(start)
            if self._final is None:
                moment = self._with_all(moment, first)
            end = self._next_end(moment, first, takes_all=takes_all)
            self._check_topics(moment, first, start)
            # The offsets may be those of another version, without ids: then nothing has changed.
            answer = start if end == first else self._to_json(end, moment)
            self._poll = _Poll(moment, takes_all, start, answer)
            return answer

        return self._again(once)

    def _next_end(self, moment: PlannedMoment, start: Offsets, *, takes_all: bool) -> Offsets:
        ends = self._ends(moment, start)
        if takes_all:
            return ends
        if self._delay and self._delay.waits(start, ends):
            return start
        starts = {each: start[each] if each in start else moment.earliest(each) for each in ends}
        if self._triggers.max_offsets:
            ends = limit_offsets(starts, ends, self._triggers.max_offsets)
        if self._triggers.max_bytes:
            ends = limit_bytes(
                starts, ends, self._triggers.max_bytes, moment.n_bytes, moment.end_within
            )
        return ends

    def newest(self) -> OffsetsJson:
        """The ends of the last look, for the progress of the query."""
        moment = self._moment or self._again(self._look)
        if self._newest is None or self._newest[0] is not moment:
            self._newest = moment, self._to_json(moment.ends(), moment)
        return self._newest[1]

    @without_collector()
    def plan(self, start: OffsetsJson, end: OffsetsJson) -> list[tuple[LogSlice, ...]]:
        """The slices that each task of a micro-batch reads."""
        if start == end:
            return []
        check_compiled()
        first, last = from_json(start), from_json(end)

        def once() -> list[LogSlice]:
            moment = self._with_all(self._look(), last)
            cuts = moment.cut(self._ranges(moment, first, last))
            self._check_topics(moment, first, start)
            self._check_topics(moment, last, end)
            return [each for slices in cuts.values() for each in slices]

        slices = self._again(once)
        for each in slices:  # which were listed after the ids were read
            self._check_topic(each.topic_partition, each.start_offset, each.topic_id)
        tasks = self._tasks(slices)
        described = {  # the micro-batch in one line of a log
            "event": "micro-batch",
            "partitions": len({each.topic_partition for each in slices}),
            "offsets": sum(each.end_offset - each.start_offset for each in slices),
            "bytes": sum(each.n_bytes for each in slices),
            "tasks": len(tasks),
        }
        logger.info("%s", json.dumps(described))
        return tasks

    def _look(self) -> PlannedMoment:
        """The directory as it is now; an earlier moment if nothing has changed."""
        if self._moment is None:
            moment = PlannedMoment(self._options)
        elif self._looks_rarely and time.monotonic() < self._next_look:
            return self._moment
        else:
            log_ends = self._options.read_up_to == ReadUpTo.LOG_END
            directory = self._moment.directory.refresh(log_ends=log_ends)
            if directory is self._moment.directory:
                moment = self._moment
            else:
                moment = PlannedMoment(self._options, directory, self._moment)
        self._next_look = time.monotonic() + self._triggers.poll_interval_ms / 1000
        self._moment = moment
        return moment

    def _again(self, look_up: Callable[[], _Found]) -> _Found:
        return look_again(look_up, (LogChangedError, LogDirectoryError), self._look_afresh)

    def _look_afresh(self) -> PlannedMoment:
        """The directory as it is after a pause, opened again if it can be opened."""
        time.sleep(_PAUSE_SECONDS)
        with contextlib.suppress(LogDirectoryError):  # the next look reports it
            directory = self._options.open_directory()
            self._moment = PlannedMoment(self._options, directory, self._moment)
        return self._moment or PlannedMoment(self._options)

    def _with_all(self, moment: PlannedMoment, wanted: Offsets) -> PlannedMoment:
        """The moment, or a later one if it lacks partitions."""
        # A look reads several directories one after the other, and a partition may have moved from
        # one that is read late to one that was read early.
        if wanted.keys() <= set(moment.assigned):
            return moment
        return self._look_afresh()

    def _ends(self, moment: PlannedMoment, start: Offsets) -> Offsets:
        """The ends to which the stream could read, after a check that the log holds its start."""
        if self._final is not None:
            self._check_final(moment, self._final)
            return self._final
        ends = moment.ends()
        for each, at in start.items():
            if each not in ends:
                self._lose(each, at, -1, self._why_not_read(moment, each))
            elif ends[each] < at:
                log_end = moment.log_end(each)
                if at <= log_end:
                    # An earlier run has read up to there, by another readUpTo, or before the
                    # broker started again with an older high watermark.
                    ends[each] = at
                    continue
                self._lose(each, at, log_end, _shorter(log_end))
        if self._is_final:
            self._final = ends
        return ends

    def _ranges(
        self, moment: PlannedMoment, start: Offsets, end: Offsets
    ) -> Mapping[TopicPartition, OffsetRange]:
        """The offsets of each partition in a micro-batch (``KafkaOffsetReader``)."""
        if self._final is not None:
            self._check_final(moment, end)
        there = set(moment.assigned)
        # A first micro-batch that is repeated may have a start that was looked up again, and has
        # partitions of which its end knew nothing: they are new to the next micro-batch.
        is_first = self._initial is not None and start == from_json(self._initial)
        known = end if is_first else {**start, **end}
        for each in sorted(known.keys() - (end.keys() & there)):
            reason = self._why_not_read(moment, each)
            self._lose(each, start.get(each, 0), -1, reason)
        ranges = {}
        for each in sorted(end.keys() & there):
            at = start.get(each)
            if at is None:
                at = moment.earliest(each)
                if at:
                    self._lose(each, 0, at, _begins_later(at))
            if end[each] < at:
                self._lose(each, at, end[each], _ends_before(end[each]))
            elif end[each] > at:  # a log of which nothing is read is not opened
                ranges[each] = OffsetRange(at, end[each])
        return ranges

    def _check_final(self, moment: PlannedMoment, end: Offsets) -> None:
        """Refuse a change that takes a run with ``Trigger.AvailableNow`` away from its end."""
        # ``failOnDataLoss`` does not matter here, as in `kafka` (``KafkaSourceProvider``).
        final, there = self._final or end, set(moment.assigned)
        for each in sorted(final.keys() ^ end.keys()):
            raise StreamOffsetError(str(each), end.get(each, 0), final.get(each, -1), _OTHER_END)
        for each, at in end.items():
            if each not in there:
                raise StreamOffsetError(str(each), at, -1, _NOT_AVAILABLE)
            if at > final[each]:
                raise StreamOffsetError(str(each), at, final[each], _OTHER_END)
            if at > moment.log_end(each):
                log_end = moment.log_end(each)
                raise StreamOffsetError(str(each), at, log_end, _shorter(log_end))

    def _check_topics(self, moment: PlannedMoment, offsets: Offsets, logged: OffsetsJson) -> None:
        """Notice topics that were deleted and created again: their offsets mean other records.

        `offsets`: that are known of the topics.  `logged`: the same offsets as JSON, which may
        have the ids that the topics had.
        """
        identities = moment.directory.identities
        if self._identities and identities != self._identities:
            for each, at in offsets.items():
                self._lose(each, at, at, _ANOTHER_LOG)
        self._identities = identities
        known = topic_ids_of(logged) if self._triggers.topic_ids_in_checkpoint else {}
        mark, places = known.get(OF_LOG, ""), moment.directory.paths
        if mark and mark not in self._marks and len(places) == 1:
            if not has_mark(places[0], mark):
                for each, at in offsets.items():
                    self._lose(each, at, at, _ANOTHER_LOG)
            self._marks.append(mark)
        for each, topic_id in moment.topic_ids.items():
            if each in offsets:
                if each.topic in known:
                    self._topic_ids.setdefault(each, known[each.topic])
                self._check_topic(each, offsets[each], topic_id)

    def _check_topic(self, each: TopicPartition, at: int, topic_id: str) -> None:
        if not topic_id:  # a broker writes the file later than the first records
            return
        if reason := made_again(topic_id, self._topic_ids.setdefault(each, topic_id)):
            reason = (
                f"and {reason}: start the query with a new checkpointLocation; "
                "failOnDataLoss=false continues at this offset"
            )
            self._lose(each, at, at, reason)
            self._topic_ids[each] = topic_id

    def _lose(self, each: TopicPartition, at: int, log_offset: int, reason: str) -> None:
        """Fail, or say once, that records are lost."""
        if self._options.fail_on_data_loss:
            raise StreamOffsetError(str(each), at, log_offset, reason)
        if (each, at) not in self._told:
            self._told.add((each, at))
            logger.warning("%s: records at offset %d are lost, %s", each, at, reason)

    def _why_not_read(self, moment: PlannedMoment, each: TopicPartition) -> str:
        is_there = each in moment.directory.topic_partitions()
        return _NOT_SELECTED if is_there else _gone(self._options)

    def _tasks(self, slices: Sequence[LogSlice]) -> list[tuple[LogSlice, ...]]:
        options = self._options
        if options.max_partitions is not None:
            return group_slices(slices, options.max_partitions, options.partition_assignor)
        small = [each.n_bytes for each in slices if each.n_bytes < _SMALL_TASK]
        n_tasks = len(slices) - len(small) + -(-sum(small) // _SMALL_TASK)
        n_tasks = max(n_tasks, options.min_partitions or 1)
        return group_slices(slices, n_tasks, PartitionAssignor.BYTES)


_NOT_SELECTED = (
    "and the log directory has the partition, but the options of the query no longer select it: "
    "select it with subscribe, subscribePattern or assign, or start the query with a new "
    "checkpointLocation; failOnDataLoss=false continues with the selected partitions"
)
_OTHER_END = (
    "which is not in the plan of Trigger.AvailableNow: start the query again, and it reads the "
    "records that exist at that time"
)
_NOT_AVAILABLE = (
    "which was there when the query started with Trigger.AvailableNow, and its log is gone: start "
    "the query again with failOnDataLoss=false to read the other partitions"
)


def _gone(options: ReadOptions) -> str:
    return (
        f"and its log is gone from {', '.join(options.paths)}: put it back, or start the query "
        "with a new checkpointLocation; failOnDataLoss=false continues with the other partitions"
    )


def _shorter(log_end: int) -> str:
    return (
        f"and the log ends at {log_end}: this is an older or another copy of the log, or its "
        "topic was deleted and created again; read the directory to which the checkpoint "
        "belongs, or start the query with a new checkpointLocation; failOnDataLoss=false "
        f"continues at {log_end}"
    )


def _begins_later(log_start: int) -> str:
    return (
        f"because the partition is new to the query, and its log begins at {log_start}: the "
        "earlier records were deleted, or the topic is older than the query; "
        f"failOnDataLoss=false starts at {log_start}"
    )


def _ends_before(end: int) -> str:
    return (
        f"and the micro-batch ends at {end}: if this is the first micro-batch, and it is "
        "repeated, its start was looked up again: the option initialOffsetsLocation keeps the "
        "first start; otherwise the topic was deleted and created again; start the query with a "
        "new checkpointLocation; failOnDataLoss=false leaves the partition out of this "
        "micro-batch"
    )


def limit_offsets(starts: Offsets, ends: Offsets, max_offsets: int) -> dict[TopicPartition, int]:
    """Ends of a micro-batch with about `max_offsets` offsets."""
    # The rule is that of ``KafkaMicroBatchStream.rateLimit``. Each partition gets a share in
    # proportion to its backlog. A share is rounded down, but a partition with a backlog gets at
    # least one offset, so that no partition starves.
    shares = _shares({each: ends[each] - starts[each] for each in ends}, max_offsets)
    return {
        each: min(ends[each], starts[each] + shares[each]) if each in shares else ends[each]
        for each in ends
    }


def limit_bytes(
    starts: Offsets,
    ends: Offsets,
    max_bytes: int,
    measure: Callable[[TopicPartition, int, int], int],
    end_within: Callable[[TopicPartition, int, int, int], int],
) -> dict[TopicPartition, int]:
    """Ends of a micro-batch that reads about `max_bytes` of log.

    `measure`: bytes of a partition between two offsets.  `end_within`: the end of a range that
    begins at the same offset and has at most about this many bytes; it is after the start.
    """
    backlog = {each: (starts[each], ends[each]) for each in ends if starts[each] < ends[each]}
    sizes = {each: measure(each, *offsets) for each, offsets in backlog.items()}
    if sum(sizes.values()) <= max_bytes:
        return dict(ends)
    shares = _shares(sizes, max_bytes)
    limited = {each: end_within(each, *backlog[each], share) for each, share in shares.items()}
    return dict(ends) | limited


def _shares(backlogs: Mapping[TopicPartition, int], limit: int) -> dict[TopicPartition, int]:
    """Shares of `limit` in proportion to the backlogs, at least 1; none without a backlog."""
    waiting = {each: backlog for each, backlog in backlogs.items() if backlog > 0}
    total = sum(waiting.values())
    shares = {}
    for each, backlog in waiting.items():
        share = limit * (backlog / total)
        shares[each] = min(math.ceil(share) if share < 1 else math.floor(share), LARGEST_LONG)
    return shares


class MinimumDelay:
    """Whether a micro-batch, but not the first, waits (``KafkaMicroBatchStream.delayBatch``)."""

    def __init__(self, min_offsets: int, max_delay_ms: int) -> None:
        self._min_offsets = min_offsets
        self._max_delay_ms = max_delay_ms
        self._last_ms = -math.inf

    def waits(self, starts: Offsets, ends: Offsets) -> bool:
        """Whether the micro-batch from `starts` to `ends` waits; unknown starts count as 0."""
        now_ms = time.monotonic_ns() // 1_000_000
        if now_ms - self._last_ms < self._max_delay_ms:
            waiting = sum(end - starts.get(each, 0) for each, end in ends.items())
            if waiting < self._min_offsets:
                return True
        self._last_ms = now_ms
        return False
