"""Compile the kernels of a first read while Spark plans it, on a machine that has none.

Spark asks for columns in a Python process of its own, seconds before the first task of a session.
Then that process waits for the next question.  Tasks take its kernels from their files.
"""

import functools
import logging
import threading
import time

from pyspark_segmentlog.python_worker import waits_for_data_sources
from segmentlog.kernel_places import are_compiled_for_reads

__all__ = ["THREAD_NAME", "compile_ahead"]

logger = logging.getLogger(__name__)

THREAD_NAME = "segmentlog-compiles-ahead"

#: The first answer leaves the process meanwhile.
_ANSWER_SECONDS = 0.1


@functools.cache
def compile_ahead() -> None:
    """Start a thread that compiles, once in a process, if the process has nothing else to do."""
    if waits_for_data_sources() and not are_compiled_for_reads():
        threading.Thread(target=_compile, name=THREAD_NAME, daemon=True).start()


def _compile() -> None:
    time.sleep(_ANSWER_SECONDS)
    try:
        from segmentlog.tools.warmup import compile_first_read

        compile_first_read()
    except Exception:
        logger.debug("kernels were not compiled ahead", exc_info=True)
