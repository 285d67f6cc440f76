"""Check the tier of a log: against the broker's list, against the local log, and by itself.

A read of a tier takes each offset once, and the local log where it has the offset.  So copies of
local offsets, and copies of a leader that has lost, are not seen by the verification of the log.
Here, they are read, too.

1. The broker's list (``__remote_log_metadata``), if the log directory has the entries of the log:
   each finished segment is in the bucket with the listed size and offsets, and each object belongs
   to a segment of the list.
2. The batches of all segments that the verification of the log does not read, or does not read to
   their end: checksums, and offsets that rise from the start of the segment to its end.  Their
   records are parsed if those of the log are.
3. The local log: segments of its lineage have equal bytes for equal offsets.
4. The offsets between two segments.

A tier may also have logs that no partition of the log directory has.  A log directory has only
some partitions of its cluster, so such a log is suspect only if the metadata of the cluster lacks
it, or if the log directory has its name with another topic id.
"""

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from segmentlog.cluster.directory_settings import read_partition_ids
from segmentlog.errors import (
    CorruptIndexError,
    CorruptLogError,
    LogDirectoryError,
    RemoteSegmentError,
)
from segmentlog.format.kernels import layout
from segmentlog.format.names import LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA_FILE
from segmentlog.format.records.columns import record_schema
from segmentlog.format.records.decoder import RecordDecoder
from segmentlog.format.records.header import ScannedBatches
from segmentlog.log.checkpoint import read_leader_epochs
from segmentlog.log.listing import Listing, list_segments
from segmentlog.log.producer_snapshot import parse_snapshot
from segmentlog.log.walk import walk
from segmentlog.log.windows import BatchWindows
from segmentlog.maintain.verification.findings import Finding, FindingKind, MakeFinding, Severity
from segmentlog.maintain.verification.verify_log import (
    bad_kind,
    bad_message,
    unreadable_records,
)
from segmentlog.model import LARGEST_LONG, TopicPartition
from segmentlog.reads.cluster_image import ClusterMetadata
from segmentlog.reads.listed import ListedSegments
from segmentlog.reads.log import Log
from segmentlog.store.partitions import list_partitions
from segmentlog.store.readable import FileType, ReadableFile, bytes_of, is_directory, open_file
from segmentlog.tiered.disk import TieredDisk, tiered_disk
from segmentlog.tiered.layout import Layout, RemoteFileKind, RemoteLog, RemoteObject, RemoteSegment
from segmentlog.tiered.metadata import Announced, SegmentState, announced_segments
from segmentlog.tiered.plan import (
    ONLY_THERE,
    Chain,
    epochs_of,
    lost_offsets,
    missing_offsets,
    of_lineage,
)

_WINDOW_BYTES = 4 << 20


class TierCheck:
    """Checks the tiers of logs.

    The broker's list of a log directory is read once for all of its logs.

    `with_records`: whether the records of all segments are parsed.
    """

    def __init__(self, *, with_records: bool = False) -> None:
        #: By the log directory.
        self._lists: dict[str, Mapping[RemoteLog, Sequence[Announced]]] = {}
        self._with_records = with_records

    def findings(self, log: Log) -> Iterator[Finding]:
        """Findings about the tier of one log.

        `log`: of a log directory with a tier, or of a tier alone.  Raises `StorageError` or
        `OptionError` if the tier cannot be listed, or an option does not fit its layout;
        `CorruptLogError` or `MalformedRecordError` if the broker's list cannot be read.
        """
        disk = tiered_disk(log.path)
        remote = disk.remote_log(log.topic_partition)
        if remote is None:
            return
        local, decoder = disk.location.local, None
        if local and local not in self._lists:
            self._lists[local] = announced_segments(local) or {}
        if self._with_records:
            decoder = RecordDecoder(log.topic_partition, record_schema([]))
        # A broker has some partitions of the topic, so a log without an entry may have segments.
        announced = self._lists[local].get(remote) if local else None
        yield from _LogTier(log, disk, remote, announced, decoder).findings()

    def unknown_logs(
        self, paths: Sequence[str], topics: Collection[str], partitions: Collection[int]
    ) -> Iterator[Finding]:
        """Findings about logs of a tier that no partition of the log directories has.

        There is one finding for each topic id.

        `paths`: of log directories with one tier, or of this tier alone.  `topics`, `partitions`:
        the chosen ones; all if empty.
        """
        disks = [tiered_disk(each) for each in paths]
        tier = disks[0].tier
        held: dict[TopicPartition, str] = {}
        ids = set[tuple[str, int]]()
        for disk, path in zip(disks, paths, strict=True):
            for each in list_partitions(path):
                place = each.topic_partition
                is_log = each.is_current and each.type is FileType.DIRECTORY
                if not is_log or each.is_metadata or (topics and place.topic not in topics):
                    continue
                remote = disk.remote_log(place)
                held[place] = remote.topic_id if remote is not None else ""
                ids.add((held[place], place.partition))
        others: dict[tuple[str, str], list[RemoteLog]] = {}
        for log in sorted(disks[0].stored_logs(topics)):
            is_chosen = not topics or log.topic in topics
            is_chosen = is_chosen and (not partitions or log.partition in partitions)
            if is_chosen and (log.topic_id, log.partition) not in ids:
                others.setdefault((log.topic, log.topic_id), []).append(log)
        if not others:
            return
        cluster = None
        with contextlib.suppress(LogDirectoryError, CorruptLogError):  # no proof for anything then
            local = filter(None, (each.location.local for each in disks))
            if (metadata := ClusterMetadata(local)).path is not None:
                cluster = read_partition_ids(metadata)
        for (topic, topic_id), logs in others.items():
            severity, reason = _why_no_partition(topic_id, logs, held, cluster)
            if reason:
                n_logs = f"{len(logs)} partition{'s' if len(logs) > 1 else ''}"
                yield MakeFinding(TopicPartition(topic, -1))(
                    FindingKind.REMOTE_LOG,
                    tier.folder(logs[0]),
                    f"{n_logs} of the topic id {topic_id}: {reason}",
                    severity=severity,
                )


