"""The reference: every option of reads and of writes, as ``connector/docs/options.md`` lists them.

A row has an option's name, its default, what it accepts, its meaning and its parser.  The document
is checked against these tables.
"""

import json
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import partial
from typing import Any

from pyspark_segmentlog.options.bounds import LastDuration
from pyspark_segmentlog.options.offsets import OffsetBound, parse_assign
from pyspark_segmentlog.options.option import (
    Option,
    Query,
    boolean,
    number,
    one_of,
    size,
    time_string,
)
from pyspark_segmentlog.options.timestamps import NoMatch, TimestampBound
from pyspark_segmentlog.options.topic_pattern import compile_topic_pattern
from segmentlog import ProducerConfig
from segmentlog.declared import Declared, declared
from segmentlog.errors import OptionError
from segmentlog.model import (
    Codec,
)
from segmentlog.read_options import READ_OPTIONS as OF_READS
from segmentlog.read_options import (
    CountOptions,
    DecodeOptions,
    EndOptions,
    FormOptions,
    LoadOptions,
    SelectionOptions,
    SourceOptions,
)
from segmentlog.times import parse_duration
from segmentlog.writes import check_level


class PartitionAssignor(StrEnum):
    """The rule by which tasks share slices."""

    BYTES = "bytes"  #: about the same number of bytes for each task
    RANGE = "range"  #: Kafka's assignor of this name, with tasks as a group's members
    ROUND_ROBIN = "roundrobin"
    STICKY = "sticky"


class Flush(StrEnum):
    """When the records of a write are durable."""

    COMMIT = "commit"  #: before the write succeeds
    NONE = "none"  #: when the page cache is written


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


def _name(text: str) -> str:
    name = text.strip()
    if not name:
        raise ValueError
    return name


def _codec(text: str) -> Codec:
    name = text.strip().upper()
    if name not in Codec.__members__:
        raise ValueError
    return Codec[name]


def _level(codec: Codec, text: str) -> int:
    level = number(-(2**31), 2**31 - 1)(text)
    try:
        check_level(codec, level)
    except OptionError as error:
        raise OptionError(f"kafka.{error.option}", text, error.accepted) from None
    return level


_BOOLEAN = "`true` or `false`"
_A_TIME = (
    "milliseconds since 1970, or a time with its zone such as `2026-01-31T10:00:00Z`, or a date"
)
_TIMES = 'JSON such as `{"a":{"0":1767225600000,"1":"2026-01-31T10:00:00Z"}}`'
_OF_CLIENTS = "Not used: there is no client"


def _of_all_dialects(options: type, *names: str) -> Iterator[Option]:
    """The rows of options that are declared for Python, the command line and Spark at once.

    `names`: of some; all rows of the class by default.
    """
    known = declared(options)
    for each in map(known.__getitem__, names or known):
        if each.is_row_of_spark:
            default = "none" if each.default is None else f"`{str(each.default).lower()}`"
            if isinstance(each.default, StrEnum):
                default = f"`{each.default}`"
            accepts, parse = _of_kind(each)
            meaning = each.said(lambda name: f"`{OF_READS[name].in_spark}`", "`{}`".format)
            meaning = meaning.removeprefix("whether to ")
            yield Option(
                each.in_spark,
                each.shown_default or default,
                accepts,
                meaning[0].upper() + meaning[1:],
                parse,
            )


def _of_kind(option: Declared) -> tuple[str, Callable[[str], Any] | None]:
    """What an option accepts as text, and the parser of it."""
    if issubclass(option.kind, StrEnum):
        *words, last = (f"`{each}`" for each in option.kind)
        return f"{', '.join(words)} or {last}", one_of(option.kind)
    if option.kind is bool:
        return _BOOLEAN, boolean
    if option.kind is int and option.unit == "bytes":
        accepts = option.accepts or "bytes, or a size such as `64m`"
        return accepts, size(zero=not option.least)
    if option.kind is int:
        return f"a number from {option.least}", number(option.least)
    return option.accepts, None


_BATCH, _STREAM = (Query.BATCH,), (Query.STREAM,)

