"""The segments of a partition directory, from one look at its names and sizes.

Files with a state in their names are taken as a starting broker takes them (``LogLoader``):
``.deleted`` and ``.cleaned`` files are not part of the log.  ``.swap`` files are: compaction has
finished them, and they stand for every segment in the range of offsets that they cover, unless a
``.cleaned`` file with the same or a lower offset tells that the swap had not begun in earnest.
"""

import logging
import os
from typing import NamedTuple

from segmentlog.errors import LogDirectoryError
from segmentlog.files.names import FileKind, FileState, parse_segment_file
from segmentlog.kernels import layout
from segmentlog.records.header import parse_header

__all__ = ["SegmentFiles", "list_segments", "lone_segment", "next_offset_of"]

logger = logging.getLogger(__name__)


class SegmentFiles(NamedTuple):
    """One ``.log`` file as it was listed; `is_swap` when its name ends in ``.swap``."""

    base_offset: int
    path: str
    size: int
    is_swap: bool = False


def list_segments(partition_path: str) -> tuple[SegmentFiles, ...]:
    """Segments in the order of their base offsets; of none, for a directory without any.

    Raises
    ------
    LogDirectoryError
        If the directory cannot be listed.
    """
    live: dict[int, SegmentFiles] = {}
    swaps: dict[int, SegmentFiles] = {}
    cleaned: list[int] = []
    try:
        with os.scandir(partition_path) as entries:
            for entry in entries:
                name = entry.name
                if ".log" not in name and ".cleaned" not in name:
                    continue
                parsed = parse_segment_file(name)
                if parsed is None or parsed.state == FileState.DELETED:
                    continue
                if parsed.state == FileState.CLEANED:
                    cleaned.append(parsed.offset)
                elif parsed.kind == FileKind.LOG:
                    _add(entry, parsed.offset, swaps if parsed.state == FileState.SWAP else live)
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise LogDirectoryError(partition_path, f"cannot be listed: {error.strerror}") from error
    if swaps:
        live = _with_swaps(live, swaps, cleaned)
    return tuple(live[base_offset] for base_offset in sorted(live))


def lone_segment(path: str) -> SegmentFiles:
    """A ``.log`` file that its directory's listing leaves out: renamed, or copied elsewhere.

    Raises
    ------
    LogDirectoryError
        If its name does not begin with a base offset.
    """
    digits = os.path.basename(path).partition(".")[0]
    if not digits.isdecimal():
        reason = "is not named by its base offset, as 00000000000000000000.log"
        raise LogDirectoryError(path, reason)
    return SegmentFiles(int(digits), path, os.stat(path).st_size)


def _add(entry: os.DirEntry[str], base_offset: int, segments: dict[int, SegmentFiles]) -> None:
    """Take one ``.log`` file, unless it is a link, a directory, or already gone."""
    if entry.is_symlink():
        logger.warning("%s is a symbolic link out of the log and is left out", entry.path)
        return
    try:
        if entry.is_file(follow_symlinks=False):
            size = entry.stat(follow_symlinks=False).st_size
            is_swap = entry.name.endswith(".swap")
            segments[base_offset] = SegmentFiles(base_offset, entry.path, size, is_swap)
    except FileNotFoundError:  # deleted since the directory was listed
        return


def _with_swaps(
    live: dict[int, SegmentFiles], swaps: dict[int, SegmentFiles], cleaned: list[int]
) -> dict[int, SegmentFiles]:
    """Put finished swap files in the place of what they replace."""
    first_cleaned = min(cleaned, default=2**63)
    finished = {offset: swap for offset, swap in swaps.items() if offset < first_cleaned}
    if not finished:
        return live
    first, behind = min(finished), max(map(next_offset_of, finished.values()))
    kept = {offset: files for offset, files in live.items() if not first <= offset < behind}
    return kept | finished


def next_offset_of(swap: SegmentFiles) -> int:
    """Offset behind the last batch: compaction merges segments, so it may be in a later one."""
    next_offset, position = swap.base_offset, 0
    try:
        with open(swap.path, "rb") as file:
            while len(head := file.read(layout.HEADER_BYTES)) >= layout.SMALLEST_BATCH_BYTES:
                header = parse_header(head.ljust(layout.HEADER_BYTES, b"\0"))
                position += header.size_in_bytes
                if header.batch_length < layout.MIN_LEGACY_LENGTH or position > swap.size:
                    break
                next_offset = header.last_offset + 1
                file.seek(position)
    except FileNotFoundError:  # put in its place since the directory was listed
        return swap.base_offset
    return next_offset
