"""Kafka log directories as a Spark data source: ``spark.read.format("segmentlog").load(path)``.

Spark imports every top-level ``pyspark_*`` module when it looks a format up, and one that fails
to import takes all the others with it.  So this module, and `source` behind it, touch nothing
but the standard library and ``pyspark.sql.datasource``.
"""

from typing import TYPE_CHECKING

from pyspark_segmentlog.source import SegmentLogDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["DefaultSource", "SegmentLogDataSource", "register"]

#: The name under which Spark looks for a data source in a ``pyspark_*`` package.
DefaultSource = SegmentLogDataSource


def register(spark: "SparkSession") -> None:
    """Make ``format("segmentlog")`` known to `spark` where Spark does not find it by itself.

    Needed with ``spark-submit --py-files`` and ``SparkContext.addPyFile``, whose paths Spark does
    not search; not after ``pip install``.  A wheel gets to the workers only by this.
    """
    from pyspark_segmentlog.py_files import ship_wheel

    ship_wheel(spark)
    spark.dataSource.register(SegmentLogDataSource)
