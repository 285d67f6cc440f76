"""``segmentlog.schema_use``: which schemas of a registry the records of topics really have."""

import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Unpack

import pyarrow as pa
import pyarrow.compute as pc

from segmentlog.arguments import takes
from segmentlog.arrow_dataset.open_dataset import dataset
from segmentlog.kafka_tables.open_table import table
from segmentlog.kafka_tables.registry import schema_guid, schema_id
from segmentlog.read_options import BoundsOptions, LoadOptions
from segmentlog.reads.log_directory import LogDirectory, open_log_dir

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("column", pa.string()),
        ("subject", pa.string()),
        ("version", pa.int32()),
        ("id", pa.int32()),
        ("guid", pa.string()),
        ("records", pa.int64()),
        ("first_timestamp", pa.timestamp("us", "UTC")),
        ("last_timestamp", pa.timestamp("us", "UTC")),
        ("first_partition", pa.int32()),
        ("first_offset", pa.int64()),
    ]
)

_REGISTRY = "_schemas"
_READ = ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]


class SchemaUseOptions(BoundsOptions, LoadOptions, total=False):
    """Those of `segmentlog.schema_use`."""


class _Name(NamedTuple):
    """What names a schema in the records of a topic."""

    topic: str
    column: str
    id: int | None
    guid: str | None


class _Use(NamedTuple):
    """The records that name a schema; the first of them is that of the read."""

    records: int
    first: int  # timestamps in microseconds: Python has not all times that Kafka has
    last: int
    partition: int
    offset: int

    def and_later(self, other: "_Use") -> "_Use":
        return self._replace(
            records=self.records + other.records,
            first=min(self.first, other.first),
            last=max(self.last, other.last),
        )


@takes(SchemaUseOptions)
def schema_use(
    path: str | os.PathLike[str] | LogDirectory,
    topics: str | Sequence[str] | None = None,
    **options: Unpack[SchemaUseOptions],
) -> pa.Table:
    """Which schemas of a registry the keys and values of topics have, and which have none.

    ::

        segmentlog.schema_use("/var/lib/kafka", "orders")

    All records are read once.  Keys and values that are null are left out.

    Parameters
    ----------
    path, topics : as `read` takes them.
    **options : those of `SchemaUseOptions`.

    Returns
    -------
    pyarrow.Table
        A row for each schema that records name by an id, or by a GUID in a header: how many
        records name it, their first and last times, and the place of one of the first.  A row
        without either is of the records that name none; a row without a `subject` has an id that
        the topic ``_schemas`` does not have.  Versions of the topic's own subjects that no record
        names have 0 `records`.  In the order of topic, column, subject and version.

    Raises
    ------
    SegmentLogError
        See `dataset`.
    """
    directory = path if isinstance(path, LogDirectory) else open_log_dir(path)
    logs = dataset(directory, topics=topics, include_headers=True, **options)
    found: dict[_Name, _Use] = {}
    read: set[str] = set()
    for batch in logs.to_batches(_READ):
        for name, use in _uses(batch):
            found[name] = found[name].and_later(use) if name in found else use
            read.add(name.topic)
    known = _known(directory)
    rows = [_row(name, use, known) for name, use in found.items()]
    used = {(row["topic"], row["subject"], row["version"]) for row in rows}
    for each in known:
        topic, _, column = each["subject"].rpartition("-")
        place = topic, each["subject"], each["version"]
        if topic in read and column in ("key", "value") and place not in used:
            named = {name: each[name] for name in ("subject", "version", "id", "guid")}
            rows.append({"topic": topic, "column": column, "records": 0, **named})
    rows.sort(
        key=lambda row: (row["topic"], row["column"], row["subject"] or "", row["version"] or 0)
    )
    return pa.Table.from_pylist(rows, SCHEMA)


def _uses(batch: pa.RecordBatch) -> Iterator[tuple[_Name, _Use]]:
    """The schemas that keys and values of a batch name; it may have rows of several topics."""
    for column in ("key", "value"):
        rows = pa.Table.from_batches([batch]).filter(pc.field(column).is_valid())
        if not rows.num_rows:
            continue
        values, is_key = rows[column], column == "key"
        names = {
            "id": schema_id(values, rows["headers"], is_key=is_key),
            "guid": schema_guid(rows["headers"], is_key=is_key),
        }
        rows = rows.select(["topic", "partition", "offset"]).append_column(
            "timestamp", rows["timestamp"].cast(pa.int64())
        )
        for name, found in names.items():
            rows = rows.append_column(name, found)
        grouped = rows.group_by(["topic", "id", "guid"], use_threads=False).aggregate(
            [
                ("offset", "count"),
                ("timestamp", "min"),
                ("timestamp", "max"),
                ("partition", "first"),
                ("offset", "first"),
            ]
        )
        for each in grouped.to_pylist():
            yield (
                _Name(each["topic"], column, each["id"], each["guid"]),
                _Use(
                    each["offset_count"],
                    each["timestamp_min"],
                    each["timestamp_max"],
                    each["partition_first"],
                    each["offset_first"],
                ),
            )


def _known(directory: LogDirectory) -> list[dict[str, Any]]:
    """The schemas of the registry's topic, if there is one."""
    if _REGISTRY not in directory.topics(internal=True):
        return []
    found = table(directory.whole, "schemas", on_corrupt_batch="skip")
    return list(found.select(["subject", "version", "id", "guid"]).to_pylist())


def _row(name: _Name, use: _Use, known: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A row of the table: with the version of the topic's own subject, if it has that schema."""
    own = f"{name.topic}-{name.column}"
    having = [
        each
        for each in known
        if (name.id is not None and each["id"] == name.id)
        or (name.guid is not None and each["guid"] == name.guid)
    ]
    having.sort(key=lambda each: each["subject"] != own)
    of_first = having[0] if having else {"subject": None, "version": None}
    return {
        "topic": name.topic,
        "column": name.column,
        "subject": of_first["subject"],
        "version": of_first["version"],
        "id": name.id,
        "guid": name.guid,
        "records": use.records,
        "first_timestamp": use.first,
        "last_timestamp": use.last,
        "first_partition": use.partition,
        "first_offset": use.offset,
    }
