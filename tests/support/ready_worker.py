"""A Python for Spark whose daemon loads everything before it forks workers.

Spark's own daemon forks first, so that each worker imports pandas, pyarrow and the engine again,
and loads its kernels. That takes a second of the processor's time, and a session has a dozen. The
tests of ``architecture`` and of killed jobs have workers as Spark starts them.
"""

import importlib
import os
import runpy
import sys
from pathlib import Path

__all__ = ["ready_python"]


def ready_python(directory: Path) -> str:
    """A program in `directory` with Python's arguments, for ``PYSPARK_PYTHON``."""
    program = directory / "python"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" "$@"\n')
    program.chmod(0o755)
    return str(program)


def _load(module: str) -> None:
    """Load everything that workers of a module need, and kernels for workers that run tasks."""
    importlib.import_module(module)
    importlib.import_module("pyspark_segmentlog.source")
    if module == "pyspark.worker":
        for each in ("pandas", "pyarrow.compute", "pyspark_segmentlog.writes.writer"):
            importlib.import_module(each)
        importlib.import_module("segmentlog.tools.warmup").compile_kernels()


if __name__ == "__main__":
    if sys.argv[1:3] == ["-m", "pyspark.daemon"]:
        sys.path[0] = ""
        _load(sys.argv[3])
        sys.argv[1:3] = []
        runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
    else:
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
