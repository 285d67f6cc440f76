"""Tables of the metadata of a cluster: topics, partitions, brokers, settings, access."""

import logging
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from segmentlog.cluster.secrets import hide_secrets
from segmentlog.errors import LogDirectoryError
from segmentlog.format.messages.reader import uuid_text
from segmentlog.kafka_tables.columns import rows_to_table, time_of
from segmentlog.kafka_tables.definitions import TABLES
from segmentlog.kafka_tables.without_metadata import (
    NO_METADATA,
    TABLES_WITHOUT_METADATA,
    is_of_zookeeper,
    table_without_metadata,
)
from segmentlog.masking import masked
from segmentlog.model import METADATA_TOPIC, OnCorruptBatch, ScanPolicy, TopicPartition
from segmentlog.reads.cluster_image import RECORDS, Image, RowChange, fold
from segmentlog.reads.log_directory import LogDirectory
from segmentlog.reads.metadata_log import (
    IN_A_SNAPSHOT,
    newest_metadata,
    read_metadata,
    read_unknown,
)
from segmentlog.store.failures import Failures

logger = logging.getLogger(__name__)

METADATA_PARTITION = TopicPartition(METADATA_TOPIC, 0)


def metadata_table(
    directory: LogDirectory,
    name: str,
    on_corrupt_batch: OnCorruptBatch,
    failures: Failures,
    *,
    is_history: bool,
) -> pa.Table:
    """A table of the newest copy of the metadata.

    If the cluster has ZooKeeper, some tables show the contents of its log directories, and a
    warning says so.

    `failures`: gets the metadata if it is damaged; the table then has no rows.  `is_history`:
    whether each change is a row; a removed row has the values that it had.  Raises
    `LogDirectoryError` if there is no copy.
    """
    found = TABLES[name]
    if not is_history and name in TABLES_WITHOUT_METADATA and is_of_zookeeper(directory):
        logger.warning("%s: %s", ", ".join(directory.paths), NO_METADATA)
        return table_without_metadata(directory, name, on_corrupt_batch, failures)
    path, changes = _newest(directory), list[RowChange]()
    with failures.of(METADATA_PARTITION):
        changes = [*_changes(path, name, on_corrupt_batch, is_history=is_history)]
    if is_history:
        rows = [
            _row(each, each.row or each.before or {})
            | {"change": "removed" if each.row is None else "set"}
            for each in changes
        ]
        return rows_to_table(rows, found.history)
    last: dict[object, RowChange] = {}
    for each in changes:
        if each.row is None:
            last.pop(each.key, None)
        else:
            last[each.key] = each
    return rows_to_table([_row(each, each.row or {}) for each in last.values()], found.columns)


def topic_names_by_id(directory: LogDirectory) -> Mapping[uuid.UUID, str]:
    """Names of topics by their ids; empty without metadata."""
    path = newest_metadata(directory.paths)
    if path is None:
        return {}
    topics = fold(read_metadata(path, RECORDS["topics"])).tables["topics"]
    return {key: row["topic"] for key, row in topics.items()}


def metadata_level(directory: LogDirectory) -> int | None:
    """The level of ``metadata.version``, or None if no metadata here has it."""
    path = newest_metadata(directory.paths)
    if path is None:
        return None
    features = fold(read_metadata(path, RECORDS["features"])).tables["features"]
    row = features.get("metadata.version")
    return None if row is None else int(row["feature_level"])


def unknown_metadata(
    directory: LogDirectory, on_corrupt_batch: OnCorruptBatch
) -> list[dict[str, Any]]:
    """Rows of the records that are newer than what we know; none without metadata."""
    path = newest_metadata(directory.paths)
    if path is None:
        return []
    policy = ScanPolicy(on_corrupt_batch=on_corrupt_batch)
    return [
        {"topic": METADATA_TOPIC, "partition": 0, "offset": offset, "timestamp": time_of(time),
         "key": None, "value": hide_secrets([value])[0], "record": name, "newer": newer}
        for offset, time, value, name, newer in read_unknown(path, policy)
    ]  # fmt: skip


def _changes(
    path: str, name: str, on_corrupt_batch: OnCorruptBatch, *, is_history: bool
) -> Iterator[RowChange]:
    """The changes of one table, in order."""
    image = Image()
    policy = ScanPolicy(on_corrupt_batch=on_corrupt_batch)
    for record in read_metadata(path, RECORDS[name], is_history=is_history, policy=policy):
        yield from (each for each in image.apply(record) if each.table == name)


def _newest(directory: LogDirectory) -> str:
    path = newest_metadata(directory.paths)
    if path is not None:
        return path
    reason = NO_METADATA
    if not is_of_zookeeper(directory):
        reason = (
            "no cluster metadata here (__cluster_metadata-0): it is in one log directory of each "
            "broker and controller (metadata.log.dir)"
        )
    raise LogDirectoryError(", ".join(directory.paths), reason)


def _row(change: RowChange, row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a row as they are shown."""
    offset = change.record.offset
    shown = {name: _shown(value) for name, value in row.items()}
    if change.table == "configs":
        shown["value"] = masked(row["name"], row["value"])
    return shown | {
        "record_offset": None if offset == IN_A_SNAPSHOT else offset,
        "record_timestamp": time_of(change.record.timestamp_ms),
    }


def _shown(value: Any) -> Any:  # noqa: ANN401 (each column has its type)
    """Ids as Kafka prints them."""
    if isinstance(value, uuid.UUID):
        return uuid_text(value)
    if isinstance(value, list):
        return [_shown(each) for each in value]
    return value
