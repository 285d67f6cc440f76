"""``segmentlog preflight``: what a broker would do with its directories, before it starts."""

import sys
from collections import Counter
from typing import Annotated

import typer

import segmentlog
from segmentlog.maintain.start.steps import StartAction, StartStep
from segmentlog.model import METADATA_TOPIC
from segmentlog.tools.arguments import (
    PROBLEM,
    READS,
    AsJson,
    ServerProperties,
    Topics,
    command,
)
from segmentlog.tools.text import as_given, escape, json_fields, to_json

_MOST_AT_A_GLANCE = 20  #: lines


@command(
    READS,
    "segmentlog preflight /var/lib/kafka",
    "segmentlog preflight /disk1/kafka /disk2/kafka --server-properties server.properties",
    "segmentlog preflight /disk2/kafka --metadata-dir /disk1/kafka --kafka-version 4.3 --json",
)
def preflight(
    directories: Annotated[
        list[str], typer.Argument(metavar="DIR", help="All log directories of one broker.")
    ],
    topic: Topics = None,
    metadata: Annotated[
        str | None,
        typer.Option(
            "--metadata-dir",
            "--metadata",
            metavar="DIR",
            help="The broker's log directory that holds __cluster_metadata-0, if it is another "
            "directory.",
        ),
    ] = None,
    server_properties: ServerProperties = None,
    kafka_version: Annotated[
        str | None,
        typer.Option(
            "--kafka-version", metavar="VERSION", help="The version of Kafka that will start."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a starting broker would do with its log directories. Nothing is changed.

    Each line is a step of the start: refuse, offline, unserved, stray, empty, truncate, split,
    recover, rebuild, drop, delete, missing or keep; with the file that decides it, the reason, the
    loss and the remedy. The lines "unknown" name what the disks of one broker do not tell. The
    exit status is 1 if the broker would end, would not serve a log, or would lose offsets in a way
    that nobody has set.
    """  # fmt: skip
    remedies: set[str] = set()

    def show(step: StartStep) -> None:
        given = step._replace(path=as_given(step.path, directories))
        if as_json:
            sys.stdout.write(to_json(json_fields(given)) + "\n")
        elif step.action != StartAction.RECOVER or step.n_bytes:
            if given.remedy in remedies:  # a remedy for many logs is printed once
                given = given._replace(remedy="")
            remedies.add(given.remedy)
            sys.stdout.write(_line(given) + "\n")

    steps = segmentlog.preflight(
        *directories, topics=topic or (), metadata=metadata, server_properties=server_properties,
        kafka_version=kafka_version, on_step=show,
    )  # fmt: skip
    counts = Counter(step.action for step in steps)
    harm = [step for step in steps if step.has_harm or _is_loss(step)]
    if as_json:
        sys.stdout.write(to_json({each: counts[each] for each in StartAction}) + "\n")
    else:
        told = ", ".join(f"{counts[each]} {each}" for each in StartAction if counts[each])
        ends = any(step.action == StartAction.REFUSE for step in steps)
        verdict = "a broker would not start" if ends else (
            "a broker would start, and not keep everything" if harm
            else "nothing here keeps a broker from its start"
        )  # fmt: skip
        sys.stdout.write(f"{verdict}: {told}\n")
        if harm and len(steps) > _MOST_AT_A_GLANCE:  # else the lines above are seen
            for step in harm[:_MOST_AT_A_GLANCE]:
                sys.stdout.write(f"  {step.action}: {escape(as_given(step.path, directories))}\n")
            if len(harm) > _MOST_AT_A_GLANCE:
                sys.stdout.write(f"  and {len(harm) - _MOST_AT_A_GLANCE} more\n")
    if harm:
        raise typer.Exit(PROBLEM)


def _is_loss(step: StartStep) -> bool:
    """Whether a log is cut off, and not only a torn tail of it."""
    is_cut = step.action == StartAction.TRUNCATE
    return is_cut and (step.end_offset > step.offset or step.topic == METADATA_TOPIC)


def _line(step: StartStep) -> str:
    place = step.path + (f", offset {step.offset}" if step.offset >= 0 else "")
    return f"{step.action:8} {escape(place)}: {escape(step.message)}"
