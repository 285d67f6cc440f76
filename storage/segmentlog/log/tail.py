"""The end of a log: how far the last segment holds whole batches with right checksums.

The last write of a crashed broker may be cut short, or its pages lost.  Such a torn tail is not
data and never was acknowledged on this disk, so a read ends before it.  Damage that has good
batches behind it is no torn tail: that is left in the range to read, and the read fails there.
"""

import logging
import os
import zlib
from typing import NamedTuple

import crc32c

from segmentlog.errors import MalformedBatchError, UnsupportedFormatError
from segmentlog.kernels import layout
from segmentlog.log.resync import find_good_batch
from segmentlog.log.segment import PlacedHeader, Segment
from segmentlog.records.header import parse_header

__all__ = ["LogEnd", "find_log_end"]

logger = logging.getLogger(__name__)

_ENTRIES_TRIED = 4
_MOST_OFFSETS = 1 << 31  # of one segment

#: How much of what follows a bad batch is searched for a good one.
_SEARCH_BYTES = 16 << 20


class LogEnd(NamedTuple):
    """Where the last segment ends.

    `position` is the byte behind the last good batch, `offset` the next offset there.  When
    `is_damaged`, good batches stand behind bad bytes at `position`; the log goes on, unreadably.
    """

    offset: int
    position: int
    is_damaged: bool = False


def find_log_end(segment: Segment) -> LogEnd:
    """End of the active segment; a torn tail is left out, with a warning unless it is all zeros.

    Reads what stands behind the last index entry, and checks the checksums of that.
    """
    if segment.size == 0:
        return LogEnd(segment.base_offset, 0)
    position = _last_indexed(segment)
    end = _last_good(segment, position)
    if end is None and position:  # the batch that the index leads to is the damaged one
        end = _last_good(segment, 0)
    if end is None:
        end = LogEnd(segment.base_offset, 0)
    if end.position == segment.size:
        return end
    return _judge_rest(segment, end)


def _last_indexed(segment: Segment) -> int:
    """Position of the last index entry whose batch is there; the newest may be the torn one."""
    with segment.offset_index() as index:
        newest = range(index.n_entries - 1, max(index.n_entries - 1 - _ENTRIES_TRIED, -1), -1)
        for entry in map(index.entry, newest):
            if segment.header_at(entry.position, up_to_offset=entry.offset) is not None:
                return entry.position
    return 0


def _last_good(segment: Segment, position: int) -> LogEnd | None:
    """End of the good batches from `position` on, or None when there is not one."""
    end = None
    next_offset = segment.base_offset
    descriptor = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for placed in segment.headers(position):
            header = placed.header
            if header.base_offset < next_offset or not _is_intact(descriptor, placed):
                break
            next_offset = header.last_offset + 1
            end = LogEnd(next_offset, placed.end)
    except (MalformedBatchError, UnsupportedFormatError):
        pass
    finally:
        os.close(descriptor)
    return end


def _is_intact(descriptor: int, placed: PlacedHeader) -> bool:
    """Whether the batch's bytes have the checksum that its header says."""
    is_message = placed.header.magic < layout.MAGIC
    at = placed.position + (layout.MAGIC_AT if is_message else layout.ATTRIBUTES_AT)
    checksum = zlib.crc32 if is_message else crc32c.crc32c
    crc = 0
    while at < placed.end:
        piece = os.pread(descriptor, min(1 << 20, placed.end - at), at)
        if not piece:
            return False
        crc = checksum(piece, crc)
        at += len(piece)
    return crc == placed.header.crc


def _judge_rest(segment: Segment, end: LogEnd) -> LogEnd:
    """Tell a torn tail from damage in the middle, by whether a good batch follows."""
    n_bytes = segment.size - end.position
    with open(segment.path, "rb") as file:
        file.seek(end.position)
        rest = file.read(min(n_bytes, _SEARCH_BYTES))
    if not rest.strip(b"\0"):
        return end  # preallocated, or a page that was never written
    if find_good_batch(rest, 1, end.offset) is not None or _is_newer_format(rest, end.offset):
        return end._replace(is_damaged=True)
    logger.warning(
        "%s ends in the middle of a batch: reading stops at byte %d (offset %d), "
        "%d bytes behind it are left out",
        segment.path, end.position, end.offset, n_bytes,
    )  # fmt: skip
    return end


def _is_newer_format(rest: bytes, next_offset: int) -> bool:
    """Whether a whole batch of a magic above 2 comes next, which nothing half-written looks like.

    The magic is under no checksum: it is a newer format, or damage that takes acknowledged records
    with it, and both are for the read to report.
    """
    if len(rest) < layout.HEADER_BYTES or rest[layout.MAGIC_AT] <= layout.MAGIC:
        return False
    header = parse_header(rest)
    is_whole = layout.HEADER_BYTES <= header.size_in_bytes <= len(rest)
    return is_whole and 0 <= header.base_offset - next_offset < _MOST_OFFSETS
