"""``segmentlog.dataset``, ``read`` and ``latest``: log directories as a dataset, or as a table.

Importing ``pyarrow.dataset`` takes long, so this module leaves it to the first call.
"""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from segmentlog.arguments import one_dialect, one_of, scan_policy, topic_names
from segmentlog.cluster.replicated import open_replicas
from segmentlog.errors import OptionError, SegmentLogError
from segmentlog.model import (
    MAX_INFLATED_BATCH_BYTES,
    IsolationLevel,
    OnCorruptBatch,
    OnInvalidUtf8,
    ReadUpTo,
    RemoteStorageLayout,
    Replicas,
    TopicPartition,
)
from segmentlog.reads.log_directory import LogDirectory, open_log_dir
from segmentlog.store.paths import readable_path, tiered_paths
from segmentlog.store.readable import exists
from segmentlog.times import Time

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from segmentlog.arrow_dataset.bounds import DatasetBounds
    from segmentlog.arrow_dataset.log_dataset import LogDataset


class DatasetOptions(TypedDict, total=False):
    """The options that `read` and `latest` pass on to `segmentlog.dataset`."""

    starting_offsets: Mapping[tuple[str, int], int] | None
    ending_offsets: Mapping[tuple[str, int], int] | None
    include_headers: bool
    read_up_to: ReadUpTo | str
    isolation_level: IsolationLevel | str
    on_corrupt_batch: OnCorruptBatch | str
    on_invalid_utf8: OnInvalidUtf8 | str
    max_inflated_batch_bytes: int
    max_bytes_per_second: int | None
    spare_page_cache: bool
    fail_on_data_loss: bool
    replicas: Replicas | str
    include_deleted_topics: bool
    remote_storage: str | os.PathLike[str] | None
    remote_storage_layout: RemoteStorageLayout | str | None
    remote_storage_key_file: str | os.PathLike[str] | None


@one_dialect(*DatasetOptions.__annotations__)
def read(
    path: str | os.PathLike[str] | LogDirectory | None = None,
    topics: str | Sequence[str] | None = None,
    *,
    since: Time | None = None,
    until: Time | None = None,
    last: int | None = None,
    columns: "Sequence[str] | Mapping[str, pc.Expression] | None" = None,
    filter: "pc.Expression | None" = None,
    order: str = "offset",
    strings: bool = False,
    **options: Unpack[DatasetOptions],
) -> "pa.Table":
    """Records of topics as a table in memory.

    ::

        segmentlog.read("/var/lib/kafka", "orders", since="2025-10-10", strings=True)
        segmentlog.read("/var/lib/kafka", "orders", last=100, columns=["offset", "value"])

    For more records than memory holds, use `dataset`, or `Log.scan` of one partition.

    Parameters
    ----------
    path : a log directory; or what `open_log_dir` has opened, such as several directories; or
        nothing, with `remote_storage` alone.
    topics : one name or several; by default all but brokers' own.
    since, until, last : the bounds of each partition, as `Log.scan` takes them.
    columns, filter, order : as `LogDataset.scanner` takes them.
    strings : whether ``key`` and ``value`` are strings instead of binary.
    options : other options of `dataset`.

    Returns
    -------
    pyarrow.Table
        With the columns of Spark's ``kafka`` source, in the order of topic, partition and offset.

    Raises
    ------
    SegmentLogError
        See `dataset` and `Log.scan`.
    """
    if columns is not None and not isinstance(columns, Mapping):
        from segmentlog.format.records.columns import record_schema

        names = record_schema(columns).names
        options["include_headers"] = "headers" in names or options.get("include_headers", False)
    logs = dataset(
        *(() if path is None else (path,)), topics=topics, since=since, until=until, last=last,
        strings=strings, **options,
    )  # fmt: skip
    return logs.to_table(columns, filter, order=order)


