"""A schema registry: its topic as the table ``schemas``, and the ids that its serializers write.

Keys and values are JSON.  A key is parsed and never compared as bytes, because releases differ in
the order of its members.  A tombstone removes a version of a subject.  ``DELETE_SUBJECT`` marks
versions as deleted; their ids can still be resolved.

Serializers that write to headers name a schema by its GUID, the MD5 of its text and its
references.  Metadata and rules of a schema are part of it, too; such a schema has a GUID here only
if the registry has stored it.

A serializer writes the id of a schema before a value: a byte 0, four bytes of the id, and the
rest.  Or it is in a header of the record, and the value has no frame.  A header has a byte 0 and
four bytes of the id, or a byte 1 and the 16 bytes of a GUID.  If a record has the header, the
header alone counts.

Before a message of protobuf, and after the id, stands the path to its type in the schema: a count,
followed by that many indexes, each a zigzag varint.  The path ``[0]`` is one byte 0.  Some clients
have written unsigned varints, of which an odd count is negative as a zigzag varint.

Other values may begin with a byte 0, too.  An id that the table ``schemas`` does not have shows
that.

Rules: ``SchemaRegistryKey``, ``SchemaValue``, ``MD5.ofSchema`` and ``KafkaStoreMessageHandler`` of
Confluent's registry, which Karapace follows; ``SchemaId`` and ``DualSchemaIdDeserializer`` of its
serializers.
"""

import base64
import hashlib
import json
import logging
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from segmentlog.arguments import LARGEST_INT, instance_of, one_dialect, refused
from segmentlog.format.kernels.layout import FRAME_BYTES
from segmentlog.format.kernels.memory import Bytes, Int64s
from segmentlog.format.records.columns import binary_views, where
from segmentlog.kafka_tables.columns import BOOL, INT, ORIGIN, TEXT, Cells, Column, Row, Table
from segmentlog.kafka_tables.source import TableSource
from segmentlog.reads.log import Log

Values: TypeAlias = pa.Array | pa.ChunkedArray

_GUID_BYTES = 17

#: A longer path is not one: messages of protobuf are not nested so deeply.
_MOST_INDEXES = 63


@one_dialect()
def schema_id(values: Values, headers: Values | None = None, *, is_key: bool = False) -> Values:
    """Ids of the schemas of values, for a join with the table ``schemas``.

    ::

        values = segmentlog.read("/var/lib/kafka", "orders")
        values.append_column("id", segmentlog.schema_id(values["value"]))

    Parameters
    ----------
    values : keys or values, binary of any kind, shape (n_records,).
    headers : of the records, as a read returns them, shape (n_records,); None if no serializer
        has written ids to headers.
    is_key : whether the values are keys, whose header has another name.

    Returns
    -------
    pyarrow.Array or pyarrow.ChunkedArray
        int32, shape (n_records,); null for a value that is not framed, and for a GUID.

    Raises
    ------
    OptionError
        If the values are not bytes.
    """

    def ids(values: pa.Array, headers: pa.Array | None) -> pa.Array:
        framed = _ids(as_binary(values))
        if headers is None:
            return framed
        found = schema_headers(headers, is_key=is_key)
        return pc.if_else(found.is_valid(), _ids(found), framed)

    return _by_chunk(ids, pa.int32(), values, headers)


@one_dialect()
def schema_guid(headers: Values, *, is_key: bool = False) -> Values:
    """GUIDs of schemas in headers, for a join with the column ``guid`` of ``schemas``.

    Parameters
    ----------
    headers : of the records, as a read returns them, shape (n_records,).
    is_key : whether the GUIDs are those of keys.

    Returns
    -------
    pyarrow.Array or pyarrow.ChunkedArray
        string such as ``1d20cbb9-e5e3-5e97-54e7-da170b6e5ddb``, shape (n_records,); null for a
        record without the header, and for an id.
    """

    def guids(headers: pa.Array, _: None) -> pa.Array:
        return _guids(schema_headers(headers, is_key=is_key))

    return _by_chunk(guids, pa.string(), headers, None, "headers")


