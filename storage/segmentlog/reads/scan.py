"""Read one slice: windows of bytes in, Arrow batches out.

Files may be deleted, renamed, rolled or rewritten while a slice is read.  A file that is not the
one that was planned is an error here (`PlannedFile`).  Bytes in the buffer are safe.  For the
other bytes, the partition is listed again and the next offset looked up
(`segmentlog.reads.listed.find_again`), so no row comes twice and no row is left out.

A corrupt batch ends the read with an error, or, on request, is left out and logged
(`DamagePolicy`).
"""

import errno
import logging
import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import nullcontext
from types import TracebackType
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from segmentlog.errors import (
    CorruptLogError,
    LogChangedError,
    LogDirectoryError,
    SegmentLogError,
    StorageError,
    UnsupportedFormatError,
)
from segmentlog.format.kernels import layout
from segmentlog.format.kernels.memory import COPY_SLACK, Bytes, Int64s
from segmentlog.format.names import CLEANER_OFFSET_CHECKPOINT
from segmentlog.format.records.columns import CONSTANT_COLUMNS, TextColumns, record_schema
from segmentlog.format.records.decoder import BatchScanner, RecordDecoder, tell_their_rows
from segmentlog.format.records.header import ScannedBatches, is_too_high, parse_header
from segmentlog.format.records.one_pass import OnePassDecoder, ReadMemory, Stop, Workspace
from segmentlog.log.batches import WalkedBatches, walk_file
from segmentlog.log.checkpoint import read_offsets
from segmentlog.log.damage import first_offset, good_batch_after
from segmentlog.log.listing import COMPACTED_BEYOND, reach
from segmentlog.log.segment import PlacedHeader
from segmentlog.log.windows import BatchWindows, Window
from segmentlog.model import (
    ALL_OFFSETS,
    IsolationLevel,
    LogSlice,
    OffsetRange,
    OnCorruptBatch,
    ScanPolicy,
    SliceFile,
    TimestampRange,
)
from segmentlog.reads.listed import UNCHECKED, FileChangedError, Partition, find_again
from segmentlog.reads.transactions import CommittedBatches
from segmentlog.store.beside_broker import Pace, pace_of
from segmentlog.store.partitions import names_aside
from segmentlog.store.paths import is_bucket
from segmentlog.store.readable import (
    Closing,
    MadeFile,
    ReadableFile,
    is_directory,
    log_identity,
    open_file,
    survey,
)
from segmentlog.store.system_errors import is_gone, storage_errors

logger = logging.getLogger(__name__)

#: One pass reads what stays in the second cache; two passes take more Python for each window.
_WINDOW_BYTES, _SMALL_WINDOW_BYTES = 4 << 20, 1 << 20
_FEW_BATCHES, _MOST_BATCHES = 16, 1 << 15  # that are decoded carefully after an unusual one
#: Small files of a store that are open ahead: their requests are under way side by side.  They are
#: more than a process has requests under way, or the slowest of these would let the others wait.
#: Of a large one, so many bytes are requested when it is opened.
_FILES_AHEAD, _BYTES_AHEAD, _MOST_OF_FILE = 128, 32 << 20, 16 << 20
#: Small files of a store that are decoded together: each call costs as much as some kilobytes.
_JOINED_FILES, _JOINED_BYTES, _MOST_OF_JOINED = 32, 1 << 20, 128 << 10
_OF_ONE_FILE = {errno.EACCES, errno.EPERM, errno.EIO}
_ATTEMPTS = 5  # cleaners and retention rarely overtake a read more often than this

#: Is shown the bytes of a file before they are decoded: its path, a buffer, the half-open range of
#: it that begins at a batch, and the byte of the file that the buffer begins with.
See: TypeAlias = Callable[[str, Bytes, int, int, int], None]


