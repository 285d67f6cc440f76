"""``segmentlog replicas``: which copy of each partition is the log; where the others differ."""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from segmentlog.cluster.replicated import Replica, ReplicatedPartition, open_replicas
from segmentlog.reads.choose import partitions_of
from segmentlog.times import iso_time
from segmentlog.tools.arguments import (
    PROBLEM,
    READS,
    IncludeDeletedTopics,
    Partitions,
    Topics,
    command,
)
from segmentlog.tools.text import aligned, escape, to_json


@command(
    READS,
    "segmentlog replicas /b1 /b2 /b3",
    "segmentlog replicas /b1 /b2 /b3 --topic orders --json",
)
def replicas(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="DIR", help="The log directories of a cluster's brokers."),
    ],
    topic: Topics = None,
    partition: Partitions = None,
    include_deleted_topics: IncludeDeletedTopics = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line.")
    ] = False,
) -> None:
    """Show which copy of each partition is the log, and where the other copies differ.

    An equal or a shorter copy has only records of the log. A diverging copy has records that the
    log lacks: a broker would truncate this copy at the shown offset. These records were
    acknowledged if the high watermark of the copy lies beyond this offset. The exit status is 1 if
    a copy diverges, or if the best copy may not be the log.
    """
    directory = open_replicas(*paths, include_deleted_topics=include_deleted_topics)
    chosen = partitions_of(directory, topic or (), partition or ())
    found = [directory.replicated(*each) for each in chosen]
    if as_json:
        for each in found:
            row = each._asdict() | {"replicas": [copy._asdict() for copy in each.replicas]}
            sys.stdout.write(f"{to_json(row)}\n")
    else:
        sys.stdout.write(_table(found))
        for each in found:
            name = escape(f"{each.topic}-{each.partition}")
            if each.warning:
                sys.stderr.write(f"segmentlog: {name}: {escape(each.warning)}\n")
            for path in each.others:
                sys.stderr.write(f"segmentlog: {name}: {escape(path)} is not a copy of it now\n")
    if any(
        each.warning or any(copy.diverges_at is not None for copy in each.replicas)
        for each in found
    ):
        raise typer.Exit(PROBLEM)


def _table(found: Sequence[ReplicatedPartition]) -> str:
    heading = ("topic", "partition", "broker", "epoch", "start", "end", "high watermark", "")
    rows = [
        (
            escape(each.topic), str(each.partition), _cell(copy.node_id), _cell(copy.leader_epoch),
            str(copy.log_start_offset), str(copy.log_end_offset), _cell(copy.high_watermark),
            _role(each, copy),
        )
        for each in found
        for copy in each.replicas
    ]  # fmt: skip
    return aligned(heading, rows, (False, *(True,) * 6, False))


def _role(partition: ReplicatedPartition, copy: Replica) -> str:
    if copy.is_log:
        return f"the log: {partition.reason}"
    if copy.diverges_at is None:
        (log,) = (each for each in partition.replicas if each.is_log)
        return "equal" if copy.log_end_offset == log.log_end_offset else "shorter"
    text = f"diverges at {copy.diverges_at}: {copy.n_diverging} records"
    if copy.first_timestamp_ms is not None and copy.last_timestamp_ms is not None:
        first, last = map(iso_time, (copy.first_timestamp_ms, copy.last_timestamp_ms))
        text += f", {first} to {last}"
    return f"{text}, acknowledged" if copy.was_acknowledged else text


def _cell(value: int | None) -> str:
    return "-" if value is None else str(value)
