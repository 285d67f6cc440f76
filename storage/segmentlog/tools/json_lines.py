"""Records of a batch as lines of JSON, all at once: Arrow columns in, bytes out."""

import sys
from functools import cache, lru_cache

import numpy as np
import pyarrow as pa

from segmentlog.kernels.json_lines import (
    BASE64,
    HEX,
    MOST_FOR_A_BYTE,
    MOST_FOR_A_NUMBER,
    TEXT,
    Binary,
    write_lines,
)
from segmentlog.kernels.memory import Bytes, Int32s, Int64s
from segmentlog.records.header import BatchHeader
from segmentlog.tools.rows import MOST_SEQUENCE, Place, timestamp_type
from segmentlog.tools.text import Encoding, to_json

__all__ = ["LineWriter"]

_HOW = {Encoding.TEXT: TEXT, Encoding.HEX: HEX, Encoding.BASE64: BASE64}
_N_NUMBERS = 5  # in a line
_KEPT_BYTES = 64 << 20


class LineWriter:
    """Writes the lines that `segmentlog.tools.rows.record_rows` describes.

    Parameters
    ----------
    keys, values : their encodings; values of headers are written as values.
    """

    def __init__(self, keys: Encoding, values: Encoding) -> None:
        found = (_HOW[keys], _HOW[values], TEXT, _HOW[values])
        self._encodings = np.array(found, np.int64)
        self._room: Bytes = np.empty(0, np.uint8)

    def lines(self, place: Place, header: BatchHeader, records: pa.RecordBatch) -> str:
        """Lines, with line ends, for the records of one batch, which is no control batch."""
        pieces, ends = _pieces(place, timestamp_type(header))
        keys, values = _binary(records.column("key")), _binary(records.column("value"))
        headers = records.column("headers")
        header_ends = _header_ends(headers)
        header_keys = _binary(headers.values.field(0))
        header_values = _binary(headers.values.field(1))
        n_rows, n_headers = records.num_rows, int(header_ends[-1] - header_ends[0])
        n_bytes = n_rows * (int(ends[-1]) + _N_NUMBERS * MOST_FOR_A_NUMBER + 2 * len("null"))
        n_bytes += n_headers * (int(ends[-1]) + 2 * len("null"))
        n_bytes += MOST_FOR_A_BYTE * sum(
            int(column.ends[-1] - column.ends[0])
            for column in (keys, values, header_keys, header_values)
        )
        out = self._out(n_bytes)
        written = write_lines(
            out, pieces, ends,
            _numbers(header, records, keys, values), (keys, values),
            header_ends, (header_keys, header_values), self._encodings, _printable(),
        )  # fmt: skip
        return str(out[:written].data, "utf-8")

    def _out(self, n_bytes: int) -> Bytes:
        """Room for so many bytes; pages that are not written to take no memory."""
        if n_bytes > _KEPT_BYTES:
            return np.empty(n_bytes, np.uint8)
        if len(self._room) < n_bytes:
            self._room = np.empty(n_bytes, np.uint8)
        return self._room


@lru_cache(maxsize=16)
def _pieces(place: Place, kind: str) -> tuple[Bytes, Int64s]:
    """The pieces of text between the values, one behind the other, and the bounds of each."""
    begin = to_json({"kind": "record", "topic": place.topic, "partition": place.partition})
    time = f', "timestampType": "{kind}", "timestamp": '
    pieces = (
        begin[:-1] + ', "offset": ', time, ', "keySize": ', ', "valueSize": ', ', "sequence": ',
        ', "key": ', ', "value": ', ', "headers": [',
        '{"key": ', ', "value": ', "}", ", ", "]}\n",
    )  # fmt: skip
    encoded = [piece.encode() for piece in pieces]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    return np.frombuffer(b"".join(encoded), np.uint8), ends


def _numbers(header: BatchHeader, records: pa.RecordBatch, keys: Binary, values: Binary) -> Int64s:
    """Offset, timestamp, sizes of key and value, and sequence of each record."""
    found = np.empty((records.num_rows, _N_NUMBERS), np.int64)
    found[:, 0] = records.column("offset")
    found[:, 1] = records.column("timestamp")
    for column, cells in ((2, keys), (3, values)):
        found[:, column] = np.where(cells.valid, np.diff(cells.ends), -1)
    found[:, 4] = -1
    if header.base_sequence >= 0:
        deltas = found[:, 0] - header.base_offset
        found[:, 4] = (header.base_sequence + deltas) % (MOST_SEQUENCE + 1)
    return found


def _binary(column: pa.Array) -> Binary:
    if not len(column):
        return _nothing()
    _, ends, data = column.buffers()
    n_rows = len(column)
    found: Int32s = np.frombuffer(ends, np.int32, n_rows + 1, 4 * column.offset)
    valid = np.ones(n_rows, np.uint8)
    if column.null_count:
        valid = np.asarray(column.is_valid()).astype(np.uint8)
    has_data = data is not None and data.size
    return _frozen(Binary(found, valid, np.frombuffer(data if has_data else b"\0", np.uint8)))


@cache
def _nothing() -> Binary:
    return _frozen(Binary(np.zeros(1, np.int32), np.ones(1, np.uint8), np.zeros(1, np.uint8)))


def _frozen(cells: Binary) -> Binary:
    for array in cells:  # else columns made by Arrow would be another type for a kernel
        array.flags.writeable = False
    return cells


def _header_ends(headers: pa.ListArray) -> Int32s:
    """Bounds of each row among all headers; a row without a list has no headers."""
    return np.asarray(headers.offsets).astype(np.int32)


@cache
def _printable() -> Bytes:
    """Whether each code point stands for itself."""
    found = (chr(code).isprintable() for code in range(sys.maxunicode + 1))
    return np.fromiter(found, np.uint8, sys.maxunicode + 1)