def open_planned(file: SliceFile, *, looks_again: bool = True) -> ReadableFile:
    """A file of a slice, opened, also if it was just put aside; or `FileChangedError`.

    `looks_again`: whether the newest commit is asked for first, if the log is in a store.
    """
    # Compaction puts another file under the name, which cannot replace the planned one. A record
    # that was the last of its key when the read was planned may be missing, because of a record
    # after the end of the read. And if the planned range ends between two batches of the new file,
    # records after that end would be lost without an error.
    missing: dict[str, FileNotFoundError] = {}
    for path in (file.path, *names_aside(file.path, file.inode)):
        try:
            opened = open_file(path)
        except FileNotFoundError as error:
            missing[path] = error
            continue
        opened.expect(file.start, file.end)
        # From here on, `status` describes an object as it is opened now.
        if file.inode in (0, opened.status().inode):
            return opened
        opened.close()
    if looks_again and is_bucket(file.path):
        known = log_identity(file.path)
        survey(file.path)  # it was planned by a process that knows a later commit
        try:
            return open_planned(file, looks_again=False)
        except (FileNotFoundError, FileChangedError):
            if log_identity(file.path) == known:
                raise
            raise LogChangedError(file.path, -1, -1, _ANOTHER_LOG) from None
    if file.path in missing:
        raise missing[file.path]  # users know this name, not the renamed file's
    message = f"{file.path} is not the file that was planned"
    raise FileChangedError(message)


class PlannedFile(Closing):
    """A file of a slice, opened; a context that closes it, or leaves it to the next slice."""

    def __init__(
        self,
        planned: SliceFile,
        policy: ScanPolicy,
        workspace: Workspace,
        opens: Callable[[SliceFile], ReadableFile] = open_planned,
    ) -> None:
        self.planned, self._workspace = planned, workspace
        left = workspace.take_file(planned.path, planned.inode)
        self.was_open = left is not None
        self.opened = opens(planned) if left is None else left
        if policy.spare_page_cache:
            self.opened.spare_page_cache(planned.start, planned.end)
        self._pace: Pace | None = None
        if policy.max_bytes_per_second is not None:
            directory = os.path.dirname(os.path.dirname(planned.path))
            self._pace = pace_of(policy.max_bytes_per_second, directory)

    def close(self) -> None:
        """Close the file."""
        self.opened.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.close()
            return
        try:
            self.opened.check_unchanged()
        except BaseException:
            self.close()
            raise
        planned = self.planned
        if planned.inode and self.opened.descriptor is not None:
            self._workspace.leave_file(planned.path, planned.inode, self.opened)
        else:
            self.close()

    @property
    def descriptor(self) -> int | None:
        """See `ReadableFile`; None if the read has a limit of bytes a second."""
        return self.opened.descriptor if self._pace is None else None

    def read_into(self, buffer: memoryview, position: int) -> int:
        """Read at least one byte; `FileChangedError` if the file has become shorter."""
        if self._pace is not None:
            buffer = buffer[: self._pace.piece]
        n_read = self.opened.read_into(buffer, position)
        if self._pace is not None:
            self._pace.take(n_read)
        if not n_read:
            message = f"{self.planned.path} ends at byte {position}, not at {self.planned.end}"
            raise FileChangedError(message)
        return n_read

    def least_offset(self) -> int:
        """Least possible offset of the first batch; `FileChangedError` if it is another batch."""
        file = self.planned
        if file.first_crc == UNCHECKED:
            return file.first_offset
        head = self.opened.read(file.start, layout.HEADER_BYTES)
        if len(head) >= layout.SMALLEST_BATCH_BYTES:
            header = parse_header(head.ljust(layout.HEADER_BYTES, b"\0"))
            is_in_place = header.base_offset == file.first_offset or (
                header.is_wrapper and header.base_offset > file.first_offset
            )
            if is_in_place and header.crc == file.first_crc:
                return file.first_offset
        message = f"{file.path} does not have the planned batch at byte {file.start}"
        raise FileChangedError(message)


