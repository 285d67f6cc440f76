"""What a table is, by the rules of its own format; its rows, a few at a time."""

import gzip
import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import iceberg_deletes
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyarrow import csv, feather

from segmentlog.audits import tables
from segmentlog.audits.table_rows import column_at
from segmentlog.audits.tables import open_table
from segmentlog.errors import OptionError

NAMES = ["offset", "partition"]


def read(table: Any, names: Sequence[str] = NAMES) -> Iterator[pa.RecordBatch]:
    """The columns of a table, part by part."""
    places = [(name,) for name in names]
    for part in open_table(table):
        for batch in part.read(places):
            columns = {each[0]: column_at(batch, each) for each in places}
            yield pa.RecordBatch.from_pydict(columns)


def rows(n: int, start: int = 0) -> pa.Table:
    """Rows of one partition, with another column."""
    offsets = np.arange(start, start + n)
    return pa.table(
        {
            "partition": pa.array(offsets % 3, pa.int32()),
            "offset": offsets,
            "value": ["v"] * n,
        }
    )


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
    of_one_file,
    of_partitions,
    of_two_schemas,
    of_a_filter,
    of_some_row_groups,
    of_memory,
    of_ipc,
    of_both,
)


@pytest.mark.parametrize("make", MAKERS)
def test_rows_are_those_of_a_scanner(tmp_path: Path, make: Callable[[Path], ds.Dataset]) -> None:
    """Of each kind of dataset, with the columns in the order asked for."""
    dataset = make(tmp_path)
    found = [*read(dataset)]
    numbers = [row for batch in found for row in zip(*batch.to_pydict().values(), strict=True)]
    wanted = dataset.to_table(columns=NAMES).to_pydict()

    assert [*zip(wanted["offset"], wanted["partition"], strict=True)] == numbers
    assert all(each.schema.names == NAMES for each in found)


def test_a_row_group_is_not_decoded_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batches are small, however large the row groups are."""
    pq.write_table(rows(5000), tmp_path / "a.parquet", row_group_size=5000)
    monkeypatch.setattr(tables, "_BATCH_ROWS", 512)
    found = [each.num_rows for each in read(str(tmp_path / "a.parquet"))]

    assert (5000, 512) == (sum(found), max(found))


@pytest.mark.parametrize("form", ["{}", "file://{}", "file:{}"])
def test_the_kind_of_a_table_is_found_at_a_path_and_at_a_url(tmp_path: Path, form: str) -> None:
    """The files of a Delta table also have rows that a later version has replaced."""
    deltalake = pytest.importorskip("deltalake")
    at = form.format(tmp_path / "delta")
    for n in (30, 20):
        deltalake.write_deltalake(tmp_path / "delta", rows(n), mode="overwrite")
    assert 20 == sum(each.num_rows for each in read(at))

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
        [*read(str(tmp_path))]
    assert str(tmp_path / "b.parquet") == caught.value.value


def offsets_of(table: Any) -> list[int]:
    """The offsets of all rows, sorted."""
    return sorted(
        each for batch in read(table, ["offset"]) for each in batch["offset"].to_pylist()
    )


def write(path: Path, start: int, n: int = 10) -> Path:
    """A Parquet file with some offsets."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows(n, start), path)
    return path


def log_of_sink(table: Path, name: str, *paths: Path | str, action: str = "add") -> None:
    """An entry in the log of Spark's file sink."""
    (table / "_spark_metadata").mkdir(exist_ok=True)
    lines = ["v1"]
    for each in paths:
        uri = each.as_uri() if isinstance(each, Path) else each
        lines.append(json.dumps({"path": uri, "size": 1, "isDir": False, "action": action}))
    (table / "_spark_metadata" / name).write_text("\n".join(lines))


