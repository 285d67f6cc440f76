"""Kafka's protocol: requests from bytes, and answers as parts, some of which are ranges of files.

`kio` reads and writes every message.  Its writers need ``len`` of a value and ``write`` of a
buffer, so the records of an answer may be `Stored` bytes: a buffer of `Parts` keeps them as they
are, and the server sends them from their file.
"""

import base64
import dataclasses
import datetime as dt
import functools
import io
import struct
import threading
import uuid
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar

from kio.index import KioIndexError, load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from segmentlog.serving.claimed import check_claims, parts_of
from segmentlog.store.readable import ReadableFile

_T = TypeVar("_T")

_KEY_AND_VERSION = struct.Struct(">hhi")  # and the correlation id
_INT = struct.Struct(">i")

_PART_BYTES = 256  # that a part of an answer takes in itself

#: An entity of `kio`: the class of a message depends on its version.
Body: TypeAlias = Any

#: The API that a client asks first; it is answered in version 0 if its version is not known.
API_VERSIONS = 18
_FETCH = 1

# `kio` finds a class by its name each time; there are a few hundred.
_request_schema = functools.cache(load_request_schema)
_response_schema = functools.cache(load_response_schema)


class MalformedRequestError(ValueError):
    """Bytes of a client that are not a request; the connection is closed."""


class Stored(NamedTuple):
    """Bytes ``[position, position + size)`` of a file, in place of the bytes themselves.

    `opened`: opens the file, which is not open while the answer waits: one has a range of each of
    thousands of partitions.  `place`: the directory whose files may hang; empty if the system may
    send from it.
    """

    opened: Callable[[], ReadableFile]
    position: int
    size: int
    place: str

    def __len__(self) -> int:
        return self.size


class Held(bytes):
    """Bytes of a file that are read already; all of them together have a bound."""

    __slots__ = ()

    _MOST_BYTES = 32 << 20
    _n_bytes = 0  # of all that are held, by any thread, under the lock
    _lock = threading.RLock()  # a collection within the lock may end in `__del__`

    @classmethod
    def read(cls, file: ReadableFile, position: int, size: int) -> "Held | None":
        """The bytes, or None if too many are held or the file has fewer."""
        with cls._lock:
            if Held._n_bytes + size > cls._MOST_BYTES:
                return None
            Held._n_bytes += size
        data = b""
        try:
            data = file.read(position, size)
        finally:
            if len(data) != size:
                cls._forget(size)
        return cls(data) if len(data) == size else None

    @classmethod
    def _forget(cls, size: int) -> None:
        with cls._lock:
            Held._n_bytes -= size

    def __del__(self) -> None:
        self._forget(len(self))


class Records(tuple[Stored | Held, ...]):
    """The records of a partition in an answer: several ranges of bytes as one value."""

    __slots__ = ()

    def __len__(self) -> int:
        return sum(map(len, tuple.__iter__(self)))


class Parts:
    """A buffer for `kio`: bytes, and ranges of files between them."""

    def __init__(self) -> None:
        self.parts: list[bytearray | memoryview | Held | Stored] = [bytearray()]

    def write(self, value: bytes | memoryview | Records) -> None:
        """Add bytes, or the ranges of `Records`."""
        if type(value) is Records:
            for each in tuple.__iter__(value):
                self.parts += each, bytearray()
        else:
            self.parts[-1] += value  # type: ignore[operator, assignment]

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(map(len, self.parts))

    @property
    def own_size(self) -> int:
        """Bytes that this answer takes, but for those of `Held` and of other answers."""
        n_bytes = sum(len(each) for each in self.parts if type(each) is bytearray)
        return n_bytes + (len(self.parts) - 1) * _PART_BYTES

    def joined(self) -> bytes:
        """The bytes of an answer without records."""
        return b"".join(each for each in self.parts if not isinstance(each, Stored))

    def taken(self) -> Iterator["bytearray | memoryview | Held | Stored"]:
        """The parts, each of which is let go of."""
        self.parts.reverse()
        while self.parts:
            yield self.parts.pop()


class Request(NamedTuple):
    """A request that was read; `body` is an entity of `kio`."""

    key: int
    version: int
    correlation_id: int
    client_id: str
    body: Body


def key_and_version(frame: bytes) -> tuple[int, int, int]:
    """Key and version of the API, and the correlation id, of a request."""
    if len(frame) < _KEY_AND_VERSION.size:
        raise MalformedRequestError(f"a request has {len(frame)} bytes, fewer than its header")
    found: tuple[int, int, int] = _KEY_AND_VERSION.unpack_from(frame)
    return found


