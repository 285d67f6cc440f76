"""The error for a kernel's status, with file, byte and offset."""

import zlib

from segmentlog.errors import (
    ChecksumMismatchError,
    MalformedBatchError,
    SegmentLogError,
    UnsupportedFormatError,
)
from segmentlog.format.kernels import layout, status
from segmentlog.format.kernels.crc32c import checksum
from segmentlog.format.records.header import parse_header
from segmentlog.format.records.scanned_batches import ScannedBatches


def batch_error(batches: ScannedBatches, position: int, end: int, code: int) -> SegmentLogError:
    """The error for a batch that `scan_batches` or `walk_headers` has stopped at.

    `batches`: hold the buffer that the batch is in; it need not be one of them.  `position`: byte
    of the buffer at which it begins.  `end`: byte after the readable part of the buffer.  `code`:
    from `segmentlog.format.kernels.status`.
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
