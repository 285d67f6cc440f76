"""The chunks in which Aiven's plugin stores a segment, and where each of them lies in the object.

The segment file is cut into chunks of one size, the last one shorter.  Each chunk is compressed
and encrypted by itself, so a reader fetches only the chunks that hold the bytes it needs.  A
*fixed* index describes chunks that all have the same size in the object, and a *variable* index
lists the sizes.

Rules: ``FixedSizeChunkIndex``, ``VariableSizeChunkIndex`` and ``ChunkSizesBinaryCodec`` of the
plugin ``io.aiven.kafka.tieredstorage``.
"""

import base64
import binascii

import numpy as np
import numpy.typing as npt
import zstandard

#: Bytes that encryption adds to a chunk: an initialization vector of 12, and a tag of 16.
ENCRYPTION_BYTES = 28

#: Largest segment file: positions in Kafka's indexes have 31 bits.
_MOST_FILE_BYTES = (1 << 31) - 1

#: Largest list of sizes that the plugin writes, without compression.
_MOST_SIZES_BYTES = 10 << 20
_MOST_BASE64 = 4 * _MOST_SIZES_BYTES // 3 + 4096


class ChunkIndexError(ValueError):
    """A chunk index that contradicts itself; the reason in words, to be continued by a place."""


class ChunkIndex:
    """Places of the chunks of one file in its object.

    `chunk_bytes`: size of each chunk of the file but the last.  `ends`: end of each chunk in the
    object, shape (number of chunks,); or the size of each chunk in the object but the last, and
    the size of the last.  `base`: byte of the object at which the first chunk begins.  Raises
    `ChunkIndexError` if a number is out of bounds, or the number of chunks does not fit the sizes.
    """

    def __init__(
        self,
        chunk_bytes: int,
        file_bytes: int,
        ends: npt.NDArray[np.int64] | tuple[int, int],
        base: int = 0,
    ) -> None:
        if not 0 < chunk_bytes <= _MOST_FILE_BYTES:
            raise ChunkIndexError(f"chunks of {chunk_bytes} bytes")
        if not 0 <= file_bytes <= _MOST_FILE_BYTES:
            raise ChunkIndexError(f"a file of {file_bytes} bytes")
        self.chunk_bytes = chunk_bytes
        self.file_bytes = file_bytes
        self.n_chunks = -(-file_bytes // chunk_bytes)
        self._base = base
        self._ends = ends
        if isinstance(ends, tuple):
            if not all(0 < each <= 2 * _MOST_FILE_BYTES for each in ends):
                raise ChunkIndexError(f"chunks that take {ends[0]} and {ends[1]} bytes")
        elif len(ends) != self.n_chunks:
            raise ChunkIndexError(f"{len(ends)} chunks, but {self.n_chunks} fit its sizes")

    @property
    def object_bytes(self) -> int:
        """Size of all chunks in the object."""
        return self.place(self.n_chunks) - self._base

    def place(self, number: int) -> int:
        """Byte of the object at which a chunk begins; the end of the last, for a chunk more."""
        if isinstance(self._ends, tuple):
            size, last = self._ends
            whole = min(number, max(self.n_chunks - 1, 0)) * size
            return self._base + whole + (last if 0 < self.n_chunks <= number else 0)
        return self._base + (int(self._ends[number - 1]) if number else 0)

    def number_at(self, position: int) -> int:
        """Number of the chunk that holds a byte of the file."""
        return position // self.chunk_bytes

    def size_of(self, number: int) -> int:
        """Bytes of the file in a chunk."""
        return min(self.chunk_bytes, self.file_bytes - number * self.chunk_bytes)


def decode_sizes(text: str) -> npt.NDArray[np.int64]:
    """The list of sizes of a variable chunk index: ends of the chunks, shape (number of chunks,).

    The text is base64 of a zstd frame of: an int32 count; for one chunk, its size as an int32; for
    more, the smallest size as an int32, the width of a difference as one byte, the difference of
    each size but the last, and the last size as an int32.  All numbers are big-endian.

    Raises `ChunkIndexError` if the text is not such a list, or is longer than the plugin writes.
    """
    if len(text) > _MOST_BASE64:
        raise ChunkIndexError(f"a list of sizes of {len(text)} characters")
    try:
        frame = base64.b64decode(text, validate=True)
        claimed = zstandard.get_frame_parameters(frame).content_size
        if claimed > _MOST_SIZES_BYTES:  # an unknown size is the largest of all
            raise ChunkIndexError(f"a list of sizes that claims {claimed} bytes")
        listed = zstandard.ZstdDecompressor().decompress(
            frame, max_output_size=_MOST_SIZES_BYTES, allow_extra_data=False
        )
    except (binascii.Error, ValueError, zstandard.ZstdError, MemoryError) as error:
        if isinstance(error, ChunkIndexError):
            raise
        raise ChunkIndexError("a list of sizes that is not base64 of a zstd frame") from error
    sizes = _sizes(listed)
    if sizes.size and int(sizes.min()) <= 0:
        raise ChunkIndexError("a chunk without bytes in its list of sizes")
    return np.cumsum(sizes, dtype=np.int64)


def _sizes(listed: bytes) -> npt.NDArray[np.int64]:
    n_chunks = int.from_bytes(listed[:4], "big", signed=True)
    cut = ChunkIndexError(f"a list of {n_chunks} sizes in {len(listed)} bytes")
    if n_chunks < 0 or len(listed) < 4:
        raise cut
    if n_chunks < 2:
        if len(listed) != 4 + 4 * n_chunks:
            raise cut
        return np.frombuffer(listed, ">i4", n_chunks, 4).astype(np.int64)
    width = listed[8] if len(listed) > 8 else 0
    if not 1 <= width <= 4 or len(listed) != 9 + (n_chunks - 1) * width + 4:
        raise cut
    base = int.from_bytes(listed[4:8], "big", signed=True)
    parts = np.frombuffer(listed, np.uint8, (n_chunks - 1) * width, 9).reshape(-1, width)
    sizes = np.empty(n_chunks, np.int64)
    sizes[:-1] = base
    for place in range(width):
        sizes[:-1] += parts[:, place].astype(np.int64) << (8 * (width - 1 - place))
    sizes[-1] = int.from_bytes(listed[-4:], "big", signed=True)
    return sizes
