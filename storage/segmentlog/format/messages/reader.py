"""Kafka's generated messages: their schemas, and a reader from bytes to a dict of the fields.

Schemas are parsed from the lines of `format.messages.lines`.  Every length and every count is
checked against the bytes that are left, so that no bytes ask for more memory than a fixed multiple
of their number.

Rules: ``MessageGenerator``, ``FieldSpec`` and ``Versions`` of Kafka's generator;
``ByteBufferAccessor``, ``ByteUtils``, ``MessageDataGenerator``, and KIP-482.
"""

import base64
import re
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from segmentlog.format.newer import LEFT, NewerFormatError, note

#: A default of ``null`` that Kafka's generator ignores; see `segmentlog.format.messages.lines`.
JSON_NULL = "<json null>"

_LATEST = 2**15 - 1
_TOKEN = re.compile(r"\s*(=<json null>|=[^\s,;}\]]+|#\d+|[\w()-]+\+?|[\[\]{}?,;:=])")
_VERSIONS = re.compile(r"v?(\d+)(?:-(\d+)|(\+))?")


class Versions(NamedTuple):
    """A range of versions; both ends belong to it."""

    least: int
    most: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.least <= version <= self.most


_EVERY = Versions(0, _LATEST)
_NONE = Versions(1, 0)


@dataclass(frozen=True)
class Field:
    """A field of a message or of a struct in it."""

    name: str  # as in Kafka's JSON
    column: str  # the name in snake case
    #: ``str``, ``bytes``, ``bool``, ``i8`` to ``i64``, ``u16``, ``f64``, ``uuid``, or ``struct``
    kind: str
    fields: tuple["Field", ...] = ()  # of a struct
    is_array: bool = False  # whether the value is a list of `kind`
    is_nullable: bool = False  # whether null is a value
    versions: Versions = _EVERY  # that have the field
    tag: int | None = None  # of a tagged field, or None
    default: str | None = None  # as text, or None for zero, an empty value or false


@dataclass(frozen=True)
class Schema:
    """A kind of message."""

    name: str  # as in Kafka's JSON
    api_key: int  # its number among the records of its topic, or -1
    versions: Versions  # that can be read
    flexible: Versions  # versions with compact lengths and tagged fields
    fields: tuple[Field, ...]  # in order


@cache
def parse_schemas(lines: str) -> Mapping[str, Schema]:
    """The schemas of several lines, by name."""
    parsed = (_Parser(line).schema() for line in lines.strip().splitlines())
    return {schema.name: schema for schema in parsed}


