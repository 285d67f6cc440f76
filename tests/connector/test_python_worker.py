"""The process of a task, which is used again."""

from new_process import run

CODE = """
import gc
from pyspark_segmentlog.python_worker import freeze_modules
before = gc.get_freeze_count()
freeze_modules()
frozen = gc.get_freeze_count()
of_a_task = [[i] for i in range(10_000)]
freeze_modules()
print(before, frozen > 1000, gc.get_freeze_count() - frozen < 1000)
"""


def test_modules_are_frozen_once() -> None:
    """The garbage collector still reaches the objects of later tasks."""
    assert "0 True True" == run(CODE)