READ_OPTIONS = (
    Option("path", "required", "a path", "A log directory, a partition directory or a `.log` "
           "file; `load(path)` sets this option"),
    Option("paths", "none", 'a JSON list of paths such as `["/d1","/d2"]`', "Several log "
           "directories of one broker, or with `replicas` of several brokers; `load([...])` sets "
           "this option",
           _paths),
    *_of_all_dialects(SourceOptions),
    Option("subscribe", "all topics", "topics such as `a,b`, at least one", "Topics to read",
           _topics),
    Option("subscribePattern", "all topics", "a Java regular expression", "Topics whose name "
           "contains a match; never a broker's internal topics", _pattern),
    Option("assign", "all topics", 'JSON such as `{"a":[0,1]}`', "Partitions to read; those that "
           "do not exist are left out, with a warning", parse_assign),
    Option("table", "none", "the name of a table such as `group_offsets`", "Reads a table of what "
           "Kafka knows about itself, in place of records: groups, offsets, transactions, the "
           "metadata of the cluster; only `path`, `paths`, `history`, `topic`, `strict` and "
           "`onCorruptBatch` may be given as well",
           _name, _BATCH),
    Option("history", "`false`", _BOOLEAN, "With `table`: `true` makes every change a row, with "
           "its offset and time; `false` gives the last state", boolean, _BATCH),
    Option("topic", "the known names", "a topic", "With `table`: the topic that has the records, "
           "if Kafka Connect, MirrorMaker 2 or a schema registry uses a topic with another name",
           _name, _BATCH),
    Option("strict", "`false`", _BOOLEAN, "With `table`: `true` fails at a record that is newer "
           "than the Kafka that segmentlog knows; `false` logs a warning", boolean, _BATCH),
    Option("startingTimestamp", "none", _A_TIME, "Where to start: at the earliest offset whose "
           "record has this time or a later one",
           partial(TimestampBound.parse, "startingTimestamp")),
    Option("startingOffsetsByTimestamp", "none", _TIMES, "Where to start, for each partition",
           partial(TimestampBound.parse_map, "startingOffsetsByTimestamp")),
    Option("startingOffsets", "`earliest`, in streams `latest`", "`earliest`, `latest` in "
           'streams, JSON such as `{"a":{"0":23,"1":-2},"b":"earliest"}`, or `checkpoint:PATH`',
           "Where to start; -2 is earliest, and in streams -1 is latest; `checkpoint:PATH` is "
           "the place after the last batch that a streaming query of Spark has committed",
           partial(OffsetBound.parse, "startingOffsets")),
    Option("startingOffsetsByTimestampStrategy", "`error`", "`error` or `latest`", "If every "
           "record of a partition is older than its starting timestamp: `error` fails the "
           "query, `latest` starts the partition at its end", one_of(NoMatch)),
    Option("lastRecords", "none", "a number from 1", "Where to start: this number of offsets "
           "before the end of each partition; not together with another starting option",
           number(1)),
    Option("lastDuration", "none", "a duration such as `10 minutes` or `2 days`", "Where to "
           "start: this long before the moment at which the read is planned, by the clock of the "
           "driver; not together with another starting option",
           partial(LastDuration.parse, "lastDuration")),
    Option("endingTimestamp", "none", _A_TIME, "Where to end: before the earliest offset whose "
           "record has this time or a later one; at latest if there is no such record",
           partial(TimestampBound.parse, "endingTimestamp"), _BATCH),
    Option("endingOffsetsByTimestamp", "none", _TIMES, "Where to end, for each partition",
           partial(TimestampBound.parse_map, "endingOffsetsByTimestamp"), _BATCH),
    Option("endingOffsets", "`latest`", '`latest`, JSON such as '
           '`{"a":{"0":50,"1":-1},"b":"latest"}`, or `checkpoint:PATH`', "Where to end, "
           "exclusive; -1 is latest; `checkpoint:PATH` is the place after the last batch that a "
           "streaming query of Spark has committed",
           partial(OffsetBound.parse, "endingOffsets"), _BATCH),
    Option("lateBinding", "`false`", _BOOLEAN, "`true`: earliest and latest are looked up by "
           "each task, so that a DataFrame sees new records each time that it is computed; "
           "`false`: a read is a snapshot",
           boolean, _BATCH),
    *_of_all_dialects(FormOptions),
    Option("preserve", "`false`", _BOOLEAN, "Reads everything that a write with `preserve` "
           "keeps: `includeHeaders` is then `true` unless it is given", boolean),
    *_of_all_dialects(EndOptions),
    *_of_all_dialects(SelectionOptions),
    *_of_all_dialects(DecodeOptions),
    Option("minPartitions", "none", "a number from 1", "Smallest number of tasks, as a hint: "
           "large partitions are divided by their offsets, as by `kafka`", number(1, 2**31 - 1)),
    Option("maxRecordsPerPartition", "none", "a number from 1", "Largest number of offsets that "
           "a task reads",
           number(1)),
    Option("maxPartitions", "none", "a number from 1", "Largest number of tasks: a task then "
           "reads several of the pieces that the other options make", number(1, 2**31 - 1)),
    Option("partitionAssignor", "`bytes`", "`bytes`, `range`, `roundrobin` or `sticky`", "With "
           "`maxPartitions`: `bytes` gives each task about the same number of bytes; the other "
           "values distribute topic-partitions over tasks as Kafka's assignors of these names "
           "distribute them over consumers",
           one_of(PartitionAssignor)),
    Option("maxBytesPerPartition", "`128m`", "bytes, or a size such as `64m`; 0 for one task for "
           "each partition", "About how many bytes of log a task reads; larger pieces that "
           "`minPartitions` and `maxRecordsPerPartition` make are divided further",
           size(zero=True)),
    *_of_all_dialects(LoadOptions),
    *_of_all_dialects(CountOptions),
    Option("kafka.bootstrap.servers", "none", "anything", "Not used: the path takes its place",
           used_by=()),
    Option("groupIdPrefix", "none", "anything", _OF_CLIENTS, used_by=()),
    Option("kafkaConsumer.pollTimeoutMs", "none", "anything", _OF_CLIENTS, used_by=()),
    Option("fetchOffset.numRetries", "none", "anything", _OF_CLIENTS, used_by=()),
    Option("fetchOffset.retryIntervalMs", "none", "anything", _OF_CLIENTS, used_by=()),
    Option("maxOffsetsPerTrigger", "none", "a number from 1", "Streams: about how many offsets a "
           "micro-batch has, divided among partitions in proportion to their backlogs",
           number(1), _STREAM),
    Option("minOffsetsPerTrigger", "none", "a number from 1", "Streams: a micro-batch waits for "
           "this number of offsets; the first micro-batch of a run does not wait", number(1),
           _STREAM),
    Option("maxTriggerDelay", "`15m`", "a duration such as `15m` or `2 hours`, or a number of "
           "milliseconds", "Streams: the longest time that a micro-batch waits for "
           "`minOffsetsPerTrigger`; not used without that option", time_string, _STREAM),
    Option("maxBytesPerTrigger", "none", "bytes, or a size such as `64m`", "Streams: about how "
           "many bytes of log a micro-batch reads, divided among partitions as with "
           "`maxOffsetsPerTrigger`; if both options are given, both apply", size(), _STREAM),
    Option("initialOffsetsLocation", "none", "`<checkpointLocation>/sources/0`, a local path",
           "Streams: the directory that stores the start offsets of the query, in the form of the "
           "`kafka` source, so that a restart before the end of the first micro-batch begins at "
           "these offsets again; `0` is the number of the source in the query, and a named source "
           "has its name in place of the number",
           used_by=_STREAM),
    Option("topicIdsInCheckpoint", "`true`", _BOOLEAN, "Streams: whether the offsets in the "
           "checkpoint also contain the ids of the topics, so that a restarted query notices a "
           "topic that was deleted and created again, and a log in an object store that was "
           "restored from an earlier backup; with `false`, ids of the checkpoint are neither "
           "written nor compared, such as for a query that moves to a restored cluster",
           boolean, _STREAM),
    Option("pollInterval", "`100ms`", "a duration such as `100ms`", "Streams: how often a stream "
           "looks for new records if a look is expensive: with `readUpTo=logEnd`, and for a URL",
           parse_duration, _STREAM),
)  # fmt: skip

