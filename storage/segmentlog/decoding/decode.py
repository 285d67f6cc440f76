"""A column of keys or values as the column of a schema.

Values are grouped by the schema that they name, and each group is decoded in one call.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from segmentlog.arguments import refused
from segmentlog.decoding.avro import AvroSchema
from segmentlog.decoding.frames import Frames
from segmentlog.decoding.json_schema import JsonSchema
from segmentlog.decoding.payloads import Payloads
from segmentlog.decoding.protobuf import ProtobufSchema
from segmentlog.decoding.schema import UnusableSchemaError, ValueSchema
from segmentlog.errors import LogDirectoryError, OptionError
from segmentlog.format.kernels.memory import Int64s
from segmentlog.model import ValueFrame

logger = logging.getLogger(__name__)

#: Looks for schemas that find none of those that values name, before the next one has to wait:
#: bytes that only look like ids would cause one for each batch.
_MOST_IN_VAIN = 3
_WAIT_SECONDS = 30.0

#: Why a value cannot be decoded that has no frame.
NO_SCHEMA = "it names no schema"

_FORMATS: dict[str, Callable[[str, list[tuple[str, str]]], ValueSchema]] = {
    "AVRO": AvroSchema,
    "JSON": JsonSchema,
    "PROTOBUF": ProtobufSchema,
}


class Registered:
    """The schemas of a registry, parsed when they are asked for."""

    def __init__(self, schemas: pa.Table | list[Mapping[str, Any]]) -> None:
        self._rows = schemas if isinstance(schemas, list) else _rows(schemas)
        self._versions: dict[tuple[str, int], Mapping[str, Any]] = {
            (each["subject"], each["version"]): each for each in self._rows
        }
        self._parsed: dict[tuple[str, int], ValueSchema] = {}

    def of_subject(self, subject: str | None, version: int | None) -> list[Mapping[str, Any]]:
        """A version of a subject, or all: the newest ones first, and deleted ones after others.

        None stands for the only subject.
        """
        names = dict.fromkeys(each["subject"] for each in self._rows)
        subject = next(iter(names)) if subject is None and len(names) == 1 else subject or ""
        rows = [each for each in self._rows if each["subject"] == subject]
        if not rows:
            raise refused("subject", subject, f"subjects are {', '.join(names) or 'not here'}")
        if version is None:
            return sorted(rows, key=lambda each: (bool(each["deleted"]), -each["version"]))
        if (subject, version) not in self._versions:
            known = ", ".join(str(each["version"]) for each in rows)
            raise refused("version", version, f"versions of {subject} are {known}")
        return [self._versions[subject, version]]

    def rows_of(self, subject: str) -> list[Mapping[str, Any]]:
        """All versions of a subject; all schemas if there is no such subject."""
        return [each for each in self._rows if each["subject"] == subject] or self._rows

    def lacks(self, names: Collection[int | str]) -> set[int | str]:
        """The ids and GUIDs among `names` that no schema has."""
        return {*names} - {None} - self._by_name.keys()

    @cached_property
    def _by_name(self) -> Mapping[int | str | None, list[Mapping[str, Any]]]:
        """The schemas that an id or a GUID names; those of a file have neither."""
        found: dict[int | str | None, list[Mapping[str, Any]]] = {}
        for row in self._rows:
            for name in {row["id"], row["guid"]}:
                if name is not None or _is_of_all(row):
                    found.setdefault(name, []).append(row)
        return found

    def only(self, subject: str) -> "Registered":
        """The schemas of a subject, and all that they refer to."""
        kept: dict[tuple[str, int], Mapping[str, Any]] = {}
        todo = [each for each in self._rows if each["subject"] == subject]
        while todo:
            row = todo.pop()
            place = row["subject"], row["version"]
            if place not in kept:
                kept[place] = row
                places = ((each["subject"], each["version"]) for each in row["references"] or ())
                todo += [self._versions[each] for each in places if each in self._versions]
        return Registered([row for place, row in self._versions.items() if place in kept])

    def with_newer(self, newer: "Registered") -> "Registered":
        """These schemas, and those of a later look: some may have been deleted since."""
        rows = self._versions | newer._versions
        return Registered([rows[place] for place in sorted(rows)])

    def __reduce__(self) -> tuple[object, ...]:
        """The rows travel: a schema is parsed again where it is needed."""
        return Registered, (self._rows,)

    def named(self, name: int | str, subject: str) -> Mapping[str, Any]:
        """The schema that has an id or a GUID; raises `UnusableSchemaError`."""
        field = "guid" if isinstance(name, str) else "id"
        every = self._by_name
        found: list[Mapping[str, Any]] = [*every.get(name, ()), *every.get(None, ())]
        if not found:
            raise UnusableSchemaError(f"no schema has the {field} {name}")
        found = [each for each in found if each["subject"] == subject] or found
        texts = {(each["schema_type"], _layout_free(each["schema"])) for each in found}
        if len(texts) > 1:
            subjects = ", ".join(f"{each['subject']} version {each['version']}" for each in found)
            raise UnusableSchemaError(f"the {field} {name} has several schemas: {subjects}")
        return found[0]

    def parsed(self, row: Mapping[str, Any]) -> ValueSchema:
        """A schema with those that it refers to; raises `UnusableSchemaError`."""
        place = row["subject"], row["version"]
        if place not in self._parsed:
            if row["schema_type"] not in _FORMATS:
                raise UnusableSchemaError(
                    f"its schema is {row['schema_type']}, which has no columns"
                )
            needed: dict[tuple[str, str, int], str] = {}
            self._add_references(row, needed, [place])
            make = _FORMATS[row["schema_type"]]
            self._parsed[place] = make(
                row["schema"], [(name, text) for (name, *_), text in needed.items()]
            )
        return self._parsed[place]

    def _add_references(
        self,
        row: Mapping[str, Any],
        needed: dict[tuple[str, str, int], str],
        above: list[tuple[str, int]],
    ) -> None:
        for each in row["references"] or ():
            place = each["subject"], each["version"]
            if (each["name"], *place) in needed:
                continue
            if place not in self._versions or place in above:
                reason = "refers to itself" if place in above else "is not here"
                raise UnusableSchemaError(f"{place[0]} version {place[1]} {reason}")
            referred = self._versions[place]
            self._add_references(referred, needed, [*above, place])
            needed[each["name"], *place] = referred["schema"]


def _rows(schemas: pa.Table) -> list[Mapping[str, Any]]:
    """The rows of the table ``schemas``, in the order of subjects and versions."""
    names = ["subject", "version", "id", "guid", "schema_type", "schema", "references", "deleted"]
    try:
        rows = schemas.sort_by([("subject", "ascending"), ("version", "ascending")])
        found: list[Mapping[str, Any]] = rows.select(names).to_pylist()
    except (KeyError, pa.ArrowInvalid):
        raise refused("schemas", schemas.schema.names, "give the table 'schemas'") from None
    return found


def _identity(row: Mapping[str, Any]) -> tuple[object, ...]:
    """What two versions have in common that are the same schema."""
    return row["schema_type"], _layout_free(row["schema"]), row["references"]


def _is_of_all(row: Mapping[str, Any]) -> bool:
    """Whether a schema is that of all values: a file has neither an id nor a GUID."""
    return row["id"] is None and row["guid"] is None


def _layout_free(schema: str) -> str:
    try:
        return json.dumps(json.loads(schema))
    except (ValueError, RecursionError):
        return schema


def as_it_is(kind: pa.DataType) -> pa.DataType:
    """The type of a schema as the type of a column."""
    return kind


def _cast(values: pa.Array, kind: pa.DataType, causes: dict[int, str]) -> pa.Array:
    """Values as another type; null where there is a cause, because it cannot hold the value."""
    if values.type == kind:
        return values
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        parts = []
        for number in range(len(values)):
            try:
                parts.append(values.slice(number, 1).cast(kind))
            except pa.ArrowInvalid as error:
                causes.setdefault(number, f"it does not fit {kind} ({error})"[:200])
                parts.append(pa.nulls(1, kind))
        return pa.concat_arrays(parts)


class ColumnDecoder:
    """Decodes keys or values to one schema of a subject.

    `column`: ``key`` or ``value``.  `version`: of the subject, or None for the newest one: `type`,
    the type of the result, stays the same also if newer versions come.  `look_up`: finds the table
    ``schemas`` as it is now, if values name schemas that are not known.  `fitted`: the type that
    is wanted for the type of a schema; raises `UnusableSchemaError` if there is none.  `searches`:
    whether the newest version is taken for which it does not.  `frame`: of the values.

    It can be pickled, and then has the schemas of its subject alone if it can look others up.
    Raises `OptionError`.
    """

    def __init__(
        self,
        registered: Registered,
        column: str,
        subject: str | None,
        version: int | None,
        look_up: Callable[[], pa.Table] | None = None,
        fitted: Callable[[pa.DataType], pa.DataType] = as_it_is,
        *,
        searches: bool = False,
        frame: ValueFrame = ValueFrame.CONFLUENT,
    ) -> None:
        self.column = column
        self._registered, self._frame = registered, frame
        self._look_up = None if frame is ValueFrame.NONE else look_up
        rows = registered.of_subject(subject, version)
        self._subject: str = rows[0]["subject"]
        reasons: list[str] = []
        for row in rows if searches else rows[:1]:
            try:
                self._row, self.type = row, fitted(registered.parsed(row).type)
            except UnusableSchemaError as error:
                reasons.append(f"version {row['version']} cannot be decoded: {error}")
            else:
                break
        else:
            raise OptionError("subject", self._subject, reasons[0])
        self._begin()

    def _begin(self) -> None:
        # Threads share a decoder.  These two, and `_registered`, are replaced under the lock; who
        # decodes takes the `_registered` of the moment without it.
        self._n_looks, self._next_look = _MOST_IN_VAIN, 0.0
        self._lock = threading.Lock()

    @property
    def uses_headers(self) -> bool:
        """Whether serializers may write to headers what names the schema."""
        return self._frame in (ValueFrame.CONFLUENT, ValueFrame.APICURIO)

    @cached_property
    def _reader(self) -> ValueSchema:
        return self._registered.parsed(self._row)

    @cached_property
    def _same(self) -> tuple[object, ...]:
        """What a schema under another version has, if it is the same, for the quick way."""
        return _identity(self._row)

    def __getstate__(self) -> dict[str, object]:
        """What is known of the subject, and how to look the rest up; parsed where it is needed."""
        has_more = self._look_up is not None
        known = self._registered.only(self._subject) if has_more else self._registered
        kept = ("column", "type", "_subject", "_look_up", "_row", "_frame")
        return {name: getattr(self, name) for name in kept} | {"_registered": known}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._begin()

    def decoded(self, batch: pa.RecordBatch) -> tuple[pa.Array, dict[int, str]]:
        """The decoded column, and by rows, why a value of it is null and was not.

        Raises `OptionError` if this process lacks a package.
        """
        try:
            return self._decoded(batch)
        except OptionError as error:
            raise OptionError("decode", self.column, error.accepted) from None

    def _decoded(self, batch: pa.RecordBatch) -> tuple[pa.Array, dict[int, str]]:
        headers = batch.column("headers") if "headers" in batch.schema.names else None
        values = batch.column(self.column)
        frames = Frames(values, headers, is_key=self.column == "key", frame=self._frame)
        causes: dict[int, str] = {}
        groups = [*frames.rows_by_name()]
        self._look_again({name for name, _ in groups if name is not None})
        parts: list[tuple[Int64s, pa.Array]] = []
        for name, rows in groups:
            if name is None:
                causes.update(dict.fromkeys(rows.tolist(), NO_SCHEMA))
            else:
                parts += self._group(name, frames, rows, causes)
        if len(parts) == 1 and len(parts[0][1]) == len(values):
            return parts[0][1], causes
        index = np.full(len(values), -1, np.int64)
        decoded = np.concatenate([np.empty(0, np.int64), *(rows for rows, _ in parts)])
        index[decoded] = np.arange(len(decoded))
        found = pa.concat_arrays([pa.nulls(0, self.type), *(part for _, part in parts)])
        return found.take(pa.array(index, mask=index < 0)), causes

    def _look_again(self, names: Collection[int | str]) -> None:
        """Look the schemas up if values name others than those that are known."""
        with self._lock:
            if self._look_up is None or not self._registered.lacks(names):
                return
            now = time.monotonic()
            if self._n_looks <= 0 and now < self._next_look:
                return
            self._n_looks, self._next_look = self._n_looks - 1, now + _WAIT_SECONDS
            try:
                looked_up = Registered(self._look_up())
            except (LogDirectoryError, OptionError) as error:  # what is known decodes what it can
                logger.warning("the schemas of %s cannot be looked up: %s", self._subject, error)
                return
            found = self._registered.with_newer(looked_up)
            if self._registered.lacks(names) != found.lacks(names):
                self._n_looks = _MOST_IN_VAIN
            self._registered = found

    def _group(
        self, name: int | str, frames: Frames, rows: Int64s, causes: dict[int, str]
    ) -> Iterator[tuple[Int64s, pa.Array]]:
        """The values of one schema by rows, if it can be used."""
        try:
            is_framed = self._frame is not ValueFrame.NONE
            row = self._registered.named(name, self._subject) if is_framed else self._row
            same = _identity(row)
            if same[0] != self._same[0]:
                raise UnusableSchemaError(f"its schema is {same[0]}, and not {self._same[0]}")
            writer = self._reader if same == self._same else self._registered.parsed(row)
            if not isinstance(writer, ProtobufSchema):
                yield self._column_of(writer, frames.payloads(rows), name, rows, causes)
                return
            messages = frames.messages(rows)
        except UnusableSchemaError as error:
            causes.update(dict.fromkeys(rows.tolist(), str(error)))
            return
        for path, (of_path, values) in messages.items():
            try:
                if path is None:
                    raise UnusableSchemaError("it has no indexes of a message")
                message = writer.at(path)
            except UnusableSchemaError as error:
                causes.update(dict.fromkeys(of_path.tolist(), f"{error}, with the schema {name}"))
                continue
            yield self._column_of(message, values, name, of_path, causes)

    def _column_of(
        self,
        writer: ValueSchema,
        values: Payloads,
        name: int | str,
        rows: Int64s,
        causes: dict[int, str],
    ) -> tuple[Int64s, pa.Array]:
        """The rows that have bytes, and their values."""
        if values.begins.min(initial=0) < 0:
            is_lost = values.begins < 0
            lost = rows[is_lost].tolist()
            causes.update(dict.fromkeys(lost, "its bytes cannot be inflated"))
            rows, values = rows[~is_lost], values.only(~is_lost)
        found: dict[int, str] = {}
        column = _cast(writer.decode(values, self._reader, found), self.type, found)
        for number, cause in found.items():
            causes[int(rows[number])] = f"{cause}, with the schema {name}"
        return rows, column
