"""Lengths of arrays that a request claims, compared with the bytes that it has.

`kio` takes memory for as many elements as a request claims before it reads them.  Where the system
refuses that memory, the whole process ends, and no exception says so.  So each request is walked
first.  Only lengths are looked at; what the fields say is left to `kio`.
"""

import dataclasses
import functools
import typing
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

_Walk: TypeAlias = Callable[[bytes, int], int]

_SIZES = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "error_code": 2, "int32": 4,
    "uint32": 4, "timedelta_i32": 4, "int64": 8, "uint64": 8, "timedelta_i64": 8,
    "datetime_i64": 8, "float64": 8, "uuid": 16,
}  # fmt: skip
_MOST_VARINT_BITS = 35


def check_claims(kind: type, data: bytes, at: int) -> None:
    """Raise `ValueError` or `IndexError` if a body claims more than the bytes that follow `at`."""
    end = _walk_of(kind)(data, at)
    if end > len(data):
        message = f"it claims {end - at} bytes, and has {len(data) - at}"
        raise ValueError(message)


@functools.cache
def _walk_of(kind: Any) -> _Walk:  # noqa: ANN401 - an entity of `kio`
    """A function that gives the byte after an entity which begins at a byte."""
    steps: list[int | _Walk] = []
    for each in dataclasses.fields(kind):
        if "tag" in each.metadata:
            continue
        step = _step(each, is_flexible=kind.__flexible__)
        if isinstance(step, int) and steps and isinstance(steps[-1], int):
            steps[-1] += step
        else:
            steps.append(step)
    if kind.__flexible__:
        steps.append(_after_tags)

    def walk(data: bytes, at: int) -> int:
        for step in steps:
            at = at + step if isinstance(step, int) else step(data, at)
        return at

    return walk


def _step(field: "dataclasses.Field[Any]", *, is_flexible: bool) -> int | _Walk:
    """The size of a field, or what gives the byte after it."""
    entity, is_array, is_nullable = parts_of(field.type)
    name = field.metadata.get("kafka_type", "")
    if entity is not None:
        element: int | _Walk = _walk_of(entity)
    elif name in _SIZES:
        element = _SIZES[name]
    else:
        width = 2 if name == "string" else 4
        element = _after_compact if is_flexible else functools.partial(_after_sized, width)
    if is_array:
        return functools.partial(_after_array, element, is_flexible)
    if entity is not None and is_nullable:
        return functools.partial(_after_optional, _walk_of(entity))
    return element


def parts_of(annotation: object) -> tuple[Any, bool, bool]:
    """The entity of a field, or None; whether it is an array; whether it may be null."""
    parts = [*_within(annotation)]
    entity = next((each for each in parts if dataclasses.is_dataclass(each)), None)
    is_array = any(typing.get_origin(each) is tuple for each in parts)
    return entity, is_array, type(None) in typing.get_args(annotation)


def _within(annotation: object) -> Iterator[Any]:
    yield annotation
    for each in typing.get_args(annotation):
        yield from _within(each)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = bits = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << bits
        if byte < 0x80:
            return value, at
        bits += 7
        if bits >= _MOST_VARINT_BITS:
            raise ValueError("a length has too many bytes")


def _after_compact(data: bytes, at: int) -> int:
    size, at = _varint(data, at)
    return at + max(size - 1, 0)


def _after_sized(width: int, data: bytes, at: int) -> int:
    size = int.from_bytes(data[at : at + width], "big", signed=True)
    return at + width + max(size, 0)


def _after_optional(walk: _Walk, data: bytes, at: int) -> int:
    return at + 1 if data[at] >= 0x80 else walk(data, at + 1)


def _after_array(element: int | _Walk, is_compact: bool, data: bytes, at: int) -> int:
    if is_compact:
        n, at = _varint(data, at)
        n -= 1
    else:
        n = int.from_bytes(data[at : at + 4], "big", signed=True)
        at += 4
    if n < -1 or n > len(data) - at:  # each element has a byte
        message = f"an array claims {n} elements in {len(data) - at} bytes"
        raise ValueError(message)
    if isinstance(element, int):
        return at + element * max(n, 0)
    for _ in range(n):
        at = element(data, at)
    return at


def _after_tags(data: bytes, at: int) -> int:
    if data[at] == 0:  # as in nearly all requests
        return at + 1
    n, at = _varint(data, at)
    for _ in range(n):
        _, at = _varint(data, at)
        size, at = _varint(data, at)
        at += size
    return at
