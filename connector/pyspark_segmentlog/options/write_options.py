"""Options of a write: strings in, a checked request for the engine out."""

from collections.abc import Mapping

from pyspark_segmentlog.options.names import check_write_names
from pyspark_segmentlog.options.option import GivenOptions
from pyspark_segmentlog.options.reference import TOPIC_SETTINGS, WRITE_OPTIONS, Flush
from segmentlog import ProducerConfig, TopicConfig
from segmentlog.errors import OptionError
from segmentlog.model import Codec
from segmentlog.writes import NumberedWrite, WriteRequest

_NO_PATH = (
    "name a log directory in each write, because Spark passes no options of a table to a write: "
    'df.write.format("segmentlog").mode("append").option("topic", "orders").save("/data/logs"); '
    "or in SQL INSERT INTO t WITH (path '/data/logs', topic 'orders') SELECT …"
)

_LARGEST_INT = 2**31 - 1  # of Java's: no batch can have more bytes


_NO_CHECKPOINT = (
    'give it as an option of the query: .option("checkpointLocation", "/checkpoints/orders"); '
    "the setting spark.sql.streaming.checkpointLocation does not reach a sink, and the sink "
    "needs the location to end the jobs that a killed run of the query has begun"
)


def write_request(raw: Mapping[str, str], *, is_stream: bool = False) -> WriteRequest:
    """The write that Spark's option strings ask for; names in any case.

    Raises `OptionError` for the first option that is unknown, or whose value is not accepted;
    `LogDirectoryError` if the path cannot be one.
    """
    check_write_names(raw)
    given = GivenOptions(raw, WRITE_OPTIONS)
    if "path" not in given:
        raise OptionError("path", "", _NO_PATH)
    _check_stream(given, is_stream=is_stream)
    return WriteRequest(
        given["path"],
        _config(given),
        topic=given["topic"],
        num_partitions=given["numPartitions"],
        auto_create_topics=given["autoCreateTopics"],
        lock_timeout_seconds=given["lockTimeout"],
        numbered=_numbered(given),
        stream=given["checkpointLocation"],
        overwrite=given["deleteRecords"],
    )


def _check_stream(given: GivenOptions, *, is_stream: bool) -> None:
    if is_stream and "checkpointLocation" not in given:
        raise OptionError("checkpointLocation", "", _NO_CHECKPOINT)
    if not is_stream and "checkpointLocation" in given:
        accepted = "it is an option of streams: use writeStream, or leave it out"
        raise OptionError("checkpointLocation", given["checkpointLocation"], accepted)
    if is_stream and "txnAppId" in given:
        accepted = "leave txnAppId and txnVersion out: a stream numbers its batches by itself"
        raise OptionError("txnAppId", given["txnAppId"], accepted)


def _config(given: GivenOptions) -> ProducerConfig:
    names = [option.name for option in TOPIC_SETTINGS if option.name in given]
    topic_config = TopicConfig.parse({name: given.texts[name] for name in names})
    codec: Codec = given["kafka.compression.type"]
    of_topic = topic_config.compression_type
    config = ProducerConfig(
        topic_config=topic_config,
        codec=codec,
        level=_level(codec if of_topic is None else of_topic, given),
        batch_size=min(given["kafka.batch.size"], _LARGEST_INT),
        buffer_memory=given["kafka.buffer.memory"],
        max_request_size=given["kafka.max.request.size"] or None,
        use_timestamps=_kept("includeTimestamp", given),
        use_timestamp_types=_kept("includeTimestampType", given),
        use_offsets=_kept("includeOffset", given),
        flush=given["flush"] == Flush.COMMIT,
        max_bytes_per_second=given["maxBytesPerSecond"],
    )
    if config.use_timestamp_types and not config.use_timestamps:
        raise OptionError("includeTimestampType", "true", "give includeTimestamp=true as well")
    return config


def _kept(name: str, given: GivenOptions) -> bool:
    """Whether a column is used: as its own option says, or else as ``preserve`` says."""
    return bool(given[name if name in given else "preserve"])


def _level(codec: Codec, given: GivenOptions) -> int | None:
    """The level of the codec; as in Kafka's producer, levels of other codecs have no effect."""
    name = f"kafka.compression.{codec.name.lower()}.level"
    has_levels = name in {option.name for option in WRITE_OPTIONS}
    return int(given[name]) if has_levels and name in given else None


def _numbered(given: GivenOptions) -> NumberedWrite | None:
    names = ("txnAppId", "txnVersion")
    missing = [name for name in names if name not in given]
    if len(missing) == len(names):
        return None
    if missing:
        accepted = "txnAppId and txnVersion go together: give both or neither"
        raise OptionError(missing[0], "", accepted)
    return NumberedWrite(given["txnAppId"], given["txnVersion"])
