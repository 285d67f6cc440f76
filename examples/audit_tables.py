"""Prove a Delta table and an Iceberg table against the log, and append what they lack.

Run with ``pip install . deltalake 'pyiceberg[sql-sqlite,pyarrow]' && python
examples/audit_tables.py [SOURCE [TARGET]]``.  Without TARGET, the tables are made in a temporary
directory: each of them lacks some records, and the audit finds these.
"""

import sys
import tempfile
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import segmentlog

DATA = str(Path(__file__).parent / "data")
COLUMNS = ["topic", "partition", "offset", "timestamp", "key", "value"]


def repair_delta(source: str, topic: str, path: str) -> segmentlog.Audit:
    """Append the records that a Delta table lacks; return what was found before."""
    found = segmentlog.audit(source, topic, path)
    if found.count("missing"):
        write_deltalake(path, found.missing(COLUMNS), mode="append")
    return found


def repair_iceberg(source: str, topic: str, table: Table) -> segmentlog.Audit:
    """Append the records that an Iceberg table lacks; return what was found before."""
    found = segmentlog.audit(source, topic, table)
    if found.count("missing"):
        table.append(found.missing(COLUMNS).read_all())  # one commit, of rows in memory
    return found


def main(source: str, target: str) -> None:
    """Make two tables that lack records, and audit them before and after their repair."""
    topic = "orders"
    records = segmentlog.read(source, topic, columns=COLUMNS)
    write_deltalake(f"{target}/orders", records.slice(100))
    warehouse = Path(target) / "warehouse"
    warehouse.mkdir(parents=True)
    place = f"sqlite:///{quote(str(warehouse))}/catalog.db"
    with closing(SqlCatalog("local", uri=place, warehouse=str(warehouse))) as catalog:
        catalog.create_namespace("logs")
        table = catalog.create_table("logs.orders", schema=records.schema)
        table.append(records.slice(0, 850))
        for _ in range(2):
            print(f"Delta: {repair_delta(source, topic, f'{target}/orders')}")
            print(f"Iceberg: {repair_iceberg(source, topic, table)}")
        found = segmentlog.audit(source, topic, table.metadata_location)  # without its catalog
        print(f"Iceberg by its metadata file: {found}")
    print(f"Delta has {DeltaTable(f'{target}/orders').to_pyarrow_table().num_rows} records")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        main(*sys.argv[1:])
    else:
        with tempfile.TemporaryDirectory() as scratch:
            main(sys.argv[1] if len(sys.argv) > 1 else DATA, scratch)
