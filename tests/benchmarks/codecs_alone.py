"""Decoding of compressed batches on one core against their codecs alone."""

import zlib
from collections.abc import Callable, Iterator

import cramjam
import engine
import lz4.frame
import numpy as np
import zstandard
from measure import Digest, Row, compare

import segmentlog
from segmentlog.format.kernels import layout
from segmentlog.format.records.decoder import BatchScanner

__all__ = ["against_codec"]

_MOST_BYTES = 64 << 20  # that a batch inflates to
_XERIAL_MAGIC, _XERIAL_HEADER_BYTES = b"\x82SNAPPY\0", 16
_GZIP_WINDOW_BITS = 31


def _zstd() -> Callable[[bytes], int]:
    context, target = zstandard.ZstdDecompressor(), memoryview(bytearray(_MOST_BYTES))

    def inflate(payload: bytes) -> int:
        with context.stream_reader(payload) as reader:
            return reader.readinto(target)

    return inflate


def _snappy() -> Callable[[bytes], int]:
    target = np.empty(_MOST_BYTES, np.uint8)

    def blocks(payload: bytes) -> Iterator[bytes]:
        if not payload.startswith(_XERIAL_MAGIC):
            yield payload
            return
        at = _XERIAL_HEADER_BYTES
        while at < len(payload):
            size = int.from_bytes(payload[at : at + 4], "big")
            yield payload[at + 4 : at + 4 + size]
            at += 4 + size

    return lambda payload: sum(
        cramjam.snappy.decompress_raw_into(block, target.data) for block in blocks(payload)
    )


#: By codec, a function that makes one that inflates a batch and returns its size.
_INFLATERS: dict[str, Callable[[], Callable[[bytes], int]]] = {
    "lz4": lambda: lambda payload: len(lz4.frame.decompress(payload)),
    "zstd": _zstd,
    "snappy": _snappy,
    "gzip": lambda: lambda payload: len(zlib.decompress(payload, _GZIP_WINDOW_BITS)),
}


def against_codec(name: str, log: segmentlog.Log, goal: str, rounds: int) -> Row:
    """Decode compressed batches, against the codec alone plus the roofline."""
    data = engine.load(log)
    known = engine.decode(data)
    payloads, inflate = _payloads(data), _INFLATERS[name]()
    # Written, not `zeros`: those are all one page in the cache, and copied twice as quickly.
    inflated = np.full(sum(map(inflate, payloads)), 1, np.uint8)

    def timed(run: Callable[[], object]) -> Callable[[], Digest]:
        return lambda: (run(), known)[1]

    results = compare(
        {
            "decode": lambda: engine.decode(data),
            "codec": timed(lambda: sum(map(inflate, payloads))),
            "memcpy": timed(lambda: engine.copy(inflated)),
            "crc": timed(lambda: engine.checksum(data)),
        },
        rounds,
    )
    codec, decode = results["codec"].median, results["decode"]
    bound = codec + results["memcpy"].median + results["crc"].median
    detail = (
        f"{known[0] / decode.median / 1e6:.0f} M records/s; {known[0]:,} rows; "
        f"±{decode.spread:.0%}; bound by the codec: called from Python, it alone takes "
        f"{codec / decode.median:.0%} of the time"
    )
    against = f"{name} alone + memcpy of what it inflates to + CRC-32C"
    return Row(f"decode {name}, one core", against, goal, f"{bound / decode.median:.2f}", detail)


def _payloads(data: np.ndarray) -> list[bytes]:
    """The compressed records of every batch; a client may leave a small batch uncompressed."""
    scanner = BatchScanner("memory", 0)
    payloads, at = [], 0
    while at < len(data):
        batches = scanner.scan(data, at, len(data), 0)
        at, headers = batches.end, batches.headers
        compressed = headers[headers[:, layout.ATTRIBUTES] & layout.CODEC_MASK != 0]
        bounds = compressed[:, layout.RECORDS_START : layout.RECORDS_END + 1].tolist()
        payloads += [data[start:end].tobytes() for start, end in bounds]
    return payloads