class HeldFile(MadeFile):
    """A small file of a slice in a store, whose bytes were read."""

    never_overlaps = True

    def __init__(self, planned: SliceFile, data: bytes) -> None:
        super().__init__(planned.path, data, planned.inode)
        self.planned, self.data = planned, data

    @classmethod
    def of(cls, planned: SliceFile, opened: ReadableFile) -> "HeldFile | None":
        """A file of which the slice reads all, closed; None if it cannot be joined to others."""
        is_known = planned.next_offset >= 0 and planned.first_crc == UNCHECKED
        if not is_known or planned.start or planned.end > _MOST_OF_JOINED:
            return None
        data = opened.whole()
        if data is None or len(data) != planned.end:
            return None
        opened.close()
        return cls(planned, data)

    @staticmethod
    def are_enough(held: "list[HeldFile]") -> bool:
        """Whether files are so many that they are decoded now."""
        return len(held) == _JOINED_FILES or sum(len(each.data) for each in held) >= _JOINED_BYTES


class OpenedAhead(Closing):
    """Opens the files of a slice in a store before they are read: their bytes are under way.

    Up to `_FILES_AHEAD` files are open ahead, with up to `_BYTES_AHEAD` bytes.  A file that cannot
    be opened is opened again when its turn comes, and its error is raised then.
    """

    def __init__(self, files: Sequence[SliceFile]) -> None:
        self.files, self._next = files, 0
        self._ahead = deque[tuple[SliceFile, ReadableFile]]()
        self._n_bytes = 0

    def open(self, planned: SliceFile) -> ReadableFile:
        """The file whose turn it is, opened; those after it are opened, too."""
        while self._ahead:
            file, opened = self._ahead.popleft()
            self._n_bytes -= _ahead_bytes(file)
            if file is planned:
                self._open_more()
                return opened
            opened.close()
        opened = open_planned(planned)
        self._next = (
            next(
                (i for i in range(self._next, len(self.files)) if self.files[i] is planned),
                len(self.files),
            )
            + 1
        )
        self._open_more()
        return opened

    def _open_more(self) -> None:
        while self._next < len(self.files) and len(self._ahead) < _FILES_AHEAD:
            file = self.files[self._next]
            n_bytes = _ahead_bytes(file)
            if self._ahead and self._n_bytes + n_bytes > _BYTES_AHEAD:
                return
            try:
                self._ahead.append((file, open_planned(file)))
            except (OSError, SegmentLogError):
                return
            self._next += 1
            self._n_bytes += n_bytes

    def close(self) -> None:
        """Close the files whose turn has not come."""
        while self._ahead:
            self._ahead.popleft()[1].close()


def _ahead_bytes(file: SliceFile) -> int:
    """The bytes that are requested of a file once it is open."""
    return min(file.end - file.start, _MOST_OF_FILE)


class DamagePolicy:
    """Decides about damage in the files of one slice."""

    def __init__(self, offsets: OffsetRange, *, skips: bool) -> None:
        self._offsets = offsets
        self._skips = skips
        self._merged = ""  # the last file that turned out to be merged

    def continue_after(
        self, error: CorruptLogError, scanner: BatchScanner, file: PlannedFile
    ) -> int | None:
        """Byte at which the read continues after bad bytes, or None at the end of the range."""
        # A slice may begin and end slightly outside its range. Damage there loses no records of
        # the range. Other damage raises its error, if it may not be left out.
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
            error,
            error.position,
            position,
            next_offset,
            after,
        )
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
        position = batches.file_end
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
        header = parse_header(file.opened.read(at, layout.HEADER_BYTES))
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