@one_dialect()
def payload(
    values: Values,
    headers: Values | None = None,
    *,
    is_key: bool = False,
    is_protobuf: bool = False,
) -> Values:
    """The bytes of values without the id of their schema.

    Parameters
    ----------
    values, headers, is_key : as of `schema_id`.
    is_protobuf : whether the path to the type of the message is left out, too.

    Returns
    -------
    pyarrow.Array or pyarrow.ChunkedArray
        binary, shape (n_records,); null for a value that is not framed, or has no path.

    Raises
    ------
    OptionError
        If the values are not bytes.
    """

    def payloads(values: pa.Array, headers: pa.Array | None) -> pa.Array:
        values = as_binary(values)
        rest = _after_id(values)
        if is_protobuf:
            rest = _after_paths(rest)
        if headers is None:
            return rest
        found = schema_headers(headers, is_key=is_key)
        is_named = pc.or_(_begins(found, 0, FRAME_BYTES), _begins(found, 1, _GUID_BYTES))
        whole = where(is_named, values, pa.scalar(None, pa.binary()))
        return pc.if_else(found.is_valid(), whole, rest)

    return _by_chunk(payloads, pa.binary(), values, headers)


@one_dialect()
def message_indexes(
    values: Values, headers: Values | None = None, *, is_key: bool = False
) -> Values:
    """Paths to the types of messages of protobuf in their schemas.

    The first index is that of a message of the file, and each further index is that of a message
    inside the message before it.

    Parameters
    ----------
    values, headers, is_key : as of `schema_id`.

    Returns
    -------
    pyarrow.Array or pyarrow.ChunkedArray
        list of int32, shape (n_records,); null for a value that is not framed, or has no path.

    Raises
    ------
    OptionError
        If the values are not bytes.
    """

    def indexes(values: pa.Array, headers: pa.Array | None) -> pa.Array:
        rest = _after_id(as_binary(values))
        if headers is not None:
            found = schema_headers(headers, is_key=is_key)
            after_guid = where(
                _begins(found, 1, _GUID_BYTES),
                pc.binary_replace_slice(found, 0, _GUID_BYTES, b""),
                pa.scalar(None, pa.binary()),
            )
            rest = pc.if_else(found.is_valid(), pc.coalesce(after_guid, _after_id(found)), rest)
        return _Paths(rest).indexes()

    return _by_chunk(indexes, pa.list_(pa.int32()), values, headers)


def _by_chunk(
    make: Callable[..., pa.Array],
    kind: pa.DataType,
    values: Values,
    headers: Values | None,
    name: str = "values",
) -> Values:
    """A column that is made of each chunk of the columns."""
    columns = {name: values} | ({} if headers is None else {"headers": headers})
    for option, column in columns.items():
        accepted = "give a column of pyarrow: an Array or a ChunkedArray"
        instance_of(option, column, (pa.Array, pa.ChunkedArray), accepted)
    if not isinstance(values, pa.ChunkedArray) and not isinstance(headers, pa.ChunkedArray):
        return make(values, headers)
    chunks = [
        make(batch[name], None if headers is None else batch["headers"])
        for batch in pa.table(columns).to_batches()
    ]
    return pa.chunked_array(chunks, kind)


def as_binary(values: pa.Array) -> pa.Array:
    """Values as plain binary: other libraries return large binary, views and dictionaries."""
    try:
        return values.cast(pa.binary())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        accepted = "give a column of bytes, with chunks below 2 GiB"
        raise refused("values", str(values.type), accepted) from None


def schema_headers(headers: pa.Array, *, is_key: bool) -> pa.Array:
    """The last header of each record that names the schema; null without one."""
    return last_headers(headers, b"__key_schema_id" if is_key else b"__value_schema_id")


