"""Small reads on a machine without compiled kernels: as plain Python, at once.

The compiler takes seconds, once for each machine and version.  The kernels are Python, too, and
numba runs them uncompiled if it is told so before they are imported: a megabyte takes about a
second.  A process of the command line reads once, so a small read is quicker without the compiler.
Commands that a longer process calls, such as a test, never switch it off.
"""

import sys

__all__ = ["begin_program", "leave_compiler_out"]

_FEW_BYTES = 256 << 10
_PROGRAMS: list[None] = []


def begin_program() -> None:
    """Note that this process is the command line, and ends with its command."""
    _PROGRAMS.append(None)


def leave_compiler_out(n_bytes: int) -> None:
    """Run the kernels of this process as plain Python, if it reads little and none are ready.

    Nothing happens if this process is not the command line, if the kernels are imported already,
    or if `segmentlog warmup` has compiled them.

    Parameters
    ----------
    n_bytes : of the ``.log`` files that the process will read.
    """
    if not _PROGRAMS or n_bytes > _FEW_BYTES or "segmentlog.kernels._jit" in sys.modules:
        return
    import numba

    from segmentlog.kernel_cache import store_of

    if not store_of("segmentlog.kernels").is_warmed():
        numba.config.DISABLE_JIT = 1