def test_a_directory_of_sparks_file_sink_is_what_its_log_lists(tmp_path: Path) -> None:
    """Files of a micro-batch that never ended are not part of it, and compacted entries are."""
    table = tmp_path / "a table"
    files = [write(table / f"part-{i}.parquet", 10 * i) for i in range(5)]
    log_of_sink(table, "0", files[4])  # an entry that the compaction has dropped
    log_of_sink(table, "1.compact", *files[:2])
    log_of_sink(table, "2", files[2])
    (table / "_spark_metadata" / ".2.crc").write_bytes(b"crc")
    (table / "_spark_metadata" / ".3.tmp").write_bytes(b"v1\n")
    assert [*range(30)] == offsets_of(table)
    assert [*range(30)] == offsets_of(f"{table.as_uri()}/")

    log_of_sink(table, "3", files[0], action="delete")
    assert [*range(10, 30)] == offsets_of(table)
    log_of_sink(table, "5", files[3])
    with pytest.raises(OptionError, match=r"is missing \(.*_spark_metadata/4"):
        open_table(table)
    for text in ("v1\n[]", "v1\n{", 'v1\n{"a":1}', "v1\n\n"):
        (table / "_spark_metadata" / "4").write_text(text)
        with pytest.raises(OptionError, match="_spark_metadata/4 is damaged"):
            open_table(table)
    log_of_sink(table, "4", (tmp_path / "elsewhere" / "part-9.parquet"))
    with pytest.raises(OptionError, match="in another directory"):
        open_table(table)
    with pytest.raises(OptionError, match=r"inside of the table .* \(Spark's file sink\)"):
        open_table(table / "part-3.parquet")


def test_columns_in_the_names_of_directories(tmp_path: Path) -> None:
    """As Hive and Spark write them: text, escaped, or no value."""
    for topic, partition, offset in (("12", "0", 0), ("a%2Fb", "1", 10), ("12", "7", 20)):
        path = tmp_path / f"topic={topic}" / f"partition={partition}" / "a.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.table({"offset": [offset]}), path)
    null = tmp_path / "topic=12" / "partition=__HIVE_DEFAULT_PARTITION__"
    null.mkdir()
    pq.write_table(pa.table({"offset": [30]}), null / "a.parquet")
    (tmp_path / "_temporary").mkdir()
    pq.write_table(pa.table({"offset": [40]}), tmp_path / "_temporary" / "a.parquet")

    found = [
        tuple(row.values())
        for batch in read(tmp_path, ["topic", "partition", "offset"])
        for row in batch.to_pylist()
    ]
    assert [("12", "0", 0), ("12", "7", 20), ("12", None, 30), ("a/b", "1", 10)] == sorted(
        found, key=lambda row: (row[0], row[2])
    )
    one = [*read(tmp_path / "topic=12" / "partition=7", ["partition", "offset"])]
    assert [{"partition": "7", "offset": 20}] == one[0].to_pylist()

    file = tmp_path / "topic=12" / "partition=0" / "a.parquet"
    pq.write_table(pa.table({"offset": [0], "partition": [0]}), file)
    assert [0, 10, 20, 30] == offsets_of(tmp_path)
    for name in ("partition", "Partition"):
        pq.write_table(pa.table({"offset": [0], name: [1]}), file)
        with pytest.raises(OptionError, match="its rows say something else"):
            [*read(tmp_path / "topic=12" / "partition=0", ["offset", name])]


def iceberg_table(tmp_path: Path) -> tuple[Path, list[Path]]:
    """A table with three versions, as a catalog of pyiceberg writes it: 10, 20 and 15 rows."""
    sql = pytest.importorskip("pyiceberg.catalog.sql")
    catalog = sql.SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", rows(1).schema)
    versions = []
    for change in (
        lambda: table.append(rows(10)),
        lambda: table.append(rows(10, 10)),
        lambda: table.delete("offset < 5"),
    ):
        change()
        versions.append(Path(table.metadata_location.removeprefix("file://")))
    catalog.close()
    return versions[0].parents[1], versions


