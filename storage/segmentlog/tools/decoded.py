"""Decoded keys and values as JSON, and those that cannot be decoded as their bytes, marked."""

from collections.abc import Mapping, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from segmentlog.declared import those_of
from segmentlog.decoding.plain_values import plain_values
from segmentlog.model import OnCorruptBatch, OnUndecodable
from segmentlog.read_options import DECODES, DecodeOptions
from segmentlog.reads.log_directory import LogDirectory
from segmentlog.tools.output import to_json

if TYPE_CHECKING:
    from segmentlog.decoding.rows import Decoding

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
    return [None if each is None else _text(each) for each in plain_values(column)]


def _text(value: object) -> bytes:
    return to_json(value).encode("utf-8", "surrogateescape")  # type: ignore[arg-type]
