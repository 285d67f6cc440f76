"""The partitions of a dataset, each with the offsets that it had when the dataset was opened."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from segmentlog.arguments import instance_of, refused, whole_number
from segmentlog.cluster.replicated import ReplicatedDirectory, open_replicas
from segmentlog.errors import OptionError, StreamOffsetError
from segmentlog.model import LogSlice, OffsetRange, ReadUpTo, ScanPolicy, TopicPartition
from segmentlog.reads.left_out import report_diskless, report_missing
from segmentlog.reads.log import Log, find_bounds
from segmentlog.reads.log_directory import LogDirectory, open_log_dir
from segmentlog.reads.ordered_reads import cut_for_threads
from segmentlog.reads.stream_checkpoint import made_again
from segmentlog.times import Time, epoch_milliseconds

logger = logging.getLogger(__name__)


class PartitionSnapshot:
    """One partition, and its offsets to read."""

    def __init__(self, log: Log, offsets: OffsetRange) -> None:
        self.log = log
        self.offsets = offsets
        self._slices: dict[bool, list[LogSlice]] = {}
        self._newest: dict[LogSlice, int | None] = {}
        self._lock = threading.Lock()

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition."""
        return self.log.topic_partition

    def slices(self, *, is_last: bool) -> list[LogSlice]:
        """The offsets, cut into pieces that can be read side by side; cut at the first call."""
        # `is_last`: whether a query reads no partition after this one; see `cut_for_threads`.
        with self._lock:
            if is_last not in self._slices:
                cut = self.log.slices
                self._slices[is_last] = cut_for_threads(cut, self.offsets, is_last=is_last)
            return self._slices[is_last]

    def cut(self, log_slice: LogSlice, n_bytes: int) -> list[LogSlice]:
        """A slice of this partition in smaller pieces."""
        with self._lock:
            return self.log.slices(*log_slice.offsets, n_bytes)

    def newest_timestamp(self, log_slice: LogSlice) -> int | None:
        """`Log.newest_timestamp` of a slice, looked up once."""
        with self._lock:
            if log_slice not in self._newest:
                newest = self.log.newest_timestamp(log_slice)
                self.log.check_topic(log_slice.offsets)
                self._newest[log_slice] = newest
            return self._newest[log_slice]


class Snapshot(NamedTuple):
    """Partitions in order, and how they are read; `opens` opens their directories again."""

    paths: tuple[str, ...]
    partitions: tuple[PartitionSnapshot, ...]
    policy: ScanPolicy
    opens: Callable[..., LogDirectory] = open_log_dir

    def __reduce__(self) -> tuple[object, ...]:
        """The offsets travel: the directory is opened again where they arrive."""
        # Topic ids travel with them: offsets mean nothing in a topic that was created again.
        ranges = {each.topic_partition: each.offsets for each in self.partitions}
        ids = {each.topic_partition: each.log.known_topic_id for each in self.partitions}
        return _open_again, (self.paths, ranges, self.policy, ids, self.opens)


def _open_again(
    paths: tuple[str, ...],
    ranges: Mapping[TopicPartition, OffsetRange],
    policy: ScanPolicy,
    ids: Mapping[TopicPartition, str],
    opens: Callable[..., LogDirectory],
) -> Snapshot:
    directory = opens(*paths)
    partitions = tuple(
        reopened(directory, each, offsets, ids[each]) for each, offsets in ranges.items()
    )
    return Snapshot(paths, partitions, policy, opens)


def reopened(
    directory: LogDirectory, topic_partition: TopicPartition, offsets: OffsetRange, topic_id: str
) -> PartitionSnapshot:
    """A partition of a snapshot in another process; `LogChangedError` if its topic is new."""
    log = directory.log(*topic_partition)
    log.known_topic_id = topic_id
    log.check_topic(offsets)
    return PartitionSnapshot(log, offsets)


