"""``mm2_offset_syncs`` and ``mm2_checkpoints``: topics of MirrorMaker 2.

Keys and values are structs of Kafka's protocol with fixed layouts.  The value of a checkpoint has
its version before it.

Rules: ``OffsetSync``, ``Checkpoint`` and ``DefaultReplicationPolicy`` of ``connect-mirror``.
"""

from collections.abc import Iterator
from typing import Any

from segmentlog.format.messages import lines
from segmentlog.format.messages.reader import Reader
from segmentlog.format.messages.schema import Schema, parse_schemas
from segmentlog.kafka_tables.coordinator import placed_rows, refuse_record
from segmentlog.model import OnCorruptBatch
from segmentlog.reads.log import Log


def mirror_changes(
    log: Log, on_corrupt_batch: OnCorruptBatch, name: str
) -> Iterator[dict[str, Any]]:
    """Every record of a topic of MirrorMaker 2.

    `name`: of the struct, ``OffsetSync`` or ``Checkpoint``.  Raises `MalformedRecordError` if a
    record is not such a struct, to its last byte; `CorruptLogError` if the log is damaged.
    """
    schemas = parse_schemas(lines.MIRROR)
    of_key, of_value = schemas[f"{name}Key"], schemas[f"{name}Value"]
    for key, value, origin in placed_rows(log, on_corrupt_batch):
        try:
            row = _read(of_key, key or b"")
            if value is not None:
                row |= _read(of_value, value, is_versioned=name == "Checkpoint")
        except ValueError as error:
            reason = f"it is not a record of MirrorMaker 2 ({error})"
            refuse_record(log, origin["record_offset"], reason, on_corrupt_batch)
            continue
        yield row | origin | {"change": "removed" if value is None else "set"}


def _read(schema: Schema, data: bytes, *, is_versioned: bool = False) -> dict[str, Any]:
    reader = Reader(data)
    if is_versioned:
        version = int.from_bytes(reader.take(2), "big", signed=True)
        if version:
            raise ValueError(f"expected version 0, found {version}")
    fields = reader.message(schema, 0)
    if reader.n_left:
        raise ValueError(f"{reader.n_left} bytes follow its last field")
    return fields
