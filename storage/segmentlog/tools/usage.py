"""``segmentlog usage``: every byte of log directories by its kind, and what removes it."""

import operator
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Annotated

import typer

from segmentlog.reads.log_directory import LogDirectory
from segmentlog.reads.usage import LEFTOVERS, UsageKind, UsedSpace, account_for, large_leftovers
from segmentlog.times import iso_time
from segmentlog.tools.arguments import AsJson, command
from segmentlog.tools.failures import end_with_status
from segmentlog.tools.output import aligned, as_given, counted, escape, json_fields, write_json
from segmentlog.tools.progress import progress

_MOST_SHOWN = 10  #: places of leftovers


@command(
    "segmentlog usage /var/lib/kafka",
    "segmentlog usage /data1 /data2 --all",
    "segmentlog usage /var/lib/kafka --json | jq 'select(.kind == \"-stray\") | .path'",
)
def usage(
    paths: Annotated[list[str], typer.Argument(metavar="DIR", help="Log directories.")],
    show_all: Annotated[
        bool, typer.Option("--all", help="List every place, and not only the largest leftovers.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Account for every byte of log directories: its kind, and what removes it, and when.

    The column bytes has the lengths of the files, and the column allocated the space that they
    take on the disk, with their directories: files with holes take less than their length. The
    second table lists the largest places of leftovers: files that are part of no log. The exit
    status is 1 if a place cannot be counted.
    """
    with progress("usage", None, is_bytes=False) as bar:
        found = account_for(paths, bar.begin)
    total = _sum(found)
    if as_json:
        for used in found:
            row = json_fields(used._replace(path=as_given(used.path, paths)))
            write_json({**row, "removal": used.removal})
        names = ("files", "bytes", "allocated")
        write_json(dict(zip(names, total, strict=True)))
    else:
        _write_kinds(found, total)
        left = [used for used in found if used.kind in LEFTOVERS]
        _write_places(found if show_all else left[:_MOST_SHOWN], paths)
        if len(left) > _MOST_SHOWN and not show_all:
            more = counted(places=len(left) - _MOST_SHOWN)
            sys.stdout.write(f"{more} more of leftovers; --all lists every place\n")
    for used in filter(operator.attrgetter("problem"), found):
        sys.stderr.write(f"{escape(as_given(used.path, paths))}: {escape(used.problem)}\n")
    end_with_status(found)


def _sum(found: Iterable[UsedSpace]) -> tuple[int, int, int]:
    """Files, bytes and allocated bytes."""
    n_files = n_bytes = n_allocated = 0
    for used in found:
        n_files += used.n_files
        n_bytes += used.n_bytes
        n_allocated += used.n_allocated
    return n_files, n_bytes, n_allocated


def _write_kinds(found: Sequence[UsedSpace], total: tuple[int, int, int]) -> None:
    """A line for each kind, the largest first."""
    sums = {
        kind: _sum(used for used in found if used.kind is kind)
        for kind in dict.fromkeys(used.kind for used in found)
    }
    rows = sorted(sums.items(), key=lambda each: (-each[1][2], -each[1][1]))
    cells = [[str(kind), *map("{:,}".format, each), kind.removal] for kind, each in rows]
    cells.append(["all", *map("{:,}".format, total), ""])
    names = ["kind", "files", "bytes", "allocated", "removed by"]
    sys.stdout.write(aligned(names, cells, [False, True, True, True, False]))


def _write_places(found: Sequence[UsedSpace], paths: Sequence[str]) -> None:
    """A line for each place, the largest first."""
    if not found:
        return
    cells = [
        [
            str(used.kind),
            _at_least(used, used.n_files),
            _at_least(used, used.n_bytes),
            _at_least(used, used.n_allocated),
            iso_time(used.changed_ms),
            escape(as_given(used.path, paths)),
        ]
        for used in found
    ]
    names = ["kind", "files", "bytes", "allocated", "changed", "place"]
    right = [False, True, True, True, False, False]
    sys.stdout.write("\n" + aligned(names, cells, right))


def _at_least(used: UsedSpace, number: int) -> str:
    """A number of a place, of which some files may not be counted."""
    return f"≥ {number:,}" if used.problem else f"{number:,}"


def _not_in_use(directory: LogDirectory, topics: Collection[str] = ()) -> Iterator[str]:
    """A line for each topic that has deleted or stray partitions: of some topics, or of all."""
    for topic, paths in directory.partitions_not_in_use().items():
        if topics and topic not in topics:
            continue
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        yield (
            f"{escape(topic)}: {counted(partitions=len(paths))} not in use, with the log still in "
            f"{escape(paths[0])}{more}; segmentlog undelete restores it, and "
            "segmentlog usage shows what removes it\n"
        )


def write_not_in_use(directory: LogDirectory, topics: Collection[str] = ()) -> None:
    """Name deleted and stray partitions on standard error: of some topics, or of all."""
    sys.stderr.writelines(_not_in_use(directory, topics))


def leftovers_in_words(directory: LogDirectory) -> str:
    """Lines with the deleted and stray partitions, and with the leftovers if they are large."""
    sums: Counter[UsageKind] = Counter()
    for used in large_leftovers(directory.log_directories):
        sums[used.kind] += used.n_bytes
    shown = ", ".join(f"{kind} {n_bytes:,} bytes" for kind, n_bytes in sums.most_common())
    large = (
        f"leftovers take space beside the logs: {shown}; segmentlog usage shows where, and what "
        "removes them\n"
    )
    return "".join([*_not_in_use(directory), large if sums else ""])
