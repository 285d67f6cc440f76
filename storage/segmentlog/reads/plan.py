"""Cut a range of offsets into slices of bytes.

Segment boundaries and entries of the offset index are the only places to cut, so that a slice
begins and ends between two batches.  For each cut inside a file one batch header is read: it must
fit the index entry, and its base offset is where one slice ends and the next begins.  A cut that
does not fit is not made; the slice is then larger, never wrong.

The first slice begins, and the last one ends, up to a few index entries further out than the range
does.  The task reads these bytes, verifies them, and drops their rows: a walk along headers to the
exact batch would trust lengths before their checksums are verified.
"""

import contextlib
import errno
import logging
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice, takewhile
from typing import NamedTuple

from segmentlog.errors import CorruptLogError, UnsupportedFormatError
from segmentlog.file_columns import SliceFile, SliceFiles
from segmentlog.format.records.header import BatchHeader
from segmentlog.log.indexes import OffsetPosition
from segmentlog.log.listing import ListedFiles
from segmentlog.log.segment import OpenSegment
from segmentlog.model import LARGEST_LONG, LogSlice, TopicPartition
from segmentlog.reads.listed import ListedSegments, Listing, Partition
from segmentlog.store.readable import is_url
from segmentlog.store.remote.requests import side_by_side

logger = logging.getLogger(__name__)

#: Sentinel: planning did not read the checksum of the first batch: the file is read
#: from its first byte and was not opened, or the bytes are not a batch.
UNCHECKED = -1


class _Cut(NamedTuple):
    """A byte between two batches, and the offset that no batch before the byte reaches."""

    position: int
    next_offset: int


class _Piece(NamedTuple):
    """Part of a file, and the offset from which the part holds the log."""

    start_offset: int
    file: SliceFile


class _Pieces:
    """The pieces of a range, in the order of their offsets."""

    def __init__(self, files: ListedFiles, start_offset: int) -> None:
        self._listed = files
        self._first = start_offset
        self._start_offsets = array("q")
        self._files = SliceFiles(files.paths.part(0, 0))

    def add(self, segment: int, pieces: Iterable[_Piece]) -> None:
        """Add pieces of one segment."""
        base_offset = self._listed.paths.base_offsets[segment]
        for start_offset, file in pieces:
            self._start_offsets.append(start_offset)
            self._files.append(base_offset, file)

    def add_whole(self, begin: int, end: int) -> None:
        """Add the segments ``[begin, end)`` whole, without the empty ones."""
        files = self._listed
        while begin < end:
            try:
                empty = files.sizes.index(0, begin, end)
            except ValueError:
                empty = end
            self._start_offsets += files.paths.base_offsets[begin:empty]
            limits = files.paths.base_offsets[begin + 1 : empty + 1]
            columns = files.paths, files.sizes, files.inodes
            self._files.add_whole(*columns, begin, empty, UNCHECKED, limits)
            begin = empty + 1

    def grouped(
        self, topic_partition: TopicPartition, end_offset: int, max_bytes: int
    ) -> list[LogSlice]:
        """Slices of neighbouring pieces that together stay below `max_bytes`."""
        if not self._files:  # compaction has left nothing there
            return []
        begins, filled = [0], 0
        if max_bytes and sum(self._files.sizes()) > max_bytes:
            for i, n_bytes in enumerate(self._files.sizes()):
                if i and filled + n_bytes > max_bytes:
                    begins.append(i)
                    filled = 0
                filled += n_bytes
        starts = [max(self._start_offsets[i], self._first) for i in begins]
        starts[0] = self._first
        ends = [*starts[1:], end_offset]
        parts = [self._files]
        if len(begins) > 1:
            upper = [*begins[1:], len(self._files)]
            parts = [self._files.part(*each) for each in zip(begins, upper, strict=True)]
        return [
            LogSlice(*topic_partition, start, end, files)
            for start, end, files in zip(starts, ends, parts, strict=True)
        ]


