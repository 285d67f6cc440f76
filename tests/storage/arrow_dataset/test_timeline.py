"""Partitions are merged into one stream by time."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import segmentlog
from segmentlog import ProducerConfig, open_writer
from segmentlog.arrow_dataset import log_scanner
from segmentlog.arrow_dataset.bounds import PartitionBounds
from segmentlog.arrow_dataset.log_scanner import merge_by_timestamp
from segmentlog.model import Codec, TopicPartition


def tables(partition: int, times: list[int], n_rows: int) -> Iterator[pa.Table]:
    """Rows of one partition, in tables of `n_rows` rows."""
    for begin in range(0, len(times), n_rows):
        part = times[begin : begin + n_rows]
        yield pa.table(
            {
                "timestamp": pa.array(part, pa.timestamp("us", "UTC")),
                "partition": [partition] * len(part),
                "offset": range(begin, begin + len(part)),
            }
        )


def expected_order(partitions: list[list[int]]) -> list[tuple[int, int]]:
    """Partition and offset of the rows in the order that the rule gives, computed row by row."""
    placed = []
    for partition, times in enumerate(partitions):
        newest = -(2**63)
        for offset, time in enumerate(times):
            newest = max(newest, time)
            placed.append((newest, partition, offset))
    return [(partition, offset) for _, partition, offset in sorted(placed)]


@pytest.mark.parametrize("seed", range(40))
def test_rows_have_the_order_of_the_rule(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random partitions have times that rise, fall or are all equal. Some are empty.

    Rows come in results of any size.
    """
    draw = random.Random(seed)
    monkeypatch.setattr(log_scanner, "_MOST_ROWS", draw.choice([1, 7, 50, 50_000]))
    spread = draw.choice([0, 1, 5, 1000])
    partitions = [
        [
            i * draw.choice([0, 1]) + draw.randint(-spread, spread)
            for i in range(draw.randint(0, 90))
        ]
        for _ in range(draw.randint(1, 7))
    ]
    n_rows = draw.choice([1, 2, 7, 50])
    merged = list(
        merge_by_timestamp(
            [tables(i, times, n_rows) for i, times in enumerate(partitions)],
            draw.choice([0, 500, 10**6]),
        )
    )
    found = [
        pair
        for each in merged
        for pair in zip(each["partition"].to_pylist(), each["offset"].to_pylist(), strict=True)
    ]

    assert expected_order(partitions) == found


def test_a_dataset_is_scanned_as_a_timeline(example_data: str) -> None:
    """A timeline has each row once, sorted by time where each partition is.

    Filters and columns work as in other scans.
    """
    dataset = segmentlog.dataset(example_data, topics="orders")
    rows = dataset.to_table(order="timestamp")
    by_place = [
        ("timestamp", "ascending"),
        ("topic", "ascending"),
        ("partition", "ascending"),
        ("offset", "ascending"),
    ]

    assert dataset.to_table().sort_by(by_place).equals(rows.combine_chunks())
    late = pc.field("offset") > 100
    stream = dataset.scan(["topic", "offset"], late, order="timestamp", batch_size=9)
    found = stream.read_all()
    assert max(each.num_rows for each in found.to_batches()) <= 9
    assert rows.filter(late).select(["topic", "offset"]).equals(found.combine_chunks())
    hour = dataset.head(3, {"offset": pc.field("offset") + 1}, order="timestamp")
    assert pc.add(rows["offset"].slice(0, 3), 1).to_pylist() == hour["offset"].to_pylist()
    (fragment, *_) = dataset.get_fragments()
    assert fragment.to_table().equals(fragment.to_table(order="timestamp"))
    with pytest.raises(segmentlog.OptionError, match="'offset' or 'timestamp'"):
        dataset.scan(order="time")


def test_a_timeline_of_many_partitions_holds_few_files_and_little_memory(
    write_log: Callable[..., Path], tmp_path: Path
) -> None:
    """Partitions whose rows are not needed yet have no file open."""
    for partition in range(60):
        write_log([[(i, 1000 * i + partition) for i in range(40)]], f"t-{partition}")
    batches = segmentlog.dataset(tmp_path).to_batches(order="timestamp")
    process = psutil.Process()
    before = process.num_fds()
    first = next(batches)

    assert process.num_fds() < before + 5
    rest = pa.Table.from_batches([first, *batches])
    times = rest["timestamp"].cast(pa.int64()).to_pylist()
    assert len(times) == 2400
    assert sorted(times) == times


