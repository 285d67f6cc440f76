"""The formats of keys and values, by their bytes alone."""

from segmentlog.format.kernels import layout
from segmentlog.format.kernels.memory import Bytes, Int64s, load_u8
from segmentlog.format.kernels.source import BinaryArrays, length_of
from segmentlog.native import internal, kernel

REGISTRY = 0  #: begins as the id of a schema
JSON = 1  #: text that begins and ends as an object or an array
TEXT = 2  #: UTF-8 without control characters other than tabs and ends of lines
COMPRESSED = 3  #: begins as gzip, zstd or LZ4
BINARY = 4
N_FORMATS = 5


@internal
def _is_text(buf: Bytes, at: int, end: int) -> bool:
    while at < end:
        first = load_u8(buf, at)
        at += 1
        if first < 0x80:
            if first < 0x20 and first != 0x09 and first != 0x0A and first != 0x0D:
                return False
            continue
        # The bounds of the second byte leave out overlong forms, surrogates, and what is above
        # the last code point (the Unicode standard, table 3-7).
        low, high, n_more = 0x80, 0xBF, 1
        if 0xE0 <= first <= 0xEF:
            n_more = 2
            low = 0xA0 if first == 0xE0 else 0x80
            high = 0x9F if first == 0xED else 0xBF
        elif 0xF0 <= first <= 0xF4:
            n_more = 3
            low = 0x90 if first == 0xF0 else 0x80
            high = 0x8F if first == 0xF4 else 0xBF
        elif not 0xC2 <= first <= 0xDF:
            return False
        if at + n_more > end or not low <= load_u8(buf, at) <= high:
            return False
        for i in range(1, n_more):
            if not 0x80 <= load_u8(buf, at + i) <= 0xBF:
                return False
        at += n_more
    return True


@internal
def _format_of(buf: Bytes, at: int, end: int) -> int:
    length, first = end - at, load_u8(buf, at)
    if length >= layout.FRAME_BYTES and first == 0 and load_u8(buf, at + 1) < 0x80:
        return REGISTRY
    if _is_text(buf, at, end):
        # '{' and '}', or '[' and ']', differ by two.
        is_json = first in (0x5B, 0x7B) and load_u8(buf, end - 1) == first + 2
        return JSON if is_json else TEXT
    second = load_u8(buf, at + 1) if length > 1 else -1
    if first == 0x1F and second == 0x8B:
        return COMPRESSED
    if length >= 4:
        head = first << 24 | second << 16 | load_u8(buf, at + 2) << 8 | load_u8(buf, at + 3)
        if head in (0x28B52FFD, 0x04224D18):
            return COMPRESSED
    return BINARY


@kernel
def count_formats(column: BinaryArrays, counts: Int64s) -> None:
    """Count the values of each format; null and empty values have none.

    Parameters
    ----------
    column : read only
    counts : int64 array, shape (`N_FORMATS`,); added to
    """
    for row in range(column.ends.shape[0] - 1):
        length = length_of(column, row)
        if length > 0:
            start = int(column.ends[row])
            counts[_format_of(column.data, start, start + length)] += 1
