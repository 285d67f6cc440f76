"""Options of Spark's ``kafka`` source and sink, checked as `KafkaSourceProvider` checks them.

The messages are those of Spark, so that a test of a job's error passes with and without a broker.
Options that `kafka` accepts and a log directory has no use for are left out.  Those of Kafka's
clients are in `kafka_clients`.
"""

import json
import re
from collections.abc import Collection, Mapping

from pyspark.errors import (
    AnalysisException,
    IllegalArgumentException,
    NumberFormatException,
)
from pyspark.sql.types import StructType

from pyspark_segmentlog.testing.kafka_clients import check_client_options
from segmentlog.errors import OptionError

_STRATEGIES = ("subscribe", "subscribepattern", "assign")
#: The option that names the servers.
SERVERS = "kafka.bootstrap.servers"

#: Options for the start and for the end, in the order of their precedence.
_STARTS = ("startingtimestamp", "startingoffsetsbytimestamp", "startingoffsets")
_ENDS = ("endingtimestamp", "endingoffsetsbytimestamp", "endingoffsets")

#: Options of the source that have an effect on a log directory.
_OF_READS = (
    *_STRATEGIES,
    *_STARTS,
    "startingoffsetsbytimestampstrategy",
    *_ENDS,
    "includeheaders",
    "failondataloss",
    "kafka.isolation.level",
    "minpartitions",
    "maxrecordsperpartition",
    "maxoffsetspertrigger",
    "minoffsetspertrigger",
    "maxtriggerdelay",
)

#: Numbers that Spark's source takes, and that have no effect on a log directory: with their bits
#: beside the sign, and the least of them with which a broker is read at all.
_UNUSED_NUMBERS = (
    ("fetchOffset.numRetries", 31, 1),
    ("fetchOffset.retryIntervalMs", 63, -(2**63)),
    ("kafkaConsumer.pollTimeoutMs", 63, 1),
)

#: Options of the sink that have an effect on a log directory.
_OF_WRITES = (
    "topic",
    "kafka.batch.size",
    "kafka.compression.type",
    "kafka.compression.gzip.level",
    "kafka.compression.lz4.level",
    "kafka.compression.zstd.level",
)

#: Spark's own words.
NO_CHECKPOINT = (
    'checkpointLocation must be specified either through option("checkpointLocation", ...) or '
    'SparkSession.conf.set("spark.sql.streaming.checkpointLocation", ...).'
)

_FORBIDDEN = {
    "kafka.key.deserializer": "Kafka option 'key.deserializer' is not supported as keys are "
    "deserialized as byte arrays with ByteArrayDeserializer. Use DataFrame operations to "
    "explicitly deserialize the keys.",
    "kafka.value.deserializer": "Kafka option 'value.deserializer' is not supported as values are "
    "deserialized as byte arrays with ByteArrayDeserializer. Use DataFrame operations to "
    "explicitly deserialize the values.",
    "kafka.enable.auto.commit": "Kafka option 'enable.auto.commit' is not supported",
    "kafka.interceptor.classes": "Kafka option 'interceptor.classes' is not supported",
}

_AUTO_OFFSET_RESET = (
    "\nKafka option 'auto.offset.reset' is not supported.\n"
    "Instead set the source option 'startingoffsets' to 'earliest' or 'latest'\n"
    "to specify where to start. Structured Streaming manages which offsets are consumed\n"
    "internally, rather than relying on the kafkaConsumer to do it. This will ensure that no\n"
    "data is missed when new topics/partitions are dynamically subscribed. Note that\n"
    "'startingoffsets' only applies when a new Streaming query is started, and\n"
    "that resuming will always pick up from where the query left off. See the docs for more\n"
    "details.\n"
)

_SERIALIZERS = {
    "kafka.key.serializer": "Kafka option 'key.serializer' is not supported as keys are "
    "serialized with ByteArraySerializer.",
    "kafka.value.serializer": "Kafka option 'value.serializer' is not supported as value are "
    "serialized with ByteArraySerializer.",
}