@one_dialect("since", "last", *DatasetOptions.__annotations__)
def latest(
    path: str | os.PathLike[str] | LogDirectory | None = None,
    topics: str | Sequence[str] | None = None,
    *,
    until: Time | None = None,
    columns: Sequence[str] | None = None,
    strings: bool = False,
    **options: Unpack[DatasetOptions],
) -> "pa.Table":
    """The last record of each key, as a table in memory.

    ::

        segmentlog.latest("/var/lib/kafka", "customers", strings=True)

    A key whose last value is null was deleted and has no row.  Records without a key are left out.
    A key that is in several partitions has a row for each of these partitions, as after
    compaction.

    Parameters
    ----------
    path, topics, columns, strings, options : as `read` takes them.
    until : only records before this time count, as `Log.scan` takes it.

    Returns
    -------
    pyarrow.Table
        With the columns of Spark's ``kafka`` source, in the order of topic, partition and offset.

    Raises
    ------
    SegmentLogError
        See `dataset` and `Log.scan`.

    Notes
    -----
    All records are read, and the memory is bounded by the last records of the keys: see
    `LogDataset.latest`.
    """
    paths = () if path is None else (path,)
    return dataset(*paths, topics=topics, until=until, strings=strings, **options).latest(columns)


@one_dialect()
def dataset(
    *path: str | os.PathLike[str] | LogDirectory | Sequence[str],
    topics: str | Sequence[str] | None = None,
    starting_offsets: Mapping[tuple[str, int], int] | None = None,
    ending_offsets: Mapping[tuple[str, int], int] | None = None,
    since: Time | None = None,
    until: Time | None = None,
    last: int | None = None,
    include_headers: bool = False,
    strings: bool = False,
    read_up_to: ReadUpTo | str = ReadUpTo.HIGH_WATERMARK,
    isolation_level: IsolationLevel | str = IsolationLevel.READ_UNCOMMITTED,
    on_corrupt_batch: OnCorruptBatch | str = OnCorruptBatch.FAIL,
    on_invalid_utf8: OnInvalidUtf8 | str = OnInvalidUtf8.FAIL,
    max_inflated_batch_bytes: int = MAX_INFLATED_BATCH_BYTES,
    max_bytes_per_second: int | None = None,
    spare_page_cache: bool = False,
    fail_on_data_loss: bool = True,
    replicas: Replicas | str = Replicas.REFUSE,
    include_deleted_topics: bool = False,
    remote_storage: str | os.PathLike[str] | None = None,
    remote_storage_layout: RemoteStorageLayout | str | None = None,
    remote_storage_key_file: str | os.PathLike[str] | None = None,
) -> "LogDataset":
    """Records of all partitions as a ``pyarrow.dataset.Dataset``: DuckDB and Polars query it.

    The dataset is a snapshot: the bounds of all partitions are fixed when it is opened, and every
    query sees the same rows.  Open it again to see newer records.  If retention has deleted rows
    since, a query that needs them fails with `LogChangedError`.

    Parameters
    ----------
    path : one or several, as `open_log_dir` takes them, or one `LogDirectory`; after them perhaps
        the topics, as `read` takes them: a list of names, or a name that is no path.
    topics : one name or several; by default all but brokers' own.
    starting_offsets, ending_offsets : bounds of single partitions, by (topic, partition); the
        others are read from their start, or to their end.
    since, until, last : bounds of each partition, as `Log.scan` takes them.  A partition with its
        own offset keeps it.
    include_headers : whether there is a column ``headers``.
    strings : whether ``key`` and ``value`` are strings instead of binary.
    read_up_to, isolation_level, on_corrupt_batch, on_invalid_utf8, max_inflated_batch_bytes,
    max_bytes_per_second, spare_page_cache : as `Log.scan` takes them.
    fail_on_data_loss : whether records that a checkpoint promises, and that are gone, are an
        error: a partition of the topics without its directory, or the last segments of a log.
        Otherwise the remaining records are read, and a warning names the partition, or the
        offsets.
    replicas : the treatment of a partition that several of the paths hold: ``refuse`` it, or
        ``reconcile`` the copies, as `open_replicas` does, because the paths are those of the
        brokers of a cluster.
    include_deleted_topics : with ``reconcile``: whether topics that the cluster has deleted, by
        its metadata, and of which a broker still has logs, are read, too.
    remote_storage, remote_storage_layout, remote_storage_key_file : a tier; see `open_log_dir`.

    Raises
    ------
    LogDirectoryError
        If a path is not a log directory.
    UnknownTopicOrPartitionError
        If a named topic or partition does not exist, or a partition has been lost.
    OffsetOutOfRangeError
        If an offset is outside its log.
    OptionError
        If a value is not a time, or an offset belongs to a topic that is not read.
    """
    from segmentlog.arrow_dataset.log_dataset import LogDataset

    bounds = dataset_bounds(
        path, topics, starting_offsets=starting_offsets, ending_offsets=ending_offsets,
        since=since, until=until, last=last, strings=strings, read_up_to=read_up_to,
        isolation_level=isolation_level, on_corrupt_batch=on_corrupt_batch,
        on_invalid_utf8=on_invalid_utf8, max_inflated_batch_bytes=max_inflated_batch_bytes,
        max_bytes_per_second=max_bytes_per_second, spare_page_cache=spare_page_cache,
        fail_on_data_loss=fail_on_data_loss, replicas=replicas,
        include_deleted_topics=include_deleted_topics, remote_storage=remote_storage,
        remote_storage_layout=remote_storage_layout,
        remote_storage_key_file=remote_storage_key_file,
    )  # fmt: skip
    return LogDataset(bounds, include_headers=include_headers)


