"""``group_offsets`` and ``consumer_lag``: the offsets that groups have committed.

The last commit of a key counts, and a tombstone removes it.  A commit in a transaction counts once
the transaction is committed; until then it is pending.  Which commit is last is decided by the
offsets of the records and not of the end markers, so that a commit outside of transactions stays
if it comes after the pending one (``OffsetMetadataManager``).

A commit in a transaction counts after the end marker in the same partition.  A scan does not show
to which batch a record belongs, so the headers of batches are walked once (`transaction_fates`).
Nothing is an object of Python for a batch or a record.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from segmentlog.errors import CorruptLogError
from segmentlog.format.kernels import layout
from segmentlog.format.kernels.memory import Int64s
from segmentlog.format.messages import lines
from segmentlog.format.records.columns import record_schema
from segmentlog.kafka_tables.columns import (
    LONG,
    ORIGIN,
    TEXT,
    TIME,
    Column,
    Table,
    fields_of,
    known_times,
    rows_to_table,
    schema_of,
)
from segmentlog.kafka_tables.groups import GROUPS, group_rows
from segmentlog.kafka_tables.offset_commits import COMMIT_TYPES, commit_columns
from segmentlog.kafka_tables.source import CONSUMER_OFFSETS, TableSource, record_types
from segmentlog.log.damage import sound_headers
from segmentlog.log.segment import Segment
from segmentlog.model import OnCorruptBatch, TopicPartition
from segmentlog.reads.latest_rows import latest_by_key
from segmentlog.reads.listed import retry_if_relisted
from segmentlog.reads.log import Log

if TYPE_CHECKING:
    from segmentlog.log.batches import WalkedBatches


class TransactionFate(IntEnum):
    """The state of the transaction that a record belongs to."""

    OUTSIDE = 0
    COMMITTED = 1
    ABORTED = 2
    OPEN = 3


class TransactionFates(NamedTuple):
    """The batches of transactions of a log, in order; each array has shape (n_batches,)."""

    #: bounds of the batches
    base_offsets: Int64s
    last_offsets: Int64s
    producer_ids: Int64s  # of their producers
    fates: Int64s  # of their transactions, as in `TransactionFate`
    end_offset: int  # of the log when it was walked; nothing is known about later records

    def of(self, offsets: Int64s) -> tuple[Int64s, Int64s]:
        """Fates and producer ids of records; -1 is the producer id outside of transactions."""
        if not len(self.base_offsets):
            return np.zeros(len(offsets), np.int64), np.full(len(offsets), -1, np.int64)
        batch = np.searchsorted(self.base_offsets, offsets, side="right") - 1
        is_inside = (batch >= 0) & (offsets <= self.last_offsets[batch])
        return (
            np.where(is_inside, self.fates[batch], TransactionFate.OUTSIDE),
            np.where(is_inside, self.producer_ids[batch], -1),
        )


@retry_if_relisted
def transaction_fates(log: Log, *, skips: bool = False) -> TransactionFates:
    """The fates of all transactions of a log, to its end.

    `skips`: whether damage is left out with a warning.  It may have been the end marker of any
    transaction that is open before it: such a transaction counts as open.  Raises
    `CorruptLogError` if a header is damaged; `LogChangedError` if a broker has replaced files
    again and again.
    """
    from segmentlog.log.batches import walk_batches  # the compiled kernels load here

    end_offset = log.log_end_offset
    try:
        walked = _walk(walk_batches(log.untorn_segments, log.log_start_offset))
        # A flipped bit may hide a marker, or the rest of a segment.  Checksums show that.
        is_whole = walked.next_offset >= end_offset
        is_sound = not skips or (is_whole and not len(walked.batches))
    except CorruptLogError:
        if not skips:
            raise
        is_sound = False
    damaged: list[int] = []
    if not is_sound:
        walked = _walk(_sound_batches(log.untorn_segments, damaged))
    return _decided(walked, np.array(damaged, np.int64), end_offset)


class _WalkedTransactions(NamedTuple):
    """Batches of transactions (producer id, base and last offset), and end markers."""

    batches: Int64s
    markers: Int64s
    next_offset: int


def _walk(walk: Iterable["WalkedBatches"]) -> _WalkedTransactions:
    from segmentlog.format.kernels.transactions import N_MARKER_COLUMNS

    begun: list[Int64s] = [np.empty((0, 3), np.int64)]
    ended: list[Int64s] = [np.empty((0, N_MARKER_COLUMNS), np.int64)]
    wanted = [layout.PRODUCER_ID, layout.BASE_OFFSET, layout.LAST_OFFSET]
    both = layout.CONTROL_MASK | layout.TRANSACTIONAL_MASK
    next_offset = 0
    for walked in walk:
        next_offset = walked.next_offset
        headers = walked.scanned.headers
        is_begun = headers[:, layout.ATTRIBUTES] & both == layout.TRANSACTIONAL_MASK
        if is_begun.any():
            begun.append(headers[is_begun][:, wanted])
        if len(walked.markers):
            ended.append(walked.markers.copy())
    return _WalkedTransactions(np.concatenate(begun), np.concatenate(ended), next_offset)


def _sound_batches(segments: Sequence[Segment], damaged: list[int]) -> Iterator["WalkedBatches"]:
    """Batches with right checksums; offsets that follow damage are added to `damaged`."""
    from segmentlog.log.batches import walk_file

    for segment in segments:
        with segment.opened() as opened:
            end, next_offset = 0, segment.base_offset
            for placed in sound_headers(opened, skips=True):
                if placed.position != end:
                    damaged.append(placed.header.base_offset)
                end, next_offset = placed.end, placed.header.last_offset + 1
                yield from walk_file(segment.path, opened.file, placed.position, end)
            if end < segment.size:
                damaged.append(next_offset)


def _decided(walked: _WalkedTransactions, damaged: Int64s, end_offset: int) -> TransactionFates:
    """The fates of batches, by the first end marker of their producer after them."""
    from segmentlog.format.kernels import transactions as kernel

    batches, markers, _ = walked
    fates = np.full(len(batches), TransactionFate.OPEN, np.int64)
    for producer_id in np.unique(batches[:, 0]).tolist():
        own = np.flatnonzero(batches[:, 0] == producer_id)
        ends = markers[markers[:, kernel.MARKER_PRODUCER_ID] == producer_id]
        which = np.searchsorted(ends[:, kernel.MARKER_OFFSET], batches[own, 1])
        has_ended = which < len(ends)
        own, which = own[has_ended], which[has_ended]
        # The first marker may have been in the damage.
        n_before = np.searchsorted(damaged, batches[own, 2], side="right")
        is_known = n_before == np.searchsorted(
            damaged, ends[which, kernel.MARKER_OFFSET], side="right"
        )
        kinds = np.where(
            ends[which, kernel.MARKER_TYPE] == kernel.COMMIT,
            TransactionFate.COMMITTED,
            TransactionFate.ABORTED,
        )
        fates[own] = np.where(is_known, kinds, TransactionFate.OPEN)
    return TransactionFates(batches[:, 1], batches[:, 2], batches[:, 0], fates, end_offset)


_field = fields_of(lines.OFFSETS, "OffsetCommitKey", "OffsetCommitValue")
_COMMIT = (
    _field("group", "the group"),
    _field("topic", "the topic"),
    _field("partition", "the partition"),
    _field("offset", "the committed offset: the next record to read"),
    _field("leader_epoch", "leader epoch of the last record that was read, or null"),
    _field("metadata", "text that the consumer has given"),
    _field("commit_timestamp", "when the offset was committed"),
    _field("expire_timestamp", "when the offset expires, if the client has given a time"),
    _field("topic_id", "id of the topic, since Kafka 4.1; null if unknown"),
)
_STATE_COLUMNS = (
    *_COMMIT,
    Column("pending_offset", LONG, "an offset in an open transaction; it does not count"),
    Column("pending_producer_id", LONG, "producer of that transaction"),
    *ORIGIN,
)
_HISTORY_COLUMNS = (
    *_COMMIT,
    Column("producer_id", LONG, "producer of the transaction, or null"),
    Column("transaction", TEXT, "`committed`, `aborted` or `open`; null outside of a transaction"),
    *ORIGIN,
)


def _group_offsets(source: TableSource, is_history: bool) -> pa.Table:
    def read(log: Log) -> list[pa.Table]:
        fates = transaction_fates(log, skips=source.on_corrupt_batch is OnCorruptBatch.SKIP)
        commits = _commits(source, log, fates)
        if is_history:
            return [_history(source, log, each) for each in commits]
        return [_latest(source, log, commits)]

    parts = source.of_logs(CONSUMER_OFFSETS, read)
    return pa.concat_tables([(_HISTORY if is_history else _STATE).empty_table(), *parts])


GROUP_OFFSETS = Table(
    CONSUMER_OFFSETS,
    "Committed offsets of groups",
    _STATE_COLUMNS,
    whole=_group_offsets,
    history_columns=_HISTORY_COLUMNS,
)

_STATE, _HISTORY = schema_of(GROUP_OFFSETS.columns), schema_of(GROUP_OFFSETS.history)

_FATES = {
    TransactionFate.COMMITTED: "committed",
    TransactionFate.ABORTED: "aborted",
    TransactionFate.OPEN: "open",
}

_OLD, _NEW = COMMIT_TYPES

_KEY = ["group", "topic", "partition"]
_PENDING = ("pending_offset", "pending_producer_id")

_SCANNED = ("topic", "partition", "key", "value", "offset", "timestamp")
_MOST_ROWS = 1 << 18


class _ScannedCommits(NamedTuple):
    """Commits of a scan: rows of the log, and what became of their transactions."""

    rows: pa.RecordBatch
    fates: np.ndarray
    producer_ids: np.ndarray


def _commits(source: TableSource, log: Log, fates: TransactionFates) -> Iterator[_ScannedCommits]:
    for batch in source.scan(log, _SCANNED):
        types = record_types(batch["key"])
        is_commit = (types == _OLD) | (types == _NEW)
        # A broker may have appended records, and even transactions, since the fates were read.
        is_commit &= batch["offset"].to_numpy() < fates.end_offset
        if not is_commit.any():
            continue
        rows = batch if is_commit.all() else batch.filter(pa.array(is_commit))
        if (types == _OLD).any():
            # Keys of both types name the same thing.
            keys = pc.binary_replace_slice(rows["key"], 0, 2, _NEW.to_bytes(2, "big"))
            rows = rows.set_column(_SCANNED.index("key"), "key", keys)
        yield _ScannedCommits(rows, *fates.of(rows["offset"].to_numpy()))


def _latest(source: TableSource, log: Log, commits: Iterator[_ScannedCommits]) -> pa.Table:
    """The last commit of each key, and the pending ones."""
    pending: list[pa.RecordBatch] = []
    producers: list[np.ndarray] = []
    removed: list[pa.Table] = []

    def counting() -> Iterator[pa.RecordBatch]:
        """Commits that count, and tombstones, which count at once."""
        for rows, fates, producer_ids in commits:
            if not fates.any() and not pending:
                yield rows
                continue
            is_tombstone = rows["value"].is_null().to_numpy(zero_copy_only=False)
            is_pending = (fates == TransactionFate.OPEN) & ~is_tombstone
            if is_pending.any():
                pending.append(rows.filter(pa.array(is_pending)))
                producers.append(producer_ids[is_pending])
            if pending and is_tombstone.any():
                gone = rows.filter(pa.array(is_tombstone))
                removed.append(pa.table({"key": gone["key"], "removed": gone["offset"]}))
            counts = (
                (fates == TransactionFate.OUTSIDE)
                | (fates == TransactionFate.COMMITTED)
                | is_tombstone
            )
            yield rows.filter(pa.array(counts))

    reader = pa.RecordBatchReader.from_batches(record_schema(_SCANNED), counting())
    found = _decoded(source, log, latest_by_key(reader))
    if pending:
        waiting = pa.Table.from_batches(pending).append_column(
            "pending_producer_id", pa.array(np.concatenate(producers))
        )
        commits = _decoded(source, log, _newest(waiting, removed))
        return _with_pending(found, commits)
    nothing = pa.nulls(found.num_rows, pa.int64())
    for name in _PENDING:
        found = found.append_column(name, nothing)
    return found.select(_STATE.names)


def _newest(waiting: pa.Table, removed: list[pa.Table]) -> pa.Table:
    """The last pending commit of each key, unless a tombstone follows it."""
    waiting = waiting.append_column("row", pa.array(np.arange(len(waiting))))
    last = waiting.group_by("key").aggregate([("row", "max")])["row_max"].combine_chunks()
    last = waiting.take(last)
    if removed:
        gone = pa.concat_tables(removed)
        gone = gone.filter(pc.is_in(gone["key"], value_set=last["key"].combine_chunks()))
        gone = gone.group_by("key").aggregate([("removed", "max")])
        last = last.join(gone, "key")
        stays = pc.greater(last["offset"], pc.fill_null(last["removed_max"], -1))
        last = last.filter(stays)
    return last.sort_by("row").select([*_SCANNED, "pending_producer_id"])


def _with_pending(found: pa.Table, commits: pa.Table) -> pa.Table:
    """Add pending commits to the commits that count."""
    commits = commits.append_column("pending_offset", commits["offset"])
    row = pa.array(np.arange(len(found)))
    both = found.append_column("row", row).join(commits.select([*_KEY, *_PENDING]), _KEY)
    alone = commits.join(found.select(_KEY), _KEY, join_type="left anti")
    alone = alone.sort_by([("record_partition", "ascending"), ("record_offset", "ascending")])
    for name in ("offset", "leader_epoch"):  # of a commit that does not count
        place = alone.schema.get_field_index(name)
        nothing = pa.nulls(len(alone), alone.schema.field(place).type)
        alone = alone.set_column(place, name, nothing)
    parts = [both.sort_by("row").select(_STATE.names), alone.select(_STATE.names)]
    return pa.concat_tables(parts)


def _history(source: TableSource, log: Log, commits: _ScannedCommits) -> pa.Table:
    """Every commit and every removal, with what became of its transaction."""
    rows, fates, producer_ids = commits
    table = pa.Table.from_batches([rows])
    words = np.array([None, *(_FATES[each] for each in list(TransactionFate)[1:])], object)
    table = table.append_column(
        "producer_id", pa.array(producer_ids, mask=fates == TransactionFate.OUTSIDE)
    ).append_column("transaction", pa.array(words[fates], pa.string()))
    is_removal = table["value"].is_null()
    table = table.append_column("change", pc.if_else(is_removal, "removed", "set"))
    return _decoded(source, log, table).select(_HISTORY.names)


def _decoded(source: TableSource, log: Log, rows: pa.Table) -> pa.Table:
    """The fields of commits in place of keys and values; further columns stay."""
    kept = [rows.schema.field(i) for i in range(len(_SCANNED), rows.num_columns)]
    nothing = pa.schema([*schema_of((*_COMMIT, *ORIGIN)), *kept]).empty_table()
    parts = [_fields(source, log, each) for each in rows.to_batches(_MOST_ROWS)]
    return pa.concat_tables(parts) if parts else nothing


def _fields(source: TableSource, log: Log, rows: pa.RecordBatch) -> pa.Table:
    offsets = rows["offset"]

    def refuse(row: int, reason: str) -> None:
        source.refuse(log, offsets[row].as_py(), reason)

    columns = commit_columns(rows["key"], rows["value"], refuse)
    is_read = columns.pop("is_read")
    columns |= {
        "record_partition": rows["partition"],
        "record_offset": offsets,
        "record_timestamp": known_times(rows["timestamp"]),
    }
    columns |= {name: rows[name] for name in rows.schema.names[len(_SCANNED) :]}
    table = pa.table(columns)
    return table if pc.all(is_read).as_py() else table.filter(is_read)


def _consumer_lag(source: TableSource, _is_history: bool) -> pa.Table:
    """Only the end of each log is an object of Python.

    Nothing is clamped: the lag is below 0 if the log was cut after the commit.  An offset of an
    earlier topic of the same name has no end and no lag; nor has one whose log cannot be read.
    """
    offsets = _group_offsets(source, False)
    commits: dict[int, dict[str, int]] = defaultdict(dict)
    keys = ["record_partition", "group"]
    for row in offsets.group_by(keys).aggregate([("record_offset", "max")]).to_pylist():
        commits[row["record_partition"]][row["group"]] = row["record_offset_max"]
    groups = source.of_logs(
        CONSUMER_OFFSETS,
        lambda log: group_rows(source, log, commits[log.topic_partition.partition]),
    )
    places = offsets.group_by(["topic", "partition"]).aggregate(
        [("offset", "distinct"), ("offset", "min")]
    )
    ends, lags = _ends(source, places)
    taken = ("group", "record_partition", "kind", "state")
    states = rows_to_table([*groups], [each for each in GROUPS.columns if each.name in taken])
    found = (
        offsets.append_column("row", pa.array(np.arange(offsets.num_rows)))
        .join(ends, ["topic", "partition"])
        .join(lags, ["topic", "partition", "offset"])
        .join(states, ["group", "record_partition"])
        .sort_by("row")
    )
    is_other = pc.fill_null(pc.not_equal(found["topic_id"], found["end_topic_id"]), False)
    end = pc.if_else(is_other, pa.scalar(None, pa.int64()), found["log_end_offset"])
    lag = pc.subtract(end, found["offset"])
    # An offset far below 0 has no difference that an int64 can hold.
    is_beyond = pc.fill_null(pc.and_(pc.less(found["offset"], 0), pc.less(lag, 0)), False)
    nothing = pa.scalar(None, pa.int64())
    made = {"log_end_offset": end, "lag": pc.if_else(is_beyond, nothing, lag)}
    made |= {name: pc.if_else(is_other, nothing, found[name]) for name in _BEHIND}
    schema = schema_of(CONSUMER_LAG.columns)
    columns = [made[name] if name in made else found[name] for name in schema.names]
    return pa.table(columns, schema=schema)


def _ends(source: TableSource, places: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Ends and topic ids of the logs of partitions; null for those that are not here.

    And how far each of their offsets is behind; those of which nothing is known are left out.
    `places`: with all offsets of each partition, of which there is none if all are pending.
    """
    from segmentlog.kafka_tables.lags import Lags  # the compiled kernels load here

    held = {*source.directory.topic_partitions()}
    ends: list[int | None] = []
    topic_ids: list[str | None] = []
    lags = Lags()
    distinct = places["offset_distinct"].combine_chunks()
    bounds, offsets = distinct.offsets.to_pylist(), distinct.values.to_numpy()
    lowest = places["offset_min"].to_pylist()
    topics, partitions = places["topic"].to_pylist(), places["partition"].to_pylist()
    for row, place in enumerate(zip(topics, partitions, strict=True)):
        end = topic_id = None
        if place in held:
            with source.failures.of(TopicPartition(*place)):
                log = source.directory.log(*place)
                end, topic_id = log.log_end_offset, log.known_topic_id or None
                if lost := log.lost_offsets:  # consumers had not read them
                    end = lost.end_offset
                elif lowest[row] is not None:
                    begin, after = bounds[row : row + 2]
                    lags.add(row, log, offsets[begin:after], lowest[row])
        ends.append(end)
        topic_ids.append(topic_id)
    row_of, offsets, *behind_by = lags.found()
    behind = places.select(["topic", "partition"]).take(pa.array(row_of))
    behind = behind.append_column("offset", pa.array(offsets))
    for name, found in zip(_BEHIND, behind_by, strict=True):
        behind = behind.append_column(name, pa.array(found, mask=found == -1))
    places = places.select(["topic", "partition"])
    places = places.append_column("log_end_offset", pa.array(ends, pa.int64()))
    places = places.append_column("end_topic_id", pa.array(topic_ids, pa.string()))
    return places, behind


#: Columns of how far behind an offset is.
_BEHIND = ("lag_records", "lag_ms")


CONSUMER_LAG = Table(
    CONSUMER_OFFSETS,
    "Committed offsets, the log ends of their partitions, and the lag between them",
    (
        *_COMMIT[:3],
        Column("offset", LONG, "the committed offset"),
        Column(
            "log_end_offset",
            LONG,
            "log end, or the high watermark if segments are gone from the end; null if this "
            "directory does not have the log",
        ),
        Column("lag", LONG, "log end minus offset; negative if the log was truncated later"),
        Column(
            "lag_records",
            LONG,
            "records of the log at or after the offset, without end markers, or at the most so "
            "many if compaction has thinned the batch of the offset; null if the offset is beyond "
            "the log, or more than 4 GiB before its end",
        ),
        Column(
            "lag_ms",
            LONG,
            "milliseconds between the first of these records and the newest, by the timestamps of "
            "their batches",
        ),
        Column("kind", TEXT, "kind of the group"),
        Column("state", TEXT, "state of the group"),
        Column("pending_offset", LONG, "an offset in an open transaction"),
        Column("commit_timestamp", TIME, "when the offset was committed"),
    ),
    whole=_consumer_lag,
)