def scan_slice(
    log_slice: LogSlice,
    *,
    columns: Sequence[str] | None = None,
    include_headers: bool = False,
    policy: ScanPolicy | None = None,
    memory: ReadMemory | None = None,
    see: See | None = None,
    one_pass: Callable[..., OnePassDecoder] = OnePassDecoder,
) -> Generator[pa.RecordBatch, None, None]:
    """Records of a slice in the order of their offsets, control records left out.

    `memory`: of the read that the slice is a part of, if there are more slices.  `one_pass`: makes
    what takes the usual batches.  `see`: is shown all bytes that this does not take; after a
    change of files, or damage, it may see the same batches again.

    Batches have at most 50,000 rows and about 32 MiB; the first one is smaller.  Raises
    `LogChangedError` if records that planning promised are gone.
    """
    policy = policy or ScanPolicy()
    wanted = record_schema(columns, include_headers=include_headers).names
    text = TextColumns(wanted, policy.text, policy.on_invalid_utf8)
    schema = record_schema(
        text.scanned,
        in_milliseconds=policy.in_milliseconds,
        header_names_as_bytes=policy.header_names_as_bytes,
    )
    topic_partition = log_slice.topic_partition
    attempt = 0
    place = log_slice.files[0].path if log_slice.files else log_slice.topic
    with (
        storage_errors(place),
        nullcontext(memory) if memory else ReadMemory() as memory,
        memory.workspace() as workspace,
    ):
        while True:
            reader = _SliceReader(log_slice, schema, policy, memory, workspace, see, one_pass)
            try:
                for batch in reader.batches():
                    yield text.convert(batch, topic_partition)
            except (FileChangedError, OSError) as change:
                if isinstance(change, OSError) and not is_gone(change):
                    raise
                attempt = attempt + 1 if reader.next_offset == log_slice.start_offset else 1
                log_slice = _rest_of_slice(log_slice, reader.next_offset, attempt, change)
            else:
                return


def cut_around(
    log_slice: LogSlice, error: UnsupportedFormatError | StorageError
) -> tuple[LogSlice, LogSlice]:
    """The slice before and after the batch, or the file, that cannot be read.

    Raises `error` if it is about something else.
    """
    path = error.path if isinstance(error, UnsupportedFormatError) else error.filename
    files = [*log_slice.files]
    at = next((i for i, each in enumerate(files) if each.path == path), len(files))
    if at == len(files):
        raise error
    before, failed, after = files[:at], files[at], files[at + 1 :]
    if isinstance(error, StorageError):
        if error.errno not in _OF_ONE_FILE:
            raise error
    elif not failed.start <= error.position < failed.end:
        raise error
    else:
        if failed.start < error.position:
            before.append(failed._replace(end=error.position))
        if follows := _after_batch(failed, error.position):
            after.insert(0, follows)
    return log_slice._replace(files=tuple(before)), log_slice._replace(files=tuple(after))


def _after_batch(file: SliceFile, position: int) -> SliceFile | None:
    """The bytes of a file after a batch of any format; None if no batch follows."""
    with open_file(file.path) as opened:  # every format has the length at the same place
        head = opened.read(position, layout.LOG_OVERHEAD)
        length = int.from_bytes(head[layout.BATCH_LENGTH_AT :], "big", signed=True)
        start = position + layout.LOG_OVERHEAD + length
        after = opened.read(start, layout.MAGIC_PREFIX_BYTES) if length > 0 else b""
    if start >= file.end or len(after) < layout.MAGIC_PREFIX_BYTES:
        return None
    first_offset = file.first_offset
    if after[layout.MAGIC_AT] >= layout.FIRST_BATCH_MAGIC:
        first_offset = int.from_bytes(after[: layout.BATCH_LENGTH_AT], "big", signed=True)
    return file._replace(start=start, first_offset=first_offset, first_crc=UNCHECKED)


#: Its records must not follow those of the log that was planned.
_ANOTHER_LOG = "another log was made at this place, or an earlier backup was restored"


