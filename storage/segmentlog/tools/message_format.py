r"""Records as bytes, in the formats of kcat (https://github.com/edenhill/kcat).

kcat's ``format.c`` and ``json.c`` set the rules: the tokens of ``-f``, what ``-Z`` replaces, the
fields of ``-J`` and the characters that ``-J`` escapes.  Keys and values are written as they are,
whatever their bytes.  One difference: ``\0`` in a format is a byte of zero here, and ends the text
in kcat.

A batch of rows becomes one buffer: the parts of the lines are columns, and Arrow joins them.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from segmentlog.arguments import LARGEST_INT
from segmentlog.errors import OptionError
from segmentlog.format.records.columns import where
from segmentlog.model import TimestampType, TopicPartition
from segmentlog.tools.aborted import ABORTED
from segmentlog.tools.decoded import CAUSE_OF

_BYTES = pa.large_binary()  # a line may have a value several times, and escapes are longer
_NULL = b"NULL"

_ESCAPE = re.compile(r"\\(?:(?:0[xX]|x)([0-9a-fA-F]+)|([0-9]+)|(.))", re.DOTALL)
_LETTERS = {"t": b"\t", "n": b"\n", "r": b"\r"}

#: The column of a scan that each token of a format needs.
_COLUMN_OF = {
    "s": "value",
    "S": "value",
    "R": "value",
    "k": "key",
    "K": "key",
    "o": "offset",
    "T": "timestamp",
    "h": "headers",
    "t": "",
    "p": "",
}

#: Escapes of ``yajl_gen_string``; other characters below the blank are ``\u00XX``.
_JSON_ESCAPES = {
    b"\\": rb"\\",
    b'"': rb"\"",
    b"\r": rb"\r",
    b"\n": rb"\n",
    b"\t": rb"\t",
    b"\f": rb"\f",
    b"\b": rb"\b",
}
_OTHER_CONTROLS = [bytes([code]) for code in range(32) if bytes([code]) not in _JSON_ESCAPES]


def unescaped(text: str) -> bytes:
    r"""The bytes of a delimiter, or of text in a format: ``\n``, ``\t``, ``\r``, ``\x1f``, ``\0``.

    A backslash before any other character stands for that character.  A number is hexadecimal
    after ``x`` or ``0x``, and otherwise decimal, or octal if it begins with 0, as for C's
    ``strtoul``.
    """
    found, at = b"", 0
    for match in _ESCAPE.finditer(text):
        found += _encoded(text[at : match.start()])
        at = match.end()
        hexadecimal, digits, letter = match.groups()
        if letter is not None:
            found += _LETTERS.get(letter, _encoded(letter))
            continue
        if hexadecimal is not None:
            number = int(hexadecimal, 16)
        elif digits.startswith("0"):
            octal = re.match(r"[0-7]+", digits)
            number, rest = int(octal[0], 8) if octal else 0, digits[octal.end() :] if octal else ""
            found += bytes([number & 0xFF]) + rest.encode()
            continue
        else:
            number = int(digits)
        found += bytes([number & 0xFF])
    return found + _encoded(text[at:])


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


#: Numbers of a pack string, as kcat and Python's `struct` name them, and their types in NumPy.
_PACKED = {"b": "i1", "B": "u1", "h": "i2", "H": "u2", "i": "i4", "I": "u4", "q": "i8", "Q": "u8"}


class Pack:
    """Keys or values as text, by a pack string of kcat's ``-s``: ``q``, ``<iH``, ``h s``.

    Numbers are big-endian unless ``<`` comes before them; ``c`` is a character, ``s`` the rest as
    it is, a blank a blank, and ``$`` the end, where no byte may be left.
    """

    def __init__(self, text: str) -> None:
        self._text, self._order, self._is_whole = text, ">", text.endswith("$")
        self._parts: list[bytes | tuple[str, int]] = []  # types, and the bytes where they begin
        self.n_bytes = 0
        for at, token in enumerate(text):
            is_last = at + 1 == len(text.removesuffix("$"))
            if token in "<>":
                self._order = token
            elif token == " ":
                self._parts.append(b" ")
            elif token in _PACKED or token == "c":
                kind = self._order + _PACKED.get(token, "S1")
                self._parts.append((kind, self.n_bytes))
                self.n_bytes += np.dtype(kind).itemsize
            elif token == "s" and is_last:
                self._parts.append(("rest", self.n_bytes))
            elif not (token == "$" and at + 1 == len(text)):
                accepted = (
                    "numbers are b B h H i I q Q, after < or > for their byte order; c is a "
                    "character, s the rest and $ the end (values of Avro: --decode)"
                )
                raise OptionError("-s", text, accepted)

    @classmethod
    def of(cls, given: Sequence[str]) -> "dict[str, Pack]":
        """Packs of keys and values from ``key=…``, ``value=…`` or one for both.

        Raises `OptionError` if one cannot be read.
        """
        found: dict[str, Pack] = {}
        for each in given:
            name, sign, text = each.partition("=")
            names = [name] if sign and name in {"key", "value"} else ["key", "value"]
            found |= dict.fromkeys(names, cls(text if len(names) == 1 else each))
        return found

    def texts(self, rows: pa.RecordBatch, name: str) -> pa.Array:
        """The texts of a column; those of keys and values without bytes are empty, as in kcat.

        Raises `OptionError` if a key or value has other bytes than the pack string takes.
        """
        given = rows.column(name).cast(_BYTES)
        column = where(
            pc.fill_null(pc.greater(pc.binary_length(given), 0), fill_value=False),
            given,
            pa.scalar(None, _BYTES),
        )
        lengths = pc.fill_null(pc.binary_length(column), self.n_bytes).to_numpy()
        is_open = ("rest", self.n_bytes) in self._parts or not self._is_whole
        wrong = lengths < self.n_bytes if is_open else lengths != self.n_bytes
        if wrong.any():
            row = int(wrong.argmax())
            accepted = (
                f"the {name} of the record at offset {rows.column('offset')[row]} has "
                f"{lengths[row]} bytes, and this takes {'' if is_open else 'exactly '}"
                f"{self.n_bytes}"
            )
            raise OptionError("-s", self._text, accepted)
        parts = [
            each if isinstance(each, bytes) else _unpacked(column, *each) for each in self._parts
        ]
        texts = _row_by_row(*(parts or [b""]), pa.array([b""] * len(column), _BYTES))
        return pc.if_else(column.is_valid(), texts, given)


def _unpacked(column: pa.Array, kind: str, begin: int) -> pa.Array:
    """The texts of numbers, or of bytes, that values have from a byte on."""
    if kind == "rest":  # without an end, pyarrow counts beyond 64 bits, and fails for two values
        return pc.binary_slice(column, begin, LARGEST_INT)
    size = np.dtype(kind).itemsize
    cells = pc.fill_null(pc.binary_slice(column, begin, begin + size), bytes(size))
    if kind.endswith("S1"):
        return cells
    _, ends, data = cells.buffers()
    first = int(np.frombuffer(ends, np.int64)[cells.offset])
    numbers = np.frombuffer(data, kind, len(cells), first) if len(cells) else np.empty(0, kind)
    return _numbers(pa.array(numbers.astype(kind[1:])))


class TextFormat:
    """Lines by a format of kcat's ``-f``.

    `parts`: bytes as they are, and tokens as one letter.  `shows_null`: whether keys and values
    without bytes are ``NULL`` (``-Z``).  `columns`: the columns of a scan that the rows need.
    """

    def __init__(self, parts: Sequence[bytes | str], *, shows_null: bool) -> None:
        self.packs: Mapping[str, Pack] = {}  # of keys and values that are shown as numbers
        self._parts = parts
        self._shows_null = shows_null
        wanted = {_COLUMN_OF[part] for part in parts if isinstance(part, str)} - {""}
        self.columns = sorted({"offset", *wanted})

    @classmethod
    def parse(cls, text: str, *, shows_null: bool) -> "TextFormat":
        r"""The format that `text` describes, such as ``%t [%p] at %o: %s\\n``.

        Raises `OptionError` if a token is not one of kcat's.
        """
        parts: list[bytes | str] = []
        for found in re.finditer(r"%(.?)|[^%]+", text, re.DOTALL):
            token = found[1]
            if token is None:
                parts.append(unescaped(found[0]))
            elif token == "%":
                parts.append(b"%")
            elif token in _COLUMN_OF:
                parts.append(token)
            else:
                accepted = "tokens are %s %S %R %k %K %T %h %t %p %o, and %% for a percent sign"
                raise OptionError("--format", f"%{token}", accepted)
        return cls(parts, shows_null=shows_null)

    @classmethod
    def delimited(
        cls, key_delimiter: bytes | None, delimiter: bytes, *, shows_null: bool
    ) -> "TextFormat":
        """The format of kcat without ``-f``: the value, after the key if it has a delimiter."""
        key: list[bytes | str] = [] if key_delimiter is None else ["k", key_delimiter]
        return cls([*key, "s", delimiter], shows_null=shows_null)

    def render(self, rows: pa.RecordBatch, topic_partition: TopicPartition) -> memoryview:
        """The lines of `rows`, one after the other."""
        columns = [
            part if isinstance(part, bytes) else self._token(part, rows, topic_partition)
            for part in self._parts
        ]
        return _joined(columns, rows.num_rows)

    def _token(self, token: str, rows: pa.RecordBatch, at: TopicPartition) -> "_Part":
        match token:
            case "t":
                return at.topic.encode()
            case "p":
                return str(at.partition).encode()
            case "o":
                return _numbers(rows.column("offset"))
            case "T":
                return _numbers(rows.column("timestamp"))
            case "h":
                return _headers_as_text(rows.column("headers"))
            case "k" | "s":
                name = _COLUMN_OF[token]
                column = _shown_column(rows, name, self.packs)
                if CAUSE_OF[name] in rows.schema.names:
                    causes = rows.column(CAUSE_OF[name]).cast(_BYTES)
                    marked = _row_by_row(b"(undecodable: ", causes, b") ", column)
                    column = pc.if_else(causes.is_valid(), marked, column)
                if not self._shows_null:
                    return column
                # NULL also for no bytes: kcat compares lengths
                has_bytes = pc.fill_null(pc.greater(pc.binary_length(column), 0), fill_value=False)
                return where(has_bytes, column, pa.scalar(_NULL, _BYTES))
        lengths = pc.fill_null(pc.binary_length(rows.column(_COLUMN_OF[token])), -1)
        if token == "R":
            big_endian = lengths.to_numpy(zero_copy_only=False).astype(">i4")
            fixed = pa.Array.from_buffers(
                pa.binary(4), len(big_endian), [None, pa.py_buffer(big_endian)]
            )
            return fixed.cast(_BYTES)
        return _numbers(lengths)


class JsonFormat:
    """A JSON object for each record, as kcat's ``-J`` writes it.

    `broker`: the id of the broker that the directory belongs to, or -1.
    """

    #: the columns of a scan that the rows need
    columns: Sequence[str] = ("key", "value", "offset", "timestamp", "timestampType", "headers")

    def __init__(self, delimiter: bytes, broker: int) -> None:
        self.packs: Mapping[str, Pack] = {}
        self._delimiter = delimiter
        self._broker = broker

    def render(self, rows: pa.RecordBatch, topic_partition: TopicPartition) -> memoryview:
        """The objects of `rows`, one after the other."""
        topic, partition = topic_partition
        lines: list[_Part] = [
            f'{{"topic":"{topic}","partition":{partition},"offset":'.encode(),
            _numbers(rows.column("offset")),
        ]
        kind = _TIMESTAMP_TYPES.get(
            rows.column("timestampType")[0].as_py() if rows.num_rows else 0
        )
        if kind is not None:
            lines += [f',"tstype":"{kind}","ts":'.encode(), _numbers(rows.column("timestamp"))]
        lines += [f',"broker":{self._broker}'.encode(), _headers_as_json(rows.column("headers"))]
        for name, field in (("key", "key"), ("value", "payload")):
            shown = _quoted(_shown_column(rows, name, self.packs))
            if CAUSE_OF[name] in rows.schema.names:
                shown = self._decoded(rows, name, field, shown)
            lines += [f',"{field}":'.encode(), shown]
        if ABORTED in rows.schema.names:
            mark, nothing = (pa.scalar(each, _BYTES) for each in (b',"aborted":true', b""))
            lines.append(pc.if_else(rows.column(ABORTED), mark, nothing))
        return _joined([*lines, b"}", self._delimiter], rows.num_rows)

    def _decoded(self, rows: pa.RecordBatch, name: str, field: str, quoted: pa.Array) -> pa.Array:
        """Values of JSON; text, and a field with the cause, where there is one."""
        causes = rows.column(CAUSE_OF[name]).cast(_BYTES)
        plain = pc.fill_null(rows.column(name).cast(_BYTES), b"null")
        marked = _row_by_row(quoted, f',"{field}_undecodable":'.encode(), _quoted(causes))
        return pc.if_else(causes.is_valid(), marked, plain)


MessageFormat: TypeAlias = TextFormat | JsonFormat
_Part: TypeAlias = "bytes | pa.Array"

_TIMESTAMP_TYPES: Mapping[int, str] = {
    TimestampType.CREATE_TIME: "create",
    TimestampType.LOG_APPEND_TIME: "logappend",
}


def _joined(parts: Sequence[_Part], n_rows: int) -> memoryview:
    """The bytes of all rows, each the parts one after the other."""
    if not any(isinstance(part, pa.Array) for part in parts):
        return memoryview(b"".join(part for part in parts if isinstance(part, bytes)) * n_rows)
    column = _row_by_row(*parts)
    _, ends, data = column.buffers()
    last = int(np.frombuffer(ends, np.int64)[column.offset + len(column)]) if len(column) else 0
    return memoryview(data)[:last] if data is not None else memoryview(b"")


def _row_by_row(*parts: _Part, null_handling: str = "replace") -> pa.Array:
    """The parts of each row as one value."""
    given = [pa.scalar(each, _BYTES) if isinstance(each, bytes) else each for each in parts]
    empty = pa.scalar(b"", _BYTES)
    return pc.binary_join_element_wise(*given, empty, null_handling=null_handling)


def _shown_column(rows: pa.RecordBatch, name: str, packs: Mapping[str, Pack]) -> pa.Array:
    return packs[name].texts(rows, name) if name in packs else rows.column(name).cast(_BYTES)


def _numbers(column: pa.Array) -> pa.Array:
    return column.cast(pa.large_string()).cast(_BYTES)


def _pairs_of(headers: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Names and values of all headers, and how many each row has."""
    counts = pc.fill_null(pc.list_value_length(headers), 0)
    pairs = headers.flatten()
    return pairs.field("key").cast(_BYTES), pairs.field("value").cast(_BYTES), counts


