"""Other values in fields of keys or values that a registry's serializers have written.

A value is decoded by the schema that it names, changed, and written again by the same schema, with
the same frame: its readers notice nothing.  What was written is decoded once more, and has to be
what was meant; so a value that this module cannot write as it was is an error.
"""

import io
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from functools import cache, partial
from typing import Any, TypeAlias

import pyarrow as pa

from segmentlog.decoding.avro import AvroSchema
from segmentlog.decoding.decode import NO_SCHEMA, Registered
from segmentlog.decoding.frames import Frames
from segmentlog.decoding.json_schema import JsonSchema
from segmentlog.decoding.payloads import Payloads
from segmentlog.decoding.protobuf import ProtobufSchema
from segmentlog.decoding.schema import FAILS, Steps, UnusableSchemaError, ValueSchema, needed
from segmentlog.errors import OptionError, UndecodableValueError
from segmentlog.format.kernels.memory import Int64s
from segmentlog.masking import MASK
from segmentlog.model import ValueFrame

#: What a field gets in place of its value, or a function from this value; None hides it.
Replacement: TypeAlias = "str | int | float | bool | bytes | Callable[[Any], Any] | None"

Change: TypeAlias = Callable[[Any], Any]


_UUID = "(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_NO_UUID = "00000000-0000-0000-0000-000000000000"
_MOST_NAMED = 12  #: fields, in an error
_AS_GLUE, _GLUE_BYTES = b"\3\5", 18  #: of a frame of Glue whose value is compressed


