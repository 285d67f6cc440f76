"""The records of a cluster's metadata, in the order in which they take effect.

The log is the partition directory ``__cluster_metadata-0``, on one disk of every controller and
broker.  A snapshot (``<end offset>-<epoch>.checkpoint``) has the state up to its end offset, and
the records at and after that offset change it.  A snapshot without its last batch, the footer, is
not whole and is not used.

The log is read to its end.  In a cluster of several controllers, the last records may not have
been committed yet: the high watermark of this log is not on disk.

Rules: KIP-595, KIP-630, KIP-868 (transactions), ``RecordsSnapshotReader``, ``MetadataLoader``.
"""

import errno
import heapq
import logging
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from segmentlog.errors import LogDirectoryError, MalformedRecordError, SegmentLogError
from segmentlog.format.messages.reader import Schema
from segmentlog.format.messages.records import (
    frame_key,
    framed_schemas,
    look_at,
    read_control,
    read_frame,
)
from segmentlog.format.names import BOOTSTRAP_FILE, META_PROPERTIES_FILE, partition_path
from segmentlog.format.newer import note
from segmentlog.log.listing import ListedFiles, Listing, SegmentFiles, list_segments
from segmentlog.log.segment import PlacedHeader, Segment
from segmentlog.model import METADATA_TOPIC, OnCorruptBatch, ScanPolicy, TopicPartition
from segmentlog.reads.listed import ListedSegments, cut_slices
from segmentlog.store.readable import exists, is_directory, list_names, open_file, status_of

logger = logging.getLogger(__name__)

#: The offset of a record of a snapshot, where its number in the log is lost.
IN_A_SNAPSHOT = -1

_PARTITION = TopicPartition(METADATA_TOPIC, 0)
_SNAPSHOT = re.compile(r"(?P<offset>[0-9]{20})-(?P<epoch>[0-9]{10})\.checkpoint")
#: Records of the quorum (KIP-595, KIP-853), which are control records.
CONTROL_RECORDS = frozenset({"LeaderChangeMessage", "KRaftVersionRecord", "VotersRecord"})
_TRANSACTIONS = ("BeginTransactionRecord", "EndTransactionRecord", "AbortTransactionRecord")


class MetadataRecord(NamedTuple):
    """A record of the metadata."""

    name: str  # of its schema
    fields: Mapping[str, Any]  # by their names in snake case
    offset: int  # in the log, or `IN_A_SNAPSHOT`
    timestamp_ms: int  # of the record


class MetadataSnapshot(NamedTuple):
    """A snapshot file, and the offset and the epoch in the log after its last change."""

    end_offset: int
    path: str
    epoch: int = 0


def metadata_path(directory: str) -> str | None:
    """Path of the metadata log in a log directory, or None if there is none."""
    path = partition_path(directory, _PARTITION)
    return path if is_directory(path) else None


def is_of_a_broker(directory: str) -> bool:
    """Whether a log directory is, or is a copy of, a broker's, or was formatted for one."""
    files = (META_PROPERTIES_FILE, BOOTSTRAP_FILE)
    is_formatted = any(exists(os.path.join(directory, each)) for each in files)
    return is_formatted or metadata_path(directory) is not None


def newest_metadata(directories: Iterable[str]) -> str | None:
    """The metadata log with the greatest last epoch, then the last end; None without a copy."""
    found = [path for each in directories if (path := metadata_path(each)) is not None]
    if len(found) < 2:
        return found[0] if found else None
    return max(found, key=_reach)


def _reach(path: str) -> tuple[int, int]:
    listed = ListedSegments(Listing(list_segments(path)))
    snapshots = list_metadata_snapshots(path)
    epoch, end = max(((each.epoch, each.end_offset) for each in snapshots), default=(0, 0))
    if listed.files and listed.end.offset >= end:
        last = None
        for segment in reversed(listed.untorn):
            for placed in segment.headers(0):
                last = placed.header
            if last is not None:
                return last.leader_epoch, listed.end.offset
    return epoch, end


