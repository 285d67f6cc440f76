"""Unaligned loads and stores, and byte copies, for kernels.

Each is a plain-Python function with a compiled twin (``storage/kernel_compiler/instructions.py``),
so a kernel gives the same in Python.  No function here checks a bound: the kernel has done so.
The compiler's bounds checks do not cover these functions, so the tests run every kernel on buffers
that end at an unreadable page.
"""

import ctypes
import struct
from typing import Annotated, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Bytes: TypeAlias = NDArray[np.uint8]
Int32s: TypeAlias = NDArray[np.int32]
Int64s: TypeAlias = NDArray[np.int64]
#: With two dimensions; all others have one.
Int64Table: TypeAlias = Annotated[NDArray[np.int64], 2]

_packed: Any = struct.Struct  # whose types do not know that arrays are buffers
_I64, _I32, _I16 = _packed(">q"), _packed(">i"), _packed(">h")
_U64, _U32 = _packed("<Q"), _packed("<I")
_BIG_U32, _BIG_U16 = _packed(">I"), _packed(">H")

_C_5 = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 5)
_C_6 = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 6)

#: Bytes that `copy_wide` may touch after the last requested one, in source and target.
COPY_SLACK = 128

#: Most bytes that `copy_wide` copies; above it memcpy's own choice of instructions wins.
MOST_WIDE_BYTES = 256


def load_i64(buf: Bytes, at: int) -> int:
    """Big-endian signed 64 bits at byte `at`; the caller has checked ``at + 8 <= buf.size``."""
    return int(_I64.unpack_from(buf, at)[0])


def load_i32(buf: Bytes, at: int) -> int:
    """Big-endian signed 32 bits at byte `at`; the caller has checked ``at + 4 <= buf.size``."""
    return int(_I32.unpack_from(buf, at)[0])


def load_i16(buf: Bytes, at: int) -> int:
    """Big-endian signed 16 bits at byte `at`; the caller has checked ``at + 2 <= buf.size``."""
    return int(_I16.unpack_from(buf, at)[0])


def load_u8(buf: Bytes, at: int) -> int:
    """The byte at `at`; the caller has checked ``0 <= at < buf.size``."""
    return buf.item(at)


def load_item(array: Int32s | Int64s, at: int) -> int:
    """Element `at` of an array without gaps; the caller has checked ``0 <= at < array.size``."""
    return array.item(at)


def store_item(array: Int32s | Int64s, at: int, value: int) -> None:
    """Set an element of an array without gaps; the caller has checked ``0 <= at < array.size``."""
    array[at] = value


def prefetch(array: Bytes | Int32s | Int64s, at: int) -> None:
    """Ask for the cache line of element `at`, which may lie outside the array."""


def load_u32(buf: Bytes, at: int) -> int:
    """Little-endian unsigned 32 bits at byte `at`; the caller has checked the bounds."""
    return int(_U32.unpack_from(buf, at)[0])


def load_u64(buf: Bytes, at: int) -> np.uint64:
    """Little-endian 64 bits at byte `at`; the caller has checked ``at + 8 <= buf.size``."""
    return np.uint64(_U64.unpack_from(buf, at)[0])


def store_i64(buf: Bytes, at: int, value: int) -> None:
    """Big-endian 64 bits to byte `at`; the caller has checked ``at + 8 <= buf.size``."""
    _I64.pack_into(buf, at, int(value))


def store_i32(buf: Bytes, at: int, value: int) -> None:
    """Low 32 bits, big-endian, to byte `at`; the caller has checked ``at + 4 <= buf.size``."""
    _BIG_U32.pack_into(buf, at, int(value) & 0xFFFFFFFF)


def store_i16(buf: Bytes, at: int, value: int) -> None:
    """Low 16 bits, big-endian, to byte `at`; the caller has checked ``at + 2 <= buf.size``."""
    _BIG_U16.pack_into(buf, at, int(value) & 0xFFFF)


def store_u64(buf: Bytes, at: int, word: int | np.uint64) -> None:
    """Little-endian 64 bits to byte `at`; the caller has checked ``at + 8 <= buf.size``."""
    _U64.pack_into(buf, at, int(word))


def store_u8(buf: Bytes, at: int, value: int) -> None:
    """The low byte to byte `at`; the caller has checked ``0 <= at < buf.size``."""
    buf[at] = int(value) & 0xFF


def leading_zeros(word: int) -> int:
    """Number of zero bits above the highest set one of 64; 64 for zero."""
    return 64 - (int(word) & 0xFFFFFFFFFFFFFFFF).bit_length()


def trailing_zeros(word: np.uint64) -> int:
    """Number of zero bits below the lowest set one; 64 for zero."""
    value = int(word)
    return (value & -value).bit_length() - 1 if value else 64


def copy_bytes(target: Bytes, to: int, source: Bytes, at: int, n_bytes: int) -> None:
    """Copy exactly `n_bytes` from ``source[at:]`` to ``target[to:]``; no overlap."""
    target[to : to + n_bytes] = source[at : at + n_bytes]


def copy_wide(target: Bytes, to: int, source: Bytes, at: int, n_bytes: int) -> None:
    """Copy up to `MOST_WIDE_BYTES` in whole vectors; bytes after the target may change as well.

    The caller has checked that source and target both have `COPY_SLACK` bytes after the copy.
    There are few sizes of copy and no loop: on short values a loop costs more than extra bytes.
    """
    target[to : to + n_bytes] = source[at : at + n_bytes]


def call_5(address: int, a: int, b: int, c: int, d: int, e: int) -> int:
    """Call a C function of five integers or pointers; its result as a signed number."""
    return int(_C_5(int(address))(*map(int, (a, b, c, d, e))))


def call_6(address: int, a: int, b: int, c: int, d: int, e: int, f: int) -> int:
    """Call a C function of six integers or pointers; its result as a signed number."""
    return int(_C_6(int(address))(*map(int, (a, b, c, d, e, f))))
