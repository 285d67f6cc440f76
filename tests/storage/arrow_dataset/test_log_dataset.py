"""The dataset as DuckDB, Polars and pyarrow query it."""

import pickle
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pytest

import segmentlog
from segmentlog.arrow_dataset import bounds
from segmentlog.errors import LogChangedError, OptionError
from segmentlog.reads import ordered_reads
from segmentlog.reads.scan import scan_slice

ORDERS = pc.field("topic") == "orders"


@pytest.fixture
def dataset(example_data: str) -> pads.Dataset:
    """The example data, in small slices."""
    return segmentlog.dataset(example_data)


def all_rows(example_data: str, columns: list[str] | None = None) -> pa.Table:
    """The rows of all scans, one log after the other."""
    directory = segmentlog.open_log_dir(example_data)
    return pa.concat_tables(
        directory.log(topic, each).scan(columns=columns).read_all()
        for topic, partitions in sorted(directory.topics().items())
        for each in partitions
    )


def test_it_is_a_dataset_with_the_rows_of_all_scans(example_data: str) -> None:
    """The dataset has the columns of a scan.

    Its rows are in the order of topic, partition and offset.
    """
    dataset = segmentlog.dataset(example_data)
    expected = all_rows(example_data)

    assert isinstance(dataset, pads.Dataset)
    assert expected.schema == dataset.schema
    assert expected.equals(dataset.to_table().combine_chunks())
    assert expected.num_rows == dataset.count_rows()
    assert expected.slice(0, 7).equals(dataset.head(7))


def test_duckdb_queries_it_again_and_again(example_data: str) -> None:
    """DuckDB finds the dataset by the name of a variable or as a registered view.

    Filters, joins and limits work.
    """
    logs = segmentlog.dataset(example_data)  # DuckDB finds it by this name
    by_partition = 'select partition, count(*), max("offset") from logs where topic = ? group by 1'
    expected = [(0, 335, 334), (1, 317, 316), (2, 248, 247)]

    with duckdb.connect() as connection:
        for _ in range(2):
            found = connection.execute(f"{by_partition} order by 1", ["orders"]).fetchall()
            assert expected == found
        connection.register("registered", logs)
        joined = connection.sql(
            "select count(*) from registered a join registered b "
            "on a.topic = b.topic and a.partition = b.partition and a.offset = b.offset "
            "where a.topic in ('orders', 'customers') and b.partition <> 1"
        )
        relation = connection.from_arrow(logs).filter("topic = 'orders'")
        assert [(900,)] == relation.aggregate("count(*)").fetchall()
        one = connection.sql("select value from registered where topic = 'orders' limit 1")

        assert (
            logs.count_rows(
                pc.field("topic").isin(["orders", "customers"]) & (pc.field("partition") != 1)
            )
            == joined.fetchall()[0][0]
        )
        assert logs.head(1, ["value"], ORDERS)["value"].to_pylist() == [one.fetchall()[0][0]]


def test_polars_queries_it_lazily(example_data: str) -> None:
    """Both engines of Polars can query the dataset any number of times."""
    dataset = segmentlog.dataset(example_data)
    frame = pl.scan_pyarrow_dataset(dataset)
    query = frame.filter(pl.col("topic") == "orders", pl.col("offset") > 300).select("offset")

    for engine in ("in-memory", "streaming"):
        assert [*range(301, 335), *range(301, 317)] == query.collect(engine=engine)[
            "offset"
        ].to_list()
        assert 1062 == frame.select(pl.len()).collect(engine=engine).item()
        assert 3 == len(frame.head(3).collect(engine=engine))


