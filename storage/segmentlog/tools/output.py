r"""What commands write: lines of JSON, tables, names, numbers with their units, messages.

The text of a log is chosen by anyone who can write to the topic.  Escape sequences move a
terminal's cursor and set its title, bidirectional controls show text in another order, and line
breaks forge lines.  So each unprintable character is written as its escape: ``\x1b``, ``\u202e``.
"""

import base64
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cache, lru_cache
from typing import NamedTuple

from segmentlog.masking import with_plain_buckets
from segmentlog.store.paths import readable_path
from segmentlog.store.readable import is_file, is_url
from segmentlog.store.remote.location import without_options
from segmentlog.times import iso_time

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


_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_DURATIONS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"), (1, "ms"))


def byte_text(n_bytes: float) -> str:
    """``83.1 MB``: three digits, and a unit of 1000 bytes each."""
    for unit in _UNITS:
        if n_bytes < 999.5 or unit == _UNITS[-1]:
            break
        n_bytes /= 1000
    digits = 0 if unit == "B" and n_bytes == int(n_bytes) else max(0, 3 - len(str(int(n_bytes))))
    return f"{n_bytes:,.{digits}f} {unit}"


def percent(part: float) -> str:
    """``12 %``; parts that are near 0 or 1 never look as if they were."""
    if 0 < part < 0.001:
        return "<0.1 %"
    if 0.999 < part < 1:
        return ">99.9 %"
    return f"{part * 100:.1f} %" if 0 < part < 0.1 or 0.9 < part < 1 else f"{part * 100:.0f} %"


def count_text(count: int, error: float) -> str:
    """A count; if it has a relative error, after a ``~``, with the digits that it has."""
    if not error:
        return f"{count:,}"
    digits = max(len(str(count)) - 3, 0)
    return f"~{round(count, -digits):,}"


def duration_text(milliseconds: int) -> str:
    """``7 d`` or ``1.5 h``."""
    for size, unit in _DURATIONS:
        if abs(milliseconds) >= size:
            found = milliseconds / size
            return f"{found:,.0f} {unit}" if found == int(found) else f"{found:,.1f} {unit}"
    return "0 ms"


def write_json(row: Mapping[str, object]) -> None:
    """Write a line of JSON to standard output."""
    sys.stdout.write(f"{to_json(row)}\n")


def complain(message: str) -> None:
    """Write a line for people to standard error."""
    sys.stderr.write(f"segmentlog: {escape(with_plain_buckets(message))}\n")


def json_fields(value: NamedTuple) -> dict[str, object]:
    """The fields of a result under their names in JSON; -1 and an empty text are null."""
    fields: dict[str, object] = {}
    for name, found in value._asdict().items():
        first, *others = name.removeprefix("n_").split("_")
        unknown = found == "" or (isinstance(found, int) and found == -1)
        fields[first + "".join(map(str.capitalize, others))] = None if unknown else found
    return fields


_SINGULARS = {"batches": "batch", "entries": "entry"}


def counted(**counts: int) -> str:
    """``2 partitions, 1 segment``."""
    shown = []
    for name, n in counts.items():
        singular = _SINGULARS.get(name, name.removesuffix("s"))
        shown.append(f"{n:,} {singular if n == 1 else name}")
    return ", ".join(shown)


def cell(value: object) -> str:
    """A cell of a table; a dash if there is no value."""
    return "-" if value is None else escape(str(value))


def time_cell(time_ms: int | None) -> str:
    """A time without its milliseconds."""
    text = "-" if time_ms is None else iso_time(time_ms)
    return f"{text[: -len('.000Z')]}Z" if text.endswith("Z") else text


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


def as_given(file: str, paths: Sequence[str]) -> str:
    """Path of `file`, below or beside one of `paths`, with the beginning that the user wrote.

    At a URL, it is the path without options.
    """
    if is_url(file):
        return without_options(with_plain_buckets(file))
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
