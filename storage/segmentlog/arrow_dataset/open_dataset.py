"""``segmentlog.dataset``: log directories as a dataset.

Importing ``pyarrow.dataset`` takes long, so that this module leaves it to the first call.
"""

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from segmentlog.arguments import one_of, scan_policy, topic_names
from segmentlog.errors import OptionError
from segmentlog.logs.log_directory import LogDirectory, open_log_dir
from segmentlog.model import (
    MAX_INFLATED_BATCH_BYTES,
    IsolationLevel,
    OnCorruptBatch,
    ReadUpTo,
)

if TYPE_CHECKING:
    from segmentlog.arrow_dataset.log_dataset import LogDataset

__all__ = ["dataset"]


def dataset(
    path: str | os.PathLike[str] | LogDirectory,
    *more: str | os.PathLike[str],
    topics: str | Sequence[str] | None = None,
    starting_offsets: Mapping[tuple[str, int], int] | None = None,
    ending_offsets: Mapping[tuple[str, int], int] | None = None,
    starting_timestamp: datetime | int | None = None,
    ending_timestamp: datetime | int | None = None,
    include_headers: bool = False,
    read_up_to: ReadUpTo | str = ReadUpTo.HIGH_WATERMARK,
    isolation_level: IsolationLevel | str = IsolationLevel.READ_UNCOMMITTED,
    on_corrupt_batch: OnCorruptBatch | str = OnCorruptBatch.FAIL,
    max_inflated_batch_bytes: int = MAX_INFLATED_BATCH_BYTES,
    fail_on_data_loss: bool = True,
) -> "LogDataset":
    """Records of all partitions as a ``pyarrow.dataset.Dataset``: DuckDB and Polars query it.

    The dataset is a snapshot: its bounds are the ones of the moment at which it was opened, in all
    partitions, and every query sees the same rows.  Open it again to see more.  If retention has
    deleted rows since, a query that needs them fails with `LogChangedError`.

    Parameters
    ----------
    path, more : as `open_log_dir` takes them, or one `LogDirectory`.
    topics : one name or several; by default all but brokers' own.
    starting_offsets, ending_offsets : bounds of single partitions, by (topic, partition); the
        others are read from their start, or to their end.
    starting_timestamp, ending_timestamp : bounds of all partitions, as `Log.scan` takes them.  A
        partition with an offset of its own keeps it.
    include_headers : whether there is a column ``headers``.
    read_up_to, isolation_level, on_corrupt_batch, max_inflated_batch_bytes : as `Log.scan` takes
        them.
    fail_on_data_loss : whether a partition of the topics that a checkpoint promises, and whose
        directory is gone, is an error; otherwise the others are read, and a warning names it.

    Raises
    ------
    LogDirectoryError
        If a path is no log directory.
    UnknownTopicOrPartitionError
        If a topic or partition that is named is not there, or a partition has been lost.
    OffsetOutOfRangeError
        If an offset is outside its log.
    OptionError
        If a datetime has no time zone, or an offset is that of a topic that is not read.
    """
    from segmentlog.arrow_dataset.log_dataset import LogDataset
    from segmentlog.arrow_dataset.snapshot import take_snapshot

    if isinstance(path, LogDirectory):
        if more:
            accepted = "a LogDirectory is given alone: open_log_dir takes several paths"
            raise OptionError("path", ", ".join(map(str, more)), accepted)
        directory = path
    else:
        directory = open_log_dir(path, *more)
    snapshot = take_snapshot(
        directory,
        None if topics is None else topic_names("topics", [topics] if topics == "" else topics),
        starting_offsets=starting_offsets or {},
        ending_offsets=ending_offsets or {},
        times=(starting_timestamp, ending_timestamp),
        read_up_to=one_of("read_up_to", read_up_to, ReadUpTo),
        fail_on_data_loss=fail_on_data_loss,
        policy=scan_policy(isolation_level, on_corrupt_batch, max_inflated_batch_bytes),
    )
    return LogDataset(snapshot, include_headers=include_headers)
