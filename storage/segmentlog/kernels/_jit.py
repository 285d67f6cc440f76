"""The only place that compiles kernels, and its rules.

Compiled lazily, cached on disk (`segmentlog.kernel_cache`), without the interpreter lock, with
numpy's arithmetic (integers wrap, as Java's do).
"""

from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar, cast

import numba
from numba.core.registry import CPUDispatcher

from segmentlog.kernel_cache import KernelCache

__all__ = ["Kernel", "inlined", "kernel"]

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class Kernel(Protocol[P, R_co]):
    """A compiled function; `py_func` is the function in plain Python."""

    py_func: Callable[..., object]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class _Inlined(CPUDispatcher):  # type: ignore[misc]
    """A function that is compiled only inside the kernels that call it."""

    def __call__(self, *args: object) -> object:
        """Run as Python: numba would call an address that does not exist."""
        return self.py_func(*args)


#: Without numba's runtime: it counts references to arrays in the innermost loops, which took
#: five times as long as the loops (decode of 110 B records: 121 ns a record with, 23 without).
_OPTIONS = {"nogil": True, "error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True}


def kernel(func: Callable[P, R_co]) -> Kernel[P, R_co]:
    """Compile `func` at its first call."""
    return _kept(numba.njit(**_OPTIONS)(func), func)


def inlined(func: Callable[P, R_co]) -> Kernel[P, R_co]:
    """Compile `func` into every kernel that calls it, so that its results stay in registers.

    There are no entry points from Python or C: each would contain all of its code again, and both
    together took a fifth of the time until the first batch on a new machine.
    """
    if numba.config.DISABLE_JIT:
        return kernel(func)
    options = _OPTIONS | {"nopython": True, "forceinline": True, "no_cpython_wrapper": True}
    return _kept(_Inlined(func, targetoptions=options), func)


def _kept(
    compiled: Any,  # noqa: ANN401 - numba has no types
    func: Callable[P, R_co],
) -> Kernel[P, R_co]:
    """Compile `func` at its first call, and keep its code in files."""
    if not hasattr(compiled, "py_func"):  # NUMBA_DISABLE_JIT=1 hands `func` back
        compiled.py_func = func
    elif func.__module__.startswith(f"{__package__}.") and func.__closure__ is None:
        compiled._cache = KernelCache(func)  # its sources and its name identify it
    return cast("Kernel[P, R_co]", compiled)