FILTERS = [
    pc.field("offset") == 100,
    (pc.field("offset") >= 55) & (pc.field("offset") < 66),
    pc.field("offset").isin([3, 240, 9999]),
    pc.field("partition") == 2,
    ~ORDERS & (pc.field("partition") == 0),
    pc.starts_with(pc.field("topic"), "o"),
    pc.field("timestamp") >= pa.scalar(1_760_200_000_000_000, pa.timestamp("us", "UTC")),
    pc.field("timestamp") < pa.scalar(1_760_100_000_000_000, pa.timestamp("us", "UTC")),
    pc.field("key").is_null() | (pc.field("offset") > 200),
    pc.field("value") == b"none",
    pc.field(4) < 10,
    pc.scalar(False),
]


@pytest.mark.parametrize("condition", FILTERS, ids=str)
@pytest.mark.parametrize("slice_bytes", [1000, 16 << 20])
def test_filters_are_exact(
    example_data: str, condition: pc.Expression, slice_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filter keeps the rows that Arrow's own filter keeps.

    The size of the slices does not matter.
    """
    monkeypatch.setattr(bounds, "_LEAST_TIGHTENED", 4)
    monkeypatch.setattr(ordered_reads, "_SLICE_BYTES", slice_bytes)
    dataset = segmentlog.dataset(example_data)
    expected = pads.InMemoryDataset(all_rows(example_data)).to_table(filter=condition)

    assert expected.equals(dataset.to_table(filter=condition).combine_chunks())
    assert expected.num_rows == dataset.filter(condition).count_rows()
    assert expected.select(["value"]).equals(
        dataset.to_table(["value"], condition).combine_chunks()
    )
    fragments = list(dataset.get_fragments(condition))
    assert expected.num_rows == sum(each.count_rows(condition) for each in fragments)


def test_rows_are_the_same_on_any_number_of_threads(
    example_data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads read slices at the same time, and the rows keep the order of the slices."""
    monkeypatch.setattr(ordered_reads, "_SLICE_BYTES", 1000)
    dataset = segmentlog.dataset(example_data)
    expected = dataset.to_table(use_threads=False)
    cpus = pa.cpu_count()
    try:
        for n_threads in (2, 5):
            pa.set_cpu_count(n_threads)
            assert expected.equals(dataset.to_table())
            assert expected.equals(
                pa.concat_tables(each.to_table() for each in dataset.get_fragments())
            )
    finally:
        pa.set_cpu_count(cpus)


def test_several_threads_query_one_dataset(
    example_data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several threads begin their first queries at the same time.

    Each query uses its own threads.
    """
    monkeypatch.setattr(ordered_reads, "_SLICE_BYTES", 1000)
    dataset = segmentlog.dataset(example_data)
    expected = segmentlog.dataset(example_data).to_table()

    with ThreadPoolExecutor(4) as pool:
        tables = list(pool.map(lambda condition: dataset.to_table(filter=condition), 4 * FILTERS))
    for table, condition in zip(tables, 4 * FILTERS, strict=True):
        assert expected.filter(condition).equals(table)


def test_a_query_that_ends_early_leaves_no_thread(
    example_data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The threads of a read end although DuckDB or Polars drops the rest of its rows."""
    monkeypatch.setattr(ordered_reads, "_SLICE_BYTES", 1000)
    logs = segmentlog.dataset(example_data)

    assert 1 == len(duckdb.sql("select value from logs limit 1").fetchall())
    assert 3 == len(pl.scan_pyarrow_dataset(logs).head(3).collect())
    deadline = time.monotonic() + 20
    while any(each.name.startswith("segmentlog-") for each in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_process_ends_with_reads_that_nobody_has_finished(example_data: str) -> None:
    """Threads of unfinished reads end before the interpreter frees the buffers they write to."""
    code = (
        "import atexit, threading\n"
        "atexit.register(lambda: print(threading.enumerate() == [threading.main_thread()]))\n"
        "import segmentlog\n"
        "from segmentlog.reads import ordered_reads\n"
        "ordered_reads._SLICE_BYTES, ordered_reads._AHEAD_BYTES = 1000, 200\n"
        f"logs = segmentlog.dataset({example_data!r})\n"
        "batches, stream = logs.to_batches(), logs.scan()\n"
        "print(next(batches).num_rows > 0, stream.read_next_batch().num_rows > 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, timeout=120
    )

    assert (done.stdout.split(), done.stderr) == ([b"True", b"True", b"True"], b"")


def test_damage_reaches_the_user_with_its_place(
    example_data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python raises one of our errors, and DuckDB shows its text.

    With `on_corrupt_batch="skip"` the batch is left out.
    """
    shutil.copytree(example_data, tmp_path / "logs")
    path = tmp_path / "logs" / "orders-1" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[3000] ^= 1
    path.write_bytes(data)
    logs = segmentlog.dataset(tmp_path / "logs")

    for order in ("offset", "timestamp"):
        with pytest.raises(segmentlog.ChecksumMismatchError, match="orders-1"):
            logs.to_table(order=order)
    with pytest.raises(duckdb.Error, match=r"orders-1.*byte"):
        duckdb.sql("select count(value) from logs").fetchall()
    assert 335 == logs.count_rows(ORDERS & (pc.field("partition") == 0))
    skipping = segmentlog.dataset(tmp_path / "logs", on_corrupt_batch="skip")
    assert 200 < skipping.count_rows(ORDERS & (pc.field("partition") == 1)) < 317
    assert skipping.count_rows() == sum(skipping.count_by_time(timedelta(1))["count"].to_pylist())


def test_options_are_those_of_a_scan(example_data: str) -> None:
    """A dataset takes an isolation level, and bounds by offset and by time.

    It takes an open directory or its path.
    """
    directory = segmentlog.open_log_dir(example_data)
    log = directory.log("payments", 0)
    committed = segmentlog.dataset(directory, topics="payments", isolation_level="read_committed")
    expected = log.scan(isolation_level="read_committed").read_all()
    assert expected.equals(committed.to_table().combine_chunks())
    assert expected.num_rows < segmentlog.dataset(directory, topics=["payments"]).count_rows()

    at = datetime(2025, 10, 11, tzinfo=UTC)
    bounded = segmentlog.dataset(
        example_data,
        topics="orders",
        since=at,
        starting_offsets={("orders", 0): 3},
    )
    by_time = directory.log("orders", 0).bounds(since=at).start_offset
    assert 332 == bounded.count_rows(pc.field("partition") == 0)
    bounded = segmentlog.dataset(
        example_data,
        topics="orders",
        until=at,
        ending_offsets={("orders", 1): 3},
    )
    assert [by_time, 3] == [bounded.count_rows(pc.field("partition") == each) for each in (0, 1)]
    ended = segmentlog.dataset(example_data, topics="orders", since=at)
    assert 335 - by_time == ended.count_rows(pc.field("partition") == 0)


REFUSED = [
    ({"topics": "order"}, segmentlog.UnknownTopicOrPartitionError, "did you mean 'orders'"),
    (
        {"topics": "orders", "ending_offsets": {("payments", 0): 1}},
        segmentlog.OptionError,
        "topics are orders",
    ),
    ({"starting_offsets": {("orders", 7): 1}}, segmentlog.UnknownTopicOrPartitionError, "0, 1, 2"),
    ({"starting_offsets": {("orders", 0): 999}}, segmentlog.OffsetOutOfRangeError, "999"),
    ({"since": datetime(2025, 1, 1)}, segmentlog.OptionError, "zone"),
    ({"isolation_level": "dirty"}, ValueError, "dirty"),
]


@pytest.mark.parametrize(("options", "error", "match"), REFUSED, ids=lambda each: str(each)[:40])
def test_options_that_name_nothing_are_refused(
    example_data: str, options: dict, error: type[Exception], match: str
) -> None:
    """Wrong options are refused when the dataset is opened, not at the first query."""
    with pytest.raises(error, match=match):
        segmentlog.dataset(example_data, **options)
    with pytest.raises(segmentlog.OptionError, match="LogDirectory alone"):
        segmentlog.dataset(segmentlog.open_log_dir(example_data), example_data)


def test_importing_segmentlog_leaves_datasets_to_the_first_call() -> None:
    """`pyarrow.dataset` takes long to import, so `import segmentlog` does not load it."""
    code = "import sys, segmentlog; print('pyarrow.dataset' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)

    assert done.stdout.strip() == b"False"


def test_a_fragment_has_an_expression_that_selects_its_rows(example_data: str) -> None:
    """The partition expression of a fragment selects exactly its rows.

    A fragment can be queried alone.
    """
    dataset = segmentlog.dataset(example_data)
    for fragment in dataset.get_fragments(ORDERS):
        rows = fragment.to_table()
        assert rows.equals(dataset.to_table(filter=fragment.partition_expression))
        assert rows.slice(0, 2).equals(fragment.head(2))
        assert dataset.schema == fragment.physical_schema
        assert "LogFragment('orders-" in repr(fragment)


def test_a_dataset_is_a_snapshot_and_can_be_pickled(tmp_path: Path) -> None:
    """A dataset does not see rows that are appended after it was opened.

    This also holds after it was pickled and loaded.
    """
    rows = pa.table({"value": pa.array([b"a", b"b"])})
    with segmentlog.open_writer(tmp_path, "t") as writer:
        writer.append(rows)
    dataset = segmentlog.dataset(tmp_path)
    with segmentlog.open_writer(tmp_path, "t") as writer:
        writer.append(rows)

    assert 2 == dataset.count_rows()
    assert 2 == pickle.loads(pickle.dumps(dataset)).count_rows()
    assert 1 == pickle.loads(pickle.dumps(dataset.filter(pc.field("offset") > 0))).count_rows()
    assert 4 == segmentlog.dataset(tmp_path).count_rows()


def test_a_topic_that_was_made_again_has_none_of_its_rows(tmp_path: Path) -> None:
    """A dataset of a deleted topic raises an error when a new topic has taken its name.

    The sizes and inodes of the new files may be equal to those of the old files, as on tmpfs.
    """
    old, new = (pa.table({"value": [value] * 10}) for value in (b"old", b"new"))
    with segmentlog.open_writer(tmp_path, "t") as writer:
        writer.append(old)
    dataset, pickled = segmentlog.dataset(tmp_path), pickle.dumps(segmentlog.dataset(tmp_path))
    files = {each.name: each for each in (tmp_path / "t-0").iterdir()}
    again = tmp_path / "again"
    with segmentlog.open_writer(again, "t") as writer:
        writer.append(new)
    for name in ("partition.metadata", "00000000000000000000.log"):
        files[name].write_bytes((again / "t-0" / name).read_bytes())

    late = pc.field("timestamp") > datetime(2100, 1, 1, tzinfo=UTC)
    for query in (
        dataset.to_table,
        dataset.count_rows,
        lambda: dataset.count_by_time(timedelta(hours=1)),
        lambda: dataset.to_table(filter=late),
        lambda: pickle.loads(pickled),
    ):
        with pytest.raises(LogChangedError, match="another was created"):
            query()


def test_a_topic_that_was_made_again_during_a_read_has_none_of_its_rows(tmp_path: Path) -> None:
    """The topic id is checked before each file of a slice is read."""
    small = segmentlog.TopicConfig(segment_bytes=200)
    config = segmentlog.ProducerConfig(topic_config=small, batch_size=1)
    with segmentlog.open_writer(tmp_path, "t", config=config) as writer:
        writer.append(pa.table({"value": [b"old" * 40] * 3}))
    log = segmentlog.open_log_dir(tmp_path).log("t", 0)
    (log_slice,) = log.slices(0, 3)
    assert 3 == len(log_slice.files)

    rows = scan_slice(log_slice)
    assert 1 == next(rows).num_rows
    metadata = tmp_path / "t-0" / "partition.metadata"
    metadata.write_text("version: 0\ntopic_id: 0123456789012345678901\n")

    with pytest.raises(LogChangedError, match="another was created"):
        list(rows)


def test_other_methods_of_pyarrow_work_too(example_data: str) -> None:
    """A dataset can take rows by number, sort, join, compute columns and limit batch sizes."""
    dataset = segmentlog.dataset(example_data, topics="orders")
    rows = dataset.to_table()
    offsets = dataset.filter(pc.field("partition") == 0)

    assert rows.take([899, 3, 3]).equals(dataset.take([899, 3, 3]))
    with pytest.raises(IndexError, match="900 out of bounds"):
        dataset.take([900])
    assert max(each.num_rows for each in dataset.to_batches(batch_size=50)) == 50
    assert dataset.sort_by([("offset", "descending")]).head(1)["offset"].to_pylist() == [334]
    both = offsets.join(
        offsets.filter(pc.field("offset") < 9), "offset", join_type="inner", right_suffix="_r"
    )
    assert 9 == both.count_rows()
    doubled = dataset.to_table({"twice": pc.field("offset") * 2}, pc.field("offset") == 7)
    assert {"twice": [14, 14, 14]} == doubled.to_pydict()
    assert (0, 900) == (dataset.to_table([]).num_columns, dataset.to_table([]).num_rows)
    assert "headers" in segmentlog.dataset(example_data, include_headers=True).schema.names
    assert "topics=['orders']" in repr(dataset)


def test_arrow_writes_a_dataset(example_data: str, tmp_path: Path) -> None:
    """The files have the rows of the dataset, or of a query; Arrow decides on their order."""
    order = [("partition", "ascending"), ("offset", "ascending")]
    dataset = segmentlog.dataset(example_data, "orders")
    query = dataset.scanner(["partition", "offset"], pc.field("offset") > 300)
    for i, data in enumerate((dataset, query, query.to_reader())):
        pads.write_dataset(data, tmp_path / f"{i}", format="parquet")
    pads.write_dataset(query, tmp_path / "parts", format="parquet", partitioning=["partition"])

    assert dataset.to_table() == pads.dataset(tmp_path / "0").to_table().sort_by(order)
    for name in "12":
        assert query.to_table() == pads.dataset(tmp_path / name).to_table().sort_by(order)
    assert query.to_table().num_rows == pads.dataset(tmp_path / "parts").count_rows() > 0
    assert query.to_table() == pa.table(query)
    assert dataset.to_table() == pa.table(dataset)


@pytest.mark.parametrize("opens", [str, Path, segmentlog.open_log_dir])
def test_a_dataset_takes_topics_as_read_does(
    example_data: str, tmp_path: Path, opens: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text after the directory is a topic unless a path has this name; a list is topics."""
    directory = opens(example_data)
    for topics in ("orders", ["orders"], ("orders", "payments")):
        rows = segmentlog.read(directory, topics)
        assert rows == segmentlog.dataset(directory, topics).to_table()
        assert rows == segmentlog.dataset(directory, topics=topics).to_table()
    with pytest.raises(segmentlog.UnknownTopicOrPartitionError, match="did you mean 'orders'"):
        segmentlog.dataset(directory, "ordrs")
    for path in (f"{tmp_path}/none", tmp_path / "none"):
        with pytest.raises(segmentlog.SegmentLogError) as caught:
            segmentlog.dataset(directory, path)
        assert not isinstance(caught.value, segmentlog.UnknownTopicOrPartitionError)
    monkeypatch.chdir(tmp_path)
    with segmentlog.open_writer("orders", "paid") as writer:
        writer.append(pa.table({"value": [b"a"]}))
    if opens is not segmentlog.open_log_dir:
        both = segmentlog.dataset(directory, "orders").to_table()
        assert {"customers", "orders", "payments", "paid"} == set(both["topic"].to_pylist())


def test_reads_of_arrow_that_bypass_python_are_refused(example_data: str) -> None:
    """A union of datasets raises an error that names the alternative.

    The process does not crash.
    """
    dataset = segmentlog.dataset(example_data, topics="orders")

    with pytest.raises(NotImplementedError, match="to_reader"):
        pads.dataset([dataset]).to_table()
    with pytest.raises(NotImplementedError, match="columns of a log are fixed"):
        dataset.replace_schema(pa.schema([]))
    with pytest.raises(TypeError, match="bach_size"):
        dataset.to_table(bach_size=1)
    with pytest.raises(pa.ArrowInvalid, match="columns are key, value"):
        dataset.to_table(["nope"])


_DIRECTORIES = (Path(__file__).parents[2] / "golden").glob("kafka-*")
GOLDEN = sorted(each for each in _DIRECTORIES if each.is_dir())


@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(each, id=each.name, marks=[pytest.mark.slow] * (each.name != "kafka-4.3.1"))
        for each in GOLDEN
    ],
)
def test_filters_are_exact_in_directories_of_brokers(
    path: Path, isolation_level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filters, counts and timelines are exact for every format and kind of topic of brokers."""
    monkeypatch.setattr(ordered_reads, "_SLICE_BYTES", 300)
    topics = list(segmentlog.open_log_dir(path).topics(internal=True))
    logs = segmentlog.dataset(path, topics=topics, isolation_level=isolation_level)
    columns = ["topic", "partition", "offset", "timestamp"]
    rows = logs.to_table(columns)
    draw = random.Random(5)

    for _ in range(4):
        early, late = sorted(draw.sample(rows["timestamp"].to_pylist(), 2))
        offset, timestamp = draw.choice(rows["offset"].to_pylist()), pc.field("timestamp")
        for condition in (
            timestamp >= late,
            (timestamp > early) & (timestamp <= late),
            (timestamp == late) | (pc.field("offset") == offset),
            (timestamp > early) & (pc.field("offset") > offset),
        ):
            assert rows.filter(condition).equals(logs.to_table(columns, condition))
    assert rows.num_rows == logs.to_table([], order="timestamp").num_rows
    for unit in (timedelta(milliseconds=13), timedelta(minutes=1)):
        counts = logs.count_by_time(unit)
        assert logs.count_by_time(unit, exact=True).equals(counts)
        assert rows.num_rows == pc.sum(counts["count"]).as_py()


@pytest.mark.parametrize("batch_size", [0, -1, 1.5, True, "7"])
def test_a_batch_without_rows_is_refused(example_data: str, batch_size: object) -> None:
    """A batch size below 1 is an error; it must not give a result without rows."""
    logs = segmentlog.dataset(example_data)

    for order in ("offset", "timestamp"):
        with pytest.raises(OptionError, match="batch_size") as caught:
            logs.to_table(batch_size=batch_size, order=order)
        assert "give a whole number from 1" in str(caught.value)


def test_more_rows_than_a_batch_may_have_are_cut(example_data: str) -> None:
    """All rows are read with a batch size of one, and with one larger than the number of rows."""
    logs = segmentlog.dataset(example_data, topics="payments")
    n_rows = logs.count_rows()

    assert n_rows == len(list(logs.to_batches(["offset"], batch_size=1)))
    assert n_rows == logs.to_table(["offset"], batch_size=2**62).num_rows


@pytest.mark.parametrize("kind", [pa.binary_view(), pa.string_view()], ids=str)
@pytest.mark.parametrize("order", ["offset", "timestamp"])
def test_columns_may_become_views(example_data: str, kind: pa.DataType, order: str) -> None:
    """Reads that are ahead are measured, and before pyarrow 24, `nbytes` of views is an error."""
    plain = pa.binary() if pa.types.is_binary_view(kind) else pa.string()
    key = pc.field("key").cast(plain)
    found = segmentlog.dataset(example_data, ["orders"])
    if order == "timestamp":
        found = found.sort_by("timestamp")
    rows = found.to_table(columns={"key": key.cast(kind)})

    assert kind == rows.schema.field("key").type
    assert found.to_table(columns={"key": key})["key"].to_pylist() == rows["key"].to_pylist()
    assert 900 == rows.num_rows
