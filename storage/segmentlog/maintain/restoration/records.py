"""The records of a lost cluster that are restored."""

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING

from segmentlog.model import (
    IsolationLevel,
    OffsetRange,
    OnCorruptBatch,
    ReadUpTo,
    ScanPolicy,
    TopicPartition,
)  # fmt: skip
from segmentlog.reads.log_directory import LogDirectory
from segmentlog.times import Time

if TYPE_CHECKING:
    import pyarrow as pa

#: Columns with which a row keeps its place.
_COLUMNS = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "key",
    "value",
    "headers",
)


class OpenTransactions(StrEnum):
    """The treatment of transactions that the lost cluster has not ended."""

    REFUSE = "refuse"  #: such a partition is not restored
    END = "end"  #: they are aborted: their records are left out
    LEAVE_OUT = "leave-out"  #: all records from the beginning of the first one are left out


class RestoredRecords:
    """The records of the sources that are restored.

    `source`: the log directories of the lost cluster.  `times`: bounds, as `Log.scan` takes them;
    None for none.  `on_corrupt_batch`: of the sources; a log without its corrupt batches keeps its
    offsets.
    """

    def __init__(
        self,
        source: LogDirectory,
        times: tuple[Time | None, Time | None],
        treatment: OpenTransactions,
        on_corrupt_batch: OnCorruptBatch = OnCorruptBatch.FAIL,
    ) -> None:
        self._source, self._treatment = source, treatment
        self.on_corrupt_batch = on_corrupt_batch
        self._since, self._until = times

    def of(
        self,
        topic_partition: TopicPartition,
        offsets: OffsetRange,
        on_records: Callable[[int], object] = lambda _: None,
    ) -> "Iterator[pa.RecordBatch]":
        """The records of a partition, in the order of their offsets.

        `offsets`: of the log; a bound by time takes the place of a bound by offset.  `on_records`:
        called with the number of records of each batch.
        """
        log = self._source.log(*topic_partition)
        ended: tuple[tuple[int, int], ...] = ()
        isolation_level = IsolationLevel.READ_COMMITTED
        if self._treatment is OpenTransactions.END:
            ended = tuple(log.open_transactions(ReadUpTo.LOG_END, self.on_corrupt_batch).items())
            isolation_level = IsolationLevel.READ_UNCOMMITTED  # the bounds may lie after them
        bounds = log.bounds(
            offsets.start_offset if self._since is None else None,
            offsets.end_offset if self._until is None else None,
            since=self._since, until=self._until,
            read_up_to=ReadUpTo.LOG_END, isolation_level=isolation_level,
            on_corrupt_batch=self.on_corrupt_batch,
        )  # fmt: skip
        policy = ScanPolicy(
            IsolationLevel.READ_COMMITTED,
            self.on_corrupt_batch,
            ended=ended,
            header_names_as_bytes=True,
        )
        with log.scan_offsets(bounds, _COLUMNS, policy) as batches:
            for batch in batches:
                yield batch
                on_records(batch.num_rows)