def last_headers(headers: pa.Array, name: bytes) -> pa.Array:
    """The last header of each record that has the name; null without one."""
    every = pc.list_flatten(headers)
    names = pc.struct_field(every, "key")
    is_named = pc.fill_null(pc.equal(names, pa.scalar(name).cast(names.type)), False)
    rows = pc.list_parent_indices(headers).filter(is_named).to_numpy()
    index = np.full(len(headers), -1, np.int64)
    index[rows] = np.arange(len(rows))  # of several headers of a record, the last assignment holds
    values = as_binary(pc.struct_field(every, "value").filter(is_named))
    return values.take(pa.array(index, mask=index < 0))


def _begins(values: pa.Array, byte: int, n_bytes: int) -> pa.Array:
    """Whether values begin with a byte, and have some length at least."""
    begins = pc.equal(pc.binary_slice(values, 0, 1), pa.scalar(bytes([byte]), pa.binary()))
    is_long = pc.greater_equal(pc.binary_length(values), n_bytes)
    return pc.fill_null(pc.and_(begins, is_long), False)


def _ids(values: pa.Array) -> pa.Array:
    """The ids that values begin with; a negative id is not one of a registry."""
    from segmentlog.format.kernels.serialized import (
        read_frame_ids,  # the compiled kernels load here
    )

    data, bounds = binary_views(values)
    ids = np.empty(len(values), np.int32)
    read_frame_ids(data, bounds[:-1], bounds[1:], ids)
    if not values.null_count and ids.min(initial=0) >= 0:
        return pa.array(ids)
    return pa.array(ids, mask=(ids < 0) | values.is_null().to_numpy(zero_copy_only=False))


def _guids(found: pa.Array) -> pa.Array:
    """The GUIDs that headers have, as Java prints them."""
    cells = Cells(found)
    has_guid = (cells.number(1) == 1) & cells.is_right
    raw = cells.bytes(16)
    return printed_guids(raw, has_guid & cells.is_right)


def printed_guids(raw: Bytes, has_guid: Bytes) -> pa.Array:
    """GUIDs as Java prints them; null where there is none.

    `raw`: their bytes, shape (n, 16).  `has_guid`: shape (n,).
    """
    rows = np.flatnonzero(has_guid)
    if not len(rows):
        return pa.nulls(len(raw), pa.string())
    raw = raw[rows]
    digits = np.frombuffer(raw.tobytes().hex().encode(), np.uint8).reshape(-1, 32)
    printed = np.insert(digits, [8, 12, 16, 20], ord("-"), axis=1)
    ends = np.arange(len(rows) + 1, dtype=np.int32) * printed.shape[1]
    texts = pa.StringArray.from_buffers(
        len(rows), pa.py_buffer(ends), pa.py_buffer(printed.tobytes())
    )
    places = np.full(len(has_guid), -1, np.int64)
    places[rows] = np.arange(len(rows))
    return texts.take(pa.array(places, mask=places < 0))


def _after_id(values: pa.Array) -> pa.Array:
    """The bytes after the id; null for a value that is not framed."""
    rest = pc.binary_replace_slice(values, 0, FRAME_BYTES, b"")
    return where(_begins(values, 0, FRAME_BYTES), rest, pa.scalar(None, pa.binary()))


def _after_paths(values: pa.Array) -> pa.Array:
    """The bytes after the path; null without one."""
    paths = _Paths(values)
    parts, index = [pa.array([], pa.binary())], np.full(len(values), -1, np.int64)
    for n_bytes in np.unique(paths.n_bytes[paths.are_whole]).tolist():
        rows = np.flatnonzero(paths.are_whole & (paths.n_bytes == n_bytes))
        index[rows] = sum(map(len, parts)) + np.arange(len(rows))
        parts.append(pc.binary_replace_slice(values.take(pa.array(rows)), 0, n_bytes, b""))
    return pa.concat_arrays(parts).take(pa.array(index, mask=index < 0))


