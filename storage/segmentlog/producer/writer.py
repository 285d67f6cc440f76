"""Append Arrow tables to logs from plain Python: `segmentlog.open_writer`."""

import os
from types import TracebackType
from typing import TYPE_CHECKING, Self

from segmentlog.files.paths import local_path
from segmentlog.log.journal import SinkVersion
from segmentlog.producer.config import ProducerConfig

if TYPE_CHECKING:
    import pyarrow as pa

    from segmentlog.producer.job import WriteJob

__all__ = ["LogWriter", "open_writer"]


class LogWriter:
    """Writes rows that become visible together, when the ``with`` block ends without an error.

    Made by `open_writer`.

    Parameters
    ----------
    job : that it is.
    """

    def __init__(self, job: "WriteJob") -> None:
        self._job = job
        self._stager = job.stager(0)

    def append(self, rows: "pa.Table | pa.RecordBatch") -> None:
        """Take rows with the columns ``key``, ``value``, ``headers``, ``partition``, ``topic``.

        Raises
        ------
        InvalidRecordError, RecordTooLargeError
            If a row cannot be written.
        """
        for batch in rows.to_batches() if hasattr(rows, "to_batches") else [rows]:
            self._stager.add(batch)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self._stager.discard()
            self._job.abort()
            return
        try:
            self._job.commit(self._stager.close())
        except BaseException:
            self._stager.discard()
            self._job.abort()
            raise


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
    """Begin to append to the logs of a directory; use it in a ``with`` statement.

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
    """
    from segmentlog.producer.job import WriteJob  # the compiled kernels load here

    job = WriteJob.begin(
        local_path(path),
        config or ProducerConfig(),
        topic=topic,
        num_partitions=num_partitions,
        lock_timeout_seconds=lock_timeout_seconds,
        sink=SinkVersion(*txn) if txn else None,
        deletes_records=delete_records,
    )
    return LogWriter(job)
