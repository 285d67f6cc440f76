"""Kafka log directories as a Spark data source: ``spark.read.format("segmentlog").load(path)``.

Spark imports every top-level ``pyspark_*`` module when it looks a format up, and one failing
import breaks the look-up of all formats.  So this module, and `source` after it, import only the
standard library and ``pyspark.sql.datasource``.
"""

from typing import TYPE_CHECKING

from pyspark_segmentlog.source import SegmentLogDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_segmentlog.advice import slow_settings
    from pyspark_segmentlog.analysis import analyze
    from pyspark_segmentlog.auditing import audit
    from pyspark_segmentlog.cloning import clone
    from pyspark_segmentlog.compaction import compact
    from pyspark_segmentlog.frames import read
    from pyspark_segmentlog.framing import payload, schema_guid, schema_id
    from pyspark_segmentlog.progress import lag

__all__ = [
    "DefaultSource", "SegmentLogDataSource", "analyze", "audit", "clone", "compact", "lag",
    "payload", "read", "register", "sail_session", "schema_guid", "schema_id", "slow_settings",
]  # fmt: skip

#: The name under which Spark looks for a data source in a ``pyspark_*`` package.
DefaultSource = SegmentLogDataSource


def register(spark: "SparkSession") -> None:
    """Make ``format("segmentlog")`` known to `spark` if Spark does not find it by itself.

    This is needed with ``spark-submit --py-files`` and ``SparkContext.addPyFile``, whose paths
    Spark does not search, but not after ``pip install``.  A wheel reaches the workers only by this
    call.
    """
    from pyspark_segmentlog.py_files import ship_wheel

    ship_wheel(spark)
    spark.dataSource.register(SegmentLogDataSource)


def sail_session() -> "SparkSession":
    """A new session of Sail, whose server runs in this process, and which knows ``segmentlog``.

    ``pip install 'pyspark-segmentlog[sail]'`` installs Sail and Spark's client, without Java.

    Returns
    -------
    SparkSession
        A client of Spark Connect.  All sessions of the process share its server, which ends with
        the process.
    """
    from pyspark_segmentlog.sail import new_session

    session = new_session()
    register(session)
    return session


def __getattr__(name: str) -> object:
    """The functions, most of which load the engine, when they are first asked for."""
    if name == "clone":
        from pyspark_segmentlog.cloning import clone

        return clone
    if name == "compact":
        from pyspark_segmentlog.compaction import compact

        return compact
    if name == "analyze":
        from pyspark_segmentlog.analysis import analyze

        return analyze
    if name == "audit":
        from pyspark_segmentlog.auditing import audit

        return audit
    if name == "lag":
        from pyspark_segmentlog.progress import lag

        return lag
    if name == "slow_settings":
        from pyspark_segmentlog.advice import slow_settings

        return slow_settings
    if name == "read":
        from pyspark_segmentlog.frames import read

        return read
    if name in ("payload", "schema_guid", "schema_id"):
        from pyspark_segmentlog import framing

        return getattr(framing, name)
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
