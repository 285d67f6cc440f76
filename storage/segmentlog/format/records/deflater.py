"""Compress the records of batches, in the framing that Kafka's clients read.

The counterpart of `segmentlog.format.records.compression`, with the same libraries.
"""

import struct
import zlib
from collections.abc import Callable
from typing import NamedTuple

import cramjam
import lz4.frame
import zstandard

from segmentlog.errors import OptionError
from segmentlog.model import Codec

#: xerial's stream, as ``SnappyOutputStream`` writes it: magic, version, least compatible version.
_XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_SNAPPY_BLOCK_BYTES = 32 << 10
_GZIP_WINDOW_BITS = 31
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
        makers: dict[Codec, Callable[[int], Callable[[memoryview], bytes]]] = {
            Codec.GZIP: _gzip,
            Codec.SNAPPY: lambda _: _snappy,
            Codec.LZ4: _lz4,
            Codec.ZSTD: _zstd,
        }
        #: Compress the records of one batch.
        self.compress = makers[codec](level)


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


def _gzip(level: int) -> Callable[[memoryview], bytes]:
    return lambda records: zlib.compress(records, level, _GZIP_WINDOW_BITS)


def _snappy(records: memoryview) -> bytes:
    parts: list[bytes | cramjam.Buffer] = [_XERIAL_HEADER]
    for at in range(0, len(records), _SNAPPY_BLOCK_BYTES):
        block = cramjam.snappy.compress_raw(records[at : at + _SNAPPY_BLOCK_BYTES])
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def _lz4(level: int) -> Callable[[memoryview], bytes]:
    """Independent blocks of 64 KiB and no content size: Kafka's reader refuses linked blocks.

    Kafka's default level selects the quick compressor, and every other level selects LZ4-HC
    (``Lz4BlockOutputStream``).  In the library, levels below the least HC level select the quick
    compressor.
    """
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


def _zstd(level: int) -> Callable[[memoryview], bytes]:
    """One frame without a content size, as Kafka streams it."""
    return zstandard.ZstdCompressor(level=level, write_content_size=False).compress