def read_metadata(
    path: str,
    names: Collection[str],
    *,
    is_history: bool = False,
    policy: ScanPolicy | None = None,
    end_offset: int | None = None,
) -> Iterator[MetadataRecord]:
    """Records of the metadata, in the order in which they take effect.

    The records of a transaction come when it ends, and those of an aborted or unfinished one do
    not come.

    `path`: of the directory ``__cluster_metadata-0``.  `names`: of the schemas of the records that
    are wanted.  Other records are not decoded, so that a later version of them does no harm.
    `is_history`: whether the records begin with the oldest that are kept, and not with the newest
    snapshot.  `policy`: its `on_corrupt_batch` decides whether damage, and records that cannot be
    read, are left out with a warning.  `end_offset`: up to which the log is read; None for its
    end.  Raises `MalformedRecordError` if a record cannot be decoded, or has a version that is not
    known; `LogDirectoryError` if records between the snapshot and the log are missing, the end is
    damaged, or a file may not be read; `CorruptLogError` if a batch is damaged.
    """
    policy = policy or ScanPolicy()
    schemas, control = _schemas({*names, *_TRANSACTIONS}), CONTROL_RECORDS.intersection(names)
    pending: list[MetadataRecord] | None = None  # of a transaction that has not ended
    for record in _readable(
        path, _records(path, schemas, control, policy, end_offset, is_history=is_history)
    ):
        if record.name in CONTROL_RECORDS:
            yield record  # of the quorum, and in no transaction
        elif record.name == "BeginTransactionRecord":
            pending = []
        elif record.name == "AbortTransactionRecord":
            pending = None
        elif record.name == "EndTransactionRecord":
            yield from pending or ()
            pending = None
        elif pending is not None:
            pending.append(record)
        else:
            yield record


def _readable(path: str, records: Iterator[MetadataRecord]) -> Iterator[MetadataRecord]:
    """The records; a file that may not be read is a fault of the metadata, like damage."""
    try:
        yield from records
    except OSError as error:
        if error.errno not in {errno.EACCES, errno.EPERM, errno.EIO}:
            raise
        reason = f"cannot be read: {error.strerror}"
        raise LogDirectoryError(error.filename or path, reason) from error


def read_unknown(
    path: str, policy: ScanPolicy | None = None
) -> Iterator[tuple[int, int, bytes, str | None, str]]:
    """Offset, time and value of the records that are newer than we know, and what is newer."""
    policy = policy or ScanPolicy()
    for file, offset, time, value in _values(path, list_segments(path), None, policy):
        try:
            found = look_at(METADATA_TOPIC, None, value)
        except ValueError as error:
            _refuse(file, offset, error, policy)
            continue
        if found is not None:
            yield offset, time, value, *found


def read_snapshot(
    path: str, names: Collection[str], policy: ScanPolicy | None = None
) -> Iterator[MetadataRecord]:
    """Records of one snapshot file, whatever its name; errors as by `read_metadata`."""
    place = os.path.dirname(path)
    part = ListedFiles(place, [SegmentFiles(0, path, status_of(path, follow=True).size)])
    for record in _decoded(place, part, 0, _schemas(names), policy or ScanPolicy()):
        yield record._replace(offset=IN_A_SNAPSHOT)


def _schemas(names: Collection[str]) -> dict[int, Schema]:
    known = framed_schemas(METADATA_TOPIC)
    return {key: schema for key, schema in known.items() if schema.name in names}


def _records(
    path: str,
    schemas: Mapping[int, Schema],
    control: frozenset[str],
    policy: ScanPolicy,
    end_offset: int | None,
    *,
    is_history: bool,
) -> Iterator[MetadataRecord]:
    """Wanted records of a snapshot, and of the log after it."""
    files, begin = list_segments(path), 0
    # The snapshot to begin with: the newest whole one, or for a history the oldest needed.
    snapshots = list_metadata_snapshots(path)
    if is_history:
        first = files[0].base_offset if files else 0
        snapshots = [each for each in snapshots if each.end_offset >= first] or snapshots
        snapshots = [] if files and not first else snapshots
    else:
        snapshots.reverse()
    snapshot = next(filter(is_whole, snapshots), None)
    if snapshot is None and not files:
        logger.warning("%s holds neither segments nor a whole snapshot: nothing is known", path)
    if snapshot is not None:
        begin = snapshot.end_offset
        if end_offset is None and not files:
            logger.warning(
                "%s has no segments: what the cluster changed after its snapshot at offset %d is "
                "not known",
                path,
                begin,
            )
        part = ListedFiles(path, [SegmentFiles(0, snapshot.path, status_of(snapshot.path).size)])
        # Snapshots do not have elections.
        yield from _control_records(files, 0, control & {"LeaderChangeMessage"}, policy, begin)
        of_quorum = _control_records(part, 0, control, policy)
        for record in (*of_quorum, *_decoded(path, part, 0, schemas, policy)):
            yield record._replace(offset=IN_A_SNAPSHOT)
    of_quorum = _control_records(files, begin, control, policy, end_offset)
    found = _decoded(path, files, begin, schemas, policy, end_offset)
    yield from heapq.merge(of_quorum, found, key=attrgetter("offset"))


def list_metadata_snapshots(path: str) -> list[MetadataSnapshot]:
    """The snapshots beside a metadata log, the oldest first."""
    return sorted(
        MetadataSnapshot(int(match["offset"]), os.path.join(path, name), int(match["epoch"]))
        for name in list_names(path)
        if (match := _SNAPSHOT.fullmatch(name))
    )


