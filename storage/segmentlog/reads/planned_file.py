"""The part of a file that a slice reads, as it was planned, or an error if the file has changed.

Files may be deleted, renamed, rolled or rewritten while a slice is read.  Bytes already read are
safe.  The rest of the slice is planned again.
"""

from types import TracebackType

from segmentlog.disk.aside import names_aside
from segmentlog.disk.closing import Closing
from segmentlog.disk.readable import ReadableFile, open_file
from segmentlog.kernels import layout
from segmentlog.model import SliceFile
from segmentlog.reads.plan import UNCHECKED
from segmentlog.records.header import parse_header

__all__ = ["FileChangedError", "PlannedFile"]


class FileChangedError(Exception):
    """A file has changed since planning."""


class PlannedFile(Closing):
    """A file of a slice, opened; a context that closes it.

    Parameters
    ----------
    planned : the file, and the bytes to read.

    Raises
    ------
    FileChangedError
        If another file has taken its name.
    OSError
        If it cannot be opened.

    Attributes
    ----------
    opened : the file.
    """

    def __init__(self, planned: SliceFile) -> None:
        self.planned = planned
        self.opened = _open(planned)

    def close(self) -> None:
        """Close the file."""
        self.opened.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.opened.check_unchanged()
        finally:
            self.close()

    def read_into(self, buffer: memoryview, position: int) -> int:
        """Read as `ReadableFile` does, but at least one byte: all planned bytes must exist.

        Raises
        ------
        FileChangedError
            If the file has become shorter.
        """
        n_read = self.opened.read_into(buffer, position)
        if not n_read:
            message = f"{self.planned.path} ends at byte {position}, not at {self.planned.end}"
            raise FileChangedError(message)
        return n_read

    def least_offset(self) -> int:
        """Least possible offset of the first batch, after a check that it is the planned batch.

        Raises
        ------
        FileChangedError
            If it is another batch.
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
        message = f"{file.path} has another batch at byte {file.start} than when it was planned"
        raise FileChangedError(message)


def _open(file: SliceFile) -> ReadableFile:
    """The file, opened, even if retention or compaction has just put it aside.

    Compaction puts another file under the name.  Records of that file do not do instead: one that
    was the last of its key when the read was planned may have gone, because of a record after
    the end of the read.  Also, if the planned range of bytes ends between two batches of the new
    file, the records after its end would be lost without an error.
    """
    missing: dict[str, FileNotFoundError] = {}
    for path in (file.path, *names_aside(file.path, file.inode)):
        try:
            opened = open_file(path)
        except FileNotFoundError as error:
            missing[path] = error
            continue
        opened.expect(file.start, file.end)  # an object's state is that of this moment then
        if file.inode in (0, opened.status().inode):
            return opened
        opened.close()
    if file.path in missing:
        raise missing[file.path]  # users know this name, not the renamed file's
    message = f"{file.path} is another file than when it was planned"
    raise FileChangedError(message)
