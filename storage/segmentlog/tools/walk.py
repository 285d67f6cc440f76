"""Walk over the batches of one file, good and bad, and the selection of batches and records.

After a batch with a wrong checksum but a right length, the next batch follows directly.  If the
length is wrong, too, the place of the next batch is unknown.  Then every byte is tried, and the
walk continues at the first whole batch with a right checksum.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from segmentlog.errors import CorruptLogError, MalformedBatchError, UnsupportedFormatError
from segmentlog.format.kernels import layout, status
from segmentlog.format.records.header import BatchHeader, ScannedBatches, parse_header
from segmentlog.log.damage import good_batch_after
from segmentlog.log.segment import PlacedHeader, Segment
from segmentlog.model import LEAST_LONG
from segmentlog.store.readable import ReadableFile, after_zeros

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from segmentlog.format.kernels.memory import Int64s

_RUN_BYTES = 1 << 20  # most of a run
_FEW_BATCHES = 64  # that are walked one by one before the next run is looked for

_LEAST, _BEYOND = LEAST_LONG, 2**63


def last_offset(header: BatchHeader) -> int:
    """Last offset of a batch of any format; a message of magic 0 or 1 stores only the last."""
    return header.last_offset if header.magic >= layout.FIRST_BATCH_MAGIC else header.base_offset


class Selection(NamedTuple):
    """Half-open ranges: a record is selected if it lies in both.

    If a `key` is given, the record must also have this key.  `last` is a number of offsets at the
    end of each log to select from, or None for all.
    """

    from_offset: int = _LEAST
    to_offset: int = _BEYOND
    from_ms: int = _LEAST
    to_ms: int = _BEYOND
    last: int | None = None
    key: bytes | None = None

    @classmethod
    def of(
        cls, from_offset: int | None, to_offset: int | None, from_ms: int | None, to_ms: int | None
    ) -> "Selection":
        """A selection from the ends of its ranges; None for an open end."""
        return cls(
            _LEAST if from_offset is None else from_offset,
            _BEYOND if to_offset is None else to_offset,
            _LEAST if from_ms is None else from_ms,
            _BEYOND if to_ms is None else to_ms,
        )

    def of_log(self, end_offset: int) -> "Selection":
        """Bind the selection to a log that ends at `end_offset`."""
        if self.last is None:
            return self
        return self._replace(from_offset=max(self.from_offset, end_offset - self.last))

    @property
    def is_everything(self) -> bool:
        """Whether nothing is left out."""
        return self == Selection()

    def may_hold(self, header: BatchHeader) -> bool:
        """Whether a batch may hold a selected record, by its header alone.

        The smallest timestamp is not in the header, so a batch is left out if it is too old, but
        not if it is too new.  The header of a compressed message of magic 0 or 1 also lacks the
        offsets inside.
        """
        if last_offset(header) < self.from_offset or self.is_after(header):
            return False
        has_times = header.magic > 0
        return not has_times or header.max_timestamp >= self.from_ms

    def may_hold_each(self, headers: "Int64s") -> "NDArray[np.bool_]":
        """`may_hold` of batches of magic 2, by their table of headers."""
        wanted = headers[:, layout.LAST_OFFSET] >= self.from_offset
        wanted &= headers[:, layout.BASE_OFFSET] < self.to_offset
        wanted &= headers[:, layout.MAX_TIMESTAMP] >= self.from_ms
        return wanted

    def is_after(self, header: BatchHeader) -> bool:
        """Whether the batch, and so every later batch, begins at or after the last offset."""
        is_wrapper = header.magic < layout.FIRST_BATCH_MAGIC and header.codec != 0
        return not is_wrapper and header.base_offset >= self.to_offset

    def matches(self, header: BatchHeader) -> bool:
        """Whether a batch is shown if records are not: as `may_hold`, and not too new.

        A batch is too new if its first record is.  If compaction has put another value in the
        place of this record's time, the newest record decides.
        """
        if not self.may_hold(header):
            return False
        is_known = header.delete_horizon_ms is None and header.base_timestamp >= 0
        return (header.base_timestamp if is_known else header.max_timestamp) < self.to_ms

    def matches_empty(self, header: BatchHeader) -> bool:
        """Whether a batch without records, as compaction leaves them, is shown among records."""
        return header.records_count == 0 and self.matches(header)

    def records(self, records: "pa.RecordBatch") -> "pa.RecordBatch":
        """The selected records; the columns ``offset`` and ``timestamp`` decide."""
        if self.is_everything:
            return records
        import pyarrow.compute as pc  # takes long

        offsets, times = records.column("offset"), records.column("timestamp")
        bounds = (
            pc.greater_equal(offsets, self.from_offset),
            pc.less_equal(offsets, self.to_offset - 1),
            pc.greater_equal(times, self.from_ms),
            pc.less_equal(times, self.to_ms - 1),
        )
        wanted = bounds[0]
        for bound in bounds[1:]:
            wanted = pc.and_(wanted, bound)
        if self.key is not None:
            has_key = pc.equal(records.column("key"), self.key)
            wanted = pc.and_(wanted, pc.fill_null(has_key, fill_value=False))
        return records.filter(wanted)


class FoundBytes(NamedTuple):
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
    *,
    in_runs: bool = False,
) -> Iterator[FoundBytes | ScannedBatches]:
    """Batches from byte `position` on, and the places without a batch.

    `file`: its file, opened.  `is_wanted`: decides whether a batch is checked and yielded.
    `in_runs`: whether good batches of magic 2 that have records come many at once, which are valid
    until the next step.  All of them come then, wanted or not.
    """
    next_offset = LEAST_LONG
    while position < segment.size:
        for run in _runs(segment, file, position, next_offset) if in_runs else ():
            position, next_offset = run.file_end, run.next_offset
            if len((full := run.only(run.headers[:, layout.SIZE] > layout.HEADER_BYTES)).headers):
                yield full
        reason, bad, n_left = "", None, _FEW_BATCHES if in_runs else -1
        try:
            for placed in segment.headers(position):
                if n_left == 0:
                    break
                n_left -= 1
                header = placed.header
                if is_wanted(header):
                    reason = _problem(file, placed, next_offset)
                    if reason and not _goes_on(segment, file, placed):
                        bad = header
                        break
                    yield FoundBytes(position, header.size_in_bytes, header, reason)
                if not reason.startswith("its crc"):  # otherwise its offsets may be wrong as well
                    next_offset = last_offset(header) + 1
                reason, position = "", placed.end
        except MalformedBatchError as error:
            reason = error.reason
        except UnsupportedFormatError as error:
            reason = f"its {error.what} is {error.found}, which this version does not read"
        if position >= segment.size:
            return
        if n_left == 0 and not reason:
            continue
        found = _unreadable(segment, file, position, bad, reason, next_offset)
        yield found
        position += found.n_bytes


def _runs(
    segment: Segment, file: ReadableFile, position: int, next_offset: int
) -> Iterator[ScannedBatches]:
    """Good batches of magic 2 up to the first other bytes."""
    # The compiled kernels load here.
    from segmentlog.format.records.decoder import BatchScanner
    from segmentlog.log.windows import BatchWindows

    scanner, windows = BatchScanner(segment.path, next_offset), BatchWindows(_RUN_BYTES)
    with suppress(CorruptLogError, UnsupportedFormatError):  # the walk comes to it, and names it
        for run in windows.batches(file.read_into, scanner, position, segment.size):
            headers = run.headers
            is_other = headers[:, layout.ATTRIBUTES] & layout.LEGACY_MASK != 0
            is_other |= headers[:, layout.BASE_OFFSET] >= segment.offset_limit
            n_good = int(is_other.argmax()) if is_other.any() else len(headers)
            if n_good:
                yield run.only(slice(n_good))
            if n_good < len(headers):
                return


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
) -> FoundBytes:
    """The unreadable bytes, up to the place where the walk can go on."""
    left = segment.size - position
    if after_zeros(file, position, segment.size) == segment.size:
        return FoundBytes(position, left, None)
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
    return FoundBytes(position, n_bytes, header, reason)


def _header_at(segment: Segment, file: ReadableFile, position: int) -> BatchHeader | None:
    """Header at `position` if its magic is 2; its fields may be damaged."""
    head = file.read(position, layout.HEADER_BYTES)
    if len(head) < layout.HEADER_BYTES or head[layout.MAGIC_AT] != layout.MAGIC:
        return None
    return parse_header(head)