def _rest_of_slice(
    log_slice: LogSlice, next_offset: int, attempt: int, change: Exception
) -> LogSlice:
    """The rest of the slice, in the files that now hold it."""
    partition = Partition.of_slice(log_slice)
    path = partition.path
    logger.info("looking up offset %d of %s again: %s", next_offset, path, change)
    end_offset = log_slice.end_offset
    if next_offset >= end_offset:
        return log_slice._replace(start_offset=end_offset, files=())
    if is_bucket(path):
        known = log_identity(path)
        survey(path)  # a commit that this process does not know yet may have moved the records
        if log_identity(path) != known:
            raise LogChangedError(path, next_offset, end_offset, _ANOTHER_LOG) from change
        cleaned = read_offsets(os.path.dirname(path), CLEANER_OFFSET_CHECKPOINT)
        if cleaned.get(log_slice.topic_partition, 0) > end_offset:
            # Files that compaction put aside are read on disks, but here they have no names.
            raise LogChangedError(path, next_offset, end_offset, COMPACTED_BEYOND) from change
    try:
        found = find_again(log_slice, partition, next_offset) if attempt <= _ATTEMPTS else None
    except LogDirectoryError:
        if is_directory(path):
            raise
        found = None  # the topic was deleted, or the partition moved away
    except OSError as error:  # tried again: the file was there when the directory was listed
        if not is_gone(error):
            raise
        return log_slice._replace(start_offset=next_offset)
    if found is None:
        raise LogChangedError(path, next_offset, end_offset, str(change)) from change
    return found


