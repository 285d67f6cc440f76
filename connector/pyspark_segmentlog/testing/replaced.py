"""The methods of pyspark that are replaced, and their originals."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

#: A reader or a writer of pyspark, a session or a catalog.
Builder: TypeAlias = Any

#: Methods of a class, and its properties.
Methods: TypeAlias = Mapping[str, Any]

ORIGINALS: dict[tuple[type, str], Callable[..., Any]] = {}


def original(builder: Builder, name: str) -> Callable[..., Any]:
    """The method of pyspark that was replaced."""
    for each in type(builder).__mro__:
        if (each, name) in ORIGINALS:
            return ORIGINALS[each, name]
    raise AttributeError(name)


def replace(owner: type, methods: Methods) -> None:
    """Replace methods of a class; those that are replaced already stay so."""
    for name, method in methods.items():
        if (owner, name) not in ORIGINALS:
            ORIGINALS[owner, name] = getattr(owner, name)
            setattr(owner, name, method)


def put_methods_back() -> None:
    """Give all classes their own methods again."""
    while ORIGINALS:
        (owner, name), method = ORIGINALS.popitem()
        setattr(owner, name, method)