def check_read(options: Mapping[str, str], *, is_stream: bool) -> None:
    """Refuse the options that Spark's source refuses, in its order."""
    if is_stream:
        for name, word in (("endingoffsets", "offset"), ("endingoffsetsbytimestamp", "timestamp")):
            if name in options:
                raise IllegalArgumentException(f"ending {word} not valid in streaming queries")
    _check_strategy(options)
    for name in ("minpartitions", "maxrecordsperpartition"):
        bits = 31 if name == "minpartitions" else 63
        if name in options and _number(options[name], bits) <= 0:
            shown = "minPartitions" if name == "minpartitions" else name
            raise IllegalArgumentException(f"{shown} must be positive")
    if "kafka.auto.offset.reset" in options:
        raise IllegalArgumentException(_AUTO_OFFSET_RESET)
    for name, message in _FORBIDDEN.items():
        if name in options:
            raise IllegalArgumentException(message)
    if SERVERS not in options:
        message = f"Option '{SERVERS}' must be specified for configuring Kafka consumer"
        raise IllegalArgumentException(message)
    for name, bits, least in _UNUSED_NUMBERS:
        value = options.get(name.lower(), str(least))
        if _number(value, bits) < least:
            raise OptionError(name, value, f"Spark's kafka source fails with less than {least}")
    if is_stream:
        level = options.get("kafka.isolation.level", "")
        if level != level.strip():  # a consumer strips it, and a stream reads it itself
            message = f"No enum constant org.apache.kafka.common.IsolationLevel.{level.upper()}"
            raise IllegalArgumentException(message)
        _check_limits(options)
        _milliseconds(options.get("maxtriggerdelay", "15m"))
    else:
        if {"minoffsetspertrigger", "maxoffsetspertrigger"} <= options.keys():
            _check_limits(options)
        _check_bounds(options)
    _check_bound(_STARTS, options)
    if not is_stream:
        _check_bound(_ENDS, options)
    for name in ("includeheaders", "failondataloss"):
        _boolean(options.get(name, "true"))
    check_client_options(options, "consumers")


def _check_strategy(options: Mapping[str, str]) -> None:
    given = [name for name in _STRATEGIES if name in options]
    if len(given) != 1:
        one = "Only one of the following options can be" if given else "One of the following"
        one += "" if given else " options must be"
        names = ", ".join(_STRATEGIES)
        message = f"{one} specified for Kafka source: {names}. See the docs for more details."
        raise IllegalArgumentException(message)
    value = options[given[0]]
    if given[0] == "assign" and not value.strip().startswith("{"):
        message = "No topicpartitions to assign as specified value for option 'assign' is "
        raise IllegalArgumentException(f"{message}'{value}'")
    if given[0] == "assign":
        _json(value, '{"topicA":[0,1],"topicB":[0,1]}')
    if given[0] == "subscribe" and not [each for each in value.split(",") if each.strip()]:
        message = "No topics to subscribe to as specified value for option 'subscribe' is "
        raise IllegalArgumentException(f"{message}'{value}'")
    if given[0] == "subscribepattern" and not value.strip():
        message = "Pattern to subscribe is empty as specified value for option 'subscribePattern' "
        raise IllegalArgumentException(f"{message}is '{value}'")


def _check_limits(options: Mapping[str, str]) -> None:
    names = ("minoffsetspertrigger", "maxoffsetspertrigger")
    least, most = (_number(options[name]) if name in options else None for name in names)
    if least is not None and most is not None and least > most:
        message = f"The value of minOffsetPerTrigger({least}) is higher than the "
        raise IllegalArgumentException(f"{message}maxOffsetsPerTrigger({most}).")


def _check_bounds(options: Mapping[str, str]) -> None:
    """Refuse a batch that starts at latest or ends at earliest."""
    for which, word, sentinel in (("starting", "latest", -1), ("ending", "earliest", -2)):
        names = [f"{which}timestamp", f"{which}offsetsbytimestamp", f"{which}offsets"]
        first = next((name for name in names if name in options), "")
        if first != names[-1]:
            continue
        bound = "starting" if which == "starting" else "ending"
        if options[first].strip().lower() == word:
            message = f"{bound} offset can't be {word} for batch queries on Kafka"
            raise IllegalArgumentException(message)
        shown = "startingOffsets" if which == "starting" else "ending offset"
        if options[first].strip().lower() in {"earliest", "latest"}:
            continue
        for topic, numbers in _json(options[first], _OFFSETS).items():
            found = [p for p, offset in numbers.items() if offset == sentinel]
            if found:
                message = f"{shown} for {topic}-{found[0]} can't be {word} for batch queries on "
                raise IllegalArgumentException(f"{message}Kafka")


