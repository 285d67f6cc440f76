"""Options of a read: strings in, one frozen, checked value out; `OPTIONS` is their only list."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_segmentlog.offsets import EARLIEST, LATEST, OffsetBound, parse_assign
from pyspark_segmentlog.parsing import (
    Option,
    parse_boolean,
    parse_one_of,
    parse_size,
    refuse_client_option,
    unknown_option,
)
from pyspark_segmentlog.topic_pattern import compile_topic_pattern
from segmentlog.errors import OptionError
from segmentlog.model import (
    MAX_INFLATED_BATCH_BYTES,
    IsolationLevel,
    OnCorruptBatch,
    OnInvalidUtf8,
    ReadUpTo,
    ScanPolicy,
    TopicPartition,
)

__all__ = ["OPTIONS", "STRATEGIES", "ReadOptions", "is_of_reads"]

_MIB = 1 << 20

#: Options that select topics; at most one is given.
STRATEGIES = ("subscribe", "subscribePattern", "assign")


OPTIONS = (
    Option("path", "required", "a path", "A log directory, a partition directory or a `.log` "
           "file; what `load(path)` sets"),
    Option("paths", "none", "a JSON list of paths", "Several log directories of one broker; what "
           "`load([...])` sets"),
    Option("subscribe", "all topics", "`a,b`", "Topics to read"),
    Option("subscribePattern", "all topics", "a Java regular expression", "Topics whose name "
           "contains a match; never a broker's internal topics"),
    Option("assign", "all topics", '`{"a":[0,1]}`', "Partitions to read; those that do not exist "
           "are left out, with a warning"),
    Option("startingOffsets", "`earliest`", '`earliest` or `{"a":{"0":23,"1":-2},"b":"earliest"}`',
           "Where to start; -2 is earliest"),
    Option("endingOffsets", "`latest`", '`latest` or `{"a":{"0":50,"1":-1},"b":"latest"}`',
           "Where to end, exclusive; -1 is latest"),
    Option("includeHeaders", "`false`", "`true` or `false`", "Adds the column `headers`"),
    Option("preserve", "`false`", "`true` or `false`", "Reads all that a write with `preserve` "
           "keeps: `includeHeaders` is then `true` unless it is given"),
    Option("failOnDataLoss", "`true`", "`true` or `false`", "If a part of the range is gone or "
           "not yet written: `true` fails the query, `false` reads the rest"),
    Option("kafka.isolation.level", "`read_uncommitted`", "`read_uncommitted` or "
           "`read_committed`", "`read_committed` leaves out what transactions aborted, and ends "
           "at the last stable offset"),
    Option("onCorruptBatch", "`fail`", "`fail` or `skip`", "Whether a corrupt batch fails the "
           "query, or is left out and its offsets logged by the task"),
    Option("maxInflatedBatchBytes", "`256m`", "bytes, or a size such as `64m`", "A compressed "
           "batch that inflates to more is corrupt"),
    Option("onInvalidUtf8", "`fail`", "`fail`, `null` or `replace`", "What becomes of a key "
           "or value that a schema of your own has as `string`, and that is not UTF-8: an error, "
           "null, or U+FFFD in place of the bad bytes"),
    Option("filterPushdown", "`false`", "`true` or `false`", "Whether filters narrow the read "
           "itself; only for a DataFrame that one query uses"),
    Option("readUpTo", "`highWatermark`", "`highWatermark` or `logEnd`", "What `latest` means: "
           "the checkpointed high watermark where there is one, or the last whole batch"),
    Option("maxBytesPerPartition", "`128m`", "bytes, or a size such as `64m`; 0 for one task a "
           "partition", "About how many bytes of log a task reads"),
)  # fmt: skip

_NO_PATH = (
    "name a Kafka log directory: load('/var/lib/kafka'); or in SQL CREATE TABLE t USING "
    "segmentlog OPTIONS (path '/var/lib/kafka'), without columns of your own and not by "
    "saveAsTable: Spark hands the options of a table over only where it asks for the columns"
)

#: Options of writes alone.
_OF_WRITES = {
    "topic", "numPartitions", "autoCreateTopics", "includeTimestamp", "includeTimestampType",
    "includeOffset", "deleteRecords", "segment.bytes", "segment.ms", "segment.index.bytes",
    "index.interval.bytes", "max.message.bytes", "compression.type", "message.timestamp.type",
    "flush", "flush.messages", "lockTimeout", "txnAppId", "txnVersion",
}  # fmt: skip

#: Options of the ``kafka`` source that control its client and change no row: accepted, not used.
_IGNORED = {"groupidprefix", "kafkaconsumer.polltimeoutms"}
_IGNORED |= {"fetchoffset.numretries", "fetchoffset.retryintervalms"}

#: Options of the ``kafka`` source that change rows or tasks, and that this version lacks.
_BY_TIME = "filter the rows instead: where(\"timestamp >= '2026-01-31'\")"
_BY_SIZE = "maxBytesPerPartition says how much a task reads"
_OF_STREAMS = "leave it out: it is for streams, and a read is one batch"
_NOT_YET = {
    "startingTimestamp": _BY_TIME, "startingOffsetsByTimestamp": _BY_TIME,
    "startingOffsetsByTimestampStrategy": _BY_TIME, "endingTimestamp": _BY_TIME,
    "endingOffsetsByTimestamp": _BY_TIME, "minPartitions": _BY_SIZE,
    "maxRecordsPerPartition": _BY_SIZE, "maxOffsetsPerTrigger": _OF_STREAMS,
    "minOffsetsPerTrigger": _OF_STREAMS, "maxTriggerDelay": _OF_STREAMS,
}  # fmt: skip

_FORBIDDEN = {
    "auto.offset.reset": "use startingOffsets to say where to start",
    "key.deserializer": "keys come as bytes; use DataFrame operations to decode them",
    "value.deserializer": "values come as bytes; use DataFrame operations to decode them",
    "enable.auto.commit": "nothing is committed; the range of a read is in its options",
    "interceptor.classes": "there is no consumer that could be intercepted",
}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a batch read, checked; small, because they travel to every task.

    Attributes
    ----------
    paths : as the user wrote them.
    subscribe, subscribe_pattern, assign : at most one is set; without any, all topics are read.
    starting_offsets, ending_offsets : not yet resolved.
    include_headers, fail_on_data_loss, read_up_to : as the options of these names.
    filter_pushdown, on_invalid_utf8 : as the options of these names.
    policy : isolation level, treatment of corrupt batches, and the bound of inflating.
    max_bytes_per_partition : 0 for one slice a partition.
    """

    paths: tuple[str, ...]
    subscribe: tuple[str, ...]
    subscribe_pattern: str | None
    assign: tuple[TopicPartition, ...]
    starting_offsets: OffsetBound
    ending_offsets: OffsetBound
    include_headers: bool
    fail_on_data_loss: bool
    read_up_to: ReadUpTo
    max_bytes_per_partition: int
    policy: ScanPolicy
    filter_pushdown: bool
    on_invalid_utf8: OnInvalidUtf8

    @classmethod
    def parse(cls, raw: Mapping[str, str]) -> "ReadOptions":
        """Check Spark's option strings; names in any case.

        Raises
        ------
        OptionError
            For the first option that is unknown, or whose value is not accepted.
        """
        given = {name.lower(): value for name, value in raw.items()}
        for name in raw:
            _check_name(name, given)
        _check_one_strategy(given)
        start = given.get("startingoffsets", "earliest")
        end = given.get("endingoffsets", "latest")
        return cls(
            paths=_paths(given),
            subscribe=_topics(given.get("subscribe")),
            subscribe_pattern=_pattern(given.get("subscribepattern")),
            assign=parse_assign(given["assign"]) if "assign" in given else (),
            starting_offsets=OffsetBound.parse("startingOffsets", start, refused=LATEST),
            ending_offsets=OffsetBound.parse("endingOffsets", end, refused=EARLIEST),
            include_headers=parse_boolean(
                "includeHeaders", given, default=parse_boolean("preserve", given, default=False)
            ),
            fail_on_data_loss=parse_boolean("failOnDataLoss", given, default=True),
            read_up_to=parse_one_of("readUpTo", given, ReadUpTo, ReadUpTo.HIGH_WATERMARK),
            max_bytes_per_partition=parse_size(
                "maxBytesPerPartition", given, default=128 * _MIB, zero="one task a partition"
            ),
            policy=_policy(given),
            filter_pushdown=parse_boolean("filterPushdown", given, default=False),
            on_invalid_utf8=parse_one_of(
                "onInvalidUtf8", given, OnInvalidUtf8, OnInvalidUtf8.FAIL
            ),
        )


