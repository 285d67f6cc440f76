"""Inflate the records of compressed batches, never beyond a bound, and compress them.

Each codec has one library, chosen by time on a broker's 16 KB batches (one core of a Zen 5):
lz4 ``lz4.frame`` 2.5 µs (cramjam 4.0 µs), zstd ``zstandard``'s stream reader 8.4 µs (cramjam
16 µs: a new context a call), snappy ``cramjam`` 3.2 µs (pyarrow 7.5 µs), gzip the standard library
20 µs.  All of them accept frames without a content size and can stop at a bound; pyarrow's codecs
cannot.

Kafka's framing (``org.apache.kafka.common.compress``): gzip members, LZ4 frames and zstd frames
as they are, possibly several in a row; snappy in the blocks of xerial's stream, or as
one raw block from producers that do not frame it.  Bytes after a gzip member that do not begin
another one are ignored, as by Java's ``GZIPInputStream``.  Producers of magic 0 wrote LZ4 frames
whose header checksum covers too much, so the checksum of their frames is corrected first.
"""

import struct
import zlib
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import cramjam
import lz4.frame
import numpy as np
import xxhash
import zstandard

from segmentlog.errors import OptionError
from segmentlog.format.kernels.memory import COPY_SLACK, Bytes
from segmentlog.model import Codec

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_GZIP_WINDOW_BITS = 31
_GZIP_MAGIC = b"\x1f\x8b\x08"  #: and its only method
_GZIP_HEADER_BYTES = 10
#: Header and trailer: after a member, so few bytes are no other one (``readTrailer``).
_GZIP_MOST_IGNORED = _GZIP_HEADER_BYTES + 8
_PIECE_BYTES = 256
#: Largest zstd window to allocate: the default limit of the reference implementation.
_ZSTD_MAX_WINDOW_BYTES = 1 << 27
_ZSTD_FIRST_BYTE = 0x28
_ZSTD_MOST_HEADER_BYTES = 18
_FIRST_CAPACITY = 1 << 20
#: Bytes given to gzip and lz4 at once.  After each frame they copy the rest of their input, so a
#: large payload full of empty frames would otherwise take hours.
_FEED_BYTES = 1 << 16
_LZ4_DESCRIPTOR_AT = 4  # after the magic number

_ERRORS = (RuntimeError, zstandard.ZstdError, cramjam.DecompressionError, zlib.error)


class InflateError(Exception):
    """Compressed bytes that cannot be inflated, or that exceed the bound; the reason in words."""


