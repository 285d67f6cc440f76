"""Clone a topic: its records under another name, perhaps over another number of partitions.

Records are read and written again, and become visible in one change.  If their partitions change,
all partitions of the source are merged by time, because readers, retention and look-ups by time
expect that time rises in a log.  A merge keeps the order of each partition of the source, and so
that of each key that is in one partition alone.  Records with the same key go to the partition
that the Java client chooses.
"""

import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING, TypeAlias

from segmentlog.arguments import keywords_of, one_dialect, path_text
from segmentlog.cluster.replicated import open_replicas
from segmentlog.maintain.cloning.settings import Clone, CloneHereSettings
from segmentlog.reads.log_directory import LogDirectory, open_log_dir
from segmentlog.store.durable import OutputFile
from segmentlog.store.system_errors import storage_errors

if TYPE_CHECKING:
    from segmentlog.format.kernels.memory import Int64s
    from segmentlog.maintain.cloning.cloned_rows import Cloned

logger = logging.getLogger(__name__)

SourcePath: TypeAlias = str | os.PathLike[str] | LogDirectory | Sequence[str | os.PathLike[str]]


def open_source(path: SourcePath) -> LogDirectory:
    """The directory of a source, or several of a cluster's brokers."""
    if isinstance(path, LogDirectory):
        return path
    if isinstance(path, str | os.PathLike):
        return open_log_dir(path)
    return open_replicas(*(path_text("path", each) for each in path))


@one_dialect()
@storage_errors()
@keywords_of(CloneHereSettings)
def clone(
    path: SourcePath,
    given: CloneHereSettings,
) -> Clone:
    """Clone a topic under another name, perhaps over another number of partitions.

    ::

        segmentlog.clone("/var/lib/kafka", "orders", "orders-v2", to="/data/logs",
                         num_partitions=24)

    Nothing of the clone is visible before all of it is.  A clone that was killed can be run again.

    Parameters
    ----------
    path : the log directory of the source, or several of a cluster's brokers; or what
        `open_log_dir` or `open_replicas` has opened, for example with a tier.
    topic : to clone.
    new_topic : the name of the clone.
    to : the log directory of the clone; that of the source by default.  In the directory of a
        broker, which is stopped, the new topic must exist, without records.
    num_partitions : of the clone.  Each record goes to the partition that Kafka's Java client
        chooses for its key.  By default, records keep their partitions, and each partition keeps
        its order.
    order : of the records of a key that stands in several partitions, once they change:
        ``offset`` refuses such keys, because their records have no order, and ``timestamp`` orders
        them by time.  Records of one key in one partition keep their order in both cases.
    null_keys : the new partitions of records without a key: ``spread`` over all, without an order,
        as by a producer; ``keep-order``, one for all that were in one partition, in their order;
        or ``refuse`` them.
    transform : called with record batches with the columns ``key``, ``value``, ``partition``,
        ``offset``, ``timestamp``, ``timestampType`` and ``headers``, whose names are binary.  It
        returns a batch or a table with these columns.  Rows may be left out, and ``partition`` and
        ``offset``, which do not change, show which rows are left.  Partitions are chosen by the
        new keys.  It may be called twice for a row.
    schema_ids, key_schema_ids : old ids of a schema registry and the new ones, for values and for
        keys: in front of the bytes, or in a header.  GUIDs, as text, are replaced in headers.
        Other ids stay, and are named in the result.
    keep_offsets : whether records also keep their offsets.
    codec : of the batches, if the topic's ``compression.type`` does not say; by default that of
        the source.
    settings : of the clone, by Kafka's names, above the source's own, which it takes over.  A
        broker's topic has its settings in the cluster, and not from here.
    since, until : times, as `Log.scan` takes them, between which records are cloned.
    read_up_to, on_corrupt_batch : as `Log.scan` takes them.
    open_transactions : ``refuse`` a source with a transaction that is not ended, or ``leave-out``
        all records from its beginning on, in its partition.  Aborted records are left out.
    overwrite : whether the clone replaces all records of an existing topic.
    show_keys : whether an error shows keys.
    dry_run : whether nothing is written, and only the result is computed.
    lock_timeout_seconds : how long to wait for another writer.
    offset_map : a Parquet file that shows where each record is
        (`segmentlog.maintain.cloning.cloned_offsets`).  It gets its name after the commit.
    on_records : called with the number of records of each piece once it is read.
    on_phase : called with what is done.

    Returns
    -------
    Clone
        With the places of the groups in the clone, if the source has ``__consumer_offsets``: give
        them to `offsets_csv`.  A group skips no record.

    Raises
    ------
    SplitKeyError
        If a key stands in several partitions, and `order` is ``offset``.
    LogDirectoryError
        If a path is not a log directory; if the clone's topic has records, or gets some meanwhile;
        if a transaction is open.
    UnknownTopicOrPartitionError
        If there is no such topic; if a broker's directory does not have the new one.
    OptionError, ColumnError
        If an argument is not accepted; if `transform` returns other rows; if a record has no key,
        and `null_keys` is ``refuse``.
    LogLockedError
        If a broker or a writer holds the directory of the clone.
    CorruptLogError, MalformedRecordError, UnsupportedFormatError, LogChangedError
        If the source cannot be read.
    RecordTooLargeError, InvalidRecordError
        If the clone cannot hold a record.
    CommitInDoubtError, SyncFailedError, StorageError
        If the disk is full or fails, or if this user lacks a permission.

    Notes
    -----
    A group that has read the source up to about one time in all partitions repeats the few records
    around that time: exactly `ClonedGroup.n_repeated`.  A group that has not read one partition
    stands at the first record of it, and reads later records of other partitions again.
    """
    from segmentlog.maintain.cloning.cloned_offsets import ClonedOffsets  # the kernels load here
    from segmentlog.maintain.cloning.job import CloneJob, run_task

    source = open_source(path)
    with ExitStack() as stack:
        file = None
        if given.offset_map is not None and not given.dry_run:
            file = stack.enter_context(OutputFile("offset_map", given.offset_map))
        job = stack.enter_context(CloneJob(source, given))
        given.on_phase("copies")
        with nullcontext() if file is None else ClonedOffsets(file.file, given.topic) as places:
            bases = job.bases

            def note(made: "Cloned", numbers: "Int64s") -> None:
                if places is not None:
                    kept = given.keep_offsets
                    offsets = made.offsets if kept else bases[made.targets] + numbers
                    places.add(made.partitions, made.offsets, made.targets, offsets)

            (task,) = job.tasks(1)
            outcome = run_task(
                task, commits_here=True, on_records=given.on_records,
                on_misplaced=job.check_keys, on_cloned=note,
            )  # fmt: skip
            ends = job.ends_of([outcome])
            if places is not None:
                places.end(*ends, is_kept=given.num_partitions is None)
        if file is not None:
            file.finish()  # a full disk is noticed before a record is visible
        given.on_phase("becomes visible")
        found = job.commit([outcome])
        if file is not None:
            try:
                file.publish()
            except BaseException:
                logger.warning("the topic is cloned, without the offset map")
                raise
        return found
