"""A starting broker loads the logs of a directory: what goes wrong, and what is lost.

Rules: ``LogLoader``, ``UnifiedLog``, ``ProducerStateManager``; they were compared with brokers
(``tests/interop/test_broker_start.py``).
"""

import itertools
import os
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property

from segmentlog.errors import (
    CorruptCheckpointError,
    CorruptIndexError,
    CorruptLogError,
    UnsupportedFormatError,
)
from segmentlog.format.kernels import layout
from segmentlog.format.names import (
    CLEAN_SHUTDOWN_FILE,
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    DirectoryState,
    FileKind,
    parse_segment_file,
)
from segmentlog.log.checkpoint import read_leader_epochs, read_offsets
from segmentlog.log.listing import list_segments, not_opened
from segmentlog.log.producer_snapshot import list_snapshots, read_snapshot, snapshot_path
from segmentlog.log.segment import LogEnd, Segment, find_log_end
from segmentlog.maintain.health.faults import StartAction
from segmentlog.maintain.health.indexes import times_fault, transactions_fault
from segmentlog.maintain.health.kinds import Fault, FaultKind
from segmentlog.maintain.health.leader_epochs import epochs_fault
from segmentlog.model import TopicPartition
from segmentlog.store.partitions import NamedPartition, list_partitions
from segmentlog.store.readable import exists, is_directory, list_names, open_file

_LEAST_LENGTH = 14  #: of a message of magic 0, after its offset and length; less is damage
_LOG_OVERHEAD = 12  #: bytes of an offset and a length
_PEEKED = 17  #: bytes that have to be there before a broker looks at a length
_HEAD = struct.Struct(">qi")
_DELTA = struct.Struct(">i")
_WINDOW_BYTES = 1 << 20
_MOST_LOOKED_AT = 1000  #: batches of a segment
_NUMBERED = tuple(f".{kind}" for kind in FileKind)


