"""Append Arrow tables to logs from plain Python: `segmentlog.open_writer`."""

import contextlib
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Concatenate, ParamSpec, Protocol, Self, TypeAlias

from segmentlog.arguments import (
    class_of_one_dialect,
    instance_of,
    one_dialect,
    path_text,
    whole_number,
)
from segmentlog.declared import Declared
from segmentlog.errors import OptionError
from segmentlog.model import LOCK_TIMEOUT_SECONDS, TopicPartition
from segmentlog.store.paths import is_bucket
from segmentlog.store.system_errors import storage_errors
from segmentlog.txn.state import NumberedWrite
from segmentlog.txn.topics import MOST_PARTITIONS
from segmentlog.writes.config import Producer, ProducerConfig, WriteRequest, columns_left_out

if TYPE_CHECKING:
    import pyarrow as pa

    from segmentlog.model import Appended
    from segmentlog.txn.change import HeldDirectory
    from segmentlog.writes.job import WriteJob
    from segmentlog.writes.sequences import SequenceNumbers

_P = ParamSpec("_P")

_REPLACES = (
    "a retry would delete the records of the first attempt: give txn_app_id and "
    "txn_version instead, or delete the earlier records first (segmentlog.delete_records)"
)

_NO_PRODUCER = (
    "a log in an object store does not keep the state of producers yet: give txn_app_id and "
    "txn_version to write rows once"
)
_NO_READY_BATCHES = (
    "a log in an object store does not take batches that are made already, because it does not "
    "keep the state of their producers yet: append rows"
)


class _ArrowStream(Protocol):
    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...


class _ArrowArray(Protocol):
    def __arrow_c_array__(self, requested_schema: object = None) -> object: ...


#: Rows in any library that has the Arrow capsule interface.
ArrowRows: TypeAlias = _ArrowStream | _ArrowArray


def _in_turn(
    method: "Callable[Concatenate[LogWriter, _P], None]",
) -> "Callable[Concatenate[LogWriter, _P], None]":
    """Have the threads of a writer take turns: it has one stager, and one job at a time."""

    @wraps(method)
    def call(self: "LogWriter", /, *arguments: _P.args, **keywords: _P.kwargs) -> None:
        with self._turn:
            method(self, *arguments, **keywords)

    return call


