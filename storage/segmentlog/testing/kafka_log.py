"""A log directory for tests: topics are written and read in a line each, without a broker.

The fixture ``kafka_log`` of the pytest plugin is a `KafkaLog`.
"""

import os
import secrets
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
import pyarrow as pa

from segmentlog.arguments import class_of_one_dialect, whole_number
from segmentlog.errors import OptionError, UnknownTopicOrPartitionError
from segmentlog.format.kernels import layout
from segmentlog.format.kernels.encode import N_BATCH_COLUMNS
from segmentlog.format.kernels.memory import Int64s
from segmentlog.format.kernels.transactions import walk_headers
from segmentlog.format.names import check_topic_name, partition_path
from segmentlog.format.records.encoder import EncodedBatches
from segmentlog.log.checkpoint import known_topic_id
from segmentlog.maintain.compaction.compact import compact
from segmentlog.maintain.deletes import delete_records, delete_topic
from segmentlog.maintain.retain import retain
from segmentlog.model import LOCK_TIMEOUT_SECONDS, TopicPartition
from segmentlog.reads.log_directory import open_log_dir
from segmentlog.store.durable import unsynced
from segmentlog.store.partitions import list_partitions
from segmentlog.testing.damage import Damage, flip_bit
from segmentlog.testing.new_records import (
    Headers,
    NewRecord,
    NewRow,
    by_partition,
    to_table,
)
from segmentlog.testing.reference import Record, encode_batch
from segmentlog.testing.topic_rows import TopicRows
from segmentlog.times import Time
from segmentlog.txn.change import hold
from segmentlog.txn.topics import create_replicas
from segmentlog.writes.config import ProducerConfig, WriteRequest
from segmentlog.writes.job import WriteJob
from segmentlog.writes.job_files import mark_new
from segmentlog.writes.staged_files import TaskStage
from segmentlog.writes.writer import open_writer

if TYPE_CHECKING:
    from segmentlog.serving.open_server import Server

_TRANSACTIONAL, _CONTROL = 0x10, 0x20
_AT_ONCE = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}

#: Makes the batch of one partition, from the offset at which its log ends.
MakeBatch: TypeAlias = Callable[[int], bytes]


