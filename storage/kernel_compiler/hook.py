"""Hatchling's hook: a wheel gets its kernels compiled, where there is a compiler for them."""

import os
import platform
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface  # type: ignore[import-not-found]

__all__ = ["KernelsHook"]

#: Exactly this version: the build uses numba's internals.
NUMBA = "numba==0.68.1"
_LEAST_PYTHON, _MOST_PYTHON = (3, 11), (3, 14)  # that this numba supports


class KernelsHook(BuildHookInterface[Any]):  # type: ignore[misc]
    """Compile the kernels into a wheel, or beside the sources of an editable install.

    ``SEGMENTLOG_VARIANTS`` names kinds of processors; by default the wheel is for processors like
    the builder's.  With ``all``, it is for all platforms.
    """

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Packages that this build needs besides hatchling; none where numba cannot be had."""
        if not _has_numba():
            return []
        needs_no_zig = shutil.which("cc") and "all" not in _variants()
        return [NUMBA] if needs_no_zig else [NUMBA, "ziglang>=0.13"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before files are collected."""
        if not _has_numba():
            self.app.display_warning(
                f"numba is not available for Python {platform.python_version()} on "
                f"{sysconfig.get_platform()}: segmentlog's kernels will run in Python, slowly"
            )
            return
        storage = str(Path(self.root, "storage"))
        sys.path.insert(0, storage)
        try:
            from kernel_compiler.build import KERNELS, build

            if version == "editable":
                build(KERNELS, _variants())
            else:
                self._directory = tempfile.mkdtemp()
                for made in build(Path(self._directory), _variants()):
                    inside = f"segmentlog/format/kernels/{made.name}"
                    build_data["force_include"][str(made)] = inside
        finally:
            sys.path.remove(storage)
        if "all" not in _variants():
            tag = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{tag}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what `initialize` has made outside the wheel."""
        if hasattr(self, "_directory"):
            shutil.rmtree(self._directory, ignore_errors=True)


def _variants() -> list[str]:
    return os.environ.get("SEGMENTLOG_VARIANTS", "").split()


def _has_numba() -> bool:
    """Whether there is a wheel of numba for this Python and this machine."""
    is_known = platform.machine() in {"x86_64", "aarch64", "arm64"}
    is_free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    is_musl = sys.platform == "linux" and not platform.libc_ver()[0]
    version = sys.version_info[:2]
    is_supported = _LEAST_PYTHON <= version <= _MOST_PYTHON
    return is_known and is_supported and not is_free_threaded and not is_musl
