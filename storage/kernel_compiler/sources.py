"""The engine's sources as a build sees them: without the packages that the engine needs."""

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