class _LogTier:
    """The tier of one log."""

    def __init__(
        self,
        log: Log,
        disk: TieredDisk,
        remote: RemoteLog,
        announced: Sequence[Announced] | None,
        decoder: RecordDecoder | None,
    ) -> None:
        self._log, self._disk, self._remote = log, disk, remote
        self._announced, self._decoder = announced, decoder
        self._tier: Layout = disk.tier
        self._finding = MakeFinding(log.topic_partition)
        self._windows = BatchWindows(_WINDOW_BYTES)

    def findings(self) -> Iterator[Finding]:
        objects = self._tier.objects(self._remote)
        stored: list[RemoteSegment] = []
        if objects:
            try:
                stored = self._tier.segments(self._remote)
            except RemoteSegmentError as error:
                yield self._wrong(error)
        yield from self._unknown(objects, {each.segment_id for each in stored})
        segments = stored
        others: list[tuple[RemoteSegment, list[Finding]]] = []
        if self._announced is not None:
            by_id = {each.segment_id: each for each in stored}
            segments = []
            for each, state in self._announced:
                if state is not SegmentState.COPY_FINISHED:
                    continue
                found = [*self._against_the_list(each, by_id.get(each.segment_id))]
                yield from found
                if not any(one.severity is Severity.ERROR for one in found):
                    segments.append(each)
                elif each.segment_id in by_id:
                    others.append((by_id[each.segment_id], found))
        yield from self._contents(sorted(segments, key=lambda each: each.start_offset))
        read = self._bytes_read() if others else {}
        for segment, found in others:
            if segment.segment_id not in read:
                yield from (
                    one
                    for one in self._content(segment, 0, segment.start_offset, None)
                    if one not in found
                )

    def _wrong(self, error: RemoteSegmentError | CorruptIndexError, offset: int = -1) -> Finding:
        """The finding for an object that cannot be opened, or does not fit."""
        message = f"{error.reason}; {getattr(error, 'remedy', 'restore the object')}"
        return self._segment(error.path, message, offset)

    def _segment(self, path: str, message: str, offset: int) -> Finding:
        return self._finding(FindingKind.REMOTE_SEGMENT, path, message, offset=offset)

    def _unknown(self, objects: Sequence[RemoteObject], complete: set[str]) -> Iterator[Finding]:
        """Findings about objects that belong to no segment of the log; one for each segment."""
        states = (
            None
            if self._announced is None
            else {each.segment.segment_id: each.state for each in self._announced}
        )
        seen = set[str]()
        for each in objects:
            if each.segment_id in seen:
                continue
            if each.segment_id:
                seen.add(each.segment_id)
            severity, reason = _why_unknown(each.segment_id, states, complete)
            if reason:
                yield self._finding(
                    FindingKind.REMOTE_OBJECT, each.path, reason, severity=severity
                )

    def _against_the_list(
        self, segment: RemoteSegment, stored: RemoteSegment | None
    ) -> Iterator[Finding]:
        """Compare the objects of a finished segment with its entry in the broker's list."""
        start = segment.start_offset
        try:
            file = self._tier.open(segment, RemoteFileKind.LOG)
        except RemoteSegmentError as error:
            yield self._wrong(error, start)
            return
        assert file is not None  # noqa: S101 - each segment has a log
        with file:
            path, size = file.path, file.status().size
        different = [] if size == segment.n_bytes else [("size", size, segment.n_bytes)]
        if stored is not None:
            different += [
                (name, found, listed)
                for name, found, listed in (
                    ("end offset", stored.end_offset, segment.end_offset),
                    ("largest timestamp", stored.max_timestamp_ms, segment.max_timestamp_ms),
                )
                if -1 not in (found, listed) and found != listed
            ]
            if stored.start_offset != start:
                different.append(("start offset", stored.start_offset, start))
        for name, found, listed in different:
            yield self._segment(
                path,
                f"its {name} is {found} in the tier, and {listed} in __remote_log_metadata: "
                "the object was replaced; restore it from a replica of the bucket",
                start,
            )
        for part in (
            RemoteFileKind.OFFSET_INDEX,
            RemoteFileKind.TIME_INDEX,
            RemoteFileKind.LEADER_EPOCHS,
            RemoteFileKind.SNAPSHOT,
        ):
            try:
                index = self._tier.open(segment, part)
            except RemoteSegmentError as error:
                yield self._wrong(error, start)
                return
            if index is None:
                yield self._finding(
                    FindingKind.REMOTE_SEGMENT,
                    path,
                    f"the segment has no {part} in the tier: a broker cannot look up offsets and "
                    "times in it, or build a replica from it",
                    offset=start,
                    severity=Severity.WARNING,
                )
            else:
                index.close()

    def _contents(self, segments: Sequence[RemoteSegment]) -> Iterator[Finding]:
        """Read the segments that the verification of the log leaves out."""
        found, local, path = Chain([], [], 0), None, ""
        if directory := self._disk.location.local:
            path = f"{directory}/{self._log.topic_partition}"
            if is_directory(path):
                local = ListedSegments(Listing(list_segments(path)))
        local_start = local.files[0].base_offset if local is not None and local.files else None
        if segments:
            epochs = read_leader_epochs(f"{path}/{LEADER_EPOCH_CHECKPOINT}") if path else ()
            try:
                found = of_lineage(self._tier, self._remote, segments, epochs, local_start)
            except RemoteSegmentError as error:
                yield self._wrong(error)
        chain = found.segments
        yield from self._gaps(found, local_start)
        ids = {each.segment_id: each for each in chain}
        starts = [*(each.start_offset for each in chain[1:]), LARGEST_LONG]
        followed = dict(zip(ids, starts, strict=False))
        read = self._bytes_read()
        for each in segments:
            yield from self._small_objects(each)
            of_log = ids.get(each.segment_id)
            if of_log is None:
                yield from self._content(each, 0, each.start_offset, None)
                continue
            n_read, offset = read.get(each.segment_id, 0), each.start_offset
            is_compared = local_start is not None and of_log.end_offset >= local_start
            if n_read == of_log.n_bytes:
                if not is_compared:
                    continue
                n_read = 0
            elif n_read:
                offset = min(followed[each.segment_id], local_start or LARGEST_LONG)
            yield from self._content(of_log, n_read, offset, local if is_compared else None)

    def _gaps(self, found: Chain, local_start: int | None) -> Iterator[Finding]:
        """Offsets from the log start on that are neither in the tier nor in the local log."""

        def gap(
            start: int, end: int, message: str, severity: Severity = Severity.ERROR
        ) -> Finding:
            return self._finding(
                FindingKind.OFFSET_GAP,
                self._log.path,
                message,
                offset=start,
                end_offset=end,
                severity=severity,
            )

        chain, log_start = found.segments, self._disk.log_start(self._log.topic_partition)
        for each, start, end in lost_offsets(self._tier, found, local_start, log_start):
            message = f"these offsets {ONLY_THERE} (remote segment {each.segment_id})"
            yield gap(start, end, message)
        # Segments after the one that reaches the local log are copies of it.
        before = [each for each in chain if local_start is None or each.start_offset < local_start]
        for each, start in missing_offsets(before, local_start, log_start):
            yield gap(
                each.end_offset + 1,
                start,
                "these offsets are in no segment of the tier, and before the local log; restore "
                "the objects",
            )
        first = chain[0].start_offset if chain else local_start
        if first is not None and log_start < first:
            reason = "these offsets are in no segment of the tier, and after the log start; "
            remedy = "a broker may have removed the segments a moment ago, or objects are missing"
            if not chain:
                remedy = "name the tier of this cluster, or restore the objects"
            severity = Severity.WARNING if chain else Severity.ERROR
            yield gap(log_start, first, reason + remedy, severity)

    def _small_objects(self, segment: RemoteSegment) -> Iterator[Finding]:
        """Findings about what brokers need beside the log to make a replica from a segment."""
        start = segment.start_offset
        try:
            epochs_of(self._tier, segment)
            file = self._tier.open(segment, RemoteFileKind.SNAPSHOT)
            if file is not None:
                with file:
                    path = file.path
                    if data := bytes_of(file, lambda why: CorruptIndexError(path, f"it {why}")):
                        parse_snapshot(path, data)
        except (RemoteSegmentError, CorruptIndexError) as error:
            yield self._wrong(error, start)

    def _bytes_read(self) -> Mapping[str, int]:
        """Bytes of each segment that the verification of the log reads."""
        try:
            return self._disk.bytes_read(self._log.topic_partition)
        except RemoteSegmentError:  # the verification of the log reports it
            return {}

    def _content(
        self, segment: RemoteSegment, position: int, offset: int, local: ListedSegments | None
    ) -> Iterator[Finding]:
        """Read a segment from a byte, and compare it with the local log at offsets of both."""
        try:
            file = self._tier.open(segment, RemoteFileKind.LOG)
            assert file is not None  # noqa: S101 - each segment has a log
            with file:
                yield from self._batches(segment, file, position, offset, local)
        except RemoteSegmentError as error:
            yield self._wrong(error, segment.start_offset)

    def _batches(
        self,
        segment: RemoteSegment,
        file: ReadableFile,
        position: int,
        offset: int,
        local: ListedSegments | None,
    ) -> Iterator[Finding]:
        size, start = file.status().size, segment.start_offset
        if not size:
            reason = "the object is empty; restore it from a replica of the bucket"
            yield self._segment(file.path, reason, start)
        next_offset = offset
        compared = None if local is None else _LocalBytes(local)
        for stretch in walk(file.path, file, position, size, offset, windows=self._windows):
            batches, next_offset = stretch.batches, stretch.next_offset
            if batches is None:
                yield self._finding(
                    bad_kind(stretch),
                    file.path,
                    bad_message(stretch),
                    position=stretch.begin,
                    offset=stretch.offset,
                )
                compared = None if local is None else _LocalBytes(local)
                continue
            place = compared.first_difference(batches) if compared is not None else None
            if place is not None:
                at, different, reason = place
                yield self._finding(
                    FindingKind.REMOTE_COPY,
                    file.path,
                    f"{reason}: one of the two was changed after the copy; compare both with "
                    "another replica",
                    position=at,
                    offset=different,
                )
                compared = None
            if self._decoder is not None:
                yield from unreadable_records(self._decoder, batches, self._finding)
        last = next_offset - 1
        if segment.end_offset >= 0 and last > segment.end_offset and size:
            reason = f"its last batch ends at offset {last}, and the segment at"
            yield self._segment(file.path, f"{reason} {segment.end_offset}", start)


