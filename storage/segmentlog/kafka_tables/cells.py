"""Many binary values at once: a field of all of them is taken without an object for each."""

import numpy as np
import pyarrow as pa

from segmentlog.format.kernels.memory import Bytes, Int64s

_MOST_VARINT_BYTES = 5

#: Bytes after the last byte, so that a field can be gathered from any place.
_SLACK = 16


class Cells:
    """The bytes of many values, and a place in each of them.

    `is_right`: whether the value has had all bytes that were taken, shape (n_values,); false for
    null.
    """

    def __init__(self, array: pa.Array) -> None:
        offsets, data = array.buffers()[1:3]
        places = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
        ends: Int64s = places.astype(np.int64)
        n_bytes = int(ends[-1]) if len(ends) else 0
        self._data: Bytes = np.zeros(n_bytes + _SLACK, np.uint8)
        if data is not None:
            self._data[:n_bytes] = np.frombuffer(data, np.uint8, n_bytes)
        self._begins, self._at, self._ends = ends[:-1], ends[:-1].copy(), ends[1:]
        self.is_right = array.is_valid().to_numpy(zero_copy_only=False)

    @property
    def n_taken(self) -> Int64s:
        """The number of bytes of each value that were taken."""
        return self._at - self._begins

    def only(self, rows: Int64s) -> "Cells":
        """The values of some rows."""
        cells = Cells.__new__(Cells)
        cells._data = self._data
        cells._begins, cells._at, cells._ends = (
            each[rows] for each in (self._begins, self._at, self._ends)
        )
        cells.is_right = np.ones(len(rows), np.bool_)
        return cells

    def number(self, width: int) -> Int64s:
        """The next big-endian number of each value; 0 after its end."""
        raw = self.bytes(width)
        found: Int64s = raw.view(f">i{width}")[:, 0].astype(np.int64)
        return found

    def text(self, *, is_compact: bool = False) -> tuple[Int64s, Int64s]:
        """Places and lengths of the next text of each value, which may not be null."""
        lengths: Int64s = self.varint() - 1 if is_compact else self.number(2)
        self.is_right &= (lengths >= 0) & (lengths <= self._ends - self._at)
        lengths = np.where(self.is_right, lengths, 0).astype(np.int64)
        starts = self._at.copy()
        self._at += lengths
        return starts, lengths

    def topic_id(self) -> Bytes:
        """The only tagged field of a value, or zeros; other tagged fields are not right here."""
        n_tags = self.varint()
        is_tagged = self.is_right & (n_tags == 1)
        self.is_right &= n_tags <= 1
        cells = self.only(np.flatnonzero(is_tagged))
        is_known = (cells.varint() == 0) & (cells.varint() == 16)
        found = cells.bytes(16)
        ids: Bytes = np.zeros((len(self._at), 16), np.uint8)
        ids[is_tagged] = found
        self.is_right[is_tagged] &= is_known & cells.is_right
        return ids

    def gathered(self, starts: Int64s, lengths: Int64s) -> pa.Array:
        """Parts of the bytes as an Arrow array of bytes."""
        ends = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=ends[1:])
        which = np.repeat(starts - ends[:-1], lengths) + np.arange(ends[-1])
        buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(self._data[which])]
        return pa.Array.from_buffers(pa.binary(), len(lengths), buffers)

    def varint(self, of: Int64s | None = None) -> Int64s:
        """The next unsigned varint of each value, or of some of them alone."""
        found = np.zeros(len(self._at), np.int64)
        is_open = np.ones(len(self._at), np.bool_)
        if of is not None:
            is_open[:] = False
            is_open[of] = True
        for number in range(_MOST_VARINT_BYTES):
            is_open &= self.is_right
            rows = np.flatnonzero(is_open)
            if not len(rows):
                break
            cells = self.only(rows)
            byte = cells.bytes(1)[:, 0].astype(np.int64)
            self._at[rows] += 1
            self.is_right[rows] &= cells.is_right
            found[rows] |= (byte & 0x7F) << 7 * number
            is_open[rows] = byte >= 0x80
        self.is_right &= ~is_open
        return found if of is None else found[of]

    def bytes(self, width: int) -> Bytes:
        """The next bytes of each value, shape (n_values, width); zeros after its end."""
        self.is_right &= self._ends - self._at >= width
        at = np.where(self.is_right, self._at, len(self._data) - _SLACK)
        self._at += width
        found: Bytes = self._data[at[:, None] + np.arange(width)]
        return found
