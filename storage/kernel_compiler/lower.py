# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Lower all kernels to one LLVM module for one kind of processor, with numba.

Numba would optimize each kernel on its own, and would hand it to its just-in-time compiler.  Both
are left out: the modules are linked first, and LLVM runs once over all of them.
"""

import importlib
import pkgutil
import typing
from typing import Any

import numba
import numpy as np
from llvmlite import binding as llvm
from numba.core import cpu
from numba.core import types as nb
from numba.core.codegen import CPUCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUDispatcher

from kernel_compiler import begin
from kernel_compiler.signatures import Lowered, signatures

__all__ = ["lower_all"]

#: Without numba's runtime: it counts references to arrays in the innermost loops, which took
#: five times as long as the loops (decode of 110 B records: 121 ns a record with, 23 without).
_OPTIONS = {
    "nogil": True, "error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True,
    "no_cpython_wrapper": True,
}  # fmt: skip


class _Uncalled(CPUDispatcher):  # type: ignore[misc]
    """A function that is compiled only into others: it has no address in this process."""

    def __call__(self, *args):
        return self.py_func(*args)


def lower_all(*, is_checked: bool = False) -> tuple[llvm.ModuleRef, list[Lowered]]:
    """The module of all kernels, and its entries.

    Parameters
    ----------
    is_checked : whether an index outside an array raises an error.
    """
    entries = _import_kernels({**_OPTIONS, "boundscheck": is_checked})
    # Numba would optimize each library, hand it to its just-in-time compiler, and ask for the
    # address of each function, by which it finds the function again: any object of its own does.
    CPUCodeLibrary._optimize_functions = lambda self, module: None
    CPUCodeLibrary._optimize_final_module = lambda self: None
    CPUCodeLibrary._finalize_final_module = lambda self: setattr(self, "_finalized", True)
    cpu.CPUContext.get_executable = lambda self, library, fndesc, env: [].append
    module: Any = None
    lowered: list[Lowered] = []
    for entry in entries:
        hints = typing.get_type_hints(entry.py_func, include_extras=True).values()
        kinds, result = signatures(entry.py_func)
        for kind in kinds:
            arguments = tuple(map(_numba_type, kind, hints))
            entry.compile(arguments)
            made = entry.overloads[arguments]
            with global_compiler_lock:
                made.library._ensure_finalized()  # links what it calls
            linked = made.library._final_module
            for function in linked.functions:  # several kernels call some of them
                if not function.is_declaration and function.linkage == llvm.Linkage.external:
                    function.linkage = "linkonce_odr"
            linked.get_function(made.fndesc.llvm_func_name).linkage = "external"
            name = f"{entry.py_func.__module__.rpartition('.')[2]}.{entry.py_func.__name__}"
            lowered.append(Lowered(name, made.fndesc.llvm_func_name, kind, result))
            if module is None:
                module = linked
            else:
                module.link_in(linked)
    symbols = {each.symbol for each in lowered}
    for function in module.functions:
        if not function.is_declaration and function.name not in symbols:
            function.linkage = "internal"  # so LLVM sees all calls, and what they write to
    return module, lowered


def _import_kernels(options: dict[str, Any]) -> list[CPUDispatcher]:
    """Import the kernels' modules with decorators that compile; the kernels for Python."""
    begin()
    entries = []

    def entry(func):
        entries.append(_Uncalled(func, targetoptions=options | {"nopython": True}))
        return entries[-1]

    native: Any = importlib.import_module("segmentlog.native")
    native.kernel = entry
    native.internal = lambda func: _Uncalled(func, targetoptions=options | {"nopython": True})
    native.inlined = lambda func: _Uncalled(
        func, targetoptions=options | {"nopython": True, "forceinline": True}
    )
    kernels = importlib.import_module("segmentlog.format.kernels")
    for each in pkgutil.iter_modules(kernels.__path__):
        importlib.import_module(f"segmentlog.format.kernels.{each.name}")
    importlib.import_module("kernel_compiler.crc_block")
    return entries


def _numba_type(kind, hint):
    """Numba's type for an argument."""
    if kind is int:
        return nb.int64
    if isinstance(kind, list):
        hints = typing.get_type_hints(hint, include_extras=True).values()
        fields = [_numba_type(*each) for each in zip(kind, hints, strict=True)]
        return nb.NamedTuple(fields, hint)  # type: ignore[attr-defined]
    return nb.Array(numba.from_dtype(np.dtype(kind.dtype)), kind.n_dimensions, "C")
