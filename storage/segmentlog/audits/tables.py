"""What a table is: the files that have its rows, by the rules of its own format.

- Delta: the directory has ``_delta_log``, and the package `deltalake` reads it.
- Iceberg: the directory has ``metadata`` with metadata files.  Without a catalog, the rule of
  Iceberg's tables in directories holds (``HadoopTableOperations``): ``v<n>.metadata.json``, from
  the number in ``version-hint.text`` on, as far as the next number is there.
- Spark's file sink: ``_spark_metadata`` lists the files (``FileStreamSinkLog``).  A file that it
  does not list was left by a micro-batch that never ended.
- Other directories have the files whose names do not hide them, as Spark and Hive read them, and
  columns in the names of directories.  Each file has its own schema.

A place that shows another format, or part of a table, is refused.
"""

import importlib
import json
import os
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, NoReturn
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import fs

from segmentlog.audits.audit import Table
from segmentlog.audits.table_rows import Place, in_a_line, shown
from segmentlog.errors import OptionError, SegmentLogError
from segmentlog.store.readable import FileType, exists, list_entries

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

_SINK = "Spark's file sink"
#: Directories with the log of a table, by its format.
_LOGS = {"_delta_log": "Delta", "metadata": "Iceberg", "_spark_metadata": _SINK}
#: The same for formats that are not read here.
_OF_PAIMON = ("snapshot", "manifest", "schema")  # only together
_OF_OTHERS = {
    ".hoodie": "Hudi",
    "_versions": "Lance",
    "_transactions": "Lance",
    **dict.fromkeys(_OF_PAIMON),
}
_OF_HIVE = re.compile(r"(base|delta|delete_delta)_[0-9]+(_[0-9]+)*")
_OF_HADOOP = re.compile(r"v(0|[1-9][0-9]*)((?:\.gz)?\.metadata\.json|\.metadata\.json\.gz)")
_OF_CATALOG = re.compile(r"[0-9]+-.*\.metadata\.json(\.gz)?")
_HINT, _OLD_GZIP = "version-hint.text", ".metadata.json.gz"
_METADATA = (".metadata.json", _OLD_GZIP)
_OF_SINK = re.compile(r"([0-9]+)(\.compact)?")
_ATTEMPTS = 5  # a sink rarely removes a file of its log more often while it is read
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


class TablePart(NamedTuple):
    """Rows that have one schema: a file that has its own, or a whole table.

    `file`: named in errors; empty for a whole table.  `read`: the rows with at least the given
    columns.
    """

    schema: pa.Schema
    read: Callable[[Sequence[Place]], Iterable[pa.RecordBatch]]
    file: str = ""


def open_table(table: Table) -> Iterator[TablePart]:
    """A table by its path, or an object with its rows; files are opened one by one.

    Raises `OptionError` if it is no table that can be read, also while it is read.
    """
    is_path = isinstance(table, str | os.PathLike)
    name = os.fspath(table) if is_path else type(table).__name__
    if is_path and not str(name).strip():  # as a path, it would be the current directory
        raise OptionError("table", name, _ACCEPTED)
    with _failures_of(name, "opened as a table", f": {_ACCEPTED}"):
        parts = iter(_of_path(name) if is_path else _of_object(table))
    return _guarded(name, parts)


def _guarded(name: str, parts: Iterator[TablePart]) -> Iterator[TablePart]:
    """The same parts; what is wrong with one of them, or with its rows, is an `OptionError`."""

    def read(part: TablePart, places: Sequence[Place]) -> Iterator[pa.RecordBatch]:
        with _failures_of(part.file or name, "read"):
            yield from part.read(places)

    while True:
        with _failures_of(name, "read"):
            part = next(parts, None)
        if part is None:
            return
        yield part._replace(read=partial(read, part))


@contextmanager
def _failures_of(path: str, done: str, accepted: str = "") -> Iterator[None]:
    """Raise what is wrong with a table or with a file of it as an `OptionError` with its path."""
    try:
        yield
    except SegmentLogError:
        raise
    except Exception as error:  # deltalake and pyiceberg have errors of several bases
        is_of_package = _is_of_package(error)
        is_about_it = isinstance(
            error, (OSError, ValueError, KeyError, NotImplementedError, pa.ArrowException)
        )
        if not is_about_it and not is_of_package:
            raise
        if is_of_package and not isinstance(error, FileNotFoundError):
            accepted = f": {_ROWS}"
        reason = f"it cannot be {done} ({in_a_line(error)}){accepted}"
        raise OptionError("table", path, reason) from error


