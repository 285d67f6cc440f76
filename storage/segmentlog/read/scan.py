"""Read one slice: windows of bytes in, Arrow batches out.

Files may be deleted, renamed, rolled or rewritten while a slice
is read.  What was read is safe; for what was not, the partition is listed again and the next
offset looked up (`segmentlog.read.plan.find_again`), so no row comes twice and none is left out.

What is corrupt ends the read with an error, or, when asked for, is left out and logged.
"""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from segmentlog.errors import (
    CorruptLogError,
    LogChangedError,
    UnsupportedFormatError,
)
from segmentlog.files.readable import ReadableFile, open_file
from segmentlog.files.storage import is_gone, storage_errors
from segmentlog.kernels import layout
from segmentlog.model import IsolationLevel, LogSlice, OnCorruptBatch, ScanPolicy, SliceFile
from segmentlog.read.plan import UNCHECKED, find_again
from segmentlog.read.read_committed import CommittedBatches
from segmentlog.records.columns import record_schema
from segmentlog.records.decoder import BatchScanner, RecordDecoder
from segmentlog.records.header import parse_header
from segmentlog.records.scanned_batches import ScannedBatches
from segmentlog.segments.resync import behind_damage
from segmentlog.segments.windows import BatchWindows

__all__ = ["scan_slice"]

logger = logging.getLogger(__name__)

_WINDOW_BYTES = 4 << 20
_ATTEMPTS = 5  # a cleaner or a retention run can overtake a read only so often


class _FileChangedError(Exception):
    """A file is not any more what planning saw."""


def scan_slice(
    log_slice: LogSlice,
    *,
    columns: Sequence[str] | None = None,
    include_headers: bool = False,
    policy: ScanPolicy | None = None,
) -> Iterator[pa.RecordBatch]:
    """Records of a slice in the order of their offsets, control records left out.

    Parameters
    ----------
    log_slice : offsets and bytes, as `segmentlog.read.plan` cuts them.
    columns : names of the columns wanted, in order; by default all of them.
    include_headers : whether "all of them" includes ``headers``.
    policy : isolation level, what to do about corrupt batches, and the bound of inflating.

    Yields
    ------
    pyarrow.RecordBatch
        Of the schema that `segmentlog.records.columns.record_schema` tells; at most 50,000 rows
        and about 32 MiB, the first one smaller.

    Raises
    ------
    CorruptLogError
        With file, byte and offset; not when the policy is to skip.
    UnsupportedFormatError
        With file and byte.
    LogChangedError
        If records that planning promised are gone.
    StorageError
        If the disk fails, or a file is not this user's to read.
    """
    schema = record_schema(columns, include_headers=include_headers)
    attempt = 0
    place = log_slice.files[0].path if log_slice.files else log_slice.topic
    with storage_errors(place):
        while True:
            reader = _SliceReader(log_slice, schema, policy or ScanPolicy())
            try:
                yield from reader.batches()
            except (_FileChangedError, OSError) as change:
                if isinstance(change, OSError) and not is_gone(change):
                    raise
                attempt = attempt + 1 if reader.next_offset == log_slice.start_offset else 1
                log_slice = _find_again(log_slice, reader.next_offset, attempt, change)
            else:
                return


def _find_again(
    log_slice: LogSlice, next_offset: int, attempt: int, change: Exception
) -> LogSlice:
    """What is left of the slice, in the files that hold it now."""
    path = str(Path(log_slice.files[0].path).parent)
    logger.info("looking up offset %d of %s again: %s", next_offset, path, change)
    end_offset = log_slice.end_offset
    if next_offset >= end_offset:
        return log_slice._replace(start_offset=end_offset, files=())
    try:
        found = find_again(log_slice, path, next_offset) if attempt <= _ATTEMPTS else None
    except OSError as error:  # once more: it was there when the directory was listed
        if not is_gone(error):
            raise
        return log_slice._replace(start_offset=next_offset)
    if found is None:
        raise LogChangedError(path, next_offset, end_offset, str(change)) from change
    return found