class _Paths:
    """The paths that values begin with.

    `values`: binary, shape (n_records,).  `are_whole`: whether a value begins with a path, shape
    (n_records,).  `n_bytes`: of the path, where there is one, shape (n_records,).
    """

    def __init__(self, values: pa.Array) -> None:
        cells = Cells(values)
        first = cells.number(1) & 0xFF
        self._is_unsigned = first % 2 == 1
        self._counts = np.where(self._is_unsigned, first, first >> 1)
        cells.is_right &= self._counts <= _MOST_INDEXES
        self._steps: list[tuple[Int64s, Int64s]] = []
        for step in range(int(self._counts[cells.is_right].max(initial=0))):
            rows = np.flatnonzero(cells.is_right & (self._counts > step))
            if not len(rows):
                break
            numbers = cells.varint(rows)
            self._steps.append((rows, numbers))
            # No message has a negative index, so what begins like a path is none.
            is_negative = (numbers % 2 == 1) & ~self._is_unsigned[rows]
            cells.is_right[rows[is_negative]] = False
        self.are_whole, self.n_bytes = cells.is_right, cells.n_taken

    def indexes(self) -> pa.Array:
        """The paths as lists of int32; null where there is none."""
        lengths = np.where(self.are_whole, np.maximum(self._counts, 1), 0)
        ends = np.append(0, np.cumsum(lengths))
        flat = np.zeros(ends[-1], np.int32)
        for step, (rows, numbers) in enumerate(self._steps):
            signed = (numbers >> 1) ^ -(numbers & 1)
            decoded = np.where(self._is_unsigned[rows], numbers, signed).astype(np.int32)
            is_whole = self.are_whole[rows]
            flat[ends[rows[is_whole]] + step] = decoded[is_whole]
        mask = pa.array(~self.are_whole)
        return pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), pa.array(flat), mask=mask)


logger = logging.getLogger(__name__)

_MOST_NAMED = 5  #: ids, and schemas of an id, that warnings name

#: Errors of JSON that has another form, in the code that takes it apart.
_NOT_OF_A_REGISTRY = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


def _schema_changes(source: TableSource, log: Log) -> Iterator[Row]:
    """Every record of a schema, and every version that the deletion of a subject marks."""

    def why_not(error: Exception) -> str:
        return f"it is not JSON of a schema registry ({type(error).__name__}: {error})"

    known: dict[str, dict[int, Row]] = {}
    keys = defaultdict[tuple[str, int], set[bytes]](set)
    yield from source.rows(
        log, partial(_changes, known=known, keys=keys), why_not, _NOT_OF_A_REGISTRY
    )
    for (subject, version), left in sorted(keys.items()):
        if left and version not in known.get(subject, {}):
            shown = " and ".join(each.decode("utf-8", "replace") for each in sorted(left))
            logger.warning(
                "%s version %d was removed by a key of other bytes than %s, which compaction "
                "keeps: once the tombstone is gone, a registry that starts shows the schema "
                "again; write a record without a value for this key",
                subject,
                version,
                shown,
            )


def _changes(
    key: bytes | None,
    value: bytes | None,
    known: dict[str, dict[int, Row]],
    keys: dict[tuple[str, int], set[bytes]],
) -> list[Row]:
    """The rows that a record sets or removes; records of other types make none.

    `keys`: gets the keys with a value, by subject and version: registries have written the same
    key with other bytes.
    """
    parsed = json.loads(key or b"")
    kind = parsed["keytype"]
    if kind == "DELETE_SUBJECT" and value is not None:
        subject, version = parsed["subject"], _number(json.loads(value)["version"])
        versions = known.get(subject, {})
        marked = [row | {"deleted": True} for n, row in versions.items() if n <= version]
        versions |= {row["version"]: row for row in marked}
        return marked
    if kind != "SCHEMA":
        return []
    subject, version = _text(parsed["subject"]), _number(parsed["version"])
    row: Row = {"subject": subject, "version": version}
    if value is None:
        known.get(subject, {}).pop(version, None)
        keys[subject, version].discard(key or b"")
        return [row | {"change": "removed"}]
    fields = json.loads(value)
    row |= {
        "id": _number(fields["id"]),
        "schema_type": _text(fields.get("schemaType") or "AVRO"),
        "schema": _text(fields["schema"]),
        "references": [
            {
                "name": _text(each["name"]),
                "subject": _text(each["subject"]),
                "version": _number(each["version"]),
            }
            for each in fields.get("references") or ()
        ],
        "deleted": bool(fields.get("deleted", False)),
        "change": "set",
    }
    row["guid"] = _guid(fields, row)
    keys[subject, version].add(key or b"")
    known.setdefault(subject, {})[version] = row
    return [row]