def _is_of_package(error: Exception) -> bool:
    """Whether the package that reads tables of a format has failed, with whatever error.

    Of damaged files it also lets errors through that its decoders meet: the end of a file, or
    those of a codec.
    """
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    modules = [type(error).__module__, *(str(each.f_globals.get("__name__")) for each in frames)]
    return any(
        each.partition(".")[0] in ("deltalake", "pyiceberg", "_internal") for each in modules
    )


def _of_object(table: Any) -> Iterable[TablePart]:  # noqa: ANN401 - of any of several packages
    if hasattr(table, "to_pyarrow_dataset"):  # of deltalake
        return [_of_delta(table)]
    if hasattr(table, "metadata_location") and hasattr(table, "scan"):  # of pyiceberg
        return [_of_iceberg(table)]
    if hasattr(table, "to_arrow_batch_reader"):  # a scan of pyiceberg: of a branch, or a snapshot
        table = table.to_arrow_batch_reader()
    if isinstance(table, ds.Dataset):
        return _of_dataset(table)
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if isinstance(table, pa.Table):
        return [TablePart(table.schema, lambda places: table.select(_heads(places)).to_batches())]
    if hasattr(table, "__arrow_c_stream__"):
        table = pa.RecordBatchReader.from_stream(table)
        return [TablePart(table.schema, lambda _: table)]
    if isinstance(table, Iterable) and not isinstance(table, Mapping):
        return _of_batches(iter(table))
    raise OptionError("table", type(table).__name__, _ACCEPTED)


def _of_batches(batches: Iterator[Any]) -> Iterator[TablePart]:
    for each in batches:
        if not isinstance(each, pa.RecordBatch):
            raise OptionError("table", f"an iterable of {type(each).__name__}", _ACCEPTED)
        yield TablePart(each.schema, partial(_itself, each))


def _itself(batch: pa.RecordBatch, _: Sequence[Place]) -> Iterable[pa.RecordBatch]:
    return [batch]


def _heads(places: Sequence[Place]) -> list[str]:
    return [*dict.fromkeys(each[0] for each in places)]


def _of_dataset(table: ds.Dataset) -> Iterator[TablePart]:
    """The rows of a dataset, in memory that does not grow with its files.

    Arrow's scanner decodes whole row groups, and several of them at a time: of 20 million rows in
    row groups of a million it held 200 MB, and in one row group 600 MB.
    """
    # Only a private name tells whether `Dataset.filter` has left out rows.
    if getattr(table, "_scan_options", True):
        yield TablePart(
            table.schema,
            lambda places: table.to_batches(
                columns=_heads(places), batch_readahead=2, fragment_readahead=1
            ),
        )
        return
    for fragment in table.get_fragments():
        path = getattr(fragment, "path", "")
        with _failures_of(path, "read"):
            inside = fragment.physical_schema
            # The schema of a dataset is that of its first file, unless somebody gave another:
            # the other files may have columns of their own.
            more = [each for each in inside if each.name not in table.schema.names]
            schema = pa.schema([*table.schema, *more])
            has_all = all(name in inside.names for name in table.schema.names)
            constants = ds.get_partition_keys(fragment.partition_expression)
            if has_all and not constants and _is_open(fragment):
                yield TablePart(inside, partial(_of_parquet, fragment), path)
            else:
                yield TablePart(schema, partial(_of_fragment, fragment, schema), path)


def _of_fragment(
    fragment: ds.Fragment, schema: pa.Schema, places: Sequence[Place]
) -> Iterable[pa.RecordBatch]:
    found: Iterable[pa.RecordBatch] = fragment.to_batches(
        schema, columns=_heads(places), batch_readahead=2, fragment_readahead=1
    )
    return found


