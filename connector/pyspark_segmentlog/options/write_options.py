"""Options of a write: strings in, one frozen, checked value out; `WRITE_OPTIONS` lists them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_segmentlog.options.option import (
    Option,
    parse_boolean,
    parse_size,
    refuse_client_option,
    unknown_option,
)
from pyspark_segmentlog.options.read_options import is_of_reads
from segmentlog.commit.sink_versions import SinkVersion
from segmentlog.commit.topics import check_topic_name
from segmentlog.disk.paths import local_path
from segmentlog.errors import OptionError
from segmentlog.model import BATCH_SIZE, Codec
from segmentlog.records.deflater import Deflater
from segmentlog.stage.config import BUFFER_MEMORY, ProducerConfig
from segmentlog.topic_config import TopicConfig

__all__ = ["WRITE_OPTIONS", "WriteOptions"]

WRITE_OPTIONS = (
    Option("path", "required", "a path", "The log directory to append to, on a file system that "
           "all machines share; what `save(path)` sets"),
    Option("topic", "the column `topic`", "a topic's name", "Topic of all rows; comes before the "
           "column"),
    Option("numPartitions", "`1`", "a number from 1", "Number of partitions of a topic "
           "that the job creates when it commits; if `topic` exists, it must have this number"),
    Option("autoCreateTopics", "`true`, in a broker's own directory `false`", "`true` or `false`",
           "Whether topics that are missing are created; a broker moves topics that it does not "
           "know aside"),
    Option("includeTimestamp", "`false`", "`true` or `false`", "Takes the column `timestamp`; "
           "otherwise records get the time of writing, as from the `kafka` sink"),
    Option("includeTimestampType", "`false`", "`true` or `false`", "Takes the column "
           "`timestampType` as well: rows of type 1 keep `timestamp` as the time of appending"),
    Option("includeOffset", "`false`", "`true` or `false`", "Takes the columns `partition` and "
           "`offset`: records keep the offsets that they had, to restore a log"),
    Option("preserve", "`false`", "`true` or `false`", "Keeps all that rows of a log have: "
           "`includeTimestamp`, `includeTimestampType` and `includeOffset` are then `true` unless "
           "they are given"),
    Option("deleteRecords", "`false`", "`true` or `false`", "What `mode(\"overwrite\")` asks "
           "for: the topic's earlier records go when those of the job come"),
    Option("kafka.compression.type", "`none`", "`none`, `gzip`, `snappy`, `lz4` or `zstd`",
           "Codec of the record batches"),
    Option("kafka.compression.gzip.level", "`-1`", "`-1`, or `1` to `9`", "Effort of gzip; -1 is "
           "zlib's default"),
    Option("kafka.compression.lz4.level", "`9`", "`1` to `17`", "Effort of lz4"),
    Option("kafka.compression.zstd.level", "`3`", "`-131072` to `22`", "Effort of zstd"),
    Option("kafka.batch.size", "`131072`", "bytes, or a size such as `64k`", "Size of a record "
           "batch before compression"),
    Option("kafka.buffer.memory", "`32m`", "bytes, or a size such as `64m`", "Rows that a task "
           "holds before it writes batches"),
    Option("kafka.max.request.size", "no limit", "bytes, or a size such as `1m`", "Largest record "
           "batch, beside `max.message.bytes` and `segment.bytes`"),
    Option("segment.bytes", "`1073741824`", "a number", "Size at which a segment rolls"),
    Option("segment.ms", "`604800000`", "a number", "Age, in record time, at which it rolls"),
    Option("segment.index.bytes", "`10485760`", "a number", "Size of an index at which it rolls"),
    Option("index.interval.bytes", "`4096`", "a number", "Bytes from index entry to index entry"),
    Option("max.message.bytes", "`1048588`", "a number", "Largest record batch"),
    Option("compression.type", "`producer`", "`producer`, `uncompressed` or a codec", "Of the "
           "topic: unless `producer`, it comes before `kafka.compression.type`"),
    Option("message.timestamp.type", "`CreateTime`", "`CreateTime` or `LogAppendTime`",
           "Whose timestamps the records have; the latter is the time of writing, also with "
           "`includeTimestamp`"),
    Option("flush", "`commit`", "`commit` or `none`", "Whether everything is on the disk before "
           "a write succeeds, or left to the page cache as brokers do"),
    Option("flush.messages", "no limit", "a number from 1", "With `flush=none`: a job with at "
           "least this many records is synced anyway"),
    Option("lockTimeout", "`60`", "seconds", "How long to wait for another writer or a broker"),
    Option("txnAppId", "none", "a name", "With `txnVersion`: a topic to which this version, or a "
           "later one, was committed under this name is left out"),
    Option("txnVersion", "none", "a number from 0", "See `txnAppId`"),
)  # fmt: skip

_CONFIG = {"segment.bytes", "segment.ms", "segment.index.bytes", "index.interval.bytes",
           "max.message.bytes", "message.timestamp.type", "compression.type",
           "flush.messages"}  # fmt: skip

#: Options of the ``kafka`` sink that mean nothing without a broker, and change no row.
_IGNORED = {"includeheaders"}

_NO_PATH = (
    "name a log directory at each write, for Spark hands no table's options on to one: "
    'df.write.format("segmentlog").mode("append").option("topic", "orders").save("/data/logs"); '
    "or in SQL INSERT INTO t WITH (path '/data/logs', topic 'orders') SELECT …"
)

_OF_READS = (
    "it is an option of reads, and a write takes none: it names its topic with the option topic; "
    "in SQL, INSERT INTO a view that is made for it: CREATE TEMPORARY VIEW sink (key STRING, "
    "value STRING) USING segmentlog OPTIONS (path '/data/logs', topic 'orders')"
)

_LARGEST_INT = 2**31 - 1  # of Java's: no batch can have more bytes

_FORBIDDEN = {
    "key.serializer": "keys are written as they are; convert them with DataFrame operations",
    "value.serializer": "values are written as they are; convert them with DataFrame operations",
}


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write, checked.

    Attributes
    ----------
    directory : absolute path.
    topic, num_partitions, auto_create_topics, lock_timeout_seconds : options of these names.
    config : how rows become batches.
    deletes_records : whether the write overwrites.
    sink : ``txnAppId`` and ``txnVersion``, if given; they count for each topic separately.
    """

    directory: str
    topic: str | None
    num_partitions: int | None
    auto_create_topics: bool | None
    lock_timeout_seconds: float
    config: ProducerConfig
    deletes_records: bool
    sink: SinkVersion | None

    @classmethod
    def parse(cls, raw: Mapping[str, str]) -> "WriteOptions":
        """Check Spark's option strings; names in any case.

        Raises
        ------
        OptionError
            For the first option that is unknown, or whose value is not accepted.
        """
        given = {name.lower(): value for name, value in raw.items()}
        names = [option.name for option in WRITE_OPTIONS]
        known = {name.lower() for name in names}
        for name, value in raw.items():
            lowered = name.lower()
            if lowered.startswith("kafka."):
                refuse_client_option(lowered.removeprefix("kafka."), value, _FORBIDDEN)
            elif lowered not in known and lowered not in _IGNORED:
                if is_of_reads(lowered):
                    raise OptionError(name, value, _OF_READS)
                raise unknown_option(name, value, names)
        if "path" not in given:
            raise OptionError("path", "", _NO_PATH)
        topic = given.get("topic", "").strip() or None
        if "topic" in given:
            check_topic_name(topic or "")
        creates = None
        if "autocreatetopics" in given:
            creates = parse_boolean("autoCreateTopics", given, default=False)
        return cls(
            directory=local_path(given["path"]),
            topic=topic,
            num_partitions=(
                _number("numPartitions", given, 1, least=1) if "numpartitions" in given else None
            ),
            auto_create_topics=creates,
            lock_timeout_seconds=_number("lockTimeout", given, 60, least=0),
            config=_config(given),
            deletes_records=parse_boolean("deleteRecords", given, default=False),
            sink=_sink(given),
        )


