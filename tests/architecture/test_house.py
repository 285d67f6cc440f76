"""Floors, names, a light import, and documentation that agrees with the code."""

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import checklist
import pytest
from ready_worker import plain_python

import pyspark_segmentlog
import segmentlog

TOP = Path(__file__).parents[2]
ROOTS = (TOP / "storage" / "segmentlog", TOP / "connector" / "pyspark_segmentlog")
MODULES = sorted(path for root in ROOTS for path in root.rglob("*.py"))


def run(code: str) -> str:
    """The output of a new interpreter for `code`."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def names(root: Path) -> list[str]:
    """Files and directories at the top of a checkout, without dotfiles and leftovers of tools."""
    left = {"build", "dist", "spark-warehouse", "__pycache__"}
    return sorted(p.name for p in root.iterdir() if p.name[0] != "." and p.name not in left)


def test_the_top_level_is_the_architecture() -> None:
    """The top has only the floors, the tests, the examples and their description."""
    expected = ["README.md", "connector", "examples", "pyproject.toml", "storage", "tests"]

    assert expected == names(TOP)


@pytest.mark.parametrize("name", ["FAST", "NOT_FAST"])
def test_the_lists_of_fast_tests_name_files(name: str) -> None:
    """The tests of a file that was renamed would join the fast ones in silence."""
    tests = TOP / "tests"

    assert [] == [each for each in getattr(checklist, name) if not [*tests.glob(f"{each}*")]]


def test_what_an_addition_must_pass_is_in_one_of_the_runs() -> None:
    """`pytest -m fast` has all of it that needs neither a broker nor Spark."""
    found = [*checklist.checks()]

    assert {"command", "option of reads", "public name"} <= {each.kind for each in found}
    assert [] == [each for each in found if each.run not in checklist.RUNS]


def test_importing_the_connector_loads_nothing_heavy() -> None:
    """If one `pyspark_*` module cannot be imported, Spark finds no auto-registered source."""
    heavy = "{'numpy', 'pyarrow', 'segmentlog', 'pandas', 'lz4', 'cramjam'}"
    code = (
        "import sys, pyspark.sql.datasource; before = set(sys.modules); "
        f"import pyspark_segmentlog; print(sorted((set(sys.modules) - before) & {heavy}))"
    )

    assert run(code) == "[]"
    assert run("import sys, pyspark_segmentlog; print('segmentlog' in sys.modules)") == "False"


def test_importing_the_pytest_plugin_loads_pytest_alone() -> None:
    """Each run of pytest imports it where the package is installed."""
    code = (
        "import sys, pytest; before = set(sys.modules); import pytest_segmentlog; "
        "print(sorted({each.partition('.')[0] for each in set(sys.modules) - before}))"
    )

    assert run(code) == "['pytest_segmentlog']"


def test_neither_an_import_nor_a_first_scan_loads_pandas() -> None:
    """Loading pandas takes 0.2 s.

    `pyarrow` loads it for a scalar or an array of Python's numbers.
    """
    directory = TOP / "examples" / "data"
    code = (
        "import sys, segmentlog; loaded = ['pandas' in sys.modules]; "
        f"log = segmentlog.open_log_dir({str(directory)!r}).log('orders', 0); "
        "rows = log.scan(include_headers=True).read_all().num_rows; "
        "first = log.offset_for_timestamp(0).offset; loaded.append('pandas' in sys.modules); "
        "import pandas; print(rows > 0, first, loaded)"
    )

    assert run(code) == "True 0 [False, False]"


#: A source that writes down, after each step, whether its process has loaded pandas.
WORKER = """
import sys
from pathlib import Path
from pyspark_segmentlog.source import SegmentLogDataSource
from pyspark.sql.datasource import DataSourceReader

def note(step):
    Path({out!r}, step).write_text(str("pandas" in sys.modules))

class Telling(DataSourceReader):
    def __init__(self, reader):
        self.reader = reader
    def partitions(self):
        parts = self.reader.partitions()
        note("planned")
        return parts
    def read(self, partition):
        yield from self.reader.read(partition)
        note("read")

class Source(SegmentLogDataSource):
    @classmethod
    def name(cls):
        return "telling"
    def reader(self, schema):
        return Telling(super().reader(schema))
