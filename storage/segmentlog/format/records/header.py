"""Headers of batches: of one as a tuple, and of the batches that a scan has found as a table.

Planning and look-ups read one header at a time.  Scans read thousands, in
`segmentlog.format.kernels.scan`; here is the error for a batch that stopped a scan.  This module
loads no kernel: processes that only plan need none.
"""

import struct
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
from segmentlog.format.kernels.memory import Bytes, Int64s
from segmentlog.model import TimestampType

_HEADER = struct.Struct(">qiibIhiqqqhii")
_MESSAGE = struct.Struct(">qiIBB")
_TIMESTAMP = struct.Struct(">q")


class BatchHeader(NamedTuple):
    """The 61 bytes before the records of a batch, in the order of the file.

    A message of magic 0 or 1 has fewer fields.  Its `base_offset` and `last_offset` are both its
    own offset, which for a compressed message is the last offset inside it.  Missing fields are
    -1.  The `records_count` of a compressed message is -1, too: it is unknown before inflating.
    """

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def last_offset(self) -> int:
        """Offset of the last record that the producer wrote, even if compaction has removed it."""
        return self.base_offset + self.last_offset_delta

    @property
    def size_in_bytes(self) -> int:
        """Bytes of the whole batch."""
        return self.batch_length + layout.LOG_OVERHEAD

    @property
    def is_wrapper(self) -> bool:
        """Whether it is a compressed message of magic 0 or 1, whose first offset is not known."""
        return self.magic < layout.FIRST_BATCH_MAGIC and bool(self.codec)

    @property
    def codec(self) -> int:
        """Number of the compression codec; only 0 to 4 have a meaning."""
        return self.attributes & layout.CODEC_MASK

    @property
    def timestamp_type(self) -> TimestampType:
        """Whether the producer or the broker set the timestamps, or neither."""
        if self.magic == 0:
            return TimestampType.NO_TIMESTAMP_TYPE
        return TimestampType(int(bool(self.attributes & layout.TIMESTAMP_TYPE_MASK)))

    @property
    def first_timestamp(self) -> int:
        """Timestamp of the first record, or the largest one if the header lacks the first."""
        is_known = self.delete_horizon_ms is None and self.base_timestamp >= 0
        is_append_time = self.timestamp_type == TimestampType.LOG_APPEND_TIME
        return self.base_timestamp if is_known and not is_append_time else self.max_timestamp

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & layout.TRANSACTIONAL_MASK)

    @property
    def is_control(self) -> bool:
        """Whether the batch holds a marker for brokers instead of records for applications."""
        return bool(self.attributes & layout.CONTROL_MASK)

    @property
    def delete_horizon_ms(self) -> int | None:
        """Time from which compaction may drop the batch's tombstones (KIP-534), if it is set."""
        return self.base_timestamp if self.attributes & layout.DELETE_HORIZON_MASK else None


def parse_header(buf: bytes | bytearray | memoryview, at: int = 0) -> BatchHeader:
    """Header of the batch at byte `at`; the fields are not checked.

    Raises `struct.error` if `buf` ends before the header does: 61 bytes, or 26 for a message of
    magic 0 or 1.
    """
    if len(buf) - at > layout.MAGIC_AT and buf[at + layout.MAGIC_AT] < layout.FIRST_BATCH_MAGIC:
        return _parse_message(buf, at)
    return BatchHeader._make(_HEADER.unpack_from(buf, at))


def _parse_message(buf: bytes | bytearray | memoryview, at: int) -> BatchHeader:
    """Header of the message of magic 0 or 1 at byte `at`; the fields are not checked."""
    offset, size, crc, magic, attributes = _MESSAGE.unpack_from(buf, at)
    timestamp = -1
    attributes &= layout.CODEC_MASK | (layout.TIMESTAMP_TYPE_MASK if magic else 0)
    if magic:
        (timestamp,) = _TIMESTAMP.unpack_from(buf, at + layout.LEGACY_TIMESTAMP_AT)
    count = -1 if attributes & layout.CODEC_MASK else 1
    return BatchHeader(
        offset, size, -1, magic, crc, attributes, 0, timestamp, timestamp, -1, -1, -1, count
    )


def is_too_high(header: BatchHeader, first_offset: int, least_offset: int, next_base: int) -> bool:
    """Whether, of two batches whose offsets overlap, the first has the wrong base offset.

    No checksum covers base offsets.  It is the first batch if clearing one bit puts it between
    `least_offset`, after the batch before it, and the second batch at `next_base`; otherwise, the
    second one has the wrong base offset.
    """
    most = next_base - 1 - (header.last_offset - first_offset)
    return any(
        header.base_offset >> bit & 1 and least_offset <= first_offset - (1 << bit) <= most
        for bit in range(63)
    )


class ScannedBatches(NamedTuple):
    """Some batches of one file, in order."""

    path: str  # the file, for errors
    buf: Bytes  # uint8 array that `headers` point into; the scanner decides how long it is valid
    #: int64 array, shape (n_batches, `layout.N_HEADER_COLUMNS`); valid as long as `buf`
    headers: Int64s
    file_position: int  # byte of the file that ``buf[0]`` is

    def only(self, rows: NDArray[np.bool_] | slice) -> "ScannedBatches":
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
    def file_end(self) -> int:
        """Byte of the file after the last batch; there must be at least one batch."""
        return self.file_position + self.end

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
            from segmentlog.format.kernels.crc32c import checksum

            found = checksum(buf, position + layout.ATTRIBUTES_AT, batch_end)
        else:
            found = zlib.crc32(buf[position + layout.MAGIC_AT : batch_end].tobytes())
        return ChecksumMismatchError(path, at, base_offset, header.crc, found)
    return MalformedBatchError(path, at, base_offset, status.REASONS[code])
