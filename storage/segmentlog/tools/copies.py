"""``segmentlog replicas``, ``compare`` and ``mirror``: copies of logs in several directories."""

import sys
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import typer

import segmentlog
from segmentlog.cluster.follower import MirroredPartition
from segmentlog.cluster.mirror import MirrorOptions
from segmentlog.cluster.replicated import Replica, ReplicatedPartition, open_replicas
from segmentlog.maintain.verification.compare import ComparedPartition
from segmentlog.operation_options import CorruptOptions, DeletedTopicsOptions
from segmentlog.reads.choose import missing_of, partitions_of
from segmentlog.reads.log_directory import open_log_dir
from segmentlog.times import iso_time
from segmentlog.tools import arguments
from segmentlog.tools.failures import Failed, end_with_status
from segmentlog.tools.output import (
    aligned,
    as_given,
    cell,
    complain,
    counted,
    escape,
    write_json,
)
from segmentlog.tools.progress import progress
from segmentlog.tools.report import Report
from segmentlog.tools.usage import write_not_in_use


@arguments.command(
    "segmentlog replicas /b1 /b2 /b3",
    "segmentlog replicas /b1 /b2 /b3 --topic orders --json",
)
@arguments.flags(DeletedTopicsOptions, "include_deleted_topics")
def replicas(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="DIR", help="The log directories of a cluster's brokers."),
    ],
    topic: arguments.Topics = None,
    partition: arguments.Partitions = None,
    *,
    given: dict[str, Any],
    as_json: arguments.JsonLines = False,
) -> None:
    """Show which copy of each partition is the log, and where the other copies differ.

    An equal or a shorter copy has only records of the log. A diverging copy has records that the
    log lacks: a broker would truncate this copy at the shown offset. These records were
    acknowledged if the high watermark of the copy lies beyond this offset. The exit status is 1 if
    a copy diverges, or if the best copy may not be the log.
    """
    found, failed = list[ReplicatedPartition](), Failed()
    with progress("replicas", None, is_bytes=False) as bar:
        directory = open_replicas(*paths, **given)
        missing = missing_of(directory, topic or (), partition or ())
        for topic_partition in partitions_of(directory, topic or (), partition or (), missing):
            bar.begin(str(topic_partition))
            with failed.of(topic_partition):
                found.append(directory.replicated(*topic_partition))
    if as_json:
        for each in found:
            row = each._asdict() | {"replicas": [copy._asdict() for copy in each.replicas]}
            write_json(row)
    else:
        sys.stdout.write(_replicas(found))
        for each in found:
            name = f"{each.topic}-{each.partition}"
            if each.warning:
                complain(f"{name}: {each.warning}")
            for path in each.others:
                complain(f"{name}: {path} is not a copy of it now")
    for lost in missing:
        failed.add(lost.topic_partition, lost.reason)
    failed.end()
    end_with_status(found)


def _replicas(found: Sequence[ReplicatedPartition]) -> str:
    heading = ("topic", "partition", "broker", "epoch", "start", "end", "high watermark", "")
    rows = [
        (
            escape(each.topic),
            str(each.partition),
            cell(copy.node_id),
            cell(copy.leader_epoch),
            str(copy.log_start_offset),
            str(copy.log_end_offset),
            cell(copy.high_watermark),
            _role(each, copy),
        )
        for each in found
        for copy in each.replicas
    ]
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


@arguments.command(
    "segmentlog compare /var/lib/kafka /backup/kafka",
    "segmentlog compare /var/lib/kafka /backup/kafka --topic orders --json",
)
@arguments.flags(CorruptOptions, "on_corrupt_batch")
def compare(
    left: Annotated[str, typer.Argument(metavar="LEFT", help="A log directory.")],
    right: Annotated[str, typer.Argument(metavar="RIGHT", help="Another log directory.")],
    topic: arguments.Topics = None,
    *,
    given: dict[str, Any],
    as_json: arguments.JsonLines = False,
) -> None:
    """Compare the records of two log directories, such as a copy with its original.

    The command compares records, not files: equal logs may have different segments, batches and
    codecs. With --json, equal digests prove that records are equal, because a digest depends only
    on the records. A partition that cannot be read is named with the reason, and the others are
    compared. The exit status is 0 if all partitions are equal, and 1 if not.
    """
    report = Report(_compared, _compared_row, as_json=as_json)
    with progress("compared", None) as bar:

        def show(found: ComparedPartition) -> None:
            bar.name(f"{found.topic}-{found.partition}")
            report.show(found, bar.write)

        sides = [open_log_dir(each) for each in (left, right)]
        found = segmentlog.compare(
            *sides, topics=topic or (), on_partition=show, on_bytes=bar.advance, **given
        )
    for each in sides:
        write_not_in_use(each, topic or ())
    if not found and not as_json:
        complain("neither directory has a partition")
    report.end()