"""
ALONE = """
import pyspark.worker
source = Source({{"path": {directory!r}, "subscribe": "orders"}})
reader = source.reader(source.schema())
print(sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)) > 0)
"""
IN_SPARK = """
import os
os.environ["PYSPARK_PYTHON"] = {python!r}
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.getOrCreate()
spark.dataSource.register(Source)
rows = spark.read.format("telling").option("subscribe", "orders").load({directory!r})
print(len(rows.collect()) > 0)
spark.stop()
"""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(ALONE, id="alone"),
        pytest.param(IN_SPARK, id="spark", marks=[pytest.mark.spark, pytest.mark.slow]),
    ],
)
def test_a_worker_of_spark_does_not_load_pandas(tmp_path: Path, program: str) -> None:
    """Neither planning a read nor the rows of the first task load it."""
    places = {"directory": str(TOP / "examples" / "data"), "out": str(tmp_path)}
    places["python"] = plain_python()

    assert run((WORKER + program).format(**places)) == "True"
    told = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert {"planned": "False", "read": "False"} == told


@pytest.mark.parametrize("package", [segmentlog, pyspark_segmentlog])
@pytest.mark.addition("public name")
def test_exported_names_are_all_there_and_sorted(package: object) -> None:
    """`__all__` lists exactly the public names, in order; some are imported when they are used."""
    exported = package.__all__
    found = vars(package) | {name: getattr(package, name) for name in exported}
    public = {
        name
        for name, value in found.items()
        if name[0] != "_" and getattr(value, "__module__", "").split(".")[0] == package.__name__
    }

    assert sorted(exported) == list(exported)
    assert public == set(exported)


@pytest.mark.addition("module")
def test_every_module_imports_and_has_a_docstring() -> None:
    """The docstring of each module describes its purpose."""
    for package in (segmentlog, pyspark_segmentlog):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(found.name)

            assert module.__doc__ or found.name.endswith("._compiled"), found.name


@pytest.mark.addition("module")
def test_the_name_of_a_class_means_one_thing() -> None:
    """A reader who meets it in one room has not met another one of that name."""
    homes: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(str(path.relative_to(TOP)))

    assert {} == {name: found for name, found in homes.items() if len(found) > 1}


#: Rooms whose tests are in other folders, and these folders.
TESTED_ELSEWHERE: dict[str, str] = {}


@pytest.mark.addition("module")
def test_every_room_has_a_folder_of_tests() -> None:
    """The tests of `storage/segmentlog/log` are those of `tests/storage/log`."""
    rooms = {
        f"{root.name}/{path.parent.relative_to(root)}": TOP / "tests" / root.parent.name
        for root in ROOTS
        for path in root.rglob("*.py")
        if path.parent != root
    }
    without = [
        room
        for room, tests in rooms.items()
        if not list((tests / room.partition("/")[2]).glob("test_*.py"))
    ]

    assert sorted(TESTED_ELSEWHERE) == sorted(without)


def test_the_connectors_door_names_each_room_that_it_opens() -> None:
    """A room is either in the name of the contract, or the contract forbids it."""
    contracts = tomllib.loads((TOP / "pyproject.toml").read_text())["tool"]["importlinter"]
    (door,) = [
        each
        for each in contracts["contracts"]
        if each["type"] == "forbidden" and each["source_modules"] == ["pyspark_segmentlog"]
    ]
    rooms = {each.name for each in pkgutil.iter_modules(segmentlog.__path__)} - {"__main__"}
    forbidden = {each.removeprefix("segmentlog.") for each in door["forbidden_modules"]}
    named = rooms & set(re.findall(r"\w+", door["name"].partition(":")[2]))

    assert named == rooms - forbidden
    assert forbidden <= rooms | {"*.*"}


def test_the_build_and_the_tests_have_the_same_compiler() -> None:
    """An editable install compiles with the packages of the tests."""
    hook = (TOP / "storage" / "kernel_compiler" / "hook.py").read_text()
    pinned = re.search(r'^NUMBA = "(.*)"', hook, re.MULTILINE)[1]

    assert f'"{pinned}",' in (TOP / "pyproject.toml").read_text()


def test_the_readme_gives_the_commands_that_are_tested() -> None:
    """The commands are near the top, and CI runs the last of them."""
    top = (TOP / "README.md").read_text()[:3000]
    ci = (TOP / ".ci" / "run").read_text()

    assert "pip install . && segmentlog topics examples/data" in top
    assert "pip install '.[spark]' && python examples/quickstart.py" in top
    assert "pip install '.[test]' && pytest" in top
    assert "pip install --quiet '.[test]'" in ci
    assert re.search(r"^pytest$", ci, re.MULTILINE)


def test_nothing_names_a_place_that_is_not_the_projects() -> None:
    """No file refers to a machine's directories or to a package registry's address."""
    pattern = re.compile(rf"{re.escape(str(Path.home()))}/\w|https?://\S*(maven|pypi)")
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=TOP, capture_output=True, text=True, check=False
    ).stdout.splitlines()
    if not tracked:  # an archive of the tree, and no checkout
        tracked = [str(path.relative_to(TOP)) for path in TOP.rglob("*") if path.is_file()]
    assert "README.md" in tracked
    found = [
        name
        for name in tracked
        if name.endswith((".py", ".md", ".toml", ".yaml", ".yml", ".java"))
        and name != "tests/architecture/test_house.py"
        and pattern.search((TOP / name).read_text())
    ]

    assert [] == found


def test_no_bytes_stand_beside_a_scalar_in_if_else() -> None:
    """Before pyarrow 24, that gives wrong bytes; `format.records.columns.where` does not."""

    def is_scalar(node: ast.expr) -> bool:
        return isinstance(node, ast.Constant) or ast.unparse(node).startswith("pa.scalar(")

    def is_number(node: ast.expr) -> bool:
        return ast.unparse(node).endswith(("pa.int64())", "times.type)"))

    calls = [
        (path, node.args)
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pc.if_else"
    ]

    assert len(calls) > 5
    assert [] == [
        f"{path.name}: {ast.unparse(first)}, {ast.unparse(second)}"
        for path, (_, first, second) in calls
        if is_scalar(first) != is_scalar(second) and not (is_number(first) or is_number(second))
    ]
