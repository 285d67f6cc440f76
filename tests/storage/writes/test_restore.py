"""Rows that keep the offsets, timestamps and append times that they had in another log."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from soundness import assert_tidy

import segmentlog
from segmentlog.errors import InvalidRecordError, OffsetsOutOfOrderError, OptionError
from segmentlog.format.topic_config import TopicConfig
from segmentlog.writes.config import ProducerConfig, WriteRequest
from segmentlog.writes.job import WriteJob

GOLDEN = sorted(path for path in Path("tests/golden").glob("kafka-*") if path.is_dir())
RESTORE = ProducerConfig(use_timestamps=True, use_timestamp_types=True, use_offsets=True)


def placed_rows(offsets: list[int], partition: int = 0) -> pa.Table:
    """Records with these offsets, which their timestamps and values contain."""
    return pa.table(
        {
            "value": pa.array([b"%d" % offset for offset in offsets], pa.binary()),
            "partition": pa.array([partition] * len(offsets), pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "timestamp": pa.array(
                [offset * 1000 for offset in offsets], pa.timestamp("us", "UTC")
            ),
            "timestampType": pa.array([offset // 10 % 2 for offset in offsets], pa.int32()),
        }
    )


def restore(directory: Path, *tables: pa.Table, **settings: Any) -> None:
    """Restore the rows in one job."""
    config = settings.pop("config", RESTORE)
    with segmentlog.open_writer(
        directory, "t", num_partitions=2, config=config, **settings
    ) as writer:
        for table in tables:
            writer.append(table)


def test_offsets_and_times_are_kept(tmp_path: Path) -> None:
    """The rows have gaps, jobs and segments. The log starts at the first record."""
    config = ProducerConfig(
        TopicConfig(segment_bytes=2000),
        batch_size=300,
        use_timestamps=True,
        use_timestamp_types=True,
        use_offsets=True,
    )
    first, second = [*range(5000, 5400, 3)], [5500, 5501, 2**33]
    restore(tmp_path, placed_rows(first[:50]), placed_rows(first[50:]), config=config)
    restore(tmp_path, placed_rows(second), config=config)
    log = segmentlog.open_log_dir(tmp_path).log("t", 0)
    found = log.scan(columns=["value", "offset", "timestamp", "timestampType"]).read_all()
    expected = placed_rows(first + second)

    assert len(log.segments) > 3
    assert (5000, 2**33 + 1) == (log.log_start_offset, log.log_end_offset)
    for name in ("value", "offset", "timestampType"):
        assert expected[name].to_pylist() == found[name].to_pylist(), name
    times = found["timestamp"].cast(pa.int64()).to_pylist()
    assert [offset * 1000 for offset in first + second] == times
    assert_tidy(tmp_path)


def test_tasks_are_put_in_the_order_of_their_offsets(tmp_path: Path) -> None:
    """The tasks end in any order."""
    job = WriteJob.begin(WriteRequest(str(tmp_path), RESTORE, topic="t"))
    extents = []
    for task, offsets in enumerate([[20, 21], [0, 1], [10]]):
        stager = job.stager(task)
        for batch in placed_rows(offsets).to_batches():
            stager.add(batch)
        extents.append(stager.finish())
    job.commit(extents)
    log = segmentlog.open_log_dir(tmp_path).log("t", 0)

    assert [0, 1, 10, 20, 21] == log.scan().read_all()["offset"].to_pylist()
    assert_tidy(tmp_path)


@pytest.mark.parametrize(
    ("before", "offsets", "bad", "end"),
    [
        ([], [[5, 4]], 4, 6),
        ([], [[5, 5]], 5, 6),
        ([], [[5], [3]], 3, 6),
        ([5], [[3, 4]], 3, 6),
        ([5], [[5, 6]], 5, 6),
    ],
)
def test_offsets_out_of_order_are_refused_with_the_remedy(
    tmp_path: Path, before: list[int], offsets: list[list[int]], bad: int, end: int
) -> None:
    """The offsets fall in a table, from table to table, or below the log end."""
    if before:
        restore(tmp_path, placed_rows(before))
    with pytest.raises(OffsetsOutOfOrderError, match="sortWithinPartitions") as caught:
        restore(tmp_path, *map(placed_rows, offsets))

    assert ("t", 0, bad, end) == caught.value.args
    assert bool(before) == (tmp_path / "t-0").exists()
    if before:
        log = segmentlog.open_log_dir(tmp_path).log("t", 0)
        assert before == log.scan().read_all()["offset"].to_pylist()


def test_tasks_whose_offsets_overlap_are_refused(tmp_path: Path) -> None:
    """The commit finds the overlap before it changes a file, and its new topic goes."""
    job = WriteJob.begin(WriteRequest(str(tmp_path), RESTORE, topic="t"))
    extents = []
    for task, offsets in enumerate([[0, 10], [5]]):
        stager = job.stager(task)
        stager.add(placed_rows(offsets).to_batches()[0])
        extents.append(stager.finish())
    with pytest.raises(OffsetsOutOfOrderError):
        job.commit(extents)
    job.abort()
    assert {} == segmentlog.open_log_dir(tmp_path).topics()


@pytest.mark.parametrize("name", ["value", "partition", "offset", "timestamp", "timestampType"])
def test_a_column_that_is_needed(tmp_path: Path, name: str) -> None:
    """The error names the missing column. Another type is refused, too."""
    table = placed_rows([1, 2])
    with pytest.raises(OptionError, match=f"column '{name}'"):
        restore(tmp_path, table.drop_columns([name]))
    wrong = table.set_column(table.schema.get_field_index(name), name, pa.array([1.5, 2.5]))
    with pytest.raises(OptionError, match=name):
        restore(tmp_path, wrong)


@pytest.mark.parametrize("kind", [5, 2, -2])
def test_a_type_of_timestamps_that_no_record_has(tmp_path: Path, kind: int) -> None:
    """It is refused; -1, which records of the oldest format have, is kept as 0."""
    table = placed_rows([1, 2, 3])
    place = table.schema.get_field_index("timestampType")
    for kinds in ([0, 1, kind], [0, 1, -1]):
        column = pa.array(kinds, pa.int32())
        given = table.set_column(place, "timestampType", column)
        if kind in kinds:
            with pytest.raises(InvalidRecordError, match=f"row 2.* timestampType is {kind}: it"):
                restore(tmp_path, given)
        else:
            restore(tmp_path, given)
    log = segmentlog.open_log_dir(tmp_path).log("t", 0)

    assert [0, 1, 0] == log.scan(columns=["timestampType"]).read_all()["timestampType"].to_pylist()


def test_an_offset_that_is_null(tmp_path: Path) -> None:
    """A null offset is refused."""
    table = placed_rows([1, 2]).drop_columns(["offset"])
    with pytest.raises(InvalidRecordError, match=r"row 1.*offset is null"):
        restore(tmp_path, table.append_column("offset", pa.array([1, None], pa.int64())))


@pytest.mark.parametrize("directory", GOLDEN, ids=lambda path: path.name)
def test_every_topic_of_a_broker_is_restored(directory: Path, tmp_path: Path) -> None:
    """The copy has the rows of the broker's directory, if the format can hold them."""
    source = segmentlog.open_log_dir(directory)
    n_rows = 0
    for topic, partitions in source.topics().items():
        tables = []
        for partition in partitions:
            found = source.log(topic, partition).scan(include_headers=True).read_all()
            tables.append(found)
        config = ProducerConfig(use_timestamps=True, use_timestamp_types=True, use_offsets=True)
        with segmentlog.open_writer(
            tmp_path, topic, num_partitions=len(partitions), config=config
        ) as writer:
            for table in tables:
                writer.append(table)
        opened = segmentlog.open_log_dir(tmp_path)
        for partition, table in zip(partitions, tables, strict=True):
            found = opened.log(topic, partition).scan(include_headers=True).read_all()
            kinds = [max(kind, 0) for kind in table["timestampType"].to_pylist()]
            n_rows += table.num_rows
            assert kinds == found["timestampType"].to_pylist()
            names = [name for name in table.schema.names if name != "timestampType"]
            assert table.select(names) == found.select(names), (topic, partition)
    assert n_rows > 100
    assert_tidy(tmp_path)


