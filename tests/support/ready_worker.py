"""A Python for Spark whose daemon loads everything before it forks workers.

Spark's own daemon forks first, so that each worker imports pandas, pyarrow and the engine again,
and loads its kernels. That takes a second of the processor's time, and a session has a dozen. The
tests of ``architecture`` and of killed jobs have workers as Spark starts them.
"""

import atexit
import importlib
import os
import runpy
import shlex
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path


def ready_python() -> str:
    """A program with Python's arguments, for ``PYSPARK_PYTHON``."""
    return _program(sys.executable, __file__)


def plain_python() -> str:
    """The Python of the tests, for ``PYSPARK_PYTHON``; workers start as those of a user do.

    Spark 4.2 and 4.3 run no Python whose path has a space.  ``PYSPARK_PYTHON=/tmp/a b/bin/python``
    ends with ``DATA_SOURCE_NOT_FOUND`` for every Python data source.
    """
    return _program(sys.executable) if " " in sys.executable else sys.executable


@cache
def _program(*command: str) -> str:
    program = Path(tempfile.mkdtemp(dir="/tmp", prefix="segmentlog-tests-"), "python")
    atexit.register(shutil.rmtree, program.parent, ignore_errors=True)
    program.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    program.chmod(0o755)
    return str(program)


def _load(module: str) -> None:
    """Load everything that workers of a module need."""
    importlib.import_module(module)
    importlib.import_module("pyspark_segmentlog.source")
    if module == "pyspark.worker":
        for each in ("pandas", "pyarrow.compute", "pyspark_segmentlog.writes.writer"):
            importlib.import_module(each)


if __name__ == "__main__":
    if sys.argv[1:3] == ["-m", "pyspark.daemon"]:
        sys.path[0] = ""
        _load(sys.argv[3])
        sys.argv[1:3] = []
        runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
    else:
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