def read_request(frame: bytes) -> Request:
    """The request in a frame; raises `MalformedRequestError`."""
    key, version, correlation_id = key_and_version(frame)
    try:
        kind = _request_schema(key, version)
        header, at = entity_reader(kind.__header_schema__)(frame, 0)
        check_claims(kind, frame, at)
        body, _ = entity_reader(kind)(frame, at)
    except KioIndexError as error:
        reason = f"API {key} has no version {version}"
        raise MalformedRequestError(reason) from error
    except Exception as error:  # of any type: the bytes are those of a stranger
        raise MalformedRequestError(f"API {key}, version {version}: {error!r}") from error
    return Request(key, version, correlation_id, header.client_id or "", body)


def answer(key: int, version: int, correlation_id: int, values: Mapping[str, Any]) -> Parts:
    """An answer with its length, ready to send; see `entity`."""
    kind, parts = _response_schema(key, version), Parts()
    # Only a fetch has records; metadata of 10,000 partitions is written in 120,000 pieces.
    buffer: Any = parts if key == _FETCH else io.BytesIO()
    header = kind.__header_schema__
    entity_writer(header)(buffer, entity(header, {"correlation_id": correlation_id}))
    entity_writer(kind)(buffer, entity(kind, values))
    if buffer is not parts:
        parts.write(buffer.getbuffer())
    parts.parts[0][:0] = _INT.pack(parts.size)  # type: ignore[index]
    return parts


def answer_again(data: bytes, correlation_id: int) -> Parts:
    """An answer that was made before, for another request."""
    parts = Parts()
    parts.parts = [bytearray(data[:4]) + _INT.pack(correlation_id), memoryview(data)[8:]]
    return parts


def entity(kind: Any, values: Mapping[str, Any]) -> Any:  # noqa: ANN401 - an entity of `kio`
    """An entity of `kio` from plain values, by the names that all versions share.

    Values that its version lacks are left out, and fields without a value get that of their type:
    0, "", none.
    """
    fields = {}
    for name, convert, default in _fields_of(kind):
        if name in values:
            fields[name] = convert(values[name])
        elif default is not dataclasses.MISSING:
            fields[name] = default
    return kind(**fields)


@functools.cache
def _fields_of(kind: type) -> tuple[tuple[str, Callable[[Any], Any], Any], ...]:
    """Names of fields, how plain values become theirs, and what they have without one.

    `MISSING` stands for what the entity itself has.
    """
    found = []
    for each in dataclasses.fields(kind):
        convert, default = _conversion(each.type, each.metadata.get("kafka_type", ""))
        has_default = each.default is not dataclasses.MISSING
        found.append((each.name, convert, dataclasses.MISSING if has_default else default))
    return tuple(found)


_DEFAULTS: dict[str, Any] = {
    "string": "",
    "bytes": b"",
    "bool": False,
    "error_code": ErrorCode.none,
    "uuid": None,
    "timedelta_i32": dt.timedelta(),
    "timedelta_i64": dt.timedelta(),
}


def _conversion(annotation: Any, name: str) -> tuple[Callable[[Any], Any], Any]:  # noqa: ANN401
    """How a plain value becomes that of a field, and what the field has without one."""
    inner, is_array, is_nullable = parts_of(annotation)
    if inner is not None or is_array:
        one = (lambda each: each) if inner is None else functools.partial(entity, inner)
        many = (lambda values: tuple(map(one, values))) if is_array else one
        empty = () if is_array and not is_nullable else None
        return (lambda each: None if each is None else many(each)), empty
    default = None if is_nullable else _DEFAULTS.get(name, 0)
    if name.startswith("timedelta"):
        return (lambda each: dt.timedelta(milliseconds=each)), default
    return {"error_code": ErrorCode}.get(name, lambda each: each), default


def once(values: Iterable[_T], name: Callable[[_T], Hashable] = lambda each: each) -> list[_T]:
    """What a request names, each once: named thousands of times, it would fill the memory."""
    return list({name(each): each for each in values}.values())


def uuid_of(topic_id: str) -> uuid.UUID | None:
    """A topic id as Kafka prints it; None for none."""
    return uuid.UUID(bytes=base64.urlsafe_b64decode(f"{topic_id}==")) if topic_id else None
