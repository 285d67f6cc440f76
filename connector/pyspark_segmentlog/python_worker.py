"""The Python process that a task runs in, which Spark uses again for the next task."""

import functools
import gc

__all__ = ["freeze_modules"]


@functools.cache
def freeze_modules() -> None:
    """Take what is loaded by now out of the garbage collector's way, once in a process.

    Spark's daemon has each worker collect garbage after every task (``pyspark/daemon.py``).  The
    compiler of the kernels leaves some 100,000 objects that live as long as the process, and to
    walk them took 80 ms a task: more than half of what the rows of a short one took.
    """
    gc.collect()  # or what is garbage already would be kept
    gc.freeze()