def _is_open(fragment: ds.Fragment) -> bool:
    """Whether it is a Parquet file that is not encrypted."""
    if not isinstance(fragment, ds.ParquetFileFragment) or not fragment.path:
        return False
    options = fragment.format.default_fragment_scan_options
    return getattr(options, "parquet_decryption_config", None) is None


def _of_parquet(
    fragment: ds.ParquetFileFragment, places: Sequence[Place]
) -> Iterator[pa.RecordBatch]:
    numbers = [each.id for each in fragment.row_groups]
    with (
        fragment.filesystem.open_input_file(fragment.path) as opened,
        pq.ParquetFile(
            opened,
            buffer_size=_PAGES_BYTES,
            pre_buffer=False,
            # Spark's times: with nanoseconds, one after the year 2262 would be another one.
            coerce_int96_timestamp_unit="us",
        ) as file,
    ):
        names = [*dict.fromkeys(map(shown, places))]
        yield from _ahead(file.iter_batches(_BATCH_ROWS, row_groups=numbers, columns=names))


def _ahead(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches, each of them decoded while the one before is taken."""
    with ThreadPoolExecutor(1, "segmentlog-audit") as pool:
        waiting = pool.submit(next, batches, None)
        while (batch := waiting.result()) is not None:
            waiting = pool.submit(next, batches, None)
            yield batch


class _Tree:
    """A place in a file system, and what is there."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.files: fs.FileSystem = fs.LocalFileSystem()
        self.inner = path
        if _URL.match(path):
            self.files, self.inner = fs.FileSystem.from_uri(path)
        if isinstance(self.files, fs.LocalFileSystem):
            self.inner = os.path.realpath(self.inner)
        self.inner = self.inner.rstrip("/") or "/"

    def within(self, place: str, *, is_encoded: bool) -> str | None:
        """The path of a place below this one; empty for this one, None for one elsewhere.

        `place`: a path or a URL, as Hadoop writes it: it may have one scheme there (``s3a:``), and
        another one for Arrow (``s3:``).  `is_encoded`: whether the URL has escapes; those of
        Iceberg have none, whatever is in them.
        """
        scheme, server, path = "", "", place
        if _URL.match(place):
            scheme, _, path = place.partition(":")
            if path.startswith("//"):
                server, slash, path = path[2:].partition("/")
                path = slash + path
            path = unquote(path) if is_encoded else path
        path = path.rstrip("/")
        if isinstance(self.files, fs.LocalFileSystem):
            if scheme not in ("", "file"):
                return None
            if os.path.realpath(path) == self.inner:
                return ""
            around = self.inner
            path = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        else:
            here = urlsplit(self.path)
            around = unquote(here.path).rstrip("/")
            keys, _, own = here.netloc.rpartition("@")
            own = own if ":" in keys else here.netloc
            if server and own and server != own:  # HDFS needs no name of a server
                return None
            if path == around:
                return ""
        return path[len(around) + 1 :] if path.startswith(f"{around}/") else None

    def kinds(self, directory: str, names: Sequence[str]) -> dict[str, fs.FileType]:
        """What has these names in a directory."""
        found = self.files.get_file_info([f"{directory}/{name}" for name in names])
        return {name: each.type for name, each in zip(names, found, strict=True)}

    def names(self, directory: str) -> set[str]:
        """The names in a directory."""
        listed = self.files.get_file_info(fs.FileSelector(directory, allow_not_found=True))
        return {each.base_name for each in listed}

    def is_directory(self, path: str) -> bool:
        kind = self.files.get_file_info(path).type
        return bool(kind == fs.FileType.Directory)

    def format_of(self, directory: str) -> str:
        """The format of a table whose directory this is; empty if it is none that is known."""
        kinds = self.kinds(directory, [*_LOGS, *_OF_OTHERS])
        there = {name for name, kind in kinds.items() if kind != fs.FileType.NotFound}
        found = [_LOGS[name] for name in _LOGS if name in there and name != "metadata"]
        if kinds["metadata"] == fs.FileType.Directory and any(
            map(_is_metadata, self.names(f"{directory}/metadata"))
        ):
            found.append(_LOGS["metadata"])
        if {*_OF_PAIMON} <= there:
            found.append("Paimon")
        found += [of for name, of in _OF_OTHERS.items() if name in there and of]
        return " and ".join(dict.fromkeys(found))


def _is_metadata(name: str) -> bool:
    return name == _HINT or name.endswith(_METADATA)


def _of_path(path: str) -> Iterable[TablePart]:
    if path.startswith(_ICEBERG):
        catalog, _, name = path.removeprefix(_ICEBERG).partition("/")
        found = _needed("pyiceberg.catalog", "pyiceberg").load_catalog(catalog).load_table(name)
        return [_of_iceberg(found)]
    if path.endswith(_METADATA):
        return [_of_iceberg(_static(path))]
    if path.startswith(_DELTA):
        return [_of_delta(_delta(path.removeprefix(_DELTA)))]
    tree = _Tree(path)
    _refuse_part_of_table(tree)
    of = tree.format_of(tree.inner)
    if not of:
        return _of_files(tree, _files_of(tree))
    if of == _SINK:
        return _of_files(tree, _files_of_sink(tree))
    if of == "Delta":
        return [_of_delta(_delta(path))]
    if of == "Iceberg":
        table = _static(_newest_metadata(tree))
        if tree.within(table.location(), is_encoded=False) != "":
            reason = f"its metadata says that the table is at {table.location()}: {_COPY}"
            raise OptionError("table", path, reason)
        return [_of_iceberg(table)]
    reason = f"it is a table of {of}, which is not read here: {_ROWS}"
    if "Delta" in of:
        reason = (
            f"it has the logs of {of}, which may differ: give delta:PATH, or the metadata file of "
            "Iceberg"
        )
    raise OptionError("table", path, reason)


_COPY = (
    "this is a copy of a table, or it was moved, and only the directory that is named there is "
    "the table"
)
_ROWS = (
    "give its rows as an object of Arrow (segmentlog.audit), or as a DataFrame of Spark "
    "(pyspark_segmentlog.audit)"
)


def _delta(path: str) -> Any:  # noqa: ANN401 - a package without types
    is_local = path.startswith("file:") or not _URL.match(path)
    name = _Tree(path).inner if is_local else ""
    if unquote(name) != name:
        reason = f"deltalake would open {unquote(name)} instead: {_ROWS}"
        raise OptionError("table", path, reason)
    return _needed("deltalake", "deltalake").DeltaTable(path)


def _static(metadata: str) -> Any:  # noqa: ANN401 - a package without types
    static = _needed("pyiceberg.table", "pyiceberg").StaticTable
    if not metadata.endswith(_OLD_GZIP):
        return static.from_metadata(metadata)
    # Iceberg also reads the name that its first versions gave to compressed metadata.
    load_io = _needed("pyiceberg.io", "pyiceberg").load_file_io
    formats = _needed("pyiceberg.serializers", "pyiceberg")
    with load_io(location=metadata).new_input(metadata).open() as packed:
        parsed = formats.FromByteStream.table_metadata(
            packed, compression=formats.GzipCompressor()
        )
    return static(
        ("static-table", metadata),
        parsed,
        metadata,
        load_io(parsed.properties, metadata),
        _needed("pyiceberg.catalog.noop", "pyiceberg").NoopCatalog("static-table"),
    )


def _needed(module: str, package: str) -> Any:  # noqa: ANN401 - a package without types
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        reason = f"the package {package} reads it, and is missing: pip install {package}"
        raise OptionError("table", package, reason) from error


def _refuse_part_of_table(tree: _Tree) -> None:
    """Refuse a file or a directory that lies inside of a table: its log says what counts."""
    around = tree.inner
    while (above := os.path.dirname(around)) not in ("", "/", around):
        around = above
        try:
            found = tree.format_of(around)
        except OSError:  # it may not be read, and so no table is read there
            return
        if found:
            reason = (
                f"it is inside of the table {around} ({found}), whose own log says which files "
                "and rows are part of it: give that table"
            )
            raise OptionError("table", tree.path, reason)


def _newest_metadata(tree: _Tree) -> str:
    """The metadata of an Iceberg table in a directory, which no catalog has named."""
    directory = f"{tree.inner}/metadata"
    names = tree.names(directory)
    # Of two forms of one version, Iceberg takes the one that is not compressed.
    by_form = sorted(names, key=lambda name: (".gz" not in name, name))
    numbered = {int(found[1]): name for name in by_form if (found := _OF_HADOOP.fullmatch(name))}
    of_catalog = [each for each in names if _OF_CATALOG.fullmatch(each)]
    if of_catalog or not numbered:
        n_files = sum(map(_is_metadata, names - {_HINT}))
        reason = (
            f"it has {n_files} metadata files, and only its catalog knows which one is the "
            "table: give the metadata file, or iceberg:CATALOG/NAMESPACE.TABLE"
        )
        raise OptionError("table", tree.path, reason)
    version = _hinted(tree, f"{directory}/{_HINT}") if _HINT in names else None
    version = max(numbered) if version is None else version
    if version not in numbered:
        reason = (
            f"its {_HINT} names version {version}, which has no metadata file: give the metadata "
            "file that is the table"
        )
        raise OptionError("table", tree.path, reason)
    while version + 1 in numbered:  # the hint is written after the commit, and may lag behind
        version += 1
    return f"{tree.path.rstrip('/')}/metadata/{numbered[version]}"


def _hinted(tree: _Tree, path: str) -> int | None:
    """The version that a hint names; None if it is none, as Iceberg reads it."""
    with tree.files.open_input_stream(path) as file:
        line = file.read(100).split(b"\n")[0].strip()
    return int(line) if line.isdigit() else None


def _of_iceberg(table: Any) -> TablePart:  # noqa: ANN401 - a package without types
    return TablePart(
        table.schema().as_arrow(),
        lambda places: table.scan(selected_fields=tuple(_heads(places))).to_arrow_batch_reader(),
    )


def _of_delta(table: Any) -> TablePart:  # noqa: ANN401 - a package without types
    schema = pa.schema(table.schema().to_arrow())
    if not _has_mapped_columns(table):
        try:
            dataset = table.to_pyarrow_dataset()
        except Exception as error:  # deletion vectors: a feature of newer tables
            if type(error).__name__ != "DeltaProtocolError":
                raise
        else:
            # The dataset looks for all files below the table: a clone names those of another one.
            if not any(each.startswith("/") or _URL.match(each) for each in dataset.files):
                return TablePart(dataset.schema, partial(_of_fragments, dataset, table.table_uri))

    def read(places: Sequence[Place]) -> Iterable[pa.RecordBatch]:
        query = _needed("deltalake", "deltalake").QueryBuilder().register("rows", table)
        listed = ", ".join('"{}"'.format(name.replace('"', '""')) for name in _heads(places))
        stream = query.execute(f"SELECT {listed} FROM rows")
        batches: Iterable[pa.RecordBatch] = pa.RecordBatchReader.from_stream(stream)
        return batches

    return TablePart(schema, read)


def _has_mapped_columns(table: Any) -> bool:  # noqa: ANN401 - a package without types
    """Whether its files have other names of columns than the table.

    Its dataset looks for those of the table, also if the version of its readers, and no feature,
    says so: a renamed column is then empty, or is another one.  Raises `OptionError` if the ids
    in files name the columns, which no reader of the package looks at.
    """
    protocol = table.protocol()
    features = protocol.reader_features or ()
    may_be = protocol.min_reader_version == 2 or "columnMapping" in features
    mode = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    if may_be and mode not in ("none", "name"):
        reason = f"its columns are mapped by {mode}, which deltalake does not read: {_ROWS}"
        raise OptionError("table", table.table_uri, reason)
    return may_be and mode != "none"


def _of_fragments(
    table: ds.Dataset, uri: str, places: Sequence[Place]
) -> Iterator[pa.RecordBatch]:
    """The rows of a table that has a schema: a column that a file lacks is null in it."""
    for fragment in table.get_fragments():
        with _failures_of(f"{uri.rstrip('/')}/{fragment.path}", "read"):
            inside = fragment.physical_schema.names
            constants = ds.get_partition_keys(fragment.partition_expression)
            is_whole = all(name in inside and name not in constants for name in _heads(places))
            if is_whole and _is_open(fragment):
                yield from _of_parquet(fragment, places)
            else:
                yield from _of_fragment(fragment, table.schema, places)


class _TableFile(NamedTuple):
    """A file of a table, and the columns in the names of its directories."""

    path: str
    constants: Mapping[str, str | None]


def _files_of(tree: _Tree) -> list[_TableFile]:
    """The files of a directory that are not hidden, or the only one."""
    if not tree.is_directory(tree.inner):
        info = tree.files.get_file_info(tree.inner)
        if info.type == fs.FileType.NotFound:
            raise FileNotFoundError(tree.path)
        return [_TableFile(tree.inner, _constants(_named(os.path.dirname(tree.inner))))]
    if isinstance(tree.files, fs.LocalFileSystem):
        for path in _broken_links(tree.inner):
            _refuse_unread(tree, path)
    found, around = [], _named(tree.inner)
    selector = fs.FileSelector(tree.inner, recursive=True)
    for each in tree.files.get_file_info(selector):
        parts = each.path[len(tree.inner) :].strip("/").split("/")
        _refuse_mark(tree, parts)
        if any(map(_is_hidden, parts)):
            continue
        if each.type == fs.FileType.File:
            found.append(_TableFile(each.path, _constants([*around, *parts[:-1]])))
        elif each.type != fs.FileType.Directory:
            _refuse_unread(tree, each.path)
    if not found:
        raise OptionError("table", tree.path, f"it has no files with rows: {_ACCEPTED}")
    return sorted(found, key=lambda each: each.path)


def _refuse_unread(tree: _Tree, path: str) -> NoReturn:
    reason = f"{path} may have rows, and is no file, or a link to a file that is gone"
    raise OptionError("table", tree.path, reason)


def _broken_links(directory: str) -> Iterator[str]:
    """Links that Arrow's listing leaves out, since nothing is at their ends."""
    for name, kind in list_entries(directory):
        path = f"{directory}/{name}"
        if _is_hidden(name):
            continue
        if kind is FileType.DIRECTORY:
            yield from _broken_links(path)
        elif kind is FileType.LINK and not exists(path):
            yield path


def _named(directory: str) -> list[str]:
    """The last names of a path that name columns, such as ``partition=0``."""
    names = directory.split("/")
    after = next((i for i, name in enumerate(reversed(names)) if "=" not in name), len(names))
    return names[len(names) - after :]


def _is_hidden(name: str) -> bool:
    """Whether Spark leaves out a file or a directory of this name."""
    is_column = name.startswith("_") and "=" in name
    is_marked = name.startswith((".", "_")) and not is_column
    return is_marked or name.endswith("._COPYING_")


def _refuse_mark(tree: _Tree, parts: Sequence[str]) -> None:
    """Refuse a directory around tables, and a table of Hive's transactions."""
    for i, name in enumerate(parts):
        inside = "/".join([tree.inner, *parts[:i]])
        is_log = name in ("_delta_log", "_spark_metadata", ".hoodie")
        is_log |= name == "metadata" and i + 2 == len(parts) and _is_metadata(parts[-1])
        if i and is_log:
            reason = f"the table {inside} is inside of it, with a log of its own: give that table"
            raise OptionError("table", tree.path, reason)
        if _OF_HIVE.fullmatch(name):
            reason = (
                f"it has the directory {name} of a table with Hive's transactions, which is not "
                f"read here: {_ROWS}"
            )
            raise OptionError("table", tree.path, reason)


def _constants(directories: Sequence[str]) -> dict[str, str | None]:
    """The columns in names of directories, as Hive and Spark write them."""
    found: dict[str, str | None] = {}
    for each in directories:
        name, sign, value = each.partition("=")
        if sign and name:
            found[unquote(name)] = None if value == _NO_VALUE else unquote(value)
    return found


def _files_of_sink(tree: _Tree) -> list[_TableFile]:
    """The files that the log of Spark's file sink lists."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            paths = _sink_log(tree)
            break
        except FileNotFoundError as error:
            if attempt == _ATTEMPTS:
                said = " ".join(str(error).split())
                reason = f"a file of its _spark_metadata is missing ({said})"
                raise OptionError("table", tree.path, reason) from error
    found = []
    for path in paths:
        inside = tree.within(path, is_encoded=True)
        if not inside:
            reason = f"its _spark_metadata lists {path}, which is in another directory: {_COPY}"
            raise OptionError("table", tree.path, reason)
        found.append(_TableFile(f"{tree.inner}/{inside}", _constants(inside.split("/")[:-1])))
    return found


def _sink_log(tree: _Tree) -> list[str]:
    """The paths of all files of a sink, as its log has them."""
    directory = f"{tree.inner}/_spark_metadata"
    listed = tree.files.get_file_info(fs.FileSelector(directory))
    numbered = [
        (int(found[1]), found[2] is not None)
        for each in listed
        if (found := _OF_SINK.fullmatch(each.base_name))
    ]
    if not numbered:
        return []
    newest = max(numbered)[0]
    compacted = max((number for number, is_whole in numbered if is_whole), default=-1)
    paths = dict[str, None]()
    deleted = set[str]()
    for number in range(max(compacted, 0), newest + 1):
        name = f"{number}.compact" if number == compacted else str(number)
        for path, action in _sink_entries(tree, f"{directory}/{name}"):
            paths[path] = None
            if action != "add":
                deleted.add(path)
    return [each for each in paths if each not in deleted]


def _sink_entries(tree: _Tree, path: str) -> list[tuple[str, str]]:
    """The files that a file of a sink's log names, and what it says of each."""
    with tree.files.open_input_stream(path) as file:
        lines = file.read().decode().splitlines()
    if not lines or lines[0].strip() != "v1":
        reason = f"{path} is of version {lines[:1]}, and v1 is known"
        raise OptionError("table", tree.path, reason)
    try:
        entries = [json.loads(line) for line in lines[1:]]
        return [(str(each["path"]), str(each.get("action", "add"))) for each in entries]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"{path} is damaged: each of its lines names a file ({in_a_line(error)})"
        raise OptionError("table", tree.path, reason) from error


def _of_files(tree: _Tree, files: Sequence[_TableFile]) -> Iterator[TablePart]:
    """The rows of each file, with its own schema."""
    kinds = {_FORMATS.get(os.path.splitext(each.path)[1], "parquet") for each in files}
    if len(kinds) > 1:
        reason = f"its files are of several formats ({', '.join(sorted(kinds))})"
        raise OptionError("table", tree.path, reason)
    for each in files:
        with _failures_of(each.path, "read"):
            (kind,) = kinds
            if kind == "parquet":
                fragment = ds.ParquetFileFormat().make_fragment(each.path, tree.files)
                schema = fragment.physical_schema
                read: Callable[..., Iterable[pa.RecordBatch]] = partial(_of_parquet, fragment)
            else:
                dataset = ds.dataset(each.path, format=kind, filesystem=tree.files)
                (whole,) = _of_dataset(dataset)
                schema, read = whole.schema, whole.read
            yield _with_constants(TablePart(schema, read, each.path), each.constants)


def _with_constants(part: TablePart, constants: Mapping[str, str | None]) -> TablePart:
    """A file with the columns in the names of its directories."""
    if not constants:
        return part
    schema = part.schema
    # As SQL finds columns: a file may have the same one in other capitals.
    inside = {name.lower(): name for name in schema.names}
    constants = {inside.get(name.lower(), name): value for name, value in constants.items()}
    for name in constants:
        if name not in schema.names:
            schema = schema.append(pa.field(name, pa.string()))

    def read(places: Sequence[Place]) -> Iterator[pa.RecordBatch]:
        inside = [each for each in places if each[0] in part.schema.names]
        # Spark writes such a column into the name alone; a file may have at least its rows.
        some = inside or [(part.schema.names[0],)]
        for batch in part.read(some):
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            for name in _heads(places):
                if name in constants:
                    value = pa.scalar(constants[name], pa.string())
                    column = pa.repeat(value, batch.num_rows)
                    if name in columns and not columns[name].cast(pa.string()).equals(column):
                        reason = (
                            f"the name of its directory says that {name} is {constants[name]!r}, "
                            "and its rows say something else"
                        )
                        raise OptionError("table", part.file, reason)
                    columns[name] = column
            yield pa.RecordBatch.from_pydict(columns)

    return part._replace(schema=schema, read=read)
