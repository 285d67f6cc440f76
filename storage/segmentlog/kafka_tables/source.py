"""What tables are made of: the logs of a directory, read to their ends, record by record."""

import difflib
import logging
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from segmentlog.errors import (
    CorruptCheckpointError,
    LogDirectoryError,
    MalformedRecordError,
    SegmentLogError,
)
from segmentlog.format.kernels.memory import Int64s
from segmentlog.format.messages.records import (
    CoordinatorRecord,
    coordinator_schemas,
    read_coordinator_record,
)
from segmentlog.format.newer import note
from segmentlog.model import (
    INTERNAL_TOPICS,
    METADATA_TOPIC,
    IsolationLevel,
    OnCorruptBatch,
    ReadUpTo,
    TopicPartition,
)
from segmentlog.reads.cluster_image import ClusterMetadata, Row
from segmentlog.reads.log import Log
from segmentlog.reads.log_directory import LogDirectory
from segmentlog.store.system_errors import Failures
from segmentlog.tiered.metadata import REMOTE_LOG_METADATA

logger = logging.getLogger(__name__)

CONSUMER_OFFSETS = "__consumer_offsets"
TRANSACTION_STATE = "__transaction_state"
SHARE_GROUP_STATE = "__share_group_state"
METADATA_PARTITION = TopicPartition(METADATA_TOPIC, 0)

#: ``metadata.version`` of 4.1-IV0: clusters below it write the bytes of Kafka 4.0.
_FIRST_LEVEL_OF_4_1 = 26

_FIXED = (CONSUMER_OFFSETS, TRANSACTION_STATE, SHARE_GROUP_STATE, REMOTE_LOG_METADATA)
_MOST_NAMED = 5  #: topics that an error lists
_WORDS = re.compile(r"[-._]")

_SCANNED = ("key", "value", "offset", "timestamp")
_TYPE_BYTES = 2

#: Types of the keys of commits, and the first version of their values with tagged fields.
_COMMIT_TYPES, _FIRST_WITH_TAGS = (0, 1), 4

_Rows = TypeVar("_Rows")

#: Key, value, offset, and time in microseconds.
PlainRecord: TypeAlias = tuple[bytes | None, bytes | None, int, int]