def snake_case(name: str) -> str:
    """A name of Kafka's, such as ``MetadataHash`` or ``topicId``, in snake case."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


class _Parser:
    """Parses one line."""

    def __init__(self, line: str) -> None:
        self._line = line
        self._tokens = [match[1] for match in _TOKEN.finditer(line)]
        if "".join(self._tokens) != re.sub(r"\s", "", line).replace("jsonnull", "json null"):
            raise ValueError(f"not a schema: {line}")
        self._at = 0
        #: where the first token of each struct is that the line names after its fields
        self._structs = {
            self._tokens[at - 1]: at + 1 for at, token in enumerate(self._tokens) if token == "="
        }

    def schema(self) -> Schema:
        self._at = 0
        name = self._take()
        api_key = -1
        if self._skip("["):
            api_key = int(self._take())
            self._expect("]")
        versions, flexible = _versions(self._take()), _NONE
        if self._skip("flex"):
            flexible = _versions(self._take())
        self._expect(":")
        return Schema(name, api_key, versions, flexible, tuple(self._fields({";"})))

    def _fields(self, ends: set[str]) -> Iterator[Field]:
        """Fields up to one of `ends`, which stays, or to the end of the line."""
        if self._peek() == "(no":
            return
        while self._peek() not in {*ends, ""}:
            yield self._field()
            self._skip(",")

    def _field(self) -> Field:
        name = self._take()
        is_array = self._skip("[")
        kind, fields = self._kind()
        if is_array:
            self._expect("]")
        is_nullable = self._skip("?")
        versions, tag, default = _EVERY, None, None
        while self._peek() not in {",", ";", "}", ""}:
            token = self._take()
            if token[0] == "#":
                tag = int(token[1:])
            elif token[0] == "=":
                default = token[1:]
            else:
                versions = _versions(token)
        return Field(
            name, snake_case(name), kind, fields, is_array, is_nullable, versions, tag, default
        )

    def _kind(self) -> tuple[str, tuple[Field, ...]]:
        """A type, and its fields if it is a struct, in place or by name."""
        if self._peek() == "{":
            return "struct", self._struct()
        kind = self._take()
        if kind not in self._structs:
            return kind, ()
        here, self._at = self._at, self._structs[kind]
        fields = self._struct()
        self._at = here
        return "struct", fields

    def _struct(self) -> tuple[Field, ...]:
        self._expect("{")
        fields = tuple(self._fields({"}"}))
        self._expect("}")
        return fields

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        self._at += 1
        return token

    def _skip(self, token: str) -> bool:
        if self._peek() != token:
            return False
        self._at += 1
        return True

    def _expect(self, token: str) -> None:
        if not self._skip(token):
            raise ValueError(f"expected {token!r}, found {self._peek()!r}: {self._line}")


def _versions(text: str) -> Versions:
    """A range such as ``v0-4``, ``v1+``, ``4+`` or ``v0``."""
    match = _VERSIONS.fullmatch(text)
    if match is None:
        raise ValueError(f"not a range of versions: {text}")
    least = int(match[1])
    return Versions(least, _LATEST if match[3] else int(match[2] or least))


#: The key of tagged fields that the schema does not have: their bytes, by tag.
UNKNOWN_TAGS = "unknown_tagged_fields"

_MOST_VARINT_BYTES = 5
_MOST_NEW_BYTES = 4096  #: of the fields that a newer version has added
_LENGTH = struct.Struct(">i")
_SHORT_LENGTH = struct.Struct(">h")


def uuid_text(value: uuid.UUID) -> str:
    """An id as Kafka prints it (``Uuid.toString``): 22 characters."""
    return base64.urlsafe_b64encode(value.bytes)[:22].decode()


def _number(layout: str) -> Callable[["Reader"], Any]:
    form = struct.Struct(layout)
    return lambda reader: form.unpack(reader.take(form.size))[0]


_FIXED: dict[str, Callable[["Reader"], Any]] = {
    "bool": lambda reader: reader.take(1) != b"\0",
    "i8": _number(">b"),
    "i16": _number(">h"),
    "u16": _number(">H"),
    "i32": _number(">i"),
    "i64": _number(">q"),
    "f64": _number(">d"),
    "uuid": lambda reader: uuid.UUID(bytes=reader.take(16)),
}
_ZEROS = {"bool": False, "f64": 0.0, "str": "", "bytes": b"", "uuid": uuid.UUID(int=0)}


class Reader:
    """Reads the fields of one message from its bytes."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = data
        self.at = at
        self._unknown_tags: set[int] = set()
        self._is_newer = False  #: then bytes that only look like a message are told apart

    @property
    def n_left(self) -> int:
        """Bytes that have not been read."""
        return len(self._data) - self.at

    def message(self, schema: Schema, version: int) -> dict[str, Any]:
        """The fields of a message, by their names in snake case.

        Raises `NewerFormatError` if the version is newer than those known, and does not begin with
        their fields; `ValueError` if there is no such version, or the bytes are not such a
        message.
        """
        least, most = schema.versions
        is_flexible = version in schema.flexible
        if version < least or (version > most and not is_flexible):
            known = f"{least}" if least == most else f"{least} to {most}"
            raise ValueError(f"{schema.name} has version {version}, known are {known}")
        if version <= most:
            found = self._fields(schema.fields, version, is_flexible=is_flexible)
        else:
            found = self._newer(schema, version)
            note(f"{schema.name} of version {version}, read by the fields of version {most}")
        if self._unknown_tags:
            tags = ", ".join(map(str, sorted(self._unknown_tags)))
            note(f"tagged fields {tags} of {schema.name}")
        return found

    def _newer(self, schema: Schema, version: int) -> dict[str, Any]:
        """The known fields of a newer version, which must be the first; all bytes are consumed."""
        # New fields may stand between them and the tagged fields. The longest end of the message
        # that is a section of tagged fields is taken for it.
        most, begin, end = schema.versions.most, self.at, len(self._data)
        self._is_newer = True
        try:
            found = self._fields(schema.fields, most, is_flexible=True)
            if not self.n_left:
                return found
        except ValueError:
            pass  # tagged fields do not follow the known fields at once
        self.at, self._unknown_tags = begin, set()
        try:
            found = self._plain_fields(schema.fields, most, is_flexible=True)
        except ValueError as error:
            reason = f"{schema.name} of version {version}, {LEFT}"
            raise NewerFormatError(reason) from error
        for at in range(self.at + 1, min(end, self.at + _MOST_NEW_BYTES)):
            tail, with_tags = Reader(self._data, at), dict(found)
            tail._is_newer = True
            try:
                tail._tagged_fields(schema.fields, most, with_tags)
            except ValueError:
                continue
            if not tail.n_left:
                self.at, self._unknown_tags = end, tail._unknown_tags
                return with_tags
        raise NewerFormatError(f"{schema.name} of version {version}, {LEFT}")

    def varint(self) -> int:
        """An unsigned varint, the least significant bits first; `ValueError` above five bytes."""
        value = 0
        for number in range(_MOST_VARINT_BYTES):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << 7 * number
            if byte < 0x80:
                return value
        raise ValueError(f"a varint has more than {_MOST_VARINT_BYTES} bytes")

    def take(self, n_bytes: int) -> bytes:
        """The next bytes; `ValueError` if there are fewer."""
        begin, end = self.at, self.at + n_bytes
        if not 0 <= n_bytes <= len(self._data) - begin:
            raise ValueError(f"it ends after {len(self._data)} bytes, inside a field")
        self.at = end
        return self._data[begin:end]

    def _fields(
        self, fields: tuple[Field, ...], version: int, *, is_flexible: bool
    ) -> dict[str, Any]:
        found = self._plain_fields(fields, version, is_flexible=is_flexible)
        if is_flexible:
            self._tagged_fields(fields, version, found)
        return found

    def _plain_fields(
        self, fields: tuple[Field, ...], version: int, *, is_flexible: bool
    ) -> dict[str, Any]:
        """The fields before the tagged ones, which have their defaults."""
        found: dict[str, Any] = {}
        for field in fields:
            if version in field.versions:
                is_tagged = field.tag is not None and is_flexible
                found[field.column] = (
                    _default(field, version)
                    if is_tagged
                    else self._value(field, version, is_flexible)
                )
        return found

    def _tagged_fields(
        self, fields: tuple[Field, ...], version: int, found: dict[str, Any]
    ) -> None:
        """Read the section of tagged fields; those that the schema lacks are kept as bytes."""
        known = {
            each.tag: each for each in fields if each.tag is not None and version in each.versions
        }
        last = -1
        for _ in range(self._checked(self.varint())):
            tag, size = self.varint(), self.varint()
            if self._is_newer and tag <= last:
                raise ValueError(f"tag {tag} follows tag {last}")
            last = tag
            content = self.take(size)
            field = known.get(tag)
            if field is None:
                found.setdefault(UNKNOWN_TAGS, {})[tag] = content
                self._unknown_tags.add(tag)
                continue
            reader = Reader(content)
            reader._unknown_tags, reader._is_newer = self._unknown_tags, self._is_newer
            found[field.column] = reader._value(field, version, True, is_tagged=True)
            if reader.n_left:
                raise ValueError(f"{reader.n_left} bytes follow {field.name} in its tagged field")

    def _value(
        self, field: Field, version: int, is_flexible: bool, *, is_tagged: bool = False
    ) -> Any:  # noqa: ANN401 (each field has its type)
        if field.is_array:
            count = self._length(is_flexible)
            if count is None:
                return self._null(field)
            return [
                self._element(field, version, is_flexible) for _ in range(self._checked(count))
            ]
        if field.kind == "struct" and field.is_nullable:
            # As a tagged field, the struct has an unsigned varint before it, and otherwise an i8.
            is_there = self.varint() if is_tagged else self.take(1)[0]
            if is_there not in (0, 1) and (is_tagged or is_there < 0x80):
                raise ValueError(f"{field.name} begins with {is_there}, expected 0 or 1")
            if is_there != 1:
                return None
        return self._element(field, version, is_flexible)

    def _element(self, field: Field, version: int, is_flexible: bool) -> Any:  # noqa: ANN401
        if field.kind == "struct":
            return self._fields(field.fields, version, is_flexible=is_flexible)
        fixed = _FIXED.get(field.kind)
        if fixed is not None:
            if (
                self._is_newer
                and field.kind == "bool"
                and self._data[self.at : self.at + 1] > b"\1"
            ):
                raise ValueError(f"{field.name} is neither true nor false")
            return fixed(self)
        length = self._length(is_flexible, is_short=field.kind == "str")
        if length is None:
            return self._null(field)
        content = self.take(length)
        return content.decode() if field.kind == "str" else content

    def _length(self, is_flexible: bool, *, is_short: bool = False) -> int | None:
        """The length of a string or of bytes, or the count of an array; None for null."""
        if is_flexible:
            length = self.varint() - 1
        elif is_short:
            (length,) = _SHORT_LENGTH.unpack(self.take(2))
        else:
            (length,) = _LENGTH.unpack(self.take(4))
        return None if length < 0 else length

    def _checked(self, count: int) -> int:
        """A count of elements, each of which takes at least one byte."""
        if count > self.n_left:
            raise ValueError(f"{count} elements do not fit in the {self.n_left} bytes left")
        return count

    @staticmethod
    def _null(field: Field) -> None:
        if not field.is_nullable:
            raise ValueError(f"{field.name} is null")


def read_struct(schema: Schema, version: int, data: bytes, at: int = 0) -> dict[str, Any]:
    """The fields of a message, from its beginning, as brokers read it; or `ValueError`."""
    return Reader(data, at).message(schema, version)


def _default(field: Field, version: int) -> Any:  # noqa: ANN401
    """The value of a tagged field that is absent, as Kafka's generator gives it."""
    if field.default == "null":
        return None
    if field.is_array:
        return []
    if field.kind == "struct":
        return {
            each.column: _default(each, version)
            for each in field.fields
            if version in each.versions
        }
    if field.default is None or field.default == JSON_NULL:
        return _ZEROS.get(field.kind, 0)
    if field.kind == "bool":
        return field.default == "true"
    return field.default if field.kind == "str" else int(field.default)
