"""Kafka log directories as a Spark data source: ``spark.read.format("segmentlog").load(path)``.

Spark imports every top-level ``pyspark_*`` module when it looks a format up, and one failing
import breaks the look-up of all formats.  So this module, and `source` after it, import only the
standard library and ``pyspark.sql.datasource``.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from pyspark_segmentlog.source import SegmentLogDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_segmentlog.advice import slow_settings
    from pyspark_segmentlog.analysis import analyze
    from pyspark_segmentlog.auditing import audit
    from pyspark_segmentlog.cloning import clone
    from pyspark_segmentlog.compaction import compact
    from pyspark_segmentlog.frames import count, read
    from pyspark_segmentlog.framing import payload, schema_guid, schema_id
    from pyspark_segmentlog.progress import lag

__all__ = [
    "DefaultSource", "SegmentLogDataSource", "analyze", "audit", "clone", "compact", "count",
    "lag", "payload", "read", "register", "sail_session", "schema_guid", "schema_id",
    "slow_settings",
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


#: The modules of the functions, most of which load the engine: when they are first asked for.
_MODULES = {
    "analyze": "analysis",
    "audit": "auditing",
    "clone": "cloning",
    "compact": "compaction",
    "count": "frames",
    "lag": "progress",
    "payload": "framing",
    "read": "frames",
    "schema_guid": "framing",
    "schema_id": "framing",
    "slow_settings": "advice",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
