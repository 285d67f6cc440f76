"""Conditions on the columns of records, in the SQL of DuckDB, which parses and evaluates them.

Two things are easier to write than in DuckDB: `offset`, a reserved word of SQL, is a column; and a
word in double quotes that is no column is a text, because a shell takes the single quotes.  A
condition reads no file, opens no connection, loads no extension, and has no query within it.
"""

import json
import re
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from segmentlog.errors import OptionError

#: The column of causes, as `segmentlog.read` names it.
CAUSE = "undecodable"

COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers", CAUSE)

_MOST_CHARACTERS = 10_000
_MEMORY = "1GiB"
_MOST_NAMED = 20  #: columns and fields in an error

#: Functions whose results may be larger than their arguments by any factor: DuckDB's limit of
#: memory does not hold for them.
_OF_ANY_SIZE = frozenset(
    [
        "array_resize",
        "bar",
        "bitstring",
        "format",
        "generate_series",
        "list_resize",
        "lpad",
        "printf",
        "range",
        "repeat",
        "rpad",
        "to_base",
    ]
)

_ROW = "row number"  #: a name that no column has
_QUERY = b"SELECT 1 FROM rows WHERE ("
_IN_QUOTES = re.compile(rb'"((?:[^"]|"")*)"')

_TIME = r"TIMESTAMP(?: WITH TIME ZONE|_[A-Z]+)?"
_NUMBER = r"(?:INTEGER|BIGINT|HUGEINT|DOUBLE|DECIMAL|FLOAT)"
#: In what DuckDB says if a time is compared with a number.
_TIME_AND_NUMBER = re.compile(rf"{_TIME}\b.*\b{_NUMBER}|\b{_NUMBER}.*\b{_TIME}\b")
_OF_TIMES = (
    ": compare a time with a text in UTC, such as timestamp >= '2025-10-09 08:00', or its "
    "milliseconds with a number: epoch_ms(timestamp) >= 1760000000000"
)

#: Times that DuckDB has.
_LEAST_MS, _MOST_MS = -(2**53), 2**53


class Condition:
    """A condition, parsed.

    `text`: in SQL.  `columns`: those of `COLUMNS` that it names.  `decoded`: the columns of which
    it names fields.  Raises `OptionError` if it is none.
    """

    def __init__(self, text: str) -> None:
        self._given = text
        try:
            import duckdb
        except ModuleNotFoundError:
            needs = "it needs the package duckdb: pip install duckdb"
            raise OptionError("--where", text, needs) from None
        self._errors = (duckdb.Error, pa.ArrowException)
        if len(text) > _MOST_CHARACTERS:
            raise self._refused(f"it has more than {_MOST_CHARACTERS} characters")
        config: dict[str, Any] = {
            "enable_external_access": "false",
            "autoload_known_extensions": "false",
            "autoinstall_known_extensions": "false",
            "memory_limit": _MEMORY,
            "threads": "1",
        }
        self._connection = duckdb.connect(":memory:", config=config)
        for setting in (
            "python_enable_replacements = false",
            "TimeZone = 'UTC'",
            "lock_configuration = true",
        ):
            self._connection.execute(f"SET GLOBAL {setting}")  # for the cursors of threads, too
        # A connection answers one thread at a time: each has a cursor of its own, which it makes
        # of the connection under the lock.
        self._lock, self._cursors = threading.Lock(), threading.local()
        try:
            data = text.encode()
            tokens = [at for at, _ in duckdb.tokenize(text)]
            self._text = _with_offset(data, tokens).decode()
            names = self._names()
        except (*self._errors, UnicodeError, RecursionError) as error:
            raise self._refused(_reason(error)) from None
        self.columns = sorted({each[0] for each in names} & {*COLUMNS})
        self.decoded = sorted({each[0] for each in names if len(each) > 1} & {"key", "value"})
        if not self.columns:
            raise self._refused(f"it names no column: columns are {', '.join(COLUMNS)}")

    def _refused(self, reason: str) -> OptionError:
        return OptionError("--where", self._given, reason)

    def _names(self) -> list[list[str]]:
        """The names of columns with their fields; gives texts their quotes."""
        found, texts, begin = [], [], len(_QUERY)
        text = self._text.encode()
        query = _QUERY + text + b"\n)"
        parsed = self._connection.execute("SELECT json_serialize_sql(?)", [query.decode()])
        (answer,) = parsed.fetchone() or ("{}",)
        tree = json.loads(answer)
        if tree.get("error"):
            raise self._refused(str(tree["error_message"]))
        for node in _nodes(tree):
            kind = node.get("class")
            if kind in {"SUBQUERY", "STAR"}:
                raise self._refused("give a condition on columns, without a query within it")
            if str(node.get("function_name")).lower() in _OF_ANY_SIZE:
                name = node["function_name"]
                raise self._refused(f"the function {name} makes values of any size: leave it out")
            if kind != "COLUMN_REF":
                continue
            names, at = node["column_names"], node["query_location"] - begin
            has_place = 0 <= at < len(text)  # what DuckDB adds has none
            quoted = _IN_QUOTES.match(text, at) if has_place else None
            if quoted and len(names) == 1 and names[0].lower() not in COLUMNS:
                texts.append(quoted)
            else:
                found.append([names[0].lower(), *names[1:]])
        for each in sorted(texts, key=lambda found: -found.start()):
            literal = each[1].replace(b'""', b'"').replace(b"'", b"''")
            text = text[: each.start()] + b"'" + literal + b"'" + text[each.end() :]
        self._text = text.decode()
        return found

    def check(self, kinds: Mapping[str, pa.DataType]) -> None:
        """Refuse a condition that columns of these types cannot have."""
        if lacking := [name for name in self.columns if name not in kinds]:
            raise self._refused(f"give --decode for the column {lacking[0]}")
        needed = [pa.field(name, kinds[name]) for name in self.columns]
        empty = pa.Table.from_batches([], pa.schema([*needed, (_ROW, pa.int64())]))
        try:
            self._numbers(empty)
        except self._errors as error:
            known = ", ".join(_shown(kinds))
            raise self._refused(f"{_reason(error)}; columns are {known}") from None

    def holds(self, columns: Mapping[str, pa.Array]) -> pa.Array:
        """The numbers of the rows for which it is true."""
        named = {name: columns[name] for name in self.columns}
        n_rows = len(next(iter(named.values())))
        try:
            numbers = self._numbers(pa.table({**named, _ROW: pa.array(range(n_rows))}))
        except self._errors as error:
            raise self._refused(_reason(error)) from None
        return numbers

    def _numbers(self, rows: pa.Table) -> pa.Array:
        if not hasattr(self._cursors, "own"):
            with self._lock:
                self._cursors.own = self._connection.cursor()
        kept = self._cursors.own.from_arrow(rows).filter(self._text).project(f'"{_ROW}"')
        return pa.array(kept.fetchnumpy()[_ROW], pa.int64())


