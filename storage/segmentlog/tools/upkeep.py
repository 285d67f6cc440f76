"""The commands that keep a log directory small, and the settings that they follow."""

import sys
import time
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

import typer

import segmentlog
from segmentlog.bucket.upkeep import place_in_store
from segmentlog.cluster.directory_settings import (
    OF_COMPACTION,
    OF_RETENTION,
    DirectorySettings,
    log_directory,
    partitions_for_upkeep,
)
from segmentlog.errors import CorruptCheckpointError, OptionError
from segmentlog.format.names import (
    CLEANER_OFFSET_CHECKPOINT,
    FileKind,
    segment_file_name,
    topics_command,
)
from segmentlog.log.checkpoint import read_offsets
from segmentlog.maintain.compaction.compact import (
    CompactedPartition,
    CompactionSettings,
    logs_to_clean,
)
from segmentlog.maintain.deletes import (
    DeletedRecords,
    DeletedTopic,
    DeleteRecordsOptions,
    DeleteTopicOptions,
    SweepOptions,
)
from segmentlog.maintain.retain import (
    KeptSegment,
    Reason,
    RemovedSegment,
    RetainOptions,
    doubtful_time,
)
from segmentlog.model import TopicPartition
from segmentlog.reads.log_directory import open_log_dir
from segmentlog.reads.metadata_log import is_of_a_broker
from segmentlog.store.paths import local_path
from segmentlog.store.system_errors import Failures
from segmentlog.times import iso_time
from segmentlog.tools import arguments
from segmentlog.tools.failures import Failed
from segmentlog.tools.output import aligned, counted, escape, json_fields, write_json
from segmentlog.tools.progress import progress
from segmentlog.tools.report import Report

AsOneObject = Annotated[bool, arguments.json_option("Print the result as one JSON object.")]


#: Of a log in an object store, in which readers may still need the objects.
_SWEPT = "the objects stay until segmentlog sweep removes them\n"


@arguments.command(
    "segmentlog delete-topic /data/logs orders --dry-run",
    "segmentlog delete-topic /data/logs orders",
)
@arguments.flags(DeleteTopicOptions, "dry_run")
def delete_topic(
    directory: arguments.Directory,
    topic: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC", help="The topic to delete.", autocompletion=arguments.complete_topic
        ),
    ],
    *,
    given: dict[str, Any],
    yes: arguments.Yes = False,
    as_json: AsOneObject = False,
) -> None:
    """Delete a topic: its partitions, checkpoint entries, settings and versions of writes.

    The topic is deleted as a whole or not at all. No broker may be running on the directory. A
    broker whose cluster knows the topic creates it again, empty, when it starts: also delete the
    topic there.
    """
    deleting = partial(segmentlog.delete_topic, directory, topic)
    dry_run = given["dry_run"]
    ask = None if dry_run else arguments.asking(yes=yes)
    if ask:
        ask(f"delete topic {escape(topic)}: {_topic_size(deleting(dry_run=True))}?")
    with progress("delete-topic", None, is_bytes=False):
        done = deleting(dry_run=dry_run)
    write, size = sys.stdout.write, _topic_size(done)
    if as_json:
        write_json({**json_fields(done), "dryRun": dry_run})
        return
    write(f"{'would delete' if dry_run else 'deleted'} topic {escape(topic)}: {size}\n")
    is_local = "://" not in directory
    if is_local and is_of_a_broker(local_path(directory)):
        write(
            "a broker whose cluster knows the topic will create it again, empty: run "
            f"{topics_command(escape(topic), '--delete', '')} there\n"
        )


def _topic_size(done: DeletedTopic) -> str:
    return counted(partitions=done.partitions, segments=done.segments, bytes=done.n_bytes)