class _LocalBytes:
    """The bytes of a local log, as they follow each other over the borders of its segments.

    `local`: the segments of the log directory.
    """

    def __init__(self, local: ListedSegments) -> None:
        self._local = local
        self._is_found = False
        self._segment = self._position = 0

    def first_difference(self, batches: ScannedBatches) -> tuple[int, int, str] | None:
        """The first batch that the local log has otherwise: its byte, its offset, and the reason.

        `batches`: of a remote segment, in their order.
        """
        start = self._local.files[0].base_offset
        if not self._is_found:
            batches = batches.only(batches.headers[:, layout.BASE_OFFSET] >= start)
            if not len(batches.headers):
                return None
            self._is_found = self._find(batches)
            if not self._is_found:
                return self._place(batches, 0, "the local log has no batch that begins there")
        data = batches.data
        ours = np.frombuffer(self._read(len(data)), np.uint8)
        different = data[: len(ours)] != ours
        if not different.any():
            return None
        ends = np.cumsum(batches.headers[:, layout.SIZE])
        row = int(np.searchsorted(ends, different.argmax(), "right"))
        return self._place(batches, row, "the local log has another batch there")

    @staticmethod
    def _place(batches: ScannedBatches, row: int, reason: str) -> tuple[int, int, str]:
        offset = int(batches.headers[row, layout.BASE_OFFSET])
        return batches.position_of(row), offset, reason

    def _find(self, batches: ScannedBatches) -> bool:
        """Move to the first of some batches; whether the local log has one that begins there."""
        at = int(batches.headers[0, layout.POSITION])
        stored = int.from_bytes(batches.buf[at : at + 8], "big", signed=True)
        self._segment = self._local.files.index_of(stored)
        segment = self._local.segment(self._segment)
        for placed in segment.headers(segment.floor_position(stored)):
            if placed.header.base_offset >= stored:
                self._position = placed.position
                return placed.header.base_offset == stored
        return False

    def _read(self, n_bytes: int) -> bytes:
        """The next bytes; fewer only at the end of the log."""
        pieces: list[bytes] = []
        while n_bytes and self._segment < len(self._local.files):
            file = self._local.files[self._segment]
            is_last = self._segment + 1 == len(self._local.files)
            end = self._local.end.position if is_last else file.size
            wanted = min(n_bytes, end - self._position)
            with open_file(file.path) as opened:
                piece = opened.read(self._position, wanted) if wanted > 0 else b""
            if not piece:
                self._segment, self._position = self._segment + 1, 0
                continue
            pieces.append(piece)
            self._position += len(piece)
            n_bytes -= len(piece)
        return b"".join(pieces)


