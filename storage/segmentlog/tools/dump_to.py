"""``segmentlog dump``: a dump to a chosen place, and at the end a line about the file."""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from segmentlog.tools.dump import dump_paths, size_of
from segmentlog.tools.progress import progress
from segmentlog.tools.rows import RecordText
from segmentlog.tools.selection import Selection
from segmentlog.tools.sinks import (
    CountingSink,
    EnoughError,
    Format,
    LimitedSink,
    Sink,
    open_sink,
)
from segmentlog.tools.text import Encoding, counted, escape

__all__ = ["Target", "dump_to"]


class Target(NamedTuple):
    """The place, the format and the limit of a dump.

    `output` is a file, or None for standard output; `limit` is a number of records or batches.
    """

    output_format: Format
    output: str | None
    keys: Encoding
    values: Encoding
    limit: int | None
    with_records: bool


def dump_to(
    target: Target,
    paths: Sequence[str],
    selection: Selection,
    topics: Sequence[str],
    partitions: Sequence[int],
) -> bool:
    """Dump; return whether everything that was read is valid.

    Parameters
    ----------
    target : place and format of the dump.
    paths, selection, topics, partitions : see `segmentlog.tools.dump.dump_paths`.
    """
    text = RecordText(target.keys, target.values)
    with_records, output = target.with_records, target.output
    opened = open_sink(target.output_format, output, text, with_records=with_records)
    if output is None:
        with opened as sink:
            count = CountingSink(sink)
            is_valid = _dump(count, target, paths, selection, topics, partitions)
        if not (count.batches or count.n_records or count.entries) and is_valid:
            sys.stderr.write("nothing is selected: no batch is within the given bounds\n")
        return is_valid
    total = size_of(paths, selection, topics, partitions) if sys.stderr.isatty() else None
    with progress("dump", total) as bar, opened as sink:
        count = CountingSink(sink)
        is_valid = _dump(count, target, paths, selection, topics, partitions, bar.advance)
    found = {"records": count.n_records} if with_records else {"batches": count.batches}
    found |= {"entries": count.entries} if count.entries else {}
    size = os.path.getsize(output)
    sys.stdout.write(f"{escape(output)}: {counted(**found, bytes=size)}\n")
    return is_valid


def _dump(
    sink: Sink,
    target: Target,
    paths: Sequence[str],
    selection: Selection,
    topics: Sequence[str],
    partitions: Sequence[int],
    advance: Callable[[int], object] = lambda _: None,
) -> bool:
    limited = sink
    if target.limit:
        limited = LimitedSink(sink, target.limit, with_records=target.with_records)
    with suppress(EnoughError):
        return dump_paths(
            paths, limited, selection, topics=topics, partitions=partitions,
            with_records=target.with_records, progress=advance,
        )  # fmt: skip
    return True
