"""The part of a file that a slice reads, as it was planned, or an error if the file has changed.

Files may be deleted, renamed, rolled or rewritten while a slice is read.  Bytes already read are
safe.  The rest of the slice is planned again.
"""

import os
from types import TracebackType

from segmentlog.file_columns import SliceFile
from segmentlog.format.kernels import layout
from segmentlog.format.records.header import parse_header
from segmentlog.format.records.read_memory import Workspace
from segmentlog.model import ScanPolicy
from segmentlog.reads.partition import FileChangedError, open_planned
from segmentlog.reads.plan import UNCHECKED
from segmentlog.store.contract import Closing
from segmentlog.store.pace import Pace, pace_of


class PlannedFile(Closing):
    """A file of a slice, opened; a context that closes it, or leaves it to the next slice.

    `planned`: the file, and the bytes to read.  `policy`: of the read: its limit of bytes a
    second, and its care for the page cache.  `workspace`: of the slice; the file may be open in
    it.  `was_open`: whether the slice before this one has opened it.  Raises `FileChangedError` if
    another file has taken its name; `OSError` if it cannot be opened.
    """

    def __init__(self, planned: SliceFile, policy: ScanPolicy, workspace: Workspace) -> None:
        self.planned, self._workspace = planned, workspace
        left = workspace.take_file(planned.path, planned.inode)
        self.was_open = left is not None
        self.opened = open_planned(planned) if left is None else left
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
        """Read as `ReadableFile` does, but at least one byte: all planned bytes must exist.

        Raises `FileChangedError` if the file has become shorter.
        """
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
        """Least possible offset of the first batch, after a check that it is the planned batch.

        Raises `FileChangedError` if it is another batch.
        """
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