def cut_slices(
    topic_partition: TopicPartition,
    listed: ListedSegments,
    start_offset: int,
    end_offset: int,
    max_bytes: int,
) -> list[LogSlice]:
    """Slices of at most about `max_bytes` that together hold ``[start_offset, end_offset)``.

    With 0, there is one slice, however large.  Raises `FileNotFoundError` if a file that was cut
    has gone, or another one has its name: list the log again.
    """
    files = listed.files
    if start_offset >= end_offset or not files:
        return []
    base_offsets, sizes = files.paths.base_offsets, files.sizes
    pieces = _Pieces(files, start_offset)
    last = len(files) - 1
    first = listed.files.index_of(start_offset)
    # No index is asked about segments that are read whole, as most are.
    whole = first + (base_offsets[first] < start_offset)
    limit = max(whole, min(bisect_right(base_offsets, end_offset) - 1, last))
    largest = max_bytes or LARGEST_LONG
    cut_segment = partial(
        _cut_segment, listed, start_offset=start_offset, end_offset=end_offset, max_bytes=max_bytes
    )
    cut: dict[int, Sequence[_Piece]] = {}
    if max_bytes and is_url(files.paths[0]):
        # Each index and each header is a request, and none waits for another.
        large = [each for each in range(whole, limit) if sizes[each] > max_bytes]
        cut = dict(zip(large, side_by_side(cut_segment, large), strict=True))
    i = first
    while i <= last and base_offsets[i] < end_offset:
        if whole <= i < limit and sizes[i] <= largest:
            run = sizes[i:limit]
            end = limit
            if max(run) > largest:
                end = i + sum(1 for _ in takewhile(largest.__ge__, run))
            pieces.add_whole(i, end)
            i = end
            continue
        pieces.add(i, cut[i] if i in cut else cut_segment(i))
        i += 1
    return pieces.grouped(topic_partition, end_offset, max_bytes)


def _cut_segment(
    listed: ListedSegments, i: int, start_offset: int, end_offset: int, max_bytes: int
) -> Sequence[_Piece]:
    """The bytes of segment `i` within the range, in parts of at most about `max_bytes`."""
    files = listed.files
    last = len(files) - 1
    is_cut = i == last or end_offset < files.paths.base_offsets[i + 1]
    end = _Cut(files.sizes[i], listed.offset_limit(i))
    if i == last and end_offset <= listed.end.offset:
        end = _Cut(listed.end.position, listed.end.offset)
    elif i == last:
        # No sound batch follows the tail, so none reaches the promised end: the read reports
        # damage, even if a wrong base offset puts the damaged batch beyond that end.
        end = _Cut(end.position, end_offset)
    with listed.segment(i).opened() as opened:
        if is_cut and not (i == last and end_offset == listed.end.offset):
            end = _ceiling(opened, end_offset, end)
        piece = _first_piece(opened, start_offset, end)
        pieces = [] if piece is None else _cut_piece(opened, piece, end_offset, max_bytes)
    # The cuts may be those of another file, which compaction has put under the name.
    file = files[i]
    if file.inode and not is_url(file.path) and not file.is_still_there():
        raise FileNotFoundError(errno.ENOENT, "another file now has its name", file.path)
    return pieces


def _ceiling(opened: OpenSegment, end_offset: int, limit: _Cut) -> _Cut:
    """A byte after which no batch begins below `end_offset`, from the offset index."""
    # The first entry at or above that offset belongs to the append that reaches the offset, and
    # this append may begin below it. The second entry does not begin below it, unless the first is
    # wrong.
    entry = next(islice(opened.offset_index.entries_from(end_offset), 1, None), None)
    if entry is None or not 0 < entry.position < limit.position:
        return limit
    _, begins = _batch_at(opened, entry)
    return limit if begins < end_offset else _Cut(entry.position, begins)


def _first_piece(opened: OpenSegment, start_offset: int, end: _Cut) -> _Piece | None:
    """The bytes of a segment up to `end`, from a batch that is not after `start_offset`."""
    segment = opened.segment
    position, first_offset, crc = 0, segment.base_offset, UNCHECKED
    if start_offset > first_offset:
        # The batches before and after it show that a base offset is wrong.  So the read begins two
        # entries before the range.
        entry = opened.offset_index.lookup_before(start_offset - 1)
        position, header = opened.confirm(entry, start_offset)
        # At byte 0, the bound is the segment's base offset: no checksum covers the base offset of
        # the first batch, and no batch before it shows that it is too high.
        if header is not None:
            crc = header.crc
            if not header.is_wrapper:
                first_offset = header.base_offset
    if position >= end.position:
        return None
    file = SliceFile(
        segment.path, position, end.position, first_offset, crc, end.next_offset, segment.inode
    )
    return _Piece(max(start_offset, segment.base_offset), file)


