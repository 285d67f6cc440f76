"""``segmentlog.decode``: rows whose keys or values become columns of their schemas.

Values are grouped by the schema that they name, and each group is decoded in one call.
"""

import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Any

import numpy as np
import pyarrow as pa

from segmentlog.arguments import one_dialect, one_of, refused, whole_number
from segmentlog.decoding.avro import AvroSchema
from segmentlog.decoding.frames import Frames
from segmentlog.decoding.json_schema import JsonSchema
from segmentlog.decoding.protobuf import ProtobufSchema
from segmentlog.decoding.schema import Schema, UnusableSchemaError
from segmentlog.errors import OptionError, UndecodableValueError
from segmentlog.format.kernels.memory import Int64s
from segmentlog.kafka_tables.open_table import table
from segmentlog.reads.log_directory import LogDirectory

logger = logging.getLogger(__name__)

_MOST_NAMED = 5  #: causes that a warning names
_MOST_COUNTED = 1_000  #: causes that are told apart: each value could have one of its own

#: The column of causes, if values that cannot be decoded are null.
_CAUSE = "undecodable"

_FORMATS: dict[str, Callable[[str, list[tuple[str, str]]], Schema]] = {
    "AVRO": AvroSchema, "JSON": JsonSchema, "PROTOBUF": ProtobufSchema,
}  # fmt: skip


class OnUndecodable(StrEnum):
    """What happens to a row whose value cannot be decoded."""

    FAIL = "fail"
    NULL = "null"
    SKIP = "skip"


@one_dialect()
def decode(
    rows: Any,  # noqa: ANN401 - all that has Arrow's protocol of streams
    schemas: str | os.PathLike[str] | LogDirectory | pa.Table,
    subject: str,
    *,
    column: str = "value",
    version: int | None = None,
    on_undecodable: OnUndecodable | str = OnUndecodable.FAIL,
) -> Any:  # noqa: ANN401 - as `rows` is
    """Rows whose keys or values are columns of their schemas, in Avro, JSON or protobuf.

    ::

        rows = segmentlog.read("/var/lib/kafka", "orders", include_headers=True)
        segmentlog.decode(rows, "/var/lib/kafka", "orders-value")

    All values are resolved to one schema of the subject by the rules of its format.  Avro's are:
    fields by their names and aliases, defaults, and promotions of numbers.  In protobuf, fields
    have numbers, and in JSON they have names.

    Parameters
    ----------
    rows : a ``pyarrow.Table``; or a stream, such as a dataset or a ``RecordBatchReader``.  With a
        column ``headers``, ids and GUIDs in headers count, too.
    schemas : the log directory that has the registry's topic ``_schemas``, or its table
        ``schemas``.  Deleted versions count: values name them.
    subject : the subject whose schema the result has; serializers name it ``TOPIC-value`` or
        ``TOPIC-key`` by default.
    column : ``value`` or ``key``.
    version : of the subject; by default the newest that is not deleted.
    on_undecodable : ``fail`` ends with the first value that cannot be decoded; ``null`` makes it
        null, and adds a column ``undecodable`` with the cause; ``skip`` leaves the row out, and
        logs how many were left out, and why.

    Returns
    -------
    pyarrow.Table or pyarrow.RecordBatchReader
        A table if `rows` is one; else a stream, which decodes while it is read.  The column has
        the type of the schema: a struct for a record.  A null stays null.

    Raises
    ------
    OptionError
        If the subject or the version is not there, the schema is not one of its format, Arrow has
        no type for it, a package of the extra ``schemas`` is missing, or a column.
    UndecodableValueError
        At a value that cannot be decoded: it has no id, the id has no schema or several, or its
        bytes do not have the form of the schema.

    Notes
    -----
    Bytes after the end of a value are left out, as the registry's deserializers do.  Messages
    of protobuf, flat records of Avro, and most objects of JSON are decoded as columns, and all
    others one by one.
    """
    on_undecodable = one_of("on_undecodable", on_undecodable, OnUndecodable)
    if column not in ("key", "value"):
        raise OptionError("column", str(column), "it is 'key' or 'value'")
    if version is not None:
        version = whole_number("version", version, 1)
    try:
        reader = pa.RecordBatchReader.from_stream(rows)
    except TypeError:
        raise refused("rows", rows, "give a table, or a stream of Arrow") from None
    registered = schemas if isinstance(schemas, pa.Table) else table(schemas, "schemas")
    decoder = _Decoder(_Registered(registered), subject, version, column, on_undecodable)
    schema = decoder.schema_of(reader.schema)
    decoded = pa.RecordBatchReader.from_batches(schema, decoder.batches(reader, schema))
    return decoded.read_all() if isinstance(rows, pa.Table) else decoded


