"""Inflate one batch inside a kernel, by functions of the C libraries of LZ4 and zstd.

A kernel gets addresses of these functions, and calls them without the interpreter.  The
caller leaves what they refuse to `segmentlog.format.records.compression`, which names the fault.
"""

from segmentlog.format.kernels import layout
from segmentlog.format.kernels import status as st
from segmentlog.format.kernels.memory import (
    COPY_SLACK,
    Bytes,
    Int64s,
    call_5,
    call_6,
    load_u8,
    load_u32,
)
from segmentlog.native import internal

# The int64 array of addresses; the last two items are for sizes that a function reads and writes.
LZ4_DECOMPRESS = 0  #: ``LZ4F_decompress``; 0 before the library is asked for it
LZ4_CONTEXT = 1  #: from ``LZ4F_createDecompressionContext``
LZ4_RESET = 2  #: ``LZ4F_resetDecompressionContext``
ZSTD_DECOMPRESS = 3  #: ``ZSTD_decompressDCtx``; 0 before the library is asked for it
ZSTD_CONTEXT = 4  #: from ``ZSTD_createDCtx``
TARGET_SIZE, SOURCE_SIZE = 5, 6
N_CODEC_COLUMNS = 7

#: Instead of an address, for a function that no library has.
UNAVAILABLE = -1

_LZ4, _ZSTD = 3, 4
_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_SINGLE_SEGMENT = 0x20
#: The byte of a window of 128 MiB (RFC 8878, 3.1.1), the most that
#: `segmentlog.format.records.compression` allows.
_ZSTD_LARGEST_WINDOW = 17 << 3
_ZSTD_TARGET_TOO_SMALL = -70
_ZSTD_LEAST_BYTES = 6


@internal
def _inflate_lz4(
    buf: Bytes, start: int, end: int, codecs: Int64s, scratch: Bytes, limit: int
) -> tuple[int, int]:
    """`inflate` for LZ4 frames, of which there may be several."""
    at, to = start, 0
    target, source, sizes = scratch.ctypes.data, buf.ctypes.data, codecs.ctypes.data
    while True:
        codecs[TARGET_SIZE], codecs[SOURCE_SIZE] = limit - to, end - at
        hint = call_6(
            codecs[LZ4_DECOMPRESS],
            codecs[LZ4_CONTEXT],
            target + to,
            sizes + 8 * TARGET_SIZE,
            source + at,
            sizes + 8 * SOURCE_SIZE,
            0,
        )
        n_written, n_read = codecs[TARGET_SIZE], codecs[SOURCE_SIZE]
        to += n_written
        at += n_read
        if hint == 0 and at == end:
            return st.OK, to
        if hint < 0 or (hint != 0 and at == end) or (n_written == 0 and n_read == 0):
            call_5(codecs[LZ4_RESET], codecs[LZ4_CONTEXT], 0, 0, 0, 0)
            return st.SCRATCH_FULL if hint >= 0 and to == limit else st.UNUSUAL, 0


@internal
def _inflate_zstd(
    buf: Bytes, start: int, end: int, codecs: Int64s, scratch: Bytes, limit: int
) -> tuple[int, int]:
    """`inflate` for zstd frames."""
    if start + _ZSTD_LEAST_BYTES > end or load_u32(buf, start) != _ZSTD_MAGIC:
        return st.UNUSUAL, 0
    has_window = load_u8(buf, start + 4) & _ZSTD_SINGLE_SEGMENT == 0
    if has_window and load_u8(buf, start + 5) > _ZSTD_LARGEST_WINDOW:
        return st.UNUSUAL, 0
    n_written = call_5(
        codecs[ZSTD_DECOMPRESS],
        codecs[ZSTD_CONTEXT],
        scratch.ctypes.data,
        limit,
        buf.ctypes.data + start,
        end - start,
    )
    if n_written < 0:
        return st.SCRATCH_FULL if n_written == _ZSTD_TARGET_TOO_SMALL else st.UNUSUAL, 0
    return st.OK, n_written


@internal
def inflate(
    buf: Bytes,
    start: int,
    end: int,
    attributes: int,
    most_bytes: int,
    codecs: Int64s,
    scratch: Bytes,
) -> tuple[int, int]:
    """Inflate the records of one batch to the front of `scratch`.

    Parameters
    ----------
    buf : uint8 array; read only
    start, end : half-open byte range of the records; checked by the caller
    attributes : of the batch
    most_bytes : that a batch may inflate to
    codecs : int64 array, shape (`N_CODEC_COLUMNS`,); the addresses, and working memory
    scratch : uint8 array with `COPY_SLACK` bytes after its capacity; written

    Returns
    -------
    status : `OK`; `CODEC_NEEDED` if the functions were not asked for; `SCRATCH_FULL` if there is
        not enough room; `UNUSUAL`
    n_bytes : written
    """
    codec = attributes & layout.CODEC_MASK
    limit = min(scratch.shape[0] - COPY_SLACK, most_bytes)
    if codec == _LZ4:
        if codecs[LZ4_DECOMPRESS] > 0:
            return _inflate_lz4(buf, start, end, codecs, scratch, limit)
        return st.UNUSUAL if codecs[LZ4_DECOMPRESS] != 0 else st.CODEC_NEEDED, 0
    if codec == _ZSTD:
        if codecs[ZSTD_DECOMPRESS] > 0:
            return _inflate_zstd(buf, start, end, codecs, scratch, limit)
        return st.UNUSUAL if codecs[ZSTD_DECOMPRESS] != 0 else st.CODEC_NEEDED, 0
    return st.UNUSUAL, 0