_OFFSETS = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
_TIMES = (
    '{"topicA": {"0": 123456789, "1": 123456789},\n"topicB": {"0": 123456789, "1": 123456789}}'
)


def _check_bound(names: tuple[str, str, str], options: Mapping[str, str]) -> None:
    """Refuse a value of the bound that has precedence; Spark does not parse the others."""
    name = next((each for each in names if each in options), "")
    value = options.get(name, "")
    if name.endswith("timestamp") and not name.endswith("bytimestamp"):
        try:
            _number(value.strip())
        except NumberFormatException:
            message = f"Expected a single long value, got {value}"
            raise IllegalArgumentException(message) from None
    elif name.endswith("bytimestamp"):
        _json(value, _TIMES)
    elif name and value.strip().lower() not in {"earliest", "latest"}:
        _json(value, _OFFSETS)


def _json(value: str, example: str) -> dict[str, dict[str, int]]:
    """A map of partitions, as Spark's `JsonUtils` takes it."""
    refused = IllegalArgumentException(f"Expected e.g. {example}, got {value}")
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        raise refused from None
    kind: type = list if "[" in example else dict
    if not isinstance(found, dict) or not all(isinstance(each, kind) for each in found.values()):
        raise refused
    numbers = [n for each in found.values() for n in (each if kind is list else each.values())]
    if not all(isinstance(each, int) and not isinstance(each, bool) for each in numbers):
        raise refused
    return found


def _number(text: str, bits: int = 63) -> int:
    """A number as Java reads it: an ``int`` has 31 bits beside its sign, and a ``long`` 63."""
    if re.fullmatch(r"[+-]?[0-9]+", text) is None or not -(2**bits) <= int(text) < 2**bits:
        raise NumberFormatException(f'For input string: "{text}"')
    return int(text)


def _boolean(text: str) -> bool:
    """A word as Scala reads it."""
    if text.lower() not in {"true", "false"}:
        raise IllegalArgumentException(f'For input string: "{text}"')
    return text.lower() == "true"


#: Microseconds of the units of Spark's durations.
_UNITS = {
    "us": 1,
    "ms": 10**3,
    "s": 10**6,
    "m": 60 * 10**6,
    "min": 60 * 10**6,
    "h": 3600 * 10**6,
    "d": 86400 * 10**6,
}


def _milliseconds(text: str) -> int:
    """A duration as Spark's `JavaUtils.timeStringAs` reads it; a number alone is milliseconds."""
    found = re.fullmatch(r"(-?[0-9]+)([a-z]+)?", text.strip().lower())
    unit = "ms" if found is None else found[2] or "ms"
    if found is None or unit not in _UNITS:
        reason = f"Failed to parse time string: {text}"
        if found is not None:
            reason = f'Invalid suffix: "{unit}"'
        message = (
            "Time must be specified as seconds (s), milliseconds (ms), microseconds (us), "
            "minutes (m or min), hour (h), or day (d). E.g. 50s, 100ms, or 250us."
        )
        raise NumberFormatException(f"{message}\n{reason}")
    return int(found[1]) * _UNITS[unit] // 1000


def check_schema(given: object, *, is_stream: bool) -> None:
    """Refuse a schema that the user gave."""
    if given is None:
        return
    if is_stream:
        message = "requirement failed: Kafka source has a fixed schema and cannot be set with a "
        raise IllegalArgumentException(f"{message}custom one")
    shown = given.simpleString() if isinstance(given, StructType) else given
    message = "[USER_SPECIFIED_AND_ACTUAL_SCHEMA_MISMATCH] The user-specified schema doesn't match"
    message += f" the actual schema:\nuser-specified: {shown}, actual: {_COLUMNS}. If you're using"
    message += (
        "\nDataFrameReader.schema API or creating a table, please do not specify the schema."
    )
    raise AnalysisException(message)


_COLUMNS = (
    "key BINARY,value BINARY,topic STRING,partition INT,offset BIGINT,timestamp TIMESTAMP,"
    "timestampType INT"
)

#: Types that the sink takes, by its columns, in the order of its checks.
_ACCEPTED = {
    "topic": ("string",),
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "partition": ("int",),
}


