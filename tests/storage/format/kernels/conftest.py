"""The engine with kernels that are compiled in other ways."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from segmentlog import native

TOP = Path(__file__).parents[4]
KNOWN = ("x86-64-v2", "x86-64-v3", "x86-64-v3-vpclmulqdq")
#: The variants that run on this processor.
RUNNING = KNOWN[: 1 + KNOWN.index(native.VARIANT)] if native.VARIANT in KNOWN else ()


def build(place: Path, *variants: str, **settings: str) -> dict[str, str]:
    """Variables for Python with a copy of the engine, whose kernels were compiled for it."""
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    for each in ("segmentlog", "kernel_compiler"):
        shutil.copytree(TOP / "storage" / each, place / each, ignore=ignored)
    subprocess.run(
        [sys.executable, "-m", "kernel_compiler.build", *variants],
        check=True,
        timeout=1500,
        cwd=place,
        env=os.environ | {"PYTHONPATH": str(place)} | settings,
    )
    return {"PYTHONPATH": str(place)}


@pytest.fixture(scope="session")
def all_variants(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables for Python with kernels for this processor and for lesser ones, in one module."""
    if len(RUNNING) < 2:
        pytest.skip("there are no kernels for a lesser processor of this kind")
    return build(tmp_path_factory.mktemp("variants"), *reversed(RUNNING))


@pytest.fixture(scope="session")
def checked_kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables for Python with kernels that check bounds."""
    return build(tmp_path_factory.mktemp("checked"), SEGMENTLOG_CHECKED_KERNELS="1")


@pytest.fixture(params=["checked", *KNOWN[:2]])
def other_kernels(request: pytest.FixtureRequest) -> dict[str, str]:
    """Variables for Python with bounds checks, or with the kernels of a lesser processor."""
    if request.param == "checked":
        variables: dict[str, str] = request.getfixturevalue("checked_kernels")
        return variables
    if request.param not in RUNNING:
        pytest.skip("these kernels are for other processors")
    return request.getfixturevalue("all_variants") | {"SEGMENTLOG_KERNELS": request.param}