def dataset_bounds(
    path: Sequence[Any],
    topics: str | Sequence[str] | None,
    *,
    starting_offsets: Mapping[tuple[str, int], int] | None = None,
    ending_offsets: Mapping[tuple[str, int], int] | None = None,
    since: Time | None = None,
    until: Time | None = None,
    last: int | None = None,
    strings: bool = False,
    read_up_to: ReadUpTo | str = ReadUpTo.HIGH_WATERMARK,
    isolation_level: IsolationLevel | str = IsolationLevel.READ_UNCOMMITTED,
    on_corrupt_batch: OnCorruptBatch | str = OnCorruptBatch.FAIL,
    on_invalid_utf8: OnInvalidUtf8 | str = OnInvalidUtf8.FAIL,
    max_inflated_batch_bytes: int = MAX_INFLATED_BATCH_BYTES,
    max_bytes_per_second: int | None = None,
    spare_page_cache: bool = False,
    fail_on_data_loss: bool = True,
    replicas: Replicas | str = Replicas.REFUSE,
    include_deleted_topics: bool = False,
    remote_storage: str | os.PathLike[str] | None = None,
    remote_storage_layout: RemoteStorageLayout | str | None = None,
    remote_storage_key_file: str | os.PathLike[str] | None = None,
    include_headers: bool = False,
    unread: "dict[TopicPartition, SegmentLogError] | None" = None,
) -> "DatasetBounds":
    """The bounds of a dataset; see `dataset`.  `unread`: see `find_dataset_bounds`."""
    from segmentlog.arrow_dataset.bounds import find_dataset_bounds

    given: list[Any] = [*path]
    if topics is None and len(given) > 1:
        end = given[-1]  # it is no path, but names topics, as `read` takes them?
        is_name = isinstance(end, str) and os.sep not in end and not exists(readable_path(end))
        if is_name or (isinstance(end, Sequence) and not isinstance(end, str | bytes)):
            topics = given.pop()
    opened = [each for each in given if isinstance(each, LogDirectory)]
    paths = [each for each in given if not isinstance(each, LogDirectory)]
    if opened:
        if len(given) > 1 or remote_storage is not None:
            accepted = (
                "give a LogDirectory alone; to read several directories, or a tier, pass all of "
                "it to open_log_dir"
            )
            raise OptionError("path", ", ".join(map(str, paths)), accepted)
        (directory,) = opened
    else:
        is_one = one_of("replicas", replicas, Replicas) == Replicas.REFUSE
        located = tiered_paths(
            paths, remote_storage, remote_storage_layout, remote_storage_key_file,
            fail_on_data_loss=fail_on_data_loss,
        )  # fmt: skip
        directory = (
            open_log_dir(*located)
            if is_one
            else open_replicas(*located, include_deleted_topics=include_deleted_topics)
        )
    policy = scan_policy(
        isolation_level, on_corrupt_batch, max_inflated_batch_bytes,
        strings=strings, on_invalid_utf8=on_invalid_utf8,
        max_bytes_per_second=max_bytes_per_second, spare_page_cache=spare_page_cache,
    )  # fmt: skip
    return find_dataset_bounds(
        directory,
        None if topics is None else topic_names("topics", [topics] if topics == "" else topics),
        starting_offsets=starting_offsets or {}, ending_offsets=ending_offsets or {},
        since=since, until=until, last=last,
        read_up_to=one_of("read_up_to", read_up_to, ReadUpTo),
        fail_on_data_loss=fail_on_data_loss, policy=policy, unread=unread,
    )  # fmt: skip
