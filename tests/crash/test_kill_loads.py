"""Loads into Delta and Iceberg are killed; each record of the log is in each table once."""

import random
import runpy
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from pyiceberg.exceptions import CommitFailedException

import segmentlog

N_KILLS = 100
RECIPE = Path(__file__).parents[2] / "examples" / "load_into_tables.py"

#: Loads what is new into both tables, for ever.
LOADER = """
import runpy, sys
recipe = runpy.run_path(sys.argv[1])
source, target = sys.argv[2:]
catalog = recipe["open_catalog"](target)
while True:
    recipe["load_into_delta"](source, "t", f"{target}/t")
    print("delta", flush=True)
    recipe["load_into_iceberg"](source, "t", catalog, "logs.t")
    print("iceberg", flush=True)
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The functions of the recipe; its catalogs are closed, or Python would warn of them later."""
    if "%" in str(tmp_path):
        # `write_deltalake("/tmp/a%20b", table)` writes there, and then looks in "/tmp/a b".
        pytest.skip("deltalake decodes percent signs in local paths")
    functions = runpy.run_path(str(RECIPE))
    usual = functions["open_catalog"]
    with ExitStack() as opened:
        functions["open_catalog"] = lambda target: opened.enter_context(closing(usual(target)))
        yield functions


def append(directory: Path, n_records: int) -> None:
    """Append records to three partitions."""
    with segmentlog.open_writer(directory, "t", num_partitions=3) as writer:
        values = [b"%d" % i for i in range(n_records)]
        writer.append(pa.table({"key": values, "value": values}))


def offsets(rows: pa.Table) -> list[tuple[int, int]]:
    """Partition and offset of each row, in order."""
    return sorted(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_loads_lose_and_repeat_nothing(tmp_path: Path, recipe: dict[str, Any]) -> None:
    """A load is killed at any time after its process has loaded once."""
    rng, source, target = random.Random(N_KILLS), tmp_path / "logs", tmp_path / "tables"
    append(source, 100)
    for _ in range(N_KILLS):
        arguments = [sys.executable, "-c", LOADER, str(RECIPE), str(source), str(target)]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE) as loader:
            assert loader.stdout is not None
            assert loader.stdout.readline()
            append(source, 100)
            time.sleep(rng.uniform(0, 0.5))
            loader.kill()
    catalog = recipe["open_catalog"](str(target))
    recipe["load_into_delta"](str(source), "t", f"{target}/t")
    recipe["load_into_iceberg"](str(source), "t", catalog, "logs.t")
    expected = offsets(segmentlog.read(source, "t"))

    assert 100 * (N_KILLS + 1) == len(expected)
    assert expected == offsets(pa.table(DeltaTable(f"{target}/t").to_pyarrow_table()))
    assert expected == offsets(catalog.load_table("logs.t").scan().to_arrow())


def test_of_two_loads_at_once_one_is_refused(
    tmp_path: Path, recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second commit of the same records fails, and the records are there once."""
    source, target = str(tmp_path / "logs"), str(tmp_path / "tables")
    append(tmp_path / "logs", 100)
    catalog = recipe["open_catalog"](target)
    usual = recipe["new_records"]

    def overtaken(*arguments: Any) -> Any:
        """Another load commits between the look and the commit of this one."""
        found = list(usual(*arguments))
        monkeypatch.setitem(functions, "new_records", usual)
        loads[kind]()
        return iter(found)

    functions = recipe["load_into_delta"].__globals__
    loads = {
        "delta": lambda: recipe["load_into_delta"](source, "t", f"{target}/t"),
        "iceberg": lambda: recipe["load_into_iceberg"](source, "t", catalog, "logs.t"),
    }
    for kind, error in (("delta", CommitFailedError), ("iceberg", CommitFailedException)):
        monkeypatch.setitem(functions, "new_records", overtaken)
        with pytest.raises(error):
            loads[kind]()
    assert 100 == DeltaTable(f"{target}/t").to_pyarrow_table().num_rows
    assert 100 == catalog.load_table("logs.t").scan().to_arrow().num_rows


def test_records_that_are_gone_before_a_load_are_an_error(
    tmp_path: Path, recipe: dict[str, Any]
) -> None:
    """A load does not silently continue after a gap."""
    source, target = tmp_path / "logs", str(tmp_path / "tables")
    append(source, 30)
    recipe["load_into_delta"](str(source), "t", f"{target}/t")
    append(source, 30)
    end = segmentlog.open_log_dir(source).log("t", 0).end_offset()
    segmentlog.delete_records(source, "t", 0, offset=end)
    append(source, 30)

    with pytest.raises(segmentlog.errors.SegmentLogError, match="offset"):
        recipe["load_into_delta"](str(source), "t", f"{target}/t")
