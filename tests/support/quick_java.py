"""Flags that let a JVM of the tests start in half the time, and Spark's with them.

No test runs long enough to win by the second compiler's work, or by a parallel collector.
"""

import os

__all__ = ["FLAGS", "start_spark_quickly"]

#: Compile once and quickly, and collect with one thread.
FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def start_spark_quickly() -> None:
    """Have every driver that pyspark starts from now on, here or in a child, take the flags."""
    flags = " ".join(FLAGS)
    settings = [
        f"--conf 'spark.{each}.extraJavaOptions={flags}'" for each in ("driver", "executor")
    ]
    os.environ["PYSPARK_SUBMIT_ARGS"] = " ".join([*settings, "pyspark-shell"])
    os.environ["SPARK_LAUNCHER_OPTS"] = (
        flags  # of the JVM that only finds out the driver's command
    )
