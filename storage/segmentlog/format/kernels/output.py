"""The arrays of one Arrow batch that decoding writes to, and how far they are filled."""

from typing import NamedTuple

from segmentlog.format.kernels.memory import (
    COPY_SLACK,
    MOST_WIDE_BYTES,
    Bytes,
    Int32s,
    Int64s,
    copy_bytes,
    copy_wide,
)
from segmentlog.format.kernels.varint import read_varint
from segmentlog.native import inlined, internal

# The int64 array that `decode.fill_records` keeps between calls: its place in the input …
BATCH = 0  #: row of the header table
RECORD = 1  #: records of this batch that were read, wanted or not; -1 before the batch is begun
NEXT_BYTE = 2  #: first byte of the next record
PREVIOUS_DELTA = 3  #: offset delta of the record before, -1 at the start of a batch
# … and the fill of the output, which the caller sets to zero for each new output.
N_ROWS = 4
USED_BYTES = 5  #: record bytes taken so far: an upper bound for keys, values and headers together
KEY_BYTES = 6
KEY_NULLS = 7
VALUE_BYTES = 8
VALUE_NULLS = 9
LIST_NULLS = 10
N_HEADERS = 11
HEADER_KEY_BYTES = 12
HEADER_VALUE_BYTES = 13
HEADER_VALUE_NULLS = 14
# The room that the output has, set by the caller.
ROW_LIMIT = 15
BYTE_LIMIT = 16
HEADER_LIMIT = 17
#: With `OUTPUT_FULL`, the bytes of the record that did not fit, and its number of headers; with
#: `TIMESTAMP_OVERFLOW` the record's offset, and its timestamp.  In one pass: with `OUTPUT_FULL`,
#: the records and the bytes of the batch; with `CODEC_NEEDED`, the codec.
DETAIL = 18
DETAIL_2 = 19
#: The type of the rows written so far, as the bit `layout.TIMESTAMP_TYPE_MASK`; only for one pass.
TIMESTAMP_TYPE = 20
N_STATE = 21


class ColumnArrays(NamedTuple):
    """The columns of one Arrow batch, to be written; a column of length 0 is left out.

    Bitmaps (``…_valid``) come with every bit set; a null clears its bit.  ``…_ends`` are Arrow's
    bounds of shape (n_rows + 1,), whose entry 0 the caller has set to 0.  ``keys``, ``values``,
    ``header_keys`` and ``header_values`` have room for `COPY_SLACK` bytes after their capacity.
    """

    offsets: Int64s
    timestamps: Int64s
    key_ends: Int32s
    key_valid: Bytes
    keys: Bytes
    value_ends: Int32s
    value_valid: Bytes
    values: Bytes
    list_ends: Int32s
    list_valid: Bytes
    header_key_ends: Int32s
    header_keys: Bytes
    header_value_ends: Int32s
    header_value_valid: Bytes
    header_values: Bytes


class PlainArrays(NamedTuple):
    """The output without headers."""

    offsets: Int64s
    timestamps: Int64s
    key_ends: Int32s
    key_valid: Bytes
    keys: Bytes
    value_ends: Int32s
    value_valid: Bytes
    values: Bytes


@inlined
def clear_bit(bitmap: Bytes, i: int) -> None:
    """Make row `i` null."""
    bitmap[i >> 3] &= 0xFF ^ (1 << (i & 7))


@inlined
def put(
    row: int, source: Bytes, at: int, length: int, to: int,
    target: Bytes, ends: Int32s, valid: Bytes,
) -> int:  # fmt: skip
    """Write one key or value, null if `length` is negative; return the end of its bytes."""
    if length < 0:
        clear_bit(valid, row)
    elif length <= MOST_WIDE_BYTES and at + length + COPY_SLACK <= source.shape[0]:
        copy_wide(target, to, source, at, length)
        to += length
    else:
        copy_bytes(target, to, source, at, length)
        to += length
    ends[row + 1] = to
    return to


@internal
def put_headers(buf: Bytes, at: int, end: int, columns: ColumnArrays, state: Int64s) -> None:
    """Write record headers that `record.judge` has found sound; `at` is after their count."""
    i, to_key, to_value = state[N_HEADERS], state[HEADER_KEY_BYTES], state[HEADER_VALUE_BYTES]
    while at < end:
        length, at = read_varint(buf, at, end)
        copy_bytes(columns.header_keys, to_key, buf, at, length)
        at += length
        to_key += length
        length, at = read_varint(buf, at, end)
        if length < 0:
            clear_bit(columns.header_value_valid, i)
            state[HEADER_VALUE_NULLS] += 1
        else:
            copy_bytes(columns.header_values, to_value, buf, at, length)
            at += length
            to_value += length
        i += 1
        columns.header_key_ends[i] = to_key
        columns.header_value_ends[i] = to_value
    state[N_HEADERS], state[HEADER_KEY_BYTES], state[HEADER_VALUE_BYTES] = i, to_key, to_value
