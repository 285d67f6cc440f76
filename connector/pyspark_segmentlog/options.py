"""Options: strings in, one frozen, checked value out; `OPTIONS` is the only list of them."""

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeVar

from pyspark_segmentlog.offsets import EARLIEST, LATEST, OffsetBound, parse_assign
from segmentlog.errors import OptionError
from segmentlog.model import (
    MAX_INFLATED_BATCH_BYTES,
    IsolationLevel,
    OnCorruptBatch,
    ReadUpTo,
    ScanPolicy,
    TopicPartition,
)

__all__ = ["OPTIONS", "Option", "ReadOptions"]

_Word = TypeVar("_Word", bound=StrEnum)

_MIB = 1 << 20
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


class Option(NamedTuple):
    """One option, as the reference in ``connector/README.md`` lists it."""

    name: str
    default: str
    accepts: str
    meaning: str


OPTIONS = (
    Option("path", "required", "a path", "A log directory, a partition directory or a `.log` "
           "file; what `load(path)` sets"),
    Option("paths", "none", "a JSON list of paths", "Several log directories of one broker; what "
           "`load([...])` sets"),
    Option("subscribe", "all topics", "`a,b`", "Topics to read"),
    Option("subscribePattern", "all topics", "a regular expression", "Topics whose name contains "
           "a match; never a broker's internal topics"),
    Option("assign", "all topics", '`{"a":[0,1]}`', "Partitions to read; those that do not exist "
           "are left out"),
    Option("startingOffsets", "`earliest`", '`earliest` or `{"a":{"0":23,"1":-2},"b":"earliest"}`',
           "Where to start; -2 is earliest"),
    Option("endingOffsets", "`latest`", '`latest` or `{"a":{"0":50,"1":-1},"b":"latest"}`',
           "Where to end, exclusive; -1 is latest"),
    Option("includeHeaders", "`false`", "`true` or `false`", "Adds the column `headers`"),
    Option("failOnDataLoss", "`true`", "`true` or `false`", "Whether a range that retention has "
           "removed, or that lies behind the end, fails the query or is read as far as it exists"),
    Option("kafka.isolation.level", "`read_uncommitted`", "`read_uncommitted` or "
           "`read_committed`", "`read_committed` leaves out what transactions aborted, and ends "
           "at the last stable offset"),
    Option("onCorruptBatch", "`fail`", "`fail` or `skip`", "Whether a corrupt batch fails the "
           "query, or is left out and its offsets logged by the task"),
    Option("maxInflatedBatchBytes", "`256m`", "bytes, or a size such as `64m`", "A compressed "
           "batch that inflates to more is corrupt"),
    Option("readUpTo", "`highWatermark`", "`highWatermark` or `logEnd`", "What `latest` means: "
           "the checkpointed high watermark where there is one, or the last whole batch"),
    Option("maxBytesPerPartition", "`128m`", "bytes, or a size such as `64m`; 0 for one task a "
           "partition", "About how many bytes of log a task reads"),
)  # fmt: skip

#: Options of the ``kafka`` source that steer its client and change no row: taken and not used.
_IGNORED = {"groupidprefix", "kafkaconsumer.polltimeoutms"}
_IGNORED |= {"fetchoffset.numretries", "fetchoffset.retryintervalms"}

