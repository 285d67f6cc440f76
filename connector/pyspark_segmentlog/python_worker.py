"""The Python processes that Spark plans and reads in, and uses again."""

import gc
import itertools
import sys

_task_numbers = itertools.count()


def freeze_modules() -> None:
    """Exempt all objects loaded so far from garbage collection, at the end of the second task."""
    # Each worker of Spark collects garbage after every task (``pyspark/daemon.py``). A worker that
    # has read holds 68,000 objects, and a collection takes 11 ms. Spark has collected after the
    # first task, so nothing has to be collected here, and no first answer waits.
    if next(_task_numbers) == 1:
        gc.freeze()


def is_spark_worker() -> bool:
    """Whether Spark has started this process, as a worker or as the daemon that forks workers."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")
