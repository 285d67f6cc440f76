"""A table in any of its forms, as Arrow batches of the columns that name records.

Parquet, Delta and Iceberg are named by their paths, or given as the objects of pyarrow, deltalake
and pyiceberg.  Only the columns for topic, partition and offset are read.
"""

import importlib
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import fs

from segmentlog.audits.audit import Table
from segmentlog.errors import ColumnError, OptionError, SegmentLogError
from segmentlog.format.kernels.memory import Int64s
from segmentlog.model import TopicPartition

_DELTA, _ICEBERG = "delta:", "iceberg:"
#: One letter is a drive of Windows; ``file:/lake`` is how Hadoop writes a path.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_ACCEPTED = (
    "give a Parquet file or directory, the directory of a Delta table, the metadata file or the "
    "directory of an Iceberg table, iceberg:CATALOG/NAMESPACE.TABLE, or an object that has the "
    "rows in Arrow: a dataset, a table, a reader, a DeltaTable, a table of pyiceberg"
)
#: Names of files that ``pyarrow.dataset`` reads by another format than Parquet.
_FORMATS = {".arrow": "ipc", ".feather": "feather", ".orc": "orc", ".csv": "csv", ".json": "json"}
_BATCH_ROWS, _PAGES_BYTES = 1 << 17, 1 << 20  # of a Parquet file: decoded, and read at a time
_MOST_IN_TABLE = 1 << 20  # partitions: 8 MiB
_MOST_UNKNOWN = 1000  # partitions that the log lacks and whose rows are counted


class RowsOfTable(NamedTuple):
    """The columns of a table, and a function that reads some of them."""

    schema: pa.Schema
    read: Callable[[Sequence[str]], Iterable[pa.RecordBatch]]


def open_table(table: Table) -> RowsOfTable:
    """A table by its path, or an object with its rows.

    Raises `OptionError` if it is no table that can be read.
    """
    if isinstance(table, str | os.PathLike):
        path = os.fspath(table)
        with _failures_of(path, "opened as a table", f": {_ACCEPTED}"):
            opened = open_table(_at(path))
        return RowsOfTable(opened.schema, partial(_of_path, path, opened))
    if hasattr(table, "to_pyarrow_dataset"):  # of deltalake
        return _of_delta(table)
    if hasattr(table, "metadata_location") and hasattr(table, "scan"):  # of pyiceberg
        return RowsOfTable(
            table.schema().as_arrow(),
            lambda names: table.scan(selected_fields=tuple(names)).to_arrow_batch_reader(),
        )
    if isinstance(table, ds.Dataset):
        return RowsOfTable(table.schema, partial(_of_dataset, table))
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if isinstance(table, pa.Table):
        return RowsOfTable(table.schema, lambda names: table.select([*names]).to_batches())
    if hasattr(table, "__arrow_c_stream__"):
        table = pa.RecordBatchReader.from_stream(table)
        return RowsOfTable(table.schema, lambda names: (each.select([*names]) for each in table))
    if isinstance(table, Iterable):
        batches = iter(table)
        first = next(batches, None)
        if first is None:
            empty = pa.schema([(name, pa.int64()) for name in ("partition", "offset")])
            return RowsOfTable(empty, lambda _: ())
        if isinstance(first, pa.RecordBatch):
            return RowsOfTable(first.schema, lambda names: _selected(first, batches, names))
    raise OptionError("table", type(table).__name__, _ACCEPTED)


@contextmanager
def _failures_of(path: str, done: str, accepted: str = "") -> Iterator[None]:
    """Raise what is wrong with a table or with a file of it as an `OptionError` with its path."""
    try:
        yield
    except SegmentLogError:
        raise
    except Exception as error:  # deltalake and pyiceberg have errors of several bases
        package = type(error).__module__.partition(".")[0]
        is_about_it = isinstance(error, (OSError, ValueError, KeyError, pa.ArrowException))
        if not is_about_it and package not in ("deltalake", "pyiceberg"):
            raise
        reason = f"it cannot be {done} ({_in_a_line(error)}){accepted}"
        raise OptionError("table", path, reason) from error