def _why_no_partition(
    topic_id: str,
    logs: Sequence[RemoteLog],
    held: Mapping[TopicPartition, str],
    cluster: set[tuple[str, int]] | None,
) -> tuple[Severity, str]:
    """The severity of a finding about logs that no partition has, and the reason.

    The reason is empty if other brokers may have these partitions.

    `held`: topic ids of the partitions that are read; empty without a ``partition.metadata``.
    """
    if any(held.get(TopicPartition(each.topic, each.partition)) == "" for each in logs):
        reason = f"a partition of this name has no topic id in its {PARTITION_METADATA_FILE}, so"
        return Severity.WARNING, f"{reason} it is read without the tier: restore the file"
    foreign = "or another cluster uses the bucket"
    if cluster is not None:
        if all((topic_id, each.partition) in cluster for each in logs):
            return Severity.NOTE, ""
        reason = "the metadata of the cluster does not have them: the topic was deleted and its"
        return Severity.WARNING, f"{reason} segments are still there, {foreign}"
    known = sorted({held[each] for each in held if each.topic == logs[0].topic} - {""})
    if not known:
        reason = "the log directory has no partition of this topic: another broker has it,"
        return Severity.NOTE, f"{reason} or the topic was deleted, {foreign}"
    is_replaced = any(TopicPartition(each.topic, each.partition) in held for each in logs)
    if topic_id in known and not is_replaced:
        return Severity.NOTE, ""
    reason = f"the topic of this name that is read has the id {', '.join(known)}: a topic was"
    return Severity.WARNING, f"{reason} deleted and created again, {foreign}"


