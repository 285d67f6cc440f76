"""Values as serializers of a schema registry write them: ids of frames, and flat records of Avro.

A record of Avro is its fields, one after the other::

    boolean | int, long     | float, double               | string
    1 byte  | zigzag varint | 4 or 8 bytes, little-endian | length as a zigzag varint, bytes

Before a field that is a union stands the number of its type, as a zigzag varint.

A value that does not have this form for certain is left out and counted: a library, which the
caller asks then, finds out what it is.
"""

import numpy as np

from segmentlog.format.kernels import layout
from segmentlog.format.kernels.memory import (
    COPY_SLACK,
    MOST_WIDE_BYTES,
    Bytes,
    Int32s,
    Int64s,
    copy_bytes,
    copy_wide,
    load_i32,
    load_u8,
    load_u32,
    load_u64,
)
from segmentlog.format.kernels.varint import (
    FAILED,
    LONG_STOPS,
    VARINT_SLACK,
    read_groups_quick,
    read_varlong,
    signed,
)
from segmentlog.native import inlined, kernel

# Kinds of fields.
BOOLEAN, INT, LONG, FLOAT, DOUBLE, TEXT = range(6)

_LARGEST_INT = 2**31 - 1
_MOST_LONG_BYTES = 10


@kernel
def read_frame_ids(buf: Bytes, begins: Int32s, ends: Int32s, ids: Int32s) -> None:
    """The ids that values begin with; negative for a value without one.

    Parameters
    ----------
    buf : uint8 array; read only
    begins, ends : int32 arrays, shape (n_values,): the bytes of each value in `buf`
    ids : int32 array, shape (n_values,); written
    """
    for row in range(begins.shape[0]):
        at = int(begins[row])
        if ends[row] - at >= layout.FRAME_BYTES and load_u8(buf, at) == 0:
            ids[row] = load_i32(buf, at + 1)
        else:
            ids[row] = -1


@inlined
def _long(buf: Bytes, at: int, end: int) -> tuple[int, int]:
    """The number of the varint at byte `at`, and the position after it or `FAILED`."""
    if at + VARINT_SLACK <= buf.shape[0]:
        groups, after = read_groups_quick(buf, at, LONG_STOPS)
        if after <= end:
            return signed(groups), after
    value, after = read_varlong(buf, at, end)
    if after == at + _MOST_LONG_BYTES and load_u8(buf, after - 1) > 1:
        return 0, FAILED  # it has more than 64 bits
    return value, after


@inlined
def _cell(buf: Bytes, at: int, end: int, kind: int) -> tuple[int, int, int]:
    """The cell of a field at byte `at`, its length as a text, and the position after it."""
    if kind == TEXT:
        length, after = _long(buf, at, end)
        if length < 0 or length > end - after:
            return 0, 0, FAILED
        return after, length, after + length
    if kind in (LONG, INT):
        value, after = _long(buf, at, end)
        if kind == INT and (value > _LARGEST_INT or value < -_LARGEST_INT - 1):
            return 0, 0, FAILED
        return value, 0, after
    if kind == DOUBLE:
        return (int(np.int64(load_u64(buf, at))), 0, at + 8) if at + 8 <= end else (0, 0, FAILED)
    if kind == FLOAT:
        return (load_u32(buf, at), 0, at + 4) if at + 4 <= end else (0, 0, FAILED)
    if at >= end or load_u8(buf, at) > 1:
        return 0, 0, FAILED
    return load_u8(buf, at), 0, at + 1


@kernel
def read_flat_records(
    buf: Bytes,
    begins: Int32s,
    ends: Int32s,
    kinds: Int64s,
    value_branches: Int64s,
    null_branches: Int64s,
    cells: Int64s,
    lengths: Int32s,
    valid: Bytes,
    is_read: Bytes,
) -> int:
    """Read records of Avro into cells, and count those that are left out.

    Outputs have the cells of the first field, then those of the second field, and so on.

    Parameters
    ----------
    buf : uint8 array; read only
    begins, ends : int32 arrays, shape (n_rows,): the bytes of each record in `buf`; what is left
        over before an end does not matter
    kinds : int64 array, shape (n_fields,)
    value_branches, null_branches : int64 arrays, shape (n_fields,): the numbers of the type and of
        null in the union of a field, or -1
    cells : int64 array, shape (n_fields * n_rows,); written: numbers, the bits of a float or a
        double, and where in `buf` a text begins; 0 for null
    lengths : int32 array, shape (n_fields * n_rows,); written: of texts
    valid : uint8 array, shape (n_fields * n_rows,); 0 is written for null, and for records that
        are left out
    is_read : uint8 array, shape (n_rows,); 0 is written for records that are left out

    Returns
    -------
    n_left_out : how many records are
    """
    n_rows, n_fields, n_left_out = begins.shape[0], kinds.shape[0], 0
    for row in range(n_rows):
        at, end, place = int(begins[row]), int(ends[row]), row
        for field in range(n_fields):
            branch, has_value = int(value_branches[field]), True
            if branch >= 0:
                found, at = _long(buf, at, end)
                if found != branch:
                    has_value = False
                    if found != null_branches[field]:
                        at = FAILED
            cell, length = 0, 0
            if has_value:
                cell, length, at = _cell(buf, at, end, int(kinds[field]))
            else:
                valid[place] = 0
            cells[place] = cell
            lengths[place] = length
            place += n_rows
        if at > end:
            is_read[row] = 0
            n_left_out += 1
            place = row
            for _ in range(n_fields):
                cells[place], lengths[place], valid[place] = 0, 0, 0
                place += n_rows
    return n_left_out


@kernel
def copy_texts(buf: Bytes, begins: Int64s, lengths: Int32s, target: Bytes, ends: Int32s) -> None:
    """Copy texts from `buf`, one after the other.

    Parameters
    ----------
    buf : uint8 array; read only
    begins, lengths : int64 and int32 arrays, shape (n_rows,): the bytes of each text in `buf`
    target : uint8 array of all lengths and `COPY_SLACK`; written
    ends : int32 array, shape (n_rows + 1,), whose entry 0 the caller has set to 0; written
    """
    to = 0
    for row in range(lengths.shape[0]):
        at, length = int(begins[row]), int(lengths[row])
        if length <= MOST_WIDE_BYTES and at + length + COPY_SLACK <= buf.shape[0]:
            copy_wide(target, to, buf, at, length)
        else:
            copy_bytes(target, to, buf, at, length)
        to += length
        ends[row + 1] = to