def _check_name(name: str, given: Mapping[str, str]) -> None:
    """Refuse a name that is unknown or not supported yet; silence would give wrong rows."""
    lowered, value = name.lower(), given[name.lower()]
    if lowered.startswith("kafka."):
        refuse_client_option(lowered.removeprefix("kafka."), value, _FORBIDDEN)
        return
    names = {option.name.lower(): option.name for option in OPTIONS}
    if lowered in names or lowered in _IGNORED:
        return
    not_yet = {each.lower(): each for each in _NOT_YET}
    if lowered in not_yet:
        accepted = "this version of segmentlog does not have that option of the kafka source; "
        raise OptionError(not_yet[lowered], value, accepted + _NOT_YET[not_yet[lowered]])
    of_writes = {each.lower(): each for each in _OF_WRITES}
    if lowered in of_writes:
        accepted = "it is an option of writes; a read names its topics with subscribe"
        raise OptionError(of_writes[lowered], value, accepted)
    raise unknown_option(name, value, names.values())


def is_of_reads(name: str) -> bool:
    """Whether a read, here or of the ``kafka`` source, has an option of this lower-cased name."""
    names = {option.name.lower() for option in OPTIONS} | _IGNORED
    return name in names or name in {each.lower() for each in _NOT_YET}


def _check_one_strategy(given: Mapping[str, str]) -> None:
    used = [name for name in STRATEGIES if name.lower() in given]
    if len(used) > 1:
        accepted = f"{used[1]} is given, too: give only one of {', '.join(STRATEGIES)}"
        raise OptionError(used[0], given[used[0].lower()], accepted)


