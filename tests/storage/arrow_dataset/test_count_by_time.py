"""Records are counted per interval of time, from batch headers and from records."""

import random
import struct
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pytest
from dirty_logs import write_segments

import segmentlog
from segmentlog.arrow_dataset import aggregates
from segmentlog.format.kernels import layout
from segmentlog.testing.legacy import encode_message, encode_wrapper
from segmentlog.testing.reference import Record, encode_batch

MINUTE = timedelta(minutes=1)


def counted(table: pa.Table, unit: timedelta = MINUTE) -> dict[tuple[str, int, int], int]:
    """Rows of the table by topic, partition and number of the interval."""
    times = table["timestamp"].cast(pa.int64()).to_pylist()
    unit_us = unit // timedelta(microseconds=1)
    assert {0} >= {time % unit_us for time in times}
    numbers = [time // unit_us for time in times]
    topics, partitions = table["topic"].to_pylist(), table["partition"].to_pylist()
    keys = list(zip(topics, partitions, numbers, strict=True))
    assert sorted(keys) == keys
    return dict(zip(keys, table["count"].to_pylist(), strict=True))


def by_rows(dataset: pads.Dataset, unit: timedelta = MINUTE) -> dict:
    """Counts by topic, partition and number of the interval, from all rows."""
    rows = dataset.to_table(["topic", "partition", "timestamp"])
    times = rows["timestamp"].cast(pa.int64()).to_pylist()
    unit_us = unit // timedelta(microseconds=1)
    return Counter(
        zip(
            rows["topic"].to_pylist(),
            rows["partition"].to_pylist(),
            (time // unit_us for time in times),
            strict=True,
        )
    )


@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize(
    "unit", [timedelta(milliseconds=7), MINUTE, timedelta(hours=1), timedelta(days=7)]
)
def test_counts_are_those_of_the_rows(
    example_data: str, isolation_level: str, unit: timedelta
) -> None:
    """The counts of a broker's directory have one row for each interval that has records."""
    dataset = segmentlog.dataset(example_data, isolation_level=isolation_level)
    expected = by_rows(dataset, unit)

    assert expected == counted(dataset.count_by_time(unit), unit)
    assert expected == counted(dataset.count_by_time(unit, exact=True), unit)
    orders = dataset.filter(pc.field("topic") == "orders")
    assert by_rows(orders, unit) == counted(orders.count_by_time(unit), unit)


def write(path: Path, batches: Sequence[bytes]) -> None:
    """Write a segment of these batches."""
    path.mkdir(exist_ok=True)
    (path / f"{0:020d}.log").write_bytes(b"".join(batches))


@pytest.mark.parametrize("seed", range(10))
def test_batches_that_straddle_are_decoded(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of every format that cross a bound of time or offset are counted exactly."""
    draw = random.Random(seed)
    monkeypatch.setattr(aggregates, "_MOST_SINGLE", draw.choice([0, 1 / 8, 1]))
    batches, offset, time = [], 0, 0
    for _ in range(60):
        records = []
        for _ in range(draw.randint(1, 5)):
            time += draw.choice([0, 1, 500, 20_000])
            records.append(Record(offset, time, b"k", b"v"))
            offset += draw.choice([1, 1, 3])
        kind = draw.choice(["batch", "batch", "batch", "messages", "wrapper"])
        if kind == "batch":
            batches.append(encode_batch(records, codec=draw.choice([0, 1])))
        elif kind == "messages":
            batches += [encode_message(each) for each in records]
        else:
            batches.append(encode_wrapper(records, codec=1))
    write(tmp_path / "t-0", batches)
    bounds = {("t", 0): draw.randint(0, 40)}, {("t", 0): draw.randint(60, 90)}

    for dataset in (
        segmentlog.dataset(tmp_path / "t-0"),
        segmentlog.dataset(tmp_path, starting_offsets=bounds[0], ending_offsets=bounds[1]),
    ):
        assert by_rows(dataset) == counted(dataset.count_by_time(MINUTE))


def test_an_end_inside_of_a_wrapper(tmp_path: Path) -> None:
    """The header of a wrapper has only its last offset, which is after the end."""
    records = [Record(i, i, b"k", b"v") for i in range(15)]
    for begin in (0, 5):
        path = tmp_path / str(begin) / "t-0"
        path.mkdir(parents=True)
        for base, part in ((0, records[:begin]), (begin, records[begin:])):
            if part:
                (path / f"{base:020d}.log").write_bytes(encode_wrapper(part, codec=1))
        for end in range(16):
            dataset = segmentlog.dataset(path, ending_offsets={("t", 0): end})
            assert end == sum(counted(dataset.count_by_time(MINUTE)).values())


@pytest.mark.parametrize(
    ("number", "at", "data"),
    [
        (1, layout.RECORDS_COUNT_AT, struct.pack(">i", -5)),
        (1, layout.RECORDS_COUNT_AT, struct.pack(">i", 2**31 - 1)),
        (1, layout.ATTRIBUTES_AT, struct.pack(">h", 7)),  # no codec of Kafka
        (0, layout.BASE_OFFSET_AT, struct.pack(">q", 2**40)),
        (2, layout.BASE_OFFSET_AT, struct.pack(">q", -9)),
        (2, layout.BASE_OFFSET_AT, struct.pack(">q", 1)),
    ],
)
def test_a_header_that_cannot_be_true_is_an_error(
    tmp_path: Path, number: int, at: int, data: bytes
) -> None:
    """Of two segments, and another one that follows them."""
    every = [encode_batch([Record(2 * i + j, i, None, b"v") for j in (0, 1)]) for i in range(5)]
    write_segments(tmp_path / "t-0", [every[:2], every[2:4], every[4:]], 0)
    path = tmp_path / f"t-0/{number // 2 * 4:020d}.log"
    log = bytearray(path.read_bytes())
    at += number % 2 * len(every[0])
    log[at : at + len(data)] = data
    path.write_bytes(log)

    dataset = segmentlog.dataset(tmp_path / "t-0")
    with pytest.raises(segmentlog.SegmentLogError):
        dataset.count_by_time(MINUTE)


def test_a_batch_within_an_interval_is_not_decoded(tmp_path: Path) -> None:
    """A damaged batch inside one interval is counted by its header, unless `exact` is set.

    Without `exact`, a record that is earlier than the first record of its batch is counted in the
    interval of that first record.
    """
    first = encode_batch([Record(0, 60_000, None, b"a"), Record(1, 59_000, None, b"b")])
    second = encode_batch([Record(2, 61_000, None, b"c"), Record(3, 62_000, None, b"d")])
    third = encode_batch([Record(4, 63_000, None, b"e")])
    write(tmp_path / "t-0", [first, second[:-3] + b"???", third])
    dataset = segmentlog.dataset(tmp_path / "t-0")

    assert {("t", 0, 1): 5} == counted(dataset.count_by_time(MINUTE))
    with pytest.raises(segmentlog.ChecksumMismatchError):
        dataset.count_by_time(MINUTE, exact=True)
    undamaged = segmentlog.dataset(tmp_path / "t-0", ending_offsets={("t", 0): 2})
    assert {("t", 0, 0): 1, ("t", 0, 1): 1} == counted(undamaged.count_by_time(MINUTE, exact=True))


def test_a_row_begins_at_its_interval(tmp_path: Path) -> None:
    """The timestamp of a row is the start of its interval, also before 1970.

    An empty log has no rows.
    """
    write(tmp_path / "t-0", [encode_batch([Record(0, -1500, None, b"")])])
    table = segmentlog.dataset(tmp_path / "t-0").count_by_time(timedelta(seconds=1))

    assert [datetime(1969, 12, 31, 23, 59, 58, tzinfo=UTC)] == table["timestamp"].to_pylist()
    nothing = segmentlog.dataset(tmp_path / "t-0", starting_offsets={("t", 0): 1})
    assert 0 == nothing.count_by_time(MINUTE).num_rows
    assert table.schema == nothing.count_by_time(MINUTE).schema
    for interval in (timedelta(), -MINUTE, timedelta(microseconds=1500)):
        with pytest.raises(segmentlog.OptionError, match="'interval'"):
            nothing.count_by_time(interval)
