"""Damage met by a scan: it ends the read, or is left out and logged, as the user chose."""

import logging

from segmentlog.errors import CorruptLogError, UnsupportedFormatError
from segmentlog.format.kernels import layout
from segmentlog.format.records.decoder import BatchScanner, RecordDecoder
from segmentlog.format.records.header import is_too_high, parse_header
from segmentlog.format.records.scanned_batches import ScannedBatches
from segmentlog.log.listing import reach
from segmentlog.log.resync import first_offset, good_batch_after
from segmentlog.log.segment import PlacedHeader
from segmentlog.model import ALL_OFFSETS, OffsetRange
from segmentlog.reads.partition import Partition
from segmentlog.reads.planned_file import PlannedFile

logger = logging.getLogger(__name__)


class DamagePolicy:
    """Decides about damage in the files of one slice.

    `skips`: whether damage is left out.
    """

    def __init__(self, offsets: OffsetRange, *, skips: bool) -> None:
        self._offsets = offsets
        self._skips = skips
        self._merged = ""  # the last file that turned out to be merged

    def continue_after(
        self, error: CorruptLogError, scanner: BatchScanner, file: PlannedFile
    ) -> int | None:
        """Byte at which the read continues after bad bytes, or None at the end of the range.

        A slice may begin and end slightly outside its range.  Damage there loses no records of the
        range.

        Raises `CorruptLogError` if it may not be left out.
        """
        next_offset, wanted = scanner.next_offset, self._offsets
        if next_offset >= wanted.end_offset and not scanner.offsets_went_back:
            return None
        found = good_batch_after(file.opened, error.position, file.planned.end, next_offset)
        # If no offset is left for the bad bytes, the base offset that was found is wrong.
        if found is not None and next_offset < found.base_offset <= wanted.start_offset:
            return found.position
        if not self._skips:
            raise error
        position = found.position if found else file.planned.end
        after = found.base_offset if found else wanted.end_offset
        logger.warning(
            "%s; bytes [%d, %d) are left out, and with them all records of offsets [%d, %d) that "
            "they hold",
            error, error.position, position, next_offset, after,
        )  # fmt: skip
        return position if found else None

    def with_true_offsets(
        self, batches: ScannedBatches, least_offset: int, file: PlannedFile
    ) -> ScannedBatches:
        """Scanned batches, without those whose base offsets are too high.

        Such a batch reaches the offset at the end of its file, or it is the last of `batches` and
        reaches the batch that follows.  If damage is not left out, the first kind raises an error
        here, and the second kind in the scanner's next step.

        `batches`: what a scan has found, at least one.  `least_offset`: least possible base offset
        of the first of them.
        """
        limit = self.limit_of(file)
        reaches = batches.headers[:, layout.LAST_OFFSET] >= limit
        if reaches.any() and not self._is_merged(file):
            reason = f"its offsets reach {limit}, where the next batch or segment begins"
            self._leave_out(batches.malformed(int(reaches.argmax()), reason))
            batches = batches.only(~reaches)
        if self._skips and len(batches.headers) and not reaches[-1]:
            batches = self._without_overlap(batches, least_offset, file)
        return batches

    def _without_overlap(
        self, batches: ScannedBatches, least_offset: int, file: PlannedFile
    ) -> ScannedBatches:
        """The batches without the last one, if a sound batch follows that shows it to be wrong."""
        position = batches.file_position + batches.end
        end = file.planned.end
        head = file.opened.read(position, min(layout.HEADER_BYTES, max(end - position, 0)))
        if len(head) < layout.SMALLEST_BATCH_BYTES:
            return batches
        if len(head) < layout.HEADER_BYTES and head[layout.MAGIC_AT] >= layout.FIRST_BATCH_MAGIC:
            return batches  # only a message of magic 0 or 1 may be shorter
        follows = PlacedHeader(position, parse_header(head))
        next_base, at = follows.header.base_offset, batches.position_of(-1)
        last = int(batches.headers[-1, layout.LAST_OFFSET])
        if next_base > last or follows.end > end:
            return batches
        if follows.checksum(file.opened) != follows.header.crc:
            return batches
        if len(batches.headers) > 1:
            least_offset = int(batches.headers[-2, layout.LAST_OFFSET]) + 1
        head = file.opened.read(at, layout.HEADER_BYTES)
        header = parse_header(head)
        first = first_offset(file.opened, at, header)
        if not is_too_high(header, first, least_offset, next_base):
            return batches
        reason = f"its offsets reach beyond {next_base}, where the next batch begins"
        self._leave_out(batches.malformed(-1, reason))
        return batches.only(slice(-1))

    def _is_merged(self, file: PlannedFile) -> bool:
        """Whether a file reaches into the next segment because compaction has merged them."""
        path = file.planned.path
        if file.opened.never_overlaps:
            return False
        if path != self._merged:
            files = Partition.of_file(path).files()
            i = next((i for i, each in enumerate(files) if each.path == path), len(files))
            if i + 1 >= len(files):
                return False
            if reach(files[i], [*files[:i], *files[i + 1 :]]) <= files[i + 1].base_offset:
                return False
            self._merged = path
        return True

    def limit_of(self, file: PlannedFile) -> int:
        """Offset that no batch of a file may reach."""
        planned = file.planned
        has_none = planned.next_offset < 0 or planned.path == self._merged
        return ALL_OFFSETS.end_offset if has_none else planned.next_offset

    def readable(self, batches: ScannedBatches, decoder: RecordDecoder) -> ScannedBatches:
        """The batches with decodable records, if damage is left out; `batches` is written to."""
        if not self._skips:
            return batches
        for row, error in decoder.find_unreadable(batches):
            if isinstance(error, UnsupportedFormatError):
                raise error
            self._leave_out(error)
            batches.headers[row, layout.RECORDS_COUNT] = -1
        return batches.only(batches.headers[:, layout.RECORDS_COUNT] >= 0)

    def _leave_out(self, error: CorruptLogError) -> None:
        """Raise an error about one batch, or log it."""
        if not self._skips:
            raise error
        logger.warning("%s; that batch is left out", error)