def _paths(given: Mapping[str, str]) -> tuple[str, ...]:
    paths = (given["path"],) if "path" in given else ()
    if "paths" in given:
        try:
            listed = json.loads(given["paths"])
        except (json.JSONDecodeError, RecursionError):
            listed = None
        if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
            raise OptionError("paths", given["paths"], 'give a JSON list such as ["/d1","/d2"]')
        paths += tuple(listed)
    if not paths:
        raise OptionError("path", "", _NO_PATH)
    return paths


def _topics(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    topics = tuple(dict.fromkeys(topic.strip() for topic in text.split(",") if topic.strip()))
    if not topics:
        raise OptionError("subscribe", text, "name at least one topic: a,b")
    return topics


def _pattern(text: str | None) -> str | None:
    if text is None:
        return None
    pattern = text.strip()
    if not pattern:
        raise OptionError("subscribePattern", text, "give a regular expression")
    compile_topic_pattern(pattern)
    return pattern


def _policy(given: Mapping[str, str]) -> ScanPolicy:
    """The policy by which the tasks read."""
    return ScanPolicy(
        parse_one_of(
            "kafka.isolation.level", given, IsolationLevel, IsolationLevel.READ_UNCOMMITTED
        ),
        parse_one_of("onCorruptBatch", given, OnCorruptBatch, OnCorruptBatch.FAIL),
        parse_size("maxInflatedBatchBytes", given, default=MAX_INFLATED_BATCH_BYTES),
    )
