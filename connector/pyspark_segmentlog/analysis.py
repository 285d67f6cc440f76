"""An analysis as a Spark job: each task scans some partitions, and the driver merges."""

from collections.abc import Collection, Iterator
from os import PathLike
from typing import TYPE_CHECKING, Unpack

import pyarrow as pa

from segmentlog.analysis import (
    Analysis,
    AnalysisOptions,
    plan_analysis,
    report_of_tasks,
    run_task,
    tasks_of,
)
from segmentlog.arguments import takes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Tasks of an analysis: so many parts are merged in the driver, 100 KB each.
_MOST_TASKS = 400


@takes(AnalysisOptions)
def analyze(
    spark: "SparkSession",
    path: str | PathLike[str],
    *more: str | PathLike[str],
    topics: str | Collection[str] = (),
    **options: Unpack[AnalysisOptions],
) -> Analysis:
    """Find out what is in topics, on the executors of Spark.

    ::

        found = pyspark_segmentlog.analyze(spark, "/var/lib/kafka", topics="orders")

    The calling process lists the partitions, and puts the results together.  A task scans one
    large partition, or several small ones of a topic.  All processes need the directories at the
    same paths.

    Parameters
    ----------
    spark : the session, classic or Spark Connect.
    path, more, topics : see `segmentlog.analyze`.
    **options : those of `AnalysisOptions`.

    Returns
    -------
    segmentlog.Analysis
        As `segmentlog.analyze` returns it.  If a topic has more than 1,500 keys, counts of the
        heaviest keys may differ, within their stated error.

    Raises
    ------
    SegmentLogError
        See `segmentlog.analyze`.
    """
    plan = plan_analysis(path, *more, topics=topics, **options)
    tasks = tasks_of(plan, _MOST_TASKS)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield pa.record_batch({"number": [number], "outcome": [run_task(tasks[number])]})

    outcomes: list[str] = [""] * len(tasks)
    if tasks:
        # One row a Spark partition, so one task of ours a task of Spark.
        rows = spark.range(0, len(tasks), 1, len(tasks))
        for row in rows.mapInArrow(run, "number long, outcome string").collect():
            outcomes[row.number] = row.outcome
    return report_of_tasks(plan, outcomes)
