"""Append Arrow tables to logs from plain Python: `segmentlog.open_writer`."""

import os
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from segmentlog.errors import OptionError
from segmentlog.files.paths import local_path
from segmentlog.log.journal import SinkVersion
from segmentlog.producer.config import ProducerConfig

if TYPE_CHECKING:
    import pyarrow as pa

    from segmentlog.producer.job import WriteJob

__all__ = ["LogWriter", "open_writer"]


class LogWriter:
    """Appends rows, which become visible together: at `flush`, at `close`, when the block ends.

    Made by `open_writer`.  A ``with`` block that ends with an error writes nothing of what was
    appended since the last `flush`.

    Parameters
    ----------
    begin : makes the job of the rows that come next; told whether it is the first one.
    """

    def __init__(self, begin: "Callable[[bool], WriteJob]") -> None:
        self._begin = begin
        self._job: WriteJob | None = begin(True)
        self._stager = self._job.stager(0)
        self._rolls = False
        self._is_open = True

    def append(self, rows: "pa.Table | pa.RecordBatch") -> None:
        """Take rows with the columns ``key``, ``value``, ``headers``, ``partition``, ``topic``.

        Only ``value`` has to be there, and ``topic`` if the writer has none.

        Raises
        ------
        OptionError
            If a column is missing, or has another type; if the writer is closed.
        InvalidRecordError, RecordTooLargeError, OffsetsOutOfOrderError
            If a row cannot be written; close the writer by `abort` then.
        """
        self._need_job()
        for batch in rows.to_batches() if hasattr(rows, "to_batches") else [rows]:
            self._stager.add(batch)

    def flush(self) -> None:
        """Make visible what was appended, and with ``ProducerConfig.flush`` durable; go on.

        Raises
        ------
        LogLockedError, CommitInDoubtError, SyncFailedError, OSError
            If it could not be committed.
        """
        job, self._job = self._job, None
        if job is None:
            return
        try:
            job.commit(self._stager.close(), rolls=self._rolls)
        except BaseException:
            self._stager.discard()
            job.abort()
            raise
        self._rolls = False

    def roll(self) -> None:
        """Flush, and begin a new segment with the next rows of each partition."""
        self.flush()
        self._rolls = True

    def close(self) -> None:
        """Flush for the last time."""
        if self._is_open:
            self.flush()
        self._is_open = False

    def abort(self) -> None:
        """Forget what was appended since the last `flush`, and close."""
        job, self._job = self._job, None
        self._is_open = False
        if job is not None:
            self._stager.discard()
            job.abort()

    def _need_job(self) -> None:
        if not self._is_open:
            raise OptionError("writer", "closed", "open another one to go on")
        if self._job is None:
            self._job = self._begin(False)
            self._stager = self._job.stager(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self.abort()
        else:
            self.close()


def open_writer(
    path: str | os.PathLike[str],
    topic: str | None = None,
    *,
    num_partitions: int = 1,
    config: ProducerConfig | None = None,
    lock_timeout_seconds: float = 60.0,
    txn: tuple[str, int] | None = None,
    delete_records: bool = False,
) -> LogWriter:
    """Begin to append to the logs of a directory; best used in a ``with`` statement.

    ::

        with segmentlog.open_writer("/data/logs", "orders", num_partitions=3) as writer:
            writer.append(table)
            writer.flush()  # visible from here on
            writer.append(another_table)


    Parameters
    ----------
    path : a log directory; one that is not there is made.
    topic : of all rows, or None to take the column ``topic``.
    num_partitions : of topics that are not there yet.
    config : how rows become batches.
    lock_timeout_seconds : how long to wait for another writer.
    txn : a name and a number; what was committed under the name with this number, or with a
        later one, is not written again.
    delete_records : whether all earlier records of `topic` go when the new ones come; offsets
        count on, and the log start moves.

    Raises
    ------
    LogLockedError
        If a broker is running on the directory.
    OptionError, LogDirectoryError, UnknownTopicOrPartitionError
        If the directory or the topic is none that can be written to.
    """
    from segmentlog.producer.job import WriteJob  # the compiled kernels load here

    directory = local_path(path)

    def begin(is_first: bool) -> WriteJob:
        if txn and not is_first:
            accepted = "one number is one commit: close the writer, and open one with the next"
            raise OptionError("txn", f"{txn[0]}, {txn[1]}", accepted)
        return WriteJob.begin(
            directory,
            config or ProducerConfig(),
            topic=topic,
            num_partitions=num_partitions,
            lock_timeout_seconds=lock_timeout_seconds,
            sink=SinkVersion(*txn) if txn else None,
            deletes_records=delete_records and is_first,
        )

    return LogWriter(begin)