@class_of_one_dialect()
class LogWriter:
    """Appends rows, which become visible together: at `flush`, at `close`, when the block ends.

    `open_writer` makes one.  A ``with`` block that ends with an error writes none of the rows that
    were appended since the last `flush`.  Threads may share a writer: their calls take turns, and
    a flush commits the rows of all of them.

    Parameters
    ----------
    begin : begins the job for the next rows; called with whether it is the writer's first commit.
    numbers : the sequences of rows, if they have a producer.
    held : the log directory, if the caller holds it until the writer is closed.

    Attributes
    ----------
    appended : the answers to the last flush of rows or batches, by partition and producer: the
        offsets of an idempotent producer's records, and how many of them the log had before. Empty
        if that flush had neither a producer nor rows of `append_batches`.
    """

    def __init__(
        self,
        begin: "Callable[[bool], WriteJob]",
        numbers: "SequenceNumbers | None" = None,
        held: "HeldDirectory | None" = None,
    ) -> None:
        # Threads share a writer, and each call holds `_turn` (`_in_turn`): all that follows
        # belongs to the thread whose turn it is.
        self._turn = threading.RLock()
        self.appended: tuple[Appended, ...] = ()
        self._begin = begin
        self._numbers, self._held = numbers, held
        self._ready: set[TopicPartition] = set()  # partitions with batches that were made before
        self._job: WriteJob | None = begin(True)
        self._last = self._job
        self._stager = self._job.stager(0, numbers, commits_here=True)
        self._has_rows = False
        self._rolls = False
        self._is_open = True
        self._has_refused = False
        self._has_committed = False
        self._has_warned = False

    @_in_turn
    @storage_errors()
    def append(self, rows: "ArrowRows") -> None:
        """Take rows with the columns ``key``, ``value``, ``headers``, ``partition``, ``topic``.

        Only ``value`` is required, and ``topic`` if the writer has no topic.

        Parameters
        ----------
        rows : a table or a record batch of pyarrow, or anything with the Arrow capsule interface
            (``__arrow_c_stream__`` or ``__arrow_c_array__``): DataFrames of Polars and pandas,
            relations of DuckDB, readers of record batches.  A stream is read batch by batch.
            Keys and values are binary or string; strings are written in UTF-8.

        Raises
        ------
        ColumnError
            If a column is missing, or has another type.
        OptionError
            If `rows` are not Arrow rows; if the writer is closed, or has refused a row before.
        InvalidRecordError, RecordTooLargeError, OffsetsOutOfOrderError
            If a row cannot be written.  The row may be from an earlier call.  Other rows are lost
            with it, so no row since the last `flush` can be committed any more.
        StorageError
            If the disk is full, or fails.  Then, too, no row since the last `flush` can be
            committed.
        LogLockedError, LogDirectoryError
            If the job for the rows since the last `flush` cannot begin (`open_writer`).
        """
        import pyarrow as pa

        stream: Iterable[pa.RecordBatch]
        if isinstance(rows, pa.Table | pa.RecordBatch):
            # Not through their capsules: the size of a column that came through one is that of
            # its slice, so the stager would keep large tables for a few rows of each.
            schema = rows.schema
            stream = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
        elif hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__arrow_c_array__"):
            try:
                if hasattr(rows, "__arrow_c_stream__"):
                    reader = pa.RecordBatchReader.from_stream(rows)
                else:
                    batch = pa.record_batch(rows)
                    reader = pa.RecordBatchReader.from_batches(batch.schema, [batch])
            except (pa.ArrowInvalid, ValueError) as error:
                accepted = f"its values are not rows of a table: {error}"
                raise OptionError("rows", type(rows).__name__, accepted) from error
            stream, schema = reader, reader.schema
        else:
            accepted = (
                "give a table of pyarrow, or an object with the Arrow capsule interface: a "
                "DataFrame of Polars or pandas, a relation of DuckDB"
            )
            raise OptionError("rows", type(rows).__name__, accepted)
        self._need_job()
        self._stager.check(schema)
        if self._job is not None and not self._has_warned:
            self._has_warned = True
            for message in columns_left_out(
                self._job.directory,
                schema.names,
                self._job.config,
                keeps="open_writer(…, preserve=True)",
                reads="scan(…, include_headers=True)",
            ):
                warnings.warn(message, stacklevel=5)
        with self._refusing():
            for batch in stream:
                self._has_rows = True
                self._stager.add(batch)

    @_in_turn
    @storage_errors()
    def append_batches(
        self, batches: "bytes | memoryview | pa.Buffer", partition: int, topic: str | None = None
    ) -> None:
        """Take ready record batches, with their producers, sequences and codecs.

        The batches get the next offsets of the log.  Their bytes otherwise stay the same.

        Parameters
        ----------
        batches : one after the other, in the format of logs and produce requests, magic 2.
        partition : that all of them go to.
        topic : by default the writer's.

        Raises
        ------
        OptionError
            If a leader would refuse one of them: checksum, records, size, a transaction; if there
            is no such partition; if the writer keeps offsets.
        UnknownTopicOrPartitionError
            If the topic is missing and is not to be created.
        StorageError
            If the disk is full, or fails.
        LogLockedError, LogDirectoryError
            If the job for the batches since the last `flush` cannot begin (`open_writer`).
        """
        from segmentlog.writes.ready_batches import ready_batches

        self._need_job()
        job = self._job
        if job is None:
            return
        if is_bucket(job.directory):
            raise OptionError("batches", "ready batches", _NO_READY_BATCHES)
        if topic is not None:
            instance_of("topic", topic, str, "give the name of the topic")
        name = topic or job.topics.topic
        if name is None or (job.topics.topic or name) != name:
            raise OptionError(
                "topic", topic or "", f"the topic of the writer is {job.topics.topic or 'none'}"
            )
        if job.request.overwrite:
            raise OptionError("batches", "given together with overwrite", _REPLACES)
        if job.config.use_offsets:
            raise OptionError(
                "use_offsets",
                "True",
                "ready batches get the next offsets of the log; leave use_offsets out",
            )
        n_partitions = job.topics.n_partitions(name)
        if not 0 <= whole_number("partition", partition) < n_partitions:
            raise OptionError("partition", str(partition), f"{name} has {n_partitions} partitions")
        topic_partition = TopicPartition(name, partition)
        with self._refusing():
            for each in ready_batches(memoryview(batches), topic_partition, job.config.of(name)):
                self._has_rows = True
                self._ready.add(topic_partition)
                self._stager.add_batches(topic_partition, each)

    @_in_turn
    @storage_errors()
    def flush(self) -> None:
        """Make the appended rows visible, and with ``ProducerConfig.flush`` durable; go on.

        Raises
        ------
        LogLockedError, CommitInDoubtError, SyncFailedError, StorageError
            If the rows could not be committed.  They must be appended again then.
        LogDirectoryError, StagedFileError
            If the job was ended by another one; if a topic has another number of partitions; if a
            log or a staged file is damaged.
        InvalidRecordError, RecordTooLargeError, OffsetsOutOfOrderError, ColumnError
            If a row cannot be written.
        OutOfOrderSequenceError, InvalidProducerEpochError, InvalidTxnStateError
            If a leader would refuse the producer.
        OptionError
            If a row was refused before.
        """
        if not self._is_open:
            return
        self._check_refused()
        job, self._job = self._job, None
        if job is None:
            return
        try:
            with self._refusing():
                extents = self._stager.finish()
            numbered = self._numbers.partitions if self._numbers is not None else frozenset()
            committed = job.commit(
                [extents],
                rolls=self._rolls,
                with_producers=numbered | self._ready,
                held=self._held,
            )
        except BaseException:
            self._stager.discard()
            self._forget()
            job.abort()
            raise
        self.appended = committed.appended
        if self._numbers is not None:
            self._numbers.flushed()
        self._forget()
        self._rolls = False
        self._has_committed = True

    def _forget(self) -> None:
        """Forget the producers of what was appended since the last flush."""
        self._ready.clear()
        if self._numbers is not None:
            self._numbers.forget()

    @_in_turn
    def roll(self) -> None:
        """Flush, and begin a new segment with the next rows of each partition."""
        self.flush()
        self._rolls = True

    @_in_turn
    def close(self) -> None:
        """Flush for the last time; the writer is closed even if this fails."""
        try:
            self.flush()
        finally:
            self.abort()  # nothing is left to remove after a commit

    @_in_turn
    def abort(self) -> None:
        """Forget what was appended since the last `flush`, and close."""
        job, self._job = self._job, None
        self._is_open = False
        if job is not None:
            self._stager.discard()
            self._forget()
            job.abort()

    def _need_job(self) -> None:
        if not self._is_open:
            raise OptionError("writer", "closed", "open another writer to continue")
        self._check_refused()
        if self._job is not None:
            try:
                self._job.renew()
            except FileNotFoundError:
                if self._has_rows:
                    self._job.check_begun()  # raises, and names the cause
                self._job = None  # the job was idle for weeks and swept: a new one begins
        if self._job is None:
            job = self._begin(not self._has_committed)
            job.check_follows(self._last)
            self._job = self._last = job
            self._stager = self._job.stager(0, self._numbers, commits_here=True)
            self._has_rows = False

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        """Remember that a row was refused, because other rows were lost with it."""
        try:
            yield
        except BaseException:
            self._has_refused = True
            raise

    def _check_refused(self) -> None:
        """Refuse to commit rows if another row since the last `flush` was refused."""
        if self._has_refused:
            accepted = "abort, and append the other rows since the last flush again"
            raise OptionError("writer", "a writer that has refused a row", accepted)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            self.close()
        else:
            self.abort()


