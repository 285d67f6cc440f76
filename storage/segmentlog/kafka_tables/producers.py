"""``producers``, ``transactions`` and ``open_transactions``: what producers have written and hold.

A log holds every change of a producer, in the headers of batches and in end markers.  A broker
forgets a producer that was idle for ``producer.id.expiration.ms`` and writes nothing about that,
so no change removes a producer.
"""

import logging
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from segmentlog.errors import CorruptLogError
from segmentlog.format.kernels import layout
from segmentlog.format.kernels.memory import Int64s
from segmentlog.format.messages import lines
from segmentlog.kafka_tables.columns import (
    INT,
    LONG,
    ORIGIN,
    TEXT,
    TIME,
    Column,
    Row,
    Table,
    fields_of,
    last_rows,
    schema_of,
    shown,
    time_of,
    times,
)
from segmentlog.kafka_tables.source import TRANSACTION_STATE, TableSource
from segmentlog.log.producer_snapshot import ProducerSnapshot
from segmentlog.model import OnCorruptBatch, ReadUpTo
from segmentlog.reads.listed import retry_if_relisted
from segmentlog.reads.log import Log

if TYPE_CHECKING:
    from segmentlog.log.batches import WalkedBatches
    from segmentlog.log.producers import ProducerStates


logger = logging.getLogger(__name__)


def _producers(source: TableSource, is_history: bool) -> Iterable[Row] | pa.Table:
    if not is_history:
        return _rows(source)
    parts = [schema_of(PRODUCERS.history).empty_table()]
    for each in source.directory.topic_partitions():
        with source.failures.of(each):
            parts += [*_changes(source.directory.log(*each), source.on_corrupt_batch)]
    return pa.concat_tables(parts)


def _rows(source: TableSource) -> Iterator[Row]:
    """The state that a broker would load: the newest snapshot, and the batches after it.

    A log with a damaged batch after the snapshot fails.  With ``skip``, the state before it is
    returned.
    """
    from segmentlog.log.producers import ProducerStates  # the compiled kernels load here

    for each in source.directory.topic_partitions():
        known = []
        with source.failures.of(each):
            log = source.directory.log(*each)
            end = log.log_end_offset
            states = ProducerStates.load(log.path, end)
            try:
                states.follow_to(log.untorn_segments, end)
            except CorruptLogError as error:
                _refuse(error, source.on_corrupt_batch)
            known = sorted(states.known)
        for producer in known:
            fields = producer._asdict().items()
            row = {name: None if value == -1 else value for name, value in fields}
            yield row | each._asdict() | {"timestamp": time_of(producer.timestamp_ms)}


def _changes(log: Log, on_corrupt_batch: OnCorruptBatch) -> Iterator[pa.Table]:
    """The state of a producer after each of its batches and end markers, in the order of the log.

    The rows begin with the producers of the snapshot at the first segment, or before it.  A log
    with a damaged batch fails.  With ``skip``, the changes before it are returned.
    """
    from segmentlog.format.kernels import producer_table
    from segmentlog.log.batches import walk_batches
    from segmentlog.log.producers import ProducerStates

    segments = log.untorn_segments
    if not segments:
        return
    states = ProducerStates.load(log.path, segments[0].base_offset)
    begun: Int64s = np.array(sorted(states.known), np.int64)
    begun = begun.reshape(-1, producer_table.STATE_COLUMNS)
    unknown: Int64s = np.full(len(begun), -1, np.int64)
    yield _table(log, begun, ["snapshot"] * len(begun), unknown, unknown)
    try:
        for walked in walk_batches(segments, segments[0].base_offset):
            yield _followed(log, states, walked)
    except CorruptLogError as error:
        _refuse(error, on_corrupt_batch)


def _followed(log: Log, states: "ProducerStates", walked: "WalkedBatches") -> pa.Table:
    """The changes that some batches make."""
    from segmentlog.format.kernels import producer_table
    from segmentlog.format.kernels.transactions import COMMIT, MARKER_OFFSET, MARKER_TYPE

    headers = walked.scanned.headers
    after: Int64s = np.full((len(headers), producer_table.STATE_COLUMNS), -1, np.int64)
    states.follow(walked, after)
    rows = np.flatnonzero(after[:, producer_table.PRODUCER_ID] >= 0)
    offsets = headers[rows, layout.BASE_OFFSET]
    records = np.full(len(rows), "batch", object)
    is_control = headers[rows, layout.ATTRIBUTES] & layout.CONTROL_MASK != 0
    records[is_control] = None  # a control batch outside transactions is not an end marker
    markers = walked.markers[:, MARKER_OFFSET]
    ends = np.flatnonzero(is_control & np.isin(offsets, markers))
    kinds = np.where(walked.markers[:, MARKER_TYPE] == COMMIT, "commit", "abort")
    records[ends] = kinds[np.searchsorted(markers, offsets[ends])]
    times_ms = headers[rows, layout.MAX_TIMESTAMP]
    return _table(log, after[rows], records.tolist(), offsets, times_ms)


