"""The names of pyspark that the connector imports, and those that a version lacks.

``python tests/support/names_of_pyspark.py`` prints the names that the running pyspark lacks.  Type
checkers alone read what stands under ``if TYPE_CHECKING``.
"""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

CONNECTOR = Path(__file__).parents[2] / "connector"

#: Modules that look at what a version has, or that only another client of Spark needs.
EXEMPT = ("spark_versions.py", "sail.py")


def imported() -> set[tuple[str, str]]:
    """Modules of pyspark with the names that are taken from them; "" for the module itself."""
    return {
        name
        for path in CONNECTOR.rglob("*.py")
        if path.name not in EXEMPT
        for node in _run(ast.parse(path.read_text()))
        for name in _names(node)
    }


def _run(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those under ``if TYPE_CHECKING``."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            for other in child.orelse:
                yield from _run(other)
        else:
            yield from _run(child)


def _names(node: ast.AST) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.ImportFrom) and _is_pyspark(node.module or ""):
        yield from ((node.module or "", each.name) for each in node.names)
    elif isinstance(node, ast.Import):
        yield from ((each.name, "") for each in node.names if _is_pyspark(each.name))


def _is_pyspark(module: str) -> bool:
    return module.partition(".")[0] == "pyspark"


def lacking(names: set[tuple[str, str]]) -> list[str]:
    """The names that the running pyspark lacks."""
    return sorted(f"{module} {name}".strip() for module, name in names if not _has(module, name))


def _has(module: str, name: str) -> bool:
    try:
        loaded = importlib.import_module(module)
    except ImportError:
        return False
    if not name or hasattr(loaded, name):
        return True
    try:
        importlib.import_module(f"{module}.{name}")
    except ImportError:
        return False
    return True


if __name__ == "__main__":
    print("\n".join(lacking(imported())))
