"""The process that Spark asks for columns compiles what the first tasks need."""

from pathlib import Path

import pytest
from new_process import run

#: The process that Spark's daemon forks, which was asked for columns.
ASKED = """
import sys, threading, types
sys.modules["__main__"].__spec__ = types.SimpleNamespace(name="MODULE")
sys.argv[1:] = ["pyspark.sql.worker.create_data_source"]
from pyspark_segmentlog import DefaultSource
from pyspark_segmentlog.compile_ahead import THREAD_NAME
DefaultSource({"path": "DATA"}).schema()
threads = [each for each in threading.enumerate() if each.name == THREAD_NAME]
for each in threads:
    each.join()
print(len(threads), "numba" in sys.modules)
"""
#: The number of rows of a first task, and of kernels that it has to compile.
READ = """
import time
from pyspark_segmentlog import DefaultSource
from segmentlog.tools.warmup import _counts
source = DefaultSource({"path": "DATA", "subscribe": "orders"})
reader = source.reader(source.schema())
rows = sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))
print(rows, _counts()[0])
"""


@pytest.mark.thorough
def test_the_first_task_finds_its_kernels(example_data: str, tmp_path: Path) -> None:
    """On a machine without kernels, and only there."""
    asked = ASKED.replace("DATA", example_data).replace("MODULE", "pyspark.daemon")
    first = run(asked, NUMBA_CACHE_DIR=str(tmp_path))
    found = run(READ.replace("DATA", example_data), NUMBA_CACHE_DIR=str(tmp_path))
    second = run(asked, NUMBA_CACHE_DIR=str(tmp_path))

    assert "1 True" == first.splitlines()[-1]
    assert "900 0" == found
    assert "0 False" == second


def test_no_other_process_compiles_ahead(example_data: str, tmp_path: Path) -> None:
    """Neither one of the user, nor one that ends after its answer."""
    asked = ASKED.replace("DATA", example_data).replace("create_data_source", "other")
    ends = ASKED.replace("DATA", example_data).replace("MODULE", "pyspark.sql.worker.x")
    for code in (asked.replace("MODULE", "pyspark.daemon"), ends):
        assert "0 False" == run(code, NUMBA_CACHE_DIR=str(tmp_path))


def test_a_place_that_cannot_be_written_to(example_data: str, tmp_path: Path) -> None:
    """No task could find the kernels there, so none are compiled."""
    (tmp_path / "file").touch()
    asked = ASKED.replace("DATA", example_data).replace("MODULE", "pyspark.daemon")
    counted = "from segmentlog.tools.warmup import _counts; print(*_counts())"
    done = run(asked + counted, NUMBA_CACHE_DIR=str(tmp_path / "file"))

    assert "1 True\n0 0" == done
