"""Segments that hold the same batches: a merged segment beside segments that it replaces.

Compaction merges segments and then removes them.  A crash between these steps, or a copy that was
taken meanwhile, leaves both.  So a batch that reaches into the next segment is either such a copy,
or it has a wrong base offset, which no checksum covers.  The next segment shows which.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from segmentlog.format.kernels import layout
from segmentlog.format.records.header import BatchHeader, parse_header
from segmentlog.store.contract import ReadableFile
from segmentlog.store.readable import open_file

if TYPE_CHECKING:
    from segmentlog.log.listing import SegmentFiles

_BASE_OFFSET = attrgetter("base_offset")


def reach(file: "SegmentFiles", others: "Sequence[SegmentFiles]") -> int:
    """Offset after the last batch of a file whose base offset is right.

    The batch that follows shows that a base offset is too high.  So only the last batch is judged:
    if it is the only one that reaches into another segment, that segment must hold it, too.

    `file`: of which headers are read, and no checksum is verified.  `others`: other segments of
    the log, in the order of their base offsets.  Raises `FileNotFoundError` if `file` is gone.
    """

    def place(offset: int) -> int:
        return bisect_right(others, offset, key=_BASE_OFFSET)

    before, last = file.base_offset, None
    with open_file(file.path) as opened:
        for header in _headers(opened):
            before = before if last is None else last.last_offset + 1
            last = header
    if last is None:
        return before
    at = place(last.last_offset)
    if at > place(max(before - 1, file.base_offset)) and not _holds(others[at - 1].path, last):
        return before
    return last.last_offset + 1


def _holds(path: str, merged: BatchHeader) -> bool:
    """Whether a file holds the batch `merged`, or the batch that it was made of."""
    try:
        with open_file(path) as file:
            originals = (each for each in _headers(file) if each.last_offset >= merged.last_offset)
            original = next(originals, None)
            return original is not None and _is_made_of(merged, original)
    except FileNotFoundError:  # compaction has removed the file since
        return True


def _is_made_of(merged: BatchHeader, original: BatchHeader) -> bool:
    """Whether compaction can have made one batch of the other.

    A batch with a wrong base offset may claim the offsets of a whole batch by chance; then it has
    the same codec, and no fewer records.
    """
    if (merged.base_offset, merged.last_offset) != (original.base_offset, original.last_offset):
        return False
    if merged.crc == original.crc:
        return True
    has_changed = merged.codec != original.codec or merged.delete_horizon_ms is not None
    return merged.magic == layout.MAGIC and (
        has_changed or merged.records_count < original.records_count
    )


def _headers(file: ReadableFile) -> Iterator[BatchHeader]:
    """Headers up to the first that cannot be true."""
    position, size = 0, file.status().size
    while True:
        head = file.read(position, layout.HEADER_BYTES)
        if len(head) < layout.SMALLEST_BATCH_BYTES:
            return
        header = parse_header(head.ljust(layout.HEADER_BYTES, b"\0"))
        position += header.size_in_bytes
        if header.batch_length < layout.MIN_LEGACY_LENGTH or position > size:
            return
        yield header
