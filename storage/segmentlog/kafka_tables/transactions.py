"""``transactions`` and ``open_transactions``: a coordinator's ids, and what holds back readers."""

from collections.abc import Iterator
from operator import itemgetter
from typing import TYPE_CHECKING

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
    shown,
    time_of,
)
from segmentlog.kafka_tables.source import TRANSACTION_STATE, Source
from segmentlog.model import ReadUpTo
from segmentlog.reads.listed import retry_if_relisted
from segmentlog.reads.log import Log

if TYPE_CHECKING:
    pass

_STATUS = {0: "Empty", 1: "Ongoing", 2: "PrepareCommit", 3: "PrepareAbort", 4: "CompleteCommit",
           5: "CompleteAbort", 6: "Dead", 7: "PrepareEpochFence"}  # fmt: skip

_field = fields_of(lines.TRANSACTIONS, "TransactionLogKey", "TransactionLogValue")
_TRANSACTION = (
    _field("transactional_id", "the transactional id"),
    _field("producer_id", "its producer id"),
    _field("producer_epoch", "epoch of its producer"),
    _field("transaction_status", "`Empty`, `Ongoing`, `PrepareCommit`, `PrepareAbort`, "
           "`CompleteCommit`, `CompleteAbort`, `Dead` or `PrepareEpochFence`", words=_STATUS),
    _field("transaction_partitions",
           "partitions of the transaction; null if there was no transaction"),
    _field("transaction_timeout_ms", "time until a coordinator aborts the transaction"),
    _field("transaction_start_timestamp", "when the transaction began"),
    _field("transaction_last_update_timestamp", "when the state changed"),
    _field("previous_producer_id", "producer id of the last transaction", unknown=-1),
    _field("next_producer_id", "the next producer id, once all epochs are used up", unknown=-1),
    _field("client_transaction_version", "`transaction.version` of the client"),
)  # fmt: skip


def _changes(source: Source, log: Log) -> Iterator[Row]:
    for placed in source.coordinator_records(log, ("TransactionLog",)):
        change = "removed" if placed.is_removal else "set"
        yield shown(_TRANSACTION, placed.fields) | placed.origin | {"change": change}


TRANSACTIONS = Table(
    TRANSACTION_STATE,
    "Transactional ids, and their last transactions",
    (*_TRANSACTION, *ORIGIN),
    _changes,
    key=("transactional_id",),
)


def _open_transactions(source: Source, _is_history: bool) -> Iterator[Row]:
    """Each partition is looked at to its end."""
    known = {}
    if TRANSACTION_STATE in source.directory.topics(internal=True):
        changes = source.of_logs(TRANSACTION_STATE, lambda log: _changes(source, log))
        known = {row["producer_id"]: row for row in last_rows(changes, TRANSACTIONS.key)}
    for each in source.directory.topic_partitions():
        opened = []
        with source.failures.of(each):
            log = source.directory.log(*each)
            found = log.open_transactions(
                ReadUpTo.LOG_END, source.on_corrupt_batch, fail_on_data_loss=False
            )
            opened = [(first, each, _time_at(log, first)) for each, first in found.items()]
        for first_offset, producer_id, time in sorted(opened, key=itemgetter(0)):
            yield known.get(producer_id, {}) | each._asdict() | {
                "producer_id": producer_id, "first_offset": first_offset, "first_timestamp": time,
            }  # fmt: skip


@retry_if_relisted
def _time_at(log: Log, offset: int) -> int | None:
    """Time of the batch that has an offset."""
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
