r"""Bytes and names from a log, as text that is safe to print.

The text of a log is chosen by anyone who can write to the topic.  Escape sequences move a
terminal's cursor and set its title, bidirectional controls show text in another order, and line
breaks forge lines.  So each unprintable character is written as its escape: ``\x1b``, ``\u202e``.
"""

import base64
import json
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache, lru_cache

#: Code points of ``surrogateescape`` for bytes that are not UTF-8.
_FIRST_BYTE, _LAST_BYTE = 0xDC80, 0xDCFF

_BEYOND_BMP = 0x10000
_MOST_ESCAPES = 1 << 12  #: kept in memory


class Encoding(StrEnum):
    """Encoding of keys and values in the output."""

    TEXT = "text"  #: UTF-8; other bytes as their escapes
    HEX = "hex"
    BASE64 = "base64"


@cache
def _unprintable() -> re.Pattern[str]:
    """Matches characters of categories C* and Z*, except the blank, and all beyond 16 bits.

    `re` finds characters of 16 bits in a table, but compares each character with all ranges beyond
    16 bits, which are hundreds if each is named: a line of binary data took six times as long.
    """
    ranges: list[list[int]] = []
    for code in range(_BEYOND_BMP):
        if not chr(code).isprintable():
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    ranges.append([_BEYOND_BMP, 0x10FFFF])
    return re.compile("[" + "".join(f"\\U{a:08x}-\\U{b:08x}" for a, b in ranges) + "]")


def escape(text: str) -> str:
    r"""`text` with a backslash escape for each character that is not printable, and ``\\``."""
    text = text.replace("\\", "\\\\")
    if text.isprintable():
        return text
    return _unprintable().sub(lambda match: _escape_one(match[0]), text)


def escape_in_quotes(text: str) -> str:
    r"""`text` as `escape` writes it, to stand in single quotes."""
    return escape(text).replace("'", "\\'")


def printable(text: str) -> str:
    """`text` as `escape` writes it, with its lines, tabs and backslashes as they are."""
    return _unprintable().sub(
        lambda match: match[0] if match[0] in "\n\t" else _escape_one(match[0]), text
    )


@lru_cache(_MOST_ESCAPES)
def _escape_one(char: str) -> str:
    r"""``\x1b`` for ASCII and for bytes that are not a character, ``\u202e`` for the rest."""
    code = ord(char)
    if char.isprintable():
        return char
    if _FIRST_BYTE <= code <= _LAST_BYTE:
        return f"\\x{code & 0xFF:02x}"
    if code < 0x80:
        return char.encode("unicode_escape").decode("ascii")
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def to_json(row: Mapping[str, object]) -> str:
    """One line of JSON; unprintable characters are escaped even if JSON does not require it."""
    return escape_json(json.dumps(row, ensure_ascii=False, separators=(", ", ": ")))


def escape_json(line: str) -> str:
    r"""`line` of valid JSON with ``\u202e`` for each character that is not printable."""
    if line.isprintable():
        return line
    return _unprintable().sub(lambda match: _escape_in_json(match[0]), line)


@lru_cache(_MOST_ESCAPES)
def _escape_in_json(char: str) -> str:
    if char.isprintable():
        return char
    if _FIRST_BYTE <= ord(char) <= _LAST_BYTE:
        return f"\\\\x{ord(char) & 0xFF:02x}"
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))


def encoder(encoding: Encoding) -> Callable[[bytes], str]:
    """The function from bytes to text by `encoding`; `escape` or `to_json` makes it printable."""
    match encoding:
        case Encoding.TEXT:
            return as_text
        case Encoding.HEX:
            return bytes.hex
        case Encoding.BASE64:
            return lambda data: base64.b64encode(data).decode("ascii")


def as_text(data: bytes) -> str:
    """Text from which bytes that are not UTF-8 can be shown."""
    return data.decode("utf-8", "surrogateescape")
