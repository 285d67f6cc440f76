"""The arrays of one Arrow batch whose rows are encoded, and how they are read.

The size of a row, without the fields that depend on its place in a batch, is measured here, once
for all partitions.
"""

from typing import NamedTuple, TypeAlias

from segmentlog.format.kernels.memory import Bytes, Int32s, Int64s, load_item, load_u8
from segmentlog.format.kernels.varint import varint_bytes
from segmentlog.native import inlined, internal, kernel

#: Arrow's bounds of variable-length values; those of its "large" types have 64 bits.
Ends: TypeAlias = Int32s | Int64s


class BinaryArrays(NamedTuple):
    """A column of byte strings.

    `ends` has shape (n_rows + 1,), does not fall, and points into `data`: the maker of the column
    checks this, once for all kernels.  Bit ``first_bit + row`` of `valid` is clear for a null.  If
    `valid` has length 0, no row is null.
    """

    ends: Ends
    valid: Bytes
    first_bit: int
    data: Bytes


class SourceArrays(NamedTuple):
    """The columns of records.

    `list_ends`, `list_valid` and `list_first_bit` are as in `BinaryArrays`, and point into the two
    columns of headers; a null list counts as empty, and without any headers `list_ends` has length
    0.  `row_bytes` is filled by `measure_rows`.  Keys, values and headers of the first
    `n_wide_rows` have `COPY_SLACK` bytes after them, so they can be copied in vectors.
    """

    timestamps: Int64s
    keys: BinaryArrays
    values: BinaryArrays
    list_ends: Ends
    list_valid: Bytes
    list_first_bit: int
    header_keys: BinaryArrays
    header_values: BinaryArrays
    row_bytes: Int64s
    n_wide_rows: int


@inlined
def is_null(valid: Bytes, bit: int) -> bool:
    """Whether a bitmap's bit is clear; the caller has checked that the bit exists."""
    return valid.shape[0] > 0 and (load_u8(valid, bit >> 3) >> (bit & 7)) & 1 == 0


@inlined
def length_of(column: BinaryArrays, row: int) -> int:
    """Bytes of a value, -1 for a null; the caller has checked that the row exists."""
    if is_null(column.valid, column.first_bit + row):
        return -1
    return int(column.ends[row + 1]) - int(column.ends[row])


@inlined
def _length_bytes(length: int) -> int:
    """`varint_bytes` of a length or -1, in a form that the compiler turns into vectors."""
    return 1 + (length >= 1 << 6) + (length >= 1 << 13) + (length >= 1 << 20) + (length >= 1 << 27)


@internal
def _add_binary(column: BinaryArrays, row_bytes: Int64s) -> bool:
    """Add the values of a column with their lengths; False if a value ends before it begins."""
    n_falls = 0
    for row in range(row_bytes.shape[0]):
        start, end = load_item(column.ends, row), load_item(column.ends, row + 1)
        n_falls += end < start  # compared, not subtracted: three bounds can wrap around 64 bits
        length = 0 if is_null(column.valid, column.first_bit + row) else end - start
        row_bytes[row] += _length_bytes(length) + length
    return n_falls == 0


@internal
def _measure_plain(keys: Ends, values: Ends, timestamps: Int64s, row_bytes: Int64s) -> bool:
    """`measure_rows` without null keys, null values and headers, in vectors."""
    n_falls = 0
    for row in range(row_bytes.shape[0]):
        key_start, key_end = load_item(keys, row), load_item(keys, row + 1)
        value_start, value_end = load_item(values, row), load_item(values, row + 1)
        n_falls += (key_end < key_start) + (value_end < value_start)
        key, value = key_end - key_start, value_end - value_start
        n_bytes = 1 + _length_bytes(key) + key + _length_bytes(value) + value
        row_bytes[row] = n_bytes if load_item(timestamps, row) >= -1 else -1
    return n_falls == 0


@internal
def _header_bytes(source: SourceArrays, row: int) -> int:
    """Bytes of a row's headers with their lengths and their count, or -1 if a key is null."""
    if is_null(source.list_valid, source.list_first_bit + row):
        return 1
    start, end = int(source.list_ends[row]), int(source.list_ends[row + 1])
    n_bytes = varint_bytes(end - start)
    for i in range(start, end):
        key, value = length_of(source.header_keys, i), length_of(source.header_values, i)
        if key < 0:
            return -1
        n_bytes += varint_bytes(key) + key + varint_bytes(value) + max(value, 0)
    return n_bytes


@kernel
def measure_rows(source: SourceArrays) -> bool:
    """Fill `row_bytes`: key, value and headers of each row, with their lengths and count.

    A row that cannot be a record gets -1: one of its headers has no key, or its timestamp is below
    -1, which stands for no timestamp.

    Parameters
    ----------
    source : the columns; only `row_bytes` is written.  This function checks that the bounds of
        keys and values do not fall; the caller has checked the first and last of these bounds, and
        all bounds of headers

    Returns
    -------
    is_in_order : False if a key or a value ends before it begins: `source` must not be used
    """
    row_bytes, timestamps = source.row_bytes, source.timestamps
    keys, values = source.keys, source.values
    has_headers = source.list_ends.shape[0] > 0
    if not has_headers and keys.valid.shape[0] == 0 and values.valid.shape[0] == 0:
        return _measure_plain(keys.ends, values.ends, timestamps, row_bytes)
    row_bytes[:] = 0 if has_headers else 1
    if not (_add_binary(keys, row_bytes) and _add_binary(values, row_bytes)):
        return False
    if has_headers:
        for row in range(row_bytes.shape[0]):
            n_bytes = _header_bytes(source, row)
            row_bytes[row] = row_bytes[row] + n_bytes if n_bytes > 0 else -1
    for row in range(row_bytes.shape[0]):
        row_bytes[row] = row_bytes[row] if timestamps[row] >= -1 else -1
    return True


@inlined
def _are_neighbours(rows: Int64s) -> bool:
    """Whether each row is the one after the row before it; in vectors."""
    n_gaps = 0
    for at in range(1, rows.shape[0]):
        n_gaps += load_item(rows, at) != load_item(rows, at - 1) + 1
    return n_gaps == 0


@kernel
def most_row_bytes(source: SourceArrays, rows: Int64s) -> tuple[int, int]:
    """The sum and the largest of the `row_bytes` of some rows.

    Parameters
    ----------
    source : the columns; read only
    rows : int64 array, shape (n,); read only; rows that do not exist are left out
    """
    total = most = 0
    n_rows, n_all = rows.shape[0], source.row_bytes.shape[0]
    if n_rows and 0 <= rows[0] <= n_all - n_rows and _are_neighbours(rows):
        begin = rows[0]
        for row in range(begin, begin + n_rows):  # in vectors: no load depends on another
            n_bytes = load_item(source.row_bytes, row)
            total += n_bytes
            most = max(most, n_bytes)
        return total, most
    for at in range(rows.shape[0]):
        row = load_item(rows, at)
        if 0 <= row < source.row_bytes.shape[0]:
            n_bytes = load_item(source.row_bytes, row)
            total += n_bytes
            most = max(most, n_bytes)
    return total, most
