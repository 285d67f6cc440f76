"""The one compile policy of the project.

Compiled lazily, cached on disk (`segmentlog.kernel_cache`), without the interpreter lock, with
numpy's arithmetic (integers wrap, as Java's do).
"""

from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar, cast

import numba

from segmentlog.kernel_cache import KernelCache

__all__ = ["Kernel", "inlined", "kernel"]

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class Kernel(Protocol[P, R_co]):
    """A compiled function; `py_func` is the same in plain Python."""

    py_func: Callable[..., object]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


def _compile(func: Callable[P, R_co], *, forceinline: bool) -> Kernel[P, R_co]:
    # Without numba's runtime: it counts references to arrays in the innermost loops, which took
    # five times as long as the loops (decode of 110 B records: 121 ns a record with, 23 without).
    options = {"nogil": True, "error_model": "numpy", "forceinline": forceinline, "_nrt": False}
    compiled = numba.njit(**options)(func)
    if not hasattr(compiled, "py_func"):  # NUMBA_DISABLE_JIT=1 hands `func` back
        compiled.py_func = func
    elif func.__module__.startswith(f"{__package__}.") and func.__closure__ is None:
        compiled._cache = KernelCache(func)  # its sources and its name identify it
    return cast("Kernel[P, R_co]", compiled)


def kernel(func: Callable[P, R_co]) -> Kernel[P, R_co]:
    """Compile `func` at its first call."""
    return _compile(func, forceinline=False)


def inlined(func: Callable[P, R_co]) -> Kernel[P, R_co]:
    """Compile `func` into every kernel that calls it, so that its results stay in registers."""
    return _compile(func, forceinline=True)
