"""Options of a read: strings in, one frozen, checked value out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from pyspark_segmentlog.options.bounds import LastDuration, LastRecords, check_order
from pyspark_segmentlog.options.names import check_read_names
from pyspark_segmentlog.options.offsets import EARLIEST, LATEST, OffsetBound, is_checkpoint
from pyspark_segmentlog.options.option import GivenOptions, Query
from pyspark_segmentlog.options.reference import READ_OPTIONS, PartitionAssignor
from pyspark_segmentlog.options.timestamps import TimestampBound
from segmentlog import LogDirectory, open_log_dir, open_replicas, read_options
from segmentlog.declared import those_of
from segmentlog.errors import OptionError, SegmentLogError
from segmentlog.model import OnInvalidUtf8, ReadUpTo, Replicas, ScanPolicy, TopicPartition
from segmentlog.read_options import DECODES, DecodeOptions, FormOptions, scan_policy
from segmentlog.reads import tiered_paths

Start: TypeAlias = OffsetBound | TimestampBound | LastRecords | LastDuration
End: TypeAlias = OffsetBound | TimestampBound

#: Options that select topics; at most one is given.
_STRATEGIES = ("subscribe", "subscribePattern", "assign")

#: Options that say where a read starts or ends, in the order of their precedence.
_STARTS = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
_ENDS = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
_RELATIVE = ("lastRecords", "lastDuration")

#: Groups of options of which a read uses one: a query's replace all those of its table.
ALTERNATIVES = (_STRATEGIES, (*_STARTS, *_RELATIVE), _ENDS)

#: Ending options that a stream refuses; ``kafka`` refuses these, too, and ignores the third.
_NOT_IN_STREAMS = ("endingOffsets", "endingOffsetsByTimestamp")

#: The end of the message to a user who has named no path.
NO_PATH = (
    "name a Kafka log directory: load('/var/lib/kafka'); or in SQL CREATE TABLE t USING "
    "segmentlog OPTIONS (path '/var/lib/kafka'), without a list of columns and without "
    "saveAsTable: Spark passes a table's options to a data source only when Spark asks that data "
    "source for the columns"
)


@dataclass(frozen=True, slots=True)
class Triggers:
    """The options of a stream that decide on its micro-batches."""

    #: bounds of a micro-batch, or None
    max_offsets: int | None
    min_offsets: int | None
    max_bytes: int | None
    max_delay_ms: int  # how long a micro-batch waits for `min_offsets`; 0 without such a bound
    initial_offsets_location: str | None  # directory of the file with the initial offsets, or None
    topic_ids_in_checkpoint: bool  # whether offsets that Spark keeps contain the ids of topics
    poll_interval_ms: int  # time between two looks that are expensive

    @classmethod
    def parse(cls, given: GivenOptions) -> "Triggers":
        """Check the options of a stream."""
        least, most = given["minOffsetsPerTrigger"], given["maxOffsetsPerTrigger"]
        if least and most and least > most:
            accepted = f"maxOffsetsPerTrigger is {most}: give that number or a smaller one"
            raise OptionError("minOffsetsPerTrigger", str(least), accepted)
        return cls(
            max_offsets=most,
            min_offsets=least,
            max_bytes=given["maxBytesPerTrigger"],
            max_delay_ms=given["maxTriggerDelay"] if least else 0,
            initial_offsets_location=given["initialOffsetsLocation"],
            topic_ids_in_checkpoint=given["topicIdsInCheckpoint"],
            poll_interval_ms=given["pollInterval"],
        )


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read, checked; small, because they travel to every task."""

    #: as the user wrote them; with a tier, in the form that holds both
    paths: tuple[str, ...] = field(repr=False)  # credentials may stand in a URL
    #: how directories of several brokers are read
    replicas: Replicas
    include_deleted_topics: bool
    #: at most one is set; without any, all topics are read
    subscribe: tuple[str, ...]
    subscribe_pattern: str | None
    assign: tuple[TopicPartition, ...]
    #: by the option of the highest precedence, not yet resolved
    start: Start
    end: End
    late_binding: bool
    include_headers: bool
    strings: bool
    fail_on_data_loss: bool
    read_up_to: ReadUpTo
    min_partitions: int | None
    max_records_per_partition: int | None
    max_bytes_per_partition: int  # 0 for no cuts by bytes
    max_partitions: int | None
    partition_assignor: PartitionAssignor  # how at most `max_partitions` tasks share the slices
    decode: DecodeOptions  # keys and values as columns of their schemas; not yet resolved
    policy: ScanPolicy  # without the form of rows, which each query decides
    on_invalid_utf8: OnInvalidUtf8
    triggers: Triggers | None  # of a stream; None in a batch query

    @classmethod
    def parse(cls, raw: Mapping[str, str], query: Query | None = None) -> "ReadOptions":
        """Check Spark's options, names in any case; `query` is None where Spark names no kind."""
        check_read_names(raw)
        given = GivenOptions(raw, READ_OPTIONS)
        _refuse_tables(given)
        _check_one(_STRATEGIES, given)
        paths: tuple[str, ...] = (given["path"],) if "path" in given else ()
        paths += given["paths"] or ()
        if not paths and "remoteStorage" not in given:
            raise OptionError("path", "", NO_PATH)
        paths = _with_tier(paths, given)
        start, end = _start(given, query), _end(given, query)
        check_order(start, end)
        values = {
            name: given[option.in_spark]
            for name, option in read_options.READ_OPTIONS.items()
            if option.is_row_of_spark
        }
        return cls(
            paths=paths,
            replicas=given["replicas"],
            include_deleted_topics=given["includeDeletedTopics"],
            subscribe=given["subscribe"] or (),
            subscribe_pattern=given["subscribePattern"],
            assign=given["assign"] or (),
            start=start,
            end=end,
            late_binding=query != Query.STREAM and given["lateBinding"],
            strings=given["strings"],
            include_headers=given["includeHeaders" if "includeHeaders" in given else "preserve"],
            fail_on_data_loss=given["failOnDataLoss"],
            read_up_to=given["readUpTo"],
            min_partitions=given["minPartitions"],
            max_records_per_partition=given["maxRecordsPerPartition"],
            max_bytes_per_partition=given["maxBytesPerPartition"],
            max_partitions=_max_partitions(given),
            partition_assignor=given["partitionAssignor"],
            decode=those_of(DecodeOptions, values),
            policy=scan_policy(
                {n: each for n, each in values.items() if n not in FormOptions.__annotations__}
            ),
            on_invalid_utf8=given["onInvalidUtf8"],
            triggers=Triggers.parse(given) if query == Query.STREAM else None,
        )

    @property
    def asks_for_decoding(self) -> bool:
        """Whether an option is given that has a meaning only if keys or values are decoded."""
        given: Mapping[str, object] = self.decode
        return any(given[name] is not None for name in DECODES)

    def open_directory(self) -> LogDirectory:
        """The log directories as they are now."""
        if self.replicas != Replicas.RECONCILE:
            return open_log_dir(*self.paths)
        return open_replicas(*self.paths, include_deleted_topics=self.include_deleted_topics)

    def follows_retention(self, topic_partition: TopicPartition) -> bool:
        """Whether the read of a partition starts at whatever offset is earliest when it runs."""
        # A stream starts at offsets that were looked up before, and that its checkpoint has.
        start = self.start if self.triggers is None else None
        return isinstance(start, OffsetBound) and start.asked(topic_partition) == EARLIEST


