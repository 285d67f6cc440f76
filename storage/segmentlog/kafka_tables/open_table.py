"""``segmentlog.table`` and ``segmentlog.tables``: what Kafka knows about itself, by name."""

import os
from collections.abc import Callable, Iterator

import pyarrow as pa

from segmentlog.arguments import instance_of, nearest, one_dialect, one_of
from segmentlog.errors import OnFailure, OptionError
from segmentlog.format.messages.records import look_at
from segmentlog.format.newer import noting
from segmentlog.kafka_tables.cluster_metadata import (
    METADATA_TABLES,
    TABLES_WITHOUT_METADATA,
    is_of_zookeeper,
    unknown_metadata,
)
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
    schema_of,
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
from segmentlog.kafka_tables.producers import OPEN_TRANSACTIONS, PRODUCERS, TRANSACTIONS
from segmentlog.kafka_tables.registry import SCHEMAS, warn_of_ambiguous_ids
from segmentlog.kafka_tables.remote_segments import REMOTE_SEGMENTS, plain_segment_records
from segmentlog.kafka_tables.share_groups import DEAD_LETTERS, SHARE_STATE
from segmentlog.kafka_tables.source import (
    CONSUMER_OFFSETS,
    METADATA_PARTITION,
    SHARE_GROUP_STATE,
    TRANSACTION_STATE,
    PlainRecord,
    TableSource,
)
from segmentlog.model import METADATA_TOPIC, OnCorruptBatch
from segmentlog.reads.log import Log
from segmentlog.reads.log_directory import LogDirectory, open_log_dir
from segmentlog.reads.metadata_log import metadata_path
from segmentlog.store.system_errors import Failures
from segmentlog.tiered.metadata import REMOTE_LOG_METADATA


def _unknown_records(source: TableSource, _is_history: bool) -> Iterator[Row]:
    """Records of unknown types, of all topics that are here."""
    readers: dict[str, Callable[[TableSource, Log], Iterator[PlainRecord]]] = dict.fromkeys(
        (CONSUMER_OFFSETS, TRANSACTION_STATE, SHARE_GROUP_STATE),
        TableSource.perhaps_unknown_records,
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
                    "offset": offset,
                    "timestamp": time,
                    "key": key,
                    "value": value,
                    "record": newer[0],
                    "newer": newer[1],
                }

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
    source: TableSource, name: str, *, is_history: bool, topic: str | None = None
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


def _rows(
    source: TableSource, found: Table, *, is_history: bool, topic: str | None
) -> Iterator[Row]:
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


@one_dialect()
def tables(path: str | os.PathLike[str] | LogDirectory) -> list[str]:
    """Names of the tables that a log directory has, for `table`.

    Parameters
    ----------
    path : a log directory; or what `open_log_dir` has opened, such as several directories.

    Raises
    ------
    LogDirectoryError
        If the path is not a log directory.
    """
    directory = _opened(path)
    topics = directory.topics(internal=True)
    held = {""}
    if any(metadata_path(each) for each in directory.paths):
        held.add(METADATA_TOPIC)
    named = TABLES_WITHOUT_METADATA if is_of_zookeeper(directory) else ()
    return [
        name
        for name, each in TABLES.items()
        if each.topic in held or name in named or each.topics(topics)
    ]


@one_dialect()
def table(
    path: str | os.PathLike[str] | LogDirectory,
    name: str,
    *,
    history: bool = False,
    on_corrupt_batch: OnCorruptBatch | str = OnCorruptBatch.FAIL,
    topic: str | None = None,
    on_failure: OnFailure | None = None,
    strict: bool = False,
) -> pa.Table:
    """A table of what Kafka has written about itself, from the disk alone.

    ::

        segmentlog.table("/var/lib/kafka", "group_offsets")
        segmentlog.table("/var/lib/kafka", "group_offsets", history=True)

    Parameters
    ----------
    path : a log directory; or what `open_log_dir` has opened, such as several directories.
    name : of the table; ``storage/docs/tables.md`` lists all tables and their columns.
    history : whether every change is a row, in the order of each partition, and not only the last
        state.
    on_corrupt_batch : ``skip`` leaves out batches that are damaged, and records that cannot be
        read, with a warning.
    topic : that the records are in, if the settings of Kafka Connect, of MirrorMaker 2 or of a
        schema registry give it another name than that of the documentation.
    on_failure : called with the name of each partition that cannot be read, and its error; the
        table then has the rows of the other partitions.  Without it, the first of these errors is
        raised, with a note about each other one.
    strict : whether a record that is newer than the Kafka that this version knows is an error, and
        not a warning.

    Returns
    -------
    pyarrow.Table
        Topics are read to the end of their logs, as a coordinator reads them when it starts.

    Raises
    ------
    OptionError
        If there is no table of this name, it has no history, or its topic has a fixed name.
    LogDirectoryError
        If the path is not a log directory, or does not hold the topic of the table.
    MalformedRecordError
        If a record cannot be read: Kafka would not load its partition either; with `strict`, if
        it is newer than what this version knows.
    CorruptLogError
        If a batch is damaged.
    """
    table_schema(name, history=history, topic=topic)
    policy = one_of("on_corrupt_batch", on_corrupt_batch, OnCorruptBatch)
    failures = Failures(on_failure)
    with noting(f"table {name}", is_strict=strict):
        source = TableSource(_opened(path), policy, failures)
        found = make_table(source, name, is_history=history, topic=topic)
    failures.end()
    return found


def table_schema(name: str, *, history: bool = False, topic: str | None = None) -> pa.Schema:
    """The columns of a table; `OptionError` if it is not there, or lacks what is asked for."""
    instance_of("table", name, str, "give the name of a table")
    found = TABLES.get(name)
    if found is None:
        near = nearest(name, TABLES, 0.5)
        meant = f"did you mean {near}? " if near else ""
        raise OptionError("table", name, f"{meant}give one of {', '.join(TABLES)}")
    if history and not found.history:
        accepted = "leave it out: the table is computed from the last state of several topics"
        raise OptionError("history", "true", accepted)
    if topic is not None and not (found.pattern or name == "schemas"):
        raise OptionError("topic", topic, f"leave it out: Kafka fixes the topic of {name}")
    return schema_of(found.history if history else found.columns)


def _opened(path: str | os.PathLike[str] | LogDirectory) -> LogDirectory:
    return path if isinstance(path, LogDirectory) else open_log_dir(path)
