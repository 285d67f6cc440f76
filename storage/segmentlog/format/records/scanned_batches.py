"""Batches that a scan has found in a buffer: their headers, and the origin of the buffer."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from segmentlog.errors import MalformedBatchError
from segmentlog.format.kernels import layout
from segmentlog.format.kernels.memory import Bytes, Int64s


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
