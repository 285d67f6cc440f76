"""The engine with kernels that are compiled in other ways."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from segmentlog import native

TOP = Path(__file__).parents[3]


@pytest.fixture(scope="session", params=["checked", "x86-64-v3", "x86-64-v2"])
def other_kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A path with a copy of the engine: with bounds checks, or for lesser processors."""
    known = ("x86-64-v2", "x86-64-v3", "x86-64-v3-vpclmulqdq")
    is_checked = request.param == "checked"
    runs = known[: 1 + known.index(native.VARIANT)] if native.VARIANT in known else ()
    if not is_checked and request.param not in runs:
        pytest.skip("these kernels are for other processors")
    place = tmp_path_factory.mktemp(f"kernels-{request.param}")
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    for each in ("segmentlog", "kernel_compiler"):
        shutil.copytree(TOP / "storage" / each, place / each, ignore=ignored)
    command = [sys.executable, "-m", "kernel_compiler.build"]
    checked = {"SEGMENTLOG_CHECKED_KERNELS": "1"} if is_checked else {}
    subprocess.run(
        [*command, *([] if is_checked else [request.param])], check=True, timeout=300,
        cwd=place, env=os.environ | {"PYTHONPATH": str(place)} | checked,
    )  # fmt: skip
    return str(place)
