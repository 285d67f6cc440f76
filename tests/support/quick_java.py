"""Flags that let a JVM of the tests start in half the time, and Spark's with them.

No test runs long enough to win by the second compiler's work, or by a parallel collector.
"""

__all__ = ["FLAGS", "spark_variables"]

#: Compile once and quickly, and collect with one thread.
FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def spark_variables() -> dict[str, str]:
    """Variables by which each driver that pyspark starts takes the flags, with its executors."""
    flags = " ".join(FLAGS)
    processes = ("driver", "executor")
    settings = [f"--conf 'spark.{each}.extraJavaOptions={flags}'" for each in processes]
    return {
        "PYSPARK_SUBMIT_ARGS": " ".join([*settings, "pyspark-shell"]),
        "SPARK_LAUNCHER_OPTS": flags,  # of the JVM that finds out the driver's command
    }
