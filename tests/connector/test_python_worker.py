"""The process of a task is used for several tasks."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from new_process import run
from ready_worker import plain_python

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


READ_AND_WRITTEN = """
import pyspark_segmentlog
from pyspark.sql import SparkSession
settings = dict(line.split(maxsplit=1) for line in SETTINGS.splitlines())
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = builder.config(map=settings).getOrCreate()
assert [] == pyspark_segmentlog.slow_settings(spark)
rows = spark.read.format("segmentlog").load("FROM").select("key", "value")
out = rows.write.format("segmentlog").mode("append").option("topic", "copied")
out.option("numPartitions", 2).save("TO")
copied = spark.read.format("segmentlog").load("TO").select("key", "value")
lost, added = rows.exceptAll(copied), copied.exceptAll(rows)
print(rows.where("value is null").count() > 0, lost.count(), added.count())
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.slow
def test_the_recommended_settings_of_the_readme(example_data: str, tmp_path: Path) -> None:
    """With Unix sockets and without Arrow's checks, the same records are read and written.

    Some of their keys and values are null.
    """
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    (settings,) = re.findall(r"```properties\n(.*?)```", readme, re.DOTALL)
    code = READ_AND_WRITTEN.replace("FROM", example_data).replace("TO", str(tmp_path / "to"))
    code = code.replace("SETTINGS", repr(settings))
    ours = {"PYSPARK_PYTHON": plain_python(), "PYSPARK_SUBMIT_ARGS": "pyspark-shell"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | ours,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert "True 0 0" == done.stdout.strip().splitlines()[-1]


def test_modules_are_frozen_once() -> None:
    """No first task waits. The garbage collector still reaches objects of later tasks."""
    assert "0 True True" == run(CODE)