class PlacedRecord(NamedTuple):
    """A record of a coordinator, and its place in the log."""

    record: CoordinatorRecord
    partition: int
    offset: int
    timestamp: int  # in microseconds

    @property
    def is_removal(self) -> bool:
        """Whether it is a tombstone."""
        return self.record.value is None

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of key and value."""
        return {**self.record.key, **(self.record.value or {})}

    @property
    def origin(self) -> dict[str, Any]:
        """The columns `ORIGIN`."""
        return _origin(self.partition, self.offset, self.timestamp)


def _origin(partition: int, offset: int, timestamp: int) -> dict[str, Any]:
    return {
        "record_partition": partition,
        "record_offset": offset,
        "record_timestamp": timestamp,
    }


class TableSource:
    """A directory of which a table is made.

    `failures`: gets the partitions that cannot be read; the table has no rows of theirs.
    """

    def __init__(
        self, directory: LogDirectory, on_corrupt_batch: OnCorruptBatch, failures: Failures
    ) -> None:
        self.directory = directory
        self.on_corrupt_batch = on_corrupt_batch
        self.failures = failures
        self.metadata = ClusterMetadata(directory.paths)

    def of_logs(self, topic: str, read: Callable[[Log], Iterable[_Rows]]) -> Iterator[_Rows]:
        """The results of `read` for the logs of a topic that it can read to the end.

        Half of a log would show states that are long past.
        """
        partitions = self.directory.topics(internal=True).get(topic)
        if not partitions and self._is_never_made(topic):
            return
        if not partitions:
            raise LogDirectoryError(", ".join(self.directory.paths), self._why_not(topic))
        for partition in partitions:
            each, found = TopicPartition(topic, partition), list[_Rows]()
            if str(each) in self.failures.errors:  # by an earlier look, for the same table
                continue
            with self.failures.of(each):
                found = [*read(self.directory.log(*each))]
            yield from found

    def _is_never_made(self, topic: str) -> bool:
        """Whether the metadata of the cluster shows that nobody has made an internal topic yet.

        A cluster makes it for its first transaction, or the first offset that is committed.
        """
        if topic not in INTERNAL_TOPICS or self.directory.where_renamed(topic):
            return False
        try:
            known = self.metadata.tables("topics")["topics"]
            is_there = bool(known) or self.metadata.level is not None
        except (SegmentLogError, OSError):
            return False  # no metadata, or none that can be read
        return is_there and topic not in {row["topic"] for row in known.values()}

    def _why_not(self, topic: str) -> str:
        """The reason for which a topic cannot be read, and the topics that are perhaps meant."""
        reason = f"holds no partition of {topic}"
        if renamed := self.directory.where_renamed(topic):
            return f"{reason}; {renamed}"
        held = self.directory.topics()  # Kafka fixes the names of the others
        near = difflib.get_close_matches(topic, held, n=_MOST_NAMED)
        last_word = _WORDS.split(topic)[-1]
        alike = [*near, *(each for each in held if last_word in _WORDS.split(each)[1:])]
        names = ", ".join([*dict.fromkeys(alike)][:_MOST_NAMED])
        if names and topic not in _FIXED:
            return f"{reason}; topics with similar names are {names}: name one as the topic"
        return f"{reason}; read the directory of the broker that led it"

    @cached_property
    def topic_names(self) -> Mapping[uuid.UUID, str]:
        """Names of topics by their ids; empty without metadata that can be read."""
        with self.failures.of(METADATA_PARTITION):
            topics = self.metadata.tables("topics")["topics"]
            return {key: row["topic"] for key, row in topics.items()}
        return {}

    @cached_property
    def is_kafka_4_0(self) -> bool:
        """Whether the cluster is older than Kafka 4.1; without metadata, it is not."""
        level = None
        with self.failures.of(METADATA_PARTITION):
            level = self.metadata.level
        return level is not None and level < _FIRST_LEVEL_OF_4_1

    def end_of(self, log: Log) -> ReadUpTo:
        """The end of a read of a coordinator's log: its own end, as a coordinator reads it.

        If a high watermark has promised records after that end, and damage is not to be left out,
        the read goes to the high watermark, and reports what has become of them.
        """
        if self.on_corrupt_batch is OnCorruptBatch.SKIP:
            return ReadUpTo.LOG_END
        try:
            is_promised = log.end_offset(ReadUpTo.HIGH_WATERMARK) > log.log_end_offset
        except CorruptCheckpointError:
            is_promised = False
        return ReadUpTo.HIGH_WATERMARK if is_promised else ReadUpTo.LOG_END

    def scan(self, log: Log, columns: Collection[str]) -> Iterator[pa.RecordBatch]:
        """The records of a log, to its end."""
        yield from log.scan(
            columns=[*columns],
            read_up_to=self.end_of(log),
            on_corrupt_batch=self.on_corrupt_batch,
        )

    def refuse(self, log: Log, offset: int, reason: str) -> None:
        """Refuse a record that cannot be read, or log that it is left out.

        Raises `MalformedRecordError` unless damage is skipped.
        """
        path = log.path
        for segment in log.segments:
            if segment.base_offset <= offset:
                path = segment.path
        error = MalformedRecordError(path, offset, reason)
        if self.on_corrupt_batch is not OnCorruptBatch.SKIP:
            raise error
        logger.warning("%s; it is left out", error)

    def coordinator_records(self, log: Log, names: Collection[str]) -> Iterator[PlacedRecord]:
        """Records of some kinds, in the order of the log.

        `names`: of the messages, without ``Key`` and ``Value``; others are not decoded.  Raises
        `MalformedRecordError` if such a record cannot be read; `CorruptLogError` if the log is
        damaged.
        """
        topic = log.topic_partition.topic
        schemas = coordinator_schemas(topic)
        every = coordinator_schemas(topic, is_kafka_4_0=True)
        changed = {kind for kind, each in every.items() if each != schemas.get(kind)}
        wanted = [
            kind for kind, (key, _) in schemas.items() if key.name.removesuffix("Key") in names
        ]
        known = [kind for kind in every if kind not in wanted]
        for key, value, offset, time in self._of_types(log, known, is_inverted=True):
            kind = int.from_bytes((key or b"")[:_TYPE_BYTES], "big", signed=True)
            is_old = kind in changed and self.is_kafka_4_0
            try:
                if kind not in every:
                    note(f"type {kind} of {topic}")
                    continue
                record = read_coordinator_record(topic, key, value, is_kafka_4_0=is_old)
            except ValueError as error:
                self.refuse(log, offset, str(error))
                continue
            if record is not None:
                yield PlacedRecord(record, log.topic_partition.partition, offset, time)

    def perhaps_unknown_records(self, log: Log) -> Iterator[PlainRecord]:
        """The records of a coordinator whose type, version or tags may be unknown."""
        are_commits = log.topic_partition.topic == CONSUMER_OFFSETS  # nearly all of its records
        commits = [*_COMMIT_TYPES] if are_commits else []
        yield from self._of_types(log, commits, is_inverted=True)
        for row in self._of_types(log, commits, is_inverted=False) if commits else ():
            version = int.from_bytes((row[1] or b"")[:_TYPE_BYTES], "big", signed=True)
            if version >= _FIRST_WITH_TAGS:
                yield row

    def _of_types(self, log: Log, types: list[int], *, is_inverted: bool) -> Iterator[PlainRecord]:
        for batch in self.scan(log, _SCANNED):
            is_wanted = np.isin(record_types(batch["key"]), types, invert=is_inverted)
            if is_wanted.any():
                yield from _plain(batch.filter(pa.array(is_wanted)))

    def records(
        self, log: Log, isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED
    ) -> Iterator[tuple[bytes | None, bytes | None, dict[str, int]]]:
        """Key, value, and the columns `ORIGIN` of every record, in the order of the log.

        Committed records end at the last stable offset, with a warning if more follow.
        """
        read_up_to = self.end_of(log)
        scan = log.scan(
            columns=_SCANNED,
            read_up_to=read_up_to,
            isolation_level=isolation_level,
            on_corrupt_batch=self.on_corrupt_batch,
        )
        if isolation_level == IsolationLevel.READ_COMMITTED:
            stable = log.last_stable_offset(read_up_to, self.on_corrupt_batch)
            if stable < log.log_end_offset:
                logger.warning(
                    "%s: offsets from %d on are not read: a transaction that begins there was "
                    "neither committed nor aborted",
                    log.path,
                    stable,
                )
        partition = log.topic_partition.partition
        for batch in scan:
            for key, value, offset, time in _plain(batch):
                yield key, value, _origin(partition, offset, time)

    def rows(
        self,
        log: Log,
        read: Callable[[bytes | None, bytes | None], Iterable[Row]],
        why_not: Callable[[Exception], str] = str,
        errors: tuple[type[Exception], ...] = (ValueError,),
        isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> Iterator[Row]:
        """The rows that `read` makes of key and value of each record, with the columns `ORIGIN`.

        A record for which it raises one of `errors` is refused; `why_not` words the reason.
        """
        for key, value, origin in self.records(log, isolation_level):
            try:
                made = [*read(key, value)]
            except errors as error:
                self.refuse(log, origin["record_offset"], why_not(error))
                continue
            for row in made:
                yield row | origin


def _plain(batch: pa.RecordBatch) -> Iterator[PlainRecord]:
    columns = [*(batch[name] for name in _SCANNED[:3]), batch["timestamp"].cast(pa.int64())]
    return zip(*(each.to_pylist() for each in columns), strict=True)


def record_types(keys: pa.Array) -> Int64s:
    """The type of each record, which its key begins with; -1 for a key of fewer bytes."""
    offsets, data = keys.buffers()[1:3]
    places = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + len(keys) + 1]
    types = np.full(len(keys), -1, np.int64)
    has_type = np.diff(places) >= _TYPE_BYTES
    if keys.null_count:
        has_type &= keys.is_valid().to_numpy(zero_copy_only=False)
    at = places[:-1] if has_type.all() else places[:-1][has_type]
    if len(at):
        found = np.frombuffer(data, np.uint8)
        numbers = found[at].astype(np.int64) << 8 | found[at + 1]
        types[has_type] = np.where(numbers >= 1 << 15, numbers - (1 << 16), numbers)
    return types
