"""Topics that were lost: ``restore`` and ``placement`` for clusters, ``undelete`` for topics.

`describe` and `topics` also list the renamed directories from which ``undelete`` restores.
"""

import contextlib
import os
import sys
from collections.abc import Collection, Sequence
from functools import partial
from typing import Annotated, Any

import typer

import segmentlog
from segmentlog.format.names import is_renamed_directory
from segmentlog.maintain.restoration.plan import (
    Restoration,
    RestoredPartition,
    creation_commands,
    reassignment_json,
)
from segmentlog.maintain.restoration.restore import RestoreOptions, offsets_csv
from segmentlog.maintain.restoration.undelete import UndeleteOptions, renamed_in
from segmentlog.reads.log_directory import LogDirectory
from segmentlog.store.durable import OutputFile
from segmentlog.tools import arguments
from segmentlog.tools.failures import Failed
from segmentlog.tools.output import (
    aligned,
    as_given,
    cell,
    complain,
    counted,
    escape,
    json_fields,
    time_cell,
    write_json,
)
from segmentlog.tools.progress import progress
from segmentlog.tools.report import Report


@arguments.command(
    "segmentlog restore /b1 /b2 /b3 /var/lib/kafka --dry-run",
    "segmentlog restore /b1 /b2 /b3 /var/lib/kafka --topic orders --offsets groups.csv",
    "segmentlog restore /b1 /b2 /b3 --to /new1 --to /new2 --to /new3 --offset-map map.parquet",
)
@arguments.flags(
    RestoreOptions,
    "since",
    "until",
    "target_metadata",
    "server_properties",
    "open_transactions",
    "offset_map",
    "leave_out_partitions",
    "leave_out_replicas",
    "include_deleted_topics",
    "on_corrupt_batch",
    "dry_run",
)
def restore(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="SRC... [DST]",
            help="The log directories of the lost cluster, and last the target's log directory.",
        ),
    ],
    to: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIR",
            help="In place of DST: a log directory of one of the target's brokers; may be "
            "repeated. Each replica goes where the target's metadata assigns it.",
        ),
    ] = None,
    topic: arguments.Topics = None,
    *,
    given: dict[str, Any],
    offsets: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write the committed offsets of groups, for kafka-consumer-groups.sh.",
        ),
    ] = None,
    as_json: arguments.JsonLines = False,
) -> None:
    """Restore topics of a lost cluster on the stopped brokers of another cluster.

    Records keep their offsets and times. The command first checks the target: the topics must
    exist there with the same number of partitions, the log directory of each of their brokers must
    be given, and no setting may delete the records. Partitions must be without records, or with
    those of an earlier restoration of the same logs: then the later records follow. A topic that
    cannot be restored stops no other; the exit status is then 1, as after a dry run with problems.
    """
    sources, targets = (paths, to) if to else (paths[:-1], paths[-1:])
    if not sources:
        message = "give the log directories of the lost cluster, and last that of the target"
        raise typer.BadParameter(message, param_hint="SRC... DST")
    arguments.refuse_one_file(offsets, given["offset_map"])
    failed = Failed()
    with contextlib.ExitStack() as stack:
        # Before the records: an error in the path is noticed early.
        file = None
        if offsets is not None:
            file = stack.enter_context(OutputFile("offsets", offsets))
        bar = stack.enter_context(progress("records restored", None, is_bytes=False))
        found = segmentlog.restore(
            *sources,
            to=targets,
            topics=topic or (),
            on_records=bar.advance,
            on_phase=bar.name,
            on_failure=failed.add,
            **given,
        )
        text, command_line = offsets_csv(found.offsets, offsets)
        is_done = bool(found.partitions) or not failed.names
        if file is not None and is_done:
            file.file.write(text.encode())
            file.finish()
            file.publish()
    hint = command_line if offsets is not None and is_done else ""
    dry_run = given["dry_run"]
    _report(found, sources, targets, failed, dry_run=dry_run, as_json=as_json, hint=hint)


def _report(
    found: Restoration,
    sources: Sequence[str],
    targets: Sequence[str],
    failed: Failed,
    *,
    dry_run: bool,
    as_json: bool,
    hint: str = "",
) -> None:
    """Write the partitions and the problems, and end the command with its status."""
    restored = partial(_restored_line, sources=sources, targets=targets, dry_run=dry_run)
    report = Report[RestoredPartition](restored, as_json=as_json)
    report.show_all(found.partitions)
    for problem in found.problems:
        complain(problem)
    if hint:
        sys.stderr.write(f"{escape(hint)}\n")
    if found.problems:
        raise typer.Exit(arguments.PROBLEM)
    report.end()
    for name in found.unread_groups:  # a warning has named it
        failed.add(name)
    failed.end()


def _restored_line(
    found: RestoredPartition, sources: Sequence[str], targets: Sequence[str], *, dry_run: bool
) -> str:
    """A restored partition, or one that would be restored, in words."""
    name = escape(f"{found.topic}-{found.partition}")
    if found.problems:
        return f"{name}: cannot be restored: {escape('; '.join(found.problems))}"
    source = escape(as_given(found.source, sources))
    text = f"[{found.log_start_offset}, {found.log_end_offset}) of {source}"
    if len(targets) > 1:
        text += f", to {_listed(found.directories, targets)}"
    if found.restored_before:
        text += f"; {_listed(found.restored_before, targets)} had the records"
    for directory, at in found.begins_at.items():
        if at:
            text += f"; {_listed([directory], targets)} had the records before offset {at}"
    if found.missing_brokers:
        text += f"; left out on brokers {', '.join(map(str, found.missing_brokers))}"
    if found.n_ended:
        text += f"; {counted(transactions=found.n_ended)} ended"
    if found.n_left_out:
        text += f"; {counted(offsets=found.n_left_out)} left out after an open transaction"
    return f"{name}: {text}" if dry_run else f"{name}: {counted(records=found.n_records)}, {text}"


