"""``segmentlog restore`` and ``placement``: topics of a lost cluster on the brokers of another."""

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from segmentlog.maintain.restoration.restore import OpenTransactions
from segmentlog.model import OnCorruptBatch
from segmentlog.tools import arguments
from segmentlog.tools.output import as_given, complain, counted, json_fields
from segmentlog.tools.progress import progress
from segmentlog.tools.text import escape, to_json

if TYPE_CHECKING:
    from segmentlog.maintain.restoration.restore import RestoredPartition


@arguments.command(
    arguments.WRITES,
    "segmentlog restore /b1 /b2 /b3 /var/lib/kafka --dry-run",
    "segmentlog restore /b1 /b2 /b3 /var/lib/kafka --topic orders --offsets groups.csv",
    "segmentlog restore /b1 /b2 /b3 --to /new1 --to /new2 --to /new3 --offset-map map.parquet",
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
            "--to",
            metavar="DIR",
            help="In place of DST: a log directory of one of the target's brokers; may be "
            "repeated. Each replica goes where the target's metadata assigns it.",
        ),
    ] = None,
    topic: arguments.Topics = None,
    since: arguments.Since = None,
    until: arguments.Until = None,
    target_metadata: Annotated[
        str | None,
        typer.Option(
            "--target-metadata",
            metavar="DIR",
            help="The log directory that holds the target's __cluster_metadata-0.",
        ),
    ] = None,
    server_properties: arguments.ServerProperties = None,
    open_transactions: Annotated[
        OpenTransactions,
        typer.Option(
            "--open-transactions",
            help="end leaves out the records of open transactions. leave-out leaves out all "
            "records from the first open transaction on.",
        ),
    ] = OpenTransactions.REFUSE,
    leave_out_replicas: Annotated[
        bool,
        typer.Option(
            "--leave-out-replicas",
            help="Restore partitions even if directories of some of their brokers are missing.",
        ),
    ] = False,
    include_deleted_topics: arguments.IncludeDeletedTopics = False,
    on_corrupt_batch: arguments.OnCorrupt = OnCorruptBatch.FAIL,
    offsets: Annotated[
        str | None,
        typer.Option(
            "--offsets",
            metavar="FILE",
            help="Write the committed offsets of groups, for kafka-consumer-groups.sh.",
        ),
    ] = None,
    offset_map: Annotated[
        str | None,
        typer.Option(
            "--offset-map",
            metavar="FILE.parquet",
            help="Write the old and the new offset of each record to this file.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan and the problems, and change nothing.")
    ] = False,
    as_json: arguments.JsonLines = False,
) -> None:
    """Restore topics of a lost cluster on the stopped brokers of another cluster.

    Records keep their offsets and times. The command first checks the target: the topics must
    exist there with the same number of partitions and without records, the log directory of each
    of their brokers must be given, and no setting may delete the records. In one log directory,
    either all topics are restored or none. The exit status is 1 if a dry run finds a problem.
    """  # fmt: skip
    import segmentlog
    from segmentlog.maintain.restoration.restore import offsets_csv
    from segmentlog.store.durable import OutputFile

    sources, targets = (paths, to) if to else (paths[:-1], paths[-1:])
    if not sources:
        message = "give the log directories of the lost cluster, and last that of the target"
        raise typer.BadParameter(message, param_hint="SRC... DST")
    files = {os.path.realpath(each) for each in (offsets, offset_map) if each is not None}
    if len(files) < (offsets is not None) + (offset_map is not None):
        message = "the two names lead to one file: give two files"
        raise typer.BadParameter(message, param_hint="--offsets, --offset-map")
    with contextlib.ExitStack() as stack:
        # Before the records: an error in the path is noticed early.
        file = None
        if offsets is not None:
            file = stack.enter_context(OutputFile("offsets", offsets))
        bar = stack.enter_context(progress("records restored", None, is_bytes=False))
        found = segmentlog.restore(
            *sources, to=targets, topics=topic or (),
            since=since, until=until, target_metadata=target_metadata,
            server_properties=server_properties, open_transactions=open_transactions,
            leave_out_replicas=leave_out_replicas, include_deleted_topics=include_deleted_topics,
            on_corrupt_batch=on_corrupt_batch, offset_map=offset_map, dry_run=dry_run,
            on_records=bar.advance, on_phase=bar.name,
        )  # fmt: skip
        text, command_line = offsets_csv(found.offsets)
        if file is not None:
            file.file.write(text.encode())
            file.finish()
            file.publish()
    for each in found.partitions:
        line = (
            to_json(json_fields(each))
            if as_json
            else restored_line(each, sources, targets, dry_run=dry_run)
        )
        sys.stdout.write(f"{line}\n")
    for problem in found.problems:
        complain(problem)
    if offsets is not None:
        sys.stderr.write(f"{escape(command_line.replace('FILE', offsets))}\n")
    if found.problems or any(each.problems for each in found.partitions):
        raise typer.Exit(arguments.PROBLEM)


def restored_line(
    found: "RestoredPartition", sources: Sequence[str], targets: Sequence[str], *, dry_run: bool
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
    arguments.READS,
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
        int,
        typer.Option(
            "--replication-factor", metavar="N", help="Number of replicas of each partition."
        ),
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
    import segmentlog
    from segmentlog.maintain.restoration.propose import creation_commands, reassignment_json

    if len(paths) < 2:
        message = "give log directories with the topics, and last one of the other cluster"
        raise typer.BadParameter(message, param_hint="SRC... DST")
    *sources, target = paths
    found = segmentlog.propose_placement(
        *sources, to=target, replication_factor=replication_factor, topics=topic or ()
    )
    lines = [reassignment_json(found)] if as_json else creation_commands(found)
    for line in lines:
        sys.stdout.write(f"{escape(line)}\n")
    if not found:
        complain("the other cluster has all topics")
