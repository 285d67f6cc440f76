"""What each door loads: names are imported when they are first asked for, commands when called."""

import ast
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from segmentlog.exports import exported
from segmentlog.tools.commands import TABLE, Commands

ENGINE = Path(__file__).parents[2] / "storage" / "segmentlog"
DOORS = [
    path
    for path in sorted(ENGINE.rglob("__init__.py"))
    if any(
        isinstance(node, ast.Name) and node.id.endswith("exported")
        for node in ast.walk(ast.parse(path.read_text()))
    )
]


def package_of(path: Path) -> str:
    return ".".join(["segmentlog", *path.parent.relative_to(ENGINE).parts])


def shown(path: Path) -> dict[str, str]:
    """The names that a type checker sees, and their modules: the imports under TYPE_CHECKING."""
    (block,) = (
        node
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    return {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


@pytest.mark.parametrize("path", DOORS, ids=package_of)
@pytest.mark.addition("public name")
def test_type_checkers_see_what_is_exported(path: Path) -> None:
    """The imports, the table that is used at run time, and ``__all__`` name the same things."""
    package = import_module(package_of(path))

    names = {name for name in shown(path) if name in package.__all__}
    assert names == {*package.__all__}
    for name, module in shown(path).items():
        if name in names:
            assert getattr(import_module(module), name) is getattr(package, name)


def test_there_are_doors() -> None:
    """The rooms whose names a connector imports, and the package itself."""
    assert {"segmentlog", "segmentlog.reads", "segmentlog.writes", "segmentlog.maintain"} <= {
        *map(package_of, DOORS)
    }


@pytest.mark.parametrize("path", DOORS, ids=package_of)
def test_no_module_has_the_name_of_an_export(path: Path) -> None:
    """The import of such a module would replace the export."""
    modules = {each.stem for each in path.parent.iterdir() if each.suffix in {".py", ""}}

    assert not modules & {*import_module(package_of(path)).__all__}


def test_a_name_that_is_not_exported() -> None:
    """The error is that of any module."""
    look_up, names = exported("segmentlog.reads", {"reads.log": "Log"})

    assert "Log" in names()
    with pytest.raises(AttributeError, match="has no attribute 'Logs'"):
        look_up("Logs")


@pytest.mark.parametrize("name", list(Commands()))
@pytest.mark.addition("command")
def test_the_list_of_commands_shows_the_help_of_each(name: str) -> None:
    """The list is a table, so that it imports no command."""
    sentences = {name: text for rows in TABLE.values() for name, text in rows.items()}

    first = Commands()[name].help.strip().split("\n\n")[0]
    assert " ".join(first.split()) == sentences[name]


#: A reader of Spark, as a worker has it: unpickled, and asked for its first batch.
FIRST_TASK = """
import pickle
from pyspark_segmentlog.source import SegmentLogDataSource
source = SegmentLogDataSource({"path": "examples/data"})
reader = source.reader(source.schema())
next(iter(reader.read(reader.partitions()[0])))
"""

#: For each door: the most modules of the product that it may load, and packages that it must not
#: load.  A new import at the top of a module is paid by every command, child and worker.
LOADED = {
    "import segmentlog": (4, {"numpy", "pyarrow", "typer"}),
    "import segmentlog; segmentlog.open_log_dir": (60, {"pyarrow", "typer"}),
    "import segmentlog; segmentlog.read": (70, {"pyarrow.compute", "typer"}),
    "import pyspark_segmentlog": (4, {"segmentlog"}),
    "from segmentlog.tools.cli import app": (7, {"numpy", "rich", "pydantic"}),
    "import segmentlog.tools.topics": (92, {"pyarrow", "pydantic"}),
    "import segmentlog.tools.grep": (85, {"pyarrow.dataset", "pydantic"}),
    FIRST_TASK: (115, {"typer", "pyarrow.dataset", "segmentlog.writes.writer"}),
}


@pytest.mark.parametrize("code", LOADED)
def test_a_door_loads_few_modules(code: str) -> None:
    """The name of a module that is new shows which import brings it."""
    most, without = LOADED[code]
    script = f"import json, sys\n{code}\nprint(json.dumps([*sys.modules]))"
    root = Path(__file__).parents[2]
    found = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, check=True, cwd=root
    )
    loaded = json.loads(found.stdout)
    own = [each for each in loaded if each.startswith(("segmentlog", "pyspark_segmentlog"))]

    assert not without & {*loaded}
    assert len(own) <= most, sorted(own)
