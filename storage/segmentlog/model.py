"""Small values that all floors share, with Kafka's names."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, timedelta
from enum import IntEnum, StrEnum
from typing import NamedTuple, TypeAlias, overload

#: Times that are bounds of a read; `segmentlog.times` says which.
Time: TypeAlias = datetime | date | timedelta | int | str

#: Topics that brokers keep for themselves; no subscription selects them
#: (``org.apache.kafka.common.internals.Topic``).
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})

#: KRaft's own log; the loader of a broker ignores it in a log directory.
METADATA_TOPIC = "__cluster_metadata"

#: Java's bounds of offsets and times, which files and protocols have.
LEAST_LONG, LARGEST_LONG = -(2**63), 2**63 - 1

#: Bytes of a batch before compression.  Kafka's producer takes 16 KiB, for low latency.
BATCH_SIZE = 128 << 10

#: Kafka's default of ``max.message.bytes``.
MAX_MESSAGE_BYTES = (1 << 20) + 12

#: Kafka's default of ``index.interval.bytes``.
INDEX_INTERVAL_BYTES = 4096

#: Columns of bytes that a reader may also have as text.
BYTES_OR_TEXT = ("key", "value")

#: How long to wait for another writer of a directory, by default.
LOCK_TIMEOUT_SECONDS = 60.0

#: Most bytes that one batch may inflate to, by default.
MAX_INFLATED_BATCH_BYTES = 256 << 20


class TopicPartition(NamedTuple):
    """One partition of one topic, written ``topic-partition``, like its directory."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class OffsetRange(NamedTuple):
    """Offsets at or after `start_offset`, below `end_offset`."""

    start_offset: int
    end_offset: int


ALL_OFFSETS = OffsetRange(LEAST_LONG, LARGEST_LONG)


class TimestampRange(NamedTuple):
    """Timestamps in epoch milliseconds, at or after `start_ms`, before `end_ms`."""

    start_ms: int
    end_ms: int