def test_each_new_topic_gets_the_partitions_that_its_own_rows_name(tmp_path: Path) -> None:
    """Rows of one topic lie in several tasks, and keys choose partitions as in the other log."""
    job = WriteJob.begin(WriteRequest(str(tmp_path), config=RESTORE))
    staged = []
    for task, named in enumerate([{"a": 2, "b": 0}, {"a": 0, "c": 4}]):
        stager = job.stager(task)
        for topic, partition in named.items():
            rows = placed_rows([5 + task], partition)
            rows = rows.append_column("topic", pa.array([topic]))
            stager.add(rows.to_batches()[0])
        staged.append(stager.finish())
    job.commit(staged)

    topics = segmentlog.open_log_dir(tmp_path).topics()
    assert {"a": [0, 1, 2], "b": [0], "c": [0, 1, 2, 3, 4]} == topics
    assert_tidy(tmp_path)


def test_one_row_does_not_make_more_partitions_than_a_log_can_have(tmp_path: Path) -> None:
    """A number that is given counts for all new topics."""
    rows = placed_rows([5], 10_000)
    with (
        pytest.raises(InvalidRecordError, match="it names partition 10000"),
        segmentlog.open_writer(tmp_path, "t", preserve=True) as writer,
    ):
        writer.append(rows)
    assert [] == [*tmp_path.glob("t-*")]
    with segmentlog.open_writer(tmp_path, "t", preserve=True, num_partitions=3) as writer:
        writer.append(placed_rows([5], 1))
    assert {"t": [0, 1, 2]} == segmentlog.open_log_dir(tmp_path).topics()
