r"""Bytes and names from a log, as text that is safe to print.

The text of a log is chosen by anyone who can write to the topic.  Escape sequences move a
terminal's cursor and set its title, bidirectional controls show text in another order, and line
breaks forge lines.  So each unprintable character is written as its escape: ``\x1b``, ``\u202e``.
"""

import base64
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cache, lru_cache
from typing import NamedTuple

from segmentlog.store.paths import readable_path
from segmentlog.store.readable import is_file
from segmentlog.store.remote.location import is_url, without_options

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


def json_fields(value: NamedTuple) -> dict[str, object]:
    """The fields of a result under their names in JSON; -1 and an empty text are null."""
    fields: dict[str, object] = {}
    for name, found in value._asdict().items():
        first, *others = name.removeprefix("n_").split("_")
        unknown = found == "" or (isinstance(found, int) and found == -1)
        fields[first + "".join(map(str.capitalize, others))] = None if unknown else found
    return fields


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


_SINGULARS = {"batches": "batch", "entries": "entry"}


def counted(**counts: int) -> str:
    """``2 partitions, 1 segment``."""
    shown = []
    for name, n in counts.items():
        singular = _SINGULARS.get(name, name.removesuffix("s"))
        shown.append(f"{n:,} {singular if n == 1 else name}")
    return ", ".join(shown)


def as_given(file: str, paths: Sequence[str]) -> str:
    """Path of `file`, below or beside one of `paths`, with the beginning that the user wrote.

    At a URL, it is the path without options.
    """
    if is_url(file):
        return without_options(file)
    for given in paths:
        begin, root = given, readable_path(given)
        if is_file(root):
            begin, root = os.path.dirname(begin), os.path.dirname(root)
        below = os.path.relpath(file, root)
        if below == os.curdir:
            return begin
        if below.partition(os.sep)[0] != os.pardir:
            return os.path.join(begin, below)
    return file


def aligned(heading: Iterable[str], rows: Iterable[Iterable[str]], right: Iterable[bool]) -> str:
    """Columns as wide as their widest cell, with two blanks between them; for pipes.

    `right`: for each column, whether it is aligned to the right, as numbers are.
    """
    lines = [list(heading), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    sides = list(right)
    return "".join(
        "  ".join(
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(line, widths, sides, strict=True)
        ).rstrip()
        + "\n"
        for line in lines
    )
