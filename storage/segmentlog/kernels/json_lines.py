"""Records as lines of JSON, whose strings are safe to print.

The bytes are equal to those of `segmentlog.tools.text.to_json` for the row of a record, which
takes 20 us a record with `json` and a regular expression.

Little is inlined by force: with forced inlining, compiling this module took four times as long.
"""

from typing import NamedTuple

import numpy as np

from segmentlog.kernels._jit import inlined, kernel
from segmentlog.kernels.memory import Bytes, Int32s, Int64s

__all__ = [
    "BASE64",
    "HEX",
    "MOST_FOR_A_BYTE",
    "MOST_FOR_A_NUMBER",
    "TEXT",
    "Binary",
    "write_lines",
]

TEXT, HEX, BASE64 = 0, 1, 2  #: how bytes are written

#: Bytes of JSON for a control character (``\\u0007``), and for a number with a sign.
MOST_FOR_A_BYTE, MOST_FOR_A_NUMBER = 6, 20

_TEN, _ONE = np.uint64(10), np.uint64(1)
_QUOTE, _BACKSLASH = 0x22, 0x5C
_SHORT = ((8, 0x62), (9, 0x74), (10, 0x6E), (12, 0x66), (13, 0x72))  # b, t, n, f, r

# Numbers of the pieces between values.
_N_NUMBERS = 5
_KEY, _HEADERS, _HEADER_KEY, _HEADER_END, _COMMA, _LINE_END = 5, 7, 8, 10, 11, 12


class Binary(NamedTuple):
    """Values of a column: `data` between two `ends` each, null where `valid` is 0."""

    ends: Int32s
    valid: Bytes
    data: Bytes


@kernel
def _piece(out: Bytes, at: int, pieces: Bytes, ends: Int64s, number: int) -> int:
    for i in range(ends[number], ends[number + 1]):
        out[at] = pieces[i]
        at += 1
    return at


@kernel
def _number(out: Bytes, at: int, number: int) -> int:
    if number < 0:
        out[at] = 0x2D
        at += 1
        left = np.uint64(-(number + 1)) + _ONE
    else:
        left = np.uint64(number)
    end, rest = at + 1, left // _TEN
    while rest:
        end += 1
        rest //= _TEN
    for i in range(end - 1, at - 1, -1):
        out[i] = 0x30 + int(left % _TEN)
        left //= _TEN
    return end


@inlined
def _hex_digit(number: int) -> int:
    return number + (0x30 if number < 10 else 0x57)


@kernel
def _unit(out: Bytes, at: int, code: int) -> int:
    """A unit of UTF-16 as its escape."""
    out[at], out[at + 1] = _BACKSLASH, 0x75
    for i in range(4):
        out[at + 2 + i] = _hex_digit((code >> (12 - 4 * i)) & 15)
    return at + 6


@kernel
def _ascii(out: Bytes, at: int, byte: int) -> int:
    """A character that does not stand for itself in JSON, or on a terminal."""
    short = byte if byte in (_QUOTE, _BACKSLASH) else 0
    for code, letter in _SHORT:
        if byte == code:
            short = letter
    if short:
        out[at], out[at + 1] = _BACKSLASH, short
        return at + 2
    return _unit(out, at, byte)


@kernel
def _sequence_bytes(data: Bytes, i: int, end: int) -> int:
    """Length of the UTF-8 sequence at `i`, of two bytes or more; 0 if it is not valid."""
    first = int(data[i])
    n_bytes = 2 + (first >= 0xE0) + (first >= 0xF0)
    if first < 0xC2 or first > 0xF4 or i + n_bytes > end:
        return 0
    second = int(data[i + 1])
    least = 0xA0 if first == 0xE0 else 0x90 if first == 0xF0 else 0x80
    most = 0x9F if first == 0xED else 0x8F if first == 0xF4 else 0xBF
    if second < least or second > most:
        return 0
    for k in range(2, n_bytes):
        if int(data[i + k]) & 0xC0 != 0x80:
            return 0
    return n_bytes


@kernel
def _beyond_ascii(
    out: Bytes, at: int, data: Bytes, i: int, end: int, printable: Bytes
) -> tuple[int, int]:
    """Write a character of several bytes, or an invalid byte; return the next places in both."""
    n_bytes, first = _sequence_bytes(data, i, end), int(data[i])
    if not n_bytes:
        out[at], out[at + 1], out[at + 2] = _BACKSLASH, _BACKSLASH, 0x78
        out[at + 3], out[at + 4] = _hex_digit(first >> 4), _hex_digit(first & 15)
        return at + 5, i + 1
    code = first & (0x7F >> n_bytes)
    for k in range(1, n_bytes):
        code = (code << 6) | (int(data[i + k]) & 0x3F)
    if printable[code]:
        for k in range(n_bytes):
            out[at + k] = data[i + k]
        at += n_bytes
    elif code < 0x10000:
        at = _unit(out, at, code)
    else:
        at = _unit(out, at, 0xD800 + ((code - 0x10000) >> 10))
        at = _unit(out, at, 0xDC00 + ((code - 0x10000) & 0x3FF))
    return at, i + n_bytes


