"""The recipes of `examples/README.md` run, and find the contents of the example data."""

import base64
import re
import runpy
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest
from plain_writes import ONE, write
from pyspark.sql import SparkSession
from ready_worker import plain_python

EXAMPLES = Path(__file__).parents[2] / "examples"
DATA = str(EXAMPLES / "data")
Run = Callable[..., str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Call a function of a recipe, by default its ``main``, and return its output."""

    def call(name: str, *arguments: Any, function: str = "main") -> str:
        runpy.run_path(str(EXAMPLES / name))[function](*arguments)
        return capsys.readouterr().out

    return call


def test_the_index_names_every_example() -> None:
    """The index names no other file."""
    listed = re.findall(
        r"^\| \[(.*?)\]\(\1\) \|", (EXAMPLES / "README.md").read_text(), re.MULTILINE
    )
    there = [path.name for path in EXAMPLES.iterdir() if path.suffix in {".py", ".sql", ".ipynb"}]

    assert sorted(listed) == sorted(there)


def test_an_incident_by_time(run: Run) -> None:
    """Records are in the order of time over all partitions, and counted by partition."""
    lines = run("incident_by_time.py").splitlines()

    assert lines[0].startswith("08:53:20 orders-1@107     b'customer-20'")
    assert lines[1].startswith("08:53:20 payments-0@0 ")
    assert "122 records from 2025-10-10T08:50:00Z to 2025-10-10T09:00:00Z" in lines
    assert ["orders-0         1", "orders-1         1", "payments-0     120"] == lines[-3:]


def test_a_topic_is_restored(run: Run, tmp_path: Path) -> None:
    """Aborted records and end markers are left out, and offsets stay."""
    assert run("restore_topic.py", DATA, str(tmp_path)) == "payments-0: offsets 0 to 59\n"


def test_the_latest_by_key(run: Run, tmp_path: Path) -> None:
    """The table is the same before and after compaction, without the deleted key."""
    before, compacted, afterwards = run("latest_by_key.py", str(tmp_path / "logs")).splitlines()

    assert compacted == "compacted prices-0: kept 100 of 3,300 records below offset 3,300"
    table = "99 keys, the first {'key': b'item-0', 'value': b'99.37'}"
    assert re.fullmatch(rf"before: \d{{3}},\d{{3}} bytes, {re.escape(table)}", before)
    assert re.fullmatch(rf"afterwards: \d{{2}},\d{{3}} bytes, {re.escape(table)}", afterwards)


def test_duckdb_and_polars(run: Run) -> None:
    """DuckDB finds the days, and Polars the best customers."""
    printed = run("duckdb_and_polars.py")

    assert "│ 2025-10-09 │    189 │ 47076.65 │" in printed
    assert "│ customer-30 ┆ 11     ┆ 3562.99 │" in printed


def test_dask(run: Run) -> None:
    """Each fragment is a part of Dask's frame."""
    lines = run("dask_frames.py", DATA).splitlines()

    assert "5 parts" == lines[0]
    assert "orders     0            335" in lines
    assert "customer-07: 23 orders" in lines


@pytest.mark.thorough
def test_loads_into_delta_and_iceberg(run: Run, tmp_path: Path) -> None:
    """The second load of a table finds nothing new."""
    lines = run("load_into_tables.py", DATA, str(tmp_path)).splitlines()

    assert ["Delta: 900 new records", "Iceberg: 900 new records"] == lines[:2]
    assert ["Delta: 0 new records", "Iceberg: 0 new records"] == lines[2:4]
    assert "Delta has 900 records, Iceberg has 900" == lines[4]


@pytest.mark.thorough
def test_audits_of_delta_and_iceberg(run: Run, tmp_path: Path) -> None:
    """The audit finds what each table lacks, and the tables are complete after their repair."""
    lines = run("audit_tables.py", DATA, str(tmp_path)).splitlines()

    assert ["Delta: Audit(800 rows: 100 missing)", "Iceberg: Audit(850 rows: 50 missing)"] == (
        lines[:2]
    )
    assert ["Delta: Audit(900 rows: complete)", "Iceberg: Audit(900 rows: complete)"] == lines[2:4]
    assert "Iceberg by its metadata file: Audit(900 rows: complete)" == lines[4]
    assert "Delta has 900 records" == lines[5]


@pytest.mark.spark
@pytest.mark.thorough
def test_a_comparison_of_directories(
    spark: SparkSession, run: Run, example_data: str, tmp_path: Path
) -> None:
    """The recipe finds a missing record and a changed record."""
    run("compare_directories.py", str(tmp_path / "copy"), function="flawed_copy")
    printed = run("compare_directories.py", example_data, str(tmp_path / "copy"))
    assert re.search(r"orders *\| *1 *\| *differs *\| *1 *\|", printed)
    assert re.search(r"orders *\| *2 *\| *only left *\| *1 *\|", printed)
    assert re.search(r"orders *\|1 *\|7 *\|differs *\|.*\|\{\} *\|", printed)


@pytest.mark.slow
@pytest.mark.spark
def test_a_comparison_of_equal_directories(
    spark: SparkSession, run: Run, example_data: str
) -> None:
    """One sentence says that they are equal."""
    same = run("compare_directories.py", example_data, example_data)
    assert same == "orders: both directories have the same records\n"


@pytest.mark.thorough
@pytest.mark.spark
def test_an_export_to_parquet(
    spark: SparkSession, run: Run, example_data: str, tmp_path: Path
) -> None:
    """There is a directory for each day, and every record is in one of them."""
    target = tmp_path / "parquet"
    printed = run("export_to_parquet.py", example_data, "orders", str(target))

    days = [f"day=2025-10-{day:02}" for day in (9, 10, 11, 12)]
    assert days == sorted(path.name for path in (target / "topic=orders").iterdir())
    assert f"900 records are in {target}" in printed


@pytest.mark.thorough
@pytest.mark.spark
def test_json_values(spark: SparkSession, run: Run) -> None:
    """All orders fit the schema; payments have another schema."""
    assert re.search(r"\| *900\| *0\|", run("json_values.py"))
    payments = run("json_values.py", DATA, "payments", "paid string, at date")
    assert re.search(r"\| *120\| *0\|", payments)
    assert re.search(r"\| *120\| *120\|", run("json_values.py", DATA, "payments", "paid date"))


@pytest.mark.thorough
@pytest.mark.spark
def test_avro_values_with_the_schemas_of_a_registry(
    spark: SparkSession, run: Run, tmp_path: Path
) -> None:
    """Each value is decoded with its schema. Causes are counted."""
    pytest.importorskip("fastavro")
    run("avro_values.py", str(tmp_path), function="example")
    printed = run("avro_values.py", str(tmp_path))

    causes = re.findall(r"\|(\w[\w ]*\w) *\|1 *\|", printed)
    assert ["it names no schema", "no schema has the id 7"] == causes
    rows = re.findall(r"\|(\d) *\|(\w+) *\|(\w+) *\|", printed)
    assert [("0", "Oslo", "NULL"), ("1", "Rome", "30"), ("2", "Bern", "NULL")] == rows


def test_a_table_for_each_schema_of_a_registry(run: Run, tmp_path: Path) -> None:
    """Of both formats; a value whose schema is not there is counted."""
    pytest.importorskip("ptars")
    pytest.importorskip("grpc_tools")
    run("registry_values.py", str(tmp_path), function="example")
    unknown, *rows = run("registry_values.py", str(tmp_path)).splitlines()

    assert "1 values without a schema that is here, id 7" == unknown
    assert "readings-value version 1: struct<city: string>" == rows[0]
    assert "{'city': 'Oslo'}" in rows[1]
    assert "readings-value version 2: struct<city: string>" == rows[2]
    assert "{'city': 'Rome'}" in rows[3]


@pytest.mark.thorough
@pytest.mark.spark
def test_sql_alone(spark: SparkSession) -> None:
    """The statements of the file run in their order; the last three are queries."""
    text = re.sub(r"^--.*\n", "", (EXAMPLES / "orders.sql").read_text(), flags=re.MULTILINE)
    text = text.replace("'examples/data'", f"'{EXAMPLES / 'data'}'")
    statements = [each.strip() for each in text.split(";") if each.strip()]
    results = [spark.sql(each).collect() for each in statements]

    days, customers, (orphans,) = results[-3:]
    assert 900 == sum(row["orders"] for row in days)
    assert 5 == len(customers)
    assert all(row["name"] for row in customers)
    assert 90 == orphans["orders_without_a_customer"]


@pytest.mark.slow
@pytest.mark.spark
def test_a_topic_is_followed(
    spark: SparkSession,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """The windows have all records, a second run finds nothing new, and new records come."""
    monkeypatch.setattr(sys, "argv", ["recipe", f"--checkpoint={tmp_path / 'checkpoint'}"])
    printed = run("follow_and_count.py").splitlines()
    assert "2025-10-09 06:00:00 to 2025-10-09 12:00:00       39" == printed[0]
    assert 900 == sum(int(line.split()[-1]) for line in printed)
    assert "" == run("follow_and_count.py")

    recipe = runpy.run_path(str(EXAMPLES / "follow_and_count.py"))
    write(tmp_path / "logs", ONE)
    query = recipe["start"](spark, str(tmp_path / "logs"), "t", "100000 days", follow=True)
    try:
        query.processAllAvailable()
        write(tmp_path / "logs", ONE)
        query.processAllAvailable()
    finally:
        query.stop()
    assert ["1", "2"] == [line.split()[-1] for line in capsys.readouterr().out.splitlines()]


@pytest.mark.slow
@pytest.mark.spark
def test_a_mirror_that_is_interrupted(spark: SparkSession, run: Run, tmp_path: Path) -> None:
    """The mirror has each record once after a stop, and after a commit without Spark's note."""
    stopped, forgotten, compared = run(
        "mirror_exactly_once.py", DATA, str(tmp_path / "mirror")
    ).splitlines()

    assert stopped.startswith("stopped after micro-batch ")
    assert forgotten.startswith("forgot the commit of micro-batch ")
    assert "source: 1062 records, mirror: 1062, lost: 0, extra: 0" == compared


@pytest.mark.thorough
@pytest.mark.spark
def test_a_backup_is_replayed(spark: SparkSession, run: Run) -> None:
    """The job sees all records at the end; three days pass in a second."""
    last = run("replay_backup.py", DATA, "orders", 260_000).splitlines()[-1]

    assert "2025-10-12 08:48:32  customer-02 7353.79  " in last


def executed(name: str) -> tuple[str, tuple[int, int]]:
    """The lines that a notebook prints, and the width and the height of its picture."""
    notebook = nbformat.read(EXAMPLES / name, as_version=4)
    nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(EXAMPLES)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]

    printed = "".join(each.text for each in outputs if each.get("name") == "stdout")
    pictures = [each.data["image/png"] for each in outputs if "image/png" in each.get("data", {})]
    (picture,) = map(base64.b64decode, pictures)
    return printed, struct.unpack(">2I", picture[16:24])


@pytest.mark.thorough
def test_the_notebook_counts_and_draws() -> None:
    """The notebook runs again. Its picture is an image, and its numbers are those of the data."""
    printed, (width, height) = executed("count_per_minute.ipynb")

    assert "1020 records in 902 minutes" in printed
    assert width > 800
    assert height > 400


@pytest.mark.thorough
def test_the_notebook_of_a_dead_cluster_answers_and_draws() -> None:
    """It prints the groups that lagged, the last changes, and the open transactions."""
    printed, (width, height) = executed("end_of_a_cluster.ipynb")

    assert "│ audit    │ Empty   │      15 │              1 │" in printed
    assert "62 changes, the last ones:" in printed
    assert "│ brokers  │ fenced   │ broker 1 " in printed
    assert (
        "│ invoices           │         0 │            6 │ bill-3           │ Ongoing" in printed
    )
    assert width > 800
    assert height > 600


@pytest.mark.spark
@pytest.mark.slow
def test_the_notebook_of_a_stream_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """The picture is drawn again in its place until the query has read the topic."""
    monkeypatch.setenv("PYSPARK_PYTHON", plain_python())
    printed, (width, height) = executed("live_counts.ipynb")

    assert '10 micro-batches, up to {"orders": {"0": 335, "1": 317, "2": 248}}' in printed
    assert width > 800
    assert height > 350
