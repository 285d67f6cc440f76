"""The rows of a dataset: those that Arrow's scanner gives, a few at a time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from segmentlog.audits import table_rows
from segmentlog.audits.table_rows import open_table
from segmentlog.errors import OptionError

NAMES = ["offset", "partition"]


def rows(n: int, start: int = 0) -> pa.Table:
    """Rows of one partition, with another column."""
    offsets = np.arange(start, start + n)
    return pa.table({
        "partition": pa.array(offsets % 3, pa.int32()), "offset": offsets, "value": ["v"] * n,
    })  # fmt: skip


def of_one_file(path: Path) -> ds.Dataset:
    """Several row groups."""
    pq.write_table(rows(1000), path / "a.parquet", row_group_size=300)
    return ds.dataset(path / "a.parquet")


def of_partitions(path: Path) -> ds.Dataset:
    """The partition is in the names of directories alone."""
    for number in (0, 1):
        (path / f"partition={number}").mkdir()
        table = rows(10 + number).select(["offset", "value"])
        pq.write_table(table, path / f"partition={number}" / "a.parquet")
    return ds.dataset(path, partitioning="hive")


def of_two_schemas(path: Path) -> ds.Dataset:
    """One file lacks a column, and has another type in the other one."""
    pq.write_table(rows(5), path / "a.parquet")
    narrow = pa.table({"offset": pa.array([5, 6], pa.int32())})
    pq.write_table(narrow, path / "b.parquet")
    schema = pa.schema([("partition", pa.int32()), ("offset", pa.int64())])
    return ds.dataset(path, schema=schema)


def of_a_filter(path: Path) -> ds.Dataset:
    """Rows are left out."""
    return of_one_file(path).filter(less("offset", 17))


def less(name: str, than: int) -> Any:
    """An expression."""
    return ds.field(name) < than


def of_some_row_groups(path: Path) -> ds.Dataset:
    """A file of which a dataset has two of four row groups."""
    (fragment,) = of_one_file(path).get_fragments()
    some = fragment.subset(row_group_ids=[1, 3])
    return ds.FileSystemDataset(
        [some], fragment.physical_schema, fragment.format, fragment.filesystem
    )


def of_memory(path: Path) -> ds.Dataset:
    """No file."""
    return ds.dataset(rows(10))


def of_ipc(path: Path) -> ds.Dataset:
    """Another format."""
    with pa.ipc.new_file(path / "a.arrow", rows(10).schema) as writer:
        writer.write_table(rows(10))
    return ds.dataset(path / "a.arrow", format="ipc")


def of_both(path: Path) -> ds.Dataset:
    """A union of datasets."""
    return ds.dataset([of_one_file(path), of_memory(path)])


MAKERS = (
    of_one_file, of_partitions, of_two_schemas, of_a_filter, of_some_row_groups, of_memory, of_ipc,
    of_both,
)  # fmt: skip


@pytest.mark.parametrize("make", MAKERS)
def test_rows_are_those_of_a_scanner(tmp_path: Path, make: Callable[[Path], ds.Dataset]) -> None:
    """Of each kind of dataset, with the columns in the order asked for."""
    dataset = make(tmp_path)
    found = [*open_table(dataset).read(NAMES)]
    numbers = [row for batch in found for row in zip(*batch.to_pydict().values(), strict=True)]
    wanted = dataset.to_table(columns=NAMES).to_pydict()

    assert [*zip(wanted["offset"], wanted["partition"], strict=True)] == numbers
    assert all(each.schema.names == NAMES for each in found)


def test_a_row_group_is_not_decoded_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batches are small, however large the row groups are."""
    pq.write_table(rows(5000), tmp_path / "a.parquet", row_group_size=5000)
    monkeypatch.setattr(table_rows, "_BATCH_ROWS", 512)
    found = [each.num_rows for each in open_table(str(tmp_path / "a.parquet")).read(NAMES)]

    assert (5000, 512) == (sum(found), max(found))


@pytest.mark.parametrize("form", ["{}", "file://{}", "file:{}"])
def test_the_kind_of_a_table_is_found_at_a_path_and_at_a_url(tmp_path: Path, form: str) -> None:
    """The files of a Delta table also have rows that a later version has replaced."""
    deltalake = pytest.importorskip("deltalake")
    at = form.format(tmp_path / "delta")
    for n in (30, 20):
        deltalake.write_deltalake(tmp_path / "delta", rows(n), mode="overwrite")
    assert 20 == sum(each.num_rows for each in open_table(at).read(NAMES))

    (tmp_path / "iceberg" / "metadata").mkdir(parents=True)
    for name in ("0.metadata.json", "1.metadata.json"):
        (tmp_path / "iceberg" / "metadata" / name).touch()
    with pytest.raises(OptionError, match="it has 2 metadata files"):
        open_table(form.format(tmp_path / "iceberg"))


@pytest.mark.parametrize("place", [slice(4, 20), slice(-16, None)], ids=["rows", "footer"])
def test_a_damaged_file_of_a_table_is_named(tmp_path: Path, place: slice) -> None:
    """Arrow's own error of damaged rows does not say which file has them."""
    for name in ("a.parquet", "b.parquet"):
        pq.write_table(rows(1000), tmp_path / name, compression="none", use_dictionary=False)
    damaged = bytearray((tmp_path / "b.parquet").read_bytes())
    damaged[place] = bytes([0x5A]) * 16
    (tmp_path / "b.parquet").write_bytes(damaged)

    with pytest.raises(OptionError, match=r"b.parquet'; it cannot be read \(") as caught:
        [*open_table(str(tmp_path)).read(NAMES)]
    assert str(tmp_path / "b.parquet") == caught.value.value
