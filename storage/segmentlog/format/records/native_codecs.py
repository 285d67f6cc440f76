"""Addresses of the functions by which kernels inflate LZ4 and zstd.

They are functions of the public C interfaces of LZ4 and zstd, whose names and parameters have been
stable since LZ4 1.8.3 and zstd 1.0.  The wheels of `lz4` and `zstandard` contain these libraries
and export their symbols, although they do not promise to.  So each function is looked up by its
name and tried on a known frame.  If that fails, batches are inflated by calls from Python.
"""

import ctypes
import functools
import importlib.util
import logging
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from segmentlog.format.kernels import inflate as addresses
from segmentlog.format.kernels.memory import Int64s
from segmentlog.model import Codec

logger = logging.getLogger(__name__)

_LZ4F_VERSION = 100
_KNOWN = b"segmentlog"
_LZ4_FRAME = bytes.fromhex("04224d18 604082 0a000080") + _KNOWN + bytes(4)
_ZSTD_FRAME = bytes.fromhex("28b52ffd 20 0a 510000") + _KNOWN


class NativeCodecs:
    """The addresses for one decoder, with working memory that no other thread may use.

    `addresses`: int64 array, shape (`segmentlog.format.kernels.inflate.N_CODEC_COLUMNS`,).
    """

    def __init__(self) -> None:
        self.addresses: Int64s = np.zeros(addresses.N_CODEC_COLUMNS, np.int64)

    def load(self, codec: int) -> None:
        """Look the functions of LZ4 or zstd up; the array shows whether they exist."""
        if codec == Codec.LZ4:
            library, at = _lz4(), addresses.LZ4_DECOMPRESS
        else:
            library, at = _zstd(), addresses.ZSTD_DECOMPRESS
        if library is None:
            self.addresses[at] = addresses.UNAVAILABLE
        elif codec == Codec.LZ4:
            context = _lz4_context(library)
            self._free_with_me(library.LZ4F_freeDecompressionContext, context)
            self.addresses[addresses.LZ4_CONTEXT] = _value(context)
            self.addresses[addresses.LZ4_RESET] = _address(library.LZ4F_resetDecompressionContext)
            self.addresses[at] = _address(library.LZ4F_decompress)
        else:
            context = _zstd_context(library)
            self._free_with_me(library.ZSTD_freeDCtx, context)
            self.addresses[addresses.ZSTD_CONTEXT] = _value(context)
            self.addresses[at] = _address(library.ZSTD_decompressDCtx)

    def _free_with_me(
        self, free: Callable[[ctypes.c_void_p], Any], context: ctypes.c_void_p
    ) -> None:
        """Free a context with this object, but not when the interpreter ends."""
        # A daemon thread may still inflate then, and would write to memory that was freed: a
        # quarter of the processes that ended during a read were aborted because of it.
        weakref.finalize(self, free, context).atexit = False


def _address(function: Any) -> int:  # noqa: ANN401 - ctypes gives them no type
    return _value(ctypes.cast(function, ctypes.c_void_p))


def _value(pointer: ctypes.c_void_p) -> int:
    return pointer.value or 0


def _library(module: str) -> ctypes.CDLL:
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:
        message = f"there is no module {module}"
        raise OSError(message)
    return ctypes.CDLL(found.origin)


@functools.cache
def _lz4() -> ctypes.CDLL | None:
    """The library with LZ4's frame functions, tried; None if there is none."""
    try:
        library = _library("lz4.frame._frame")
        context = _lz4_context(library)
        target = ctypes.create_string_buffer(64)
        n_target, n_source = ctypes.c_size_t(64), ctypes.c_size_t(len(_LZ4_FRAME))
        left = library.LZ4F_decompress(
            context, target, ctypes.byref(n_target), _LZ4_FRAME, ctypes.byref(n_source), None
        )
        library.LZ4F_resetDecompressionContext(context)
        library.LZ4F_freeDecompressionContext(context)
        is_right = left == 0 and target.raw[: n_target.value] == _KNOWN
    except (OSError, ImportError, AttributeError) as error:
        logger.debug("LZ4 is decompressed by a Python library: %s", error)
        return None
    return library if is_right else None


def _lz4_context(library: ctypes.CDLL) -> ctypes.c_void_p:
    context = ctypes.c_void_p()
    if library.LZ4F_createDecompressionContext(ctypes.byref(context), _LZ4F_VERSION):
        raise OSError("LZ4 has no memory for a context")
    return context


@functools.cache
def _zstd() -> ctypes.CDLL | None:
    """The library with zstd's functions, tried; None if there is none."""
    try:
        library = _library("zstandard._cffi")
        library.ZSTD_createDCtx.restype = ctypes.c_void_p
        library.ZSTD_decompressDCtx.restype = ctypes.c_size_t
        context = _zstd_context(library)
        target = ctypes.create_string_buffer(64)
        n_written = library.ZSTD_decompressDCtx(
            context, target, ctypes.c_size_t(64), _ZSTD_FRAME, ctypes.c_size_t(len(_ZSTD_FRAME))
        )
        library.ZSTD_freeDCtx(context)
        is_right = target.raw[:n_written] == _KNOWN
    except (OSError, ImportError, AttributeError) as error:
        logger.debug("zstd is decompressed by a Python library: %s", error)
        return None
    return library if is_right else None


def _zstd_context(library: ctypes.CDLL) -> ctypes.c_void_p:
    context = ctypes.c_void_p(library.ZSTD_createDCtx())
    if context.value is None:
        raise OSError("zstd has no memory for a context")
    return context