def _cut_piece(
    opened: OpenSegment, piece: _Piece, end_offset: int, max_bytes: int
) -> Sequence[_Piece]:
    """Even parts of `piece` of at most about `max_bytes`, cut at entries of the offset index."""
    file = piece.file
    begin, n_bytes = file.start, file.end - file.start
    if not max_bytes or n_bytes <= max_bytes:
        return [piece]
    n_parts = -(-n_bytes // max_bytes)
    pieces = []
    for part in range(1, n_parts):
        entry = opened.offset_index.last_at_or_before_position(begin + part * n_bytes // n_parts)
        if not file.start < entry.position < file.end:
            continue
        header, begins = _batch_at(opened, entry)
        if header is None or not piece.start_offset < begins < end_offset:
            continue
        before = file._replace(end=entry.position, next_offset=begins)
        pieces.append(_Piece(piece.start_offset, before))
        file = file._replace(start=entry.position, first_offset=begins, first_crc=header.crc)
        piece = _Piece(begins, file)
    return [*pieces, _Piece(piece.start_offset, file)]


def _batch_at(opened: OpenSegment, entry: OffsetPosition) -> tuple[BatchHeader | None, int]:
    """Header of the batch at an index entry, and the offset at which a slice may begin there."""
    # It is the batch's base offset, or, for a wrapper, whose header has only its last offset, the
    # least possible one. None and -1 if the batch does not fit: it must begin after the batch
    # before it, and end at or before the entry. No checksum covers base offsets, and a wrong one
    # would hide rows of the slice before.
    header = opened.header_at(entry.position, up_to_offset=entry.offset)
    if header is None or header.last_offset > entry.offset:
        return None, -1
    at = opened.offset_index.last_at_or_before_position(entry.position - 1).position
    before = None
    with contextlib.suppress(CorruptLogError, UnsupportedFormatError):
        for placed in opened.headers(at, entry.position):
            if placed.end == entry.position:
                before = placed.header.last_offset + 1
    if before is None or header.base_offset < before:
        return None, -1
    return header, before if header.is_wrapper else header.base_offset


def cut_by_file(log_slice: LogSlice) -> list[LogSlice]:
    """The slices of single files that together hold the rows of `log_slice`."""
    files = log_slice.files
    starts = [log_slice.start_offset, *(each.first_offset for each in files[1:])]
    ends = [*starts[1:], log_slice.end_offset]
    return [
        log_slice._replace(start_offset=start, end_offset=end, files=(file,))
        for file, start, end in zip(files, starts, ends, strict=True)
        if start < end
    ]


def find_again(log_slice: LogSlice, partition: Partition, next_offset: int) -> LogSlice | None:
    """The rest of a slice from `next_offset` on, in the files that the partition has now.

    None if the log begins after `next_offset`, or ends before the slice does: records of the slice
    have been deleted, or a broker has truncated its log.
    """
    files = partition.files()
    if not files or files[0].base_offset > next_offset:
        return None
    listed = ListedSegments(Listing(files))
    if listed.end.offset < log_slice.end_offset:
        return None
    i = listed.files.index_of(next_offset)
    begins = next((each.base_offset for each in files if each.base_offset > next_offset), -1)
    end = listed.end_of(i) if begins >= 0 else None
    if end is not None and end <= next_offset:
        logger.warning(
            "%s: offsets [%d, %d) were there when the read was planned, and no segment holds them "
            "now: a broker has removed their records in a compaction, or files were lost",
            partition.path, next_offset, min(begins, log_slice.end_offset),
        )  # fmt: skip
    slices = cut_slices(log_slice.topic_partition, listed, next_offset, log_slice.end_offset, 0)
    if slices:
        return slices[0]._replace(topic_id=log_slice.topic_id)
    return log_slice._replace(start_offset=next_offset, files=())