@arguments.command(
    "segmentlog retain /data/logs --dry-run",
    "segmentlog retain /data/logs --topic orders --yes",
    "segmentlog retain /data/logs --explain",
    "segmentlog retain /var/lib/kafka --server-properties /etc/kafka/server.properties",
    "segmentlog retain /data/logs -s retention.ms=86400000 -s retention.bytes=1073741824",
)
@arguments.flags(
    RetainOptions,
    "dry_run",
    "settings",
    "metadata",
    "server_properties",
    "kafka_defaults",
    "purge",
)
def retain(
    directory: arguments.Directory,
    topic: arguments.Topics = None,
    *,
    given: dict[str, Any],
    explain: Annotated[
        bool,
        typer.Option(
            help="Also show the oldest segment of each partition that stays, and the record, the "
            "time and the setting that keep it; --dry-run always shows them, but not in JSON."
        ),
    ] = False,
    yes: arguments.Yes = False,
    as_json: arguments.AsJson = False,
) -> None:
    """Remove the segments that a broker's retention would remove, and show the reasons.

    Segments below the log start are removed. If cleanup.policy has delete, so are segments beyond
    retention.bytes and segments older than retention.ms. No broker may be running on the
    directory. The settings of the topic apply: `describe --settings` lists them. A limit that
    comes only from Kafka's defaults is refused, because the broker's server.properties may contain
    another limit: name this file, or give --kafka-defaults. A time that looks like seconds,
    microseconds or nanoseconds is marked.
    """
    failed, dry_run = Failed(), given.pop("dry_run")
    retaining = partial(segmentlog.retain, directory, topic or (), on_failure=failed.add, **given)
    write, ask = sys.stdout.write, None if dry_run else arguments.asking(yes=yes)
    kept: list[KeptSegment] = []
    on_kept = kept.append if explain or (dry_run and not as_json) else None
    with progress("retain", None, is_bytes=False):
        found = retaining(dry_run=dry_run or bool(ask), on_kept=on_kept)
    Report(_removed, as_json=as_json).show_all(found)
    Report(_kept, _kept_row, as_json=as_json).show_all(kept)
    if ask:
        if found:
            ask(f"remove {_segments(found)}?")
        with progress("retain", None, is_bytes=False):
            found = retaining()
    if as_json:
        n_bytes = sum(each.n_bytes for each in found)
        write_json({"segments": len(found), "bytes": n_bytes, "dryRun": dry_run})
        failed.end()
        return
    write(f"{'would remove' if dry_run else 'removed'} {_segments(found)}\n")
    if not dry_run and place_in_store(directory) is not None:
        write(_SWEPT if found else "")
    elif not dry_run:
        known = DirectorySettings.read(
            log_directory(directory),
            given["settings"],
            given["metadata"],
            given["server_properties"],
            topics=topic or (),
            purge=given["purge"],
            needs=OF_RETENTION,
        )
        _write_when_freed({each.topic for each in found}, known, "retain or write")
    failed.end()


def _removed(segment: RemovedSegment) -> str:
    offsets = f"offsets {segment.base_offset} to {segment.end_offset - 1}"
    where = f"{escape(segment.topic)}-{segment.partition}: {offsets}"
    return f"{where}, {counted(bytes=segment.n_bytes)}: {_why(segment)}"


def _kept(segment: KeptSegment) -> str:
    name = segment_file_name(segment.base_offset, FileKind.LOG)
    where = f"{escape(segment.topic)}-{segment.partition}: {name}"
    size = counted(bytes=segment.n_bytes)
    return f"{where}, {size}, stays, and so do all later segments: {segment.reason}"


def _kept_row(segment: KeptSegment) -> dict[str, object]:
    return {**json_fields(segment), "kept": True}


def _segments(removed: Sequence[RemovedSegment]) -> str:
    return counted(segments=len(removed), bytes=sum(each.n_bytes for each in removed))


def _why(segment: RemovedSegment) -> str:
    if segment.reason is Reason.START:
        return "below the log start"
    if segment.reason is Reason.SIZE:
        return f"the log is larger than {segment.limit} ({segment.source})"
    newest = "unknown" if segment.newest_ms is None else iso_time(segment.newest_ms)
    doubt = "" if segment.newest_ms is None else doubtful_time(segment.newest_ms)
    return (
        f"its newest record is from {newest}{doubt}, which is older than {segment.limit} "
        f"({segment.source})"
    )