class FieldMasks:
    """Changes fields of keys or values.  It can be pickled if its replacements can.

    `column`: ``key`` or ``value``.  `masks`: replacements by paths, which begin with the column:
    ``value.items[].sku``.  `subject`: which values have by default.  Raises `OptionError` if no
    schema has a field.
    """

    def __init__(
        self,
        registered: Registered,
        column: str,
        masks: Mapping[str, Replacement],
        subject: str,
        frame: ValueFrame,
    ) -> None:
        self._registered, self.column, self._masks = registered, column, masks
        self._subject, self._frame = subject, frame
        self._known: dict[ValueSchema, _Changes] = {}
        self._writers: dict[ValueSchema, list[_Write]] = {}
        known: set[str] = set()
        for schema in self._parsed():
            known.update(path for path, _, _ in _fields(self.column, schema.type))
            self._changes(schema)
        for path in masks:
            if path not in known:
                own = sorted(each for each in known if each != self.column)
                more = f" and {len(own) - _MOST_NAMED:,} more" if len(own) > _MOST_NAMED else ""
                fields = ", ".join(own[:_MOST_NAMED]) + more or "none"
                accepted = f"no schema of {self._subject} has this field; fields are {fields}"
                raise OptionError("mask", path, accepted)

    def _changes(self, schema: ValueSchema) -> "_Changes":
        """The changes of values of a schema: a field that a version lacks is in none of them."""
        if schema not in self._known:
            masks = self._renamed(schema) | {**self._masks}
            self._known[schema] = [
                (steps, _change(path, masks[path], kind))
                for path, steps, kind in _fields(self.column, schema.type)
                if path in masks
            ]
        return self._known[schema]

    def _renamed(self, schema: ValueSchema) -> dict[str, Replacement]:
        """The masks of fields that other versions call otherwise, by their paths in a schema.

        Who masks a field means what is decoded as this field, also of older values.
        """
        found = {
            _path(self.column, names): self._masks[path]
            for other in self._parsed()
            if other is not schema
            for path, steps, _ in _fields(self.column, other.type)
            if path in self._masks
            for names in _names_in(schema, other, steps)
        }
        if isinstance(schema, AvroSchema):  # and the masks of their former names
            for path, steps, _ in _fields(self.column, schema.type):
                for names in schema.names_of(steps):
                    former = _path(self.column, names)
                    if former in self._masks:
                        found[path] = self._masks[former]
        return found

    def _writers_of(self, schema: ValueSchema) -> "list[_Write]":
        """What makes values of a schema anew, in this order; empty if they stay as they are.

        A value may hold fields that its schema lacks: a service that knows an older version has
        passed them on.  Readers decode them by another version's names in JSON, or by its numbers
        in protobuf.
        """
        if schema not in self._writers:
            own = self._changes(schema)
            made: list[_Write] = [partial(_WRITES[type(schema)], schema, own)] if own else []
            before = [schema]
            for other in self._parsed():
                version, more = self._lacked(before, other)
                if version is not None and more:
                    made.append(partial(_WRITES[type(schema)], version, more, passes=True))
                    before.append(version)
            self._writers[schema] = made
        return self._writers[schema]

    def _lacked(
        self, before: Sequence[ValueSchema], other: ValueSchema
    ) -> "tuple[ValueSchema | None, _Changes]":
        """A version of the first schema, and the changes of fields that none of `before` has."""
        schema = before[0]
        if isinstance(schema, JsonSchema) and isinstance(other, JsonSchema):
            known = {steps for each in before for steps, _ in self._changes(each)}
            return other, [each for each in self._changes(other) if each[0] not in known]
        if isinstance(schema, ProtobufSchema) and isinstance(other, ProtobufSchema):
            version = other.version_of(schema)
            if version is not None:
                earlier = [each for each in before if isinstance(each, ProtobufSchema)]
                return version, [
                    (steps, change)
                    for steps, change in self._changes(version)
                    if all(each.names_of(version, steps) is None for each in earlier)
                ]
        return None, ()  # a value of Avro has what its schema has

    def __getstate__(self) -> dict[str, object]:
        """A schema is parsed again where it is needed."""
        return self.__dict__ | {"_known": {}, "_writers": {}}

    def _parsed(self) -> Iterator[ValueSchema]:
        """The schemas of the subject, or all if values are named after their records."""
        for row in self._registered.rows_of(self._subject):
            try:
                yield self._registered.parsed(row)
            except UnusableSchemaError:  # which is an error of each value that names it
                continue

    def masked(self, batch: pa.RecordBatch, topic: str) -> pa.Array:
        """The column with other values; raises `UndecodableValueError` or `OptionError`.

        `batch`: with the columns ``headers``, ``partition`` and ``offset``, too.
        """
        values = batch.column(self.column)
        is_key = self.column == "key"
        frames = Frames(values, batch.column("headers"), is_key=is_key, frame=self._frame)
        made: list[bytes | None] = values.to_pylist()
        causes: dict[int, str] = {}
        for name, rows in frames.rows_by_name():
            if name is None:
                causes.update(dict.fromkeys(rows.tolist(), NO_SCHEMA))
                continue
            try:
                for number, value in self._group(name, frames, rows, made):
                    made[number] = value
            except _NotWrittenError as error:
                causes[error.row] = error.cause
            except UnusableSchemaError as error:
                causes.update(dict.fromkeys(rows.tolist(), str(error)))
        if causes:
            row = min(causes)
            place = (topic, batch["partition"][row].as_py(), batch["offset"][row].as_py())
            raise UndecodableValueError(*place, self.column, causes[row], is_masked=True)
        return pa.array(made, pa.binary())

    def _group(
        self, name: int | str, frames: Frames, rows: Int64s, values: Sequence[bytes | None]
    ) -> Iterator[tuple[int, bytes]]:
        """The new values of one schema, by rows."""
        schema = self._schema(name)
        if isinstance(schema, ProtobufSchema):
            for path, (of_path, payloads) in frames.messages(rows).items():
                if path is None:
                    raise UnusableSchemaError("it has no indexes of a message")
                message = schema.at(path)
                yield from self._written(message, of_path, payloads, values)
        else:
            yield from self._written(schema, rows, frames.payloads(rows), values)

    def _schema(self, name: int | str) -> ValueSchema:
        if self._frame is not ValueFrame.NONE:
            return self._registered.parsed(self._registered.named(name, self._subject))
        return self._registered.parsed(self._registered.of_subject(self._subject, None)[0])

    def _written(
        self,
        schema: ValueSchema,
        rows: Int64s,
        payloads: Payloads,
        values: Sequence[bytes | None],
    ) -> Iterator[tuple[int, bytes]]:
        writers = self._writers_of(schema)
        if not writers:
            return
        is_lost = payloads.begins < 0
        n_whole = int(is_lost.argmax()) if is_lost.any() else len(rows)
        whole = payloads.only(slice(n_whole)).to_list()
        for row, data in zip(rows[:n_whole].tolist(), whole, strict=True):
            old = values[row] or b""
            try:
                new = data
                for write in writers:
                    new = write(new)
            except OptionError:
                raise
            except (*FAILS, *_of_packages()) as error:
                told = " ".join(f"{type(error).__name__}: {error}".split())[:200]
                raise _NotWrittenError(row, told) from None
            if self._frame is ValueFrame.GLUE and old.startswith(_AS_GLUE):
                yield row, old[:_GLUE_BYTES] + zlib.compress(new)
            else:
                yield row, old[: len(old) - len(data)] + new
        if n_whole < len(rows):
            raise _NotWrittenError(int(rows[n_whole]), "its bytes cannot be inflated")


