"""Decoded keys and values as JSON, and those that cannot be decoded as their bytes, marked.

Times are those of ISO 8601, or their numbers if no calendar has them.  Decimals are texts, because
a number of JSON would lose digits; so are numbers that are none.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from segmentlog.declared import those_of
from segmentlog.model import OnCorruptBatch, OnUndecodable
from segmentlog.read_options import DECODES, DecodeOptions
from segmentlog.reads.log_directory import LogDirectory
from segmentlog.tools.output import as_text, to_json

if TYPE_CHECKING:
    from segmentlog.decoding.rows import Decoding

_UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_EPOCH = datetime(1970, 1, 1)

#: Names of the flags, in the order of help texts.
FLAGS = DECODES

#: The column of causes of a column.
CAUSE_OF = {name: f"{name} undecodable" for name in ("key", "value")}


def decoding_of(
    given: Mapping[str, Any], directory: LogDirectory, topics: Sequence[str]
) -> "Decoding | None":
    """What the flags ask for; `topics`: those that are read."""
    if all(given[name] is None for name in DECODES):
        return None
    from segmentlog.decoding.rows import Decoding

    options = those_of(DecodeOptions, given)
    options["on_undecodable"] = OnUndecodable.NULL
    return Decoding.of_read(options, topics, partial(_schemas, directory))


def _schemas(directory: LogDirectory) -> pa.Table:
    from segmentlog.kafka_tables.open_table import table

    newest = directory.refresh(log_ends=True)
    return table(newest.whole, "schemas", on_corrupt_batch=OnCorruptBatch.SKIP)


def with_json(rows: pa.RecordBatch, decoding: "Decoding") -> pa.RecordBatch:
    """Rows whose decoded columns are texts of JSON, and as bytes what cannot be decoded.

    A column `CAUSE_OF` each of them has the cause, or null.
    """
    for name, (texts, causes) in json_by_column(rows, decoding).items():
        at = rows.schema.get_field_index(name)
        for row, cause in enumerate(causes):
            if cause is not None:
                texts[row] = rows.column(at)[row].as_py()
        rows = rows.set_column(at, pa.field(name, pa.binary()), pa.array(texts, pa.binary()))
        rows = rows.append_column(CAUSE_OF[name], pa.array(causes, pa.string()))
    return rows


def json_by_column(
    rows: pa.RecordBatch, decoding: "Decoding"
) -> dict[str, tuple[list[bytes | None], list[str | None]]]:
    """Of each decoded column, each value as JSON, and why it could not be decoded."""
    return {
        name: (json_of(column), [causes.get(row) for row in range(len(rows))])
        for name, (column, causes) in decoding.each(rows).items()
    }


def n_undecodable(rows: pa.RecordBatch) -> int:
    """The rows of `with_json` that have a cause."""
    names = [name for name in CAUSE_OF.values() if name in rows.schema.names]
    masks = [rows.column(name).is_valid() for name in names]
    return int(pc.sum(reduce(pc.or_, masks)).as_py() or 0)


def json_of(column: pa.Array) -> list[bytes | None]:
    """Each value as JSON; None for null."""
    shown = _shown_as(column.type)
    found = column.cast(_as_numbers(column.type)).to_pylist()
    return [None if each is None else _text(shown(each)) for each in found]


def _text(value: object) -> bytes:
    return to_json(value).encode("utf-8", "surrogateescape")  # type: ignore[arg-type]


def _time(unit: str, zone: str, number: int, *, is_of_day: bool = False) -> str | int:
    """A number of a unit since 1970, or since midnight."""
    whole, fraction = divmod(number, _UNITS[unit])
    digits = f".{fraction:0{len(str(_UNITS[unit])) - 1}d}" if unit != "s" else ""
    try:
        at = _EPOCH + timedelta(seconds=whole)
    except OverflowError:
        return number
    return f"{(at.time() if is_of_day else at).isoformat()}{digits}{zone}"


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
    if types.is_timestamp(kind) or types.is_time64(kind):
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
    if types.is_floating(kind):
        return _number
    if types.is_decimal(kind):
        return str
    return as_text if "binary" in str(kind) else lambda value: value


def _or_null(show: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else show(value)
