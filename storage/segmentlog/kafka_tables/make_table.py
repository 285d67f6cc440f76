"""All tables, and a table of a log directory by its name."""

from collections.abc import Callable, Iterator

import pyarrow as pa

from segmentlog.format.messages.records import look_at
from segmentlog.kafka_tables.cluster_metadata import METADATA_TABLES, unknown_metadata
from segmentlog.kafka_tables.columns import (
    INT,
    LONG,
    TEXT,
    TIME,
    Column,
    Row,
    Table,
    last_rows,
    rows_to_table,
)
from segmentlog.kafka_tables.connect import (
    CONNECT_CONFIGS,
    CONNECT_OFFSETS,
    CONNECT_STATUS,
    MM2_CHECKPOINTS,
    MM2_OFFSET_SYNCS,
)
from segmentlog.kafka_tables.group_offsets import CONSUMER_LAG, GROUP_OFFSETS
from segmentlog.kafka_tables.groups import GROUP_MEMBERS, GROUPS
from segmentlog.kafka_tables.producers import PRODUCERS
from segmentlog.kafka_tables.remote_segments import REMOTE_SEGMENTS, plain_segment_records
from segmentlog.kafka_tables.schemas import SCHEMAS, warn_of_ambiguous_ids
from segmentlog.kafka_tables.share_groups import DEAD_LETTERS, SHARE_STATE
from segmentlog.kafka_tables.source import (
    CONSUMER_OFFSETS,
    METADATA_PARTITION,
    SHARE_GROUP_STATE,
    TRANSACTION_STATE,
    PlainRecord,
    Source,
)
from segmentlog.kafka_tables.transactions import OPEN_TRANSACTIONS, TRANSACTIONS
from segmentlog.reads.log import Log
from segmentlog.tiered.metadata import REMOTE_LOG_METADATA


def _unknown_records(source: Source, _is_history: bool) -> Iterator[Row]:
    """Records of unknown types, of all topics that are here."""
    readers: dict[str, Callable[[Source, Log], Iterator[PlainRecord]]] = dict.fromkeys(
        (CONSUMER_OFFSETS, TRANSACTION_STATE, SHARE_GROUP_STATE), Source.perhaps_unknown_records
    )
    readers[REMOTE_LOG_METADATA] = plain_segment_records

    def unknown(log: Log) -> Iterator[Row]:
        topic = log.topic_partition.topic
        for key, value, offset, time in readers[topic](source, log):
            try:
                newer = look_at(topic, key, value)
            except ValueError as error:
                source.refuse(log, offset, str(error))
                continue
            if newer is not None:
                yield log.topic_partition._asdict() | {
                    "offset": offset, "timestamp": time, "key": key, "value": value,
                    "record": newer[0], "newer": newer[1],
                }  # fmt: skip

    for topic in readers:
        if topic in source.directory.topics(internal=True):
            yield from source.of_logs(topic, unknown)
    with source.failures.of(METADATA_PARTITION):
        yield from unknown_metadata(source)


#: All tables by name, in the order of the documentation.
TABLES = {
    "group_offsets": GROUP_OFFSETS,
    "consumer_lag": CONSUMER_LAG,
    "groups": GROUPS,
    "group_members": GROUP_MEMBERS,
    "share_state": SHARE_STATE,
    "dead_letters": DEAD_LETTERS,
    "transactions": TRANSACTIONS,
    "open_transactions": OPEN_TRANSACTIONS,
    "producers": PRODUCERS,
    "remote_segments": REMOTE_SEGMENTS,
    **METADATA_TABLES,
    "schemas": SCHEMAS,
    "connect_configs": CONNECT_CONFIGS,
    "connect_offsets": CONNECT_OFFSETS,
    "connect_status": CONNECT_STATUS,
    "mm2_offset_syncs": MM2_OFFSET_SYNCS,
    "mm2_checkpoints": MM2_CHECKPOINTS,
    "unknown_records": Table(
        "",
        "Records of Kafka's own topics that are newer than the Kafka that we know, as bytes: of "
        "unknown types and versions, and with unknown tagged fields",
        (
            Column("topic", TEXT, "the topic"),
            Column("partition", INT, "the partition"),
            Column("offset", LONG, "offset of the record"),
            Column("timestamp", TIME, "time of the record"),
            Column("key", pa.binary(), "bytes of its key"),
            Column("value", pa.binary(), "bytes of its value; `[hidden]` if it may be a secret"),
            Column("record", TEXT, "its name; null if its type is not known"),
            Column("newer", TEXT, "its type, version or tagged fields that are not known"),
        ),
        whole=_unknown_records,
    ),
}


def make_table(
    source: Source, name: str, *, is_history: bool, topic: str | None = None
) -> pa.Table:
    """A table: its last state, or each change as a row.

    `topic`: that a setting names, or None for the names that are known.
    """
    found = TABLES[name]
    if found.whole:
        rows = found.whole(source, is_history)
        if isinstance(rows, pa.Table):
            return rows
    else:
        rows = _rows(source, found, is_history=is_history, topic=topic)
    if found is SCHEMAS and not is_history:
        rows = [*rows]
        warn_of_ambiguous_ids(rows)
    return rows_to_table([*rows], found.history if is_history else found.columns)


def _rows(source: Source, found: Table, *, is_history: bool, topic: str | None) -> Iterator[Row]:
    """Rows of the logs of the topics of a table."""
    state = None if is_history else found.state
    read = state or found.changes or (lambda _source, _log: ())
    held = source.directory.topics(internal=True)
    names = [topic] if topic is not None else found.topics(held) or [found.topic]
    rows = (
        row | {"record_topic": each}
        for each in names
        for row in source.of_logs(each, lambda log: read(source, log))
    )
    yield from rows if is_history or state else last_rows(rows, found.key)
