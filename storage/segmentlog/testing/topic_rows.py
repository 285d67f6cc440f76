"""The records of a topic as a test looks at them, and assertions that show a difference well."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from difflib import ndiff
from typing import Any, Protocol, TypeAlias

import pyarrow as pa


class _DataFrame(Protocol):
    """A DataFrame of Spark."""

    def collect(self) -> list[Any]: ...


#: Rows in any of the forms that `assert_rows` takes.
Rows: TypeAlias = "TopicRows | _DataFrame | pa.Table | Iterable[Mapping[str, Any]]"

_MOST_SHOWN = 40  #: rows of a difference


class TopicRows:
    """Records of a topic, by partition and offset.

    Attributes
    ----------
    table : pyarrow.Table
        All columns of a read, ``headers`` last.
    """

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __repr__(self) -> str:
        shown = TopicRows(self.table.slice(0, _MOST_SHOWN)).rows()
        return "\n".join([f"{len(self)} records", *map(_line, shown)])

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The table, for any library with Arrow's capsule interface."""
        return self.table.__arrow_c_stream__(requested_schema)

    def rows(self, *columns: str) -> list[dict[str, Any]]:
        """A dictionary for each record: bytes become strings, and objects and arrays of JSON.

        Parameters
        ----------
        columns : names of columns; by default ``key`` and ``value``.
        """
        names = list(columns or ("key", "value"))
        return [readable(row) for row in self.table.select(names).to_pylist()]

    def keys(self) -> list[Any]:
        """The key of each record."""
        return [row["key"] for row in self.rows("key")]

    def values(self) -> list[Any]:
        """The value of each record."""
        return [row["value"] for row in self.rows("value")]


def readable(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with keys, values and headers as strings, and with parsed JSON.

    A text is parsed if it is an object or an array of JSON.  Bytes that are not UTF-8 stay bytes.
    """
    found = dict(row)
    for name in ("key", "value"):
        if name in found:
            found[name] = _parsed(_text(found[name]))
    if found.get("headers") is not None:
        found["headers"] = [(each["key"], _text(each["value"])) for each in found["headers"]]
    return found


def _text(value: object) -> object:
    if not isinstance(value, bytes | bytearray):
        return value
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        return bytes(value)


def _parsed(value: object) -> object:
    if not isinstance(value, str) or value[:1] not in {"{", "["}:
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def assert_rows(actual: Rows, expected: Rows, *, ordered: bool = False) -> None:
    """Compare rows, and show those that are missing and those that are too many.

    Rows are compared by the columns that the expected rows name.  Keys and values are compared as
    `readable` shows them.

    ::

        assert_rows(kafka_log.read("totals"), [{"key": "a", "value": {"n": 3}}])

    Parameters
    ----------
    actual, expected : `TopicRows`, tables of pyarrow, DataFrames of Spark, or dictionaries.
    ordered : whether the order matters.

    Raises
    ------
    AssertionError
        With a line for each row that differs.
    """
    wanted = _dictionaries(expected)
    names = list(dict.fromkeys(name for row in wanted for name in row))
    found = _dictionaries(actual, names)
    left = [_line(_chosen(row, names)) for row in found]
    right = [_line(_chosen(row, names)) for row in wanted]
    if (left == right) if ordered else (Counter(left) == Counter(right)):
        return
    raise AssertionError(_difference(left, right))


def _chosen(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: row[name] for name in names if name in row} if names else dict(row)


def _dictionaries(rows: Rows, names: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Rows as dictionaries, with the columns `names` if the form has columns."""
    if isinstance(rows, TopicRows):
        rows = rows.table
    if isinstance(rows, pa.Table):
        chosen = [name for name in rows.schema.names if not names or name in names]
        return [readable(row) for row in rows.select(chosen).to_pylist()]
    if isinstance(rows, Iterable):
        return [readable(row) for row in rows]
    return [readable(row.asDict(recursive=True)) for row in rows.collect()]


def _line(row: Mapping[str, Any]) -> str:
    return "  ".join(f"{name}={value!r}" for name, value in row.items())


def _difference(actual: Sequence[str], expected: Sequence[str]) -> str:
    """Lines with ``-`` for rows that are missing, ``+`` for rows too many."""
    is_order = Counter(actual) == Counter(expected)
    lines = [f"{len(actual)} rows, {len(expected)} expected"]
    if is_order:
        lines[0] = f"the {len(actual)} expected rows, in another order"
    lines.append("- missing   + too many")
    compared = (expected, actual) if is_order else (sorted(expected), sorted(actual))
    shown = [each for each in ndiff(*compared) if each[0] in "-+"]
    lines += [each.rstrip("\n") for each in shown[:_MOST_SHOWN]]
    if len(shown) > _MOST_SHOWN:
        lines.append(f"and {len(shown) - _MOST_SHOWN} more lines")
    return "\n".join(lines)