def test_an_iceberg_table_in_a_directory_is_its_last_version(tmp_path: Path) -> None:
    """The hint lags behind, or is no number, or is not there."""
    table, versions = iceberg_table(tmp_path)
    with pytest.raises(OptionError, match="only its catalog knows"):
        open_table(table)
    assert [*range(20)] == offsets_of(versions[1])

    for number, path in enumerate(versions, 1):
        path.rename(table / "metadata" / f"v{number}.metadata.json")
    for each in (table / "metadata").glob("0*.metadata.json"):
        each.unlink()
    hint = table / "metadata" / "version-hint.text"
    for text in ("1", "2\n", "3", None, "x", ""):
        hint.unlink(missing_ok=True) if text is None else hint.write_text(text)
        assert [*range(5, 20)] == offsets_of(table), text
    packed = table / "metadata" / "v3.gz.metadata.json"
    packed.write_bytes(gzip.compress((table / "metadata" / "v1.metadata.json").read_bytes()))
    (table / "metadata" / "v03.metadata.json").touch()
    assert [*range(5, 20)] == offsets_of(table)  # as Iceberg: what is not compressed comes first
    for name in ("v3.gz.metadata.json", "v3.metadata.json.gz"):  # the second one is an older form
        packed.unlink()
        packed = table / "metadata" / name
        packed.write_bytes(gzip.compress((table / "metadata" / "v3.metadata.json").read_bytes()))
        assert [*range(5, 20)] == offsets_of(packed)
    plain = (table / "metadata" / "v3.metadata.json").rename(table / "v3.json")
    assert [*range(5, 20)] == offsets_of(table)
    packed.write_bytes(packed.read_bytes()[:99])
    with pytest.raises(OptionError, match=r"v3.metadata.json.gz'; it cannot be read|opened"):
        offsets_of(packed)
    packed.unlink()
    plain.rename(table / "metadata" / "v3.metadata.json")
    hint.write_text("9")
    with pytest.raises(OptionError, match="version 9, which has no metadata file"):
        open_table(table)
    hint.write_text("1")
    (table / "metadata" / "v3.metadata.json").rename(table / "metadata" / "v4.metadata.json")
    assert [*range(20)] == offsets_of(table)  # as Iceberg: no version follows the second one
    (table / "metadata" / "00005-3f.metadata.json").touch()
    with pytest.raises(OptionError, match="only its catalog knows"):
        open_table(table)
    with pytest.raises(OptionError, match=r"inside of the table .* \(Iceberg\)"):
        open_table(table / "data")


def test_a_copy_of_an_iceberg_table_is_not_the_table(tmp_path: Path) -> None:
    """Its metadata names files of the table that it was copied from."""
    table, versions = iceberg_table(tmp_path)
    versions[-1].rename(versions[-1].with_name("v1.metadata.json"))
    for each in (table / "metadata").glob("0*.metadata.json"):
        each.unlink()
    shutil.copytree(table, tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "data")

    with pytest.raises(OptionError, match=r"the table is at .*/n/t: this is a copy"):
        open_table(tmp_path / "copy")
    (tmp_path / "link").symlink_to(table)
    assert [*range(5, 20)] == offsets_of(tmp_path / "link")


