"""Clone a topic as a Spark job: the driver plans and commits, and each task stages some rows."""

import logging
import pickle
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from os import PathLike
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions

from segmentlog.arguments import one_dialect
from segmentlog.errors import SegmentLogError
from segmentlog.maintain import CloneSettings, keywords_of, open_source
from segmentlog.native import check_compiled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from segmentlog import LogDirectory
    from segmentlog.maintain import Clone, CloneJob, CloneTask, TaskOutcome

logger = logging.getLogger(__name__)

_TASK_BYTES = 128 << 20  #: of log
_MOST_TASKS = 1_000


@one_dialect()
@keywords_of(CloneSettings)
def clone(
    spark: "SparkSession",
    path: "str | PathLike[str] | LogDirectory | Sequence[str | PathLike[str]]",
    given: CloneSettings,
) -> "Clone":
    """Clone a topic on the executors of Spark.

    A task reads a window of time of all partitions, or one partition if records keep their
    partitions.  The calling process plans, and commits what all tasks have staged, at once.  All
    processes need the directories at the same paths.

    Parameters
    ----------
    spark : the session, classic or Spark Connect.
    transform : see `segmentlog.clone`; it runs in the workers.
    offset_map : see `segmentlog.clone`.  The workers write pieces of it into a directory beside
        it, which is removed at the end; they need it at the same path.
    path, and all other arguments : see `segmentlog.clone`.

    Returns
    -------
    Clone
        Give its `offsets` to `segmentlog.offsets_csv`.

    Raises
    ------
    SegmentLogError
        See `segmentlog.clone`.
    """
    check_compiled()
    from segmentlog.maintain import CloneJob, MapPieces

    with ExitStack() as stack:
        pieces = None
        if given.offset_map is not None and not given.dry_run:
            pieces = stack.enter_context(MapPieces(given.offset_map))
        job = stack.enter_context(CloneJob(open_source(path), given))
        n_tasks = min(max(-(-job.n_bytes // _TASK_BYTES), 1), _MOST_TASKS)
        tasks = _pickled(job.tasks(n_tasks, None if pieces is None else pieces.directory))
        outcomes = _run(spark, tasks)
        if any(each.is_misplaced for each in outcomes):
            _check_keys(spark, job, tasks)
        if pieces is not None:
            job.join_map(pieces, outcomes)
        found = job.commit(outcomes)
        if pieces is not None:
            try:
                pieces.publish()
            except BaseException:
                logger.warning("the topic is cloned, without the offset map")
                raise
        return found


def _pickled(tasks: "Sequence[CloneTask]") -> list[bytes]:
    """Each task alone: a worker opens the directories of its own task."""
    from pyspark import cloudpickle  # which also takes functions of a notebook

    return [cloudpickle.dumps(each) for each in tasks]  # type: ignore[no-untyped-call]


def _run(spark: "SparkSession", tasks: Sequence[bytes]) -> "list[TaskOutcome]":
    """The outcomes of all tasks.  An error is returned: Spark would try it three more times."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from segmentlog.maintain import run_task

        check_compiled()
        for batch in batches:
            for number in batch.column("id").to_pylist():
                outcome: TaskOutcome | SegmentLogError
                try:
                    outcome = run_task(pickle.loads(tasks[number]))
                except SegmentLogError as error:
                    outcome = error
                yield pa.record_batch({"outcome": pa.array([pickle.dumps(outcome)], pa.binary())})

    # One row a Spark partition, so one task of ours in each of Spark's.
    places = spark.range(0, len(tasks), 1, len(tasks))
    found = [
        pickle.loads(row.outcome) for row in places.mapInArrow(stage, "outcome binary").collect()
    ]
    for each in found:
        if isinstance(each, SegmentLogError):
            raise each
    return found


def _check_keys(spark: "SparkSession", job: "CloneJob", tasks: Sequence[bytes]) -> None:
    """Refuse keys in several partitions by `SplitKeyError`; Spark's memory is bounded."""
    from segmentlog.maintain import SplitKeys

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from segmentlog.maintain import keys_of

        for batch in batches:
            for number in batch.column("id").to_pylist():
                task: CloneTask = pickle.loads(tasks[number])
                yield from keys_of(task.windows, task.rules)

    places = spark.range(0, len(tasks), 1, len(tasks))
    rows = places.mapInArrow(read, "key binary, partition int, offset long")
    place = functions.struct("partition", "offset")
    found = (
        rows.where("key is not null")
        .groupBy("key")
        .agg(functions.min(place).alias("first"), functions.max(place).alias("last"))
        .where("first.partition < last.partition")
    )
    n_keys = found.count()
    if n_keys:
        examples = tuple(
            (tuple(row.first), tuple(row.last), bytes(row.key)) for row in found.take(3)
        )
        raise job.split_keys(SplitKeys(n_keys, examples))