def _listed(directories: Sequence[str], targets: Sequence[str]) -> str:
    return ", ".join(escape(as_given(each, targets)) for each in directories)


@arguments.command(
    "segmentlog undelete /var/lib/kafka orders --to /data/saved",
    "segmentlog undelete /var/lib/kafka orders --dry-run",
    "segmentlog undelete /disk1 /disk2 orders --id pMMq3tq4Sg2TpHr5oiY9bw",
    "segmentlog undelete /data/logs orders --as orders-before --deleted-before 2026-01-31T10:00Z",
)
@arguments.flags(
    UndeleteOptions,
    "to",
    "as_topic",
    "ids",
    "deleted_before",
    "leave_out_partitions",
    "leave_out_replicas",
    "target_metadata",
    "server_properties",
    "on_corrupt_batch",
    "dry_run",
)
def undelete(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="DIR... TOPIC",
            help="The log directories that have renamed directories of the topic, and its name.",
        ),
    ],
    *,
    given: dict[str, Any],
    as_json: arguments.JsonLines = False,
) -> None:
    """Restore a deleted or stray topic from the directories that a broker has renamed.

    A broker renames the partitions of a deleted topic, and removes them a minute later: stop it
    first. `topics` and `describe` list such directories. Records keep their partitions, offsets
    and times, and all of them become visible at once; the renamed directories stay. In a broker's
    directory, first create the topic again with the broker, and stop the broker. Elsewhere, the
    command creates the topic. The exit status is 1 if a dry run finds a problem.
    """
    *sources, topic = paths
    if not sources:
        message = "give the log directories, and last the name of the topic"
        raise typer.BadParameter(message, param_hint="DIR... TOPIC")
    arguments.refuse_swapped("TOPIC", topic, sources[0], "segmentlog undelete DIR TOPIC")
    with progress("records restored", None, is_bytes=False) as bar:
        found = segmentlog.undelete(
            sources, topic, on_records=bar.advance, on_phase=bar.name, **given
        )
    targets, dry_run = given["to"] or sources, given["dry_run"]
    _report(found, sources, targets, Failed(), dry_run=dry_run, as_json=as_json)


def write_renamed(directory: LogDirectory, topics: Collection[str], *, as_json: bool) -> None:
    """A table of the renamed directories, after a blank line, or an object for each of them."""
    found = [
        each
        for path in directory.log_directories
        for each in renamed_in(path)
        if not topics
        or any(is_renamed_directory(os.path.basename(each.path), topic) for topic in topics)
    ]
    if as_json:
        for each in found:
            write_json(json_fields(each))
        return
    if not found:
        return
    rows = [
        [
            str(each.kind),
            escape(each.topic),
            str(each.partition),
            cell(each.topic_id),
            cell(each.log_start_offset),
            cell(each.log_end_offset),
            f"{each.n_bytes:,}",
            time_cell(each.renamed_ms),
            time_cell(each.removed_ms),
            escape(as_given(each.path, directory.paths)),
        ]
        for each in found
    ]
    names = [
        "renamed",
        "topic",
        "part",
        "topic id",
        "start",
        "end",
        "bytes",
        "at",
        "removed at",
        "directory",
    ]
    right = [False, False, True, False, True, True, True, False, False, False]
    sys.stdout.write("\n" + aligned(names, rows, right))
    for removal in dict.fromkeys(f"{each.kind}: removed by {each.removal}" for each in found):
        sys.stderr.write(f"{escape(removal)}\n")


@arguments.command(
    "segmentlog placement /b1 /b2 /b3 /new1 --replication-factor 3",
    "segmentlog placement /b1 /new1 --replication-factor 3 --topic orders --json",
)
def placement(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="SRC... DST",
            help="Log directories with the topics, and last a log directory with the metadata of "
            "the other cluster.",
        ),
    ],
    replication_factor: Annotated[
        int, typer.Option(metavar="N", help="Number of replicas of each partition.")
    ],
    topic: arguments.Topics = None,
    as_json: Annotated[
        bool, arguments.json_option("Print the file that kafka-reassign-partitions.sh takes.")
    ] = False,
) -> None:
    """Propose brokers for the partitions of topics that another cluster lacks.

    The rule is that of Kafka's controller: replicas are spread over racks and brokers, beginning
    at a random broker. For each topic, the command prints a command line that creates the topic in
    the other cluster.
    """
    if len(paths) < 2:
        message = "give log directories with the topics, and last one of the other cluster"
        raise typer.BadParameter(message, param_hint="SRC... DST")
    *sources, target = paths
    with progress("placement", None, is_bytes=False):
        found = segmentlog.propose_placement(
            *sources, to=target, replication_factor=replication_factor, topics=topic or ()
        )
    lines = [reassignment_json(found)] if as_json else creation_commands(found)
    for line in lines:
        sys.stdout.write(f"{escape(line)}\n")
    if not found:
        complain("the other cluster has all topics")