class _SliceReader:
    """One pass over the files of a slice; `next_offset` is its progress."""

    def __init__(
        self,
        log_slice: LogSlice,
        schema: pa.Schema,
        policy: ScanPolicy,
        memory: ReadMemory,
        workspace: Workspace,
        see: See | None,
        one_pass: Callable[..., OnePassDecoder],
    ) -> None:
        self._slice, self._policy, self._workspace = log_slice, policy, workspace
        self._see = see
        self._decoder = RecordDecoder(
            log_slice.topic_partition,
            schema,
            log_slice.offsets,
            policy.max_inflated_batch_bytes,
            memory.batch_bytes,
        )
        skips = policy.on_corrupt_batch == OnCorruptBatch.SKIP
        self._damage = DamagePolicy(log_slice.offsets, skips=skips)
        self._committed: CommittedBatches | None = None
        if policy.isolation_level == IsolationLevel.READ_COMMITTED and log_slice.files:
            partition = Partition.of_slice(log_slice)
            self._committed = CommittedBatches(partition, skips=skips, ended=policy.ended)
        self._looks_ahead = False
        self._timestamps = policy.timestamps
        self._windows = BatchWindows(_WINDOW_BYTES, workspace)
        self._counts_headers = (
            not policy.check_crcs
            and CONSTANT_COLUMNS.issuperset(schema.names)
            and policy.timestamps is None
            and not skips
            and see is None
        )
        self._one_pass: OnePassDecoder | None = None
        is_plain = self._committed is None and not skips
        if is_plain and OnePassDecoder.suits(schema):
            self._one_pass = one_pass(
                log_slice.topic_partition,
                schema,
                log_slice.offsets,
                policy.max_inflated_batch_bytes,
                policy.timestamps,
                memory,
                workspace,
                policy.needle,
            )
            self._windows.window_bytes = _SMALL_WINDOW_BYTES
        self._n_careful, self._careful_bytes = _FEW_BATCHES, 0
        self._reached = -1  # offset after the files that are done
        self._scanned_to = 0  # byte of the file after the last batch whose checksum is right
        self.next_offset = log_slice.start_offset

    def batches(self) -> Iterator[pa.RecordBatch]:
        files = self._slice.files
        is_far = len(files) > 1 and is_bucket(files[0].path)
        is_far &= self._policy.max_bytes_per_second is None  # which counts what is requested
        if not is_far:
            for planned in files:
                yield from self._planned(planned)
            return
        joins = self._one_pass is not None and self._see is None
        held = list[HeldFile]()
        with OpenedAhead([*files]) as ahead:
            for planned in ahead.files:
                try:
                    opened = ahead.open(planned)
                    file = HeldFile.of(planned, opened) if joins else None
                except Exception:
                    yield from self._joined(held)
                    raise
                if file is not None:
                    held.append(file)
                if file is None or HeldFile.are_enough(held):
                    yield from self._joined(held)
                    held = []
                if file is None:
                    yield from self._planned(planned, opened)
            yield from self._joined(held)

    def _planned(
        self, planned: SliceFile, opened: ReadableFile | None = None
    ) -> Iterator[pa.RecordBatch]:
        opens = open_planned if opened is None else lambda _: opened
        with PlannedFile(planned, self._policy, self._workspace, opens) as file:
            # Once it is open: a file of an earlier topic stays that topic's.
            if not file.was_open:
                self._check_topic()
            overlaps = self._reached > planned.first_offset
            if self._counts_headers and file.descriptor is not None and not overlaps:
                yield from self._by_headers(file)
            else:
                yield from self._file(file)

    def _check_topic(self) -> None:
        partition = Partition.of_slice(self._slice)
        partition.check_topic(self._slice.topic_id, self._slice.offsets)

    def _by_headers(self, file: PlannedFile) -> Iterator[pa.RecordBatch]:
        """Rows of a file by the headers of its batches alone.

        `_file` reads a batch that the range cuts, and the rest of the file from the first batch on
        whose header does not tell its rows, or is not as it should be: it names each fault.
        """
        whole, least_offset = file.planned, file.least_offset()
        position = whole.start
        while position < whole.end:
            file.planned = whole
            cut: Int64s | None = None
            walk = walk_file(whole.path, file.opened, position, whole.end)
            while position < whole.end and (scanned := _next_sound(walk)) is not None:
                base, last = scanned.headers[:, [layout.BASE_OFFSET, layout.LAST_OFFSET]].T
                is_told = tell_their_rows(scanned.headers, self._policy.max_inflated_batch_bytes)
                is_told &= base >= np.concatenate([[least_offset], last[:-1] + 1])
                is_told &= last < self._damage.limit_of(file)
                is_told[-1] &= scanned.file_end <= whole.end
                is_whole = is_told & ~self._are_cut(scanned.headers)
                n_whole = len(is_whole) if is_whole.all() else int(is_whole.argmin())
                is_done = n_whole < len(is_whole)
                position = scanned.position_of(n_whole) if is_done else scanned.file_end
                if is_done and is_told[n_whole]:
                    cut = scanned.headers[n_whole].copy()
                if n_whole:
                    whole_ones = scanned.only(slice(n_whole))
                    least_offset = whole_ones.next_offset
                    # Both change the headers.
                    yield from self._decoder.decode(self._selected(whole_ones, least_offset))
                    self.next_offset = max(self.next_offset, least_offset)
                if is_done:
                    break
            if position == whole.end:
                break
            file.planned = whole._replace(
                start=position, first_offset=least_offset, first_crc=UNCHECKED
            )
            position = whole.end
            if cut is not None:
                position = file.planned.start + int(cut[layout.SIZE])
                least_offset = int(cut[layout.LAST_OFFSET]) + 1
                file.planned = file.planned._replace(end=position, next_offset=least_offset)
            yield from self._file(file)
        file.planned = whole
        self._reached = max(self._reached, least_offset)

    def _are_cut(self, headers: Int64s) -> NDArray[np.bool_]:
        """Whether the range of offsets begins or ends inside each batch."""
        base, last = headers[:, layout.BASE_OFFSET], headers[:, layout.LAST_OFFSET]
        start, end = self._slice.offsets
        return np.asarray(((base < start) & (start <= last)) | ((base < end) & (end <= last)))

    def _joined(self, held: list[HeldFile]) -> Iterator[pa.RecordBatch]:
        """Rows of small files that were read, and follow each other.

        What the one pass does not take, each file's own read takes from there on.
        """
        if not held:
            return
        self._check_topic()
        one_pass, sizes = self._one_pass, [len(each.data) for each in held]
        taken, next_offset = 0, held[0].planned.first_offset
        if one_pass is not None and self._reached <= next_offset:
            one_pass.path = held[0].path
            data = bytearray().join([*(each.data for each in held), bytes(COPY_SLACK)])
            buffer = np.frombuffer(data, np.uint8)  # which the kernel takes only if it can write
            yield from one_pass.decode(
                buffer,
                0,
                sum(sizes),
                next_offset,
                offset_limit=held[-1].planned.next_offset,
                most_bytes=sum(sizes),
            )
            taken = one_pass.position
            yield from self._flush()
            self._reached = max(self._reached, one_pass.next_offset)
        end = 0
        for each, size in zip(held, sizes, strict=True):
            end += size
            if taken < end:  # of which the rows below `_reached` are left out
                yield from self._planned(each.planned, each)

    def _file(self, file: PlannedFile) -> Iterator[pa.RecordBatch]:
        scanner = BatchScanner(file.planned.path, file.least_offset())
        self._scanned_to = file.planned.start
        position: int | None = file.planned.start
        while position is not None:
            try:
                yield from self._batches_from(file, position, scanner)
                position = None
            except CorruptLogError as error:
                yield from self._flush()
                # The damage is inside a batch of the range, or hides an end marker after it.
                if error.position < self._scanned_to or self._looks_ahead:
                    raise
                position = self._damage.continue_after(error, scanner, file)
            except Exception:
                yield from self._flush()
                raise
        yield from self._flush()
        self._reached = max(self._reached, scanner.next_offset)

    def _batches_from(
        self, file: PlannedFile, position: int, scanner: BatchScanner
    ) -> Iterator[pa.RecordBatch]:
        """Rows of a file from byte `position` on, at which a batch begins."""
        # Reading ends when two batches lie beyond the range. One batch is not enough: no checksum
        # covers a base offset, and only the batch that follows shows that a base offset was too
        # high.
        planned, end_offset = file.planned, self._slice.end_offset
        overlaps = self._reached > planned.first_offset
        one_pass = None if overlaps else self._one_pass
        if one_pass is not None:
            one_pass.path = planned.path
        windows = self._windows.windows(
            file.read_into, planned.path, position, planned.end, descriptor=file.descriptor
        )
        for window in windows:
            if self._see is not None and one_pass is None:
                self._see(planned.path, window.buf, window.begin, window.end, window.file_position)
            while window.begin < window.end:
                most = _MOST_BATCHES
                if one_pass is not None:
                    yield from self._usual_batches(one_pass, window, scanner, file)
                    if one_pass.stop != Stop.UNUSUAL:
                        break
                    most = self._n_careful
                least_offset = scanner.next_offset
                scanned = scanner.scan(
                    window.buf, window.begin, window.end, window.file_position, most
                )
                if not len(scanned.headers):
                    break
                if self._see is not None and one_pass is not None:
                    self._see(
                        planned.path, window.buf, window.begin, scanned.end, window.file_position
                    )
                self._careful_bytes = scanned.end - window.begin
                window.begin = scanned.end
                self._scanned_to = window.file_position + scanned.end
                batches = self._damage.with_true_offsets(scanned, least_offset, file)
                if len(batches.headers) < len(scanned.headers):
                    scanner.next_offset = (
                        batches.next_offset if len(batches.headers) else least_offset
                    )
                last_offsets = batches.headers[:, layout.LAST_OFFSET]
                is_done = np.count_nonzero(last_offsets >= end_offset) > 1
                if overlaps:
                    batches = _after_overlap(batches, self._reached)
                yield from self._decoder.decode(self._selected(batches, scanner.next_offset))
                self.next_offset = max(self.next_offset, scanner.next_offset)
                if is_done:
                    return

    def _usual_batches(
        self, one_pass: OnePassDecoder, window: Window, scanner: BatchScanner, file: PlannedFile
    ) -> Iterator[pa.RecordBatch]:
        """Rows of the usual batches that a window begins with."""
        begin = window.begin
        yield from one_pass.decode(
            window.buf,
            begin,
            window.end,
            scanner.next_offset,
            offset_limit=self._damage.limit_of(file),
            most_bytes=file.planned.end - window.file_position - begin,
            window=window.state,
        )
        window.begin, scanner.next_offset = one_pass.position, one_pass.next_offset
        self._scanned_to = window.file_position + window.begin
        self.next_offset = max(self.next_offset, one_pass.flushed_offset)
        if one_pass.stop != Stop.UNUSUAL:
            return
        # Where unusual batches are many, each call takes more of them, so that rows do not come
        # in ever smaller batches.
        is_rare = window.begin - begin >= self._careful_bytes
        self._n_careful = _FEW_BATCHES if is_rare else min(4 * self._n_careful, _MOST_BATCHES)
        self._windows.window_bytes = _SMALL_WINDOW_BYTES if is_rare else _WINDOW_BYTES

    def _flush(self) -> Iterator[pa.RecordBatch]:
        """Rows that are decoded, but not yet yielded."""
        if self._one_pass is not None:
            yield from self._one_pass.flush()
            self.next_offset = max(self.next_offset, self._one_pass.flushed_offset)

    def _selected(self, batches: ScannedBatches, next_offset: int) -> ScannedBatches:
        """The batches to decode: in the range, committed, and not left out as damaged."""
        is_below = batches.headers[:, layout.BASE_OFFSET] < self._slice.end_offset
        if not is_below.all():  # the read does not see batches beyond the range, nor their markers
            batches = batches.only(is_below)
            next_offset = batches.next_offset if len(batches.headers) else 0
        batches = batches.only(batches.headers[:, layout.LAST_OFFSET] >= self._slice.start_offset)
        batches = self._damage.readable(batches, self._decoder)
        if self._committed is not None and len(batches.headers):
            self._looks_ahead = True
            batches = self._committed.select(batches, next_offset)
            self._looks_ahead = False
        return batches if self._timestamps is None else _of_times(batches, self._timestamps)


