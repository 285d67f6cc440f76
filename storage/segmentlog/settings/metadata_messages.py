"""Kafka's message format, as far as records of the cluster's metadata need it.

A record's value is a frame: three unsigned varints (version of the frame, which is 1; api key;
version of the message), then the fields of the message, one after another.  All messages here
are flexible: a string has its length plus 1 as an unsigned varint before it (0 is null), and
tagged fields end the message.  A message has no length field, but its record has: a kind that
is not needed is skipped as a whole.

Rules: ``MetadataRecordSerde``, ``ByteUtils``, KIP-482, and the schemas in Kafka's
``resources/common/metadata``.
"""

import uuid
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple

__all__ = ["Field", "Kind", "Message", "Schema", "decode_message"]

_FRAME_VERSION = 1
_MOST_VARINT_BYTES = 5


class Kind(Enum):
    """Type of a field."""

    INT8 = auto()
    STRING = auto()
    NULLABLE_STRING = auto()
    UUID = auto()


class Field(NamedTuple):
    """A field that every known version of its message has."""

    name: str
    kind: Kind


class Schema(NamedTuple):
    """A kind of message: its name, its newest known version, and its fields in order."""

    name: str
    version: int
    fields: Sequence[Field]


class Message(NamedTuple):
    """A decoded message: the name of its schema, and the values of its fields by their names."""

    name: str
    fields: Mapping[str, Any]


def decode_message(data: bytes, schemas: Mapping[int, Schema]) -> Message | None:
    """The message in the value of a record, or None if `schemas` does not have its api key.

    Parameters
    ----------
    data : the value.
    schemas : by api key.

    Raises
    ------
    ValueError
        If the bytes are not such a message, or its version is newer than its schema.
    """
    reader = _Reader(data)
    frame_version, api_key, version = reader.varint(), reader.varint(), reader.varint()
    if frame_version != _FRAME_VERSION:
        raise ValueError(f"expected frame version {_FRAME_VERSION}, found {frame_version}")
    schema = schemas.get(api_key)
    if schema is None:
        return None
    if version > schema.version:
        raise ValueError(f"a {schema.name} of version {version} is newer than {schema.version}")
    fields = {each.name: reader.field(each) for each in schema.fields}
    reader.pass_over_tagged_fields()
    reader.end()
    return Message(schema.name, fields)


class _Reader:
    """Reads the fields of one message."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def field(self, field: Field) -> object:
        """The value of the next field."""
        match field.kind:
            case Kind.INT8:
                return int.from_bytes(self._take(1), "big", signed=True)
            case Kind.UUID:
                return uuid.UUID(bytes=self._take(16))
            case Kind.STRING | Kind.NULLABLE_STRING:
                length = self.varint() - 1
                if length >= 0:
                    return self._take(length).decode()
                if field.kind is Kind.STRING:
                    raise ValueError(f"{field.name} is null")
        return None

    def varint(self) -> int:
        """An unsigned varint: seven bits a byte, the least significant ones first."""
        value = 0
        for number in range(_MOST_VARINT_BYTES):
            (byte,) = self._take(1)
            value |= (byte & 0x7F) << 7 * number
            if byte < 0x80:
                return value
        raise ValueError(f"a varint has more than {_MOST_VARINT_BYTES} bytes")

    def pass_over_tagged_fields(self) -> None:
        """Skip fields that later versions have added; each has its length."""
        for _ in range(self.varint()):
            self.varint()  # its tag
            self._take(self.varint())

    def end(self) -> None:
        """Check that nothing follows."""
        n_left = len(self._data) - self._at
        if n_left:
            raise ValueError(f"{n_left} bytes follow its last field")

    def _take(self, n_bytes: int) -> bytes:
        taken = self._data[self._at : self._at + n_bytes]
        if len(taken) < n_bytes:
            raise ValueError(f"it ends after {len(self._data)} bytes, inside a field")
        self._at += n_bytes
        return taken
