# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Lower kernels to LLVM modules, with numba.

Numba would optimize each kernel on its own, and would hand it to its just-in-time compiler.  Both
are left out: the modules are linked first, and LLVM runs once over all of them, for each kind of
processor.
"""

import importlib
import pkgutil
import types
import typing
from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import binding as llvm
from numba.core import cpu
from numba.core import types as nb
from numba.core.codegen import CPUCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUDispatcher

from segmentlog import native

__all__ = ["NO_RESULT", "NUMBER", "TRUTH", "Lowered", "lower_all"]

#: Without numba's runtime: it counts references to arrays in the innermost loops, which took
#: five times as long as the loops (decode of 110 B records: 121 ns a record with, 23 without).
_OPTIONS = {
    "nopython": True,
    "nogil": True,
    "error_model": "numpy",
    "_nrt": False,
    "no_cfunc_wrapper": True,
    "no_cpython_wrapper": True,
}

#: In the place of the number of items of a tuple.
NO_RESULT, TRUTH, NUMBER = -2, -1, 0
_RESULTS: dict[Any, int] = {types.NoneType: NO_RESULT, bool: TRUTH, int: NUMBER}


class Lowered(NamedTuple):
    """One kernel for arguments of one kind."""

    name: str  # ``module.function``
    symbol: str  # LLVM's name
    arguments: tuple[Any, ...]  # numba's types
    result: int  # how many numbers it returns, or `NO_RESULT`, `TRUTH`, `NUMBER`


class _Uncalled(CPUDispatcher):  # type: ignore[misc]
    """A function that is compiled only into others: it has no address in this process."""

    def __call__(self, *args):
        return self.py_func(*args)


def lower_all(*, is_checked: bool) -> list[tuple[llvm.ModuleRef, list[Lowered]]]:
    """All kernels, and the code between CPython and them: a module of each, and its entries.

    With `is_checked`, an index outside an array raises an error.
    """
    options = {**_OPTIONS, "boundscheck": is_checked}
    entries: list[CPUDispatcher] = []

    def entry(func):
        entries.append(_Uncalled(func, targetoptions=options))
        return entries[-1]

    decorators: Any = native
    decorators.kernel = entry
    decorators.internal = lambda func: _Uncalled(func, targetoptions=options)
    decorators.inlined = lambda func: _Uncalled(
        func, targetoptions=options | {"forceinline": True}
    )
    # Modules of kernels import from these two what a processor does better.
    instructions = importlib.import_module("kernel_compiler.instructions")
    memory = importlib.import_module("segmentlog.format.kernels.memory")
    vars(memory).update(instructions.TWINS, copy_wide=native.internal(instructions.copy_wide))
    crc32c: Any = importlib.import_module("segmentlog.format.kernels.crc32c")
    crc32c.crc32c = importlib.import_module("kernel_compiler.checksum").crc32c
    kernels = importlib.import_module("segmentlog.format.kernels")
    for each in pkgutil.iter_modules(kernels.__path__):
        importlib.import_module(f"{kernels.__name__}.{each.name}")
    n_kernels = len(entries)
    importlib.import_module("kernel_compiler.glue")
    # Numba would optimize each library, hand it to its just-in-time compiler, and ask for the
    # address of each function, by which it finds the function again: any object of its own does.
    CPUCodeLibrary._optimize_functions = lambda self, module: None
    CPUCodeLibrary._optimize_final_module = lambda self: None
    CPUCodeLibrary._finalize_final_module = lambda self: setattr(self, "_finalized", True)
    cpu.CPUContext.get_executable = lambda self, library, fndesc, env: [].append
    return [_lower(entries[:n_kernels]), _lower(entries[n_kernels:])]


def _lower(entries: list[CPUDispatcher]) -> tuple[llvm.ModuleRef, list[Lowered]]:
    module: Any = None
    lowered: list[Lowered] = []
    for entry in entries:
        hints = typing.get_type_hints(entry.py_func, include_extras=True)
        kind = hints.pop("return")
        result = _RESULTS.get(kind, len(typing.get_args(kind)))
        # A kernel whose arrays of `Ends` have 32 or 64 bits is lowered for both.
        kinds = [
            tuple(_kind(each, ends) for each in hints.values()) for ends in (nb.int32, nb.int64)
        ]
        for arguments in dict.fromkeys(kinds):
            entry.compile(arguments)
            made = entry.overloads[arguments]
            with global_compiler_lock:
                made.library._ensure_finalized()  # links what it calls
            linked = made.library._final_module
            for function in linked.functions:  # several kernels call some of them
                if not function.is_declaration and function.linkage == llvm.Linkage.external:
                    function.linkage = "linkonce_odr"
            symbol = made.fndesc.llvm_func_name
            linked.get_function(symbol).linkage = "external"
            name = f"{entry.py_func.__module__.rpartition('.')[2]}.{entry.py_func.__name__}"
            lowered.append(Lowered(name, symbol, arguments, result))
            if module is None:
                module = linked
            else:
                module.link_in(linked)
    symbols = {each.symbol for each in lowered}
    for function in module.functions:
        if not function.is_declaration and function.name not in symbols:
            function.linkage = "internal"  # so LLVM sees all calls, and what they write to
    return module, lowered


def _kind(hint: Any, ends: Any) -> Any:
    """Numba's type for an annotation."""
    if hint is int:
        return nb.int64
    if isinstance(hint, type) and issubclass(hint, tuple):
        fields = typing.get_type_hints(hint, include_extras=True)
        kinds = [_kind(each, ends) for each in fields.values()]
        return nb.NamedTuple(kinds, hint)  # type: ignore[attr-defined]
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return nb.Array(ends, 1, "C")
    n_dimensions = 1
    if typing.get_origin(hint) is typing.Annotated:
        hint, n_dimensions = typing.get_args(hint)
    dtype = typing.get_args(typing.get_args(hint)[1])[0]
    return nb.Array(numba.from_dtype(np.dtype(dtype)), n_dimensions, "C")
