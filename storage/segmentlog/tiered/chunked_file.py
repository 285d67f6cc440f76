"""A remote segment as an open file, whose chunks are decrypted and inflated as they are read.

`ChunkedFile` meets `segmentlog.store.contract.ReadableFile`, so scans, look-ups and indexes read a
remote segment as they read a local one.  A read fetches the chunks that hold its bytes, chunks
next to each other in one request, and no others.
"""

import os
import threading
from collections import OrderedDict

import zstandard

from segmentlog.errors import RemoteSegmentError
from segmentlog.store.contract import Closing, FileStatus, ReadableFile
from segmentlog.tiered.chunks import ChunkIndex
from segmentlog.tiered.encryption import Unwrapped

#: Decoded chunks that a process keeps: look-ups open a segment several times.
_KEPT_BYTES = 64 << 20

#: Most bytes of one request outside of a range that is read ahead.
_REQUEST_BYTES = 16 << 20

_LARGEST_MAPPED = 8 << 20
_REPLACED = "restore the three objects of the segment from one upload"


class _KeptChunks:
    """Decoded chunks of all files; those that were used longest ago go first."""

    def __init__(self) -> None:
        self._chunks: OrderedDict[tuple[str, int, int], bytes] = OrderedDict()
        self._n_bytes = 0
        self._lock = threading.Lock()

    def find(self, key: tuple[str, int, int]) -> bytes | None:
        """A chunk that was kept."""
        with self._lock:
            if key in self._chunks:
                self._chunks.move_to_end(key)
            return self._chunks.get(key)

    def keep(self, key: tuple[str, int, int], chunk: bytes) -> None:
        """Keep a chunk."""
        with self._lock:
            self._n_bytes += len(chunk) - len(self._chunks.pop(key, b""))
            self._chunks[key] = chunk
            while self._n_bytes > _KEPT_BYTES:
                self._n_bytes -= len(self._chunks.popitem(last=False)[1])


_kept = _KeptChunks()


def _forget() -> None:
    global _kept  # noqa: PLW0603 - another thread may have held its lock
    _kept = _KeptChunks()


os.register_at_fork(after_in_child=_forget)


class ChunkedFile(Closing):
    """An open file whose chunks are compressed, encrypted, or both; see `ReadableFile`.

    `file`: the open object; it is closed with this file.  `is_compressed`: whether each chunk is a
    zstd frame.  `key`: decrypts the chunks, or None.  `is_whole`: whether the chunks are all of
    the object.  Raises `RemoteSegmentError` if the object has another size than its manifest says.
    """

    #: As for objects: a new object takes the name instead.
    never_cut = True
    never_overlaps = False

    #: The bytes of the object are not those of the file.
    descriptor = None

    def __init__(
        self,
        file: ReadableFile,
        chunks: ChunkIndex,
        *,
        is_compressed: bool,
        key: Unwrapped | None,
        is_whole: bool = True,
    ) -> None:
        self.path = file.path
        self._file = file
        self._chunks = chunks
        self._is_compressed = is_compressed
        self._key = key
        self._last: tuple[int, bytes] = -1, b""
        self._ahead = range(0)  # chunks that are requested ahead
        self._shared = -1  # chunk that the range before this one ends in
        self._found = file.status()
        end = chunks.place(chunks.n_chunks)
        if self._found.size < end or (is_whole and self._found.size != end):
            file.close()
            raise RemoteSegmentError(
                self.path,
                f"the object has {self._found.size} bytes, and its manifest describes {end}",
                _REPLACED,
            )

    def status(self) -> FileStatus:
        """See `ReadableFile`: that of the object, with the size of the file."""
        return self._found._replace(size=self._chunks.file_bytes)

    def expect(self, start: int, end: int) -> None:
        """See `ReadableFile`: the chunks with these bytes are requested ahead.

        Two ranges of one scan may meet inside a chunk.  The reader of the later range needs this
        chunk first, and keeps it for the reader of the earlier range, which needs it last and
        does not request it ahead.
        """
        chunks = self._chunks
        end = min(end, chunks.file_bytes)
        if start >= end:
            return
        begin, stop = chunks.number_at(start), chunks.number_at(end - 1) + 1
        if end % chunks.chunk_bytes and end < chunks.file_bytes:
            stop -= 1
        if start % chunks.chunk_bytes:
            self._shared = begin
        while begin < stop and _kept.find(self._of(begin)) is not None:
            begin += 1
        while begin < stop and _kept.find(self._of(stop - 1)) is not None:
            stop -= 1
        self._ahead = range(begin, stop)
        if self._ahead:
            self._file.expect(chunks.place(begin), chunks.place(stop))

    def spare_page_cache(self, start: int, end: int) -> None:
        """See `ReadableFile`; nothing is done, because a chunk is read once."""

    def check_unchanged(self) -> None:
        """See `ReadableFile`."""
        self._file.check_unchanged()

    def read(self, position: int, n_bytes: int) -> bytes:
        """See `ReadableFile`."""
        buffer = bytearray(max(0, min(n_bytes, self._chunks.file_bytes - position)))
        n_read = self.read_into(memoryview(buffer), position)
        return bytes(buffer[:n_read])

    def read_into(self, buffer: memoryview, position: int) -> int:
        """See `ReadableFile`."""
        chunks = self._chunks
        end = min(position + len(buffer), chunks.file_bytes)
        at = position
        while at < end:
            number = chunks.number_at(at)
            chunk = self._chunk(number, chunks.number_at(end - 1))
            begin = at - number * chunks.chunk_bytes
            n_bytes = min(len(chunk) - begin, end - at)
            buffer[at - position : at - position + n_bytes] = memoryview(chunk)[
                begin : begin + n_bytes
            ]
            at += n_bytes
        return max(at - position, 0)

    def _chunk(self, number: int, last: int) -> bytes:
        """A decoded chunk; those after it, up to `last`, are fetched with it."""
        if self._last[0] == number:
            return self._last[1]
        if number in self._ahead:
            chunk = self._decode(number, self._fetch(number, number))
            if number == self._shared:
                _kept.keep(self._of(number), chunk)
        else:
            found = _kept.find(self._of(number))
            chunk = self._fetch_run(number, last) if found is None else found
        self._last = number, chunk
        return chunk

    def _of(self, number: int) -> tuple[str, int, int]:
        return self.path, self._found.inode, self._chunks.place(number)

    def _fetch_run(self, number: int, last: int) -> bytes:
        """Fetch chunks from one that is not kept up to the next that is, in one request."""
        chunks, end = self._chunks, number
        while (
            end < last
            and end + 1 not in self._ahead
            and _kept.find(self._of(end + 1)) is None
            and chunks.place(end + 2) - chunks.place(number) <= _REQUEST_BYTES
        ):
            end += 1
        fetched = self._fetch(number, end)
        begin = chunks.place(number)
        first = b""
        for each in range(number, end + 1):
            piece = fetched[chunks.place(each) - begin : chunks.place(each + 1) - begin]
            chunk = self._decode(each, piece)
            _kept.keep(self._of(each), chunk)
            first = first or chunk
        return first

    def _fetch(self, first: int, last: int) -> memoryview:
        begin, end = self._chunks.place(first), self._chunks.place(last + 1)
        buffer = memoryview(bytearray(end - begin))
        n_read = 0
        while n_read < len(buffer):
            n_more = self._file.read_into(buffer[n_read:], begin + n_read)
            if not n_more:
                raise RemoteSegmentError(
                    self.path,
                    f"the object ends at byte {begin + n_read}, in its chunk {last}",
                    _REPLACED,
                )
            n_read += n_more
        return buffer

    def _decode(self, number: int, piece: memoryview) -> bytes:
        chunk: bytes | memoryview = piece
        if self._key is not None:
            decrypted = self._key.decrypt(piece)
            if decrypted is None:
                raise RemoteSegmentError(
                    self.path,
                    f"the tag of its chunk {number} does not fit: the object was damaged or "
                    "replaced, or is not the object of this manifest",
                    _REPLACED,
                )
            chunk = decrypted
        size = self._chunks.size_of(number)
        inflated = _inflate(chunk, size) if self._is_compressed else bytes(chunk)
        if inflated is None or len(inflated) != size:
            raise RemoteSegmentError(
                self.path, f"its chunk {number} is not a zstd frame of {size} bytes", _REPLACED
            )
        return inflated

    def map(self) -> bytes | None:
        """See `ReadableFile`: the bytes of a small file; None for a larger or empty one."""
        size = self._chunks.file_bytes
        return self.read(0, size) if 0 < size <= self._chunks.chunk_bytes else None

    def close(self) -> None:
        """See `ReadableFile`."""
        self._file.close()


