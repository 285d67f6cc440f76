"""Rows of one Arrow batch cut into pieces that stay small when they are decoded.

The bytes of a column show little about its rows if many rows share one value: an entry of a
dictionary, or bytes that many views point to.  A dictionary of one value of 1 MiB with an index of
3,000 rows takes 1 MiB, but makes 3 GiB of records.  So each row is measured by its decoded size.
"""

import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from segmentlog.format.kernels.memory import Int64s
from segmentlog.format.records.source import cast_column, headers_type

#: The limit of 32-bit bounds of a decoded column, and of a batch's length.
MOST_ROW_BYTES = 2**31 - 1

#: Types in which many rows may share one value.
_SHARING = re.compile("dictionary|view")
_WIDE = re.compile("large|view")
#: Rows that are measured at once: each takes 8 bytes, in several arrays.
_WINDOW_ROWS = 1 << 20
#: Most bytes of a piece, below the limit of 32-bit bounds of a decoded column.
_MOST_BYTES = 1 << 30
_BOUNDED = (pa.binary(), pa.string(), pa.large_binary(), pa.large_string())
_NAMES = ("key", "value", "headers")

Piece = tuple[pa.RecordBatch, int]


def cut_rows(batch: pa.RecordBatch, most_bytes: int, least_row_bytes: int) -> Iterator[Piece]:
    """Pieces of rows in their order, without shared values, and the approximate size of each.

    Only a piece of one row is larger than `most_bytes`, or than 1 GiB.

    `batch`: its columns may be of any type that can be written.  `most_bytes`: of a piece,
    decoded.  `least_row_bytes`: least bytes that a row counts as: columns of nulls alone have no
    bytes.  Raises `ColumnError` if a column has a type that cannot be written;
    `pyarrow.ArrowInvalid` or `pyarrow.ArrowIndexError` if the buffers of `batch` are smaller than
    its lengths, or if indices lie outside a dictionary.
    """
    most_bytes = min(most_bytes, _MOST_BYTES)
    shares = any(_SHARING.search(str(batch.schema.field(name).type)) for name in _shown(batch))
    if not shares:  # before pyarrow 25, `nbytes` of views is an error, or reads other memory
        n_bytes = max(batch.nbytes, least_row_bytes * batch.num_rows)
        if n_bytes <= most_bytes:
            yield batch, n_bytes
            return
    batch.validate()
    for start in range(0, batch.num_rows, _WINDOW_ROWS):
        window = batch.slice(start, _WINDOW_ROWS)
        ends = np.cumsum(np.maximum(_bytes_of_rows(window), least_row_bytes))
        begin, before = 0, 0
        while begin < len(ends):
            end = max(int(np.searchsorted(ends, before + most_bytes, "right")), begin + 1)
            piece = window.slice(begin, end - begin)
            n_bytes = int(ends[end - 1]) - before
            is_small = n_bytes <= MOST_ROW_BYTES  # otherwise it is one row, to be refused
            yield decoded(piece) if shares and is_small else piece, n_bytes
            begin, before = end, int(ends[end - 1])


def decoded(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with each value in its own bytes."""
    for name in _shown(batch):
        column = batch.column(name)
        written = str(column.type)
        if not _SHARING.search(written):
            continue
        kind = pa.large_binary() if _WIDE.search(written) else pa.binary()
        if name == "headers":
            kind = headers_type(column.type, kind)
            # A cast of lists decodes everything after the first list, and a slice shares this
            # with its whole column.  A copy has only its own headers, still as indices.
            column = pa.concat_arrays([column])
        number = batch.schema.get_field_index(name)
        batch = batch.set_column(number, name, cast_column(name, column, kind))
    return batch


def _shown(batch: pa.RecordBatch) -> list[str]:
    return [name for name in _NAMES if name in batch.schema.names]


def _bytes_of_rows(batch: pa.RecordBatch) -> Int64s:
    """Decoded size of each row; int64 array, shape (n_rows,)."""
    total: Int64s = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        total += _lengths(column, np.arange(batch.num_rows))
    return total


def _lengths(array: pa.Array, at: NDArray[np.integer]) -> Int64s:
    """Bytes of the values at some places of a column; the other values are not read."""
    kind, start = array.type, array.offset
    if pa.types.is_dictionary(kind):
        return _dictionary_lengths(array, at)
    if pa.types.is_binary_view(kind) or pa.types.is_string_view(kind):
        views = np.frombuffer(array.buffers()[1], np.int32, 4 * (start + len(array)))
        lengths: Int64s = views[4 * (at + start)].astype(np.int64)
        return np.maximum(lengths, 0, out=lengths)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _list_lengths(array, at)
    if kind not in _BOUNDED:
        return np.full(len(at), -(-array.nbytes // max(len(array), 1)), np.int64)
    ends = _ends(array)
    found: Int64s = (ends[at + 1] - ends[at]).astype(np.int64)
    return found


def _dictionary_lengths(array: pa.Array, at: NDArray[np.integer]) -> Int64s:
    """Bytes of the values that the indices at some places name."""
    n_values = len(array.dictionary)
    if not n_values:
        return np.zeros(len(at), np.int64)
    indices = array.indices.fill_null(0).to_numpy(zero_copy_only=False)[at]
    # An index outside the dictionary is an error once the values are taken.
    lengths = _lengths(array.dictionary, np.clip(indices, 0, n_values - 1))
    if array.null_count:
        lengths[array.is_null().to_numpy(zero_copy_only=False)[at]] = 0
    return lengths


def _list_lengths(array: pa.Array, at: NDArray[np.integer]) -> Int64s:
    """Bytes of the lists at some places, whose items are structs or anything else."""
    ends = _ends(array)
    first, last = int(ends[0]), int(ends[-1])
    ends = np.clip(ends, first, last)  # bounds that fall are an error once they are read
    items = array.values.slice(first, last - first)
    fields = [items]
    if pa.types.is_struct(items.type):
        fields = [items.field(number) for number in range(items.type.num_fields)]
    sums: Int64s = np.zeros(last - first + 1, np.int64)
    for each in fields:
        sums[1:] += _lengths(each, np.arange(len(each)))
    sums = np.cumsum(sums)
    found: Int64s = sums[ends[at + 1] - first] - sums[ends[at] - first]
    return found


def _ends(array: pa.Array) -> NDArray[np.integer]:
    """Bounds of the rows of a column of variable length; an empty column may lack them."""
    is_large = str(array.type).startswith("large")
    dtype = np.dtype(np.int64 if is_large else np.int32)
    if not len(array):
        return np.zeros(1, dtype)
    found: NDArray[np.integer] = np.frombuffer(
        array.buffers()[1], dtype, len(array) + 1, array.offset * dtype.itemsize
    )
    return found
