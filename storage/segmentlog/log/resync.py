"""Behind damage: where the next good batch of a file stands."""

import os
from typing import NamedTuple

from segmentlog.kernels import layout
from segmentlog.log.tail import find_good_batch
from segmentlog.records.header import parse_header

__all__ = ["Found", "behind_damage"]

_SEARCH_BYTES = 16 << 20
_OVERLAP_BYTES = 8 << 20  # batches up to this size are found wherever they stand


class Found(NamedTuple):
    """A good batch: the byte of the file that it begins at, and its first offset."""

    position: int
    base_offset: int


def behind_damage(descriptor: int, position: int, end: int, next_offset: int) -> Found | None:
    """First good batch behind the bad one at byte `position`, or None up to byte `end`.

    The end that the bad batch claims for itself is tried first: a record of it may hold a copy
    of a batch, which a search would take for one of the log.

    Parameters
    ----------
    descriptor : of the file.
    position, end : where the bad batch begins, and how far to look.
    next_offset : the least base offset that the good one may have.
    """
    prefix = os.pread(descriptor, layout.LOG_OVERHEAD, position)
    length = int.from_bytes(prefix[layout.BATCH_LENGTH_AT :], "big", signed=True)
    claimed = position + layout.LOG_OVERHEAD + length
    if length >= layout.MIN_LEGACY_LENGTH and claimed <= end:
        if claimed == end:
            return None
        found = _search(descriptor, claimed, end, next_offset)
        if found is not None and found.position == claimed:
            return found
    at = position + 1
    while at < end:
        found = _search(descriptor, at, end, next_offset)
        if found is not None:
            return found
        at += _SEARCH_BYTES - _OVERLAP_BYTES
    return None


def _search(descriptor: int, at: int, end: int, next_offset: int) -> Found | None:
    """First good batch that lies whole in one window from byte `at` on."""
    data = os.pread(descriptor, min(_SEARCH_BYTES, end - at), at)
    found = find_good_batch(data, 0, next_offset)
    if found is None:
        return None
    header = parse_header(data, found)
    return Found(at + found, next_offset if header.is_wrapper else header.base_offset)
