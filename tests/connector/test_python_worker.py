"""The process of a task is used for several tasks."""

import subprocess
import sys
from pathlib import Path

import pytest
from new_process import run

CODE = """
import gc
from pyspark_segmentlog.python_worker import freeze_modules
freeze_modules()
after_first = gc.get_freeze_count()
freeze_modules()
frozen = gc.get_freeze_count()
of_a_task = [[i] for i in range(10_000)]
freeze_modules()
print(after_first, frozen > 1000, gc.get_freeze_count() - frozen < 1000)
"""


PLANNED = """
import gc, itertools
from pyspark_segmentlog import DefaultSource
from pyspark_segmentlog import python_worker
source = DefaultSource({"path": "examples/data"})
columns = source.schema()
after_first = gc.get_freeze_count()
source.schema()
after_second = gc.get_freeze_count()
gc.unfreeze()
python_worker._task_numbers = itertools.count()
tasks = [source.reader(columns).partitions() for _ in range(2)]
print(after_first, after_second > 1000, gc.get_freeze_count() > 1000, len(tasks[1]) > 0)
"""


def test_planners_freeze_modules(example_data: str) -> None:
    """Two processes plan reads: one for columns, one for partitions. Both are used again."""
    assert "0 True True True" == run(PLANNED.replace("examples/data", example_data))


SOCKET = "spark.python.unix.domain.socket.enabled"
READ_AND_WRITTEN = f"""
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = builder.config("{SOCKET}", "true").getOrCreate()
rows = spark.read.format("segmentlog").load("FROM").select("key", "value")
out = rows.write.format("segmentlog").mode("append").option("topic", "copied")
out.option("numPartitions", 2).save("TO")
copied = spark.read.format("segmentlog").load("TO").select("key", "value")
print(rows.count() > 0, rows.exceptAll(copied).count(), copied.exceptAll(rows).count())
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.thorough
def test_unix_sockets_to_workers(example_data: str, tmp_path: Path) -> None:
    """The setting that connector/README.md recommends reads and writes the same records."""
    code = READ_AND_WRITTEN.replace("FROM", example_data).replace("TO", str(tmp_path / "to"))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert "True 0 0" == done.stdout.strip().splitlines()[-1]


def test_modules_are_frozen_once() -> None:
    """No first task waits. The garbage collector still reaches objects of later tasks."""
    assert "0 True True" == run(CODE)
