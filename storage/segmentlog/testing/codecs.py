"""Kafka's compressed framings, one whole payload at a time, without regard to speed.

The libraries are the same as in scans, because only a codec's own library defines the meaning of
damaged bytes.  The calls of the libraries have nothing in common with scans.
"""

import gzip
import struct
import zlib

import cramjam
import lz4.frame
import xxhash
import zstandard

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)

_XERIAL = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_STEP_BYTES = 1 << 16


class BadPayloadError(Exception):
    """Bytes that a codec refuses, or that inflate beyond the bound."""


def deflate(codec: int, data: bytes, *, is_magic_0: bool = False, is_framed: bool = True) -> bytes:
    """`data` as a client of Kafka compresses it.

    `codec`: `GZIP`, `SNAPPY`, `LZ4` or `ZSTD`.  `is_magic_0`: whether the header checksum of an
    LZ4 frame is wrong, as old clients wrote it.  `is_framed`: whether snappy has xerial's blocks;
    clients other than Java's write one raw block.
    """
    if codec == GZIP:
        return gzip.compress(data, 1, mtime=0)
    if codec == ZSTD:
        return zstandard.ZstdCompressor(write_content_size=False).compress(data)
    if codec == LZ4:
        frame = bytearray(lz4.frame.compress(data, block_linked=False, store_size=False))
        if is_magic_0:
            frame[6] = xxhash.xxh32_intdigest(bytes(frame[:6])) >> 8 & 0xFF
        return bytes(frame)
    block = bytes(cramjam.snappy.compress_raw(data))
    return _XERIAL + struct.pack(">i", len(block)) + block if is_framed else block


def inflate(codec: int, payload: bytes, bound: int, *, is_magic_0: bool = False) -> bytes:
    """The inflated bytes of `payload`.

    Raises `BadPayloadError` if its bytes are not valid for the codec, to the last, or inflate to
    more than `bound`.
    """
    try:
        if codec == SNAPPY:
            data = _unsnappy(payload, bound)
        elif codec == GZIP:
            data = _ungzip(payload, bound)
        else:
            if codec == LZ4 and is_magic_0:
                payload = _with_right_checksum(payload)
            first_frame = _first_lz4_frame if codec == LZ4 else _first_zstd_frame
            data = b""
            while payload and len(data) <= bound:  # each frame must be complete
                inflated, payload = first_frame(payload, bound - len(data) + 1)
                data += inflated
    except (RuntimeError, zlib.error, zstandard.ZstdError, cramjam.DecompressionError) as error:
        raise BadPayloadError(str(error)) from error
    if len(data) > bound:
        raise BadPayloadError("more than the bound")
    return data


def _ungzip(payload: bytes, bound: int) -> bytes:
    """Members one after another, as ``GZIPInputStream`` reads them.

    After a member, Java takes up to 18 bytes, and bytes that are no header, for the end.
    """
    whole, member = b"", None
    while payload:
        member = zlib.decompressobj(31)
        whole += member.decompress(payload, bound - len(whole) + 1)
        payload = member.unused_data
        if len(whole) > bound or len(payload) <= 18 or not _begins_gzip(payload):
            break
    if member and not member.eof and len(whole) <= bound:
        raise BadPayloadError("a member is cut short")
    return whole


def _begins_gzip(data: bytes) -> bool:
    """Whether a whole header of a member comes first (RFC 1952, 2.3)."""
    flags, end = data[3], 10
    if not data.startswith(b"\x1f\x8b\x08"):
        return False
    if flags & 4:
        end = 12 + int.from_bytes(data[10:12], "little")
    for flag in (8, 16):
        if flags & flag:
            if 0 not in data[end:]:
                return False
            end = data.index(0, end) + 1
    if flags & 2:
        if data[end : end + 2] != (zlib.crc32(data[:end]) & 0xFFFF).to_bytes(2, "little"):
            return False
        end += 2
    return end <= len(data)


def _first_lz4_frame(payload: bytes, limit: int) -> tuple[bytes, bytes]:
    """The first frame inflated, or `limit` bytes of it, and the payload after it."""
    frame = lz4.frame.LZ4FrameDecompressor()
    data = frame.decompress(payload, limit)
    if not frame.eof and len(data) < limit:
        raise BadPayloadError("a frame is cut short")
    return data, frame.unused_data or b""


def _first_zstd_frame(payload: bytes, limit: int) -> tuple[bytes, bytes]:
    """The same, in small pieces, because the library takes no limit."""
    frame = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj()
    data, at = b"", 0
    while not frame.eof and len(data) < limit:
        if at >= len(payload):
            raise BadPayloadError("a frame is cut short")
        data += frame.decompress(payload[at : at + _STEP_BYTES])
        at += _STEP_BYTES
    return data, frame.unused_data + payload[at:]


def _unsnappy(payload: bytes, bound: int) -> bytes:
    if not payload.startswith(_XERIAL[:8]):
        return _unsnappy_block(payload, bound)
    whole, at = b"", 0
    while at < len(payload):
        if payload[at : at + 8] == _XERIAL[:8]:
            at += len(_XERIAL)
            continue
        size = int.from_bytes(payload[at : at + 4], "big")
        at += 4
        if at + size > len(payload):
            raise BadPayloadError("a block is cut short")
        whole += _unsnappy_block(payload[at : at + size], bound - len(whole))
        at += size
    return whole


def _unsnappy_block(block: bytes, bound: int) -> bytes:
    if cramjam.snappy.decompress_raw_len(block) > bound:
        raise BadPayloadError("more than the bound")
    return bytes(cramjam.snappy.decompress_raw(block))


def _with_right_checksum(frame: bytes) -> bytes:
    """An LZ4 frame with the checksum of its descriptor, which old clients got wrong."""
    flags = frame[4] if len(frame) > 4 else 0
    at = 6 + 8 * bool(flags & 8) + 4 * bool(flags & 1)
    if len(frame) <= at:
        return frame
    return frame[:at] + bytes([xxhash.xxh32_intdigest(frame[4:at]) >> 8 & 0xFF]) + frame[at + 1 :]
