"""The Python processes that Spark plans and reads in, and uses again."""

import gc
import itertools
import sys

__all__ = ["freeze_modules", "plans_without_filters"]

_PLAN_WORKER = "pyspark.sql.worker.plan_data_source_read"


_task_numbers = itertools.count()


def freeze_modules() -> None:
    """Exempt all objects loaded so far from garbage collection, at the end of the second task.

    Each worker of Spark collects garbage after every task (``pyspark/daemon.py``).  A planner
    holds 50,000 objects, and a collection takes 20 ms.  A worker that has written rows holds
    160,000, most of them from the kernels' compiler, and a collection takes 78 ms.  Spark has
    collected after the first task, so nothing has to be collected here, and no first answer waits.
    """
    if next(_task_numbers) == 1:
        gc.freeze()


def plans_without_filters() -> bool:
    """Whether Spark plans a read in this process and pushes no filters to it.

    There Spark refuses a reader that overrides ``pushFilters``, unless
    ``spark.sql.python.filterPushdown.enabled`` is on.  With filters, it plans in another process.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None:
        return False
    return spec.name == _PLAN_WORKER or (
        spec.name == "pyspark.daemon" and sys.argv[1:2] == [_PLAN_WORKER]
    )