def test_rows_that_iceberg_deletes_without_another_file(tmp_path: Path) -> None:
    """By their places, or by vectors; deletes that the package does not know are refused."""
    sql = pytest.importorskip("pyiceberg.catalog.sql")
    pytest.importorskip("pyroaring")
    catalog = sql.SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", rows(1).schema)
    table.append(rows(10))
    (file,) = iceberg_deletes.data_files(table)
    metadata = table.metadata_location.removeprefix("file://")
    snapshot = table.current_snapshot().snapshot_id
    table.manage_snapshots().create_branch(snapshot, "of-another").commit()
    table.append(rows(5, 10), branch="of-another")

    iceberg_deletes.delete_by_positions(table, {file: [2, 5]})
    assert [0, 1, 3, 4, 6, 7, 8, 9] == offsets_of(table) == offsets_of(metadata)
    assert [*range(15)] == offsets_of(table.scan().use_ref("of-another"))
    later = table.metadata_location.removeprefix("file://")
    iceberg_deletes.delete_by_vectors(table, {file: [0, 2]})
    assert [1, 3, 4, 6, 7, 8, 9] == offsets_of(later)

    manifests = iceberg_deletes.local(table.current_snapshot().manifest_list)
    whole = manifests.read_bytes()
    for data in (b"", whole[: len(whole) // 2]):
        manifests.write_bytes(data)
        with pytest.raises(OptionError, match=r"metadata.json'; it cannot be read \(.*\): give"):
            offsets_of(metadata)
    manifests.write_bytes(whole)
    iceberg_deletes.add_deletes(table, tmp_path / "e.parquet", "PARQUET", equality_ids=[2])
    with pytest.raises(OptionError, match=r"equality deletes.*: give its rows as an object"):
        offsets_of(metadata)
    catalog.close()


@pytest.mark.parametrize("form", ["file://{}", "file:{}", "{}"])
def test_a_clone_of_a_delta_table_has_the_files_of_another(tmp_path: Path, form: str) -> None:
    """Its log names them by their whole paths."""
    deltalake = pytest.importorskip("deltalake")
    deltalake.write_deltalake(tmp_path / "source", rows(10))
    deltalake.write_deltalake(tmp_path / "clone", rows(10))
    (file,), (own,) = ((tmp_path / name).glob("*.parquet") for name in ("source", "clone"))
    log = tmp_path / "clone" / "_delta_log" / f"{0:020d}.json"
    log.write_text(log.read_text().replace(own.name, form.format(file)))
    own.unlink()

    assert [*range(10)] == offsets_of(tmp_path / "clone")


@pytest.mark.parametrize(
    ("table", "place", "inside"),
    [
        ("s3://lake/t", "s3a://lake/t/p%3D1/a", "p=1/a"),
        ("s3://lake/t/", "s3://lake/t", ""),
        ("s3://key:word@lake/t", "s3://lake/t/a", "a"),
        ("s3://lake/t", "s3://lake/t2/a", None),
        ("s3://lake/t", "s3://pond/t/a", None),
        ("s3://lake/t", "s3://lake/a", None),
    ],
)
def test_places_inside_of_a_table_in_a_store(table: str, place: str, inside: str | None) -> None:
    """Hadoop has other names for them than Arrow."""
    tree = tables._Tree(f"{table}?region=none&endpoint_override=localhost")

    assert inside == tree.within(place, is_encoded=True)


def test_places_inside_of_a_table_on_a_disk(tmp_path: Path) -> None:
    """A link is where it leads to, and a path has no escapes."""
    (tmp_path / "t").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "t")
    tree = tables._Tree(str(tmp_path / "link"))

    found = [f"{tmp_path}/t/a%20b", f"file:{tmp_path}/link/a%20b", f"file://{tmp_path}/t", "/t"]
    assert ["a%20b", "a b", "", None] == [tree.within(each, is_encoded=True) for each in found]
    assert "a%20b" == tree.within(f"file:{tmp_path}/link/a%20b", is_encoded=False)
    assert tree.within(f"hdfs://node{tmp_path}/t/a", is_encoded=True) is None


def test_a_link_to_a_file_that_is_gone_and_a_pipe(tmp_path: Path) -> None:
    """They may have rows, unless their names hide them."""
    write(tmp_path / "t" / "a.parquet", 0)
    (tmp_path / "t" / "_hidden").symlink_to(tmp_path / "gone")
    assert [*range(10)] == offsets_of(tmp_path / "t")
    (tmp_path / "t" / "b.parquet").symlink_to(tmp_path / "gone")
    with pytest.raises(OptionError, match=r"t/b.parquet may have rows"):
        offsets_of(tmp_path / "t")
    (tmp_path / "t" / "b.parquet").unlink()
    os.mkfifo(tmp_path / "t" / "c.parquet")
    with pytest.raises(OptionError, match=r"t/c.parquet may have rows"):
        offsets_of(tmp_path / "t")


@pytest.mark.parametrize("table", ["", " ", {}, {"offset": [1]}, b"a", None, 7])
def test_what_is_no_table(table: Any) -> None:
    """An empty path would be the current directory."""
    with pytest.raises(OptionError, match="give a Parquet file or directory"):
        [*open_table(table)]


def write_deletion_vector(table: Path, *deleted: int) -> None:
    """Let the only file of a Delta table lack some rows, as a deletion vector in the log says."""
    roaring = pytest.importorskip("pyroaring")
    log = table / "_delta_log"
    (add,) = (
        found["add"]
        for line in (log / f"{0:020d}.json").read_text().splitlines()
        if "add" in (found := json.loads(line))
    )
    payload = struct.pack("<IQI", 1681511377, 1, 0) + roaring.BitMap(deleted).serialize()
    payload += bytes(-len(payload) % 4)
    digits = (
        "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    )
    text = ""
    for at in range(0, len(payload), 4):
        number = int.from_bytes(payload[at : at + 4], "big")
        text += "".join(digits[number // 85**each % 85] for each in (4, 3, 2, 1, 0))
    vector = {
        "storageType": "i",
        "pathOrInlineDv": text,
        "sizeInBytes": len(payload),
        "cardinality": len(deleted),
    }
    features = ["deletionVectors"]
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": features,
        "writerFeatures": features,
    }
    removed = {"path": add["path"], "deletionTimestamp": 1, "dataChange": True}
    actions = [
        {"protocol": protocol},
        {"remove": removed},
        {"add": {**add, "deletionVector": vector}},
    ]
    (log / f"{1:020d}.json").write_text("\n".join(map(json.dumps, actions)))


def test_rows_that_a_deletion_vector_of_delta_removes(tmp_path: Path) -> None:
    """They are no rows of the table."""
    deltalake = pytest.importorskip("deltalake")
    table = tmp_path / "t"
    deltalake.write_deltalake(table, rows(10))
    write_deletion_vector(table, 2, 5)

    assert [0, 1, 3, 4, 6, 7, 8, 9] == offsets_of(table)
    assert [0, 1, 3, 4, 6, 7, 8, 9] == offsets_of(deltalake.DeltaTable(table))
    with pytest.raises(OptionError, match=r"inside of the table .* \(Delta\)"):
        open_table(next(table.glob("*.parquet")))
    with pytest.raises(OptionError, match=r"the table .*/t is inside of it"):
        open_table(tmp_path)


@pytest.mark.parametrize(
    "protocol",
    [
        {"minReaderVersion": 2, "minWriterVersion": 5},
        {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": ["columnMapping"],
            "writerFeatures": ["columnMapping"],
        },
    ],
    ids=["version", "feature"],
)
def test_columns_that_a_delta_table_has_renamed(tmp_path: Path, protocol: dict[str, Any]) -> None:
    """The column ``offset`` of its files is another one, which has this name no more."""
    deltalake = pytest.importorskip("deltalake")
    table = tmp_path / "t"
    numbers = np.arange(100, 103)
    written = {"partition": numbers * 0, "offset": numbers, "col-1": numbers - 100}
    deltalake.write_deltalake(table, pa.table(written))
    first = table / "_delta_log" / f"{0:020d}.json"
    names = {"partition": "partition", "old": "offset", "offset": "col-1"}

    def rewrite(mode: str) -> None:
        actions = [json.loads(line) for line in first.read_text().splitlines()]
        for action in actions:
            if "protocol" in action:
                action["protocol"] = protocol
            if "metaData" in action:
                action["metaData"]["configuration"] = {"delta.columnMapping.mode": mode}
                fields = [
                    {
                        "name": name,
                        "type": "long",
                        "nullable": True,
                        "metadata": {
                            "delta.columnMapping.id": i,
                            "delta.columnMapping.physicalName": inside,
                        },
                    }
                    for i, (name, inside) in enumerate(names.items(), 1)
                ]
                schema = {"type": "struct", "fields": fields}
                action["metaData"]["schemaString"] = json.dumps(schema)
            action.get("add", {}).pop("stats", None)
        first.write_text("\n".join(map(json.dumps, actions)))

    rewrite("name")
    assert [0, 1, 2] == offsets_of(table)
    assert [0, 1, 2] == offsets_of(deltalake.DeltaTable(table))
    rewrite("id")
    with pytest.raises(OptionError, match="mapped by id"):
        open_table(table)


def test_a_delta_table_that_deltalake_takes_for_another(tmp_path: Path) -> None:
    """It decodes what looks like an escape in the name of a directory."""
    deltalake = pytest.importorskip("deltalake")
    deltalake.write_deltalake(tmp_path / "a b", rows(3))
    (tmp_path / "a%20b" / "_delta_log").mkdir(parents=True)
    with pytest.raises(OptionError, match=r"deltalake would open .*/a b instead"):
        open_table(tmp_path / "a%20b")
    assert [0, 1, 2] == offsets_of((tmp_path / "a b").as_uri())


@pytest.mark.parametrize(
    ("made", "said"),
    [
        pytest.param(["t/.hoodie/hoodie.properties"], "a table of Hudi", id="hudi"),
        pytest.param(["t/_versions/1.manifest"], "a table of Lance", id="lance"),
        pytest.param(
            ["t/snapshot/LATEST", "t/manifest/m", "t/schema/schema-0"],
            "a table of Paimon",
            id="paimon",
        ),
        pytest.param(["t/delta_0000001_0000001/bucket_0"], "Hive's transactions", id="hive"),
        pytest.param(["t/base_0000002/bucket_0"], "Hive's transactions", id="hive base"),
        pytest.param(
            ["t/_delta_log/0.json", "t/metadata/v1.metadata.json"],
            "logs of Delta and Iceberg",
            id="two logs",
        ),
        pytest.param(["t/a/_spark_metadata/0"], "the table .*/t/a is inside of it", id="around"),
        pytest.param(["t/a/metadata/v1.metadata.json"], "the table .*/t/a is inside", id="above"),
        pytest.param(["t/a.csv", "t/b.parquet"], "of several formats", id="formats"),
        pytest.param(["t/_SUCCESS"], "no files with rows", id="empty"),
        pytest.param(["t/a.parquet"], "a.parquet'; it cannot be read", id="no parquet"),
    ],
)
def test_tables_of_other_shapes_are_refused(tmp_path: Path, made: list[str], said: str) -> None:
    """In words: nothing is guessed."""
    for each in made:
        (tmp_path / each).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / each).write_bytes(b"x")

    with pytest.raises(OptionError, match=said):
        [*open_table(tmp_path / "t")]


@pytest.mark.parametrize("form", ["csv", "orc", "feather", "json"])
def test_other_formats_of_files(tmp_path: Path, form: str) -> None:
    """A directory of them, and one of them."""
    orc = pytest.importorskip("pyarrow.orc")
    table = rows(5).select(["partition", "offset"])
    path = tmp_path / f"a.{form}"
    match form:
        case "csv":
            csv.write_csv(table, path)
        case "orc":
            orc.write_table(table, path)
        case "feather":
            feather.write_feather(table, path)
        case _:
            path.write_text("\n".join(map(json.dumps, table.to_pylist())))

    assert [*range(5)] == offsets_of(tmp_path) == offsets_of(path)
