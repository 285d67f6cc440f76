"""What the system has in memory of a file, so that the loop of all clients waits for no disk."""

import os

import numpy as np

from segmentlog.format.kernels import layout, status
from segmentlog.format.kernels.memory import Int64s
from segmentlog.format.records.header import ScannedBatches
from segmentlog.log.batches import HeadersInMemory
from segmentlog.log.segment import OpenSegment
from segmentlog.store.readable import ReadableFile

_MOST_BATCHES = 16 << 10
_LEAST_BATCH_BYTES = layout.HEADER_SIZES[0]
_PIECE_BYTES = 128 << 10


def batches_in_memory(opened: OpenSegment, begin: int, max_bytes: int) -> ScannedBatches | None:
    """The batches that begin in a range of a local file; no checksum is checked.

    None if the system lacks some headers, or does not say so, or if the first batch, or the
    offsets of one, are not usual.
    """
    segment = opened.segment
    end = min(begin + max(max_bytes, layout.HEADER_BYTES), segment.size)
    if begin >= end:
        return None
    n_rows = min((end - begin) // _LEAST_BATCH_BYTES + 1, _MOST_BATCHES)
    headers: Int64s = np.empty((n_rows, layout.N_HEADER_COLUMNS), np.int64)
    near = HeadersInMemory(opened.file.descriptor, end - begin)
    buf, code, after, n_batches = near.walk(begin, end, headers)
    is_far = code == status.NEED_MORE and after + layout.HEADER_BYTES <= len(buf)
    # Wrong offsets may also be those of the batch before.
    if not n_batches or is_far or code == status.BAD_OFFSET_DELTA:
        return None
    return ScannedBatches(segment.path, buf, headers[:n_batches], begin)


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
