"""Records as a test gives them: dictionaries, rows of Spark, values alone, what pandas has."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from segmentlog.arguments import whole_number
from segmentlog.errors import OptionError
from segmentlog.model import LARGEST_LONG
from segmentlog.testing.reference import murmur2
from segmentlog.times import epoch_milliseconds

#: A key, a value or the value of a header: dictionaries and lists become JSON.
Content: TypeAlias = str | bytes | Mapping[str, Any] | Sequence[Any] | None

#: Headers of a record: a dictionary, or pairs where a name comes twice; or what Spark and pyarrow
#: have for pairs, rows and dictionaries of ``key`` and ``value``.
Headers: TypeAlias = Mapping[str, Content] | Iterable[tuple[str, Content] | Mapping[str, Content]]

#: A record: a dictionary with some of the names in `_FIELDS`, or the value alone.
NewRow: TypeAlias = Mapping[str, Any] | str | bytes | None

_MOST_MS = LARGEST_LONG // 1000  #: timestamps are written in microseconds

_FIELDS = ("key", "value", "headers", "timestamp", "partition")


class NewRecord(NamedTuple):
    """A record that is yet to get its offset."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]
    timestamp_ms: int


#: Calls that give the records of a table of Spark, pyarrow, polars and pandas, by its methods.
_OF_TABLES = {
    "toPandas": ".collect()",
    "to_pylist": ".to_pylist()",
    "to_dicts": ".to_dicts()",
    "to_dict": ".to_dict('records')",
}


def _listed(records: Any) -> Iterable[NewRow]:  # noqa: ANN401
    """Records, but no single one, and no table: they would fall into their parts."""
    kind = type(records).__name__
    if records is None or isinstance(records, str | bytes | bytearray | memoryview | Mapping):
        raise OptionError("records", kind, "give a list of records, also of one: [record]")
    if _as_dictionary(records) is not None:
        raise OptionError("records", kind, "give a list of records, also of one: [record]")
    if hasattr(records, "columns") or hasattr(records, "schema"):
        how = next((how for name, how in _OF_TABLES.items() if hasattr(records, name)), "")
        accepted = f"give a list of records: rows{how}" if how else "give a list of records"
        raise OptionError("records", kind, accepted)
    if not isinstance(records, Iterable):
        raise OptionError("records", kind, "give a list of records")
    return records


def _as_dictionary(given: object) -> dict[str, Any] | None:
    """A row of Spark, a named tuple or a data class as a dictionary; None for anything else."""
    for name in ("asDict", "_asdict"):
        if isinstance(given, tuple) and hasattr(given, name):
            found: dict[str, Any] = getattr(given, name)()
            return found
    if is_dataclass(given) and not isinstance(given, type):
        return {field.name: getattr(given, field.name) for field in fields(given)}
    return None


def _is_missing(value: object) -> bool:
    """Whether it is None, or what pandas and numpy have for a missing value: NaN, NaT or NA."""
    if value is None or isinstance(value, str | bytes | Mapping | list | tuple):
        return value is None
    try:
        return bool(value != value)  # NaN and NaT are not equal to themselves
    except (TypeError, ValueError):
        return type(value).__name__ == "NAType"


def fields_of(given: NewRow) -> dict[str, Any]:
    """The fields of a record that were given."""
    found = _as_dictionary(given)
    given = given if found is None else found
    if isinstance(given, tuple):
        accepted = "a tuple may be meant as key and value: give {'key': …, 'value': …}, or a list "
        raise OptionError("records", repr(given), f"{accepted}for an array of JSON")
    if not isinstance(given, Mapping):
        return {"value": given}
    for name in given:
        if name not in _FIELDS:
            accepted = f"a record has {', '.join(_FIELDS)}; to write this as JSON, "
            raise OptionError("records", str(name), f"{accepted}give {{'value': {{…}}}}")
    return {name: value for name, value in given.items() if not _is_missing(value)}


def record_of(fields: Mapping[str, Any], now_ms: int) -> tuple[int | None, NewRecord]:
    """The partition that a record names, and the record."""
    stamp, partition = fields["timestamp"], fields["partition"]
    time_ms = now_ms if stamp is None else epoch_milliseconds("timestamp", stamp)
    if time_ms > _MOST_MS:
        raise OptionError("timestamp", str(stamp), "give a time that microseconds can hold")
    record = NewRecord(
        _bytes("key", fields.get("key")),
        _bytes("value", fields.get("value")),
        () if fields["headers"] is None else tuple(_headers(fields["headers"])),
        time_ms,
    )
    return None if partition is None else whole_number("partition", partition), record