def check_columns(columns: StructType, options: Mapping[str, str]) -> list[str]:
    """The columns that Spark's sink takes, unless it refuses the rows."""
    found: dict[str, str] = {}
    for field in columns.fields:  # the first of several columns of a name counts
        found.setdefault(field.name, field.dataType.simpleString())
    if "topic" in options:
        found.pop("topic", None)  # the option has precedence
    elif "topic" not in found:
        message = "topic option required when no 'topic' attribute is present. Use the topic "
        raise AnalysisException(f"{message}option for setting a topic.")
    for name, accepted in _ACCEPTED.items():
        if name in found and found[name] not in accepted:
            message = f"{name} attribute unsupported type {found[name]}. {name} must be a(n) "
            raise AnalysisException(message + " or ".join(accepted))
        if name == "value" and name not in found:
            raise AnalysisException("Required attribute 'value' not found")
    return [name for name in _ACCEPTED if name in found]


def check_write(options: Mapping[str, str]) -> None:
    """Refuse the options that Spark's sink refuses."""
    for name, message in _SERIALIZERS.items():
        if name in options:
            raise IllegalArgumentException(message)
    if SERVERS not in options:
        message = f"Option '{SERVERS}' must be specified for configuring Kafka consumer"
        raise IllegalArgumentException(message)
    check_client_options(options, "producers")


def check_trigger(given: Mapping[str, object]) -> None:
    """Refuse the triggers without micro-batches, which Spark has for no source of Python."""
    for name in ("continuous", "realTime"):
        if given.get(name) is not None:
            accepted = (
                "as_kafka runs queries in micro-batches alone: let the test give the job "
                "trigger(availableNow=True) or trigger(processingTime='0 seconds'), or test it "
                "with a broker"
            )
            raise OptionError("trigger", f"{name}={given[name]!r}", accepted)


def check_async_progress(options: Mapping[str, str], trigger: Mapping[str, object]) -> None:
    """Refuse what Spark refuses of a query whose progress is written behind its micro-batches."""
    if not _boolean(options.get("asyncprogresstrackingenabled", "false")):
        return
    _number(options.get("asyncprogresstrackingcheckpointintervalms", "1000"))
    for name, shown in (("availableNow", "AvailableNow"), ("once", "Once")):
        if trigger.get(name):
            message = f"Async progress tracking cannot be used with {shown} trigger"
            raise IllegalArgumentException(message)


def check_layout(calls: Collection[str]) -> None:
    """Refuse what Spark refuses for all sinks that are no tables."""
    if "bucketBy" in calls:
        named = "bucketBy and sortBy" if "sortBy" in calls else "bucketBy"
        raise AnalysisException(f"'save' does not support {named} right now.")
    if "sortBy" in calls:
        message = "[SORT_BY_WITHOUT_BUCKETING] sortBy must be used together with bucketBy."
        raise AnalysisException(f"{message} SQLSTATE: 42601")


def check_mode(mode: str | None) -> None:
    """Refuse the modes of a batch write that Spark's sink refuses."""
    if (mode or "append").lower() in {"overwrite", "ignore"}:
        shown = str(mode).capitalize()
        message = f"Save mode {shown} not allowed for Kafka. Allowed save modes are Append and "
        raise AnalysisException(f"{message}ErrorIfExists (default).")


def options_of_read(options: Mapping[str, str], *, is_stream: bool) -> dict[str, str]:
    """Options with which our source plans a read as `kafka` does."""
    # Ends are bound when a task starts, and each partition has one task. A stream has no end, and
    # `kafka` does not look at the values of one.
    used = set(_OF_READS) - set(_ENDS if is_stream else ())
    taken = {name: value for name, value in options.items() if name in used}
    if is_stream and "maxtriggerdelay" in taken:  # ours takes no microseconds, and no zero
        taken["maxtriggerdelay"] = str(max(_milliseconds(taken["maxtriggerdelay"]), 1))
    as_kafka = {"maxBytesPerPartition": "0"}
    return taken | as_kafka | ({} if is_stream else {"lateBinding": "true"})


def options_of_write(options: Mapping[str, str]) -> dict[str, str]:
    """Options with which our sink writes as `kafka` does."""
    return {name: value for name, value in options.items() if name in _OF_WRITES}
