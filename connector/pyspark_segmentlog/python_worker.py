"""The Python processes that Spark plans and reads in, and uses again."""

import gc
import itertools
import sys

__all__ = ["freeze_modules", "plans_without_filters", "waits_for_data_sources"]

_COLUMNS_WORKER = "pyspark.sql.worker.create_data_source"
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
    return _runs(_PLAN_WORKER)


def waits_for_data_sources() -> bool:
    """Whether Spark asks data sources for their columns in this process, and uses it again."""
    return _runs(_COLUMNS_WORKER, is_used_again=True)


def _runs(worker: str, *, is_used_again: bool = False) -> bool:
    """Whether this process is such a worker, by itself or forked by Spark's daemon."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None:
        return False
    forked = spec.name == "pyspark.daemon" and sys.argv[1:2] == [worker]
    return forked or (not is_used_again and spec.name == worker)
