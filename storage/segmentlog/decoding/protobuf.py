"""A message of protobuf as a type of Arrow, and the bytes of its values as a column of this type.

`ptars` makes columns of messages, some ten times as quickly as a loop over objects.  It ends with
a panic, or takes another value than protobuf, for bytes that no serializer has written: it reads
what protobuf's own parser has read and written again.  Both take all values of a batch at once, as
the repeated field of one message.

Fields are matched by their numbers, so a value of another version is read as one of the schema of
the result.  Fields that this schema lacks are left out.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from segmentlog.decoding.payloads import Payloads
from segmentlog.decoding.proto_files import descriptors
from segmentlog.decoding.schema import (
    FAILS,
    MOST_FIELDS,
    MOST_LEVELS,
    Steps,
    UnusableSchemaError,
    checked,
    needed,
)
from segmentlog.errors import OptionError

_ROWS = "segmentlog_rows"  #: the package of the message that has all values of a batch
_MOST_BYTES = 16 << 20  #: of such a message

#: Spark has no unsigned numbers; these are its types for them.
_SIGNED = {pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20)}

#: Seconds that a Timestamp and a Duration can have: ptars makes the nearest time of others.
_MOST_SECONDS = {
    pa.timestamp("us", "UTC"): (-62_135_596_800, 253_402_300_800),
    pa.duration("us"): (-315_576_000_001, 315_576_000_001),
}


class ProtobufSchema:
    """A message of a schema, the first one of its file by default.

    `text`: of the schema, or its descriptor in base64.  `references`: names and texts of the files
    that it imports, each before those that need it.  Raises `UnusableSchemaError`.
    """

    def __init__(self, text: str, references: Sequence[tuple[str, str]] = ()) -> None:
        self._files = [_without_dates(each) for each in descriptors(text, references)]
        if any(each.syntax == "editions" for each in self._files):
            raise UnusableSchemaError("it has an edition, and not the syntax of proto2 or proto3")
        self._path: tuple[int, ...] = (0,)
        # A message is built once, and not for each batch.
        self._by_path: dict[tuple[int, ...], ProtobufSchema] = {self._path: self}
        self._begin()

    def _begin(self) -> None:
        file, path = self._files[-1], self._path
        within, names = file.message_type, [file.package] if file.package else []
        for index in path:
            if not 0 <= index < len(within):
                raise UnusableSchemaError(f"it has no message with the indexes {[*path]}")
            names.append(within[index].name)
            within = within[index].nested_type
        self.name = ".".join(names)
        try:
            kind = _tried(self._columns_of_pool)
        except UnusableSchemaError:
            raise
        except ValueError as error:
            raise UnusableSchemaError(f"it has no columns ({error})") from None
        self.type = _nullable(kind)

    def _columns_of_pool(self) -> pa.DataType:
        pool = needed("google.protobuf.descriptor_pool").DescriptorPool()
        for each in self._files:
            pool.Add(each)
        message = pool.FindMessageTypeByName(self.name)
        _count(message, 0, [])
        pool.Add(self._rows_of_messages())
        class_of = needed("google.protobuf.message_factory").GetMessageClass
        self._message = class_of(message)
        self._rows = class_of(pool.FindMessageTypeByName(f"{_ROWS}.Rows"))
        return self._handler.schema().field(0).type.value_type

    def _rows_of_messages(self) -> Any:  # noqa: ANN401 - a descriptor
        made = needed("google.protobuf.descriptor_pb2").FileDescriptorProto(
            name="__rows__.proto", syntax="proto3", package=_ROWS
        )
        made.dependency.append(self._files[-1].name)
        field = made.message_type.add(name="Rows").field
        field.add(name="rows", number=1, label=3, type=11, type_name=f".{self.name}")
        return made

    @cached_property
    def _handler(self) -> Any:  # noqa: ANN401 - a package without types
        ptars = needed("ptars")
        units = ptars.PtarsConfig(enum_repr="string", timestamp_unit="us", duration_unit="us")
        rows = self._rows.DESCRIPTOR
        return ptars.HandlerPool([rows.file], config=units).get_for_message(rows)

    def at(self, path: tuple[int, ...]) -> "ProtobufSchema":
        """The message with a path of indexes; raises `UnusableSchemaError`."""
        if path not in self._by_path:
            made = object.__new__(ProtobufSchema)
            made._files, made._path, made._by_path = self._files, path, self._by_path
            made._begin()
            self._by_path[path] = made
        return self._by_path[path]

    def names_of(self, other: "ProtobufSchema", steps: Steps) -> Steps | None:
        """The steps to what has the numbers of a field of another version; None without it."""
        if self.name != other.name:
            return None
        here, there = self._message.DESCRIPTOR, other._message.DESCRIPTOR
        names = list[str | None]()
        for step in steps:
            if step is None:
                names.append(None)
                continue
            found = there.fields_by_name[step]
            own = None if here is None else here.fields_by_number.get(found.number)
            if own is None:
                return None
            names.append(own.name)
            here, there = own.message_type, found.message_type
        return tuple(names)

    def version_of(self, other: "ProtobufSchema") -> "ProtobufSchema | None":
        """The message of this file that is a version of one in another file, or None."""
        with contextlib.suppress(UnusableSchemaError):
            found = self.at(other._path)
            return found if found.name == other.name else None
        return None

    def message_of(self, data: bytes) -> Any:  # noqa: ANN401 - a class of its own for each schema
        """The message that has these bytes; raises protobuf's ``DecodeError``."""
        return self._message.FromString(data)

    def decode(
        self, values: Payloads, reader: "ProtobufSchema", causes: dict[int, str]
    ) -> pa.Array:
        """Values of this schema as a column of the type of `reader`; null where there is a cause.

        `causes`: gets why a value cannot be decoded, by its number in `values`.
        """
        if self.name != reader.name:
            cause = f"it is a message {self.name}, and not {reader.name}"
            causes.update(dict.fromkeys(range(len(values)), cause))
            return pa.nulls(len(values), reader.type)
        each = values.to_list()
        parts = [reader._columns(each, begin, end, causes) for begin, end in _cuts(each)]
        return pa.concat_arrays([pa.nulls(0, reader.type), *parts])

    def _columns(
        self, values: Sequence[bytes], begin: int, end: int, causes: dict[int, str]
    ) -> pa.Array:
        try:
            return _tried(self._at_once, values[begin:end])
        except ValueError as error:
            told = str(error)
        if end - begin == 1:
            causes[begin] = self._cause(values[begin]) or told
            return pa.nulls(1, self.type)
        middle = (begin + end) // 2
        halves = ((begin, middle), (middle, end))
        return pa.concat_arrays([self._columns(values, *each, causes) for each in halves])

    def _at_once(self, values: Sequence[bytes]) -> pa.Array:
        framed: list[bytes] = []
        for each in values:
            framed += (_field_of(len(each)), each)
        rows = self._rows.FromString(b"".join(framed))
        rows.DiscardUnknownFields()
        written = rows.SerializePartialToString(deterministic=True)
        found = self._handler.list_to_record_batch([written]).column(0).values
        if len(found) != len(values):
            raise ValueError("its bytes are those of several messages")
        return checked(_converted(found, self.type))

    def _cause(self, value: bytes) -> str | None:
        try:
            self.message_of(value)
        except needed("google.protobuf.message").DecodeError:
            return f"its bytes are not those of a message {self.name}"
        return None