def take_snapshot(
    directory: LogDirectory,
    topics: Collection[str] | None,
    *,
    starting_offsets: Mapping[tuple[str, int], int],
    ending_offsets: Mapping[tuple[str, int], int],
    since: Time | None,
    until: Time | None,
    last: int | None,
    read_up_to: ReadUpTo,
    fail_on_data_loss: bool,
    policy: ScanPolicy,
) -> Snapshot:
    """Find the bounds of all partitions now; parameters and errors: `segmentlog.dataset`."""
    # Durations are counted back from one moment in all partitions.
    now_ms = time.time_ns() // 1_000_000
    since_ms, until_ms = (
        None if given is None else epoch_milliseconds(option, given, now_ms)
        for option, given in (("since", since), ("until", until))
    )
    last = None if last is None else whole_number("last", last, 1)
    named = {"starting_offsets": starting_offsets, "ending_offsets": ending_offsets}
    for option, given in named.items():
        accepted = "give offsets by topic and partition: {('orders', 0): 5}"
        instance_of(option, given, Mapping, accepted)
        for each in given:
            instance_of(option, each, tuple, accepted)
            if len(each) != 2:
                raise refused(option, each, accepted)
    missing = directory.missing_partitions(topics)
    report_missing(missing, "fail_on_data_loss=False", fail_on_data_loss=fail_on_data_loss)
    chosen = _choose(directory, topics, named)
    to_latest = [each for each in chosen if until is None and each not in ending_offsets]
    option = "fail_on_data_loss=False"
    report_diskless(directory, to_latest, option, fail_on_data_loss=fail_on_data_loss)
    directory.end_offsets(
        chosen, read_up_to, policy.isolation_level, policy.on_corrupt_batch,
        fail_on_data_loss=fail_on_data_loss,
    )  # fmt: skip
    partitions = []
    for topic_partition in chosen:
        log = directory.log(*topic_partition)
        for option, given in named.items():
            _check_topic(log, option, given, fail_on_data_loss=fail_on_data_loss)
        start, end = starting_offsets.get(topic_partition), ending_offsets.get(topic_partition)
        offsets = find_bounds(
            log, start, end,
            since_ms=since_ms if start is None else None,
            until_ms=until_ms if end is None else None,
            last=last if start is None else None,
            read_up_to=read_up_to, isolation_level=policy.isolation_level,
            on_corrupt_batch=policy.on_corrupt_batch, fail_on_data_loss=fail_on_data_loss,
        )  # fmt: skip
        partitions.append(PartitionSnapshot(log, offsets))
    opens: Callable[..., LogDirectory] = open_log_dir
    if isinstance(directory, ReplicatedDirectory):
        included = directory.include_deleted_topics
        opens = partial(open_replicas, include_deleted_topics=included)
    return Snapshot(directory.paths, tuple(partitions), policy, opens)


def _check_topic(
    log: Log, option: str, given: Mapping[tuple[str, int], int], *, fail_on_data_loss: bool
) -> None:
    """Refuse offsets of a checkpoint in a topic that was created again, or say so."""
    each, at = log.topic_partition, given.get(log.topic_partition)
    then = getattr(given, "topic_ids", {}).get(each.topic)
    if at is None or not (reason := made_again(log.known_topic_id, then)):
        return
    if fail_on_data_loss:
        remedy = f"and {reason}: give other {option}; fail_on_data_loss=False reads it"
        raise StreamOffsetError(str(each), at, at, remedy)
    logger.warning("%s: offset %d is that of a checkpoint, and %s", each, at, reason)


def _choose(
    directory: LogDirectory,
    topics: Collection[str] | None,
    named: Mapping[str, Iterable[tuple[str, int]]],
) -> list[TopicPartition]:
    """Partitions of `topics`; those that an option names have to be among them."""
    there = directory.topics(internal=topics is not None)
    for topic in topics or ():
        if topic not in there:
            directory.log(topic, 0)  # raises
    names = sorted(there if topics is None else set(topics))
    chosen = [TopicPartition(topic, each) for topic in names for each in there[topic]]
    known = set(chosen)
    for option, partitions in named.items():
        for topic, partition in partitions:
            if (topic, partition) not in known:
                directory.log(topic, partition)
                accepted = f"topics are {', '.join(names)}"
                raise OptionError(option, f"{topic}-{partition}", accepted)
    return chosen
