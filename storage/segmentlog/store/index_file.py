"""Read-only bytes of an index file: a small one is read whole, a large one mapped if that is safe.

A broker trims the index of its active segment in place, and a process that has the file mapped
then dies of SIGBUS at the next touch.  So only indexes of closed segments in a directory that was
cleanly shut down are mapped; all others are read with ``pread``, an entry at a time, and a file
that shrinks under the reader gives a short answer instead of a signal.  An index at a URL is one
read, if it is not large; of a larger one, a search reads some blocks.  A block is large, because a
request takes longer than its bytes.

Up to `SMALL_BYTES`, one read of the whole file takes less than a map or a few reads of entries.
"""

import logging
import mmap

from segmentlog.errors import RemoteSegmentError
from segmentlog.store.contract import Closing, FileType, ReadableFile
from segmentlog.store.readable import open_file

logger = logging.getLogger(__name__)

#: Largest index that is read whole.
SMALL_BYTES = 16 << 10

#: Bytes of a block of a large index at a URL: whole entries of 8 and of 12 bytes.
BLOCK_BYTES = 24 * 10_000


class IndexFile(Closing):
    """An open index; a missing index counts as empty."""

    def __init__(self, path: str, *, mapped: bool, file: ReadableFile | None = None) -> None:
        self.size = 0
        self._path = path
        self._map: mmap.mmap | bytes | None = None
        self._file: ReadableFile | None = None
        self._block: tuple[int, bytes] | None = None  # the last one, and its first byte
        try:
            file = file or open_file(path)
        except OSError:  # an index that cannot be opened costs a scan, not the read
            return
        status = file.status()
        if status.type is not FileType.FILE:
            file.close()
            return
        self._file, self.size = file, status.size
        try:
            if 0 < self.size <= SMALL_BYTES:
                self._map = file.read(0, self.size)
            elif mapped or file.never_cut:
                self._map = file.map()
        except (OSError, RemoteSegmentError) as error:
            self._fail(error)
            self.size = 0
            return
        if self._map is not None:
            file.close()
            self._file = None

    def read(self, at: int, n_bytes: int) -> bytes:
        """`n_bytes` from byte `at`; zeros, as in a preallocated tail, where the file ends."""
        piece = b""
        if self._map is not None:
            piece = self._map[at : at + n_bytes]
        elif self._file is not None:
            begin = at - at % BLOCK_BYTES
            try:
                # Of a file at a URL, the block that holds the bytes is read and kept.
                if not self._file.never_cut or at + n_bytes > begin + BLOCK_BYTES:
                    piece = self._file.read(at, n_bytes)
                else:
                    if self._block is None or self._block[0] != begin:
                        self._block = begin, self._file.read(begin, BLOCK_BYTES)
                    piece = self._block[1][at - begin : at - begin + n_bytes]
            except (OSError, RemoteSegmentError) as error:
                self._fail(error)
        return piece if len(piece) == n_bytes else piece.ljust(n_bytes, b"\0")

    def _fail(self, error: Exception) -> None:
        """Go on without the index: it costs a scan, not the read."""
        logger.warning("%s cannot be read, and the log is scanned instead: %s", self._path, error)
        self.close()

    @property
    def is_mapped(self) -> bool:
        """Whether the file is memory-mapped."""
        return isinstance(self._map, mmap.mmap)

    def close(self) -> None:
        """Close the file; later reads give zeros."""
        if self._map is not None:
            if isinstance(self._map, mmap.mmap):
                self._map.close()
            self._map = None
        if self._file is not None:
            self._file.close()
            self._file = None
