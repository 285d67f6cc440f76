"""Groups that have committed offsets, and their last commits.

A coordinator makes a group at the first commit that it loads, if the group has no record of its
own, and keeps it whatever becomes of its offsets, until a tombstone removes the group
(``OffsetMetadataManager.replay``).
"""

import pyarrow as pa

from segmentlog.kafka_tables.coordinator import end_of_read, record_types
from segmentlog.kafka_tables.offset_commits import COMMIT_TYPES, groups_of
from segmentlog.model import OnCorruptBatch
from segmentlog.reads.log import Log


def committing_groups(log: Log, on_corrupt_batch: OnCorruptBatch) -> dict[str, int]:
    """Offsets of the last commits of all groups in one partition of ``__consumer_offsets``.

    Commits in transactions count, too, whatever became of the transactions.  A commit whose key
    cannot be read is left out: `group_offsets` reports it.

    Raises `CorruptLogError` if the log is damaged.
    """
    scan = log.scan(
        columns=["key", "value", "offset"],
        read_up_to=end_of_read(log, on_corrupt_batch),
        on_corrupt_batch=on_corrupt_batch,
    )
    parts = []
    for batch in scan:
        types = record_types(batch["key"])
        is_commit = batch["value"].is_valid().to_numpy(zero_copy_only=False)
        is_commit &= (types == COMMIT_TYPES[0]) | (types == COMMIT_TYPES[1])
        rows = batch.filter(pa.array(is_commit))
        found = pa.table({"group": groups_of(rows["key"]), "offset": rows["offset"]})
        parts.append(_last(found))
    if not parts:
        return {}
    last = _last(pa.concat_tables(parts))
    names = [None if name is None else _decoded(name) for name in last["group"].to_pylist()]
    offsets = last["offset"].to_pylist()
    return {name: offset for name, offset in zip(names, offsets, strict=True) if name is not None}


def _last(commits: pa.Table) -> pa.Table:
    found = commits.group_by("group").aggregate([("offset", "max")])
    return found.select(["group", "offset_max"]).rename_columns(["group", "offset"])


def _decoded(name: bytes) -> str | None:
    try:
        return name.decode()
    except UnicodeDecodeError:
        return None
