"""``segmentlog mirror``: partitions, byte by byte, into another log directory."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from segmentlog.tools.arguments import WRITES, IncludeDeletedTopics, Partitions, Topics, command
from segmentlog.tools.failures import Failed
from segmentlog.tools.progress import progress
from segmentlog.tools.text import as_given, counted, escape, json_fields, to_json

if TYPE_CHECKING:
    from segmentlog.cluster.follower import MirroredPartition


@command(
    WRITES,
    "segmentlog mirror /var/lib/kafka /backup/kafka",
    "segmentlog mirror /b1 /b2 /b3 /backup/kafka --dry-run",
    "segmentlog mirror /b1 /b2 /b3 /backup/kafka --topic orders --json",
)
def mirror(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="SRC... DST",
            help="The log directories of a cluster's brokers, and last the directory of the copy.",
        ),
    ],
    topic: Topics = None,
    partition: Partitions = None,
    assigned: Annotated[
        bool,
        typer.Option(
            "--assigned",
            help="Only partitions that the cluster's metadata assigns to the broker of DST.",
        ),
    ] = False,
    include_deleted_topics: IncludeDeletedTopics = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show what would be copied and cut, and change nothing."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line.")
    ] = False,
) -> None:
    """Copy partitions byte by byte, and continue an interrupted copy.

    If several brokers have a partition, the command copies the log, as `replicas` shows it. A
    broker may run on the sources, but not on the destination. If the destination has records that
    the log lacks, it is truncated where a broker would truncate it, and the removed bytes are kept
    beside the log in .broken files. Copied bytes are read again and compared.
    """
    import segmentlog

    if len(paths) < 2:
        message = "give the log directories to copy, and last the directory of the copy"
        raise typer.BadParameter(message, param_hint="SRC... DST")
    *sources, destination = paths
    failed = Failed()
    with progress("copied", None) as bar:

        def show(found: "MirroredPartition") -> None:
            bar.name(escape(f"{found.topic}-{found.partition}"))
            bar.write(
                to_json(json_fields(found)) if as_json else _line(found, paths, dry_run=dry_run)
            )

        found = segmentlog.mirror(
            *sources, to=destination, topics=topic or (), partitions=partition or (),
            assigned=assigned, include_deleted_topics=include_deleted_topics, dry_run=dry_run,
            on_partition=show, on_bytes=bar.advance,
            on_phase=lambda phase: bar.name(escape(phase)), on_failure=failed.add,
        )  # fmt: skip
    if not (found or failed.names or as_json):
        reason = (
            f"the metadata assigns no partition of the sources to {escape(destination)}"
            if assigned
            else "the sources have no such partition"
        )
        sys.stderr.write(f"segmentlog: {reason}\n")
    failed.end()


def _line(found: "MirroredPartition", paths: Sequence[str], *, dry_run: bool) -> str:
    name = escape(f"{found.topic}-{found.partition}")
    source = escape(as_given(found.source, paths))
    text = f"[{found.log_start_offset}, {found.log_end_offset}) of {source}"
    copied = "to copy" if dry_run else "copied"
    text = f"{name}: {text}, {counted(bytes=found.n_copied)} {copied}"
    if found.cut_at is not None and dry_run:
        text += f"; is cut at offset {found.cut_at}"
    elif found.cut_at is not None:
        kept = ", ".join(escape(as_given(each, paths)) for each in found.kept) or "no file"
        text += f"; was cut at offset {found.cut_at}, kept in {kept}"
    if found.n_put_aside:
        text += f"; {counted(segments=found.n_put_aside)} put aside"
    return text