def _next_sound(walk: Iterator[WalkedBatches]) -> ScannedBatches | None:
    """The next batches of a walk; None at its end, and before a header that cannot be true."""
    try:
        walked = next(walk, None)
    except (CorruptLogError, UnsupportedFormatError):
        return None
    return None if walked is None else walked.scanned


def _of_times(batches: ScannedBatches, wanted: TimestampRange) -> ScannedBatches:
    """The batches that may hold records of these times."""
    # Only the largest timestamp of a batch is known, and if it is an append time, it is that of
    # all records. The base timestamp is that of the first record, and does not bound the others.
    headers = batches.headers
    newest = headers[:, layout.MAX_TIMESTAMP]
    is_append_time = headers[:, layout.ATTRIBUTES] & layout.TIMESTAMP_TYPE_MASK != 0
    return batches.only(
        (newest >= wanted.start_ms) & ~(is_append_time & (newest >= wanted.end_ms))
    )


def _after_overlap(batches: ScannedBatches, next_offset: int) -> ScannedBatches:
    """The batches at or above `next_offset`, of a segment that begins below it."""
    # A copy that was taken while compaction merged segments holds the merged segment and some of
    # the segments that it replaced. Compaction never splits or joins batches, so a batch that
    # straddles the boundary is corrupt.
    batches = batches.only(batches.headers[:, layout.LAST_OFFSET] >= next_offset)
    headers = batches.headers
    if len(headers) and headers[0, layout.BASE_OFFSET] < next_offset:
        row = headers[0]
        is_wrapper = row[layout.ATTRIBUTES] & layout.LEGACY_MASK and not row[layout.RECORDS_COUNT]
        if not is_wrapper:
            reason = f"it begins below offset {next_offset}, where the previous segment ends"
            raise batches.malformed(0, reason)
    return batches
