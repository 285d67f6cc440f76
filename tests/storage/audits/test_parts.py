"""An audit in several processes finds what one process finds, however the work is cut."""

import pickle
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

import segmentlog
from segmentlog.audits import (
    AuditWork,
    ColumnNames,
    MergedAudit,
    comparison,
    merge,
    parts,
    plan_audit,
)
from segmentlog.audits.audit import RANGES
from segmentlog.audits.parts import FOUND, STRETCHES
from segmentlog.errors import ColumnError
from segmentlog.testing.kafka_log import KafkaLog

NAMES = ColumnNames("partition", "offset", None)


def written(log: KafkaLog, draw: random.Random) -> dict[int, int]:
    """Two partitions with gaps, aborted transactions and markers; their ends."""
    log.create_topic("t", num_partitions=2)
    for partition in (0, 1):
        for _ in range(draw.randint(3, 9)):
            records = [{"key": str(draw.randint(0, 6)), "value": b"v"}] * draw.randint(1, 9)
            if draw.random() < 0.3:
                with log.transaction() as transaction:
                    transaction.write("t", records, partition=partition)
                    if draw.random() < 0.5:
                        transaction.abort()
            else:
                log.write("t", records, partition=partition)
            if draw.random() < 0.2:
                log.gap("t", 4, partition=partition)
    directory = segmentlog.open_log_dir(log)
    return {each: directory.log("t", each).log_end_offset for each in (0, 1)}


def table_of(draw: random.Random, ends: dict[int, int]) -> pa.Table:
    """Rows of both partitions, of one that is not there, and with nulls, in any order."""
    rows = [
        (partition, draw.randint(-3, end + 3))
        for partition, end in ends.items()
        for _ in range(draw.randint(0, 2 * end))
    ]
    for partition, end in ends.items():
        rows += [(partition, offset) for offset in range(draw.choice([0, end]), end)]
    rows += [(7, 1)] * draw.randint(0, 2) + [(None, 1)] * draw.randint(0, 2)
    draw.shuffle(rows)
    return pa.table(
        {
            "partition": pa.array([each[0] for each in rows], pa.int32()),
            "offset": pa.array([each[1] for each in rows], pa.int64()),
            "key": pa.array([str(draw.randint(0, 6)) for _ in rows]),
        }
    )


def compared(
    work: AuditWork, table: pa.Table, n_tasks: int, draw: random.Random
) -> list[pa.RecordBatch]:
    """What all tasks find, in any order; each task is a pickled one."""
    step = max(-(-len(table) // n_tasks), 1)
    stretches = [
        found
        for at in range(0, max(len(table), 1), step)
        for found in pickle.loads(pickle.dumps(work)).collect(table.slice(at, step).to_batches())
    ]
    every = pa.Table.from_batches(stretches, STRETCHES)
    nothing = [pa.nulls(len(work.parts), each.type) for each in [*STRETCHES][1:]]
    every = pa.concat_tables(
        [every, pa.table([pa.array(range(len(work.parts)), pa.int32()), *nothing], STRETCHES)]
    )
    rows = [*range(len(every))]
    draw.shuffle(rows)
    every = every.take(rows)
    task_of = [(each or 0) % n_tasks for each in every["part"].to_pylist()]
    return [
        found
        for number in range(n_tasks)
        for found in work.compare(
            every.filter(pa.array([each == number for each in task_of])).to_batches()
        )
    ]


def outcomes_of(found: Sequence[pa.RecordBatch]) -> Iterator[bytes]:
    for batch in found:
        yield from batch["outcome"].drop_null().to_pylist()


def ranges_of(merged: MergedAudit, work: AuditWork, found: Sequence[pa.RecordBatch]) -> pa.Table:
    """The ranges of all findings."""
    ranges = [each for each in found if not each["finding"].null_count]
    return pa.Table.from_batches(merged.whole_ranges(work, ranges), RANGES)


@pytest.mark.parametrize("seed", range(8))
def test_it_is_the_audit_of_one_process(
    tmp_path: Any, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts, ranges that cross the borders of parts, and missing records."""
    draw = random.Random(seed)
    log = KafkaLog(tmp_path / "logs")
    table = table_of(draw, written(log, draw))
    monkeypatch.setattr(parts, "_PART_OFFSETS", draw.choice([1, 2, 5, 1000]))
    monkeypatch.setattr(parts, "_MOST_PARTS", draw.choice([3, 2000]))
    monkeypatch.setattr(comparison, "_NEAR", draw.choice([0, 3, 1 << 20]))
    most_ranges = draw.choice([0, 1, 2, 10])
    columns = draw.choice([[], ["key"]])
    here = segmentlog.audit(log, "t", table, most_ranges=most_ranges, columns=columns)

    plan = plan_audit(log, "t", (), most_ranges)
    names = NAMES._replace(compared=tuple((each, "") for each in columns))
    work = AuditWork.of(plan, names, table.schema, None)
    found = compared(work, table, draw.choice([1, 2, 3]), draw)
    merged = merge(work, outcomes_of(found))

    assert here.partitions == merged.partitions
    assert here.unknown_partitions == merged.counts.of_unknown_partitions
    assert (here.n_rows, here.n_rows_without_offset) == (
        merged.counts.n_rows,
        merged.counts.n_without_offset,
    )
    order = [(name, "ascending") for name in ("partition", "finding", "start_offset")]
    wanted = here.ranges().read_all().sort_by(order)
    assert wanted.to_pylist() == ranges_of(merged, work, found).sort_by(order).to_pylist()

    missing = [each for each in found if each["finding"].to_pylist()[:1] == ["missing"]]
    rows = pa.Table.from_batches(
        work.missing(missing, ["partition", "offset"], strings=False),
        pa.schema([("partition", pa.int32()), ("offset", pa.int64())]),
    )
    order = [("partition", "ascending"), ("offset", "ascending")]
    assert here.missing(["partition", "offset"]).read_all().to_pylist() == (
        rows.sort_by(order).to_pylist()
    )


def test_the_number_of_parts_is_bounded(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each offset is in one part, whatever the bounds."""
    log = KafkaLog(tmp_path / "logs")
    written(log, random.Random(1))
    schema = pa.schema([("partition", pa.int32()), ("offset", pa.int64())])
    for most, size in ((2000, 3), (2, 3), (2000, 1 << 20)):
        monkeypatch.setattr(parts, "_PART_OFFSETS", size)
        monkeypatch.setattr(parts, "_MOST_PARTS", most)
        plan = plan_audit(log, "t", (), 1)
        found = AuditWork.of(plan, NAMES, schema, None).parts
        assert len(found) <= most + 2
        assert (2 == len(found)) == (size > 1000)
        for code in (0, 1):
            bounds = [each.within for each in found if each.code == code]
            assert [each.end_offset for each in bounds[:-1]] == [
                each.start_offset for each in bounds[1:]
            ]
            assert (bounds[0].start_offset, bounds[-1].end_offset) == (-(2**63), 2**63 - 1)


def test_an_error_of_a_task_is_that_of_the_audit(tmp_path: Any) -> None:
    """It travels as a row, through both steps."""
    log = KafkaLog(tmp_path / "logs")
    log.write("t", [b"a"])
    table = pa.table({"partition": [0], "offset": ["x"]})
    plan = plan_audit(log, "t", (), 1)
    work = AuditWork.of(plan, NAMES, table.schema, None)
    found = compared(work, table, 1, random.Random(1))

    with pytest.raises(ColumnError, match="'offset'"):
        merge(work, outcomes_of(found))
    assert FOUND == found[0].schema
