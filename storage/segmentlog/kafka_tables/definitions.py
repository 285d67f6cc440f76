"""The tables and their columns, without the code that makes them."""

from dataclasses import dataclass

import pyarrow as pa

from segmentlog.kafka_tables.columns import CHANGE, ORIGIN, TIME, Column

__all__ = ["COMMIT", "TABLES", "Table"]


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes
    ----------
    topic : that has to be in the directory.
    meaning : one line, as the documentation has it.
    columns : of the last state.
    history : of the changes; empty for a table that has no history.
    """

    topic: str
    meaning: str
    columns: tuple[Column, ...]
    history: tuple[Column, ...] = ()


#: Fields of a committed offset.
COMMIT = (
    Column("group", pa.string(), "the group"),
    Column("topic", pa.string(), "the topic"),
    Column("partition", pa.int32(), "the partition"),
    Column("offset", pa.int64(), "the committed offset: the next record to read"),
    Column("leader_epoch", pa.int32(), "leader epoch of the last record that was read, or null"),
    Column("metadata", pa.string(), "text that the consumer has given"),
    Column("commit_timestamp", TIME, "when it was committed"),
    Column("expire_timestamp", TIME, "when it expires, if the client has given a time"),
    Column("topic_id", pa.string(), "id of the topic, since Kafka 4.1; null if unknown"),
)

_GROUP_OFFSETS = (
    *COMMIT,
    Column("pending_offset", pa.int64(), "an offset whose transaction is open; it does not count"),
    Column("pending_producer_id", pa.int64(), "producer of that transaction"),
    *ORIGIN,
)
_GROUP_OFFSETS_HISTORY = (
    *COMMIT,
    Column("producer_id", pa.int64(), "producer of the transaction, or null"),
    Column("transaction", pa.string(), "`committed`, `aborted`, `open`, or null outside of one"),
    *ORIGIN,
    CHANGE,
)


#: All tables by name, in the order of the documentation.
TABLES = {
    "group_offsets": Table(
        "__consumer_offsets",
        "Committed offsets of groups",
        _GROUP_OFFSETS,
        _GROUP_OFFSETS_HISTORY,
    ),
}