@arguments.command(
    "segmentlog compact /data/logs --dry-run",
    "segmentlog compact /data/logs --topic customers",
    "segmentlog compact /data/logs -s min.cleanable.dirty.ratio=0.1",
    "segmentlog compact /data/logs --roll --purge --yes",
)
@arguments.flags(
    CompactionSettings,
    "dry_run",
    "settings",
    "dedupe_buffer_bytes",
    "roll",
    "metadata",
    "server_properties",
    "purge",
)
def compact(
    directory: arguments.Directory,
    topic: arguments.Topics = None,
    *,
    given: dict[str, Any],
    yes: arguments.Yes = False,
    as_json: arguments.AsJson = False,
) -> None:
    """Keep the last record of each key, as a broker's log cleaner does.

    Topics whose cleanup.policy has compact are compacted. A log is compacted up to its active
    segment if its share of dirty bytes is above min.cleanable.dirty.ratio. No broker may be
    running on the directory. The settings of the topic apply: `describe --settings` lists them.

    In a log in an object store, small segments of all topics are joined first. Writers and readers
    may be at work there.
    """
    topics, failed, dry_run = topic or (), Failed(), given.pop("dry_run")
    compacting = partial(segmentlog.compact, directory, topics, on_failure=failed.add, **given)
    settings = given["settings"]
    location = place_in_store(directory)
    path = log_directory(directory) if location is None else location.root
    known = DirectorySettings.read(
        path,
        settings,
        given["metadata"],
        given["server_properties"],
        topics=topics,
        purge=given["purge"],
        needs=OF_COMPACTION,
    )
    why_none = partial(_why_none, path, topics, known, has_settings=bool(settings))
    write, ask = sys.stdout.write, None if dry_run else arguments.asking(yes=yes)
    report = Report(_compacted, as_json=as_json)
    if dry_run or ask:
        planned = compacting(dry_run=True)
        if dry_run or not as_json:
            report.show_all(planned)
        if as_json and dry_run:
            _write_counts(planned, dry_run=True)
            failed.end()
            return
        size = counted(partitions=len(planned), bytes=sum(each.bytes_before for each in planned))
        if dry_run:
            write(f"would compact {size}{'' if planned else why_none()}\n")
            failed.end()
            return
        if ask and given["roll"]:
            ask("close active segments, and then compact the logs that are due?")
        elif ask and planned:
            ask(f"compact {size}?")
    with progress("compact", None, is_bytes=False) as bar:
        found = compacting(on_log=bar.begin, on_phase=bar.name)
    report.show_all(found)
    if as_json:
        _write_counts(found, dry_run=False)
        failed.end()
        return
    saved = sum(each.bytes_before - each.bytes_after for each in found)
    size = f"{counted(partitions=len(found))}, removed {counted(bytes=saved)}"
    write(f"compacted {size}{'' if found else why_none()}\n")
    if location is None:
        _write_when_freed({each.topic for each in found}, known, "compact or retain")
    else:
        write(_SWEPT if found else "")
    failed.end()


def _write_counts(found: Sequence[CompactedPartition], *, dry_run: bool) -> None:
    removed = 0 if dry_run else sum(each.bytes_before - each.bytes_after for each in found)
    counts = {"partitions": len(found), "bytesRemoved": removed, "dryRun": dry_run}
    write_json(counts)


def _why_none(
    path: str, topics: Collection[str], known: DirectorySettings, *, has_settings: bool
) -> str:
    """The reasons for which no partition is due, each with its number of partitions."""
    now_ms = int(time.time() * 1000)
    partitions = partitions_for_upkeep(path, topics, has_settings=has_settings)
    cleaned = read_offsets(path, CLEANER_OFFSET_CHECKPOINT)
    failures = Failures(lambda *_: None)  # which the compaction has named
    planned = logs_to_clean(path, partitions, known.config, cleaned, now_ms, failures)
    if not (planned or failures.errors):
        return ": no topic has cleanup.policy=compact (-s, or segmentlog configure)"
    reasons = Counter(each.why_not() for each in planned if not each.is_due)
    told = [f"{counted(partitions=n)}: {reason}" for reason, n in sorted(reasons.items())]
    return "".join(f"\n{each}" for each in told)


def _compacted(done: CompactedPartition) -> str:
    where = f"{escape(done.topic)}-{done.partition}"
    size = counted(segments=done.segments_before, bytes=done.bytes_before)
    if done.first_dirty_offset < 0:  # of a log in a store
        after = counted(segments=done.segments_after)
        joined = f"were joined into {after}" if done.n_passes else "would be joined"
        return f"{where}: {size} {joined}"
    dirty = f"dirty from offset {done.first_dirty_offset}, {done.dirty_ratio:.0%} of its bytes"
    planned = f"{size} would be read, up to offset {done.clean_to}"
    return f"{where}: {dirty}; {_gone(done) if done.n_passes else planned}"