def _headers(given: Any) -> Iterator[tuple[bytes, bytes | None]]:  # noqa: ANN401
    """Names and values; a text is no pair, even if it has two letters."""
    pairs: Any = given.items() if isinstance(given, Mapping) else given
    accepted = "give a dictionary, or a list of pairs: [('name', 'value')]"
    if isinstance(pairs, str | bytes) or not isinstance(pairs, Iterable):
        raise OptionError("headers", repr(given), accepted)
    for each in pairs:
        is_struct = isinstance(each, Mapping) and {*each} == {"key", "value"}
        pair = (each["key"], each["value"]) if is_struct else each
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise OptionError("headers", repr(each), accepted)
        name, value = pair
        if not isinstance(name, str | bytes):
            raise OptionError("headers", repr(name), "the name of a header is a string")
        yield _bytes("headers", name) or b"", _bytes("headers", value)


def _bytes(name: str, content: Content) -> bytes | None:
    content = _plain(content)
    if _is_missing(content):
        return None
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    try:
        is_text = isinstance(content, str)
        text = content if is_text else json.dumps(_without_missing(content), allow_nan=False)
        return str(text).encode()
    except (TypeError, ValueError, RecursionError):
        accepted = "give bytes, a string, None, or what JSON can hold"
        raise OptionError(name, repr(content), accepted) from None


def _plain(content: Any) -> Any:  # noqa: ANN401
    """What Python has for a scalar of numpy or pyarrow, or an array of numpy."""
    if isinstance(content, pa.Scalar):
        return content.as_py()
    # Times are left as they are: numpy makes some of them numbers.
    is_of_numpy = isinstance(content, np.generic | np.ndarray)
    return content.tolist() if is_of_numpy and content.dtype.kind not in "mM" else content


def _without_missing(content: object) -> object:
    """Content for JSON, which has null alone for what is missing."""
    content = _plain(content)
    if isinstance(content, Mapping):
        return {name: _without_missing(each) for name, each in content.items()}
    if isinstance(content, list | tuple):
        return [_without_missing(each) for each in content]
    return None if _is_missing(content) else content


def by_partition(
    topic: str, records: Iterable[NewRow], own: Mapping[str, Any], n_partitions: int
) -> dict[int, list[NewRecord]]:
    """Records by their partitions; those without a key belong to the first."""
    found: dict[int, list[NewRecord]] = {}
    now_ms = int(time.time() * 1000)
    if own["headers"] is not None:  # an iterator has them once, and each record needs them
        own = {**own, "headers": list(_headers(own["headers"]))}
    for each in _listed(records):
        named, record = record_of({**own, **fields_of(each)}, now_ms)
        if named is None:
            key = record.key
            named = 0 if key is None else (murmur2(key) & 0x7FFFFFFF) % n_partitions
        if not 0 <= named < n_partitions:
            accepted = f"{topic} has 0 to {n_partitions - 1}: give num_partitions"
            raise OptionError("partition", str(named), accepted)
        found.setdefault(named, []).append(record)
    return dict(sorted(found.items()))


def to_table(found: Mapping[int, Sequence[NewRecord]]) -> pa.Table:
    """The columns of a writer, made of buffers: `pyarrow.array` would import pandas."""
    records = [record for part in found.values() for record in part]
    pairs = [pair for record in records for pair in record.headers]
    header = [_binary([pair[0] for pair in pairs]), _binary([pair[1] for pair in pairs])]
    kind = pa.struct([("key", pa.binary()), ("value", pa.binary())])
    headers = [
        pa.py_buffer(np.packbits([bool(each.headers) for each in records], bitorder="little")),
        _ends([each.headers for each in records]),
    ]
    structs = pa.Array.from_buffers(kind, len(pairs), [None], children=header)
    partitions = np.repeat(np.array([*found], np.int32), [*map(len, found.values())])
    times = np.array([1000 * each.timestamp_ms for each in records], np.int64)
    columns = {
        "key": _binary([each.key for each in records]),
        "value": _binary([each.value for each in records]),
        "headers": pa.Array.from_buffers(
            pa.list_(kind), len(records), headers, children=[structs]
        ),
        "partition": pa.Array.from_buffers(
            pa.int32(), len(records), [None, pa.py_buffer(partitions)]
        ),
        "timestamp": pa.Array.from_buffers(
            pa.timestamp("us", "UTC"), len(records), [None, pa.py_buffer(times)]
        ),
    }
    return pa.table(columns)


def _ends(values: Sequence[Sequence[object]]) -> pa.Buffer:
    return pa.py_buffer(np.cumsum([0, *map(len, values)], dtype=np.int32))


def _binary(values: Sequence[bytes | None]) -> pa.Array:
    is_valid = np.array([each is not None for each in values], bool)
    data = [each or b"" for each in values]
    bitmap = pa.py_buffer(np.packbits(is_valid, bitorder="little"))
    buffers = [bitmap, _ends(data), pa.py_buffer(b"".join(data))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)
