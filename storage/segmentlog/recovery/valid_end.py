"""How far a segment holds nothing but good batches: where recovery cuts it."""

from typing import NamedTuple

import numpy as np

from segmentlog.errors import CorruptLogError, UnsupportedFormatError
from segmentlog.files.readable import open_file
from segmentlog.kernels import layout
from segmentlog.kernels.memory import COPY_SLACK, Bytes
from segmentlog.records.decoder import BatchScanner
from segmentlog.records.scanned_batches import ScannedBatches
from segmentlog.segments.log_end import is_newer_format
from segmentlog.segments.segment import Segment

__all__ = ["GoodEnd", "find_good_end"]

_WINDOW_BYTES = 4 << 20


class GoodEnd(NamedTuple):
    """Byte and offset behind the last good batch, and what is wrong there, if anything is."""

    position: int
    offset: int
    error: CorruptLogError | UnsupportedFormatError | None = None


def find_good_end(segment: Segment) -> GoodEnd:
    """Read a segment up to its first bad batch: lengths, checksums, the order of offsets.

    Raises
    ------
    UnsupportedFormatError
        If a whole batch of a format is there that is newer than this version: it may be good.
    """
    scanner = BatchScanner(segment.path, segment.base_offset)
    buffer: Bytes = np.empty(_WINDOW_BYTES + COPY_SLACK, np.uint8)
    position, wanted = 0, _WINDOW_BYTES
    file = open_file(segment.path)
    try:
        while position < segment.size:
            n_bytes = min(wanted, segment.size - position)
            if buffer.size < n_bytes + COPY_SLACK:
                buffer = np.empty(n_bytes + COPY_SLACK, np.uint8)
            held = file.read_into(buffer[:n_bytes].data, position)
            reached = scanner.next_offset
            batches = scanner.scan(buffer, 0, held, position)
            deltas = batches.headers[:, layout.LAST_OFFSET] - segment.base_offset
            is_far = deltas >= layout.SEGMENT_OFFSETS
            if is_far.any():
                return _before_far(batches, int(np.argmax(is_far)), reached)
            wanted = _WINDOW_BYTES
            if len(batches.headers):
                position += batches.end
            else:
                prefix = buffer[: min(held, layout.LOG_OVERHEAD)].tobytes()
                wanted = segment.size_of_batch(prefix, position)
    except UnsupportedFormatError as error:
        rest = file.read(position, layout.HEADER_BYTES)
        if is_newer_format(rest, scanner.next_offset, segment.size - position):
            raise
        return GoodEnd(position, scanner.next_offset, error)
    except CorruptLogError as error:
        return GoodEnd(position, scanner.next_offset, error)
    finally:
        file.close()
    return GoodEnd(position, scanner.next_offset)


def _before_far(batches: ScannedBatches, row: int, next_offset: int) -> GoodEnd:
    """The end before a batch whose offset is further away than an index can say."""
    offset = batches.only(slice(row)).next_offset if row else next_offset
    reason = "its offset is further from the segment's base than a segment can hold"
    return GoodEnd(batches.position_of(row), offset, batches.malformed(row, reason))