def _gone(done: CompactedPartition) -> str:
    """The line of a compacted partition: its segments before and after."""
    before = counted(
        segments=done.segments_before, bytes=done.bytes_before, records=done.records_before
    )
    after = counted(
        segments=done.segments_after, bytes=done.bytes_after, records=done.records_after
    )
    passes = f" in {counted(passes=done.n_passes)}" if done.n_passes > 1 else ""
    keyless = f", {counted(records=done.records_without_key)} without a key removed"
    return (
        f"{before} became {after}{passes}{keyless if done.records_without_key else ''}; "
        f"clean up to offset {done.clean_to}"
    )


@arguments.command(
    "segmentlog delete-records /data/logs --topic orders --partition 0 --offset 1500",
    "segmentlog delete-records /data/logs --topic orders --before 2026-03-01",
)
@arguments.flags(DeleteRecordsOptions, "offset", "before", "dry_run", "purge")
def delete_records(
    directory: arguments.Directory,
    topic: Annotated[
        str, typer.Option(help="The topic.", autocompletion=arguments.complete_topic)
    ],
    partition: arguments.Partitions = None,
    *,
    given: dict[str, Any],
    yes: arguments.Yes = False,
    as_json: Annotated[
        bool, arguments.json_option("Print one JSON object per partition.")
    ] = False,
) -> None:
    """Delete the records of partitions below an offset, or before a time.

    The log start moves up, and segments below it are removed. Earlier records that share a segment
    with later records are hidden until their segment is removed. No broker may be running on the
    directory.
    """
    dry_run = given.pop("dry_run")
    if given["offset"] is not None and len(partition or ()) != 1:
        raise OptionError(
            "partition", "", "an offset belongs to one partition: name that partition"
        )
    opened = open_log_dir(directory)
    numbers = partition or opened.topics(internal=True).get(topic) or [-1]
    for number in numbers:
        with suppress(CorruptCheckpointError):  # named below
            opened.log(topic, number)  # refuse wrong names before the first is changed
    failed = Failed()

    def deleting(number: int, *, dry_run: bool = False) -> DeletedRecords:
        return segmentlog.delete_records(directory, topic, number, dry_run=dry_run, **given)

    ask = None if dry_run else arguments.asking(yes=yes)
    if dry_run or ask:
        planned = []
        with progress("delete-records", len(numbers), is_bytes=False) as bar:
            for number in numbers:
                bar.begin(f"{topic}-{number}")
                with failed.of(TopicPartition(topic, number)):
                    planned.append(deleting(number, dry_run=True))
        if dry_run or not as_json:
            _deleted(dry_run=True, as_json=as_json).show_all(planned)
        if dry_run:
            failed.end()
            return
        n_changed = sum(each.new_start > each.old_start or each.segments > 0 for each in planned)
        if ask and n_changed:
            ask(f"delete these records of {counted(partitions=n_changed)}?")
    n_segments, report = 0, _deleted(dry_run=False, as_json=as_json)
    for number in numbers:
        with failed.of(TopicPartition(topic, number)):
            done = deleting(number)
            n_segments += done.segments
            report.show(done)
    if n_segments and not as_json and place_in_store(directory) is not None:
        sys.stdout.write(_SWEPT)
    elif n_segments and not as_json:
        known = DirectorySettings.read(
            log_directory(directory),
            is_optional=True,
            topics=topic,
            purge=given["purge"],
            needs=(),
        )
        _write_when_freed([topic], known, "retain or write")
    failed.end()


def _deleted(*, dry_run: bool, as_json: bool) -> Report[DeletedRecords]:
    def line(done: DeletedRecords) -> str:
        where = f"{escape(done.topic)}-{done.partition}"
        if done.new_start == done.old_start and not done.segments:
            return f"{where}: begins at offset {done.old_start}; there are no earlier records"
        does = "would begin" if dry_run else "begins"
        gone = counted(segments=done.segments, bytes=done.n_bytes)
        goes = "would go" if dry_run else "are gone"
        begins = f"{does} at offset {done.new_start} instead of {done.old_start}"
        return f"{where}: {begins}; {gone} {goes}"

    return Report(line, lambda done: {**json_fields(done), "dryRun": dry_run}, as_json=as_json)