def is_whole(snapshot: MetadataSnapshot) -> bool:
    """Whether the last batch of a snapshot is its footer."""
    path = snapshot.path
    last = None
    try:
        files = SegmentFiles(0, path, status_of(path).size)
        for placed in Segment(files, is_sealed=True).headers(0):
            last = placed
        if last is None or not last.header.is_control:
            return False
        rows = _rows_of_batch(path, last)
        found = [read_control(row["key"] or b"", row["value"] or b"") for row in rows]
    except (SegmentLogError, ValueError) as error:
        logger.warning("%s is not used, because it is not whole: %s", path, error)
        return False
    return bool(found) and found[-1] is not None and found[-1].name == "SnapshotFooterRecord"


def _rows_of_batch(path: str, placed: PlacedHeader) -> Iterator[dict[str, Any]]:
    from segmentlog.format.records.decoder import BatchReader  # the compiled kernels load here

    with open_file(path) as file:
        data = file.read(placed.position, placed.end - placed.position)
    for part in BatchReader(path).records(data, placed.position):
        yield from part.to_pylist()


def _control_records(
    files: ListedFiles,
    begin: int,
    names: Collection[str],
    policy: ScanPolicy,
    end_offset: int | None = None,
) -> Iterator[MetadataRecord]:
    """Records of the quorum at or after an offset; none of a batch at or after the end."""
    if not names or not files:
        return
    last = ListedSegments(Listing(files)).end.offset if end_offset is None else end_offset
    for each in files:
        segment, reached = Segment(each, is_sealed=each is not files[-1]), each.base_offset
        headers = segment.headers(0)
        # What follows the end may be damaged, and is not looked at.
        while reached < last and (placed := next(headers, None)) is not None:
            header, reached = placed.header, placed.header.last_offset + 1
            if not header.is_control or header.base_offset < begin:
                continue
            for row in _rows_of_batch(each.path, placed):
                try:
                    found = read_control(row["key"] or b"", row["value"] or b"")
                except ValueError as error:
                    _refuse(each.path, row["offset"], error, policy)
                    continue
                if found is not None and found.name in names:
                    at = row["offset"], header.max_timestamp
                    yield MetadataRecord(found.name, found.fields, *at)


def _decoded(
    path: str,
    files: ListedFiles,
    begin: int,
    schemas: Mapping[int, Schema],
    policy: ScanPolicy,
    end_offset: int | None = None,
) -> Iterator[MetadataRecord]:
    """Wanted records at or after an offset."""
    known = framed_schemas(METADATA_TOPIC)
    for file, offset, time, value in _values(path, files, begin, policy, end_offset):
        try:
            message = read_frame(value, schemas)
            if message is None and (kind := frame_key(value)) not in known:
                note(f"type {kind} of {METADATA_TOPIC}")
        except ValueError as error:
            _refuse(file, offset, error, policy)
            continue
        if message is not None:
            yield MetadataRecord(message.name, message.fields, offset, time)


def _refuse(file: str, offset: int, error: ValueError, policy: ScanPolicy) -> None:
    """Refuse a record that cannot be read, or log that it is left out."""
    malformed = MalformedRecordError(file, offset, str(error))
    if policy.on_corrupt_batch is not OnCorruptBatch.SKIP:
        raise malformed from error
    logger.warning("%s; it is left out", malformed)


def _values(
    path: str,
    files: ListedFiles,
    begin: int | None,
    policy: ScanPolicy,
    end_offset: int | None = None,
) -> Iterator[tuple[str, int, int, bytes]]:
    """File, offset, time in milliseconds and value of the records at or after an offset."""
    from segmentlog.reads.scan import scan_slice  # the compiled kernels load here

    listed = ListedSegments(Listing(files))
    if not files:
        return
    first, end = files[0].base_offset, listed.end
    begin = first if begin is None else begin
    if first > begin:
        reason = f"begins at offset {first}, and no whole snapshot reaches beyond offset {begin}"
        raise LogDirectoryError(path, reason)
    skips = policy.on_corrupt_batch is OnCorruptBatch.SKIP
    if end_offset is None and end.damaged_from is not None and not skips:
        reason = f"is damaged from offset {end.damaged_from} on"
        raise LogDirectoryError(files[-1].path, reason)
    last = end.offset if end_offset is None else min(end.offset, end_offset)
    if last <= begin:
        return
    columns = ["offset", "timestamp", "value"]
    for log_slice in cut_slices(_PARTITION, listed, begin, last, 0):
        for batch in scan_slice(log_slice, columns=columns, policy=policy):
            times = batch["timestamp"].cast("int64").to_pylist()
            offsets, values = batch["offset"].to_pylist(), batch["value"].to_pylist()
            for offset, time, value in zip(offsets, times, values, strict=True):
                yield files[files.index_of(offset)].path, offset, time // 1000, value or b""