_GOING_ON = "__remote_log_metadata shows that its segment is being {}, or a broker died meanwhile"

#: Why an object is not read, by the state of its segment in the broker's list; empty if it is.
_WHY_NOT_READ: Mapping[SegmentState | None, tuple[Severity, str]] = {
    None: (
        Severity.WARNING,
        (
            "no entry of __remote_log_metadata has its segment; it is not read, unless a newer "
            "copy of the topic has the entry"
        ),
    ),
    SegmentState.COPY_STARTED: (Severity.NOTE, _GOING_ON.format("copied")),
    SegmentState.COPY_FINISHED: (Severity.NOTE, ""),
    SegmentState.DELETE_STARTED: (Severity.NOTE, _GOING_ON.format("deleted")),
    SegmentState.DELETE_FINISHED: (
        Severity.WARNING,
        "__remote_log_metadata shows its segment as deleted, and the object is still there",
    ),
}


def _why_unknown(
    segment_id: str, states: Mapping[str, SegmentState] | None, complete: set[str]
) -> tuple[Severity, str]:
    """The severity and the reason for which an object is not read; empty if it is."""
    if not segment_id:
        return Severity.NOTE, "its name is not a name of the layout; it is not read"
    if states is not None:
        return _WHY_NOT_READ[states.get(segment_id)]
    if segment_id in complete:
        return Severity.NOTE, ""
    return Severity.NOTE, "the copy of its segment has not ended: its last object is missing"