def warn_of_ambiguous_ids(rows: Iterable[Mapping[str, Any]]) -> None:
    """Warn of ids that several schemas have: a join by id would decode with the wrong one.

    A registry never gives an id twice.  Topics that were merged or written by two registries do,
    and so do contexts, each of which has its own ids.
    """
    by_id: dict[int, dict[tuple[str, ...], list[str]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        schema = (row["schema_type"], _canonical(row["schema"]), json.dumps(row["references"]))
        by_id[row["id"]][schema].append(f"{row['subject']} version {row['version']}")
    ambiguous = {number: found for number, found in sorted(by_id.items()) if len(found) > 1}
    for number, found in list(ambiguous.items())[:_MOST_NAMED]:
        others = ", ".join(subjects[0] for subjects in list(found.values())[:_MOST_NAMED])
        contexts = {each[0].split(":")[1] if each[0][:1] == ":" else "" for each in found.values()}
        reason = " in several contexts" if len(contexts) > 1 else ""
        logger.warning(
            "schema id %d has %d different schemas%s (%s): a join by id alone decodes values with "
            "the wrong schema; also compare the subject",
            number,
            len(found),
            reason,
            others,
        )
    if len(ambiguous) > _MOST_NAMED:
        logger.warning("%d more ids have several schemas", len(ambiguous) - _MOST_NAMED)


def _canonical(schema: str) -> str:
    """The text of a schema without the layout of its JSON, which serializers choose."""
    try:
        return json.dumps(json.loads(schema))
    except (ValueError, RecursionError):
        return schema.strip()


def _guid(fields: Mapping[str, Any], row: Mapping[str, Any]) -> str | None:
    """The GUID of a schema; None if it follows from more than text and references."""
    if fields.get("md5") is not None:
        try:
            return str(uuid.UUID(bytes=base64.b64decode(fields["md5"], validate=True)))
        except (ValueError, TypeError):
            return None
    if fields.get("metadata") is not None or fields.get("ruleSet") is not None:
        return None
    hashed = hashlib.md5(row["schema"].encode(), usedforsecurity=False)
    for each in row["references"]:
        hashed.update(f"{each['name']}{each['subject']}".encode())
        hashed.update(each["version"].to_bytes(4, "big"))
    return str(uuid.UUID(bytes=hashed.digest()))


def _number(value: object) -> int:
    """An id or a version, which Java holds as an int."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST_INT:
        raise ValueError(f"{value!r:.40} is not an id or a version")
    return value


def _text(value: object) -> str:
    """A text that is UTF-8: JSON can name halves of characters."""
    text = str(value)
    text.encode()
    return text


SCHEMAS = Table(
    "_schemas",
    "Schemas of a schema registry (Confluent, Karapace)",
    (
        Column("subject", TEXT, "the subject, with its context"),
        Column("version", INT, "version of the subject"),
        Column("id", INT, "id of the schema, which values or their headers contain"),
        Column("guid", TEXT, "GUID of the schema, which headers contain; null if it is not known"),
        Column("schema_type", TEXT, "`AVRO`, `JSON` or `PROTOBUF`"),
        Column("schema", TEXT, "text of the schema"),
        Column(
            "references",
            pa.list_(pa.struct([("name", TEXT), ("subject", TEXT), ("version", INT)])),
            "schemas that it refers to",
        ),
        Column("deleted", BOOL, "whether it was soft-deleted: its id can still be resolved"),
        *ORIGIN,
    ),
    _schema_changes,
    key=("subject", "version"),
)
