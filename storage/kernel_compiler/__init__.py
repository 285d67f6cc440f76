"""Compiles the kernels: from Python to an extension module for each platform, with numba and LLVM.

`lower` has numba make LLVM code of each kernel, for one of the kinds of processors of `variants`;
`extension` makes the code between CPython and the kernels; `build` runs both and links.  `hook` is
where hatchling asks for it.  Nothing here is in a wheel.
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
