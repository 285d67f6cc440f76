"""Where records to encode come from: the arrays of one Arrow batch, and how they are read."""

from typing import NamedTuple, TypeAlias

from segmentlog.kernels._jit import inlined
from segmentlog.kernels.memory import Bytes, Int32s, Int64s, load_u8

__all__ = ["OUTSIDE", "BinaryArrays", "Ends", "SourceArrays", "is_null", "length_of"]

#: Arrow's bounds of variable-length values; those of its "large" types have 64 bits.
Ends: TypeAlias = Int32s | Int64s

#: In place of a length, where the bounds of a value do not lie in its column's bytes.
OUTSIDE = -2


class BinaryArrays(NamedTuple):
    """A column of byte strings; where `ends` has length 0, there is none and every row is null.

    `ends` has shape (n_rows + 1,) and points into `data`.  Bit ``first_bit + row`` of `valid` is
    clear for a null; where `valid` has length 0, no row is null.
    """

    ends: Ends
    valid: Bytes
    first_bit: int
    data: Bytes


class SourceArrays(NamedTuple):
    """The columns of records; `list_ends` point into the two columns of headers.

    `list_ends`, `list_valid` and `list_first_bit` are as in `BinaryArrays`; a null list is an
    empty one.
    """

    timestamps: Int64s
    keys: BinaryArrays
    values: BinaryArrays
    list_ends: Ends
    list_valid: Bytes
    list_first_bit: int
    header_keys: BinaryArrays
    header_values: BinaryArrays


@inlined
def is_null(valid: Bytes, bit: int) -> bool:
    """Whether a bitmap's bit is clear; the caller has checked that there are as many bits."""
    return valid.shape[0] > 0 and (load_u8(valid, bit >> 3) >> (bit & 7)) & 1 == 0


@inlined
def length_of(column: BinaryArrays, row: int) -> int:
    """Bytes of a value, -1 for a null, or `OUTSIDE`; the caller has checked `row`."""
    if column.ends.shape[0] == 0 or is_null(column.valid, column.first_bit + row):
        return -1
    start, end = int(column.ends[row]), int(column.ends[row + 1])
    if 0 <= start <= end <= column.data.shape[0]:
        return end - start
    return OUTSIDE
