"""Options of a read: strings in, one frozen, checked value out; `READ_OPTIONS` lists them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TypeAlias

from pyspark_segmentlog.options import option_names
from pyspark_segmentlog.options.bounds import LastDuration, LastRecords, check_order
from pyspark_segmentlog.options.offsets import EARLIEST, LATEST, OffsetBound, parse_assign
from pyspark_segmentlog.options.option import GivenOptions, Option, boolean, one_of, positive, size
from pyspark_segmentlog.options.timestamps import NoMatch, TimestampBound
from pyspark_segmentlog.options.topic_pattern import compile_topic_pattern
from segmentlog.errors import OptionError
from segmentlog.model import (
    IsolationLevel,
    OnCorruptBatch,
    OnInvalidUtf8,
    ReadUpTo,
    ScanPolicy,
    TopicPartition,
)

__all__ = [
    "READ_OPTIONS", "STRATEGIES", "PartitionAssignor", "ReadOptions", "is_of_reads",
    "warn_of_unused",
]  # fmt: skip


class PartitionAssignor(StrEnum):
    """The rule by which tasks share slices."""

    BYTES = "bytes"  #: about as many bytes for each task
    RANGE = "range"  #: Kafka's assignor of this name, with tasks as a group's members
    ROUND_ROBIN = "roundrobin"
    STICKY = "sticky"


Start: TypeAlias = OffsetBound | TimestampBound | LastRecords | LastDuration
End: TypeAlias = OffsetBound | TimestampBound

#: Options that select topics; at most one is given.
STRATEGIES = ("subscribe", "subscribePattern", "assign")

#: Options that say where a read starts or ends, in the order of their precedence.
_STARTS = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
_ENDS = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
_RELATIVE = ("lastRecords", "lastDuration")


def _paths(text: str) -> tuple[str, ...]:
    try:
        listed = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        raise ValueError from None
    if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
        raise ValueError
    return tuple(listed)


def _topics(text: str) -> tuple[str, ...]:
    topics = tuple(dict.fromkeys(topic.strip() for topic in text.split(",") if topic.strip()))
    if not topics:
        raise ValueError
    return topics


def _pattern(text: str) -> str:
    pattern = text.strip()
    if not pattern:
        raise ValueError
    compile_topic_pattern(pattern)
    return pattern


_BOOLEAN = "`true` or `false`"
_A_TIME = "milliseconds since 1970, or a time with its zone such as `2026-01-31T10:00:00Z`"
_TIMES = 'JSON such as `{"a":{"0":1767225600000,"1":"2026-01-31T10:00:00Z"}}`'
_OF_STREAMS = "Not used: for streams"
_OF_CLIENTS = "Not used: there is no client"

READ_OPTIONS = (
    Option("path", "required", "a path", "A log directory, a partition directory or a `.log` "
           "file; what `load(path)` sets"),
    Option("paths", "none", 'a JSON list of paths such as `["/d1","/d2"]`', "Several log "
           "directories of one broker; what `load([...])` sets", _paths),
    Option("subscribe", "all topics", "topics such as `a,b`, at least one", "Topics to read",
           _topics),
    Option("subscribePattern", "all topics", "a Java regular expression", "Topics whose name "
           "contains a match; never a broker's internal topics", _pattern),
    Option("assign", "all topics", 'JSON such as `{"a":[0,1]}`', "Partitions to read; those that "
           "do not exist are left out, with a warning", parse_assign),
    Option("startingTimestamp", "none", _A_TIME, "Where to start: at the earliest offset whose "
           "record is not older", partial(TimestampBound.parse, "startingTimestamp")),
    Option("startingOffsetsByTimestamp", "none", _TIMES, "The same, for each partition",
           partial(TimestampBound.parse_map, "startingOffsetsByTimestamp")),
    Option("startingOffsets", "`earliest`", '`earliest`, or JSON such as '
           '`{"a":{"0":23,"1":-2},"b":"earliest"}`', "Where to start; -2 is earliest",
           partial(OffsetBound.parse, "startingOffsets", refused=LATEST)),
    Option("startingOffsetsByTimestampStrategy", "`error`", "`error` or `latest`", "If every "
           "record of a partition is older than its starting timestamp: `error` fails the query, "
           "`latest` starts it at its end", one_of(NoMatch)),
    Option("lastRecords", "none", "a number from 1", "Starts each partition so many offsets "
           "before its end; instead of a starting option", positive(2**63 - 1)),
    Option("lastDuration", "none", "a duration such as `10 minutes` or `2 days`", "Starts at the "
           "records of the time before the read is planned, by the clock of the driver; instead "
           "of a starting option", partial(LastDuration.parse, "lastDuration")),
    Option("endingTimestamp", "none", _A_TIME, "Where to end: before the earliest offset whose "
           "record is not older; without such a record at latest",
           partial(TimestampBound.parse, "endingTimestamp")),
    Option("endingOffsetsByTimestamp", "none", _TIMES, "The same, for each partition",
           partial(TimestampBound.parse_map, "endingOffsetsByTimestamp")),
    Option("endingOffsets", "`latest`", '`latest`, or JSON such as '
           '`{"a":{"0":50,"1":-1},"b":"latest"}`', "Where to end, exclusive; -1 is latest",
           partial(OffsetBound.parse, "endingOffsets", refused=EARLIEST)),
    Option("lateBinding", "`false`", _BOOLEAN, "`true`: earliest and latest are looked up by each "
           "task, so that a DataFrame sees new records each time; `false`: a read is a snapshot",
           boolean),
    Option("includeHeaders", "`false`", _BOOLEAN, "Adds the column `headers`", boolean),
    Option("preserve", "`false`", _BOOLEAN, "Reads all that a write with `preserve` "
           "keeps: `includeHeaders` is then `true` unless it is given", boolean),
    Option("failOnDataLoss", "`true`", _BOOLEAN, "If a part of the range is gone or not yet "
           "written: `true` fails the query, `false` reads the rest, and logs the offsets that "
           "are left out", boolean),
    Option("kafka.isolation.level", "`read_uncommitted`", "`read_uncommitted` or "
           "`read_committed`", "`read_committed` leaves out what transactions aborted, and ends "
           "at the last stable offset", one_of(IsolationLevel)),
    Option("onCorruptBatch", "`fail`", "`fail` or `skip`", "Whether a corrupt batch fails the "
           "query, or is left out and its offsets logged by the task", one_of(OnCorruptBatch)),
    Option("maxInflatedBatchBytes", "`256m`", "bytes, or a size such as `64m`", "A compressed "
           "batch that inflates to more is corrupt", size()),
    Option("onInvalidUtf8", "`fail`", "`fail`, `null` or `replace`", "What becomes of a key "
           "or value that a schema of your own has as `string`, and that is not UTF-8: an error, "
           "null, or U+FFFD in place of the bad bytes", one_of(OnInvalidUtf8)),
    Option("readUpTo", "`highWatermark`", "`highWatermark` or `logEnd`", "What `latest` means: "
           "the checkpointed high watermark where there is one, or the last whole batch",
           one_of(ReadUpTo)),
    Option("minPartitions", "none", "a number from 1", "A hint for the least number of tasks: "
           "large partitions are divided by their offsets, as by `kafka`", positive(2**31 - 1)),
    Option("maxRecordsPerPartition", "none", "a number from 1", "Most offsets that a task reads",
           positive(2**63 - 1)),
    Option("maxPartitions", "none", "a number from 1", "Most tasks: each then reads several of "
           "the pieces that the other options make", positive(2**31 - 1)),
    Option("partitionAssignor", "`bytes`", "`bytes`, `range`, `roundrobin` or `sticky`", "With "
           "`maxPartitions`: `bytes` gives tasks about as many bytes each; the others share "
           "topic-partitions among tasks as Kafka's assignors of these names do among consumers",
           one_of(PartitionAssignor)),
    Option("maxBytesPerPartition", "`128m`", "bytes, or a size such as `64m`; 0 for one task a "
           "partition", "About how many bytes of log a task reads; it divides further what "
           "`minPartitions` and `maxRecordsPerPartition` leave", size(zero=True)),
    Option("kafka.bootstrap.servers", "none", "anything", "Not used: the path takes its place",
           is_used=False),
    Option("groupIdPrefix", "none", "anything", _OF_CLIENTS, is_used=False),
    Option("kafkaConsumer.pollTimeoutMs", "none", "anything", _OF_CLIENTS, is_used=False),
    Option("fetchOffset.numRetries", "none", "anything", _OF_CLIENTS, is_used=False),
    Option("fetchOffset.retryIntervalMs", "none", "anything", _OF_CLIENTS, is_used=False),
    Option("maxOffsetsPerTrigger", "none", "anything", _OF_STREAMS, is_used=False),
    Option("minOffsetsPerTrigger", "none", "anything", _OF_STREAMS, is_used=False),
    Option("maxTriggerDelay", "none", "anything", _OF_STREAMS, is_used=False),
)  # fmt: skip

_NO_PATH = (
    "name a Kafka log directory: load('/var/lib/kafka'); or in SQL CREATE TABLE t USING "
    "segmentlog OPTIONS (path '/var/lib/kafka'), without columns of your own and not by "
    "saveAsTable: Spark hands the options of a table over only where it asks for the columns"
)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a batch read, checked; small, because they travel to every task.

    Attributes
    ----------
    paths : as the user wrote them.
    subscribe, subscribe_pattern, assign : at most one is set; without any, all topics are read.
    start, end : by the option of the highest precedence, not yet resolved.
    late_binding, include_headers, fail_on_data_loss, read_up_to, min_partitions,
    on_invalid_utf8 : as the options of these names.
    max_records_per_partition, max_partitions : or None.
    partition_assignor : how at most `max_partitions` tasks share the slices.
    max_bytes_per_partition : 0 for no cuts by bytes.
    policy : isolation level, treatment of corrupt batches, and the bound of inflating.
    """

    paths: tuple[str, ...]
    subscribe: tuple[str, ...]
    subscribe_pattern: str | None
    assign: tuple[TopicPartition, ...]
    start: Start
    end: End
    late_binding: bool
    include_headers: bool
    fail_on_data_loss: bool
    read_up_to: ReadUpTo
    min_partitions: int | None
    max_records_per_partition: int | None
    max_bytes_per_partition: int
    max_partitions: int | None
    partition_assignor: PartitionAssignor
    policy: ScanPolicy
    on_invalid_utf8: OnInvalidUtf8

    @classmethod
    def parse(cls, raw: Mapping[str, str]) -> "ReadOptions":
        """Check Spark's option strings; names in any case.

        Raises
        ------
        OptionError
            For the first option that is refused by its name, or whose value is not accepted.
        """
        option_names.check_names(raw, READ_OPTIONS)
        given = GivenOptions(raw, READ_OPTIONS)
        _check_one(STRATEGIES, given)
        paths = (given["path"],) if "path" in given else ()
        paths += given["paths"] or ()
        if not paths:
            raise OptionError("path", "", _NO_PATH)
        start, end = _start(given), given[_first(_ENDS, given)]
        check_order(start, end)
        return cls(
            paths=paths,
            subscribe=given["subscribe"] or (),
            subscribe_pattern=given["subscribePattern"],
            assign=given["assign"] or (),
            start=start,
            end=end,
            late_binding=given["lateBinding"],
            include_headers=given["includeHeaders" if "includeHeaders" in given else "preserve"],
            fail_on_data_loss=given["failOnDataLoss"],
            read_up_to=given["readUpTo"],
            min_partitions=given["minPartitions"],
            max_records_per_partition=given["maxRecordsPerPartition"],
            max_bytes_per_partition=given["maxBytesPerPartition"],
            max_partitions=_max_partitions(given),
            partition_assignor=given["partitionAssignor"],
            policy=ScanPolicy(
                given["kafka.isolation.level"],
                given["onCorruptBatch"],
                given["maxInflatedBatchBytes"],
            ),
            on_invalid_utf8=given["onInvalidUtf8"],
        )

    def follows_retention(self, topic_partition: TopicPartition) -> bool:
        """Whether the read of a partition starts at earliest, wherever this is by then."""
        start = self.start
        return isinstance(start, OffsetBound) and start.asked(topic_partition) == EARLIEST


