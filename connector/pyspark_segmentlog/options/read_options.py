"""Options of a read: strings in, one frozen, checked value out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from pyspark_segmentlog.options.bounds import LastDuration, LastRecords, check_order
from pyspark_segmentlog.options.names import check_read_names
from pyspark_segmentlog.options.offsets import EARLIEST, OffsetBound
from pyspark_segmentlog.options.option import GivenOptions
from pyspark_segmentlog.options.reference import READ_OPTIONS, PartitionAssignor
from pyspark_segmentlog.options.timestamps import TimestampBound
from segmentlog.errors import OptionError
from segmentlog.model import OnInvalidUtf8, ReadUpTo, ScanPolicy, TopicPartition

__all__ = ["STRATEGIES", "ReadOptions"]

Start: TypeAlias = OffsetBound | TimestampBound | LastRecords | LastDuration
End: TypeAlias = OffsetBound | TimestampBound

#: Options that select topics; at most one is given.
STRATEGIES = ("subscribe", "subscribePattern", "assign")

#: Options that say where a read starts or ends, in the order of their precedence.
_STARTS = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
_ENDS = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
_RELATIVE = ("lastRecords", "lastDuration")


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
    late_binding, include_headers, strings, fail_on_data_loss, read_up_to, min_partitions,
    on_invalid_utf8 : as the options of these names.
    max_records_per_partition, max_partitions : or None.
    partition_assignor : how at most `max_partitions` tasks share the slices.
    max_bytes_per_partition : 0 for no cuts by bytes.
    policy : isolation level, treatment of corrupt batches, the bound of inflating, the limit of
        bytes a second, and the care for the page cache.
    """

    paths: tuple[str, ...]
    subscribe: tuple[str, ...]
    subscribe_pattern: str | None
    assign: tuple[TopicPartition, ...]
    start: Start
    end: End
    late_binding: bool
    include_headers: bool
    strings: bool
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
        check_read_names(raw)
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
            strings=given["strings"],
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
                max_bytes_per_second=given["maxBytesPerSecond"],
                spare_page_cache=given["sparePageCache"],
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