def _of_path(path: str, opened: RowsOfTable, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    with _failures_of(path, "read"):
        yield from opened.read(names)


def _of_dataset(table: ds.Dataset, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a dataset, in memory that does not grow with its files.

    Arrow's scanner decodes whole row groups, and several of them at a time: of 20 million rows in
    row groups of a million it held 200 MB, and in one row group 600 MB.
    """
    # Only a private name tells whether `Dataset.filter` has left out rows.
    if getattr(table, "_scan_options", True):
        yield from table.to_batches(columns=[*names], batch_readahead=2, fragment_readahead=1)
        return
    for fragment in table.get_fragments():
        with _failures_of(getattr(fragment, "path", ""), "read"):
            if _is_plain(fragment, names):
                yield from _ahead(_of_parquet(fragment, names))
            else:
                yield from fragment.to_batches(
                    table.schema, columns=[*names], batch_readahead=2, fragment_readahead=1
                )


def _is_plain(fragment: ds.Fragment, names: Sequence[str]) -> bool:
    """Whether a Parquet file, which is not encrypted, has all columns itself."""
    if not isinstance(fragment, ds.ParquetFileFragment) or not fragment.path:
        return False
    options = fragment.format.default_fragment_scan_options
    is_open = getattr(options, "parquet_decryption_config", None) is None
    of_path = ds.get_partition_keys(fragment.partition_expression)
    return is_open and all(
        fragment.physical_schema.names.count(name) == 1 and name not in of_path for name in names
    )


def _of_parquet(
    fragment: ds.ParquetFileFragment, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    numbers = [each.id for each in fragment.row_groups]
    with (
        fragment.filesystem.open_input_file(fragment.path) as opened,
        pq.ParquetFile(opened, buffer_size=_PAGES_BYTES, pre_buffer=False) as file,
    ):
        for batch in file.iter_batches(_BATCH_ROWS, row_groups=numbers, columns=[*names]):
            yield batch.select([*names])


def _ahead(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches, each of them decoded while the one before is taken."""
    with ThreadPoolExecutor(1, "segmentlog-audit") as pool:
        waiting = pool.submit(next, batches, None)
        while (batch := waiting.result()) is not None:
            waiting = pool.submit(next, batches, None)
            yield batch


def _selected(
    first: pa.RecordBatch, batches: Iterator[pa.RecordBatch], names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    yield first.select([*names])
    for each in batches:
        yield each.select([*names])


def _in_a_line(error: BaseException) -> str:
    if isinstance(error, FileNotFoundError):  # pyarrow's has nothing but the path
        return "there is no such file or directory"
    return " ".join(str(error).split())[:300] or type(error).__name__


def _at(path: str) -> Table:
    if path.startswith(_ICEBERG):
        catalog, _, name = path.removeprefix(_ICEBERG).partition("/")
        return _needed("pyiceberg.catalog", "pyiceberg").load_catalog(catalog).load_table(name)
    if path.endswith(".metadata.json"):
        return _static(path)
    if path.startswith(_DELTA):
        return _needed("deltalake", "deltalake").DeltaTable(path.removeprefix(_DELTA))
    is_url = _URL.match(path)
    files, inner = fs.FileSystem.from_uri(path) if is_url else (fs.LocalFileSystem(), path)
    if _kind(files, f"{inner}/metadata") == fs.FileType.Directory:
        return _static(_newest_metadata(path, files, inner))
    if _kind(files, f"{inner}/_delta_log") == fs.FileType.Directory:
        return _needed("deltalake", "deltalake").DeltaTable(path)
    kind = _FORMATS.get(os.path.splitext(path)[1], "parquet")
    return ds.dataset(path, format=kind, partitioning="hive")


def _static(metadata: str) -> Table:
    return _needed("pyiceberg.table", "pyiceberg").StaticTable.from_metadata(metadata)


def _kind(files: fs.FileSystem, path: str) -> fs.FileType:
    return files.get_file_info(path).type


def _newest_metadata(path: str, files: fs.FileSystem, inner: str) -> str:
    """The metadata of an Iceberg table in a directory, which no catalog has named."""
    if _kind(files, f"{inner}/metadata/version-hint.text") == fs.FileType.File:
        return path  # pyiceberg follows it
    listed = files.get_file_info(fs.FileSelector(f"{inner}/metadata"))
    names = [each.base_name for each in listed if each.base_name.endswith(".metadata.json")]
    if len(names) != 1:
        reason = (
            f"it has {len(names)} metadata files, and only its catalog knows which one is the "
            "table: give the metadata file, or iceberg:CATALOG/NAMESPACE.TABLE"
        )
        raise OptionError("table", path, reason)
    return f"{path.rstrip('/')}/metadata/{names[0]}"


def _needed(module: str, package: str) -> Any:  # noqa: ANN401 - a package without types
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        reason = f"the package {package} reads it, and is missing: pip install {package}"
        raise OptionError("table", package, reason) from error


def _of_delta(table: Any) -> RowsOfTable:  # noqa: ANN401 - a package without types
    try:
        return open_table(table.to_pyarrow_dataset())
    except Exception as error:  # deletion vectors, renamed columns: features of newer tables
        if type(error).__name__ != "DeltaProtocolError":
            raise
    schema = pa.schema(table.schema().to_arrow())

    def read(names: Sequence[str]) -> Iterable[pa.RecordBatch]:
        query = _needed("deltalake", "deltalake").QueryBuilder().register("rows", table)
        listed = ", ".join('"{}"'.format(name.replace('"', '""')) for name in names)
        stream = query.execute(f"SELECT {listed} FROM rows")
        batches: Iterable[pa.RecordBatch] = pa.RecordBatchReader.from_stream(stream)
        return batches

    return RowsOfTable(schema, read)


class Columns(NamedTuple):
    """The columns that name the record of a row; `topic` is None if there is no such column."""

    partition: str
    offset: str
    topic: str | None

    @classmethod
    def of(
        cls, schema: pa.Schema, partition: str, offset: str, topic: str | None, n_topics: int
    ) -> "Columns":
        """The columns of a table, found by their names.

        `topic`: None for the column ``topic``, if the table has it.  `n_topics`: of the log that
        is audited.  Raises `ColumnError` if a column is missing, or has a type that is no number.
        """
        found = [
            _find(schema, "partition_column", partition),
            _find(schema, "offset_column", offset),
        ]
        for name in found:
            kind = schema.field(name).type
            kind = kind.value_type if pa.types.is_dictionary(kind) else kind
            if not (_is_whole(kind) or _is_text(kind)):
                raise ColumnError(name, str(kind), "give a column of whole numbers")
        if topic is not None or "topic" in schema.names:
            found.append(_find(schema, "topic_column", topic or "topic"))
            kind = schema.field(found[-1]).type
            kind = kind.value_type if pa.types.is_dictionary(kind) else kind
            if not _is_text(kind):
                raise ColumnError(found[-1], str(kind), "give a column with names of topics")
            return cls(found[0], found[1], found[2])
        if n_topics > 1:
            accepted = (
                f"{n_topics} topics are audited: name the column with topic_column, or one topic; "
                f"the table has {_listed(schema)}"
            )
            raise ColumnError("topic", "missing", accepted)
        return cls(found[0], found[1], None)

    @property
    def names(self) -> list[str]:
        """The names, each once."""
        return [*dict.fromkeys(name for name in self if name is not None)]


def _is_whole(kind: pa.DataType) -> bool:
    is_ = pa.types
    return bool(is_.is_integer(kind) or is_.is_decimal(kind) or is_.is_floating(kind))


def _is_text(kind: pa.DataType) -> bool:
    is_ = pa.types
    return bool(is_.is_string(kind) or is_.is_large_string(kind) or is_.is_string_view(kind))


def _listed(schema: pa.Schema) -> str:
    return ", ".join(map(repr, schema.names)) or "no columns"


def _find(schema: pa.Schema, option: str, name: str) -> str:
    """The column of a name, perhaps in other capitals, as SQL finds it."""
    names: list[str] = schema.names
    alike = [each for each in names if each.lower() == name.lower()]
    found = [each for each in names if each == name] or alike
    if len(found) == 1:
        return found[0]
    value = "missing" if not found else "present more than once"
    flag = f"--{option.replace('_', '-')}"
    accepted = f"the table has {_listed(schema)}: name it with {option} ({flag})"
    raise ColumnError(name, value, accepted)


class RowCounts:
    """What was found in a table beside the offsets of the partitions that are audited."""

    def __init__(self) -> None:
        self.n_rows = 0
        self.n_of_other_topics = 0
        self.n_without_offset = 0  # a null in one of the columns
        self.of_unknown_partitions: dict[TopicPartition, int] = {}

    def add_unknown(self, unknown: Iterable[tuple[TopicPartition, int]]) -> None:
        """Count rows of partitions that the log lacks, up to `_MOST_UNKNOWN` partitions."""
        found = self.of_unknown_partitions
        for each, n_rows in unknown:
            if each in found or len(found) < _MOST_UNKNOWN:
                found[each] = found.get(each, 0) + n_rows

    def add(self, other: "RowCounts") -> None:
        """Count the rows of another part of the table, too."""
        self.n_rows += other.n_rows
        self.n_of_other_topics += other.n_of_other_topics
        self.n_without_offset += other.n_without_offset
        self.add_unknown(other.of_unknown_partitions.items())


class TakesOffsets(Protocol):
    """Where the offsets of rows go: `TableOffsets`, or an `OffsetCollector`."""

    def add(self, codes: Int64s, offsets: Int64s) -> None:
        """Take rows, by the numbers of their partitions; there may be none."""


class RowCollector:
    """Gives the offsets of rows to `to`, by the numbers of their partitions, and counts the rest.

    `codes`: numbers of the partitions that are audited.  `others`: partitions that the log has,
    and that are not audited; their rows are not counted.
    """

    def __init__(
        self,
        columns: Columns,
        codes: Mapping[TopicPartition, int],
        others: Collection[TopicPartition],
        to: TakesOffsets,
    ) -> None:
        self._columns, self._to = columns, to
        topics = dict.fromkeys(each.topic for each in codes)
        self._known = {topic: _Lookup(topic, codes, others) for topic in topics}
        self.counts = RowCounts()

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows.

        Raises `ColumnError` if a value is no whole number.
        """
        columns, counts = self._columns, self.counts
        counts.n_rows += batch.num_rows
        if not batch.num_rows:
            return
        given = [batch.column(batch.schema.names.index(name)) for name in columns if name]
        if any(each.null_count for each in given):
            is_whole = pc.is_valid(given[0])
            for each in given[1:]:
                is_whole = pc.and_(is_whole, pc.is_valid(each))
            given = [each.filter(is_whole) for each in given]
            counts.n_without_offset += batch.num_rows - len(given[0])
        partitions = _numbers(columns.partition, given[0])
        offsets = _numbers(columns.offset, given[1])
        if columns.topic is None:
            for lookup in self._known.values():  # of the only topic
                self._add(lookup, partitions, offsets)
            return
        names = _decoded(given[2]).cast(pa.string()).dictionary_encode()
        which = names.indices.to_numpy()
        for i, topic in enumerate(names.dictionary.to_pylist()):
            is_its = which == i
            if topic not in self._known:
                counts.n_of_other_topics += int(is_its.sum())
            elif len(names.dictionary) == 1:
                self._add(self._known[topic], partitions, offsets)
            else:
                self._add(self._known[topic], partitions[is_its], offsets[is_its])

    def _add(self, lookup: "_Lookup", partitions: Int64s, offsets: Int64s) -> None:
        """Add rows of one topic."""
        if not len(partitions):
            return
        codes = lookup.of(partitions)
        if codes.min() < 0:
            self._count_unknown(lookup.topic, partitions[codes == lookup.UNKNOWN])
            is_audited = codes >= 0
            codes, offsets = codes[is_audited], offsets[is_audited]
        self._to.add(codes, offsets)

    def _count_unknown(self, topic: str, partitions: Int64s) -> None:
        values, numbers = np.unique(partitions, return_counts=True)
        self.counts.add_unknown(
            (TopicPartition(topic, partition), n_rows)
            for partition, n_rows in zip(values.tolist(), numbers.tolist(), strict=True)
        )


class _Lookup:
    """The numbers of the partitions of a topic."""

    UNKNOWN, OTHER = -1, -2

    def __init__(
        self, topic: str, codes: Mapping[TopicPartition, int], others: Collection[TopicPartition]
    ) -> None:
        self.topic = topic
        of_topic = {each.partition: code for each, code in codes.items() if each.topic == topic}
        of_topic |= {each.partition: self.OTHER for each in others if each.topic == topic}
        self._known: Int64s = np.array(sorted(of_topic), np.int64)
        self._codes: Int64s = np.array([of_topic[each] for each in sorted(of_topic)], np.int64)
        # Rows are looked up in a table, unless a directory has the name of a partition that no
        # topic has.
        is_small = self._known < _MOST_IN_TABLE
        size = int(self._known[is_small].max(initial=0)) + 1
        self._table: Int64s = np.full(size, self.UNKNOWN, np.int64)
        self._table[self._known[is_small]] = self._codes[is_small]

    def of(self, partitions: Int64s) -> Int64s:
        """The number of each, or what it is instead."""
        if partitions.min() >= 0 and partitions.max() < len(self._table):
            return self._table[partitions]
        at = np.minimum(self._known.searchsorted(partitions), len(self._known) - 1)
        return np.where(self._known[at] == partitions, self._codes[at], self.UNKNOWN)


def _decoded(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _numbers(name: str, column: pa.Array) -> Int64s:
    """A column without nulls as int64.

    Raises `ColumnError` for a value that is no whole number of 64 bits.
    """
    column = _decoded(column)
    if pa.types.is_string_view(column.type):
        column = column.cast(pa.string())
    try:
        numbers: Int64s = column.cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid as error:
        accepted = f"its values must be whole numbers of 64 bits ({_in_a_line(error)})"
        raise ColumnError(name, str(column.type), accepted) from error
    return numbers
