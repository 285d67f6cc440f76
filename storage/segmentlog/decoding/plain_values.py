"""Decoded values as JSON has them.

Times are those of ISO 8601, or their numbers if no calendar has them.  Decimals are texts, because
a number of JSON would lose digits; so are numbers that are none.  Durations are seconds, as in
protobuf's JSON: ``1.5s``.
"""

import math
from collections.abc import Callable
from datetime import date, datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa

_UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_EPOCH = datetime(1970, 1, 1)


def plain_values(column: pa.Array) -> list[Any]:
    """Each value as JSON has it; None for null."""
    shown = _or_null(_shown_as(column.type))
    return [*map(shown, column.cast(_as_numbers(column.type)).to_pylist())]


def _as_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _time(unit: str, zone: str, number: int, *, is_of_day: bool = False) -> str | int:
    """A number of a unit since 1970, or since midnight."""
    whole, fraction = divmod(number, _UNITS[unit])
    digits = f".{fraction:0{len(str(_UNITS[unit])) - 1}d}" if unit != "s" else ""
    try:
        at = _EPOCH + timedelta(seconds=whole)
    except OverflowError:
        return number
    return f"{(at.time() if is_of_day else at).isoformat()}{digits}{zone}"


def _duration(unit: str, number: int) -> str:
    whole, fraction = divmod(abs(number), _UNITS[unit])
    digits = f"{fraction:0{len(str(_UNITS[unit])) - 1}d}".rstrip("0") if fraction else ""
    return f"{'-' * (number < 0)}{whole}{'.' * bool(digits)}{digits}s"


def _day(number: int) -> str | int:
    try:
        return (date(1970, 1, 1) + timedelta(days=number)).isoformat()
    except OverflowError:
        return number


def _number(number: float) -> float | str:
    return number if math.isfinite(number) else str(number)


def _as_numbers(kind: pa.DataType) -> pa.DataType:
    """The type with numbers for times: Python has not all of them."""
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([each.with_type(_as_numbers(each.type)) for each in kind])
    if types.is_map(kind):
        return pa.map_(kind.key_type, _as_numbers(kind.item_type))
    if types.is_list(kind):
        return pa.list_(_as_numbers(kind.value_type))
    if types.is_timestamp(kind) or types.is_time64(kind) or types.is_duration(kind):
        return pa.int64()
    return pa.int32() if types.is_date32(kind) or types.is_time32(kind) else kind


def _shown_as(kind: pa.DataType) -> Callable[[Any], Any]:
    """The function from a value of Python, not null, to what JSON has."""
    types = pa.types
    if types.is_struct(kind):
        parts = {each.name: _or_null(_shown_as(each.type)) for each in kind}
        return lambda value: {name: show(value[name]) for name, show in parts.items()}
    if types.is_map(kind):
        item = _or_null(_shown_as(kind.item_type))
        return lambda value: {str(name): item(each) for name, each in value}
    if types.is_list(kind):
        item = _or_null(_shown_as(kind.value_type))
        return lambda value: [*map(item, value)]
    if types.is_timestamp(kind):
        return partial(_time, kind.unit, "Z" if kind.tz else "")
    if types.is_time(kind):
        return partial(_time, kind.unit, "", is_of_day=True)
    if types.is_date(kind):
        return _day
    if types.is_duration(kind):
        return partial(_duration, kind.unit)
    if types.is_floating(kind):
        return _number
    if types.is_decimal(kind):
        return str
    return _as_text if "binary" in str(kind) else lambda value: value


def _or_null(show: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else show(value)
