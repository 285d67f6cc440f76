"""A table of a log's producers: their sequences, and what breaks them."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from segmentlog.format.kernels import producer_history as history
from segmentlog.format.kernels import sequences
from segmentlog.format.kernels.memory import Int64s
from segmentlog.log.batches import walk_batches
from segmentlog.log.producers import ProducerHistory
from segmentlog.log.segment import Segment

_GAP = pa.struct(
    [
        ("offset", pa.int64()),
        ("expected_sequence", pa.int32()),
        ("first_sequence", pa.int32()),
        ("missing_offsets", pa.int64()),
    ]
)
_REPEAT = pa.struct(
    [
        ("offset", pa.int64()),
        ("expected_sequence", pa.int32()),
        ("first_sequence", pa.int32()),
        ("original_offset", pa.int64()),
    ]
)
_FENCED = pa.struct([("offset", pa.int64()), ("current_epoch", pa.int16())])

# Columns of a finding here: the row of its run, and then its place.
_RUN, _OFFSET = 0, 1


def producers_table(segments: Sequence[Segment], start_offset: int) -> pa.Table:
    """The idempotent producers of a log, by all of its batch headers.

    Returns one row for each epoch of each producer: ``producer_id``, ``producer_epoch``; the first
    and last offset and sequence; the numbers of ``batches``, ``records`` and ``markers`` (ends of
    transactions); and lists of what a leader would not have accepted.  ``gaps`` have the offset of
    the batch after the gap, the expected sequence and that of the batch, and how many offsets are
    missing in between.  After compaction, at least as many offsets as sequences are missing.
    ``repeats`` have the offset of the original, if it is one of the five batches before.
    ``fenced`` batches have a lower epoch than the one before them.
    """
    followed = ProducerHistory(start_offset)
    found: list[Int64s] = [np.empty((0, 2 + history.FINDING_COLUMNS), np.int64)]
    for walked in walk_batches(segments, start_offset):
        findings, batches, run_rows = followed.follow(walked.scanned)
        at = findings[:, history.BATCH]
        offsets = batches[at, sequences.BASE_OFFSET]
        found.append(np.column_stack([run_rows[at], offsets, findings]))
    findings = np.concatenate(found)
    runs, producers = followed.runs, np.array(followed.producers, np.int64).reshape(-1, 2)
    columns = {
        "producer_id": pa.array(producers[:, 0], pa.int64()),
        "producer_epoch": pa.array(producers[:, 1], pa.int16()),
        "first_offset": pa.array(runs[:, history.FIRST_OFFSET]),
        "last_offset": pa.array(runs[:, history.LAST_OFFSET]),
        "first_sequence": _sequences(runs[:, history.FIRST_SEQUENCE]),
        "last_sequence": _sequences(runs[:, history.LAST_SEQUENCE]),
        "batches": pa.array(runs[:, history.N_BATCHES]),
        "records": pa.array(runs[:, history.N_RECORDS]),
        "markers": pa.array(runs[:, history.N_MARKERS]),
        "gaps": _lists(findings, history.GAP, len(runs), _GAP, history.MISSING),
        "repeats": _lists(findings, history.REPEAT, len(runs), _REPEAT, history.ORIGINAL),
        "fenced": _lists(findings, history.OLD_EPOCH, len(runs), _FENCED, None),
    }
    table = pa.table(columns)
    return table.sort_by([("producer_id", "ascending"), ("producer_epoch", "ascending")])


def _sequences(column: Int64s) -> pa.Array:
    """Sequences; null for a producer of which only markers are there."""
    return pa.array(column, pa.int32(), mask=column < 0)


def _lists(
    findings: Int64s, kind: int, n_runs: int, item: pa.StructType, last: int | None
) -> pa.Array:
    """The findings of one kind, a list for each run."""
    mine = findings[findings[:, 2 + history.KIND] == kind]
    mine = mine[np.argsort(mine[:, _RUN], kind="stable")]
    ends = np.cumsum(np.bincount(mine[:, _RUN], minlength=n_runs)[:n_runs])
    columns = [mine[:, _OFFSET], mine[:, 2 + history.EXPECTED]]
    if last is not None:
        columns += [mine[:, 2 + history.FOUND], mine[:, 2 + last]]
    arrays = [
        pa.array(column, field.type, mask=column < 0)
        for column, field in zip(columns, item, strict=True)
    ]
    structs = pa.StructArray.from_arrays(arrays, fields=list(item))
    offsets = pa.array(np.concatenate(([0], ends)), pa.int32())
    return pa.ListArray.from_arrays(offsets, structs)
