"""Flags with which JVMs of the tests start in half the time, also Spark's.

No test runs long enough to profit from the second compiler, or from a parallel collector.
"""

#: Compile once and quickly, and collect with one thread.
FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def spark_variables(*more: str) -> dict[str, str]:
    """Variables that give flags to each driver that pyspark starts, and to its executors."""
    flags = " ".join(f'"{each}"' for each in (*FLAGS, *more))  # Spark splits them as a shell does
    processes = ("driver", "executor")
    settings = [f"--conf 'spark.{each}.extraJavaOptions={flags}'" for each in processes]
    return {
        "PYSPARK_SUBMIT_ARGS": " ".join([*settings, "pyspark-shell"]),
        "SPARK_LAUNCHER_OPTS": " ".join(FLAGS),  # of the JVM that finds out the driver's command
    }