class Inflater:
    """A growing buffer for inflated batches, each of at most `max_batch_bytes`."""

    def __init__(self, max_batch_bytes: int) -> None:
        self._max_batch_bytes = max_batch_bytes
        self._methods = {
            Codec.LZ4: self._append_lz4,
            Codec.ZSTD: self._append_zstd,
            Codec.SNAPPY: self._append_snappy,
            Codec.GZIP: self._append_gzip,
        }
        self._hold(np.empty(0, np.uint8))  # most logs need no more
        self.end = 0

    @cached_property
    def _zstd(self) -> zstandard.ZstdDecompressor:
        return zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW_BYTES)

    def _hold(self, buffer: Bytes) -> None:
        self._buffer = buffer
        self._view = buffer.data

    @property
    def buffer(self) -> Bytes:
        """The inflated bytes, up to `end`; a later `append` may move them to another array."""
        return self._buffer

    def clear(self) -> None:
        """Forget what was inflated; the memory stays."""
        self.end = 0

    def append(
        self, codec: int, payload: memoryview, *, is_magic_0: bool = False
    ) -> tuple[int, int]:
        """Inflate `payload` after the bytes in the buffer; the half-open range of the result.

        `is_magic_0`: whether the header checksum of an LZ4 frame is to be ignored.  Raises
        `InflateError` if the bytes are not valid, or inflate beyond `max_batch_bytes`.
        """
        start = self.end
        if is_magic_0 and codec == Codec.LZ4:
            payload = _with_header_checksum(payload)
        try:
            self._methods[Codec(codec)](payload, start)
        except InflateError:
            self.end = start
            raise
        except _ERRORS as error:
            self.end = start
            name = Codec(codec).name.lower()
            reason = f"its records cannot be inflated as {name}: {error}"
            raise InflateError(reason) from error
        return start, self.end

    def _room(self, start: int, n_bytes: int) -> None:
        """Make room for `n_bytes` more, within the bound of the batch that begins at `start`."""
        needed = self.end + n_bytes
        if needed - start > self._max_batch_bytes:
            reason = f"its records inflate beyond {self._max_batch_bytes} bytes"
            raise InflateError(reason)
        if needed + COPY_SLACK > self._buffer.size:
            capacity = max(needed, 2 * self._buffer.size, _FIRST_CAPACITY)
            grown = np.empty(capacity + COPY_SLACK, np.uint8)
            grown[: self.end] = self._buffer[: self.end]
            self._hold(grown)

    def _left(self, start: int) -> int:
        """Bytes that the batch at `start` may still take, plus one to detect excess."""
        return self._max_batch_bytes - (self.end - start) + 1

    def _put(self, start: int, piece: bytes) -> None:
        self._room(start, len(piece))
        self._view[self.end : self.end + len(piece)] = piece
        self.end += len(piece)

    def _append_lz4(self, payload: memoryview, start: int) -> None:
        # LZ4 inflates to at most 255 times its size, so a small frame that claims no content size,
        # which the library would allocate unchecked, cannot exceed the bound, and the quick call,
        # which takes no bound, is safe.
        claims_no_size = len(payload) > 4 and not payload[4] & 0x08
        if len(payload) * 255 <= self._max_batch_bytes and claims_no_size:
            piece, n_read = lz4.frame.decompress(payload, return_bytes_read=True)
            self._put(start, piece)
            payload = payload[n_read:]
        at = 0
        while at < len(payload):
            frame = lz4.frame.LZ4FrameDecompressor()
            while not frame.eof:
                fed = payload[at : at + _FEED_BYTES] if frame.needs_input else b""
                at += len(fed)
                # A bound near the usual size, because lz4 allocates its whole limit.
                bound = min(self._left(start), max(4 * len(payload), 1 << 16))
                before = self.end
                self._put(start, frame.decompress(fed, max_length=bound))
                if not frame.eof and not fed and self.end == before:
                    message = "the frame is cut short"
                    raise RuntimeError(message)
            at -= len(frame.unused_data or b"")

    def _append_zstd(self, payload: memoryview, start: int) -> None:
        reader = self._zstd.stream_reader(payload, read_across_frames=True)
        wanted = max(4 * len(payload), 1 << 16)
        while True:
            self._room(start, max(1, min(wanted, self._left(start) - 1)))
            limit = min(self._buffer.size - COPY_SLACK, start + self._max_batch_bytes)
            n_read = reader.readinto(self._view[self.end : limit])
            self.end += n_read
            if self.end < limit:  # a short result marks the end of the frames, or of the bytes
                if not _is_whole_zstd(payload):
                    message = "the last frame is cut short"
                    raise RuntimeError(message)
                return

    def _append_snappy(self, payload: memoryview, start: int) -> None:
        if payload[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
            self._append_snappy_block(payload, start)
            return
        at = 0
        while at < len(payload):
            if payload[at : at + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:
                at += _XERIAL_HEADER_BYTES  # joined streams repeat it
                continue
            if at + 4 > len(payload):
                message = "the length of a block is cut short"
                raise RuntimeError(message)
            (size,) = struct.unpack_from(">i", payload, at)
            at += 4
            if size < 0 or at + size > len(payload):
                message = f"a block claims {size} bytes of {len(payload) - at}"
                raise RuntimeError(message)
            self._append_snappy_block(payload[at : at + size], start)
            at += size

    def _append_snappy_block(self, block: memoryview, start: int) -> None:
        n_bytes = cramjam.snappy.decompress_raw_len(block)
        self._room(start, n_bytes)
        target = self._buffer[self.end : self.end + n_bytes]
        if n_bytes:
            cramjam.snappy.decompress_raw_into(block, target.data)
        else:  # an empty target is refused, and bytes after an empty block's length must be, too
            cramjam.snappy.decompress_raw(block)
        self.end += n_bytes

    def _append_gzip(self, payload: memoryview, start: int) -> None:
        at = 0
        while at < len(payload):
            member = zlib.decompressobj(_GZIP_WINDOW_BITS)
            while not member.eof:
                fed = payload[at : at + _FEED_BYTES]
                piece = member.decompress(fed, self._left(start))
                if not fed and not piece and not member.eof:
                    message = "the stream is cut short"
                    raise RuntimeError(message)
                self._put(start, piece)
                at += len(fed) - len(member.unconsumed_tail) - len(member.unused_data)
            # Java ignores what follows, unless it has the size and the header of a member.
            if len(payload) - at <= _GZIP_MOST_IGNORED or not _is_gzip_header(payload, at):
                return


def _is_gzip_header(payload: memoryview, at: int) -> bool:
    """Whether the header of a gzip member is at byte `at`, whole and right (RFC 1952, 2.3)."""
    if len(payload) - at < _GZIP_HEADER_BYTES or payload[at : at + 3] != _GZIP_MAGIC:
        return False
    flags, end = payload[at + 3], at + _GZIP_HEADER_BYTES
    if flags & 4:  # extra fields
        if end + 2 > len(payload):
            return False
        end += 2 + int.from_bytes(payload[end : end + 2], "little")
    for flag in (8, 16):  # a name, a comment
        if flags & flag:
            while (found := payload[end : end + _PIECE_BYTES].tobytes().find(0)) < 0:
                end += _PIECE_BYTES
                if end >= len(payload):
                    return False
            end += found + 1
    if flags & 2:  # a checksum of the header
        stored = int.from_bytes(payload[end : end + 2], "little")
        if end + 2 > len(payload) or stored != zlib.crc32(payload[at:end]) & 0xFFFF:
            return False
        end += 2
    return end <= len(payload)


def _is_whole_zstd(frames: memoryview) -> bool:
    """Whether zstd frames that were inflated are complete; the library does not check it."""
    # Walks from block to block (RFC 8878, 3.1.1), so a usual batch takes one step.
    at = 0
    while at + 8 <= len(frames):
        if frames[at] != _ZSTD_FIRST_BYTE:  # a frame to be skipped
            at += 8 + int.from_bytes(frames[at + 4 : at + 8], "little")
            continue
        n_checksum_bytes = frames[at + 4] & 4
        at += zstandard.frame_header_size(frames[at : at + _ZSTD_MOST_HEADER_BYTES])
        is_last = False
        while not is_last and at < len(frames):
            header = int.from_bytes(frames[at : at + 3], "little")
            is_last = bool(header & 1)
            is_one_byte = header & 6 == 2  # a run, of any length
            at += 3 + (1 if is_one_byte else header >> 3)
        if not is_last:
            return False
        at += n_checksum_bytes
    return at == len(frames)


def _with_header_checksum(frame: memoryview) -> memoryview:
    """The LZ4 frame with the checksum of its descriptor alone (``Lz4BlockInputStream``)."""
    if len(frame) < _LZ4_DESCRIPTOR_AT + 3:
        return frame
    flags = frame[_LZ4_DESCRIPTOR_AT]
    end = _LZ4_DESCRIPTOR_AT + 2 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
    if len(frame) <= end:
        return frame
    right = bytearray(frame)
    right[end] = xxhash.xxh32_intdigest(frame[_LZ4_DESCRIPTOR_AT:end]) >> 8 & 0xFF
    return memoryview(right)


#: xerial's stream, as ``SnappyOutputStream`` writes it: magic, version, least compatible version.
_XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_SNAPPY_BLOCK_BYTES = 32 << 10
_LZ4_DEFAULT_LEVEL = 9
_LZ4_LEAST_HC_LEVEL = 3


class _Levels(NamedTuple):
    """Compression levels of a codec (``org.apache.kafka.common.record.CompressionType``)."""

    default: int
    least: int
    most: int


_LEVELS = {
    Codec.GZIP: _Levels(-1, 1, 9),
    Codec.LZ4: _Levels(_LZ4_DEFAULT_LEVEL, 1, 17),
    Codec.ZSTD: _Levels(3, -131072, 22),
}


class Deflater:
    """Compresses with one codec at one level.

    `level`: by Kafka's scale (KIP-390); None for Kafka's default.  Raises `OptionError` if the
    codec has no such level, or no levels at all.
    """

    def __init__(self, codec: Codec, level: int | None = None) -> None:
        level = _checked(codec, level)
        self.compress: Callable[[memoryview], bytes]  # the records of one batch
        if codec == Codec.GZIP:
            self.compress = lambda records: zlib.compress(records, level, _GZIP_WINDOW_BITS)
        elif codec == Codec.SNAPPY:
            self.compress = _snappy
        elif codec == Codec.LZ4:
            self.compress = _lz4(level)
        else:  # one frame without a content size, as Kafka streams it
            zstd = zstandard.ZstdCompressor(level=level, write_content_size=False)
            self.compress = zstd.compress


def _checked(codec: Codec, level: int | None) -> int:
    """The level, or the codec's default; 0 for a codec without levels."""
    name = f"compression.{codec.name.lower()}.level"
    levels = _LEVELS.get(codec)
    if levels is None:
        if level is not None:
            raise OptionError(name, str(level), f"{codec.name.lower()} has no levels")
        return 0
    if level is None:
        return levels.default
    if level != levels.default and not levels.least <= level <= levels.most:
        accepted = f"give {levels.default}, the default, or {levels.least} to {levels.most}"
        raise OptionError(name, str(level), accepted)
    return level


def _snappy(records: memoryview) -> bytes:
    parts: list[bytes | cramjam.Buffer] = [_XERIAL_HEADER]
    for at in range(0, len(records), _SNAPPY_BLOCK_BYTES):
        block = cramjam.snappy.compress_raw(records[at : at + _SNAPPY_BLOCK_BYTES])
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def _lz4(level: int) -> Callable[[memoryview], bytes]:
    """Independent blocks of 64 KiB and no content size: Kafka's reader refuses linked blocks."""
    # Kafka's default level selects the quick compressor, and every other level selects LZ4-HC
    # (``Lz4BlockOutputStream``). In the library, levels below the least HC level select the quick
    # compressor.
    library_level = 0 if level == _LZ4_DEFAULT_LEVEL else max(level, _LZ4_LEAST_HC_LEVEL)

    def compress(records: memoryview) -> bytes:
        frame: bytes = lz4.frame.compress(
            records,
            compression_level=library_level,
            block_size=lz4.frame.BLOCKSIZE_MAX64KB,
            block_linked=False,
            store_size=False,
        )
        return frame

    return compress