def _inflate(chunk: bytes | memoryview, size: int) -> bytes | None:
    """The bytes of one zstd frame, or None if it is damaged or inflates to another size."""
    try:
        claimed = zstandard.get_frame_parameters(chunk).content_size
        if claimed not in (size, zstandard.CONTENTSIZE_UNKNOWN):
            return None
        return zstandard.ZstdDecompressor().decompress(
            chunk, max_output_size=size, allow_extra_data=False
        )
    except zstandard.ZstdError:
        return None


class SectionFile(Closing):
    """A range of an open object as a file of its own; see `ReadableFile`.

    `file`: the open object; it is closed with this file.  Raises `RemoteSegmentError` if the
    object is shorter.
    """

    never_cut = True
    never_overlaps = False
    descriptor = None

    def __init__(self, file: ReadableFile, start: int, size: int) -> None:
        self.path = file.path
        self._file = file
        self._start, self._size = start, size
        self._found = file.status()
        if self._found.size < start + size:
            file.close()
            reason = f"the object has {self._found.size} bytes, and its manifest describes more"
            raise RemoteSegmentError(self.path, reason, _REPLACED)

    def status(self) -> FileStatus:
        """See `ReadableFile`: that of the object, with the size of the range."""
        return self._found._replace(size=self._size)

    def expect(self, start: int, end: int) -> None:
        """See `ReadableFile`."""
        self._file.expect(self._start + start, self._start + min(end, self._size))

    def spare_page_cache(self, start: int, end: int) -> None:
        """See `ReadableFile`; nothing is done, because indexes are small."""

    def check_unchanged(self) -> None:
        """See `ReadableFile`."""
        self._file.check_unchanged()

    def read(self, position: int, n_bytes: int) -> bytes:
        """See `ReadableFile`."""
        n_bytes = min(n_bytes, self._size - position)
        return self._file.read(self._start + position, n_bytes) if n_bytes > 0 else b""

    def read_into(self, buffer: memoryview, position: int) -> int:
        """See `ReadableFile`."""
        n_bytes = min(len(buffer), self._size - position)
        if n_bytes <= 0:
            return 0
        return self._file.read_into(buffer[:n_bytes], self._start + position)

    def map(self) -> bytes | None:
        """See `ReadableFile`: the bytes of a small index; None for a larger or an empty one."""
        return self.read(0, self._size) if 0 < self._size <= _LARGEST_MAPPED else None

    def close(self) -> None:
        """See `ReadableFile`."""
        self._file.close()
