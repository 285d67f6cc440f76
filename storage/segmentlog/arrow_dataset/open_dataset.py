"""``segmentlog.dataset``, ``read`` and ``latest``: log directories as a dataset, or as a table.

Importing ``pyarrow.dataset`` takes long, so this module leaves it to the first call.
"""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from segmentlog.arguments import takes, topic_names
from segmentlog.cluster.replicated import open_replicas
from segmentlog.errors import OptionError, SegmentLogError
from segmentlog.model import OnUndecodable, Replicas, TopicPartition
from segmentlog.read_options import DECODES, DatasetOptions, LatestOptions, scan_policy
from segmentlog.reads.log_directory import LogDirectory, open_log_dir
from segmentlog.store.paths import readable_path, tiered_paths
from segmentlog.store.readable import exists

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from segmentlog.arrow_dataset.bounds import DatasetBounds
    from segmentlog.arrow_dataset.log_dataset import LogDataset


@takes(DatasetOptions)
def read(
    path: str | os.PathLike[str] | LogDirectory | None = None,
    topics: str | Sequence[str] | None = None,
    *,
    columns: "Sequence[str] | Mapping[str, pc.Expression] | None" = None,
    filter: "pc.Expression | None" = None,
    order: str = "offset",
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
    columns, filter, order : as `LogDataset.scanner` takes them.
    **options : those of `DatasetOptions`.

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

        if options["on_undecodable"] != OnUndecodable.NULL or options["decode"] is None:
            record_schema(columns)  # refuses others
        options["include_headers"] = "headers" in columns or options["include_headers"]
    logs = dataset(*(() if path is None else (path,)), topics=topics, **options)
    return logs.to_table(columns, filter, order=order)


@takes(LatestOptions)
def latest(
    path: str | os.PathLike[str] | LogDirectory | None = None,
    topics: str | Sequence[str] | None = None,
    *,
    columns: Sequence[str] | None = None,
    **options: Unpack[LatestOptions],
) -> "pa.Table":
    """The last record of each key, as a table in memory.

    ::

        segmentlog.latest("/var/lib/kafka", "customers", strings=True)

    A key whose last value is null was deleted and has no row.  Records without a key are left out.
    A key that is in several partitions has a row for each of these partitions, as after
    compaction.

    Parameters
    ----------
    path, topics, columns : as `read` takes them.
    **options : those of `LatestOptions`: none that leaves out records before others.

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
    return dataset(*paths, topics=topics, **options).latest(columns)


@takes(DatasetOptions)
def dataset(
    *path: str | os.PathLike[str] | LogDirectory | Sequence[str],
    topics: str | Sequence[str] | None = None,
    **options: Unpack[DatasetOptions],
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
    **options : those of `DatasetOptions`.

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

    bounds, decoding = dataset_bounds(path, topics, options), None
    if any(options.get(name) is not None for name in DECODES):
        from segmentlog.decoding.rows import Decoding, look_up_schemas

        # After the bounds: a schema is there before the records that name it.
        look_up = partial(
            look_up_schemas, bounds.opens, bounds.paths, bounds.policy.on_corrupt_batch
        )
        topics_read = {each.topic_partition.topic for each in bounds.partitions}
        decoding = Decoding.of_read(options, topics_read, look_up)
        if decoding is not None:
            text = [name for name in bounds.policy.text if name not in decoding.columns]
            bounds = bounds._replace(policy=bounds.policy._replace(text=tuple(text)))
    return LogDataset(bounds, include_headers=options["include_headers"], decoding=decoding)


def dataset_bounds(
    path: Sequence[Any],
    topics: str | Sequence[str] | None,
    options: DatasetOptions,
    unread: "dict[TopicPartition, SegmentLogError] | None" = None,
) -> "DatasetBounds":
    """The bounds of a dataset, from checked options; `unread`: see `find_dataset_bounds`."""
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
        if len(given) > 1 or options["remote_storage"] is not None:
            accepted = (
                "give a LogDirectory alone; to read several directories, or a tier, pass all of "
                "it to open_log_dir"
            )
            raise OptionError("path", ", ".join(map(str, paths)), accepted)
        (directory,) = opened
    else:
        located = tiered_paths(
            paths,
            options["remote_storage"],
            options["remote_storage_layout"],
            options["remote_storage_key_file"],
            fail_on_data_loss=options["fail_on_data_loss"],
        )
        included = options["include_deleted_topics"]
        directory = (
            open_log_dir(*located)
            if options["replicas"] == Replicas.REFUSE
            else open_replicas(*located, include_deleted_topics=included)
        )
    return find_dataset_bounds(
        directory,
        None if topics is None else topic_names("topics", topics),
        options,
        policy=scan_policy(options),
        unread=unread,
    )