class TimestampType(IntEnum):
    """Origin of a record's timestamp (``org.apache.kafka.common.record.TimestampType``)."""

    NO_TIMESTAMP_TYPE = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class Codec(IntEnum):
    """Compression of a record batch, by the number in its attributes (``CompressionType``)."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class IsolationLevel(StrEnum):
    """Records of transactions that a reader sees (``org.apache.kafka.common.IsolationLevel``)."""

    READ_UNCOMMITTED = "read_uncommitted"  #: everything
    READ_COMMITTED = "read_committed"  #: committed records, up to the last stable offset


class ReadUpTo(StrEnum):
    """The end of a read of the newest data."""

    HIGH_WATERMARK = "highWatermark"
    LOG_END = "logEnd"


class RemoteStorageLayout(StrEnum):
    """The plugin that has arranged the remote segments of tiered storage."""

    LOCAL = "local"  #: Kafka's own ``LocalTieredStorage``
    AIVEN = "aiven"  #: ``io.aiven.kafka.tieredstorage.RemoteStorageManager``


class Replicas(StrEnum):
    """The treatment of a partition that several log directories hold."""

    REFUSE = "refuse"
    RECONCILE = "reconcile"  #: they are of brokers of a cluster: read what the cluster would serve


class RecoverAt(StrEnum):
    """The treatment of a corrupt batch by `segmentlog.recover`."""

    CUT = "cut"  #: the log ends there, as a starting broker ends it
    SKIP = "skip"  #: only the bad bytes are left out, and the good batches after them stay


class OnCorruptBatch(StrEnum):
    """The behaviour of a scan at a corrupt batch."""

    FAIL = "fail"
    SKIP = "skip"  #: continue after it, and log the offsets that are left out


class OnInvalidUtf8(StrEnum):
    """The treatment of bytes that are requested as text, and are not UTF-8."""

    FAIL = "fail"
    NULL = "null"
    REPLACE = "replace"  #: with U+FFFD in place of the bad bytes, as in Java


class OnUndecodable(StrEnum):
    """What happens to a row whose key or value cannot be decoded."""

    FAIL = "fail"
    NULL = "null"
    SKIP = "skip"


class ValueFrame(StrEnum):
    """Whose frames keys or values have: what stands before them names their schema."""

    CONFLUENT = "confluent"
    APICURIO = "apicurio"
    GLUE = "glue"
    NONE = "none"


class ScanPolicy(NamedTuple):
    """The rules for reading a slice, the same for all slices of a read.

    With `timestamps`, batches are left out if their headers show that no record is in the range.
    Other batches are returned with all of their records.  With `needle`, batches whose records do
    not have these bytes may be left out.  The columns of `text`, some of
    `BYTES_OR_TEXT`, are strings; `on_invalid_utf8` applies to them.  At most
    `max_bytes_per_second` of a log directory's ``.log`` files are read, by all processes of the
    user on this machine together; None for no limit.  With `spare_page_cache`, pages of files
    that the read brings into the page cache do not stay there.  Without `check_crcs`, rows
    are counted by the headers of batches, whose checksums are not checked, if no column is read
    but the topic, the partition and the timestamp type.  `ended` are open transactions that
    count as aborted, by producer id and first offset.  With `in_milliseconds`, timestamps are
    integers as they are stored, which hold every time; microseconds do not.  With
    `header_names_as_bytes`, names of headers are the bytes that are stored; as text, bytes that
    are not UTF-8 become U+FFFD, as in a Java consumer, and different names become equal.
    """

    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    on_corrupt_batch: OnCorruptBatch = OnCorruptBatch.FAIL
    max_inflated_batch_bytes: int = MAX_INFLATED_BATCH_BYTES
    timestamps: TimestampRange | None = None
    text: tuple[str, ...] = ()
    on_invalid_utf8: OnInvalidUtf8 = OnInvalidUtf8.FAIL
    max_bytes_per_second: int | None = None
    spare_page_cache: bool = False
    check_crcs: bool = True
    ended: tuple[tuple[int, int], ...] = ()
    in_milliseconds: bool = False
    header_names_as_bytes: bool = False
    needle: bytes = b""


class TimestampAndOffset(NamedTuple):
    """A record found by time: its timestamp in epoch milliseconds, and its offset."""

    timestamp_ms: int
    offset: int


# Many files of one log are columns, instead of an object for each file.  A directory of a million
# segments was planned with two tuples, two paths and a dozen numbers for each segment: 530 MB.  As
# columns, a segment takes 24 bytes in a listing and 56 bytes in a slice.  A tuple is made when a
# file is asked for.


class SliceFile(NamedTuple):
    """The part of one ``.log`` file that a slice reads.

    ``start`` and ``end`` are byte positions, half-open, and both stand between two batches.
    ``first_offset`` and ``first_crc`` are the base offset and stored checksum of the batch at
    ``start``.  If they differ from the file, the file was rewritten since planning.  The header of
    a compressed message of magic 0 or 1 has only its last offset: ``first_offset`` is then the
    least possible offset.
    ``next_offset`` is the base offset of the batch at ``end``, or -1 if it is unknown; no batch
    before ``end`` can reach it.  ``inode`` is the inode of the file, or 0 if it is unknown; if it
    differs, the name belongs to another file, to which ``start`` and ``end`` do not apply.
    """

    path: str
    start: int
    end: int
    first_offset: int
    first_crc: int
    next_offset: int = -1
    inode: int = 0


class LogPaths(Sequence[str]):
    """Paths of ``.log`` files.

    Nearly all of them are named by their base offset and lie in one directory, so that the base
    offset is enough.  The others are kept by their number.
    """

    __slots__ = ("_directory", "_others", "base_offsets")

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._others: dict[int, str] = {}
        self.base_offsets = array("q")

    def append(self, base_offset: int, path: str) -> None:
        if path != self._usual(base_offset):
            self._others[len(self.base_offsets)] = path
        self.base_offsets.append(base_offset)

    def extend(self, others: "LogPaths", begin: int, end: int) -> None:
        """Add the files ``[begin, end)`` of others in the same directory."""
        shift = len(self.base_offsets) - begin
        for i in others._others.keys() & range(begin, end) if others._others else ():
            self._others[i + shift] = others._others[i]
        self.base_offsets += others.base_offsets[begin:end]

    def part(self, begin: int, end: int) -> "LogPaths":
        """The files ``[begin, end)``."""
        found = LogPaths(self._directory)
        found.extend(self, begin, end)
        return found

    def _usual(self, base_offset: int) -> str:
        return f"{self._directory}/{base_offset:020d}.log"

    def __len__(self) -> int:
        return len(self.base_offsets)

    @overload
    def __getitem__(self, i: int) -> str: ...
    @overload
    def __getitem__(self, i: slice) -> list[str]: ...
    def __getitem__(self, i: int | slice) -> str | list[str]:
        if isinstance(i, slice):
            return [self[each] for each in range(*i.indices(len(self)))]
        base_offset = self.base_offsets[i]
        if not self._others:
            return self._usual(base_offset)
        return self._others.get(i % len(self), "") or self._usual(base_offset)

    def __iter__(self) -> Iterator[str]:
        return map(self.__getitem__, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LogPaths):
            return NotImplemented
        return (self._directory, self.base_offsets, self._others) == (
            other._directory,
            other.base_offsets,
            other._others,
        )

    def __hash__(self) -> int:
        return hash((self._directory, len(self)))


class SliceFiles(Sequence[SliceFile]):
    """The files of a slice; the columns are those of `SliceFile`."""

    __slots__ = (
        "_ends",
        "_first_crcs",
        "_first_offsets",
        "_inodes",
        "_next_offsets",
        "_paths",
        "_starts",
    )

    def __init__(self, paths: LogPaths) -> None:
        self._paths = paths
        self._starts = array("q")
        self._ends = array("q")
        self._first_offsets = array("q")
        self._first_crcs = array("q")
        self._next_offsets = array("q")
        self._inodes = array("Q")

    def append(self, base_offset: int, file: SliceFile) -> None:
        """Add a part of the segment with this base offset."""
        self._paths.append(base_offset, file.path)
        self._starts.append(file.start)
        self._ends.append(file.end)
        self._first_offsets.append(file.first_offset)
        self._first_crcs.append(file.first_crc)
        self._next_offsets.append(file.next_offset)
        self._inodes.append(file.inode)

    def add_whole(
        self,
        paths: LogPaths,
        sizes: "array[int]",
        inodes: "array[int]",
        begin: int,
        end: int,
        first_crc: int,
        next_offsets: Iterable[int],
    ) -> None:
        """Add the segments ``[begin, end)`` of a listing, from their first bytes to their last.

        `next_offsets`: an offset for each of them that no batch of it reaches.
        """
        self._paths.extend(paths, begin, end)
        self._starts += array("q", [0]) * (end - begin)
        self._ends += sizes[begin:end]
        self._first_offsets += paths.base_offsets[begin:end]
        self._first_crcs += array("q", [first_crc]) * (end - begin)
        self._next_offsets.extend(next_offsets)
        self._inodes += inodes[begin:end]

    def part(self, begin: int, end: int) -> "SliceFiles":
        found = SliceFiles(self._paths.part(begin, end))
        for name in (
            "_starts",
            "_ends",
            "_first_offsets",
            "_first_crcs",
            "_next_offsets",
            "_inodes",
        ):
            setattr(found, name, getattr(self, name)[begin:end])
        return found

    def n_bytes(self) -> int:
        return sum(self._ends) - sum(self._starts)

    def sizes(self) -> Iterator[int]:
        return map(int.__sub__, self._ends, self._starts)

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, i: int) -> SliceFile: ...
    @overload
    def __getitem__(self, i: slice) -> tuple[SliceFile, ...]: ...
    def __getitem__(self, i: int | slice) -> SliceFile | tuple[SliceFile, ...]:
        if isinstance(i, slice):
            return tuple(self[each] for each in range(*i.indices(len(self))))
        return SliceFile(
            self._paths[i],
            self._starts[i],
            self._ends[i],
            self._first_offsets[i],
            self._first_crcs[i],
            self._next_offsets[i],
            self._inodes[i],
        )

    def __iter__(self) -> Iterator[SliceFile]:
        return map(self.__getitem__, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SliceFiles | tuple):
            return NotImplemented
        return len(self) == len(other) and all(map(SliceFile.__eq__, self, other))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


class LogSlice(NamedTuple):
    """Offsets ``[start_offset, end_offset)`` of one partition, and the bytes that hold them.

    A slice is small and picklable: it travels from the Spark driver to the task that reads it.
    ``topic_id`` is the id of the topic, as Kafka prints it, or empty if it is unknown.  If the id
    in the directory differs, another topic has the name now.
    """

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    files: Sequence[SliceFile]
    topic_id: str = ""

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def offsets(self) -> OffsetRange:
        """The offsets."""
        return OffsetRange(self.start_offset, self.end_offset)

    @property
    def n_bytes(self) -> int:
        """Bytes of ``.log`` files to read, before inflating."""
        if isinstance(self.files, SliceFiles):
            return self.files.n_bytes()
        return sum(file.end - file.start for file in self.files)


class Appended(NamedTuple):
    """Records of one producer in one partition, written by this flush or an earlier one.

    Attributes
    ----------
    base_offset, last_offset : of the first and the last record; other producers' records may be
        between them.
    first_sequence, last_sequence : of the same records, or -1 without a producer id.
    n_records : number of records.
    n_duplicates : how many of them the log had before, and were not written again.
    """

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    base_offset: int
    last_offset: int
    first_sequence: int
    last_sequence: int
    n_records: int
    n_duplicates: int