def _with_tier(paths: tuple[str, ...], given: GivenOptions) -> tuple[str, ...]:
    """The log directories, each with the tier if there is one."""
    tier = given["remoteStorage"]
    if tier is None:
        for name in ("remoteStorageLayout", "remoteStorageKeyFile"):
            if name in given:
                raise OptionError(name, "", "it belongs to remoteStorage, which is not given")
        return paths
    made = tiered_paths(
        paths,
        tier,
        given["remoteStorageLayout"],
        given["remoteStorageKeyFile"],
        fail_on_data_loss=given["failOnDataLoss"],
    )
    return tuple(map(str, made))


def _max_partitions(given: GivenOptions) -> int | None:
    least, most = given["minPartitions"], given["maxPartitions"]
    if least and most and least > most:
        accepted = (
            f"minPartitions asks for at least {least} tasks: give {least} or more, or only one "
            "of the two options"
        )
        raise OptionError("maxPartitions", str(most), accepted)
    return most if most is None else int(most)


def _refuse_tables(given: GivenOptions) -> None:
    """Refuse options of tables, which `TableOptions` has, in a read of records."""
    for name, accepted in (
        ("table", "a stream reads records: read a table with spark.read"),
        ("history", "it is an option of tables: give the option table, too"),
        ("strict", "it is an option of tables: give the option table, too"),
    ):
        if name in given:
            raise OptionError(name, given.texts[name], accepted)


def _check_one(names: tuple[str, ...], given: GivenOptions) -> None:
    used = [name for name in names if name in given]
    if len(used) > 1:
        accepted = f"{used[1]} is also given: give only one of {', '.join(names)}"
        raise OptionError(used[0], given.texts[used[0].lower()], accepted)


def _first(names: tuple[str, ...], given: GivenOptions) -> str:
    """The option of the highest precedence; others are not even parsed, as by ``kafka``."""
    return next((name for name in names if name in given), names[-1])


def _end(given: GivenOptions, query: Query | None) -> End:
    """The end of a batch query; a stream has none."""
    if query != Query.STREAM and any(name in given for name in _ENDS):
        end: End = given[_first(_ENDS, given)]
        if isinstance(end, OffsetBound) and not end.is_checkpoint:
            end.refuse(EARLIEST)  # a checkpoint has it for partitions that its query has not read
        return end
    for name in _NOT_IN_STREAMS:
        if name in given:
            accepted = "a stream has no end: leave it out, or read with spark.read"
            raise OptionError(name, given.texts[name.lower()], accepted)
    return OffsetBound.parse("", "latest")  # no error may name an option that is not given


def _start(given: GivenOptions, query: Query | None) -> Start:
    no_match = given["startingOffsetsByTimestampStrategy"]
    relative = [name for name in _RELATIVE if name in given]
    if relative:
        _check_one((*_RELATIVE, *_STARTS), given)
        start = given[relative[0]]
        return LastRecords(start) if relative == ["lastRecords"] else start
    name = _first(_STARTS, given)
    try:
        start = given[name]
    except SegmentLogError as error:
        text = given.texts.get(name.lower(), "")
        if query == Query.BATCH or not is_checkpoint(text):
            raise
        return OffsetBound(name, text, is_checkpoint=True, error=error)
    if start is None:
        word = "latest" if query == Query.STREAM else "earliest"
        return OffsetBound.parse("startingOffsets", word)
    if isinstance(start, TimestampBound):
        return start.with_no_match(no_match)
    if query == Query.BATCH:
        start.refuse(LATEST)
    return start  # type: ignore[no-any-return]