def _by_row(pairs: pa.Array, counts: pa.Array) -> pa.Array:
    """The headers of each row, with commas between them; empty without headers."""
    ends = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts.to_numpy(zero_copy_only=False), out=ends[1:])
    return pc.binary_join(pa.LargeListArray.from_arrays(ends, pairs), pa.scalar(b",", _BYTES))


def _headers_as_text(headers: pa.Array) -> pa.Array:
    """``name=value,name=NULL``; kcat writes a value up to its first byte of zero."""
    names, values, counts = _pairs_of(headers)
    shown = pc.replace_substring_regex(values, rb"(?s)\x00.*", b"")
    return _by_row(_row_by_row(names, b"=", pc.fill_null(shown, _NULL)), counts)


def _headers_as_json(headers: pa.Array) -> pa.Array:
    """``,"headers":["name","value"]``, and nothing for a record without headers."""
    names, values, counts = _pairs_of(headers)
    lists = _by_row(_row_by_row(_quoted(names), b",", _quoted(values)), counts)
    shown = _row_by_row(b',"headers":[', lists, b"]")
    return where(pc.greater(counts, 0), shown, pa.scalar(b"", _BYTES))


def _quoted(column: pa.Array) -> pa.Array:
    """JSON texts, or null; bytes beyond ASCII stay as they are."""
    column = column.cast(_BYTES)
    if pc.any(pc.match_substring_regex(column, rb'["\\\x00-\x1f]')).as_py():
        for plain, escape in _JSON_ESCAPES.items():
            column = pc.replace_substring(column, plain, escape)
        if pc.any(pc.match_substring_regex(column, rb"[\x00-\x1f]")).as_py():
            for plain in _OTHER_CONTROLS:
                column = pc.replace_substring(column, plain, b"\\u%04X" % plain[0])
    return pc.fill_null(_row_by_row(b'"', column, b'"', null_handling="emit_null"), b"null")