class _NotWrittenError(Exception):
    def __init__(self, row: int, cause: str) -> None:
        super().__init__(cause)
        self.row, self.cause = row, cause


@cache
def _of_packages() -> tuple[type[Exception], ...]:
    """Errors of packages that decode, as far as they are there."""
    found = []
    for package, name in (
        ("fastavro.read", "SchemaResolutionError"),
        ("google.protobuf.message", "DecodeError"),
    ):
        try:
            found.append(getattr(needed(package), name))
        except OptionError:
            continue
    return tuple(found)


def _fields(
    path: str, kind: pa.DataType, steps: Steps = ()
) -> Iterator[tuple[str, Steps, pa.DataType]]:
    """All fields of a type, at all levels, with their paths, and the steps of these.

    A name may have a dot: then two fields can have one path.
    """
    yield path, steps, kind
    if pa.types.is_struct(kind):
        for each in kind:
            yield from _fields(f"{path}.{each.name}", each.type, (*steps, each.name))
    elif pa.types.is_list(kind):
        yield from _fields(f"{path}[]", kind.value_type, (*steps, None))
    elif pa.types.is_map(kind):
        yield from _fields(f"{path}[].value", kind.item_type, (*steps, None, "value"))


def _path(column: str, steps: Steps) -> str:
    """The path of steps, as `_fields` has it."""
    return "".join([column, *("[]" if step is None else f".{step}" for step in steps)])


def _names_in(schema: ValueSchema, other: ValueSchema, steps: Steps) -> Iterator[Steps]:
    """The steps in a schema to what is a field of another version, of the same format.

    Avro knows former names of a field by its aliases, and protobuf has numbers.
    """
    if isinstance(schema, AvroSchema) and isinstance(other, AvroSchema):
        yield from other.names_of(steps)
    if isinstance(schema, ProtobufSchema) and isinstance(other, ProtobufSchema):
        names = schema.names_of(other, steps)
        if names is not None:
            yield names


def _change(path: str, replacement: Replacement, kind: pa.DataType) -> Change:
    """The function from an old value that is not null to the new one."""
    if pa.types.is_struct(kind):
        names = ", ".join(f"{path}.{each.name}" for each in kind)
        raise OptionError("mask", path, f"it is a record; name its fields: {names}")
    if replacement is None:
        return _hidden
    if isinstance(replacement, str) and not pa.types.is_string(kind):  # of the command line
        replacement = _parsed(path, replacement, kind)
    return replacement if callable(replacement) else lambda _: replacement


def _parsed(path: str, text: str, kind: pa.DataType) -> Any:  # noqa: ANN401 - of any format
    if "binary" in str(kind):
        return text.encode()
    try:
        return Decimal(text) if pa.types.is_decimal(kind) else json.loads(text)
    except (ValueError, InvalidOperation):
        raise OptionError("mask", f"{path}={text}", f"the field is no text, but {kind}") from None


def _hidden(old: Any) -> Any:  # noqa: ANN401 - a value of any format
    """What stands in place of a value: of its kind and, of bytes and UUIDs, of its length."""
    if isinstance(old, str):
        return _NO_UUID if re.fullmatch(_UUID, old) else MASK
    if isinstance(old, bytes):
        return bytes(len(old))
    if isinstance(old, list | dict):
        return type(old)()
    return type(old)(0)


def _changed(
    value: Any,  # noqa: ANN401
    steps: Sequence[str | None],
    change: Change,
    *,
    passes: bool = False,
) -> Any:  # noqa: ANN401
    """A value of plain Python with another value at a path; null stays null.

    `passes`: whether a value of another form, which has no such path, stays as it is.
    """
    if value is None:
        return None
    if isinstance(value, tuple):  # fastavro's name of a type in a union
        return value[0], _changed(value[1], steps, change)
    if not steps:
        return change(value)
    step, *rest = steps
    if step is None and isinstance(value, dict):
        return {
            key: _changed(each, rest[1:], change, passes=passes) for key, each in value.items()
        }
    if step is None and isinstance(value, list):
        return [_changed(each, rest, change, passes=passes) for each in value]
    if not isinstance(value, dict):
        if passes:
            return value
        raise ValueError(f"{step} is a part of a union of several types")
    if step not in value:
        return value
    return {**value, step: _changed(value[step], rest, change, passes=passes)}


