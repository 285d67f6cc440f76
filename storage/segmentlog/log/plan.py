"""Cut a range of offsets into slices of bytes.

Segment boundaries and entries of the offset index are the only places to cut, so that a slice
begins and ends between two batches.  For each cut inside a file one batch header is read: it must
fit the index entry, and its base offset is where one slice ends and the next begins.  A cut that
does not fit is not made; the slice is then larger, never wrong.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from segmentlog.index.offset import OffsetIndex
from segmentlog.log.listing import list_segments
from segmentlog.log.segment import Segment
from segmentlog.log.tail import LogEnd, find_log_end
from segmentlog.model import LogSlice, SliceFile, TopicPartition

__all__ = ["UNCHECKED", "cut_slices", "find_again"]

#: In place of the first batch's checksum, where planning has seen no batch: for a file that is
#: read from its first byte, which planning has not opened, and for bytes that are none.
UNCHECKED = -1


class _Piece(NamedTuple):
    """Part of a file, and the offset from which on it holds the log."""

    start_offset: int
    file: SliceFile


def cut_slices(
    topic_partition: TopicPartition,
    segments: Sequence[Segment],
    log_end: LogEnd | None,
    start_offset: int,
    end_offset: int,
    max_bytes: int,
) -> list[LogSlice]:
    """Slices of at most about `max_bytes` that together hold ``[start_offset, end_offset)``.

    Parameters
    ----------
    topic_partition : whose slices.
    segments : in the order of their base offsets.
    log_end : end of the last segment; None when it is not known, and then looked for.
    start_offset, end_offset : half-open; nothing is planned when it is empty.
    max_bytes : 0 for one slice, however large.
    """
    if start_offset >= end_offset:
        return []
    pieces: list[_Piece] = []
    bases = [segment.base_offset for segment in segments]
    first = max(bisect_right(bases, start_offset) - 1, 0)
    for i in range(first, len(segments)):
        if bases[i] >= end_offset:
            break
        next_base = bases[i + 1] if i + 1 < len(segments) else None
        end = _end_position(segments[i], next_base, end_offset, log_end)
        piece = _first_piece(segments[i], start_offset, end)
        if piece is not None:
            pieces += _cut_piece(segments[i], piece, max_bytes)
    return _group(topic_partition, pieces, start_offset, end_offset, max_bytes)


def _end_position(
    segment: Segment, next_base: int | None, end_offset: int, log_end: LogEnd | None
) -> int:
    """Byte of `segment` behind the last batch that begins below `end_offset`."""
    if next_base is not None and end_offset >= next_base:
        return segment.size
    if next_base is None and log_end is not None:
        if end_offset > log_end.offset:  # damage is to be read, and to be reported by the read
            return segment.size
        if end_offset == log_end.offset:
            return log_end.position
    position, next_offset = segment.floor_position(end_offset), segment.base_offset
    for placed in segment.headers(position):
        header = placed.header
        # Where a compressed old message begins is not told, but that it is behind the one before.
        begins = next_offset if header.is_wrapper else header.base_offset
        if begins >= end_offset:
            return placed.position
        position, next_offset = placed.end, header.last_offset + 1
    return position


def _first_piece(segment: Segment, start_offset: int, end: int) -> _Piece | None:
    """The bytes of `segment` from the batch that holds `start_offset` to `end`, if any."""
    if start_offset <= segment.base_offset:
        whole = SliceFile(segment.path, 0, end, segment.base_offset, UNCHECKED)
        return _Piece(segment.base_offset, whole) if end else None
    placed = segment.find(start_offset)
    if placed is None:
        return _bad_rest(segment, start_offset, end)
    if placed.position >= end:
        return None
    header = placed.header
    file = SliceFile(segment.path, placed.position, end, header.base_offset, header.crc)
    return _Piece(start_offset, file)


def _bad_rest(segment: Segment, start_offset: int, end: int) -> _Piece | None:
    """Bytes behind the last whole batch, if any are to be read: the read reports them."""
    position = segment.floor_position(start_offset)
    for placed in segment.headers(position):
        position = placed.end
    if position >= end:
        return None
    file = SliceFile(segment.path, position, end, start_offset, UNCHECKED)
    return _Piece(start_offset, file)


def _cut_piece(segment: Segment, piece: _Piece, max_bytes: int) -> Iterable[_Piece]:
    """Even parts of `piece` of at most about `max_bytes`, cut at entries of the offset index."""
    file = piece.file
    begin, n_bytes = file.start, file.end - file.start
    if not max_bytes or n_bytes <= max_bytes:
        return [piece]
    n_parts = -(-n_bytes // max_bytes)
    pieces = []
    with segment.offset_index() as index:
        for part in range(1, n_parts):
            entry = index.last_at_or_before_position(begin + part * n_bytes // n_parts)
            if not file.start < entry.position < file.end:
                continue
            header = segment.header_at(entry.position, up_to_offset=entry.offset)
            if header is None:
                continue
            begins = header.base_offset
            if header.is_wrapper:
                begins = _behind_previous(segment, entry.position, index)
            if begins <= piece.start_offset:
                continue
            pieces.append(_Piece(piece.start_offset, file._replace(end=entry.position)))
            file = SliceFile(file.path, entry.position, file.end, header.base_offset, header.crc)
            piece = _Piece(begins, file)
    return [*pieces, _Piece(piece.start_offset, file)]


def _behind_previous(segment: Segment, position: int, index: OffsetIndex) -> int:
    """Offset behind the batch before the one at `position`, or the base offset."""
    entry, next_offset = index.last_at_or_before_position(position - 1), -1
    fits = segment.header_at(entry.position, up_to_offset=entry.offset) is not None
    begin = entry.position if fits else 0
    for placed in segment.headers(begin, position):
        if placed.end == position:
            next_offset = placed.header.last_offset + 1
    return max(next_offset, segment.base_offset)


def _group(
    topic_partition: TopicPartition,
    pieces: Sequence[_Piece],
    start_offset: int,
    end_offset: int,
    max_bytes: int,
) -> list[LogSlice]:
    """Put neighbours together while they stay below `max_bytes`."""
    groups: list[list[_Piece]] = []
    filled = 0
    for piece in pieces:
        n_bytes = piece.file.end - piece.file.start
        if not groups or (max_bytes and filled + n_bytes > max_bytes):
            groups.append([])
            filled = 0
        groups[-1].append(piece)
        filled += n_bytes
    starts = [max(group[0].start_offset, start_offset) for group in groups]
    if not starts:  # compaction has left nothing there
        return []
    starts[0] = start_offset
    ends = [*starts[1:], end_offset]
    return [
        LogSlice(*topic_partition, start, end, tuple(piece.file for piece in group))
        for group, start, end in zip(groups, starts, ends, strict=True)
    ]


def find_again(log_slice: LogSlice, partition_path: str, next_offset: int) -> LogSlice | None:
    """What is left of a slice from `next_offset` on, in the files that the partition has now.

    None when the log begins behind `next_offset`, or ends before the slice does: records of the
    slice have been deleted, or a broker has truncated its log.

    Raises
    ------
    LogDirectoryError
        If the partition is gone.
    """
    files = list_segments(partition_path)
    if not files or files[0].base_offset > next_offset:
        return None
    segments = [Segment(file, is_sealed=False) for file in files]
    if find_log_end(segments[-1]).offset < log_slice.end_offset:
        return None
    topic_partition = TopicPartition(log_slice.topic, log_slice.partition)
    slices = cut_slices(topic_partition, segments, None, next_offset, log_slice.end_offset, 0)
    return slices[0] if slices else log_slice._replace(start_offset=next_offset, files=())