def _table(
    log: Log, states: Int64s, records: list[str | None], offsets: Int64s, times_ms: Int64s
) -> pa.Table:
    """Rows of the history, of one log."""
    topic, partition = log.topic_partition
    columns: dict[str, Any] = {
        name: pa.array(values, mask=values == -1)
        for name, values in zip(ProducerSnapshot._fields, states.T, strict=True)
    }
    columns |= {
        "topic": pa.repeat(topic, len(states)),
        "partition": pa.repeat(partition, len(states)),
        "timestamp": times(states[:, ProducerSnapshot._fields.index("timestamp_ms")]),
        "record": pa.array(records, pa.string()),
        "record_offset": pa.array(offsets, mask=offsets < 0),
        "record_timestamp": times(times_ms),
        "change": pa.repeat("set", len(states)),
    }
    schema = schema_of(PRODUCERS.history)
    arrays = [columns[field.name].cast(field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _refuse(error: CorruptLogError, on_corrupt_batch: OnCorruptBatch) -> None:
    """Raise an error of a batch, or log that the state before it is returned."""
    if on_corrupt_batch is not OnCorruptBatch.SKIP:
        raise error
    logger.warning("%s; producers are those before it", error)


_PRODUCER = (
    Column("topic", TEXT, "the topic"),
    Column("partition", INT, "the partition"),
    Column("producer_id", LONG, "the producer"),
    Column("producer_epoch", INT, "its epoch"),
    Column("last_sequence", INT, "sequence of its last record; null after an end marker alone"),
    Column("last_offset", LONG, "offset of that record"),
    Column("offset_delta", INT, "number of records of its last batch, minus 1"),
    Column("timestamp", TIME, "greatest time of that batch"),
    Column("coordinator_epoch", INT, "epoch of the coordinator that wrote its last end marker"),
    Column("current_txn_first_offset", LONG, "first offset of its open transaction, or null"),
)

PRODUCERS = Table(
    "",
    "Idempotent and transactional producers of each partition, as a broker would load them: "
    "from the newest snapshot, and the batches after it",
    _PRODUCER,
    whole=_producers,
    history_columns=(
        *_PRODUCER,
        Column(
            "record",
            TEXT,
            "`batch`, `commit`, `abort`, or `snapshot` for the state at the beginning; null for "
            "another control batch",
        ),
        Column("record_offset", LONG, "first offset of the batch; null in a snapshot"),
        Column("record_timestamp", TIME, "greatest time of the batch; null in a snapshot"),
    ),
)


_STATUS = {
    0: "Empty",
    1: "Ongoing",
    2: "PrepareCommit",
    3: "PrepareAbort",
    4: "CompleteCommit",
    5: "CompleteAbort",
    6: "Dead",
    7: "PrepareEpochFence",
}

_field = fields_of(lines.TRANSACTIONS, "TransactionLogKey", "TransactionLogValue")
_TRANSACTION = (
    _field("transactional_id", "the transactional id"),
    _field("producer_id", "its producer id"),
    _field("producer_epoch", "epoch of its producer"),
    _field(
        "transaction_status",
        "`Empty`, `Ongoing`, `PrepareCommit`, `PrepareAbort`, "
        "`CompleteCommit`, `CompleteAbort`, `Dead` or `PrepareEpochFence`",
        words=_STATUS,
    ),
    _field(
        "transaction_partitions", "partitions of the transaction; null if there was no transaction"
    ),
    _field("transaction_timeout_ms", "time until a coordinator aborts the transaction"),
    _field("transaction_start_timestamp", "when the transaction began"),
    _field("transaction_last_update_timestamp", "when the state changed"),
    _field("previous_producer_id", "producer id of the last transaction", unknown=-1),
    _field("next_producer_id", "the next producer id, once all epochs are used up", unknown=-1),
    _field("client_transaction_version", "`transaction.version` of the client"),
)


def _transaction_changes(source: TableSource, log: Log) -> Iterator[Row]:
    for placed in source.coordinator_records(log, ("TransactionLog",)):
        change = "removed" if placed.is_removal else "set"
        yield shown(_TRANSACTION, placed.fields) | placed.origin | {"change": change}


TRANSACTIONS = Table(
    TRANSACTION_STATE,
    "Transactional ids, and their last transactions",
    (*_TRANSACTION, *ORIGIN),
    _transaction_changes,
    key=("transactional_id",),
)


def _open_transactions(source: TableSource, _is_history: bool) -> Iterator[Row]:
    """Each partition is looked at to its end."""
    known = {}
    if TRANSACTION_STATE in source.directory.topics(internal=True):
        changes = source.of_logs(TRANSACTION_STATE, lambda log: _transaction_changes(source, log))
        known = {row["producer_id"]: row for row in last_rows(changes, TRANSACTIONS.key)}
    for each in source.directory.topic_partitions():
        opened = []
        with source.failures.of(each):
            log = source.directory.log(*each)
            found = log.open_transactions(
                ReadUpTo.LOG_END, source.on_corrupt_batch, fail_on_data_loss=False
            )
            opened = [(first, by, _time_at(log, first)) for by, first in found.items()]
        for first_offset, producer_id, time in sorted(opened, key=itemgetter(0)):
            yield (
                known.get(producer_id, {})
                | each._asdict()
                | {
                    "producer_id": producer_id,
                    "first_offset": first_offset,
                    "first_timestamp": time,
                }
            )


@retry_if_relisted
def _time_at(log: Log, offset: int) -> int | None:
    for segment in reversed(log.untorn_segments):
        if segment.base_offset <= offset:
            placed = segment.find(offset)
            return None if placed is None else time_of(placed.header.first_timestamp)
    return None


OPEN_TRANSACTIONS = Table(
    "",
    "Transactions without an end marker, in every partition: they hold back the last stable "
    "offset",
    (
        Column("topic", TEXT, "the topic"),
        Column("partition", INT, "the partition"),
        Column("producer_id", LONG, "producer of the transaction's records"),
        Column("first_offset", LONG, "first offset of the transaction's records"),
        Column("first_timestamp", TIME, "time of the first record"),
        Column("transactional_id", TEXT, "transactional id; null if no coordinator's log is here"),
        Column("transaction_status", TEXT, "state of the transaction in the coordinator's log"),
        Column("transaction_start_timestamp", TIME, "when the transaction began"),
        _field("transaction_timeout_ms", "time until a coordinator aborts the transaction"),
    ),
    whole=_open_transactions,
)