@class_of_one_dialect()
class KafkaLog:
    """A log directory that a test writes to and reads from.

    Each call of `write` is one change: readers, also running streams, see all of its records or
    none.  Records get the time of the call, and partitions as from the Java client; those without
    a key stay together in the first partition.

    Parameters
    ----------
    path : the directory; it is made if it is missing.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._servers: list[Server] = []
        self.path.mkdir(parents=True, exist_ok=True)
        with unsynced():
            mark_new(str(self.path))  # a directory without any file is not a log directory

    def __repr__(self) -> str:
        return f"KafkaLog({str(self.path)!r})"

    def __fspath__(self) -> str:
        return str(self.path)

    @unsynced()
    def create_topic(self, topic: str, num_partitions: int = 1) -> None:
        """Make an empty topic.

        Raises
        ------
        OptionError
            If Kafka does not allow the name; if the topic has another number of partitions.
        """
        n_partitions = self._n_partitions(topic, num_partitions)
        open_writer(self.path, topic, num_partitions=n_partitions).close()

    @unsynced()
    def write(
        self,
        topic: str,
        records: Iterable[NewRow],
        *,
        timestamp: Time | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        num_partitions: int | None = None,
    ) -> None:
        """Append records; a topic that is missing is made.

        ::

            kafka_log.write("orders", [{"key": "a", "value": {"n": 1}}, {"value": None}])

        Parameters
        ----------
        topic : its name.
        records : dictionaries with the names ``key``, ``value``, ``headers``, ``timestamp`` and
            ``partition``, each of which may be missing, or rows of Spark with these names; or
            values alone.  A key or a value is bytes, a string, None, or a dictionary or a list,
            which becomes JSON.  What pandas has for a missing value is None.
        timestamp, headers, partition : of records that do not name their own.  A timestamp is
            epoch milliseconds, a datetime with its time zone, or a text in ISO 8601.
        num_partitions : of a topic that is made, by default 1.

        Raises
        ------
        OptionError
            If a record has another name or another type, or names a partition that the topic does
            not have; if `records` is one record or a table.  Nothing is written then.
        """
        n_partitions = self._n_partitions(topic, num_partitions)
        own = {"timestamp": timestamp, "headers": headers, "partition": partition}
        found = by_partition(topic, records, own, n_partitions)
        config = ProducerConfig(use_timestamps=True)
        with open_writer(self.path, topic, num_partitions=n_partitions, config=config) as writer:
            if found:
                writer.append(to_table(found))

    def read(
        self, topic: str, *, partition: int | None = None, read_committed: bool = False
    ) -> TopicRows:
        """The records of a topic, by partition and offset.

        Parameters
        ----------
        partition : only of this one.
        read_committed : whether records of aborted and of open transactions are left out; a
            consumer sees them by default.

        Raises
        ------
        UnknownTopicOrPartitionError
            If there is no such topic, or no such partition.
        """
        check_topic_name(topic)
        if partition is not None:
            partition = whole_number("partition", partition)
        directory = open_log_dir(self.path)
        numbers = directory.topics(internal=True).get(topic)
        if numbers is None or (partition is not None and partition not in numbers):
            known = ", ".join(sorted(directory.topics())) or "none"
            hint = f"its topics are {known}"
            raise UnknownTopicOrPartitionError(
                topic, -1 if partition is None else partition, str(self.path), hint
            )
        logs = [directory.log(topic, n) for n in numbers if partition in {None, n}]
        level = "read_committed" if read_committed else "read_uncommitted"
        tables = [
            each.scan(include_headers=True, isolation_level=level).read_all() for each in logs
        ]
        return TopicRows(pa.concat_tables(tables))

    def df(self, spark: Any, topic: str, **options: str | float) -> Any:  # noqa: ANN401
        """The records of a topic as a DataFrame of Spark, with the columns of its kafka source.

        Parameters
        ----------
        spark : a session, classic or Spark Connect.
        options : of a read, such as ``strings=True``.
        """
        reader = spark.read.format("segmentlog").option("subscribe", topic)
        return reader.options(**options).load(str(self.path))

    def serve(self, *, bind: str = "127.0.0.1:0", advertise: str | None = None) -> "Server":
        """Serve the directory to Kafka clients of any language, only for reading.

        ::

            settings = {"bootstrap.servers": kafka_log.serve().bootstrap_servers}

        The server follows what the test writes, and ends with the test.

        Parameters
        ----------
        bind, advertise : host and port to listen at, and those that clients are told.
        """
        from segmentlog.serving.open_server import serve

        self._servers.append(serve(self.path, bind=bind, advertise=advertise, follow=True))
        return self._servers[-1]

    def close(self) -> None:
        """End all servers; the fixture does so."""
        while self._servers:
            self._servers.pop().close()

    def transaction(self) -> "Transaction":
        """Begin a transaction, which is committed at the end of a ``with`` block.

        ::

            with kafka_log.transaction() as transaction:
                transaction.write("orders", [{"key": "a"}])
                transaction.abort()
        """
        return Transaction(self)

    @unsynced()
    def gap(self, topic: str, n_offsets: int, partition: int = 0) -> None:
        """Leave a gap: the next offsets get no records, as after compaction and transactions."""
        n_empty = whole_number("n_offsets", n_offsets, 1)

        def empty(base_offset: int) -> bytes:
            last = base_offset + n_empty - 1
            return encode_batch([], base_offset=base_offset, last_offset=last)

        self._check_partition(topic, partition)
        self._append_batches({TopicPartition(topic, partition): empty})

    @unsynced()
    def compact(self, topic: str) -> None:
        """Leave the last record of each key, as a broker's cleaner does; all segments are closed.

        Tombstones stay, as they do in a broker for a day.
        """
        compact(self.path, topics=[topic], settings=_AT_ONCE, roll=True)

    @unsynced()
    def retain(
        self, topic: str, *, retention_ms: int | None = None, retention_bytes: int | None = None
    ) -> None:
        """Remove segments that are too old, or that make the log too large, as a broker does."""
        given = {"retention.ms": retention_ms, "retention.bytes": retention_bytes}
        settings = {name: str(value) for name, value in given.items() if value is not None}
        retain(self.path, [topic], settings=settings)

    @unsynced()
    def delete_records(self, topic: str, before_offset: int, partition: int = 0) -> None:
        """Delete the records below an offset, as Kafka's ``DeleteRecords`` does."""
        delete_records(self.path, topic, partition, offset=before_offset)

    @unsynced()
    def add_partitions(self, topic: str, num_partitions: int) -> None:
        """Give a topic more partitions, `num_partitions` in all.

        Raises
        ------
        OptionError
            If the topic has as many already.
        """
        n_found = self._check_partition(topic, 0)
        if whole_number("num_partitions", num_partitions) <= n_found:
            accepted = f"{topic} has {n_found}: give a larger number"
            raise OptionError("num_partitions", str(num_partitions), accepted)
        directory = str(self.path)
        with hold(directory, LOCK_TIMEOUT_SECONDS):
            topic_id = known_topic_id(partition_path(directory, TopicPartition(topic, 0)))
            new = [TopicPartition(topic, number) for number in range(n_found, num_partitions)]
            create_replicas(directory, dict.fromkeys(new, topic_id))

    @unsynced()
    def delete_topic(self, topic: str) -> None:
        """Delete a topic with all of its records."""
        delete_topic(self.path, topic)

    def corrupt(self, topic: str, partition: int = 0, damage: Damage | None = None) -> None:
        """Damage the last segment with records, by default the records of its first batch.

        Parameters
        ----------
        damage : one of `segmentlog.testing.damage`.

        Raises
        ------
        OptionError
            If the partition has no record.
        """
        self._check_partition(topic, partition)
        logs = sorted((self.path / f"{topic}-{partition}").glob("*.log"))
        filled = [each for each in logs if each.stat().st_size]
        if not filled:
            accepted = f"{topic}-{partition} has no records: write some first"
            raise OptionError("partition", str(partition), accepted)
        (damage or flip_bit(0, "body"))(filled[-1])

    def _partitions(self) -> dict[str, int]:
        """Number of partitions of each topic."""
        found: dict[str, int] = {}
        for each in list_partitions(str(self.path)):
            if each.is_current:
                topic, partition = each.topic_partition
                found[topic] = max(found.get(topic, 0), partition + 1)
        return found

    def _check_partition(self, topic: str, partition: int) -> int:
        """Number of partitions of a topic, which has this one."""
        check_topic_name(topic)
        found = self._partitions()
        if not 0 <= whole_number("partition", partition) < found.get(topic, 0):
            hint = f"its topics are {', '.join(sorted(found)) or 'none'}"
            raise UnknownTopicOrPartitionError(topic, partition, str(self.path), hint)
        return found[topic]

    def _n_partitions(self, topic: str, asked: int | None) -> int:
        """Number of partitions of a topic, also of one that is to be made."""
        check_topic_name(topic)
        n_found = self._partitions().get(topic, 0)
        if asked is not None and whole_number("num_partitions", asked, 1) != (n_found or asked):
            accepted = f"{topic} has {n_found}: use add_partitions, or another topic"
            raise OptionError("num_partitions", str(asked), accepted)
        return asked or n_found or 1

    def _append_batches(self, batches: Mapping[TopicPartition, MakeBatch]) -> None:
        """Append batches that a writer does not make: of transactions, and without records."""
        directory = str(self.path)
        request = WriteRequest(directory, ProducerConfig(use_offsets=True))
        with hold(directory, LOCK_TIMEOUT_SECONDS) as held:
            job = WriteJob.begin(request, held)
            segment_bytes = job.config.least_segment_bytes
            stage = TaskStage(directory, job.token, 0, segment_bytes, flush=False)
            for each, make in batches.items():
                end = open_log_dir(directory).log(*each).log_end_offset
                data = np.frombuffer(bytearray(make(end)), np.uint8)
                table: Int64s = np.zeros((1, N_BATCH_COLUMNS), np.int64)
                walk_headers(data, 0, len(data), table)
                last_offset = int(table[0, layout.LAST_OFFSET])
                stage.add(each, EncodedBatches(data, table), (end, last_offset))
            job.commit([stage.close()], held=held)


