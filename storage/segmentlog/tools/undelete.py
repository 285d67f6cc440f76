"""``segmentlog undelete``, and the renamed directories of partitions that other commands list."""

import sys
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from segmentlog.format.names import is_renamed_directory
from segmentlog.model import OnCorruptBatch
from segmentlog.reads.log_directory import LogDirectory
from segmentlog.tools import arguments
from segmentlog.tools.output import (
    aligned,
    as_given,
    cell,
    complain,
    json_fields,
    time_cell,
    write_json,
)
from segmentlog.tools.progress import progress
from segmentlog.tools.restore import restored_line
from segmentlog.tools.text import escape, to_json

if TYPE_CHECKING:
    from segmentlog.maintain.restoration.undelete import RenamedPartition


@arguments.command(
    arguments.WRITES,
    "segmentlog undelete /var/lib/kafka orders --to /data/saved",
    "segmentlog undelete /var/lib/kafka orders --dry-run",
    "segmentlog undelete /disk1 /disk2 orders --id pMMq3tq4Sg2TpHr5oiY9bw",
    "segmentlog undelete /data/logs orders --as orders-before --deleted-before 2026-01-31T10:00Z",
)
def undelete(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="DIR... TOPIC",
            help="The log directories that have renamed directories of the topic, and its name.",
        ),
    ],
    to: Annotated[
        list[str] | None,
        typer.Option(
            "--to",
            metavar="DIR",
            help="The log directory to restore into; by default DIR. May be repeated for "
            "directories of brokers.",
        ),
    ] = None,
    as_topic: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="Another name for the topic.")
    ] = None,
    ids: Annotated[
        list[str] | None,
        typer.Option(
            "--id",
            metavar="ID",
            help="Only the topic with this id, or the directory with this id in its name; may be "
            "repeated.",
        ),
    ] = None,
    deleted_before: Annotated[
        int | None, arguments.time_option("Only the last deletion before this time.")
    ] = None,
    leave_out_partitions: Annotated[
        bool,
        typer.Option(
            "--leave-out-partitions", help="Restore the topic even if some partitions are gone."
        ),
    ] = False,
    leave_out_replicas: Annotated[
        bool,
        typer.Option(
            "--leave-out-replicas",
            help="Restore partitions even if directories of some of their brokers are missing.",
        ),
    ] = False,
    target_metadata: Annotated[
        str | None,
        typer.Option(
            "--target-metadata",
            metavar="DIR",
            help="The log directory that holds the target's __cluster_metadata-0.",
        ),
    ] = None,
    server_properties: arguments.ServerProperties = None,
    on_corrupt_batch: arguments.OnCorrupt = OnCorruptBatch.FAIL,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan and the problems, and change nothing.")
    ] = False,
    as_json: arguments.JsonLines = False,
) -> None:
    """Restore a deleted or stray topic from the directories that a broker has renamed.

    A broker renames the partitions of a deleted topic, and removes them a minute later: stop it
    first. `topics` and `describe` list such directories. Records keep their partitions, offsets
    and times, and all of them become visible at once; the renamed directories stay. In a broker's
    directory, first create the topic again with the broker, and stop the broker. Elsewhere, the
    command creates the topic. The exit status is 1 if a dry run finds a problem.
    """
    import segmentlog

    *sources, topic = paths
    if not sources:
        message = "give the log directories, and last the name of the topic"
        raise typer.BadParameter(message, param_hint="DIR... TOPIC")
    arguments.refuse_swapped("TOPIC", topic, sources[0], "segmentlog undelete DIR TOPIC")
    targets = to or sources
    with progress("records restored", None, is_bytes=False) as bar:
        found = segmentlog.undelete(
            sources, topic, to=to, as_topic=as_topic, ids=ids or (),
            deleted_before=deleted_before, leave_out_partitions=leave_out_partitions,
            leave_out_replicas=leave_out_replicas, target_metadata=target_metadata,
            server_properties=server_properties, on_corrupt_batch=on_corrupt_batch,
            dry_run=dry_run, on_records=bar.advance, on_phase=bar.name,
        )  # fmt: skip
    for each in found.partitions:
        line = restored_line(each, sources, targets, dry_run=dry_run)
        sys.stdout.write(f"{to_json(json_fields(each)) if as_json else line}\n")
    for problem in found.problems:
        complain(problem)
    if found.problems or any(each.problems for each in found.partitions):
        raise typer.Exit(arguments.PROBLEM)


def renamed_of(directory: LogDirectory, topics: Collection[str]) -> "Iterator[RenamedPartition]":
    """The renamed directories of partitions: of some topics, or of all."""
    from segmentlog.maintain.restoration.undelete import renamed_in

    for path in directory.log_directories:
        for each in renamed_in(path):
            name = each.path.rpartition("/")[2]
            if not topics or any(is_renamed_directory(name, topic) for topic in topics):
                yield each


def write_renamed(directory: LogDirectory, topics: Collection[str], *, as_json: bool) -> None:
    """A table of the renamed directories, after a blank line, or an object for each of them."""
    found = [*renamed_of(directory, topics)]
    if as_json:
        for each in found:
            write_json(json_fields(each))
        return
    if not found:
        return
    rows = [
        [
            str(each.kind), escape(each.topic), str(each.partition), cell(each.topic_id),
            cell(each.log_start_offset), cell(each.log_end_offset), f"{each.n_bytes:,}",
            time_cell(each.renamed_ms), time_cell(each.removed_ms),
            escape(as_given(each.path, directory.paths)),
        ]
        for each in found
    ]  # fmt: skip
    names = [
        "renamed", "topic", "part", "topic id", "start", "end", "bytes", "at", "removed at",
        "directory",
    ]  # fmt: skip
    right = [False, False, True, False, True, True, True, False, False, False]
    sys.stdout.write("\n" + aligned(names, rows, right))
    for removal in dict.fromkeys(f"{each.kind}: removed by {each.removal}" for each in found):
        sys.stderr.write(f"{escape(removal)}\n")