@kernel
def _text(out: Bytes, at: int, data: Bytes, start: int, end: int, printable: Bytes) -> int:
    i = start
    while i < end:
        byte = int(data[i])
        if 0x20 <= byte < 0x7F and byte not in (_QUOTE, _BACKSLASH):
            out[at] = byte
            at += 1
            i += 1
        elif byte < 0x80:
            at = _ascii(out, at, byte)
            i += 1
        else:
            at, i = _beyond_ascii(out, at, data, i, end, printable)
    return at


@kernel
def _hex(out: Bytes, at: int, data: Bytes, start: int, end: int) -> int:
    for i in range(start, end):
        byte = int(data[i])
        out[at], out[at + 1] = _hex_digit(byte >> 4), _hex_digit(byte & 15)
        at += 2
    return at


@inlined
def _base64_digit(number: int) -> int:
    if number < 52:
        return number + (0x41 if number < 26 else 0x47)
    if number < 62:
        return number - 4
    return 0x2B if number == 62 else 0x2F


@kernel
def _base64(out: Bytes, at: int, data: Bytes, start: int, end: int) -> int:
    for i in range(start, end, 3):
        word, n_bytes = 0, min(3, end - i)
        for k in range(3):
            word = (word << 8) | (int(data[i + k]) if k < n_bytes else 0)
        for k in range(4):
            is_there = k <= n_bytes
            out[at + k] = _base64_digit((word >> (18 - 6 * k)) & 63) if is_there else 0x3D
        at += 4
    return at


@kernel
def _cell(
    out: Bytes,
    at: int,
    ends: Int32s,
    valid: Bytes,
    data: Bytes,
    row: int,
    how: int,
    printable: Bytes,
) -> int:
    """One value in quotes, or null."""
    if not valid[row]:
        out[at], out[at + 1], out[at + 2], out[at + 3] = 0x6E, 0x75, 0x6C, 0x6C
        return at + 4
    start, end = ends[row], ends[row + 1]
    out[at] = _QUOTE
    if how == TEXT:
        at = _text(out, at + 1, data, start, end, printable)
    elif how == HEX:
        at = _hex(out, at + 1, data, start, end)
    else:
        at = _base64(out, at + 1, data, start, end)
    out[at] = _QUOTE
    return at + 1


@kernel
def write_lines(
    out: Bytes,
    pieces: Bytes,
    ends: Int64s,
    numbers: Int64s,
    cells: tuple[Binary, Binary],
    header_ends: Int32s,
    headers: tuple[Binary, Binary],
    encodings: Int64s,
    printable: Bytes,
) -> int:
    """Write a line for each row; return the number of bytes.

    Parameters
    ----------
    out : uint8 array with room for all bytes, by `MOST_FOR_A_BYTE` and the like.
    pieces, ends : pieces of text that stand between values, one behind the other: before each
        number, before key and value, before the headers, before key and value of a header, behind
        these, between two headers, and at the end of the line.
    numbers : int64 array, shape (n_rows, 5): offset, timestamp, sizes of key and value, sequence.
    cells : keys and values of the rows.
    header_ends : int32 array, shape (n_rows + 1,): headers of each row.
    headers : keys and values of all headers.
    encodings : of keys; of values; of keys of headers; of their values.
    printable : uint8 array, one item for each code point: whether it stands for itself.
    """
    at = 0
    for row in range(len(numbers)):
        for k in range(_N_NUMBERS):
            at = _number(out, _piece(out, at, pieces, ends, k), numbers[row, k])
        for k in range(2):
            at = _piece(out, at, pieces, ends, _KEY + k)
            cell = cells[k]
            at = _cell(out, at, cell.ends, cell.valid, cell.data, row, encodings[k], printable)
        at = _piece(out, at, pieces, ends, _HEADERS)
        for header in range(header_ends[row], header_ends[row + 1]):
            if header > header_ends[row]:
                at = _piece(out, at, pieces, ends, _COMMA)
            for k in range(2):
                at = _piece(out, at, pieces, ends, _HEADER_KEY + k)
                cell = headers[k]
                at = _cell(
                    out, at, cell.ends, cell.valid, cell.data, header, encodings[2 + k], printable
                )
            at = _piece(out, at, pieces, ends, _HEADER_END)
        at = _piece(out, at, pieces, ends, _LINE_END)
    return at
