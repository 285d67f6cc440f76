"""The arrays of one Arrow batch that decoding writes to, and how far they are filled.

No kernel is in this module: schemas and columns need it, and they are there without native code.
"""

from typing import NamedTuple

from segmentlog.format.kernels.memory import Bytes, Int32s, Int64s

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
#: Whether records with headers are usual, because no column has them; only for one pass.
LEAVES_HEADERS_OUT = 21
N_STATE = 22


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