def _compared_row(found: ComparedPartition) -> dict[str, object]:
    row = found._asdict()
    for side in ("left", "right"):
        row[side] = row[side] and row[side]._asdict()
    return row


def _compared(found: ComparedPartition) -> str:
    name = escape(f"{found.topic}-{found.partition}")
    left, right = found.left, found.right
    if found.comparison == "unreadable":
        return f"{name}: unreadable: {escape(found.error or '')}"
    if left is None or right is None:
        there, side = ("left", left) if right is None else ("right", right)
        where = f"; {escape(found.error)}" if found.error else ""
        return f"{name}: only {there}: {side.n_records if side else 0} records{where}"
    ranges = [f"[{each.log_start_offset}, {each.log_end_offset})" for each in (left, right)]
    if found.diverges_at is not None:
        fields = ", ".join(found.differs_in)
        how = f" in {fields}" if fields else ", where only one has a record"
        return f"{name}: differs at offset {found.diverges_at}{how}: {ranges[0]}, {ranges[1]}"
    if found.comparison == "disjoint":
        return f"{name}: nothing in common: {ranges[0]}, {ranges[1]}"
    if ranges[0] == ranges[1]:
        return f"{name}: equal: {left.n_records} records in {ranges[0]}"
    return f"{name}: equal where both have offsets: {ranges[0]}, {ranges[1]}"


@arguments.command(
    "segmentlog mirror /var/lib/kafka /backup/kafka",
    "segmentlog mirror /b1 /b2 /b3 /backup/kafka --dry-run",
    "segmentlog mirror /b1 /b2 /b3 /backup/kafka --topic orders --json",
    "segmentlog mirror /var/lib/kafka s3://bucket/backup",
)
@arguments.flags(MirrorOptions, "assigned", "include_deleted_topics", "dry_run")
def mirror(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="SRC... DST",
            help=(
                "The log directories of a cluster's brokers, and last the directory of the copy, "
                "or the URL of a log in an object store."
            ),
        ),
    ],
    topic: arguments.Topics = None,
    partition: arguments.Partitions = None,
    *,
    given: dict[str, Any],
    as_json: arguments.JsonLines = False,
) -> None:
    """Copy partitions byte by byte, and continue an interrupted copy.

    If several brokers have a partition, the command copies the log, as `replicas` shows it. A
    broker may run on the sources, but not on the destination. If the destination has records that
    the log lacks, it is truncated where a broker would truncate it, and the removed bytes are kept
    beside the log in .broken files. Copied bytes are read again and compared.
    """
    if len(paths) < 2:
        message = "give the log directories to copy, and last the directory of the copy"
        raise typer.BadParameter(message, param_hint="SRC... DST")
    *sources, destination = paths
    failed = Failed()
    mirrored = partial(_mirrored, paths=paths, dry_run=given["dry_run"])
    report = Report[MirroredPartition](mirrored, as_json=as_json)
    with progress("copied", None) as bar:

        def show(found: MirroredPartition) -> None:
            bar.name(f"{found.topic}-{found.partition}")
            report.show(found, bar.write)

        found = segmentlog.mirror(
            *sources,
            to=destination,
            topics=topic or (),
            partitions=partition or (),
            on_partition=show,
            on_bytes=bar.advance,
            on_phase=bar.name,
            on_failure=failed.add,
            **given,
        )
    source = open_replicas(*sources, include_deleted_topics=given["include_deleted_topics"])
    write_not_in_use(source, topic or ())
    for each in found:
        if each.has_problem:  # a warning has named it
            failed.add(f"{each.topic}-{each.partition}")
    if not (found or failed.names or as_json):
        reason = (
            f"the metadata assigns no partition of the sources to {destination}"
            if given["assigned"]
            else "the sources have no such partition"
        )
        complain(reason)
    failed.end()


def _mirrored(found: MirroredPartition, paths: Sequence[str], *, dry_run: bool) -> str:
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
        if "://" in paths[-1]:
            text += ", whose records, erased ones too, stay in the store until segmentlog sweep"
    return text
