"""Schemas of Kafka's generated messages, parsed from the lines of `format.messages.lines`.

Rules: ``MessageGenerator``, ``FieldSpec`` and ``Versions`` of Kafka's generator, and KIP-482.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

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