class LogStart:
    """The loading of one log; `log_start` and `recovery_point` are 0 without an entry.

    `committed_to`: its high watermark, or -1.  `is_clean`: whether the log directory has the mark
    of a clean stop.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        path: str,
        log_start: int,
        recovery_point: int,
        committed_to: int,
        *,
        is_clean: bool,
    ) -> None:
        self._where = topic_partition
        self._committed_to = committed_to
        self._path = path
        self.log_start, self.recovery_point = log_start, recovery_point
        self._is_clean = is_clean
        self._segments = [Segment(each, is_sealed=False) for each in list_segments(path)]
        self.log_end = -1  #: once `faults` has ended, if there are segments

    @property
    def has_segments(self) -> bool:
        """Whether there is a ``.log`` file."""
        return bool(self._segments)

    @cached_property
    def not_opened(self) -> Sequence[tuple[str, int, str]]:
        """Files that the broker cannot open: it gets no further."""
        return [*not_opened(self._path)]

    @property
    def paths(self) -> list[str]:
        """The ``.log`` files."""
        return [each.path for each in self._segments]

    @property
    def bytes_to_recover(self) -> int:
        """Bytes of the segments that the broker reads, from the recovery point on."""
        if self._is_clean:
            return 0
        return sum(each.size for each in self._segments[self._first_read :])

    @property
    def _first_read(self) -> int:
        """Number of the first segment that is read after an unclean stop."""
        below = [each for each in self._segments if each.base_offset <= self.recovery_point]
        return max(len(below) - 1, 0)

    def faults(self) -> Iterator[Fault]:
        """All that goes wrong, and all that is lost; a cut of an unclean log is not among it.

        `segmentlog.maintain.recover_directory.plan_log` finds that cut.
        """
        yield from name_faults(self._where, self._path)
        yield from epochs_fault(self._where, self._path)
        for path, base_offset, why in self.not_opened:
            yield FaultKind.NOT_OPENED.at(self._where, path, f"the file {why}", offset=base_offset)
        if self.not_opened:
            return
        yield from self._indexes()
        if self._segments:
            end = find_log_end(self._segments[-1], warns=False)
            self.log_end = end.offset
            yield from self._zeroed_times(end.offset)
            yield from self._splits(end.offset)
            yield from self._end(end)
        yield from self._what_is_forgotten()

    def _indexes(self) -> Iterator[Fault]:
        for each in self._segments:
            if reason := transactions_fault(each):
                yield FaultKind.TRANSACTIONS.at(
                    self._where,
                    each.transaction_index_path,
                    reason,
                    "",
                    f"segmentlog recover {FaultKind.TRANSACTIONS.value.mend}",
                    offset=each.base_offset,
                )
            if not each.size:
                continue
            if not exists(each.offset_index_path):
                yield FaultKind.INDEX_GONE.at(
                    self._where,
                    each.offset_index_path,
                    f"the index is missing: a starting broker reads all {each.size} bytes of the "
                    "segment to build it again",
                    n_bytes=each.size,
                    offset=each.base_offset,
                )
            elif self._is_clean and times_fault(each) is FaultKind.TIMES_GONE:
                yield FaultKind.TIMES_GONE.at(
                    self._where,
                    each.time_index_path,
                    "the index of times is missing: a starting broker makes an empty one",
                    "look-ups by time begin at the segment, and retention uses the time of the "
                    "file",
                    "segmentlog recover builds it from the log",
                    offset=each.base_offset,
                )

    def _zeroed_times(self, log_end: int) -> Iterator[Fault]:
        """Indexes of times that end in zeros, and are not built again.

        A broker takes the last entry for the newest time (``LogSegment.largestTimestamp``).
        """
        trusted = self._segments[: None if self._is_clean else self._first_read]
        ends = [*(each.base_offset for each in self._segments[1:]), log_end]
        for each, end in zip(trusted, ends, strict=False):
            if times_fault(each) is not FaultKind.TIMES_ZEROED:
                continue
            yield FaultKind.TIMES_ZEROED.at(
                self._where,
                each.time_index_path,
                "the index of times ends in zeros: a broker takes the newest record for one of "
                "1970, and retention deletes the segment half a minute after the start, unless "
                "retention.ms is -1",
                f"offsets [{each.base_offset}, {end}), {each.size} bytes",
                "segmentlog recover builds the index again from the log",
                offset=each.base_offset,
                end_offset=end,
                n_bytes=each.size,
            )

    def _splits(self, log_end: int) -> Iterator[Fault]:
        """Segments whose indexes are built again, and cannot hold their offsets."""
        first = len(self._segments) if self._is_clean else self._first_read
        follows = [*(each.base_offset for each in self._segments[1:]), log_end]
        for i, (each, after) in enumerate(zip(self._segments, follows, strict=True)):
            is_read = i >= first or not exists(each.offset_index_path)
            if not is_read or after - each.base_offset <= layout.SEGMENT_OFFSETS:
                continue
            from segmentlog.log.walk import find_good_end  # the compiled kernels load here

            end = find_good_end(each, after)
            if bases := [base_offset for _, base_offset in end.splits]:
                yield FaultKind.FAR_OFFSETS.at(
                    self._where,
                    each.path,
                    "the offsets lie too far from the base offset for an index: a starting broker "
                    f"divides the segment at the offsets {', '.join(map(str, bases))}",
                    "",
                    "segmentlog recover does the same",
                    offset=each.base_offset,
                    n_bytes=each.size,
                )
            if end.position < each.size and i >= first:
                return  # the log ends here

    def below_base(self, damaged: Collection[str]) -> Iterator[Fault]:
        """The first batch below the base offset of its segment, in a segment that is read.

        A broker takes it for one whose offset no index can hold, and finds nothing to split.
        `damaged`: paths of the segments that may have one: no batch of a sound segment lies below.
        """
        from segmentlog.log.walk import walk  # the compiled kernels load here

        first = len(self._segments) if self._is_clean else self._first_read
        for i, each in enumerate(self._segments):
            if each.path not in damaged or (i < first and exists(each.offset_index_path)):
                continue
            # A broker follows neither the order of the offsets nor their gaps.
            with open_file(each.path) as file:
                for stretch in walk(
                    each.path,
                    file,
                    0,
                    each.size,
                    each.base_offset,
                    goes_on=False,
                    is_ordered=False,
                ):
                    batches = stretch.batches
                    if batches is None:
                        if i >= first:
                            return  # the log ends here
                        break
                    last = batches.headers[:, layout.LAST_OFFSET]
                    if not (is_below := last < each.base_offset).any():
                        continue
                    row = int(is_below.argmax())
                    yield FaultKind.BELOW_BASE.at(
                        self._where,
                        each.path,
                        f"the batch at byte {batches.position_of(row)} has offset {last[row]}, "
                        f"below the base offset {each.base_offset} of its segment, and the start "
                        "reads this segment",
                        "",
                        "segmentlog recover cuts the log off before the batch"
                        if i >= first
                        else "remove .kafka_cleanshutdown, and run segmentlog recover",
                        offset=int(last[row]),
                    )
                    return

    def _end(self, end: LogEnd) -> Iterator[Fault]:
        """The end of the log, as a broker finds it, and the log start."""
        active = self._segments[-1]
        log_end = end.offset
        if self._is_clean:
            position, offset, fault = _end_by_lengths(active)
            self.log_end = max(offset, end.offset)  # it may serve what is not read here
            if fault:
                yield FaultKind.BAD_END.at(
                    self._where,
                    active.path,
                    f"the batch at byte {position} {fault}, and the directory is marked as "
                    "cleanly stopped, so that nothing is recovered",
                    "",
                    "remove .kafka_cleanshutdown, and run segmentlog recover",
                    offset=end.offset,
                )
            elif offset < end.offset:
                yield FaultKind.SHORT_END.at(
                    self._where,
                    active.path,
                    f"a starting broker takes offset {offset} for the end of the log, because the "
                    "directory is marked as cleanly stopped and the end is found by the last "
                    "entry of the index",
                    f"offsets [{offset}, {end.offset}) are not served, and new records get the "
                    "same offsets",
                    "remove .kafka_cleanshutdown, and run segmentlog recover",
                    offset=offset,
                    end_offset=end.offset,
                )
                log_end = offset
            elif (left := active.size - end.position) and end.damaged_from is None:
                yield FaultKind.TAIL.at(
                    self._where,
                    active.path,
                    f"a starting broker leaves {left} bytes after the last batch in place, "
                    "because the directory is marked as cleanly stopped",
                    "new records follow these bytes, and cannot be read",
                    "remove .kafka_cleanshutdown, and run segmentlog recover",
                    offset=end.offset,
                    n_bytes=left,
                )
        if log_end < self.log_start:
            n_bytes = sum(each.size for each in self._segments)
            first = self._segments[0].base_offset
            # Only records below the high watermark can be deleted.
            is_wrong = 0 <= self._committed_to <= log_end
            yield FaultKind.START_BEYOND.at(
                self._where,
                self._path,
                f"the log ends at offset {log_end}, but log-start-offset-checkpoint has "
                f"{self.log_start}: the checkpoint is newer than the log, or the end of the log "
                "is gone",
                f"offsets [{first}, {log_end}), {n_bytes} bytes",
                "segmentlog recover removes the entry: the high watermark is not beyond the end"
                if is_wrong
                else "put the segments back, or remove the partition's line from the checkpoint "
                "(and lower the count in its second line)",
                offset=first,
                end_offset=log_end,
                n_bytes=n_bytes,
            )

    def _has_producers(self) -> bool:
        """Whether one of the first batches of the last segments is of an idempotent producer."""
        for each in self._segments[-2:]:
            try:
                for placed in itertools.islice(each.headers(0), _MOST_LOOKED_AT):
                    if placed.header.producer_id >= 0:
                        return True
            except (CorruptLogError, UnsupportedFormatError):  # `verify` names the batch
                continue
        return False

    def _what_is_forgotten(self) -> Iterator[Fault]:
        """Producers and leader epochs that a cleanly stopped log loses: nothing is read again."""
        if not self._is_clean or not any(each.size for each in self._segments):
            return
        offsets = list_snapshots(self._path)
        for offset in offsets:
            path = snapshot_path(self._path, offset)
            try:
                read_snapshot(path)
            except CorruptIndexError as error:
                yield FaultKind.PRODUCERS.at(
                    self._where,
                    path,
                    f"a starting broker removes the snapshot and reads the log instead: "
                    f"{error.reason}",
                    offset=offset,
                )
        if not offsets and self._has_producers():
            yield FaultKind.PRODUCERS.at(
                self._where,
                self._path,
                "no producer snapshot is there: a starting broker begins with an empty one",
                "the sequences of idempotent producers, and open transactions: a repeated batch "
                "is then taken for a new one",
                "remove .kafka_cleanshutdown: the start then reads the log",
            )
        path = os.path.join(self._path, LEADER_EPOCH_CHECKPOINT)
        try:
            epochs = read_leader_epochs(path)
        except ValueError:  # a step has said so
            return
        if not epochs:
            yield FaultKind.LEADER_EPOCHS.at(
                self._where,
                path,
                "no leader epoch is there: a cleanly stopped log does not get them back",
                "the offsets at which followers have to cut their copies off",
                "remove .kafka_cleanshutdown and the partition's recovery point: the start then "
                "reads the log",
                action=StartAction.DROP,
            )


def name_faults(where: TopicPartition, path: str) -> Iterator[Fault]:
    """Files whose names begin with no offset: a broker cannot read their numbers."""
    for name in sorted(list_names(path)):
        if name.endswith(_NUMBERED) and parse_segment_file(name) is None:
            head = name.partition(".")[0]
            if head.isascii() and head.isdecimal() and int(head) < 1 << 63:
                continue
            if head[:1] == "-" and head[1:].isascii() and head[1:].isdecimal():
                yield FaultKind.NAME.at(
                    where,
                    os.path.join(path, name),
                    "the name begins with an offset below 0: a starting broker removes an "
                    "index or a snapshot, and makes an empty segment at the offset of a log",
                    "",
                    "move the file out of the directory",
                    action=StartAction.KEEP,
                )
                continue
            yield FaultKind.NAME.at(
                where,
                os.path.join(path, name),
                "the name begins with no offset",
                "",
                "move the file out of the directory",
            )


def _end_by_lengths(segment: Segment) -> tuple[int, int, str]:
    """Byte and offset of the end that a broker finds after a clean stop, and what ends it there.

    It begins at the last entry of the offset index, and believes lengths and offsets.
    """
    with segment.opened() as opened:
        index = opened.offset_index
        position = index.entry(index.n_entries - 1).position if index.n_entries else 0
        offset, window, begin = segment.base_offset, b"", 0
        while 0 <= position < segment.size - _PEEKED:
            at = position - begin
            if at + layout.HEADER_BYTES > len(window):
                window, begin, at = opened.file.read(position, _WINDOW_BYTES), position, 0
            base, length = _HEAD.unpack_from(window, at)
            if length < _LEAST_LENGTH:
                return position, offset, f"has a length below {_LEAST_LENGTH}"
            if position > segment.size - _LOG_OVERHEAD - length:
                break
            last = 0
            if window[at + layout.MAGIC_AT] >= layout.FIRST_BATCH_MAGIC:
                # A broker reads the whole header, and ends at the end of the file.
                if position > segment.size - layout.HEADER_BYTES:
                    return position, offset, "is shorter than the header of a batch"
                (last,) = _DELTA.unpack_from(window, at + layout.LAST_OFFSET_DELTA_AT)
            offset = base + last + 1
            position += _LOG_OVERHEAD + length
    return position, offset, ""


class LoadingDirectory:
    """A log directory whose logs a broker loads: the bounds that its checkpoints give them."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_clean = exists(os.path.join(path, CLEAN_SHUTDOWN_FILE))
        self._points = _offsets(path, RECOVERY_POINT_CHECKPOINT)
        self.starts = _offsets(path, LOG_START_CHECKPOINT)
        self.high_watermarks = _offsets(path, HIGH_WATERMARK_CHECKPOINT)

    def log(self, topic_partition: TopicPartition, path: str) -> LogStart:
        """The loading of one of its logs."""
        point, log_start = (each.get(topic_partition, 0) for each in (self._points, self.starts))
        committed_to = self.high_watermarks.get(topic_partition, -1)
        return LogStart(
            topic_partition, path, log_start, point, committed_to, is_clean=self.is_clean
        )

    def served(self, topics: Collection[str] = ()) -> list[NamedPartition]:
        """The directories of logs that it then serves, or copies to another log directory."""
        states = {DirectoryState.CURRENT, DirectoryState.FUTURE}
        return [
            each
            for each in self.partitions()
            if each.state in states and (not topics or each.topic_partition.topic in topics)
        ]

    def partitions(self) -> list[NamedPartition]:
        """The directories of logs that a broker loads, but for the cluster's metadata."""
        return [
            each
            for each in list_partitions(self.path)
            if not each.is_metadata and is_directory(each.path)
        ]


def _offsets(directory: str, name: str) -> Mapping[TopicPartition, int]:
    """The entries of a checkpoint; none if it cannot be read, as for a broker."""
    try:
        return read_offsets(directory, name)
    except (CorruptCheckpointError, OSError):
        return {}
