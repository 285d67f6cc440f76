"""What the system has in memory of a file, so that the loop of all clients waits for no disk."""

import os
import struct

import numpy as np

from segmentlog.format.kernels import layout
from segmentlog.format.kernels.memory import Bytes, Int64s
from segmentlog.format.kernels.transactions import walk_headers
from segmentlog.format.records.header import ScannedBatches
from segmentlog.log.segment import OpenSegment
from segmentlog.model import LARGEST_LONG
from segmentlog.store.readable import ReadableFile

_LARGE_BATCH_BYTES = 64 << 10  # whose headers are read alone
_MOST_BYTES = 4 << 20  # of smaller batches, which are copied
_LEAST_BATCH_BYTES = layout.HEADER_SIZES[0]
_PIECE_BYTES = 128 << 10

_LENGTH_AND_MAGIC = struct.Struct(">i4xb")  # the leader epoch lies between them
_FIELDS = np.dtype(
    {
        "names": ("base", "length", "attributes", "delta"),
        "formats": (">i8", ">i4", ">i2", ">i4"),
        "offsets": (
            layout.BASE_OFFSET_AT,
            layout.BATCH_LENGTH_AT,
            layout.ATTRIBUTES_AT,
            layout.LAST_OFFSET_DELTA_AT,
        ),
        "itemsize": layout.HEADER_BYTES,
    }
)


def batches_in_memory(opened: OpenSegment, begin: int, max_bytes: int) -> ScannedBatches | None:
    """The batches that begin in a range of a local file; no checksum is checked.

    Of a header, the table has the place, the offsets and the attributes.  None if the system lacks
    some bytes, or does not say so, or if the first batch, or the offsets of one, are not usual.
    """
    segment, descriptor = opened.segment, opened.file.descriptor
    end = min(begin + max(max_bytes, layout.HEADER_BYTES), segment.size)
    if descriptor is None or begin >= end:
        return None
    try:
        data = _large_headers(descriptor, begin, end)
        if data is None:
            return _small_batches(segment.path, descriptor, begin, end)
    except (OSError, AttributeError):  # not in memory, or this is not Linux
        return None
    return _table(segment.path, data, begin) if data else None


def _large_headers(descriptor: int, position: int, end: int) -> bytearray | None:
    """The headers of batches that are large: to copy all bytes between them takes longer.

    None if the first batch is small.  Ends before one that is not usual.  Raises `OSError` if a
    header is not in memory.
    """
    found, header, flags = bytearray(), bytearray(layout.HEADER_BYTES), os.RWF_NOWAIT
    into = [header]
    while position < end:
        n_bytes = os.preadv(descriptor, into, position, flags)
        length, magic = _LENGTH_AND_MAGIC.unpack_from(header, layout.BATCH_LENGTH_AT)
        is_whole = n_bytes == layout.HEADER_BYTES
        if not is_whole or magic != layout.MAGIC or length < layout.MIN_BATCH_LENGTH:
            break
        if not found and length < _LARGE_BATCH_BYTES:
            return None
        found += header
        position += layout.LOG_OVERHEAD + length
    return found


def _small_batches(path: str, descriptor: int, begin: int, end: int) -> ScannedBatches | None:
    """The batches in a range of bytes that are all in memory."""
    buf: Bytes = np.empty(min(end - begin, _MOST_BYTES), np.uint8)
    if os.preadv(descriptor, [buf.data], begin, os.RWF_NOWAIT) < len(buf):
        return None
    n_rows = len(buf) // _LEAST_BATCH_BYTES + 1
    headers: Int64s = np.empty((n_rows, layout.N_HEADER_COLUMNS), np.int64)
    _, _, n_batches = walk_headers(buf, 0, len(buf), headers)
    return ScannedBatches(path, buf, headers[:n_batches], begin) if n_batches else None


def _table(path: str, data: bytearray, begin: int) -> ScannedBatches | None:
    """The batches of some headers, of which the first one begins at a byte of the file."""
    fields = np.frombuffer(data, _FIELDS)
    headers: Int64s = np.zeros((len(fields), layout.N_HEADER_COLUMNS), np.int64)
    columns = layout.SIZE, layout.BASE_OFFSET, layout.LAST_OFFSET
    sizes, base, last = (headers[:, each] for each in columns)
    np.add(fields["length"], layout.LOG_OVERHEAD, out=sizes)
    np.cumsum(sizes[:-1], out=headers[1:, layout.POSITION])
    base[:] = fields["base"]
    np.add(base, fields["delta"], out=last)
    headers[:, layout.ATTRIBUTES] = fields["attributes"] & 0xFF
    if (last < base).any() or last.max() == LARGEST_LONG:
        return None
    return ScannedBatches(path, np.frombuffer(data, np.uint8), headers, begin)


def bring_into_memory(file: ReadableFile, begin: int, end: int) -> None:
    """Read what the system lacks of a range of a local file, which it will send from memory."""
    byte, piece = bytearray(1), memoryview(b"")
    for at in range(begin, end, _PIECE_BYTES):
        try:
            os.preadv(file.descriptor or 0, [byte], at, os.RWF_NOWAIT)
        except AttributeError:  # it does not say so
            return
        except OSError:
            piece = piece or memoryview(bytearray(_PIECE_BYTES))
            file.read_into(piece[: end - at], at)