def _without_dates(file: Any) -> Any:  # noqa: ANN401 - a descriptor
    """A file whose types of ``google.type`` have another name.

    ptars makes 1970 of the 30th of February, and null of a day that has no year; under this name
    they are structs like all others.
    """

    def rename(messages: Iterable[Any]) -> None:
        for message in messages:
            for field in message.field:
                if field.type_name.startswith(".google.type."):
                    field.type_name = field.type_name.replace(".google.type.", ".google.type_.")
            rename(message.nested_type)

    rename(file.message_type)
    for each in file.extension:
        if each.type_name:
            each.type_name = each.type_name.replace(".google.type.", ".google.type_.")
    if file.package == "google.type":
        file.package = "google.type_"
    return file


def _tried(function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401
    """What a function returns; all that packages raise for schemas and values is a ValueError."""
    try:
        return function(*arguments)
    except (UnusableSchemaError, OptionError):
        raise
    except BaseException as error:
        name = type(error).__name__  # a panic of Rust is not an Exception, and has no module
        if not isinstance(error, FAILS) and name not in ("PanicException", "DecodeError"):
            raise
        raise ValueError(f"{name}: {error}"[:200]) from None


def _count(message: Any, n_fields: int, above: list[str]) -> int:  # noqa: ANN401 - a descriptor
    """The number of fields in all levels, and `n_fields`; raises `UnusableSchemaError`."""
    if message.full_name in above:
        raise UnusableSchemaError(f"the message {message.full_name} contains itself")
    if len(above) >= MOST_LEVELS:
        raise UnusableSchemaError(f"more than {MOST_LEVELS} messages in each other")
    for each in message.fields:
        n_fields += 1
        if each.type == each.TYPE_GROUP:
            raise UnusableSchemaError(f"the field {each.full_name} is a group")
        if each.message_type is not None:
            n_fields = _count(each.message_type, n_fields, [*above, message.full_name])
        if n_fields > MOST_FIELDS:
            raise UnusableSchemaError(f"more than {MOST_FIELDS} fields in all levels")
    return n_fields


def _cuts(values: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Stretches of values that are one message together."""
    n_bytes = np.cumsum([len(each) for each in values], dtype=np.int64) // _MOST_BYTES
    ends = [*(np.flatnonzero(np.diff(n_bytes)) + 1).tolist(), len(values)]
    yield from zip([0, *ends], ends, strict=False)


def _field_of(n_bytes: int) -> bytes:
    """What stands before a value of the repeated field."""
    if n_bytes < 128:
        return _SHORT[n_bytes]
    made = bytearray(b"\n")
    while n_bytes > 127:
        made.append(n_bytes & 127 | 128)
        n_bytes >>= 7
    made.append(n_bytes)
    return bytes(made)


_SHORT = [bytes([10, each]) for each in range(128)]


def _nullable(kind: pa.DataType) -> pa.DataType:
    """A type with fields that can be null, and without those that engines lack."""
    if pa.types.is_struct(kind):
        return pa.struct([(each.name, _nullable(each.type)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(_nullable(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_nullable(kind.key_type), _nullable(kind.item_type))
    return _SIGNED.get(kind, kind)


def _converted(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_struct(kind):
        names = range(values.type.num_fields)
        fields = [_converted(values.field(n), kind.field(n).type) for n in names]
        if not fields:
            return values
        return pa.StructArray.from_arrays(fields, fields=[*kind], mask=values.is_null())
    if pa.types.is_list(kind):
        items = _converted(values.values, kind.value_type)
        return pa.ListArray.from_arrays(values.offsets, items, kind, mask=_mask(values))
    if pa.types.is_map(kind):
        keys = _converted(values.keys, kind.key_type)
        items = _converted(values.items, kind.item_type)
        return pa.MapArray.from_arrays(values.offsets, keys, items, kind)
    if kind in _MOST_SECONDS and len(values) > values.null_count:
        least, most = _MOST_SECONDS[kind]
        found = pc.min_max(values.cast(pa.int64()))
        if found["min"].as_py() < least * 10**6 or found["max"].as_py() >= most * 10**6:
            raise ValueError(f"a time is not one of protobuf ({found['min']} to {found['max']})")
    return values.cast(kind)


def _mask(values: pa.Array) -> pa.Array | None:
    return values.is_null() if values.null_count else None
