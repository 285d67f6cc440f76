"""Compiles the kernels: from Python to an extension module for each platform, with numba and LLVM.

`lower` has numba make LLVM code of the kernels, once for all processors, with `instructions` and
`checksum` in the place of what Python does slowly.  `glue` is the code between CPython and the
kernels, compiled like them; `extension` describes the kernels to it.  `platforms` has LLVM
optimize all of that for each kind of processor, and links it; `build` runs these steps, where
`hook` is asked for a wheel by hatchling.  Nothing here is in a wheel.
"""

import os
import sys
import types
from pathlib import Path

__all__ = ["STORAGE", "begin"]

STORAGE = Path(__file__).parents[1]


def begin() -> None:
    """Let modules of the engine be imported without its ``__init__``, and without native code."""
    os.environ["SEGMENTLOG_PYTHON_KERNELS"] = "1"
    if "segmentlog" not in sys.modules:
        package = types.ModuleType("segmentlog")
        package.__path__ = [str(STORAGE / "segmentlog")]
        sys.modules["segmentlog"] = package
