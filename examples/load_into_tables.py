"""Load a log into a Delta table and an Iceberg table, again and again, each record exactly once.

Run with ``pip install . deltalake 'pyiceberg[sql-sqlite,pyarrow]' && python
examples/load_into_tables.py [SOURCE [TARGET]]``.  Without TARGET, the tables are made in a
temporary directory.

The offset after the last record that was loaded is committed together with the records: in Delta
as the version of a transaction identifier (what Delta's ``txnAppId`` and ``txnVersion`` are in
Spark), in Iceberg as a property of the table.  A load that dies before its commit has loaded
nothing, and the next one begins where the last commit ended.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog

import segmentlog

DATA = str(Path(__file__).parent / "data")
COLUMNS = ["topic", "partition", "offset", "timestamp", "key", "value"]
OFFSETS = "segmentlog.offsets"


def empty_table(source: str) -> pa.Table:
    """A table of the columns without rows."""
    return segmentlog.dataset(source).schema.empty_table().select(COLUMNS)


def new_records(
    source: str, topic: str, loaded: dict[str, int]
) -> Iterator[tuple[pa.Table, dict[str, int]]]:
    """The records of each partition at or after its offset in `loaded`, and the offset after them.

    A partition that has lost records which were not loaded is an error.
    """
    directory = segmentlog.open_log_dir(source)
    for partition in directory.topics()[topic]:
        log = directory.log(topic, partition)
        end = log.end_offset()
        start = loaded.get(str(partition), log.log_start_offset)
        if start < end:
            yield log.scan(start, end, columns=COLUMNS).read_all(), {str(partition): end}


def load_into_delta(source: str, topic: str, path: str) -> int:
    """Append the new records of a topic to a Delta table; return their number.

    Delta refuses the commit if another load has committed since this one looked.
    """
    partitions = segmentlog.open_log_dir(source).topics()[topic]
    write_deltalake(path, empty_table(source), mode="ignore")  # creates the table
    table = DeltaTable(path)
    known = {each: table.transaction_version(f"{topic}-{each}") for each in partitions}
    loaded = {str(each): version for each, version in known.items() if version is not None}
    n_records = 0
    for records, ends in new_records(source, topic, loaded):
        reached = [Transaction(f"{topic}-{each}", end) for each, end in ends.items()]
        commit = CommitProperties(app_transactions=reached)
        write_deltalake(table, records, mode="append", commit_properties=commit)
        n_records += len(records)
    return n_records


def load_into_iceberg(source: str, topic: str, catalog: Catalog, name: str) -> int:
    """Append the new records of a topic to an Iceberg table; return their number.

    Iceberg refuses the commit if another load has committed since this one looked.
    """
    table = catalog.create_table_if_not_exists(
        name,
        schema=empty_table(source).schema,
        properties={"commit.retry.num-retries": "0"},  # pyiceberg would append the records again
    )
    n_records = 0
    loaded = json.loads(table.properties.get(OFFSETS, "{}"))
    for records, ends in new_records(source, topic, loaded):
        loaded |= ends
        with table.transaction() as transaction:
            transaction.append(records)
            transaction.set_properties({OFFSETS: json.dumps(loaded)})
        n_records += len(records)
    return n_records


def open_catalog(target: str) -> Catalog:
    """An Iceberg catalog in a file of SQLite."""
    Path(target).mkdir(parents=True, exist_ok=True)
    catalog = SqlCatalog("local", uri=f"sqlite:///{quote(target)}/catalog.db", warehouse=target)
    catalog.create_namespace_if_not_exists("logs")
    return catalog


def main(source: str, target: str) -> None:
    """Load a topic twice into each table, and show that the second load finds nothing new."""
    with closing(open_catalog(target)) as catalog:
        for _ in range(2):
            print(f"Delta: {load_into_delta(source, 'orders', f'{target}/orders')} new records")
            n_records = load_into_iceberg(source, "orders", catalog, "logs.orders")
            print(f"Iceberg: {n_records} new records")
        n_in_delta = DeltaTable(f"{target}/orders").to_pyarrow_table().num_rows
        n_in_iceberg = catalog.load_table("logs.orders").scan().to_arrow().num_rows
        print(f"Delta has {n_in_delta} records, Iceberg has {n_in_iceberg}")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        main(*sys.argv[1:])
    else:
        with tempfile.TemporaryDirectory() as scratch:
            main(sys.argv[1] if len(sys.argv) > 1 else DATA, scratch)
