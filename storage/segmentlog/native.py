"""Kernels are Python; the wheel also has them as native code, and then that code runs.

A build compiles them (``storage/kernel_compiler``) into an extension module for each platform,
with variants for several processors.  Without it, the same kernels run in Python: with the same
results, and much slower.
"""

import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from segmentlog.errors import KernelsError

F = TypeVar("F", bound=Callable[..., object])

PLATFORM = f"{os.uname().sysname}-{os.uname().machine}".lower()


def file_of(platform: str) -> str:
    """Name of the extension module of a platform; no ``import`` finds it."""
    return f"_compiled.{platform}.so"


FILE = file_of(PLATFORM)
_NAME = "segmentlog.format.kernels._compiled"
REMEDY = (
    "install a wheel for this platform, or pip install . where the package index has numba for "
    "this Python; SEGMENTLOG_PYTHON_KERNELS=1 accepts kernels in Python"
)
_REBUILD = "python -m kernel_compiler.build"


def _load() -> ModuleType | None:
    """The compiled kernels; None if there are none, or if kernels in Python are asked for.

    The module chooses its variant: ``SEGMENTLOG_KERNELS``, or the best that the processor runs.
    """
    if os.environ.get("SEGMENTLOG_PYTHON_KERNELS") == "1":
        return None
    here = Path(__file__).parent / "format" / "kernels"
    try:
        made = _import(str(here / FILE)) if (here / FILE).exists() else _load_from_archive()
        reason = f"{here} has no {FILE}"
    except ImportError as error:
        made, reason = None, f"{here / FILE}: {error}"
    asked = os.environ.get("SEGMENTLOG_KERNELS")
    if made is None and asked:
        message = f"SEGMENTLOG_KERNELS is {asked}: {reason}; unset it for the best"
        raise KernelsError(message)
    if made is None:
        warnings.warn(
            f"segmentlog's kernels run in Python, much slower than compiled: {reason}; {REMEDY}",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    # Only a checkout has both: there, the sources may be newer than the code.
    compiler = here.parents[2] / "kernel_compiler"
    if compiler.is_dir() and made.digest != digest_of(here):
        message = (
            f"{here / FILE} was compiled from other sources than those beside it: run "
            f"`{_REBUILD}` in {compiler.parent}"
        )
        raise KernelsError(message)
    return made


def _import(path: str) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(_NAME, path)
    spec = importlib.util.spec_from_file_location(_NAME, path, loader=loader)
    assert spec is not None  # noqa: S101 - there is a loader
    made = importlib.util.module_from_spec(spec)
    loader.exec_module(made)
    return made


def _load_from_archive() -> ModuleType | None:
    """The module of a zip, such as ``--py-files``: a library can only be loaded from a file."""
    loader = globals()["__loader__"]
    try:
        data = loader.get_data(os.path.join(os.path.dirname(__file__), "format", "kernels", FILE))
    except (AttributeError, OSError):
        return None
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create(FILE)  # in memory: it has no path, and ends with the process
        try:
            os.write(descriptor, data)
            return _import(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
    with tempfile.TemporaryDirectory(prefix="segmentlog-") as directory:  # nobody else can enter
        path = Path(directory, FILE)
        path.write_bytes(data)
        return _import(str(path))


def digest_of(directory: Path) -> str:
    """Digest of the kernels' sources, as a build computes it."""
    digest = hashlib.sha256()
    for path in sorted(directory.glob("*.py")):
        source = path.read_bytes()
        digest.update(f"{path.name}\0{len(source)}\0".encode() + source)
    return digest.hexdigest()


_compiled = _load()

#: The kind of processor whose native code runs; None for kernels in Python.
VARIANT: str | None = None if _compiled is None else _compiled.variant


def platforms() -> list[str]:
    """Platforms for which this package has native code: those beside its sources."""
    prefix, suffix = file_of("\0").split("\0")
    here = Path(__file__).parent / "format" / "kernels"
    found = sorted(here.glob(f"{prefix}*{suffix}"))
    return [each.name.removeprefix(prefix).removesuffix(suffix) for each in found]


def check_compiled() -> None:
    """Refuse work for many rows without native code, unless the environment accepts that.

    Raises `KernelsError` if the kernels would run in Python.
    """
    if VARIANT is None and os.environ.get("SEGMENTLOG_PYTHON_KERNELS") != "1":
        message = f"{sys.executable} has no compiled kernels of segmentlog: {REMEDY}"
        raise KernelsError(message)


def kernel(func: F) -> F:
    """Compile `func`, to be called from Python."""
    name = f"{func.__module__.rpartition('.')[2]}.{func.__name__}"
    made: F = getattr(_compiled, name, func)
    return made


def internal(func: F) -> F:
    """Compile `func`, which only kernels call."""
    return func


def inlined(func: F) -> F:
    """Compile `func` into every kernel that calls it, so that its results stay in registers."""
    return func


@functools.cache
def address_of(name: str) -> int:
    """The address of a function of the C library; 0 where there is none, or words are shorter."""
    import ctypes

    found = getattr(ctypes.CDLL(None), name, None)
    if found is None or sys.maxsize < 2**32:
        return 0
    return ctypes.cast(found, ctypes.c_void_p).value or 0
