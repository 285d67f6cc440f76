"""The end of a segment's good batches: recovery cuts the segment there."""

from typing import NamedTuple

import numpy as np

from segmentlog.disk.readable import open_file
from segmentlog.errors import CorruptLogError, UnsupportedFormatError
from segmentlog.kernels import layout
from segmentlog.records.decoder import BatchScanner
from segmentlog.records.scanned_batches import ScannedBatches
from segmentlog.segments.log_end import is_newer_format
from segmentlog.segments.segment import Segment
from segmentlog.segments.windows import BatchWindows

__all__ = ["GoodEnd", "find_good_end"]

_WINDOW_BYTES = 4 << 20


class GoodEnd(NamedTuple):
    """Byte and offset after the last good batch, and the damage there, if any."""

    position: int
    offset: int
    error: CorruptLogError | UnsupportedFormatError | None = None


def find_good_end(segment: Segment) -> GoodEnd:
    """Read a segment up to its first bad batch: lengths, checksums, the order of offsets.

    Raises
    ------
    UnsupportedFormatError
        If there is a whole batch of a newer, unknown format: it may be good.
    """
    scanner = BatchScanner(segment.path, segment.base_offset)
    reached = segment.base_offset
    with open_file(segment.path) as file:
        windows = BatchWindows(_WINDOW_BYTES)
        try:
            for batches in windows.batches(file.read_into, scanner, 0, segment.size):
                deltas = batches.headers[:, layout.LAST_OFFSET] - segment.base_offset
                is_far = deltas >= layout.SEGMENT_OFFSETS
                if is_far.any():
                    return _before_far(batches, int(np.argmax(is_far)), reached)
                reached = batches.next_offset
        except UnsupportedFormatError as error:
            rest = file.read(error.position, layout.HEADER_BYTES)
            if is_newer_format(rest, reached, segment.size - error.position):
                raise
            return GoodEnd(error.position, reached, error)
        except CorruptLogError as error:
            return GoodEnd(error.position, reached, error)
    return GoodEnd(segment.size, reached)


def _before_far(batches: ScannedBatches, row: int, next_offset: int) -> GoodEnd:
    """The end before a batch whose offset is too far away for an index."""
    offset = batches.only(slice(row)).next_offset if row else next_offset
    reason = "its offset is further from the segment's base than a segment can hold"
    return GoodEnd(batches.position_of(row), offset, batches.malformed(row, reason))