@one_dialect()
def open_writer(
    path: str | os.PathLike[str],
    topic: str | None = None,
    *,
    num_partitions: Annotated[
        int | None,
        Declared(least=1, most=MOST_PARTITIONS, help="Number of partitions of a new topic."),
    ] = None,
    auto_create_topics: bool | None = None,
    config: ProducerConfig | None = None,
    lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS,
    txn_app_id: str | None = None,
    txn_version: int | None = None,
    overwrite: bool = False,
    preserve: bool = False,
    producer: Producer | None = None,
) -> LogWriter:
    """Begin to append to the logs of a directory, preferably in a ``with`` statement.

    ::

        with segmentlog.open_writer("/data/logs", "orders", num_partitions=3) as writer:
            writer.append(table)
            writer.flush()  # visible from here on
            writer.append(another_table)

    Parameters
    ----------
    path : a log directory; it is made if it is missing.
    topic : of all rows, or None to take the column ``topic``.
    num_partitions : of missing topics, one by default; they are created at the first `flush`.  An
        existing `topic` must have this number of partitions.  With `preserve`, each missing topic
        has the partitions that its own rows name up to then, by default.
    auto_create_topics : whether missing topics are created; by default they are, except in a
        broker's own directory, because the broker would move their partitions aside.
    config : how rows become batches.
    lock_timeout_seconds : how long to wait for another writer.
    txn_app_id, txn_version : a name, and a number from 0 on, that make the single flush of this
        writer idempotent, as the options of Delta with these names do.  Topics to which this
        version, or a later one, was committed under the name are left out.  The version is
        forgotten 30 days after the last commit under the name to the topic.
    overwrite : whether the new records replace all earlier records of `topic`; offsets continue,
        and the log start moves.
    preserve : whether rows that were read keep their partitions, offsets, timestamps and timestamp
        types, besides keys, values and headers: the three ``use_…`` of `ProducerConfig` together.
    producer : an idempotent producer that the rows belong to.  Batches are checked as the leader
        of a partition checks them: a batch that is sent again is written once, and a gap is
        refused.

    Raises
    ------
    LogLockedError
        If a broker is running on the directory, or another writer keeps it locked.
    OptionError, LogDirectoryError, UnknownTopicOrPartitionError
        If the directory or the topic cannot be written to.
    StorageError
        If the disk is full or fails, or if this user lacks a permission.
    """
    from segmentlog.writes.job import WriteJob  # the compiled kernels load here
    from segmentlog.writes.sequences import SequenceNumbers

    numbered = _numbered(txn_app_id, txn_version)
    if producer is not None:
        instance_of("producer", producer, Producer, "give a segmentlog.Producer")
    if config is not None:
        instance_of("config", config, ProducerConfig, "give a segmentlog.ProducerConfig")
    settings = config or ProducerConfig()
    if preserve:
        settings = settings.preserving()
    request = WriteRequest(
        path_text("path", path),
        settings,
        topic=topic,
        num_partitions=num_partitions,
        auto_create_topics=auto_create_topics,
        lock_timeout_seconds=lock_timeout_seconds,
        numbered=numbered,
        overwrite=overwrite,
    )
    numbers = None
    if producer is not None:
        if is_bucket(request.directory):
            raise OptionError("producer", "an idempotent producer", _NO_PRODUCER)
        _check_producer(producer, topic, settings, overwrite=overwrite)
        numbers = SequenceNumbers(producer, request.directory, lock_timeout_seconds)

    def begin(is_first: bool) -> WriteJob:
        if numbered and not is_first:
            accepted = (
                "one version is one commit: close this writer, and open another writer with the "
                "next version"
            )
            raise OptionError("txn_version", str(txn_version), accepted)
        return WriteJob.begin(replace(request, overwrite=overwrite and is_first))

    return LogWriter(begin, numbers)


def _numbered(app_id: str | None, version: int | None) -> NumberedWrite | None:
    """The numbered write that a caller asks for, if any."""
    if app_id is None and version is None:
        return None
    if app_id is None or version is None:
        missing = "txn_app_id" if app_id is None else "txn_version"
        accepted = "txn_app_id and txn_version go together: give both or neither"
        raise OptionError(missing, "", accepted)
    instance_of("txn_app_id", app_id, str, "give the name of the application")
    return NumberedWrite(app_id, whole_number("txn_version", version))


def _check_producer(
    producer: Producer, topic: str | None, config: ProducerConfig, *, overwrite: bool
) -> None:
    """Refuse a producer whose records could not be repeated."""
    if overwrite:
        raise OptionError("producer", "given together with overwrite", _REPLACES)
    if config.use_offsets:
        accepted = (
            "sequences must have no gaps, but kept offsets may have gaps: leave one of the two "
            "options out"
        )
        raise OptionError("producer", "given together with use_offsets", accepted)
    if topic is None and isinstance(producer.base_sequence, Mapping):
        raise OptionError("base_sequence", "by partition", "name the topic of these partitions")
