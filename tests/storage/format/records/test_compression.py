"""Every framing that Kafka's clients write, and what is refused with bounded memory."""

import gzip
import struct
import zlib

import cramjam
import lz4.frame
import pytest
import zstandard

from segmentlog.format.records.compression import InflateError, Inflater
from segmentlog.model import Codec
from segmentlog.testing import codecs

TEXT = b"a record, and another record; " * 3000


def xerial(data: bytes, block: int = 32_768) -> bytes:
    """Snappy as Java writes it: a magic number, two versions, and blocks with their lengths."""
    out = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    for at in range(0, len(data), block):
        piece = bytes(cramjam.snappy.compress_raw(data[at : at + block]))
        out += struct.pack(">i", len(piece)) + piece
    return out


def lz4_frame(data: bytes, **settings: object) -> bytes:
    """An LZ4 frame as Kafka writes it: 64 KiB blocks, independent, no content size."""
    kafka = {"block_size": lz4.frame.BLOCKSIZE_MAX64KB, "block_linked": False, "store_size": False}
    return lz4.frame.compress(data, **kafka | settings)


def zstd_frame(data: bytes, *, size: bool = False) -> bytes:
    """A zstd frame; brokers and Java clients leave the content size out."""
    return zstandard.ZstdCompressor(write_content_size=size).compress(data)


FRAMINGS = {
    "gzip": (Codec.GZIP, gzip.compress(TEXT), TEXT),
    "gzip, two members": (Codec.GZIP, gzip.compress(TEXT) + gzip.compress(b"x"), TEXT + b"x"),
    "snappy, xerial": (Codec.SNAPPY, xerial(TEXT), TEXT),
    "snappy, xerial, joined": (Codec.SNAPPY, xerial(TEXT) + xerial(b"x"), TEXT + b"x"),
    "snappy, xerial, nothing": (Codec.SNAPPY, xerial(b""), b""),
    "snappy, one raw block": (Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT)), TEXT),
    "lz4": (Codec.LZ4, lz4_frame(TEXT), TEXT),
    "lz4, content size": (Codec.LZ4, lz4_frame(TEXT, store_size=True), TEXT),
    "lz4, checksums": (
        Codec.LZ4,
        lz4_frame(TEXT, content_checksum=True, block_checksum=True),
        TEXT,
    ),
    "lz4, two frames": (Codec.LZ4, lz4_frame(TEXT) + lz4_frame(b"x"), TEXT + b"x"),
    "lz4, stored block": (
        Codec.LZ4,
        bytes.fromhex("04224d186040820100008001") + bytes(4),
        b"\x01",
    ),
    "zstd": (Codec.ZSTD, zstd_frame(TEXT), TEXT),
    "zstd, content size": (Codec.ZSTD, zstd_frame(TEXT, size=True), TEXT),
    "zstd, two frames": (Codec.ZSTD, zstd_frame(TEXT) + zstd_frame(b"x"), TEXT + b"x"),
}


@pytest.mark.parametrize("name", FRAMINGS)
@pytest.mark.addition("codec")
def test_every_framing_is_inflated(name: str) -> None:
    """The inflated bytes follow the bytes that the buffer already has."""
    codec, payload, expected = FRAMINGS[name]
    inflater = Inflater(1 << 20)
    inflater.append(Codec.GZIP, memoryview(gzip.compress(b"before")))
    start, end = inflater.append(codec, memoryview(payload))

    assert start == 6
    assert expected == inflater.buffer[start:end].tobytes()
    assert inflater.buffer[:6].tobytes() == b"before"


@pytest.mark.parametrize("name", [name for name in FRAMINGS if "nothing" not in name])
@pytest.mark.parametrize("bound", [1, 100, 89_999])
def test_no_batch_inflates_beyond_its_bound(name: str, bound: int) -> None:
    """The buffer never grows to the size that the frame claims."""
    codec, payload, expected = FRAMINGS[name]
    inflater = Inflater(bound)
    if len(expected) <= bound:
        pytest.skip("this one fits")

    with pytest.raises(InflateError, match=f"beyond {bound} bytes"):
        inflater.append(codec, memoryview(payload))
    assert inflater.end == 0
    assert inflater.buffer.size < 3 << 20