class _Registered:
    """The schemas of a registry, parsed when they are asked for."""

    def __init__(self, schemas: pa.Table) -> None:
        try:
            rows = schemas.sort_by([("subject", "ascending"), ("version", "ascending")])
            self._rows: list[Mapping[str, Any]] = rows.select(
                ["subject", "version", "id", "guid", "schema_type", "schema", "references",
                 "deleted"]
            ).to_pylist()  # fmt: skip
        except (KeyError, pa.ArrowInvalid):
            raise refused("schemas", schemas.schema.names, "give the table 'schemas'") from None
        self._versions: dict[tuple[str, int], Mapping[str, Any]] = {
            (each["subject"], each["version"]): each for each in self._rows
        }
        self._parsed: dict[tuple[str, int], Schema] = {}

    def of_subject(self, subject: str, version: int | None) -> Mapping[str, Any]:
        """A version of a subject, or the newest one."""
        rows = [each for each in self._rows if each["subject"] == subject]
        if not rows:
            names = dict.fromkeys(each["subject"] for each in self._rows)
            raise refused("subject", subject, f"subjects are {', '.join(names) or 'not here'}")
        if version is None:
            kept = [each for each in rows if not each["deleted"]]
            return [*rows, *kept][-1]
        if (subject, version) not in self._versions:
            known = ", ".join(str(each["version"]) for each in rows)
            raise refused("version", version, f"versions of {subject} are {known}")
        return self._versions[subject, version]

    def named(self, name: int | str, subject: str) -> Mapping[str, Any]:
        """The schema that has an id or a GUID; raises `UnusableSchemaError`."""
        field = "guid" if isinstance(name, str) else "id"
        found = [each for each in self._rows if each[field] == name]
        if not found:
            raise UnusableSchemaError(f"no schema has the {field} {name}")
        found = [each for each in found if each["subject"] == subject] or found
        texts = {(each["schema_type"], _layout_free(each["schema"])) for each in found}
        if len(texts) > 1:
            subjects = ", ".join(f"{each['subject']} version {each['version']}" for each in found)
            raise UnusableSchemaError(f"the {field} {name} has several schemas: {subjects}")
        return found[0]

    def parsed(self, row: Mapping[str, Any]) -> Schema:
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


def _layout_free(schema: str) -> str:
    try:
        return json.dumps(json.loads(schema))
    except (ValueError, RecursionError):
        return schema