class _SliceReader:
    """One pass over the files of a slice; `next_offset` says how far it has come."""

    def __init__(self, log_slice: LogSlice, schema: pa.Schema, policy: ScanPolicy) -> None:
        self._slice = log_slice
        self._decoder = RecordDecoder(
            log_slice.topic_partition, schema, log_slice.offsets, policy.max_inflated_batch_bytes
        )
        self._skips = policy.on_corrupt_batch == OnCorruptBatch.SKIP
        self._committed: CommittedBatches | None = None
        if policy.isolation_level == IsolationLevel.READ_COMMITTED and log_slice.files:
            partition_path = str(Path(log_slice.files[0].path).parent)
            self._committed = CommittedBatches(partition_path, skips=self._skips)
        self._windows = BatchWindows(_WINDOW_BYTES)
        self._reached = -1  # offset behind the files that are done
        self._scanned_to = 0  # byte of the file behind the last batch whose checksum is right
        self.next_offset = log_slice.start_offset

    def batches(self) -> Iterator[pa.RecordBatch]:
        for file in self._slice.files:
            with _open(file) as opened:
                yield from self._file(file, opened)

    def _file(self, file: SliceFile, opened: ReadableFile) -> Iterator[pa.RecordBatch]:
        scanner = BatchScanner(file.path, _least_offset(file, opened))
        self._scanned_to = file.start
        position: int | None = file.start
        while position is not None:
            try:
                yield from self._batches_from(file, opened, position, scanner)
                position = None
            except CorruptLogError as error:
                position = self._behind(file, opened, error, scanner)
        self._reached = max(self._reached, scanner.next_offset)

    def _behind(
        self, file: SliceFile, opened: ReadableFile, error: CorruptLogError, scanner: BatchScanner
    ) -> int | None:
        """Where to go on behind damage, or None at the end; raises what may not be left out.

        A slice may begin and end a little further out than its range: damage there is nobody's
        loss.
        """
        next_offset, wanted = scanner.next_offset, self._slice
        if error.position < self._scanned_to:  # what is wrong is inside a batch of the range
            raise error
        if next_offset >= wanted.end_offset and not scanner.offsets_went_back:
            return None
        found = behind_damage(opened, error.position, file.end, next_offset)
        if found is not None and found.base_offset <= wanted.start_offset:
            return found.position
        if not self._skips:
            raise error
        position = found.position if found else file.end
        behind = found.base_offset if found else wanted.end_offset
        logger.warning(
            "%s; bytes [%d, %d) are left out, and what is there of offsets [%d, %d)",
            error, error.position, position, next_offset, behind,
        )  # fmt: skip
        return position if found else None

    def _batches_from(
        self, file: SliceFile, opened: ReadableFile, position: int, scanner: BatchScanner
    ) -> Iterator[pa.RecordBatch]:
        """Rows of a file from byte `position` on, at which a batch begins.

        Done when two batches lie behind the range.  One does not do: no checksum covers a base
        offset, and the batch that follows one that is too high goes back, which is noticed.
        """
        end_offset = self._slice.end_offset
        read_into = _PlannedFile(file, opened).read_into
        for scanned in self._windows.batches(read_into, scanner, position, file.end):
            self._scanned_to = scanned.file_position + scanned.end
            batches = scanner.without_wrong_offset(scanned) if self._skips else scanned
            batches = self._without_too_high(file, batches)
            last_offsets = batches.headers[:, layout.LAST_OFFSET]
            is_done = np.count_nonzero(last_offsets >= end_offset) > 1
            if self._reached > file.first_offset:
                batches = _behind_overlap(batches, self._reached)
            batches = self._selected(batches, scanner.next_offset)
            yield from self._decoder.decode(batches)
            self.next_offset = max(self.next_offset, scanner.next_offset)
            if is_done:
                return

    def _without_too_high(self, file: SliceFile, batches: ScannedBatches) -> ScannedBatches:
        """The batches that end before the one at the end of `file` begins; others are corrupt."""
        is_too_high = batches.headers[:, layout.LAST_OFFSET] >= file.next_offset
        if file.next_offset < 0 or not is_too_high.any():
            return batches
        reason = f"its offsets reach beyond {file.next_offset}, which is in a batch behind it"
        error = batches.malformed(int(is_too_high.argmax()), reason)
        if not self._skips:
            raise error
        logger.warning("%s; that batch is left out", error)
        return batches.only(~is_too_high)

    def _selected(self, batches: ScannedBatches, next_offset: int) -> ScannedBatches:
        """The batches to decode: of the range, committed, and none that the policy is to skip."""
        is_below = batches.headers[:, layout.BASE_OFFSET] < self._slice.end_offset
        if not is_below.all():  # what is behind the range is not seen, nor are end markers there
            batches = batches.only(is_below)
            next_offset = batches.next_offset if len(batches.headers) else 0
        batches = batches.only(batches.headers[:, layout.LAST_OFFSET] >= self._slice.start_offset)
        if self._skips:
            for row, error in self._decoder.find_unreadable(batches):
                if isinstance(error, UnsupportedFormatError):
                    raise error
                logger.warning("%s; that batch is left out", error)
                batches.headers[row, layout.RECORDS_COUNT] = -1
            batches = batches.only(batches.headers[:, layout.RECORDS_COUNT] >= 0)
        if self._committed is None or not len(batches.headers):
            return batches
        return self._committed.select(batches, next_offset)