def times_of(milliseconds: pa.Array) -> pa.Array:
    """Timestamps as times; null for those that DuckDB lacks."""
    is_time = pc.and_(pc.greater(milliseconds, _LEAST_MS), pc.less(milliseconds, _MOST_MS))
    times = pc.if_else(is_time, milliseconds, pa.scalar(None, pa.int64()))
    return times.cast(pa.timestamp("ms", "UTC"))


def texts_of(data: pa.Array) -> pa.Array:
    """Bytes as text, with U+FFFD in place of what is not UTF-8."""
    try:
        return data.cast(pa.string())
    except pa.ArrowInvalid:
        found = [
            None if each is None else each.decode(errors="replace") for each in data.to_pylist()
        ]
        return pa.array(found, pa.string())


def _with_offset(text: bytes, tokens: list[int]) -> bytes:
    """A condition in which ``offset`` is a column."""
    for at in reversed(tokens):
        if re.match(rb"offset\b", text[at : at + 7], re.IGNORECASE):
            text = text[:at] + b'"offset"' + text[at + 6 :]
    return text


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401 - JSON
    """All objects of JSON."""
    todo = [tree]
    while todo:
        each = todo.pop()
        if isinstance(each, dict):
            yield each
            todo += each.values()
        elif isinstance(each, list):
            todo += each


def _shown(kinds: Mapping[str, pa.DataType]) -> list[str]:
    names = [
        found
        for name, kind in kinds.items()
        for found in (
            [f"{name}.{each.name}" for each in kind] if pa.types.is_struct(kind) else [name]
        )
    ]
    return names if len(names) <= _MOST_NAMED else [*names[:_MOST_NAMED], "…"]


def _reason(error: BaseException) -> str:
    """The first line of what DuckDB says, without the kind of its error."""
    if isinstance(error, RecursionError):
        return "it has too many levels"
    if isinstance(error, UnicodeError):
        return "it is not UTF-8"
    line = str(error).partition("\n")[0]
    reason = re.sub(r"^[A-Za-z ]+ Error: ", "", line).rstrip("!.")
    return reason + _OF_TIMES if _TIME_AND_NUMBER.search(reason) else reason
