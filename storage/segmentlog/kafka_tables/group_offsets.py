"""``group_offsets``: the offsets that groups have committed.

The last commit of a key counts, and a tombstone removes it.  A commit in a transaction counts once
the transaction is committed; until then it is pending.  Which commit is last is decided by the
offsets of the records and not of the end markers, so that a commit outside of transactions stays
if it comes after the pending one (``OffsetMetadataManager``).
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from segmentlog.arrow_dataset.latest_by_key import latest_by_key
from segmentlog.format.records.schema import record_schema
from segmentlog.kafka_tables.columns import ORIGIN, known_times, schema_of
from segmentlog.kafka_tables.coordinator import end_of_read, record_types, refuse_record
from segmentlog.kafka_tables.definitions import COMMIT, TABLES
from segmentlog.kafka_tables.offset_commits import COMMIT_TYPES, commit_columns
from segmentlog.kafka_tables.transaction_fates import Fate, Fates, transaction_fates
from segmentlog.model import OnCorruptBatch
from segmentlog.reads.log import Log

_STATE = schema_of(TABLES["group_offsets"].columns)
_HISTORY = schema_of(TABLES["group_offsets"].history)

_FATES = {Fate.COMMITTED: "committed", Fate.ABORTED: "aborted", Fate.OPEN: "open"}

_OLD, _NEW = COMMIT_TYPES

_KEY = ["group", "topic", "partition"]
_PENDING = ("pending_offset", "pending_producer_id")

_SCANNED = ("topic", "partition", "key", "value", "offset", "timestamp")
_MOST_ROWS = 1 << 18


class _Commits(NamedTuple):
    """Commits of a scan: rows of the log, and what became of their transactions."""

    rows: pa.RecordBatch
    fates: np.ndarray
    producer_ids: np.ndarray


def group_offsets(log: Log, on_corrupt_batch: OnCorruptBatch, *, is_history: bool) -> pa.Table:
    """The offsets in one partition of ``__consumer_offsets``.

    `log`: of the partition; it is read to its end.  `on_corrupt_batch`: what becomes of damage,
    and of commits that cannot be read.  `is_history`: whether every commit and every removal is a
    row.  Raises `MalformedRecordError` if a commit cannot be read; `CorruptLogError` if the log is
    damaged.
    """
    fates = transaction_fates(log, skips=on_corrupt_batch is OnCorruptBatch.SKIP)
    commits = _commits(log, on_corrupt_batch, fates)
    if is_history:
        parts = [_history(log, on_corrupt_batch, each) for each in commits]
        return pa.concat_tables([_HISTORY.empty_table(), *parts])
    return _latest(log, on_corrupt_batch, commits)


def _commits(log: Log, on_corrupt_batch: OnCorruptBatch, fates: Fates) -> Iterator[_Commits]:
    """Records of commits."""
    read_up_to = end_of_read(log, on_corrupt_batch)
    scan = log.scan(columns=_SCANNED, read_up_to=read_up_to, on_corrupt_batch=on_corrupt_batch)
    for batch in scan:
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
        yield _Commits(rows, *fates.of(rows["offset"].to_numpy()))


def _latest(log: Log, on_corrupt_batch: OnCorruptBatch, commits: Iterator[_Commits]) -> pa.Table:
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
            is_pending = (fates == Fate.OPEN) & ~is_tombstone
            if is_pending.any():
                pending.append(rows.filter(pa.array(is_pending)))
                producers.append(producer_ids[is_pending])
            if pending and is_tombstone.any():
                gone = rows.filter(pa.array(is_tombstone))
                removed.append(pa.table({"key": gone["key"], "removed": gone["offset"]}))
            counts = (fates == Fate.OUTSIDE) | (fates == Fate.COMMITTED) | is_tombstone
            yield rows.filter(pa.array(counts))

    reader = pa.RecordBatchReader.from_batches(record_schema(_SCANNED), counting())
    found = _decoded(log, on_corrupt_batch, latest_by_key(reader))
    if pending:
        waiting = pa.Table.from_batches(pending).append_column(
            "pending_producer_id", pa.array(np.concatenate(producers))
        )
        commits = _decoded(log, on_corrupt_batch, _newest(waiting, removed))
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


def _history(log: Log, on_corrupt_batch: OnCorruptBatch, commits: _Commits) -> pa.Table:
    """Every commit and every removal, with what became of its transaction."""
    rows, fates, producer_ids = commits
    table = pa.Table.from_batches([rows])
    words = np.array([None, *(_FATES[each] for each in list(Fate)[1:])], object)
    table = table.append_column(
        "producer_id", pa.array(producer_ids, mask=fates == Fate.OUTSIDE)
    ).append_column("transaction", pa.array(words[fates], pa.string()))
    is_removal = table["value"].is_null()
    table = table.append_column("change", pc.if_else(is_removal, "removed", "set"))
    return _decoded(log, on_corrupt_batch, table).select(_HISTORY.names)


def _decoded(log: Log, on_corrupt_batch: OnCorruptBatch, rows: pa.Table) -> pa.Table:
    """The fields of commits in place of keys and values; further columns stay."""
    parts = [_fields(log, on_corrupt_batch, each) for each in rows.to_batches(_MOST_ROWS)]
    if not parts:
        kept = [rows.schema.field(i) for i in range(len(_SCANNED), rows.num_columns)]
        schema = schema_of((*COMMIT, *ORIGIN))
        return pa.schema([*schema, *kept]).empty_table()
    return pa.concat_tables(parts)


def _fields(log: Log, on_corrupt_batch: OnCorruptBatch, rows: pa.RecordBatch) -> pa.Table:
    offsets = rows["offset"]

    def refuse(row: int, reason: str) -> None:
        offset = offsets[row].as_py()
        refuse_record(log, offset, reason, on_corrupt_batch)

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