def _max_partitions(given: GivenOptions) -> int | None:
    least, most = given["minPartitions"], given["maxPartitions"]
    if least and most and least > most:
        accepted = f"minPartitions asks for {least} at least: give {least} or more, or one of them"
        raise OptionError("maxPartitions", str(most), accepted)
    return most if most is None else int(most)


def is_of_reads(name: str) -> bool:
    """Whether a read, here or of the ``kafka`` source, has an option of this lower-cased name."""
    return option_names.is_of_reads(name, READ_OPTIONS)


def warn_of_unused(raw: Mapping[str, str]) -> None:
    """Say once which of the given options have no effect."""
    option_names.warn_of_unused(raw, READ_OPTIONS)


def _check_one(names: tuple[str, ...], given: GivenOptions) -> None:
    used = [name for name in names if name in given]
    if len(used) > 1:
        accepted = f"{used[1]} is given, too: give only one of {', '.join(names)}"
        raise OptionError(used[0], given.texts[used[0].lower()], accepted)


def _first(names: tuple[str, ...], given: GivenOptions) -> str:
    """The option of the highest precedence; others are not even parsed, as by ``kafka``."""
    return next((name for name in names if name in given), names[-1])


def _start(given: GivenOptions) -> Start:
    no_match = given["startingOffsetsByTimestampStrategy"]
    relative = [name for name in _RELATIVE if name in given]
    if relative:
        _check_one((*_RELATIVE, *_STARTS), given)
        start = given[relative[0]]
        return LastRecords(start) if relative == ["lastRecords"] else start
    start = given[_first(_STARTS, given)]
    return start.with_no_match(no_match) if isinstance(start, TimestampBound) else start