class _Decoder:
    """Decodes a column of batches to the schema of a subject."""

    def __init__(
        self,
        registered: _Registered,
        subject: str,
        version: int | None,
        column: str,
        on_undecodable: OnUndecodable,
    ) -> None:
        self._registered = registered
        self._subject = subject
        self._column = column
        self._on_undecodable = on_undecodable
        row = registered.of_subject(subject, version)
        try:
            self._reader = registered.parsed(row)
        except UnusableSchemaError as error:
            accepted = f"version {row['version']} cannot be decoded: {error}"
            raise OptionError("subject", subject, accepted) from None
        # The same schema under another version is the same object, for the quick way.
        self._same = row["schema_type"], _layout_free(row["schema"]), row["references"]
        self._n_skipped: Counter[str] = Counter()

    def schema_of(self, schema: pa.Schema) -> pa.Schema:
        """The schema of the result."""
        index = schema.get_field_index(self._column)
        if index < 0:
            raise refused("rows", schema.names, f"the column {self._column} is missing")
        kind = schema.field(index).type
        if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
            raise refused("rows", str(kind), f"the column {self._column} has bytes")
        schema = schema.set(index, pa.field(self._column, self._reader.type))
        if self._on_undecodable == OnUndecodable.NULL:
            schema = schema.append(pa.field(_CAUSE, pa.string()))
        return schema

    def batches(
        self, batches: pa.RecordBatchReader, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """The rows of the result."""
        for batch in batches:
            yield from self._decoded(batch, schema)
        if self._n_skipped:
            most = self._n_skipped.most_common(_MOST_NAMED)
            logger.warning(
                "%d rows of which the %s cannot be decoded are left out: %s",
                self._n_skipped.total(), self._column,
                "; ".join(f"{n} because of {cause}" for cause, n in most),
            )  # fmt: skip

    def _decoded(self, batch: pa.RecordBatch, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        column, causes = self._values(batch)
        if causes and self._on_undecodable == OnUndecodable.FAIL:
            row = min(causes)
            place: list[Any] = [
                batch.column(name)[row].as_py() if name in batch.schema.names else unknown
                for name, unknown in (("topic", "?"), ("partition", -1), ("offset", row))
            ]
            topic, partition, offset = place
            raise UndecodableValueError(topic, partition, offset, self._column, causes[row])
        columns = batch.columns
        columns[batch.schema.get_field_index(self._column)] = column
        if self._on_undecodable == OnUndecodable.NULL:
            columns.append(pa.array([causes.get(n) for n in range(len(batch))], pa.string()))
        made = pa.RecordBatch.from_arrays(columns, schema=schema)
        if causes and self._on_undecodable == OnUndecodable.SKIP:
            for cause in causes.values():
                is_known = cause in self._n_skipped or len(self._n_skipped) < _MOST_COUNTED
                self._n_skipped[cause if is_known else "other causes"] += 1
            keeps = np.ones(len(batch), bool)
            keeps[[*causes]] = False
            made = made.filter(pa.array(keeps))
        yield made

    def _values(self, batch: pa.RecordBatch) -> tuple[pa.Array, dict[int, str]]:
        """The decoded column, and the causes by rows."""
        headers = batch.column("headers") if "headers" in batch.schema.names else None
        values = batch.column(self._column)
        frames = Frames(values, headers, is_key=self._column == "key")
        is_left = values.is_valid().to_numpy(zero_copy_only=False).copy()
        causes: dict[int, str] = {}
        index = np.full(len(values), -1, np.int64)
        parts: list[pa.Array] = [pa.nulls(0, self._reader.type)]
        n_parts = 0
        for each in frames.names():
            groups = each.dictionary_encode()
            codes = groups.indices.fill_null(-1).to_numpy()
            for code, name in enumerate(groups.dictionary.to_pylist()):
                rows = np.flatnonzero((codes == code) & is_left)
                is_left[rows] = False
                if not len(rows):
                    continue
                for decoded, found in self._group(name, frames, rows, causes):
                    index[decoded] = n_parts + np.arange(len(decoded))
                    parts.append(found)
                    n_parts += len(decoded)
        for row in np.flatnonzero(is_left).tolist():
            causes[row] = "it names no schema"
        column = pa.concat_arrays(parts).take(pa.array(index, mask=index < 0))
        return column, causes

    def _group(
        self, name: int | str, frames: Frames, rows: Int64s, causes: dict[int, str]
    ) -> Iterator[tuple[Int64s, pa.Array]]:
        """The values of one schema by rows, if it can be used."""
        try:
            row = self._registered.named(name, self._subject)
            same = row["schema_type"], _layout_free(row["schema"]), row["references"]
            if same[0] != self._same[0]:
                raise UnusableSchemaError(f"its schema is {same[0]}, and not {self._same[0]}")
            writer = self._reader if same == self._same else self._registered.parsed(row)
        except UnusableSchemaError as error:
            causes.update(dict.fromkeys(rows.tolist(), str(error)))
            return
        if not isinstance(writer, ProtobufSchema):
            yield rows, self._column_of(writer, frames.payloads(rows), name, rows, causes)
            return
        for path, (of_path, values) in frames.messages(rows).items():
            try:
                if path is None:
                    raise UnusableSchemaError("it has no indexes of a message")
                message = writer.at(path)
            except UnusableSchemaError as error:
                causes.update(dict.fromkeys(of_path.tolist(), f"{error}, with the schema {name}"))
                continue
            yield of_path, self._column_of(message, values, name, of_path, causes)

    def _column_of(
        self,
        writer: Schema,
        values: list[bytes],
        name: int | str,
        rows: Int64s,
        causes: dict[int, str],
    ) -> pa.Array:
        found: dict[int, str] = {}
        column = writer.decode(values, self._reader, found)
        for number, cause in found.items():
            causes[int(rows[number])] = f"{cause}, with the schema {name}"
        return column
