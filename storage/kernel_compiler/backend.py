"""Hatchling as a build backend that names metadata without a build, also for pip.

For pip, hatchling leaves out the functions that only write metadata, because a build hook may add
requirements.  Pip then builds the wheel, with its kernels, to learn what it requires.  Our hook
adds none.
"""

import importlib
import os

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

_OF_PIP = "PIP_BUILD_TRACKER"  # hatchling looks for it when it is imported

_kept = os.environ.pop(_OF_PIP, None)
_hatchling = importlib.import_module("hatchling.build")
if _kept is not None:
    os.environ[_OF_PIP] = _kept

build_editable = _hatchling.build_editable
build_sdist = _hatchling.build_sdist
build_wheel = _hatchling.build_wheel
get_requires_for_build_editable = _hatchling.get_requires_for_build_editable
get_requires_for_build_sdist = _hatchling.get_requires_for_build_sdist
get_requires_for_build_wheel = _hatchling.get_requires_for_build_wheel
prepare_metadata_for_build_editable = _hatchling.prepare_metadata_for_build_editable
prepare_metadata_for_build_wheel = _hatchling.prepare_metadata_for_build_wheel