#: Settings of the topics, which `segmentlog.TopicConfig` parses.
TOPIC_SETTINGS = (
    Option("segment.bytes", "`1073741824`", "a number", "Size at which a segment rolls"),
    Option("segment.ms", "`604800000`", "a number", "Age of a segment, in the time of its "
           "records, at which it rolls"),
    Option("segment.index.bytes", "`10485760`", "a number", "Size of an index file "
           "at which its segment rolls"),
    Option("index.interval.bytes", "`4096`", "a number", "Bytes of log between two index "
           "entries"),
    Option("max.message.bytes", "`1048588`", "a number", "Largest record batch"),
    Option("compression.type", "`producer`", "`producer`, `uncompressed` or a codec", "The "
           "topic's codec; unless it is `producer`, it takes precedence over "
           "`kafka.compression.type`"),
    Option("message.timestamp.type", "`CreateTime`", "`CreateTime` or `LogAppendTime`",
           "`LogAppendTime` gives every record the time of writing, also with "
           "`includeTimestamp`"),
    Option("flush.messages", "no limit", "a number from 1", "With `flush=none`: a job with at "
           "least this many records is synced anyway"),
)  # fmt: skip

WRITE_OPTIONS = (
    Option("path", "required", "a path", "The log directory to append to, on a file system that "
           "all machines share; `save(path)` sets this option"),
    Option("topic", "the column `topic`", "a topic's name", "Topic of all rows; takes precedence "
           "over the column", str.strip),
    Option("numPartitions", "1 for new topics; with `preserve`, what the rows of each topic name",
           "a number from 1", "Number of partitions of a "
           "topic that the job creates when it commits; if `topic` exists, it must have this "
           "number", number(1)),
    Option("autoCreateTopics", "`true`, in a broker's own directory `false`", _BOOLEAN,
           "Whether missing topics are created; a broker puts aside topics that it does not "
           "know", boolean),
    *_of_all_dialects(
        ProducerConfig, "use_timestamps", "use_timestamp_types", "use_offsets"
    ),
    Option("preserve", "`false`", _BOOLEAN, "Keeps everything that a read returns: "
           "`includeTimestamp`, `includeTimestampType` and `includeOffset` are then `true` "
           "unless they are given", boolean),
    Option("deleteRecords", "`false`", _BOOLEAN, "Required by `mode(\"overwrite\")`: "
           "the topic's earlier records are deleted when the job's records become visible",
           boolean),
    Option("kafka.compression.type", "`none`", "`none`, `gzip`, `snappy`, `lz4` or `zstd`",
           "Codec of the record batches", _codec),
    Option("kafka.compression.gzip.level", "`-1`", "`-1`, or `1` to `9`", "Effort of gzip; -1 is "
           "zlib's default", partial(_level, Codec.GZIP)),
    Option("kafka.compression.lz4.level", "`9`", "`1` to `17`", "Effort of lz4",
           partial(_level, Codec.LZ4)),
    Option("kafka.compression.zstd.level", "`3`", "`-131072` to `22`", "Effort of zstd",
           partial(_level, Codec.ZSTD)),
    *_of_all_dialects(ProducerConfig, "batch_size", "buffer_memory"),
    Option("kafka.max.request.size", "no limit", "bytes, or a size such as `1m`; 0 for no limit",
           "Largest record batch; `max.message.bytes` and `segment.bytes` bound it as well",
           size(zero=True)),
    *TOPIC_SETTINGS,
    Option("flush", "`commit`", "`commit` or `none`", "`commit`: everything is on the disk "
           "before a write succeeds; `none`: the operating system writes it to the disk later, "
           "as with brokers",
           one_of(Flush)),
    *_of_all_dialects(ProducerConfig, "max_bytes_per_second"),
    Option("lockTimeout", "`60`", "seconds, from 0", "How long to wait for another writer; a job "
           "does not wait for a broker", number(0)),
    Option("txnAppId", "none", "a name", "With `txnVersion`: the name of the writing application; "
           "a topic that already has this version or a later version of this application is left "
           "out", _name),
    Option("txnVersion", "none", "a number from 0", "With `txnAppId`: the number of the write, "
           "higher than the number of the earlier write", number(0)),
    Option("checkpointLocation", "required in `writeStream`", "a path", "Spark's own option of a "
           "query; it names the stream, so it has to be given with the query and not only as a "
           "setting of Spark"),
)  # fmt: skip
