"""Settings of a Spark session with which segmentlog is slower than it could be."""

import os
from typing import TYPE_CHECKING, NamedTuple

from segmentlog.arguments import one_dialect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_UNIX_SOCKETS = "spark.python.unix.domain.socket.enabled"
_WORKER_REUSE = "spark.python.worker.reuse"
_BUFFER, _BUFFER_BYTES, _DEFAULT_BYTES = "spark.buffer.size", 256 << 10, 64 << 10

#: System properties that ``org.apache.arrow.memory.BoundsChecking`` and
#: ``org.apache.arrow.vector.NullCheckingForGet`` read once, when a JVM loads them.
_ARROW_PROPERTIES = {
    "arrow.enable_unsafe_memory_access": "true",
    "arrow.enable_null_check_for_get": "false",
}


class SlowSetting(NamedTuple):
    """A setting of a session, and a value with which segmentlog is faster."""

    setting: str  # the name of the setting
    found: str  # its value in the session; of Java options, those of Arrow, so it may be empty
    better: str  # the value to start the session with; of Java options, those to add to the others
    why: str  # what the better value changes, and its price


@one_dialect()
def slow_settings(spark: "SparkSession") -> list[SlowSetting]:
    """The settings of a session that make segmentlog slower, with better values.

    ::

        for each in pyspark_segmentlog.slow_settings(spark):
            print(each.setting, each.better, each.why)

    All of them are fixed when a session starts: give them in ``spark-defaults.conf``, to
    ``spark-submit --conf``, or to the builder of the first session of a process.
    ``segmentlog doctor --spark`` lists them for a session without settings of a job.

    Parameters
    ----------
    spark : the session, classic or Spark Connect.

    Returns
    -------
    list of SlowSetting
        Empty if every setting is as recommended.
    """
    found = []
    sockets = spark.conf.get(_UNIX_SOCKETS, os.environ.get("PYSPARK_UDS_MODE", "false")) or ""
    if sockets.lower() != "true":
        why = (
            "rows then move over Unix sockets instead of TCP, which waits for a delayed "
            "acknowledgement at the end of each task"
        )
        found.append(SlowSetting(_UNIX_SOCKETS, sockets, "true", why))
    n_bytes = spark.conf.get(_BUFFER, str(_DEFAULT_BYTES)) or ""
    if n_bytes.isdecimal() and int(n_bytes) < _BUFFER_BYTES:
        why = "Spark then takes rows from a Python process in fewer and larger pieces"
        found.append(SlowSetting(_BUFFER, n_bytes, str(_BUFFER_BYTES), why))
    reuse = spark.conf.get(_WORKER_REUSE, "true") or ""
    if reuse.lower() != "true":
        why = "without reuse, each task starts a Python process and imports numpy and pyarrow"
        found.append(SlowSetting(_WORKER_REUSE, reuse, "true", why))
    java = _java_options(spark)
    return found if java is None else [*found, java]


def _java_options(spark: "SparkSession") -> SlowSetting | None:
    """The Java options of the processes that run tasks, if they lack an option for Arrow."""
    is_local = (spark.conf.get("spark.master", "") or "").partition("[")[0] == "local"
    process = "driver" if is_local else "executor"
    setting = f"spark.{process}.extraJavaOptions"
    given = [
        option
        for name in (f"spark.{process}.defaultJavaOptions", setting)
        for option in (spark.conf.get(name, "") or "").split()
        if option.startswith("-Darrow.")  # Spark adds thirty options of its own
    ]
    # The JVM of a session may have started before the session: options that came later have no
    # effect.  A Connect session has no attribute `_jvm`.
    jvm = getattr(spark, "_jvm", None) if is_local else None
    missing = [
        f"-D{name}={value}"
        for name, value in _ARROW_PROPERTIES.items()
        if (
            f"-D{name}={value}" not in given
            if jvm is None
            else jvm.java.lang.System.getProperty(name) != value
        )
    ]
    if not missing:
        return None
    why = (
        "Arrow then checks neither bounds nor nulls when Spark reads rows. This applies to every "
        "user of Arrow in that JVM: where such code has a defect, it reads wrong memory instead "
        "of raising an exception"
    )
    return SlowSetting(setting, " ".join(given), " ".join(missing), why)
