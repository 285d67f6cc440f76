"""The names that `segmentlog` exports are those that its functions return or take."""

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterator
from types import GenericAlias
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import segmentlog
from segmentlog.writes.writer import ArrowRows

#: Names that modules import for type checkers alone.
NAMES = {
    "pa": pa, "pc": pc, "LogDataset": segmentlog.LogDataset, "Appended": segmentlog.Appended,
    "ArrowRows": ArrowRows,
}  # fmt: skip

#: Exported classes whose methods only the engine calls, and what users read of them.
INNER = {"Segment": "base_offset, size and path", "LogDataset": "what pyarrow.dataset.Dataset has"}

#: Attributes of exported objects that annotations of functions do not show.
ATTRIBUTES = {"Appended": "LogWriter.appended", "ErrorCode": "SegmentLogError.code"}


def exported() -> dict[str, Any]:
    """The exported functions and classes but for errors."""
    found = {name: getattr(segmentlog, name) for name in segmentlog.__all__}
    return {
        name: value
        for name, value in found.items()
        if not (inspect.isclass(value) and issubclass(value, BaseException))
    }


def public_functions() -> Iterator[Callable[..., Any]]:
    """The exported functions, and the public methods and properties of the exported classes."""
    for name, value in exported().items():
        if not inspect.isclass(value):
            yield value
        elif name not in INNER:
            for own, member in vars(value).items():
                function = getattr(member, "fget", None) or getattr(member, "__func__", member)
                if own[0] != "_" and inspect.isfunction(function):
                    yield inspect.unwrap(function)


def classes_of(hint: Any) -> Iterator[type]:
    """The classes of the engine that an annotation names."""
    if isinstance(hint, type) and not isinstance(hint, GenericAlias):
        if hint.__module__.partition(".")[0] == "segmentlog":
            yield hint
    for part in typing.get_args(hint):
        for each in part if isinstance(part, list) else [part]:
            yield from classes_of(each)


def hints() -> Iterator[tuple[str, type]]:
    """What functions return, by the name ``return``, what they take, and the fields of values."""
    for function in public_functions():
        for name, hint in typing.get_type_hints(function, localns=NAMES).items():
            yield from ((name, each) for each in classes_of(hint))
    for value in exported().values():
        if inspect.isclass(value) and (
            dataclasses.is_dataclass(value) or hasattr(value, "_fields")
        ):
            for hint in typing.get_type_hints(value, localns=NAMES).values():
                yield from (("return", each) for each in classes_of(hint))


def test_what_public_functions_return_is_exported() -> None:
    """A user can name the type of each result, and of each field of it."""
    returned = {each.__name__ for name, each in hints() if name == "return"}

    assert {"Segment", "LogEnd", "LogDataset", "Source", "Reason"} <= returned
    assert set() == returned - set(segmentlog.__all__)


def test_what_no_public_function_takes_or_returns_is_not_exported() -> None:
    """Each exported class has a use that the annotations show."""
    used = {each.__name__ for _, each in hints()} | set(ATTRIBUTES)
    classes = {name for name, value in exported().items() if inspect.isclass(value)}

    assert set() == classes - used