def _config(given: Mapping[str, str]) -> ProducerConfig:
    settings = {name: given[name] for name in _CONFIG & given.keys()}
    flush = given.get("flush", "commit").strip().lower()
    if flush not in {"commit", "none"}:
        raise OptionError("flush", given["flush"], "give commit or none")
    topic_config, codec = TopicConfig.parse(settings), _codec(given)
    used = codec if topic_config.compression_type is None else topic_config.compression_type
    zero = "the smallest batches"
    preserves = parse_boolean("preserve", given, default=False)
    config = ProducerConfig(
        topic_config=topic_config,
        codec=codec,
        level=_level(used, given),
        batch_size=min(
            parse_size("kafka.batch.size", given, default=BATCH_SIZE, zero=zero), _LARGEST_INT
        ),
        buffer_memory=parse_size("kafka.buffer.memory", given, default=BUFFER_MEMORY),
        max_request_size=parse_size("kafka.max.request.size", given, default=0, zero="no limit")
        or None,
        use_timestamps=parse_boolean("includeTimestamp", given, default=preserves),
        use_timestamp_types=parse_boolean("includeTimestampType", given, default=preserves),
        use_offsets=parse_boolean("includeOffset", given, default=preserves),
        flush=flush == "commit",
    )
    if config.use_timestamp_types and not config.use_timestamps:
        raise OptionError("includeTimestampType", "true", "give includeTimestamp=true as well")
    return config


def _codec(given: Mapping[str, str]) -> Codec:
    name = given.get("kafka.compression.type", "none").strip().upper()
    if name not in Codec.__members__:
        accepted = f"give {', '.join(codec.name.lower() for codec in Codec)}"
        raise OptionError("kafka.compression.type", given["kafka.compression.type"], accepted)
    return Codec[name]


def _level(codec: Codec, given: Mapping[str, str]) -> int | None:
    """The level of the codec; as in Kafka's producer, levels of other codecs have no effect."""
    name = f"kafka.compression.{codec.name.lower()}.level"
    text = given.get(name)
    if text is None or name not in {option.name for option in WRITE_OPTIONS}:
        return None
    if re.fullmatch(r"-?[0-9]{1,9}", text.strip()) is None:
        raise OptionError(name, text, "give a number")
    try:
        Deflater(codec, int(text))
    except OptionError as error:  # the codec has no such level
        raise OptionError(name, text, error.accepted) from error
    return int(text)


def _sink(given: Mapping[str, str]) -> SinkVersion | None:
    app_id, version = given.get("txnappid"), given.get("txnversion")
    if app_id is None and version is None:
        return None
    if app_id is None or version is None:
        missing = "txnAppId" if app_id is None else "txnVersion"
        raise OptionError(missing, "", "txnAppId and txnVersion go together: give both or neither")
    return SinkVersion(app_id, _number("txnVersion", given, 0, least=0))


def _number(name: str, given: Mapping[str, str], default: int, *, least: int) -> int:
    text = given.get(name.lower())
    if text is None:
        return default
    is_number = re.fullmatch(r"[0-9]{1,19}", text.strip()) is not None
    if not is_number or not least <= int(text) < 2**63:
        raise OptionError(name, text, f"give a whole number, {least} or more")
    return int(text)
