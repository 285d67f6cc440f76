"""Damage met by a scan: it ends the read, or is left out and logged, as the user chose."""

import logging

from segmentlog.errors import CorruptLogError, UnsupportedFormatError
from segmentlog.kernels import layout
from segmentlog.model import OffsetRange, SliceFile
from segmentlog.read.planned_file import PlannedFile
from segmentlog.records.decoder import BatchScanner, RecordDecoder
from segmentlog.records.scanned_batches import ScannedBatches
from segmentlog.segments.resync import behind_damage

__all__ = ["DamagePolicy"]

logger = logging.getLogger(__name__)


class DamagePolicy:
    """Decides about damage in the files of one slice.

    Parameters
    ----------
    offsets : of the slice.
    skips : whether damage is left out.
    """

    def __init__(self, offsets: OffsetRange, *, skips: bool) -> None:
        self._offsets = offsets
        self._skips = skips

    def go_on_behind(
        self, error: CorruptLogError, scanner: BatchScanner, file: PlannedFile
    ) -> int | None:
        """Byte at which the read goes on behind bad bytes, or None at the end of the range.

        A slice may begin and end slightly outside its range.  Damage there loses no records of the
        range.

        Raises
        ------
        CorruptLogError
            If it may not be left out.
        """
        next_offset, wanted = scanner.next_offset, self._offsets
        if next_offset >= wanted.end_offset and not scanner.offsets_went_back:
            return None
        found = behind_damage(file.opened, error.position, file.planned.end, next_offset)
        if found is not None and found.base_offset <= wanted.start_offset:
            return found.position
        if not self._skips:
            raise error
        position = found.position if found else file.planned.end
        behind = found.base_offset if found else wanted.end_offset
        logger.warning(
            "%s; bytes [%d, %d) are left out, and what is there of offsets [%d, %d)",
            error, error.position, position, next_offset, behind,
        )  # fmt: skip
        return position if found else None

    def with_true_offsets(
        self, batches: ScannedBatches, scanner: BatchScanner, file: SliceFile
    ) -> ScannedBatches:
        """The batches that `scanner` has found, without those with base offsets that are too high.

        Such a batch reaches beyond the batch at the end of `file`, or it is the last batch found
        and reaches beyond the batch that follows.  If damage is not left out, the first kind
        raises an error here, and the second kind in the scanner's next step.
        """
        if self._skips:
            batches = scanner.without_wrong_offset(batches)
        is_too_high = batches.headers[:, layout.LAST_OFFSET] >= file.next_offset
        if file.next_offset < 0 or not is_too_high.any():
            return batches
        reason = f"its offsets reach beyond {file.next_offset}, which is in a batch behind it"
        self._leave_out(batches.malformed(int(is_too_high.argmax()), reason))
        return batches.only(~is_too_high)

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
