"""Compaction as a Spark job: the driver plans, and each task cleans a partition."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import index
from os import PathLike
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import pyarrow as pa

from segmentlog import errors
from segmentlog.arguments import one_dialect
from segmentlog.errors import SegmentLogError, StorageError
from segmentlog.maintain import (
    CompactedPartition,
    CompactionJob,
    CompactionSettings,
    CompactionTask,
    RewriteTask,
    Rewritten,
    begin_compaction,
    clean_task,
    compact_in_store,
    keywords_of,
    place_in_store,
    rewrite_task,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The result of a partition; None if nothing was left to do.
_Outcome: TypeAlias = CompactedPartition | SegmentLogError | None

_OUTCOMES = "number long, outcome string"


@one_dialect()
@keywords_of(CompactionSettings)
def compact(
    spark: "SparkSession", path: str | PathLike[str], given: CompactionSettings
) -> list[CompactedPartition]:
    """Compact the logs of a directory, or of an object store, on the executors of Spark.

    The calling process plans, and holds the lock of the directory until the last task has ended;
    in an object store it commits what the tasks have written.
    A task compacts one partition, the largest ones first; with one executor core, they follow each
    other.  All processes need the directory at the same path.  A partition that cannot be
    compacted does not stop the other partitions.

    Parameters
    ----------
    spark : the session, classic or Spark Connect.
    dedupe_buffer_bytes : memory for the keys of each task, in addition to the memory of the
        executor.
    path, and all other arguments : see `segmentlog.compact`.

    Returns
    -------
    list of CompactedPartition
        The partitions that were compacted, in their order.

    Raises
    ------
    SegmentLogError
        See `segmentlog.compact`. If several partitions cannot be compacted, the error of the first
        one is raised after all other partitions have been compacted.
    """
    if (location := place_in_store(path)) is not None:
        return compact_in_store(location, given, partial(_run_in_store, spark, given))
    with begin_compaction(path, given) as job:
        if job.lock is None:
            return [each.summary for each in job.due]
        if not job.due:
            return []
        due = []
        for log in job.due:
            with job.failures.of(log.topic_partition):
                job.begin(log)
                due.append(log)
        if not due:
            return []
        with job.lock.shared(len(due)) as share:
            tasks = [job.task(log, share, number) for number, log in enumerate(due, 1)]
            outcomes = _run(spark, tasks)
        return _ended(job, tasks, outcomes)


def _run(spark: "SparkSession", tasks: Sequence[CompactionTask]) -> dict[int, _Outcome]:
    """The outcome of each task, by its number; the largest partitions begin first."""
    by_size = sorted(tasks, key=lambda each: -each.log.n_bytes)
    outcomes = _mapped(spark, by_size, lambda task: _as_json(_outcome(task)))
    return {task.number: _from_json(text) for task, text in zip(by_size, outcomes, strict=True)}


def _run_in_store(
    spark: "SparkSession", given: CompactionSettings, tasks: Sequence[RewriteTask]
) -> Iterator[tuple[RewriteTask, Rewritten | SegmentLogError | None]]:
    """The outcome of each task of a log in an object store."""
    for each in tasks:
        given.on_log(str(each.at))
    by_size = sorted(tasks, key=lambda each: -each.n_bytes)
    outcomes = _mapped(spark, by_size, _rewrite_as_json)
    for task, text in zip(by_size, outcomes, strict=True):
        yield task, _rewritten_from_json(text)


_T = TypeVar("_T")


def _mapped(spark: "SparkSession", tasks: Sequence[_T], work: Callable[[_T], str]) -> list[str]:
    """What `work` returns for each task, on the executors."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for place in batch.column("id").to_pylist():
                yield pa.record_batch({"number": [place], "outcome": [work(tasks[place])]})

    # One row a Spark partition, so one log a task.
    places = spark.range(0, len(tasks), 1, len(tasks))
    rows = places.mapInArrow(run, _OUTCOMES).collect()
    found = {row.number: row.outcome for row in rows}
    return [found[place] for place in range(len(tasks))]


def _rewrite_as_json(task: RewriteTask) -> str:
    outcome = rewrite_task(task)
    if isinstance(outcome, Rewritten):
        return json.dumps({"rewritten": outcome}, default=index)
    return _as_json(outcome)


def _rewritten_from_json(text: str) -> Rewritten | SegmentLogError | None:
    found = json.loads(text)
    if "rewritten" in found:
        return Rewritten.of(*found["rewritten"])
    outcome = _from_json(text)
    return outcome if isinstance(outcome, SegmentLogError) else None


def _as_json(outcome: _Outcome) -> str:
    """An outcome as JSON: the driver runs no code that a worker sends."""
    # An error is its name and its arguments, which are texts and numbers.
    if isinstance(outcome, SegmentLogError):
        arguments = list(outcome.args)
        if isinstance(outcome, StorageError):  # as with all errors of the system
            arguments.append(outcome.filename)
        name = type(outcome).__name__
        return json.dumps({"error": name, "arguments": arguments}, default=index)
    return json.dumps({"compacted": outcome}, default=index)  # a number may be NumPy's


def _from_json(text: str) -> _Outcome:
    """The inverse; `ValueError` if the error is none of segmentlog's."""
    found = json.loads(text)
    if "error" not in found:
        return found["compacted"] and CompactedPartition(*found["compacted"])
    if found["error"] not in errors.__all__:
        raise ValueError(f"a task has sent {text[:200]!r} instead of an error of segmentlog")
    # JSON has lists alone; errors have tuples.
    arguments = (tuple(each) if isinstance(each, list) else each for each in found["arguments"])
    error: SegmentLogError = getattr(errors, found["error"])(*arguments)
    return error


def _outcome(task: CompactionTask) -> _Outcome:
    try:
        return clean_task(task)
    except SegmentLogError as error:  # returned: Spark would try it three more times
        return error


def _ended(
    job: CompactionJob, tasks: Sequence[CompactionTask], outcomes: Mapping[int, _Outcome]
) -> list[CompactedPartition]:
    """Keep the checkpoint of what was compacted, and note the errors, which end the job."""
    done, failed = [], []
    for task in tasks:
        outcome = outcomes[task.number]
        if isinstance(outcome, SegmentLogError):
            failed.append((task.log.topic_partition, outcome))
            continue
        if outcome is not None:
            job.reached(task.log, outcome.clean_to)
            done.append(outcome)
        job.end(task.log)
    for topic_partition, error in failed:
        job.failures.add(topic_partition, error)
    return done
