"""The names that a package exports, each imported when it is first asked for (PEP 562).

A process that opens one log needs a few of the modules behind ``segmentlog``, and none of them to
name it.  Type checkers and editors see the same names as imports under ``TYPE_CHECKING``;
``tests/architecture/test_imports.py`` compares the two.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import NamedTuple


class Exports(NamedTuple):
    """The functions of a package that Python calls for names which it does not have."""

    look_up: Callable[[str], object]  # ``__getattr__``
    names: Callable[[], list[str]]  # ``__dir__``


def exported(package: str, names: Mapping[str, str]) -> Exports:
    """``__getattr__`` and ``__dir__`` of a package.

    `names`: the names with spaces between them, by their modules inside of ``segmentlog``.
    """
    root = package.partition(".")[0]
    modules = {name: module for module, each in names.items() for name in each.split()}
    #: Packages and modules of the root are its attributes, too, as if they had been imported.
    children = {module.partition(".")[0] for module in names} if package == root else set()

    def look_up(name: str) -> object:
        if name in children:
            return import_module(f"{root}.{name}")
        if name not in modules:
            message = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(message)
        found: object = getattr(import_module(f"{root}.{modules[name]}"), name)
        setattr(sys.modules[package], name, found)
        return found

    return Exports(look_up, lambda: sorted({*vars(sys.modules[package]), *modules}))
