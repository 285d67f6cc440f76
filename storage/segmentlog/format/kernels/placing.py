"""Rows of a column to their places in another column."""

from segmentlog.format.kernels.memory import (
    Bytes,
    Int32s,
    Int64s,
    copy_bytes,
    load_item,
    store_item,
)
from segmentlog.format.kernels.source import BinaryArrays, Ends
from segmentlog.native import kernel


@kernel
def place_numbers(numbers: Ends, places: Int64s, placed: Ends) -> int:
    """Copy the numbers of some rows to their rows of another column.

    Parameters
    ----------
    numbers : array of int32 or int64, shape (n_rows,); read only
    places : int64 array, shape (n_rows,); read only; the row of each in `placed`, checked by the
        caller
    placed : array of the same type; written

    Returns
    -------
    n_rows
    """
    for row in range(places.shape[0]):
        store_item(placed, load_item(places, row), load_item(numbers, row))
    return int(places.shape[0])


@kernel
def place_lengths(column: BinaryArrays, places: Int64s, ends: Int32s) -> int:
    """Write the length of each value to the bound after its row of another column.

    Parameters
    ----------
    column : read only; its nulls have the length that their bounds say
    places : int64 array, shape (n_rows,); read only; as for `place_numbers`
    ends : int32 array; written at each place plus one

    Returns
    -------
    n_rows
    """
    for row in range(places.shape[0]):
        length = load_item(column.ends, row + 1) - load_item(column.ends, row)
        store_item(ends, load_item(places, row) + 1, length)
    return int(places.shape[0])


@kernel
def place_values(column: BinaryArrays, places: Int64s, ends: Int32s, data: Bytes) -> int:
    """Copy the bytes of some rows to their rows of another column.

    Parameters
    ----------
    column : read only
    places : int64 array, shape (n_rows,); read only; as for `place_numbers`
    ends : int32 array; read only; the bounds of the other column: the running sums of what
        `place_lengths` has written, of which the last is the size of `data`
    data : uint8 array; written

    Returns
    -------
    n_rows
    """
    for row in range(places.shape[0]):
        start = load_item(column.ends, row)
        length = load_item(column.ends, row + 1) - start
        copy_bytes(data, load_item(ends, load_item(places, row)), column.data, start, length)
    return int(places.shape[0])
