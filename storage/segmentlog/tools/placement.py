"""``segmentlog placement``: brokers for topics that another cluster does not have yet."""

import sys
from typing import Annotated

import typer

from segmentlog.tools.arguments import READS, Topics, command
from segmentlog.tools.text import escape


@command(
    READS,
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
    topic: Topics = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print the file that kafka-reassign-partitions.sh takes."),
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
        sys.stderr.write("segmentlog: the other cluster has all topics\n")
