"""``schemas``: the topic of a schema registry, as Confluent's registry and Karapace write it.

Keys and values are JSON.  A key is parsed and never compared as bytes, because releases differ in
the order of its members.  A tombstone removes a version of a subject.  ``DELETE_SUBJECT`` marks
versions as deleted; their ids can still be resolved.

Serializers that write to headers name a schema by its GUID, the MD5 of its text and its
references.  Metadata and rules of a schema are part of it, too; such a schema has a GUID here only
if the registry has stored it.

Rules: ``SchemaRegistryKey``, ``SchemaValue``, ``MD5.ofSchema`` and ``KafkaStoreMessageHandler`` of
the registry.
"""

import base64
import hashlib
import json
import logging
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from segmentlog.arguments import LARGEST_INT
from segmentlog.kafka_tables.columns import BOOL, INT, ORIGIN, TEXT, Column, Row, Table
from segmentlog.kafka_tables.source import Source
from segmentlog.reads.log import Log

logger = logging.getLogger(__name__)

_MOST_NAMED = 5  #: ids, and schemas of an id, that warnings name

#: Errors of JSON that has another form, in the code that takes it apart.
_NOT_OF_A_REGISTRY = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


def _schema_changes(source: Source, log: Log) -> Iterator[Row]:
    """Every record of a schema, and every version that the deletion of a subject marks.

    Raises `MalformedRecordError` if a key or a value is not JSON of a registry.
    """
    known: dict[str, dict[int, Row]] = {}
    for key, value, origin in source.records(log):
        try:
            changes = _changes(key, value, known)
        except _NOT_OF_A_REGISTRY as error:
            reason = f"it is not JSON of a schema registry ({type(error).__name__}: {error})"
            source.refuse(log, origin["record_offset"], reason)
            continue
        for row in changes:
            yield row | origin


def _changes(
    key: bytes | None, value: bytes | None, known: dict[str, dict[int, Row]]
) -> list[Row]:
    """The rows that a record sets or removes; records of other types make none."""
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
            number, len(found), reason, others,
        )  # fmt: skip
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
        Column("references", pa.list_(pa.struct([("name", TEXT), ("subject", TEXT),
                                                 ("version", INT)])), "schemas that it refers to"),
        Column("deleted", BOOL, "whether it was soft-deleted: its id can still be resolved"),
        *ORIGIN,
    ),
    _schema_changes,
    key=("subject", "version"),
)  # fmt: skip