@pytest.mark.parametrize("has_indexes", [True, False])
def test_a_timeline_of_compressed_partitions_holds_what_it_promises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_indexes: bool
) -> None:
    """A timeline keeps its bound on memory although decoded rows are far larger than their log.

    A decoder that waits for its turn would hold 8 MiB per partition.
    """
    monkeypatch.setattr(log_scanner, "MERGED_BYTES", 2 << 20)
    n_partitions, n_rows = 24, 6_000
    config = ProducerConfig(use_timestamps=True, codec=Codec.ZSTD, batch_size=16 << 10)
    numbers = range(n_partitions * n_rows)
    rows = {
        "value": pa.array([b"%09d" % (i // 100) + b"v" * 150 for i in numbers]),
        "partition": pa.array([i % n_partitions for i in numbers], pa.int32()),
        "timestamp": pa.array([1000 * i for i in numbers], pa.timestamp("us", "UTC")),
    }
    with open_writer(tmp_path, "t", num_partitions=n_partitions, config=config) as writer:
        writer.append(pa.table(rows))
    for index in tmp_path.glob("*/*.index") if not has_indexes else ():
        index.unlink()
    dataset, pool = segmentlog.dataset(tmp_path), pa.default_memory_pool()
    before, most, found = pool.bytes_allocated(), 0, 0
    for batch in dataset.to_batches(["timestamp", "value"], order="timestamp"):
        most = max(most, pool.bytes_allocated() - before)
        found += batch.num_rows

    assert len(numbers) == found
    assert most < 24 << 20  # it was 245 MB with 8 MiB for each partition


def test_a_timeline_looks_at_each_partition_a_few_times(
    write_log: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timeline does not look at all partitions again for each slice."""
    n_partitions, n_looks = 20, 0
    for partition in range(n_partitions):
        write_log([[(i, 1000 * i + partition) for i in range(300)]], f"t-{partition}")
    dataset = segmentlog.dataset(tmp_path)
    real = PartitionBounds.topic_partition.fget

    def counting(self: PartitionBounds) -> TopicPartition:
        nonlocal n_looks
        n_looks += 1
        return real(self)

    monkeypatch.setattr(PartitionBounds, "topic_partition", property(counting))
    assert 300 * n_partitions == dataset.to_table(order="timestamp").num_rows
    assert n_looks < 8 * n_partitions


def test_a_timeline_is_merged_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory stays bounded for partitions with equal times.

    It stays bounded for a partition that begins when others end, too.
    """
    monkeypatch.setattr(log_scanner, "MERGED_BYTES", 1 << 20)
    value = pa.array([b"v" * 200] * 20_000)
    config = ProducerConfig(use_timestamps=True)
    with open_writer(tmp_path, "t", num_partitions=3, config=config) as writer:
        for partition, begin in ((0, 0), (1, 0), (2, 20_000_000)):
            times = pa.array(range(begin, begin + 20_000_000, 1000), pa.timestamp("us", "UTC"))
            partitions = pa.array([partition] * 20_000, pa.int32())
            rows = {"value": value, "partition": partitions, "timestamp": times}
            writer.append(pa.table(rows))
    dataset, pool = segmentlog.dataset(tmp_path), pa.default_memory_pool()
    before, most, n_rows = pool.bytes_allocated(), 0, 0
    for batch in dataset.to_batches(order="timestamp"):
        most = max(most, pool.bytes_allocated() - before)
        n_rows += batch.num_rows

    assert 60_000 == n_rows
    assert most < 6 << 20  # all rows take more than 12 MiB


@pytest.mark.parametrize("columns", [[], ["timestamp"], None])
@pytest.mark.parametrize("name", ["key", "timestamp", "partition", "offset"])
def test_a_timeline_is_counted_with_a_filter(
    example_data: str, columns: list[str] | None, name: str
) -> None:
    """A timeline without columns has as many rows as a read of the same rows by offset."""
    logs = segmentlog.dataset(example_data)
    condition = pc.field(name).is_valid()
    by_offset = logs.count_rows(condition)
    found = logs.scanner(columns, condition, order="timestamp")

    assert by_offset == logs.count_rows(condition, order="timestamp") == found.count_rows()
    assert by_offset == sum(batch.num_rows for batch in found.to_batches())


def test_a_timeline_of_batches_that_inflate_a_thousandfold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition has rows of one batch in memory, however little of the log holds them."""
    monkeypatch.setattr(log_scanner, "MERGED_BYTES", 2 << 20)
    n_partitions, n_rows, n_bytes = 20, 400, 10_000
    config = ProducerConfig(use_timestamps=True, codec=Codec.ZSTD, batch_size=20 * n_bytes)
    numbers = pa.array(range(n_partitions * n_rows))
    rows = {
        "value": pa.array([b"v" * n_bytes] * len(numbers)),
        "partition": pa.array([i % n_partitions for i in range(len(numbers))], pa.int32()),
        "timestamp": pc.multiply(numbers, 1000).cast(pa.timestamp("us", "UTC")),
    }
    with open_writer(tmp_path, "t", num_partitions=n_partitions, config=config) as writer:
        writer.append(pa.table(rows))
    dataset, pool = segmentlog.dataset(tmp_path), pa.default_memory_pool()
    before, most, found = pool.bytes_allocated(), 0, 0
    for batch in dataset.to_batches(["timestamp", "value"], order="timestamp"):
        most = max(most, pool.bytes_allocated() - before)
        found += batch.num_rows

    assert len(numbers) == found
    assert most < 16 << 20  # 80 MB of rows; 20 batches have 4 MB
