"""Rows that share values, in dictionaries or views, are written in bounded memory."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas
import polars
import pyarrow as pa
import pytest
from plain_writes import values, write

import segmentlog
from segmentlog.errors import ColumnError, InvalidRecordError
from segmentlog.writes.config import ProducerConfig

#: Rows of one value of 1 MiB: 3.2 GB of records, and a hundredth of that in memory.
WRITE_MUCH = """
import resource, sys
import pyarrow as pa
import segmentlog
from segmentlog.model import Codec
from segmentlog.writes.config import ProducerConfig

directory, shape, chunk = sys.argv[1], sys.argv[2], int(sys.argv[3])
values = pa.array([bytes(1 << 20), b"small"], pa.binary())
config = ProducerConfig(codec=Codec.ZSTD, level=1, buffer_memory=32 << 20, flush=False)

def rows(n):
    shared = pa.DictionaryArray.from_arrays(pa.array([0, 1] * (n // 2), pa.int32()), values)
    if shape == "view":
        first = values.cast(pa.binary_view())
        views = first.buffers()[1].to_pybytes()[:32] * (n // 2)
        shared = pa.Array.from_buffers(
            pa.binary_view(), n, [None, pa.py_buffer(views), *first.buffers()[2:]]
        )
    if shape == "headers":
        pairs = pa.StructArray.from_arrays([pa.array(["h"] * n), shared], ["key", "value"])
        lists = pa.ListArray.from_arrays(pa.array(range(n + 1), pa.int32()), pairs)
        return pa.table({"value": pa.array([b"v"] * n), "headers": lists})
    return pa.table({"value": shared})

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

with segmentlog.open_writer(directory, "t", config=config) as writer:
    writer.append(rows(2))
    writer.flush()
    before = peak()
    table = rows(6200)
    for start in range(0, 6200, chunk):
        writer.append(table.slice(start, chunk))
print(peak() - before)
print(segmentlog.open_log_dir(directory).log("t", 0).end_offset())
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "shape",
    [
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("dictionary", "view")),
        "headers",
    ],
)
@pytest.mark.parametrize("n_rows", [6200, pytest.param(10, marks=pytest.mark.slow)])
def test_values_that_many_rows_share_are_written_in_bounded_memory(
    tmp_path: Path, shape: str, n_rows: int
) -> None:
    """``buffer_memory`` is 32 MB, and the records have 3.2 GB, in one batch or in many."""
    done = subprocess.run(
        [sys.executable, "-c", WRITE_MUCH, tmp_path, shape, str(n_rows)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == done.returncode, done.stderr[-2000:]
    mebibytes, end = map(int, done.stdout.split())

    assert 6202 == end
    assert mebibytes < 250


def with_dictionary(names: list[str | None]) -> pa.Array:
    return (
        pa.array(names, pa.string())
        .dictionary_encode()
        .cast(pa.dictionary(pa.int8(), pa.string()))
    )


def as_view(names: list[str | None]) -> pa.Array:
    return pa.array(names, pa.string()).cast(pa.string_view())


@pytest.mark.parametrize("encoded", [with_dictionary, as_view])
@pytest.mark.parametrize("topic", ["t", None])
def test_rows_keep_their_values_whatever_they_share(
    tmp_path: Path, encoded: Callable[[list[str | None]], pa.Array], topic: str | None
) -> None:
    """All batches together have more values than an index of 8 bits can number."""
    expected = [[None if i % 7 == 3 else f"{n}-{i % 90}" for i in range(100)] for n in range(5)]
    with_topics = [] if topic else ["topic"]
    tables = [
        pa.table({"value": encoded(names), **{name: ["t"] * 100 for name in with_topics}})
        for names in expected
    ]
    config = ProducerConfig(buffer_memory=1000)
    for part in (config, ProducerConfig()):
        write(tmp_path / str(part.buffer_memory), *tables, topic=topic, config=part)
        found = values(tmp_path / str(part.buffer_memory))
        assert [
            None if each is None else each.encode() for names in expected for each in names
        ] == found


def test_a_row_that_no_batch_can_hold_is_refused(tmp_path: Path) -> None:
    """The error has the row's number. Its headers contain one value of 1 GiB twice."""
    shared = pa.DictionaryArray.from_arrays(
        pa.array([0] * 3, pa.int32()), pa.array([bytes(1 << 30)])
    )
    pairs = pa.StructArray.from_arrays([pa.array(["h"] * 3), shared], ["key", "value"])
    headers = pa.ListArray.from_arrays(pa.array([0, 0, 0, 3], pa.int32()), pairs)
    with pytest.raises(InvalidRecordError, match="no batch holds more") as caught:
        write(tmp_path, pa.table({"value": [b"v"] * 3, "headers": headers}))

    assert 2 == caught.value.row


def test_a_dictionary_of_numbers_is_refused(tmp_path: Path) -> None:
    """A dictionary of numbers is refused like a column of numbers."""
    numbers = pa.array([1, 2, 1]).dictionary_encode()
    with pytest.raises(ColumnError, match="a value is binary or string"):
        write(tmp_path, pa.table({"value": numbers}))


def test_a_few_rows_of_a_large_table_do_not_keep_all_of_it(tmp_path: Path) -> None:
    """Each of many tables gives ten rows, and nothing else refers to the tables."""
    held = []
    before = pa.total_allocated_bytes()

    def few() -> Iterator[pa.Table]:
        for _ in range(5):
            array = pa.array([b"%08d" % i * 16 for i in range(100_000)], pa.binary())
            yield pa.table({"value": array}).slice(0, 10)
            del array
            held.append(pa.total_allocated_bytes() - before)

    with segmentlog.open_writer(tmp_path, "t", config=ProducerConfig(buffer_memory=1 << 20)) as to:
        for table in few():
            to.append(table)
            del table

    assert 50 == len(values(tmp_path))
    assert max(held) < 2 << 20


@pytest.mark.parametrize("library", ["polars", "polars enum", "pandas", "arrow"])
def test_categories_in_every_column(library: str, tmp_path: Path) -> None:
    columns = {
        "key": ["a", "b", "a"],
        "value": ["1", "2", None],
        "topic": ["orders", "clicks", "orders"],
    }
    if library == "arrow":
        rows: Any = pa.table(
            {each: pa.array(v).dictionary_encode() for each, v in columns.items()}
        )
        numbers = pa.array([0, 0, 0], pa.int32()).dictionary_encode()
        rows = rows.append_column("partition", numbers)
    elif library == "pandas":
        rows = pandas.DataFrame(columns, dtype="category")
    else:
        enum = polars.Enum(["a", "b", "1", "2", "orders", "clicks"])
        kind = enum if library == "polars enum" else polars.Categorical
        rows = polars.DataFrame(columns, schema=dict.fromkeys(columns, kind))
    with segmentlog.open_writer(tmp_path) as writer:
        writer.append(pa.table(rows) if library == "pandas" else rows)
    found = segmentlog.read(tmp_path, "orders").sort_by("offset")
    assert found["key"].to_pylist() == [b"a", b"a"]
    assert found["value"].to_pylist() == [b"1", None]
    assert segmentlog.read(tmp_path, "clicks")["key"].to_pylist() == [b"b"]
