"""Batches that a scan has found in a buffer, and the error for a batch that stopped it."""

import zlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from segmentlog.errors import (
    ChecksumMismatchError,
    MalformedBatchError,
    SegmentLogError,
    UnsupportedFormatError,
)
from segmentlog.format.kernels import layout, status
from segmentlog.format.kernels.crc32c import checksum
from segmentlog.format.kernels.memory import Bytes, Int64s
from segmentlog.format.records.header import parse_header


class ScannedBatches(NamedTuple):
    """Some batches of one file, in order."""

    path: str  # the file, for errors
    buf: Bytes  # uint8 array that `headers` point into; the scanner decides how long it is valid
    #: int64 array, shape (n_batches, `layout.N_HEADER_COLUMNS`); valid as long as `buf`
    headers: Int64s
    file_position: int  # byte of the file that ``buf[0]`` is

    def only(self, rows: "NDArray[np.bool_] | slice") -> "ScannedBatches":
        """The batches of some rows of `headers`."""
        return self._replace(headers=self.headers[rows])

    @property
    def data(self) -> Bytes:
        """The bytes of the batches; there is at least one, and no gap between them."""
        return self.buf[int(self.headers[0, layout.POSITION]) : self.end]

    @property
    def end(self) -> int:
        """Byte of `buf` after the last batch; there must be at least one batch."""
        return int(self.headers[-1, layout.POSITION] + self.headers[-1, layout.SIZE])

    @property
    def next_offset(self) -> int:
        """Offset after the last batch; there must be at least one batch."""
        return int(self.headers[-1, layout.LAST_OFFSET]) + 1

    def position_of(self, row: int) -> int:
        """Byte of the file at which a batch begins."""
        return self.file_position + int(self.headers[row, layout.POSITION])

    def malformed(self, row: int, reason: str) -> MalformedBatchError:
        """The error for a batch that contradicts itself or others."""
        base_offset = int(self.headers[row, layout.BASE_OFFSET])
        return MalformedBatchError(self.path, self.position_of(row), base_offset, reason)


def batch_error(batches: ScannedBatches, position: int, end: int, code: int) -> SegmentLogError:
    """The error for a batch that a kernel has stopped at: byte `position` of the buffer.

    `end`: byte after the readable part of the buffer.  `code`: of `format.kernels.status`.
    """
    path, buf = batches.path, batches.buf
    at = batches.file_position + position
    if code == status.BAD_MAGIC:
        return UnsupportedFormatError(path, at, "magic", int(buf[position + layout.MAGIC_AT]))
    head = buf[position : min(position + layout.HEADER_BYTES, end)].tobytes()
    base_offset = int.from_bytes(head[:8], "big", signed=True)
    if code == status.BAD_CRC:
        header = parse_header(head)
        batch_end = position + header.size_in_bytes
        if header.magic >= layout.FIRST_BATCH_MAGIC:
            found = checksum(buf, position + layout.ATTRIBUTES_AT, batch_end)
        else:
            found = zlib.crc32(buf[position + layout.MAGIC_AT : batch_end].tobytes())
        return ChecksumMismatchError(path, at, base_offset, header.crc, found)
    return MalformedBatchError(path, at, base_offset, status.REASONS[code])