@arguments.command(
    "segmentlog sweep s3://bucket/logs --dry-run",
    "segmentlog sweep s3://bucket/logs --longest-job-days 2",
)
@arguments.flags(SweepOptions, "longest_job_days", "longest_read_days", "dry_run")
def sweep(
    url: Annotated[str, typer.Argument(metavar="URL", help="A log in an object store.")],
    *,
    given: dict[str, Any],
    as_json: arguments.AsJson = False,
) -> None:
    """Remove the objects of a log in an object store that have none of its records.

    These are objects of failed jobs and lost attempts of tasks, and of records that were deleted.
    Writers and readers may be at work. All records of the log stay.
    """
    done, dry_run = segmentlog.sweep(url, **given), given["dry_run"]
    if as_json:
        row = {
            "keys": done.keys,
            "bytes": done.n_bytes,
            "retired": done.retired,
            "kept": done.kept,
        }
        write_json({**row, "dryRun": dry_run})
        return
    for key in done.keys:
        sys.stdout.write(f"{escape(key)}\n")
    size = counted(objects=len(done.keys), bytes=done.n_bytes)
    ended = counted(jobs=len(done.retired))
    verb = "would remove" if dry_run else "removed"
    sys.stdout.write(f"{verb} {size}; {ended} ended\n")
    if done.kept:
        held = counted(objects=len(done.kept))
        sys.stdout.write(
            f"{held} with records that have left the log, erased ones too, stay for reads of the "
            f"last {given['longest_read_days']:g} days: sweep again then\n"
        )


@arguments.command("segmentlog upgrade s3://bucket/logs")
def upgrade(
    url: Annotated[str, typer.Argument(metavar="URL", help="A log in an object store.")],
    as_json: arguments.AsJson = False,
) -> None:
    """Move a log in an object store to the newest layout.

    Writers and readers may be at work. Those of earlier versions refuse the log from then on, and
    change nothing.
    """
    done = segmentlog.upgrade(url)
    if as_json:
        write_json({**json_fields(done)})
        return
    verb = "moved to" if done.is_new else "has"
    sys.stdout.write(f"{verb} layout {done.layout}, from commit {done.commit} on\n")


@arguments.command(
    "segmentlog configure /data/logs -s segment.bytes=67108864",
    "segmentlog configure /data/logs --topic orders -s retention.ms=86400000",
    "segmentlog configure /data/logs --topic orders --remove retention.ms",
)
def configure(
    directory: arguments.Directory,
    topic: Annotated[
        str | None,
        typer.Option(help="Only for this topic.", autocompletion=arguments.complete_topic),
    ] = None,
    setting: arguments.Settings = None,
    remove: Annotated[
        list[str] | None, typer.Option(help="A setting to remove; may be repeated.")
    ] = None,
    as_json: Annotated[bool, arguments.json_option("Print one JSON object per setting.")] = False,
) -> None:
    """Store settings of topics in a directory without a broker, and list them.

    Writers, retention and compaction use these settings. Without --topic, they are the defaults of
    all topics. The settings of a broker's topics are changed with kafka-configs.sh.
    """
    settings = arguments.parse_settings(setting)
    if settings or remove:
        segmentlog.alter_settings(directory, topic, settings, remove=remove or ())
    found = segmentlog.topic_settings(directory, topic)
    if as_json:
        for name, each in found.items():
            row = {"setting": name, "value": each.value, "source": str(each.source)}
            write_json(row)
        return
    cells = [[name, each.value, str(each.source)] for name, each in found.items()]
    sys.stdout.write(aligned(["setting", "value", "source"], cells, [False, True, False]))


def _write_when_freed(topics: Collection[str], known: DirectorySettings, next_one: str) -> None:
    """Say when the disk space of removed segments is free, unless it is by now."""
    delay_ms = max((known.config(each).file_delete_delay_ms for each in topics), default=0)
    if delay_ms:
        sys.stdout.write(
            f"the files stay as .deleted for file.delete.delay.ms={delay_ms}: the next "
            f"{next_one} after this delay frees their space; --purge frees it at once\n"
        )
