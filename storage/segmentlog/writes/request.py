"""The request of a write: one value for each way in, checked before anything is created.

A warning names the columns of a log's rows that the write leaves out: legal, and easily
overlooked.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field

from segmentlog.arguments import whole_number
from segmentlog.errors import OptionError
from segmentlog.format.names import check_topic_name
from segmentlog.model import LOCK_TIMEOUT_SECONDS, Codec
from segmentlog.store.paths import writable_path
from segmentlog.txn.repeated_writes import NumberedWrite
from segmentlog.txn.topics import MOST_PARTITIONS
from segmentlog.writes.config import ProducerConfig


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """A write to a log directory, as `segmentlog.open_writer` or Spark asks for it.

    It is small and picklable, because it travels to every task as a part of its job.

    Raises `OptionError` if Kafka does not allow the topic's name, or this number of partitions; if
    a write that overwrites names no topic.  Raises `LogDirectoryError` if the path cannot be one.
    """

    directory: str  # absolute path of the log directory; the path of a user is made absolute
    config: ProducerConfig = field(default_factory=ProducerConfig)  # how rows become batches
    _: KW_ONLY
    topic: str | None = None  # of all rows, or None to take the column ``topic``
    #: of topics that are created; an existing `topic` must have this number.  By default one, or
    #: the partitions that rows with offsets of their own name.
    num_partitions: int | None = None
    #: whether missing topics are created; by default they are, except in a broker's own directory,
    #: where the broker would not know them
    auto_create_topics: bool | None = None
    lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS  # how long to wait for another writer
    numbered: NumberedWrite | None = None  # name and version of a numbered write
    #: name of the stream if the job writes one of its batches; earlier jobs of the stream end when
    #: this job begins
    stream: str | None = None
    overwrite: bool = False  # whether the records replace all earlier records of `topic`

    def __post_init__(self) -> None:
        object.__setattr__(self, "directory", writable_path(self.directory))
        if self.num_partitions is not None:
            whole_number("num_partitions", self.num_partitions, 1, MOST_PARTITIONS)
        if self.topic is not None:
            check_topic_name(self.topic)
        elif self.overwrite:
            raise OptionError("topic", "", "name the topic whose records are to be deleted")


def check_level(codec: Codec, level: int) -> None:
    """Refuse a level of compression that a codec does not have.

    Raises `OptionError` with the levels that the codec has.
    """
    from segmentlog.format.records.deflater import Deflater  # its libraries load only for a level

    Deflater(codec, level)


def columns_left_out(
    directory: str, names: Sequence[str], config: ProducerConfig, *, keeps: str, reads: str
) -> list[str]:
    """Warnings that name the columns of a log that are lost, and the settings that keep them.

    Rows that were read and are written back look complete: they have all columns of a log.  But
    offsets and times are the new log's own unless a setting keeps them, as in Kafka's sink.

    `keeps`, `reads`: how the caller's users keep all columns, and how they read headers.
    """
    taken = {
        "timestamp": config.use_timestamps,
        "timestampType": config.use_timestamp_types,
        "offset": config.use_offsets,
    }
    found = []
    lost = [name for name, is_taken in taken.items() if name in names and not is_taken]
    if lost:
        chosen = (
            "; their column partition is used, and chooses the partitions instead of the keys: "
            "drop it, too, if the topic is not the one that was read"
            if "partition" in names
            else ""
        )
        found.append(
            f"{directory}: the rows have {', '.join(lost)}, which this write does not keep: "
            "records get the time of writing and new offsets; give "
            f"{keeps} to keep these columns, or drop them{chosen}"
        )
    if taken.keys() <= set(names) and "headers" not in names:
        found.append(
            f"{directory}: the rows come from a log and have no column headers: headers of the "
            f"records, if there are any, are lost; {reads} reads headers"
        )
    return found