_Changes: TypeAlias = Sequence[tuple[Steps, Change]]
_Write: TypeAlias = Callable[[bytes], bytes]


def _avro(schema: AvroSchema, changes: _Changes, data: bytes) -> bytes:
    fastavro = needed("fastavro")
    read = partial(fastavro.schemaless_reader, return_named_type=True)
    new = read(io.BytesIO(data), schema.parsed)
    for steps, change in changes:
        new = _changed(new, steps, change)
    made = io.BytesIO()
    fastavro.schemaless_writer(made, schema.parsed, new)
    again = read(io.BytesIO(made.getvalue()), schema.parsed)
    if repr(again) != repr(new):  # NaN is not equal to itself
        raise ValueError("Avro's writer makes another value of it")
    return made.getvalue()


def _json(_: JsonSchema, changes: _Changes, data: bytes, *, passes: bool = False) -> bytes:
    new = json.loads(data)
    exact = partial(json.loads, parse_float=Decimal, parse_constant=str)
    if exact(_dumped(new)) != exact(data):
        raise ValueError("a number of it has more digits than can be written again")
    for steps, change in changes:
        new = _changed(new, steps, change, passes=passes)
    return _dumped(new)


def _dumped(value: Any) -> bytes:  # noqa: ANN401 - what JSON has
    return json.dumps(value, separators=(",", ":")).encode()


def _protobuf(
    schema: ProtobufSchema, changes: _Changes, data: bytes, *, passes: bool = False
) -> bytes:
    try:
        message = schema.message_of(data)
    except _of_packages():
        if passes:
            return data  # nobody decodes it as this version
        raise
    for steps, change in changes:
        _change_message(message, steps, change)
    made: bytes = message.SerializePartialToString(deterministic=True)
    return made


_WRITES: Mapping[type[ValueSchema], Callable[..., bytes]] = {
    AvroSchema: _avro,
    JsonSchema: _json,
    ProtobufSchema: _protobuf,
}


def _change_message(message: Any, steps: Sequence[str | None], change: Change) -> None:  # noqa: ANN401
    """Change a field of a message, if the message has it."""
    first, *rest = steps
    step = str(first)  # a message has names alone
    field = message.DESCRIPTOR.fields_by_name[step]
    value, kind = getattr(message, step), field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        of_value = kind.fields_by_name["value"]
        for key in [*value]:
            if of_value.message_type is not None:
                _change_message(value[key], rest[2:], change)
            else:
                value[key] = _scalar(of_value, value[key], change)
    elif hasattr(
        value, "extend"
    ):  # a repeated field; its descriptor says so since protobuf 6 alone
        if not rest:
            new = change([*value])
            message.ClearField(step)
            getattr(message, step).extend(new)
        elif kind is not None:
            for each in value:
                _change_within(each, rest[1:], change)
        else:
            value[:] = [_scalar(field, each, change) for each in value]
    elif kind is not None:
        if message.HasField(step):
            _change_within(value, rest, change)
    elif message.HasField(step) if field.has_presence else value != field.default_value:
        setattr(message, step, _scalar(field, value, change))


def _change_within(message: Any, steps: Sequence[str | None], change: Change) -> None:  # noqa: ANN401
    """Change a message that is a column of its own, such as a time, or a field of it."""
    if steps:
        _change_message(message, steps, change)
    elif "value" in message.DESCRIPTOR.fields_by_name:
        _change_message(message, ["value"], change)
    elif change is _hidden:
        for each in message.DESCRIPTOR.fields:
            message.ClearField(each.name)
    else:
        name = message.DESCRIPTOR.full_name
        raise OptionError("mask", name, "such a message can be hidden, and gets no other value")


def _scalar(field: Any, value: Any, change: Change) -> Any:  # noqa: ANN401
    if field.enum_type is None:
        return change(value)
    if change is _hidden:
        return field.default_value
    number = field.enum_type.values_by_number.get(value)
    new = change(value if number is None else number.name)
    return field.enum_type.values_by_name[new].number if isinstance(new, str) else new