#: Options of the ``kafka`` source that change rows or tasks, and that this version does not have.
_NOT_YET = {
    "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy",
    "endingTimestamp", "endingOffsetsByTimestamp", "minPartitions", "maxRecordsPerPartition",
    "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay",
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
    """What a batch read asks for, already checked; small, because it travels to every task.

    Attributes
    ----------
    paths : as the user wrote them.
    subscribe, subscribe_pattern, assign : at most one is set; none means all topics.
    starting_offsets, ending_offsets : not yet resolved.
    include_headers, fail_on_data_loss, read_up_to : as the options of these names.
    policy : isolation level, what to do about corrupt batches, and the bound of inflating.
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
            include_headers=_boolean("includeHeaders", given, default=False),
            fail_on_data_loss=_boolean("failOnDataLoss", given, default=True),
            read_up_to=_one_of("readUpTo", given, ReadUpTo, ReadUpTo.HIGH_WATERMARK),
            max_bytes_per_partition=_size("maxBytesPerPartition", given, default=128 * _MIB),
            policy=_policy(given),
        )


def _check_name(name: str, given: Mapping[str, str]) -> None:
    """Refuse a name that means nothing, or nothing yet; silence would give wrong rows."""
    lowered, value = name.lower(), given[name.lower()]
    if lowered.startswith("kafka."):
        _check_client_option(lowered.removeprefix("kafka."), value)
        return
    names = {option.name.lower(): option.name for option in OPTIONS}
    if lowered in names or lowered in _IGNORED:
        return
    not_yet = {each.lower(): each for each in _NOT_YET}
    if lowered in not_yet:
        accepted = "this version of segmentlog does not have that option of the kafka source"
        raise OptionError(not_yet[lowered], value, accepted)
    near = difflib.get_close_matches(lowered, names, n=1)
    accepted = f"did you mean {names[near[0]]!r}?" if near else f"options are {_all_names()}"
    raise OptionError(name, value, f"there is no such option; {accepted}")


def _all_names() -> str:
    return ", ".join(option.name for option in OPTIONS)


def _check_client_option(name: str, value: str) -> None:
    """Options of the Kafka client: nothing here uses them, but some show a misunderstanding."""
    if name in _FORBIDDEN:
        raise OptionError(f"kafka.{name}", value, f"it is not supported: {_FORBIDDEN[name]}")


def _check_one_strategy(given: Mapping[str, str]) -> None:
    strategies = ("subscribe", "subscribePattern", "assign")
    used = [name for name in strategies if name.lower() in given]
    if len(used) > 1:
        accepted = f"only one of {', '.join(strategies)} can be given, not also {used[1]}"
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
        raise OptionError("path", "", "name a Kafka log directory: load('/var/lib/kafka')")
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
    try:
        re.compile(pattern)
    except re.error as error:
        accepted = f"give a regular expression; this one fails: {error}"
        raise OptionError("subscribePattern", text, accepted) from None
    if not pattern:
        raise OptionError("subscribePattern", text, "give a regular expression")
    return pattern


def _boolean(name: str, given: Mapping[str, str], *, default: bool) -> bool:
    text = given.get(name.lower())
    if text is None:
        return default
    if text.strip().lower() not in {"true", "false"}:
        raise OptionError(name, text, "give true or false")
    return text.strip().lower() == "true"


def _one_of(name: str, given: Mapping[str, str], accepted: type[_Word], default: _Word) -> _Word:
    """The word of an option that takes one of a few, in any case."""
    text = given.get(name.lower())
    if text is None:
        return default
    for word in accepted:
        if word.value.lower() == text.strip().lower():
            return word
    raise OptionError(name, text, f"give {' or '.join(accepted)}")


def _policy(given: Mapping[str, str]) -> ScanPolicy:
    """How the tasks read."""
    bound = _size("maxInflatedBatchBytes", given, default=MAX_INFLATED_BATCH_BYTES)
    if not bound:
        raise OptionError("maxInflatedBatchBytes", "0", "give at least 1")
    return ScanPolicy(
        _one_of("kafka.isolation.level", given, IsolationLevel, IsolationLevel.READ_UNCOMMITTED),
        _one_of("onCorruptBatch", given, OnCorruptBatch, OnCorruptBatch.FAIL),
        bound,
    )


def _size(name: str, given: Mapping[str, str], *, default: int) -> int:
    text = given.get(name.lower())
    if text is None:
        return default
    match = re.fullmatch(r"([0-9]{1,18})([kmgt]?)b?", text.strip().lower())
    if match is None:
        raise OptionError(name, text, "give bytes, or a size such as 64m; 0 for no limit")
    return int(match[1]) * _UNITS[match[2]]
