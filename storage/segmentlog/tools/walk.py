"""Walk over all batches of one file, good and bad.

After a batch with a wrong checksum but a right length, the next batch follows directly.  If the
length is wrong, too, the place of the next batch is unknown.  Then every byte is tried, and the
walk continues at the first whole batch with a right checksum.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from segmentlog.errors import MalformedBatchError, UnsupportedFormatError
from segmentlog.format.kernels import layout, status
from segmentlog.format.records.header import BatchHeader, parse_header
from segmentlog.log.resync import good_batch_after
from segmentlog.log.segment import PlacedHeader, Segment
from segmentlog.store.contract import ReadableFile
from segmentlog.store.readable import after_zeros
from segmentlog.tools.selection import last_offset


class Found(NamedTuple):
    """A batch, or other bytes, at one place of a file.

    `position`: byte at which it begins.  `n_bytes`: its size; if no length is credible, it extends
    to the next good batch.  `header`: None if the bytes are not a batch.  `problem`: its fault, or
    the empty string.
    """

    position: int
    n_bytes: int
    header: BatchHeader | None
    problem: str = ""


def walk(
    segment: Segment,
    file: ReadableFile,
    position: int = 0,
    is_wanted: Callable[[BatchHeader], bool] = lambda _: True,
) -> Iterator[Found]:
    """Batches from byte `position` on, and the places without a batch.

    `file`: its file, opened.  `is_wanted`: decides whether a batch is checked and yielded.
    """
    next_offset = -(2**63)
    while position < segment.size:
        reason, bad = "", None
        try:
            for placed in segment.headers(position):
                header = placed.header
                if is_wanted(header):
                    reason = _problem(file, placed, next_offset)
                    if reason and not _goes_on(segment, file, placed):
                        bad = header
                        break
                    yield Found(position, header.size_in_bytes, header, reason)
                if not reason.startswith("its crc"):  # otherwise its offsets may be wrong as well
                    next_offset = last_offset(header) + 1
                reason, position = "", placed.end
        except MalformedBatchError as error:
            reason = error.reason
        except UnsupportedFormatError as error:
            reason = f"its {error.what} is {error.found}, which this version does not read"
        if position >= segment.size:
            return
        found = _unreadable(segment, file, position, bad, reason, next_offset)
        yield found
        position += found.n_bytes


def _problem(file: ReadableFile, placed: PlacedHeader, next_offset: int) -> str:
    """The fault of a whole batch, judged by its header and its checksum."""
    header = placed.header
    found = placed.checksum(file)
    if found != header.crc:
        name = "crc32c" if header.magic >= layout.FIRST_BATCH_MAGIC else "crc32"
        return f"its {name} is {found:#010x}, but its header contains {header.crc:#010x}"
    if header.base_offset < next_offset:
        return status.REASONS[status.OFFSETS_GO_BACK]
    if header.magic >= layout.FIRST_BATCH_MAGIC:
        if header.last_offset_delta < 0:
            return status.REASONS[status.BAD_OFFSET_DELTA]
        if not 0 <= header.records_count <= header.last_offset_delta + 1:
            return status.REASONS[status.BAD_RECORDS_COUNT]
    return ""


def _goes_on(segment: Segment, file: ReadableFile, placed: PlacedHeader) -> bool:
    """Whether a bad batch is followed by a likely batch, or by nothing."""
    left = segment.size - placed.end
    if left == 0:
        return True
    head = file.read(placed.end, layout.MAGIC_PREFIX_BYTES)
    if len(head) < layout.MAGIC_PREFIX_BYTES:
        return False
    length = int.from_bytes(head[layout.BATCH_LENGTH_AT : layout.LEADER_EPOCH_AT], "big")
    base_offset = int.from_bytes(head[: layout.BATCH_LENGTH_AT], "big")
    looks_right = (
        head[layout.MAGIC_AT] <= layout.NEWEST_MAGIC
        and layout.MIN_LEGACY_LENGTH <= length <= left - layout.LOG_OVERHEAD
        and placed.header.base_offset < base_offset < 2**63
    )
    return looks_right or after_zeros(file, placed.end, segment.size) == segment.size


def _unreadable(
    segment: Segment,
    file: ReadableFile,
    position: int,
    header: BatchHeader | None,
    reason: str,
    next_offset: int,
) -> Found:
    """The unreadable bytes, up to the place where the walk can go on."""
    left = segment.size - position
    if after_zeros(file, position, segment.size) == segment.size:
        return Found(position, left, None)
    if header is None:
        header = _header_at(segment, file, position)
        if header is not None and not reason:
            reason = f"it needs {header.size_in_bytes} bytes, but the file has {left} left"
    reason = reason or "the file ends inside a batch header"
    n_bytes = left
    good = good_batch_after(file, position, segment.size, max(next_offset, 0))
    if good is not None:
        n_bytes = good.position - position
        reason += f"; the next good batch is at byte {good.position}"
    return Found(position, n_bytes, header, reason)


def _header_at(segment: Segment, file: ReadableFile, position: int) -> BatchHeader | None:
    """Header at `position` if its magic is 2; its fields may be damaged."""
    head = file.read(position, layout.HEADER_BYTES)
    if len(head) < layout.HEADER_BYTES or head[layout.MAGIC_AT] != layout.MAGIC:
        return None
    return parse_header(head)
