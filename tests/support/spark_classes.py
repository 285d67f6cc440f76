"""Classes that Spark's JVM has loaded, kept in a file of the environment: see `ClassData`.

A session and its first query take 6 s of the processor's time with the file, and 10 s without it.
It takes 30 s to make.  So the first session of tests lets a process make the file beside itself,
and JVMs that start after that find it.
"""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

from kafka_here.artifacts import ClassData, pyspark_jars
from quick_java import spark_variables


def _classes() -> ClassData:
    """The file goes with its environment: other jars are another class path."""
    return ClassData("spark-of-tests", [pyspark_jars()], Path(sys.prefix))


def reading_flags() -> list[str]:
    """Flags with which a JVM reads the file if it is there when the JVM starts."""
    return _classes().reading_flags()


def begin_to_make() -> subprocess.Popen[bytes] | None:
    """Let a process make the file, unless it is there."""
    if _classes().kept.exists():
        return None
    nowhere = subprocess.DEVNULL
    return subprocess.Popen([sys.executable, __file__], stdout=nowhere, stderr=nowhere)


def _make() -> None:
    """Make the file, unless another process makes it."""
    classes = _classes()
    with classes.kept.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        if not classes.kept.exists():
            for each in classes.kept.parent.glob("spark-of-tests-*.jsa*"):
                each.unlink()  # of other jars, or of a process that was stopped
            os.environ.update(spark_variables(*classes.flags()))
            classes.keep(is_whole=_use_spark() == 0)


def _use_spark() -> int:
    """Run what most tests run; return the exit status of the JVM, which ends without haste."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.log.level", "OFF").getOrCreate()
    frame = session.createDataFrame([("t", 1), ("u", 2)], "topic string, n int")
    rows = frame.mapInArrow(lambda batches: batches, frame.schema)
    rows.createOrReplaceTempView("rows")
    session.sql("select topic, count(*), sum(n) from rows where n > 0 group by topic").collect()
    session.stop()
    assert SparkContext._gateway is not None
    jvm = SparkContext._gateway.proc
    jvm.stdin.close()  # the driver of pyspark ends then
    return int(jvm.wait())


if __name__ == "__main__":
    _make()