@class_of_one_dialect()
class Transaction:
    """A transaction of a producer over any topics and partitions.

    Its records are in the log at once, as a producer sends them: consumers see them unless they
    read committed records alone.  `commit` or `abort` ends it; without either it stays open, and
    holds back the last stable offset.
    """

    def __init__(self, log: KafkaLog) -> None:
        self._log = log
        self._producer_id = secrets.randbits(40)
        self._sequences: dict[TopicPartition, int] = {}
        self._is_open = True

    @unsynced()
    def write(
        self,
        topic: str,
        records: Iterable[NewRow],
        *,
        timestamp: Time | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        num_partitions: int | None = None,
    ) -> None:
        """Append records; see `KafkaLog.write`."""
        self._check_open()
        n_partitions = self._log._n_partitions(topic, num_partitions)
        own = {"timestamp": timestamp, "headers": headers, "partition": partition}
        batches = {}
        for number, new in by_partition(topic, records, own, n_partitions).items():
            each = TopicPartition(topic, number)
            first = self._sequences.get(each, 0)
            batches[each] = self._batch(new, first, _TRANSACTIONAL)
            self._sequences[each] = first + len(new)
        self._log.create_topic(topic, n_partitions)
        if batches:
            self._log._append_batches(batches)

    def _batch(self, records: Sequence[NewRecord], sequence: int, attributes: int) -> MakeBatch:
        """One batch of the producer."""

        def make(base_offset: int) -> bytes:
            numbered = [
                Record(offset, each.timestamp_ms, each.key, each.value, each.headers)
                for offset, each in enumerate(records, base_offset)
            ]
            producer = (self._producer_id, 0, sequence)
            return encode_batch(numbered, attributes=attributes, producer=producer)

        return make

    def commit(self) -> None:
        """End the transaction; readers of committed records see it."""
        self._end(commits=True)

    def abort(self) -> None:
        """End the transaction; readers of committed records never see it."""
        self._end(commits=False)

    @unsynced()
    def _end(self, *, commits: bool) -> None:
        self._check_open()
        self._is_open = False
        key, value = struct.pack(">hh", 0, commits), struct.pack(">hi", 0, 0)
        marker = NewRecord(key, value, (), int(time.time() * 1000))
        made = self._batch([marker], -1, _TRANSACTIONAL | _CONTROL)
        if self._sequences:
            self._log._append_batches(dict.fromkeys(self._sequences, made))

    def _check_open(self) -> None:
        if not self._is_open:
            raise OptionError("transaction", "ended", "begin another one: kafka_log.transaction()")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._is_open:
            self._end(commits=error is None)


@class_of_one_dialect()
class KafkaCluster(Mapping[str, KafkaLog]):
    """Log directories by the names of servers, for jobs that use several clusters.

    ::

        kafka_cluster.server("eu:9092").write("orders", ["a"])
        as_kafka(kafka_cluster)

    Parameters
    ----------
    path : a directory, in which each server gets its own.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._servers: dict[str, KafkaLog] = {}

    def server(self, name: str) -> KafkaLog:
        """The directory that stands for a server; a new one for a new name.

        Parameters
        ----------
        name : the value of ``kafka.bootstrap.servers`` of the job.
        """
        if name not in self._servers:
            self._servers[name] = KafkaLog(self.path / f"server-{len(self._servers)}")
        return self._servers[name]

    def __getitem__(self, name: str) -> KafkaLog:
        return self._servers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._servers)

    def __len__(self) -> int:
        return len(self._servers)