@pytest.mark.parametrize("codec", list(Codec)[1:])
@pytest.mark.addition("codec")
def test_a_bomb_costs_the_bound_and_no_more(codec: Codec) -> None:
    """A small payload that inflates to hundreds of MiB takes one MiB, its bound."""
    zeros = bytes(64 << 20)
    payload = {
        Codec.GZIP: lambda: gzip.compress(zeros),
        Codec.SNAPPY: lambda: bytes(cramjam.snappy.compress_raw(zeros)),
        Codec.LZ4: lambda: lz4_frame(zeros),
        Codec.ZSTD: lambda: zstd_frame(zeros),
    }[codec]()
    inflater = Inflater(1 << 20)

    with pytest.raises(InflateError, match="beyond 1048576 bytes"):
        inflater.append(codec, memoryview(payload))
    assert inflater.buffer.size <= 3 << 20


@pytest.mark.parametrize(
    "name", [name for name in FRAMINGS if ", " not in name or "xerial" in name]
)
def test_garbage_and_cut_payloads_are_refused_or_shorter(name: str) -> None:
    """A bad payload never causes a crash, a hang, or bytes that it did not contain."""
    codec, payload, expected = FRAMINGS[name]
    inflater = Inflater(1 << 20)
    for cut in range(1, len(payload), max(1, len(payload) // 50)):
        inflater.clear()
        try:
            start, end = inflater.append(codec, memoryview(payload[:cut]))
        except InflateError:
            continue
        assert expected.startswith(inflater.buffer[start:end].tobytes())
    for garbage in (b"\x00" * 50, b"\xff" * 50, zlib.compress(b"not gzip")):
        inflater.clear()
        if codec != Codec.SNAPPY:
            with pytest.raises(InflateError, match=codec.name.lower()):
                inflater.append(codec, memoryview(garbage))


MEMBER = gzip.compress(b"x", mtime=0)


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (bytes(1), b""),
        (bytes(10_000), b""),
        (b"A" * 19, b""),
        (MEMBER[:18], b""),
        (b"?" + MEMBER, b""),
        (b"\x1f\x8b\x07" + MEMBER[3:], b""),  # no method of gzip
        (b"\x1f\x8b\x08\x04" + MEMBER[4:10] + b"\xff\xff" + MEMBER, b""),  # a header that is cut
        (b"\x1f\x8b\x08\x08" + MEMBER[4:10] + b"a name" * 9, b""),
        (b"\x1f\x8b\x08\x02" + MEMBER[4:10] + b"??" + MEMBER[10:], b""),  # a wrong checksum
        (MEMBER[:3] + b"\x08" + MEMBER[4:10] + b"n" * 300 + b"\0" + MEMBER[10:], b"x"),
        (MEMBER + MEMBER + bytes(30), b"xx"),
        (gzip.compress(b"", mtime=0), b""),
    ],
)
def test_bytes_after_a_gzip_member_are_read_as_java_reads_them(
    after: bytes, expected: bytes
) -> None:
    """Another member counts if it has a whole header, and everything else is ignored."""
    payload = gzip.compress(TEXT) + after
    inflater = Inflater(1 << 20)
    start, end = inflater.append(Codec.GZIP, memoryview(payload))

    assert TEXT + expected == inflater.buffer[start:end].tobytes()
    assert TEXT + expected == codecs.inflate(codecs.GZIP, payload, 1 << 20)


@pytest.mark.parametrize("after", [MEMBER[:19], MEMBER[:-5] + b"?" + MEMBER[-4:]])
def test_a_gzip_member_that_has_a_header_has_to_be_whole(after: bytes) -> None:
    """Java refuses it, too."""
    payload = gzip.compress(TEXT) + after

    with pytest.raises(InflateError, match="gzip"):
        Inflater(1 << 20).append(Codec.GZIP, memoryview(payload))
    with pytest.raises(codecs.BadPayloadError):
        codecs.inflate(codecs.GZIP, payload, 1 << 20)
