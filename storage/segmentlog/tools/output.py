"""What commands write: lines of JSON, tables, names, messages."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from segmentlog.store.paths import readable_path, with_plain_buckets
from segmentlog.store.readable import is_file, is_url
from segmentlog.store.remote.location import without_options
from segmentlog.times import iso_time
from segmentlog.tools.text import escape, to_json


def write_json(row: Mapping[str, object]) -> None:
    """Write a line of JSON to standard output."""
    sys.stdout.write(f"{to_json(row)}\n")


def complain(message: str) -> None:
    """Write a line for people to standard error."""
    sys.stderr.write(f"segmentlog: {escape(with_plain_buckets(message))}\n")


def json_fields(value: NamedTuple) -> dict[str, object]:
    """The fields of a result under their names in JSON; -1 and an empty text are null."""
    fields: dict[str, object] = {}
    for name, found in value._asdict().items():
        first, *others = name.removeprefix("n_").split("_")
        unknown = found == "" or (isinstance(found, int) and found == -1)
        fields[first + "".join(map(str.capitalize, others))] = None if unknown else found
    return fields


_SINGULARS = {"batches": "batch", "entries": "entry"}


def counted(**counts: int) -> str:
    """``2 partitions, 1 segment``."""
    shown = []
    for name, n in counts.items():
        singular = _SINGULARS.get(name, name.removesuffix("s"))
        shown.append(f"{n:,} {singular if n == 1 else name}")
    return ", ".join(shown)


def cell(value: object) -> str:
    """A cell of a table; a dash if there is no value."""
    return "-" if value is None else escape(str(value))


def time_cell(time_ms: int | None) -> str:
    """A time without its milliseconds."""
    return "-" if time_ms is None else iso_time(time_ms - time_ms % 1000).replace(".000", "")


def aligned(heading: Iterable[str], rows: Iterable[Iterable[str]], right: Iterable[bool]) -> str:
    """Columns as wide as their widest cell, with two blanks between them; for pipes.

    `right`: for each column, whether it is aligned to the right, as numbers are.
    """
    lines = [list(heading), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    sides = list(right)
    return "".join(
        "  ".join(
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(line, widths, sides, strict=True)
        ).rstrip()
        + "\n"
        for line in lines
    )


def as_given(file: str, paths: Sequence[str]) -> str:
    """Path of `file`, below or beside one of `paths`, with the beginning that the user wrote.

    At a URL, it is the path without options.
    """
    if is_url(file):
        return without_options(with_plain_buckets(file))
    for given in paths:
        begin, root = given, readable_path(given)
        if is_file(root):
            begin, root = os.path.dirname(begin), os.path.dirname(root)
        below = os.path.relpath(file, root)
        if below == os.curdir:
            return begin
        if below.partition(os.sep)[0] != os.pardir:
            return os.path.join(begin, below)
    return file
