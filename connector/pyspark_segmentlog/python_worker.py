"""The Python process that a task runs in, which Spark uses again for the next task."""

import functools
import gc

__all__ = ["freeze_modules"]


@functools.cache
def freeze_modules() -> None:
    """Exempt all objects loaded so far from garbage collection, once in a process.

    Each worker of Spark collects garbage after every task (``pyspark/daemon.py``).  A worker alone
    holds 32,000 objects, and a collection takes 19 ms.  A worker that has written rows holds
    160,000, most of them from the kernels' compiler, and a collection takes 78 ms.
    """
    gc.collect()  # otherwise existing garbage would be kept
    gc.freeze()
