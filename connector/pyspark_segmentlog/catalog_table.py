"""Tables of Spark's catalog: the read options of ``CREATE TABLE`` are kept in column metadata.

Spark asks for the schema once, when the table is created, and passes the table's options.  At each
query it asks for a reader and passes the schema from the catalog, but no options (Spark 4.2 and
4.3).  The catalog keeps the metadata of a column with the schema, and it arrives unchanged.
"""

import json
from collections.abc import Mapping

from pyspark.sql.types import StructField, StructType

from pyspark_segmentlog.options.names import read_names
from pyspark_segmentlog.options.read_options import ALTERNATIVES, ReadOptions
from pyspark_segmentlog.reads.reader import read_schema
from pyspark_segmentlog.reads.table import TableOptions, reads_table, table_columns
from segmentlog.errors import OptionError
from segmentlog.reads import readable_path

#: Key in the metadata of the first column: the table's read options, as JSON.
OPTIONS_KEY = "segmentlog.options"


def schema_of_table(raw: Mapping[str, str]) -> StructType | None:
    """The columns of a catalog table that is being created; None if there is no table.

    Raises `OptionError` for the first option that is not accepted; for a relative path, which the
    catalog would show as a path below its warehouse.  Raises `LogDirectoryError` if a path cannot
    be one.
    """
    given = {name.lower(): value for name, value in raw.items()}
    if "provider" not in given:
        return None
    options = _read_options(given)
    if reads_table(options):
        of_table = TableOptions.parse(options)
        paths, columns = of_table.paths, table_columns(of_table)
    else:
        parsed = ReadOptions.parse(options)
        paths = parsed.paths
        columns = read_schema(parsed)
    for path in paths:
        found = readable_path(path)
        if not path.startswith(("/", "~", "file:")) and "://" not in path:
            accepted = f"a table needs an absolute path; in this directory the path is {found}"
            raise OptionError("path", path, accepted)
    if options.get("path", "").startswith("~"):
        options["path"] = readable_path(options["path"])  # on the machine that creates the table
    first, *others = columns.fields
    metadata = {OPTIONS_KEY: json.dumps(options, sort_keys=True)}
    kept = StructField(first.name, first.dataType, first.nullable, metadata)
    return StructType([kept, *others])


def _read_options(given: Mapping[str, str]) -> dict[str, str]:
    """The read options among a new table's properties, by lower-cased names."""
    # Spark hands over ``OPTIONS`` twice, as ``subscribe`` and as ``option.subscribe``, beside
    # ``TBLPROPERTIES`` and properties of its own (``provider``, ``owner``, ``location``, ``path``,
    # ``external``, ``comment``, …). Properties may be notes for any purpose, so properties that
    # are not options are left out. Everything in ``OPTIONS`` is meant for this source, and is
    # checked.
    names = read_names(given)
    options = {name: value for name, value in given.items() if name in names}
    for name, value in given.items():
        if name.startswith("option."):
            options[name.removeprefix("option.")] = value
    path = given.get("path", "")
    if path.startswith("file:/") and not path.startswith("file://"):
        path = path.removeprefix("file:")  # Spark has added it, without escaping any character
    return options | ({"path": path} if path else {})


def options_of_query(raw: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """The options of a query: its own, and otherwise those of its table.

    A query that names topics, a start or an end replaces all options of its table for the same
    purpose, whichever of them has precedence in a read.

    If the query's own options contain a path, the query does not read the table's directory.
    Metadata travels with columns, so a schema that was taken from a table brings the table's
    options to ``spark.read.schema(…).load(path)``, where the table's options do not apply.
    """
    given = {name.lower(): value for name, value in raw.items()}
    kept = next(
        (field.metadata[OPTIONS_KEY] for field in schema.fields if OPTIONS_KEY in field.metadata),
        None,
    )
    if kept is None or "path" in given or "paths" in given:
        return dict(raw)
    options: dict[str, str] = json.loads(kept)
    for group in ALTERNATIVES:
        names = {name.lower() for name in group}
        if names & given.keys():
            options = {name: value for name, value in options.items() if name not in names}
    merged = options | given
    if reads_table(merged):
        return merged
    if "headers" not in schema.names and ReadOptions.parse(merged).include_headers:
        name = "includeHeaders" if "includeheaders" in given else "preserve"
        accepted = (
            "a table keeps the columns that it was created with: give this option in CREATE TABLE"
        )
        raise OptionError(name, given.get(name.lower(), ""), accepted)
    return merged
