"""Hatchling's hook: a wheel gets its kernels compiled, where there is a compiler for them."""

import contextlib
import importlib
import os
import platform
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
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
        """Packages that this build needs besides hatchling.

        None where numba cannot be had, or where an earlier build has kept what it has compiled.
        """
        if not _has_numba():
            return []
        with self._storage_on_path():
            kept = importlib.import_module("kernel_compiler.kept")
            if kept.load(_entry(kept)):
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
        self._directory = tempfile.mkdtemp()
        with self._storage_on_path():
            made = self._compiled(Path(self._directory))
        for each in made:
            inside = f"segmentlog/format/kernels/{each.name}"
            if version == "editable":
                # A process may have loaded the file that is there.
                target = Path(self.root, "storage", inside)
                unfinished = target.with_name(f"{target.name}.{os.getpid()}")
                shutil.copy(each, unfinished)
                unfinished.replace(target)
            else:
                build_data["force_include"][str(each)] = inside
        if "all" not in _variants():
            tag = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{tag}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what `initialize` has made outside the wheel."""
        if hasattr(self, "_directory"):
            shutil.rmtree(self._directory, ignore_errors=True)

    def _compiled(self, directory: Path) -> list[Path]:
        """The extension modules in a directory: those that were kept, or new ones."""
        kept = importlib.import_module("kernel_compiler.kept")
        entry = _entry(kept)
        with kept.alone(entry):
            files: dict[str, bytes] = kept.load(entry)
            if not files:
                # pip shows this with `-v` only, like all that a build says.
                self.app.display_info("compiling the kernels, which takes a minute")
                build = importlib.import_module("kernel_compiler.build").build
                made: list[Path] = build(directory, _variants())
                kept.keep(entry, {each.name: each.read_bytes() for each in made})
                return made
        for name, data in files.items():
            Path(directory, name).write_bytes(data)
            Path(directory, name).chmod(0o755)
        return [Path(directory, name) for name in files]

    @contextlib.contextmanager
    def _storage_on_path(self) -> Iterator[None]:
        storage = str(Path(self.root, "storage"))
        sys.path.insert(0, storage)
        try:
            yield
        finally:
            sys.path.remove(storage)


def _entry(kept: ModuleType) -> Path | None:
    """Where the kernels of this build are kept."""
    place = f"{platform.system()}-{platform.machine()}".lower()
    entry: Path | None = kept.entry_for(NUMBA, place, _variants())
    return entry


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
