"""Rows of several Arrow batches in another order, in which each batch keeps its own."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from segmentlog.format.kernels.memory import Bytes, Int64s
from segmentlog.format.kernels.placing import place_lengths, place_numbers, place_values
from segmentlog.format.kernels.source import BinaryArrays
from segmentlog.format.records.columns import Arenas, n_bytes_of
from segmentlog.format.records.encoder import pooled_array

_NO_BYTES: Bytes = np.empty(0, np.uint8)
_MOST_BYTES = 64 << 20  #: of a result; a column of bytes could not have 2 GiB


def binary_arrays(array: pa.Array) -> BinaryArrays:
    """A column of bytes for a kernel."""
    valid, ends, data = array.buffers()
    begin = array.offset
    return BinaryArrays(
        np.frombuffer(ends, np.int32)[begin : begin + len(array) + 1],
        _NO_BYTES if valid is None or not array.null_count else np.frombuffer(valid, np.uint8),
        begin,
        _NO_BYTES if data is None else np.frombuffer(data, np.uint8),
    )


class InterleavedRows:
    """Hands out rows of batches in their order; a batch is freed once its rows are handed out.

    `batches`: of one schema; the list is emptied.  `order`: int64 array: which row comes next, of
    all batches one after the other; those of a batch come in their own order.  `arenas`: of one
    part, for the bytes of a column of a result.
    """

    def __init__(self, batches: list[pa.RecordBatch], order: Int64s, arenas: Arenas) -> None:
        n_rows = np.array([len(each) for each in batches], np.int64)
        self._may_be_large = sum(each.get_total_buffer_size() for each in batches) > _MOST_BYTES
        self._constants = [
            _constant_of([each.column(i) for each in batches], len(order))
            for i in range(batches[0].num_columns)
        ]
        self._arenas = arenas
        self._batches = dict(enumerate(batches))
        batches.clear()
        self._places: Int64s = pooled_array(len(order), np.int64)
        place_numbers(np.arange(len(order)), order, self._places)
        self._ends = n_rows.cumsum()
        self._starts = self._ends - n_rows
        self._next = self._starts.copy()  # the row that each batch hands out next

    def rows(self, begin: int, end: int) -> Iterator[pa.RecordBatch]:
        """The rows from number `begin` of the order to before `end`; those before are taken."""
        parts = self._parts(begin, end)
        if (
            self._may_be_large
            and end - begin > 1
            and sum(n_bytes_of(rows) for rows, _ in parts.values()) > _MOST_BYTES
        ):
            middle = (begin + end) // 2
            yield from self.rows(begin, middle)
            yield from self.rows(middle, end)
            return
        for number, (rows, _) in parts.items():
            self._next[number] += len(rows)
            if self._next[number] == self._ends[number]:
                del self._batches[number]
        (first, _), *others = found = [*parts.values()]
        if not others:
            yield first
            return
        columns = [
            _placed(
                [(rows.column(i), places) for rows, places in found], end - begin, self._arenas
            )
            if constant is None
            else constant.slice(begin, end - begin)
            for i, constant in enumerate(self._constants)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=first.schema)

    def _parts(self, begin: int, end: int) -> dict[int, tuple[pa.RecordBatch, Int64s]]:
        """Rows of each batch that has some of the result, and their places in it."""
        left = np.flatnonzero(self._next < self._ends)
        parts = {}
        for number in left[self._places[self._next[left]] < end].tolist():
            first, last = int(self._next[number]), int(self._ends[number])
            places = self._places[first:last]
            places = places[: int(places.searchsorted(end))] - begin
            rows = self._batches[number].slice(first - int(self._starts[number]), len(places))
            parts[number] = rows, places
        return parts


def _constant_of(columns: Sequence[pa.Array], n_rows: int) -> pa.Array | None:
    """A column that often has only one value, such as the name of the topic, if it does."""
    kind, first = columns[0].type, columns[0][0]
    if not (pa.types.is_string(kind) or pa.types.is_int32(kind)):
        return None
    for column in columns:
        if not pc.all(pc.equal(column, first), skip_nulls=False).as_py():
            return None
    return pa.repeat(first, n_rows)


_Parts = Sequence[tuple[pa.Array, Int64s]]


def _placed(parts: _Parts, n_rows: int, arenas: Arenas) -> pa.Array:
    """A column whose rows have the places that are given for those of its parts."""
    kind = parts[0][0].type
    n_nulls = sum(array.null_count for array, _ in parts)
    if n_nulls == n_rows:
        return pa.nulls(n_rows, kind)
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        buffers = _placed_bytes(parts, n_rows, arenas)
    elif pa.types.is_primitive(kind) and kind.bit_width in (32, 64):
        buffers = [_placed_numbers(parts, n_rows)]
    else:
        order: Int64s = np.empty(n_rows, np.int64)
        order[np.concatenate([places for _, places in parts])] = np.arange(n_rows)
        return pa.concat_arrays([array for array, _ in parts]).take(pa.array(order))
    return pa.Array.from_buffers(kind, n_rows, [_validity(parts, n_nulls, n_rows), *buffers])


def _placed_bytes(parts: _Parts, n_rows: int, arenas: Arenas) -> list[pa.Buffer]:
    """Bounds and bytes of a column."""
    columns = [(binary_arrays(array), places) for array, places in parts]
    ends = pooled_array(n_rows + 1, np.int32)
    ends[0] = 0
    for column, places in columns:
        place_lengths(column, places, ends)
    np.cumsum(ends, out=ends)
    n_bytes = int(ends[-1])
    lent = None if n_bytes > arenas.n_bytes or arenas.are_scarce else arenas.lend()
    if lent is None:
        data = pooled_array(n_bytes, np.uint8)
        buffer = pa.py_buffer(data)
    else:
        ((whole, data),) = lent
        buffer = whole.slice(0, n_bytes)
    for column, places in columns:
        place_values(column, places, ends, data)
    return [pa.py_buffer(ends), buffer]


def _placed_numbers(parts: _Parts, n_rows: int) -> pa.Buffer:
    """Values of a column whose values have four or eight bytes."""
    dtype = np.dtype(f"i{parts[0][0].type.bit_width // 8}")
    placed = pooled_array(n_rows, dtype)
    for array, places in parts:
        begin = array.offset * dtype.itemsize
        numbers = np.frombuffer(array.buffers()[1], dtype, len(array), begin)
        place_numbers(numbers, places, placed)
    return pa.py_buffer(placed)


def _validity(parts: _Parts, n_nulls: int, n_rows: int) -> pa.Buffer | None:
    if not n_nulls:
        return None
    is_valid: NDArray[np.bool_] = np.ones(n_rows, bool)
    for array, places in parts:
        if array.null_count:
            is_valid[places] = array.is_valid().to_numpy(zero_copy_only=False)
    return pa.py_buffer(np.packbits(is_valid, bitorder="little"))