class _PlannedFile:
    """An open file of a slice, which is to hold all of the bytes that were planned."""

    def __init__(self, file: SliceFile, opened: ReadableFile) -> None:
        self._file = file
        self._opened = opened

    def read_into(self, buffer: memoryview, position: int) -> int:
        """See `ReadableFile`; a file that has become shorter is another one."""
        n_read = self._opened.read_into(buffer, position)
        if not n_read:
            message = f"{self._file.path} ends at byte {position}, not at {self._file.end}"
            raise _FileChangedError(message)
        return n_read


def _behind_overlap(batches: ScannedBatches, next_offset: int) -> ScannedBatches:
    """The batches at or above `next_offset`, of a segment that begins below it.

    A copy that was taken while compaction merged segments holds the merged one and some that it
    replaced.  Compaction keeps the bounds of batches, so one that lies across is none of that.
    """
    batches = batches.only(batches.headers[:, layout.LAST_OFFSET] >= next_offset)
    headers = batches.headers
    if len(headers) and headers[0, layout.BASE_OFFSET] < next_offset:
        row = headers[0]
        is_wrapper = row[layout.ATTRIBUTES] & layout.LEGACY_MASK and not row[layout.RECORDS_COUNT]
        if not is_wrapper:
            reason = (
                f"it begins below offset {next_offset}, up to which the segment before reaches"
            )
            raise batches.malformed(0, reason)
    return batches


def _open(file: SliceFile) -> ReadableFile:
    """The file, opened, also when retention or compaction has just put it aside.

    Compaction puts another file under the name.  Where the planned range of bytes ends between two
    batches of that one, too, what it holds behind them would be left out without a word.
    """
    try:
        opened = open_file(file.path)
    except FileNotFoundError as missing:
        try:
            opened = open_file(file.path + ".deleted")
        except FileNotFoundError:
            raise missing from None  # users know that file, and not the name that was tried
    if file.inode not in (0, opened.status().inode):
        opened.close()
        message = f"{file.path} is another file than when it was planned"
        raise _FileChangedError(message)
    return opened


def _least_offset(file: SliceFile, opened: ReadableFile) -> int:
    """Offset that the first batch may have at the least, once it is seen to be the planned one."""
    if file.first_crc == UNCHECKED:
        return file.first_offset
    head = opened.read(file.start, layout.HEADER_BYTES)
    if len(head) >= layout.SMALLEST_BATCH_BYTES:
        header = parse_header(head.ljust(layout.HEADER_BYTES, b"\0"))
        if (header.base_offset, header.crc) == (file.first_offset, file.first_crc):
            return 0 if header.is_wrapper else file.first_offset
    message = f"{file.path} has another batch at byte {file.start} than when it was planned"
    raise _FileChangedError(message)
