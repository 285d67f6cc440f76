"""Lines of the commands of upkeep, and of ``describe --settings``."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from segmentlog.compaction.compact import compact
from segmentlog.compaction.plan import CompactedPartition, plan_compaction
from segmentlog.errors import OptionError
from segmentlog.layout.checkpoint import read_offsets
from segmentlog.logs.log_directory import open_log_dir
from segmentlog.names import CLEANER_OFFSET_CHECKPOINT
from segmentlog.settings.alter import alter_settings, topic_settings
from segmentlog.settings.directory_settings import DirectorySettings
from segmentlog.tools.arguments import Ask
from segmentlog.tools.tables import aligned
from segmentlog.tools.text import counted, escape, iso_time, to_json
from segmentlog.upkeep.delete_records import DeletedRecords, delete_records
from segmentlog.upkeep.places import log_directory, partitions_of
from segmentlog.upkeep.retain import Reason, RemovedSegment, retain

__all__ = ["compact_and_tell", "configure_and_tell", "delete_records_and_tell", "parse_settings",
           "retain_and_tell", "write_settings"]  # fmt: skip

_Write = Callable[[str], object]


def parse_settings(given: Sequence[str]) -> dict[str, str]:
    """Settings as ``retention.ms=86400000``.

    Raises
    ------
    OptionError
        If one has no ``=``.
    """
    settings = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign:
            raise OptionError("setting", text, "give a name and a value: retention.ms=86400000")
        settings[name.strip()] = value
    return settings


def retain_and_tell(
    path: str,
    topics: Collection[str],
    settings: Mapping[str, str],
    write: _Write,
    *,
    dry_run: bool = False,
    metadata: str | None = None,
    server_properties: str | None = None,
    kafka_defaults: bool = False,
    purge: bool = False,
    ask: Ask | None = None,
) -> None:
    """Remove expired segments, and write a line for each of them and a line for all.

    Parameters
    ----------
    path, topics, settings, dry_run, metadata, server_properties, kafka_defaults, purge : see
        `segmentlog.retain`.
    write : takes each line.
    ask : asks before segments are removed.

    Raises
    ------
    SegmentLogError
        See `segmentlog.retain`.
    """
    retaining = partial(
        retain, path, topics, settings=settings, metadata=metadata,
        server_properties=server_properties, kafka_defaults=kafka_defaults, purge=purge,
    )  # fmt: skip
    found = retaining(dry_run=True) if dry_run or ask else retaining()
    for each in found:
        offsets = f"offsets {each.base_offset} to {each.end_offset - 1}"
        where = f"{escape(each.topic)}-{each.partition}: {offsets}"
        write(f"{where}, {counted(bytes=each.n_bytes)}: {_why(each)}\n")
    if ask and not dry_run:
        if found:
            ask(f"remove {_size(found)}?")
        found = retaining()
    write(f"{'would remove' if dry_run else 'removed'} {_size(found)}\n")
    if not dry_run:
        known = DirectorySettings.read(
            log_directory(path), settings, metadata, server_properties, topics=topics, purge=purge
        )
        _write_when_freed({each.topic for each in found}, known, "retain or write", write)


def _write_when_freed(
    topics: Collection[str], known: DirectorySettings, next_one: str, write: _Write
) -> None:
    """Say when the disk space of removed segments is free, unless it is by now."""
    delay_ms = max((known.config(each).file_delete_delay_ms for each in topics), default=0)
    if delay_ms:
        write(
            f"the files stay as .deleted for file.delete.delay.ms={delay_ms}: the next {next_one} "
            "after that frees their space, --purge frees it at once\n"
        )


def _size(removed: Sequence[RemovedSegment]) -> str:
    return counted(segments=len(removed), bytes=sum(each.n_bytes for each in removed))


def _why(segment: RemovedSegment) -> str:
    """The reason in words."""
    if segment.reason is Reason.START:
        return "below the log start"
    if segment.reason is Reason.SIZE:
        return f"the log is larger than {segment.limit} ({segment.source})"
    newest = "unknown" if segment.newest_ms is None else iso_time(segment.newest_ms)
    return f"its newest record is of {newest}, older than {segment.limit} ({segment.source})"


def compact_and_tell(
    path: str,
    topics: Collection[str],
    settings: Mapping[str, str],
    write: _Write,
    *,
    dry_run: bool = False,
    dedupe_buffer_bytes: int = 128 << 20,
    metadata: str | None = None,
    server_properties: str | None = None,
    roll: bool = False,
    purge: bool = False,
    ask: Ask | None = None,
) -> None:
    """Compact logs, and write a line for each partition and a line for all.

    Parameters
    ----------
    path, topics, settings, dry_run, dedupe_buffer_bytes, metadata, server_properties, roll,
    purge : see `segmentlog.compact`.
    write : takes each line.
    ask : asks before logs are compacted.

    Raises
    ------
    SegmentLogError
        See `segmentlog.compact`.
    """
    compacting = partial(
        compact, path, topics, settings=settings, dedupe_buffer_bytes=dedupe_buffer_bytes,
        metadata=metadata, server_properties=server_properties, roll=roll, purge=purge,
    )  # fmt: skip
    known = DirectorySettings.read(
        log_directory(path), settings, metadata, server_properties, topics=topics, purge=purge
    )
    why_none = partial(_why_none, path, topics, known, has_settings=bool(settings))
    if dry_run or ask:
        planned = compacting(dry_run=True)
        _write_compacted(planned, write)
        size = counted(partitions=len(planned), bytes=sum(each.bytes_before for each in planned))
        if dry_run:
            write(f"would compact {size}{'' if planned else why_none()}\n")
            return
        if ask and roll:
            ask("close active segments, and compact the logs that are due then?")
        elif ask and planned:
            ask(f"compact {size}?")
    found = compacting()
    _write_compacted(found, write)
    saved = sum(each.bytes_before - each.bytes_after for each in found)
    size = f"{counted(partitions=len(found))}, removed {counted(bytes=saved)}"
    write(f"compacted {size}{'' if found else why_none()}\n")
    _write_when_freed({each.topic for each in found}, known, "compact or retain", write)


def _why_none(
    path: str, topics: Collection[str], known: DirectorySettings, *, has_settings: bool
) -> str:
    """The reasons for which no partition is due, each with its number of partitions."""
    directory, now_ms = log_directory(path), int(time.time() * 1000)
    partitions = partitions_of(directory, topics, has_settings=has_settings)
    cleaned = read_offsets(directory, CLEANER_OFFSET_CHECKPOINT)
    planned = plan_compaction(directory, partitions, known, cleaned, now_ms)
    if not planned:
        return ": no topic has cleanup.policy=compact (-s, or segmentlog configure)"
    reasons = Counter(each.why_not() for each in planned if not each.is_due)
    told = [f"{counted(partitions=n)}: {reason}" for reason, n in sorted(reasons.items())]
    return "".join(f"\n{each}" for each in told)


def _write_compacted(found: Sequence[CompactedPartition], write: _Write) -> None:
    """The line of each partition."""
    for each in found:
        where = f"{escape(each.topic)}-{each.partition}"
        dirty = f"dirty from offset {each.first_dirty_offset}, {each.dirty_ratio:.0%} of its bytes"
        write(f"{where}: {dirty}; {_gone(each) if each.n_passes else _to_go(each)}\n")


def _to_go(planned: CompactedPartition) -> str:
    """The line of a partition in a dry run: the segments that a compaction would go through."""
    size = counted(segments=planned.segments_before, bytes=planned.bytes_before)
    return f"{size} would be gone through, up to offset {planned.clean_to}"


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


def delete_records_and_tell(
    path: str,
    topic: str,
    partitions: Collection[int],
    write: _Write,
    *,
    offset: int | None = None,
    before: int | None = None,
    dry_run: bool = False,
    purge: bool = False,
    ask: Ask | None = None,
) -> None:
    """Delete records of some partitions, and write a line for each of them.

    Parameters
    ----------
    partitions : their numbers; all of the topic if empty, and only with `before`.
    path, topic, offset, before, dry_run, purge : see `segmentlog.delete_records`.
    ask : asks before records are deleted.

    Raises
    ------
    OptionError
        If an offset is given, but not one partition.
    SegmentLogError
        See `segmentlog.delete_records`.
    """
    if offset is not None and len(partitions) != 1:
        raise OptionError("partition", "", "an offset is one partition's: name this one")
    opened = open_log_dir(path)
    numbers = partitions or opened.topics(internal=True).get(topic) or [-1]
    for partition in numbers:
        opened.log(topic, partition)  # refuse all before the first is changed
    deleting = partial(delete_records, path, topic, offset=offset, before=before, purge=purge)
    if dry_run or ask:
        n_changed = 0
        for partition in numbers:
            planned = deleting(partition, dry_run=True)
            n_changed += planned.new_start > planned.old_start or planned.segments > 0
            _write_deleted(planned, write, dry_run=True)
        if dry_run:
            return
        if ask and n_changed:
            ask(f"delete these records of {counted(partitions=n_changed)}?")
    n_segments = 0
    for partition in numbers:
        done = deleting(partition)
        n_segments += done.segments
        _write_deleted(done, write)
    if n_segments:
        known = DirectorySettings.read(
            log_directory(path), is_optional=True, topics=topic, purge=purge
        )
        _write_when_freed([topic], known, "retain or write", write)


def _write_deleted(done: DeletedRecords, write: _Write, *, dry_run: bool = False) -> None:
    """The line of a partition."""
    where = f"{escape(done.topic)}-{done.partition}"
    if done.new_start == done.old_start and not done.segments:
        write(f"{where}: begins at offset {done.old_start}; nothing is older\n")
        return
    does = "would begin" if dry_run else "begins"
    gone = counted(segments=done.segments, bytes=done.n_bytes)
    goes = "would go" if dry_run else "are gone"
    begins = f"{does} at offset {done.new_start} instead of {done.old_start}"
    write(f"{where}: {begins}; {gone} {goes}\n")


def configure_and_tell(
    path: str,
    topic: str | None,
    settings: Mapping[str, str],
    removed: Collection[str],
    write: _Write,
) -> None:
    """Keep settings, and write what is kept now.

    Raises
    ------
    SegmentLogError
        See `segmentlog.alter_settings`.
    """
    if settings or removed:
        alter_settings(path, topic, settings, removed=removed)
    found = topic_settings(path, topic)
    cells = [[name, each.value, str(each.source)] for name, each in found.items()]
    write(aligned(["setting", "value", "source"], cells, [False, True, False]))


def write_settings(
    paths: Sequence[str],
    topics: Collection[str],
    *,
    as_json: bool = False,
    metadata: str | None = None,
    server_properties: str | None = None,
) -> None:
    """Write each setting of each topic, and where it comes from.

    Parameters
    ----------
    paths : log directories.
    topics : their names; all topics if empty.
    as_json : whether to write one object a line.
    metadata, server_properties : see `segmentlog.topic_settings`.

    Raises
    ------
    SegmentLogError
        If a path is not a log directory, or settings cannot be read.
    """
    rows = []
    for path in paths:
        opened = open_log_dir(path)
        held = opened.topics(internal=True)
        for topic in topics:
            if topic not in held:
                opened.log(topic, -1)  # raises, and names the nearest topic
        directory = log_directory(path)
        known = DirectorySettings.read(directory, None, metadata, server_properties)
        for topic in sorted(topics) or sorted(held):
            rows += [(topic, name, *each) for name, each in known.of(topic).items()]
    names = ["topic", "setting", "value", "source"]
    if as_json:
        for row in rows:
            sys.stdout.write(to_json(dict(zip(names, map(str, row), strict=True))) + "\n")
        return
    cells = [[escape(str(cell)) for cell in row] for row in rows]
    sys.stdout.write(aligned(names, cells, [False, False, True, False]))
