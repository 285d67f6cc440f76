"""``read_committed``: aborted transactions are left out, and a read ends where an open one begins.

`segmentlog.log.batches` decides about a batch, by the log alone.  A missing end marker is
always noticed: the look-ahead refuses what may have hidden one.  It goes as far as the
transactions that a scan has met reach.

Open transactions follow from the producers' state, which is read from the newest snapshot and
updated from the headers after it, as a starting broker does (``ProducerStateManager``).  A flipped
bit in a header may make a batch look like the beginning of a transaction, or hide an end marker.
A read would then end there without an error.  So if a transaction is open, the checksums of all
batches from its beginning on are verified.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from segmentlog.errors import (
    ChecksumMismatchError,
    CorruptLogError,
    TornTransactionError,
    TruncatedBatchError,
    UnsupportedFormatError,
)
from segmentlog.format.kernels import layout
from segmentlog.format.kernels.memory import Bytes
from segmentlog.format.kernels.transactions import ABORT, MARKER_OFFSET, MARKER_PRODUCER_ID
from segmentlog.format.records.header import ScannedBatches, parse_header
from segmentlog.log.batches import EndMarkers, WalkedBatches, walk_batches, walk_file
from segmentlog.log.damage import position_of, sound_headers
from segmentlog.log.producer_snapshot import newest_snapshot
from segmentlog.log.segment import OpenSegment, PlacedHeader, Segment, find_log_end, from_offset
from segmentlog.model import LARGEST_LONG
from segmentlog.reads.listed import FileChangedError, Partition

logger = logging.getLogger(__name__)

_MOST_MARKER_BYTES = 128  # an end marker has 78


class CommittedBatches:
    """Leaves aborted batches out of the batches of a scan, in the order of the log.

    `skips`: whether batches of transactions that were never ended are left out, with a warning.
    `ended`: open transactions that count as aborted: producer ids, and the first offset of each.
    """

    def __init__(
        self, partition: Partition, *, skips: bool = False, ended: Iterable[tuple[int, int]] = ()
    ) -> None:
        self._partition = partition
        self._ended = dict(ended)
        self._skips = skips
        self._markers = EndMarkers(self._ahead, self._torn, least_records=1)

    def select(self, batches: ScannedBatches, next_offset: int) -> ScannedBatches:
        """The batches that were committed, or written outside of transactions.

        `next_offset`: offset after the last batch that was scanned.  Raises `TornTransactionError`
        if the log ends before the end marker of a transaction.
        """
        is_aborted = self.aborted(batches, next_offset)
        return batches.only(is_aborted == 0) if is_aborted.any() else batches

    def aborted(self, batches: ScannedBatches, next_offset: int) -> Bytes:
        """Flag the batches that `select` leaves out, with its arguments and errors."""
        return self._markers.find_aborted(batches, next_offset)

    def _ahead(self, seen_to: int) -> Iterator[WalkedBatches]:
        """The batches of the log from an offset on, whose offsets have to rise in each file."""
        segments = self._partition.segments()
        if segments and segments[0].base_offset > seen_to:
            # The file of the scan was put aside.  Markers of the transactions in it are gone, and
            # the next marker of the producer belongs to a later transaction.
            raise FileChangedError(f"the log now begins at offset {segments[0].base_offset}")
        if segments:
            segments[-1].size = find_log_end(segments[-1]).position  # a torn tail decides nothing
        path = ""
        next_offset = seen_to
        for walked in self._walk(segments, seen_to):
            found = walked.scanned
            _check_offsets(found, next_offset if found.path == path else -1)
            path, next_offset = found.path, walked.next_offset
            yield walked

    def _walk(self, segments: Sequence[Segment], seen_to: int) -> Iterator[WalkedBatches]:
        """The batches that have not been seen; only sound ones if damage is left out."""
        for i, segment in enumerate(segments):
            if i + 1 < len(segments) and segments[i + 1].base_offset <= seen_to:
                continue
            with segment.opened() as opened:
                if segment.inode not in (0, opened.file.status().inode):
                    raise FileChangedError(f"{segment.path} was replaced since it was listed")
                start = seen_to
                try:
                    for walked in self._walk_segment(opened, opened.floor_position(start)):
                        seen_to = max(seen_to, walked.next_offset)
                        yield walked
                except CorruptLogError as error:
                    begin = position_of(opened, start)
                    if error.position >= begin:
                        raise
                    for walked in self._walk_segment(opened, begin):  # damage with nothing to read
                        seen_to = max(seen_to, walked.next_offset)
                        yield walked

    def _walk_segment(self, opened: OpenSegment, begin: int) -> Iterator[WalkedBatches]:
        if not self._skips:
            yield from _whole_batches(opened, begin)
            return
        for placed in sound_headers(opened, begin, skips=True):
            if placed.header.is_control:
                path = opened.segment.path
                yield from walk_file(path, opened.file, placed.position, placed.end)

    def _torn(self, batches: ScannedBatches, row: int) -> int:
        """Raise for a transaction without a marker, or treat it as aborted."""
        producer_id = int(batches.headers[row, layout.PRODUCER_ID])
        base_offset = int(batches.headers[row, layout.BASE_OFFSET])
        if base_offset >= self._ended.get(producer_id, LARGEST_LONG):
            return ABORT
        at = batches.position_of(row)
        error = TornTransactionError(batches.path, at, base_offset, producer_id)
        if not self._skips:
            raise error
        logger.warning("%s; records of that producer after this offset are left out", error)
        return ABORT


def _whole_batches(opened: OpenSegment, position: int) -> Iterator[WalkedBatches]:
    """Batches from byte `position` to the end of a segment.

    Raises `TruncatedBatchError` if a length reaches beyond that end: it may have hidden batches;
    `MalformedBatchError` if the last batch alone reaches into the next segment.
    """
    segment, last, least = opened.segment, position, opened.segment.base_offset
    for walked in walk_file(segment.path, opened.file, position, segment.size):
        ends = walked.scanned.headers[-2:, layout.LAST_OFFSET].tolist()
        least = ends[0] + 1 if len(ends) > 1 else least
        is_end = walked.scanned.file_end == segment.size
        if is_end and ends[-1] >= segment.offset_limit >= least:
            reason = f"its offsets reach {segment.offset_limit}, where the next segment begins"
            raise walked.scanned.malformed(-1, reason)
        _check_small(walked.scanned, opened)
        yield walked
        least = ends[-1] + 1
        last = walked.scanned.position_of(-1)
        position = walked.scanned.file_end
    if position != segment.size:
        begin = last if position > segment.size else position
        left = segment.size - begin
        raise TruncatedBatchError(segment.path, begin, -1, left + 1, left)


def _check_small(batches: ScannedBatches, opened: OpenSegment) -> None:
    """Refuse a damaged batch that may have been an end marker before it was damaged."""
    headers = batches.headers
    flags = headers[:, layout.ATTRIBUTES] & (layout.CONTROL_MASK | layout.TRANSACTIONAL_MASK)
    is_small = headers[:, layout.SIZE] <= _MOST_MARKER_BYTES
    for row in np.flatnonzero(is_small & (flags == layout.TRANSACTIONAL_MASK)).tolist():
        at = batches.position_of(row)
        header = parse_header(opened.file.read(at, layout.HEADER_BYTES))
        found = PlacedHeader(at, header).checksum(opened.file)
        if found != header.crc:
            raise ChecksumMismatchError(batches.path, at, header.base_offset, header.crc, found)


def _check_offsets(batches: ScannedBatches, next_offset: int) -> None:
    """Refuse batches of one file whose offsets do not rise."""
    # No checksum covers a base offset, and a marker with a wrong one decides about other batches.
    headers = batches.headers
    last = headers[:, layout.LAST_OFFSET]
    begins = np.concatenate(([next_offset], last[:-1] + 1))
    is_bad = headers[:, layout.BASE_OFFSET] < begins
    if is_bad.any():
        reason = "its base offset is not above the last offset of the batch before it"
        raise batches.malformed(int(is_bad.argmax()), reason)


def find_open_transactions(
    partition: Partition,
    segments: Sequence[Segment],
    log_start_offset: int,
    end_offset: int,
    *,
    skips: bool = False,
) -> dict[int, int]:
    """Transactions that have no end marker below `end_offset`.

    `segments`: of the log, without a torn tail.  `log_start_offset`: damage below it decides
    nothing, and is passed over.  `end_offset`: batches that begin there do not count.  `skips`:
    whether damage is left out, and logged.  It may have been the end marker of any transaction
    that is open before it.  Such a transaction does not count as open: the read that meets its
    records finds no marker, says so, and leaves them out.  Returns their first offset by producer
    id.
    """
    start_offset = segments[0].base_offset if segments else 0
    found = newest_snapshot(partition.path, start_offset, end_offset)
    replay_from, producers = found or (start_offset, [])
    known = {
        each.producer_id: each.current_txn_first_offset
        for each in producers
        if each.current_txn_first_offset >= 0
    }
    try:
        return _replayed(segments, replay_from, known, end_offset, skips=skips)
    except (CorruptLogError, UnsupportedFormatError):
        if replay_from >= log_start_offset:
            raise
        start = log_start_offset
        return _replayed(segments, start, {}, end_offset, skips=skips, passes_damage=True)


def _replayed(
    segments: Sequence[Segment],
    replay_from: int,
    known: Mapping[int, int],
    end_offset: int,
    *,
    skips: bool,
    passes_damage: bool = False,
) -> dict[int, int]:
    """`known` transactions that are still open, and those that begin at `replay_from` or later."""
    opened = dict(known)
    try:
        for walked in walk_batches(segments, replay_from, passes_damage=passes_damage):
            _replay(walked, opened, end_offset)
            if walked.next_offset >= end_offset:
                break
    except CorruptLogError:
        if not skips:
            raise
    else:
        if not opened:
            return opened
        if not skips:  # a producer of the snapshot has begun before it
            replay_from = max(replay_from, min(opened.values()))
    sound = dict(known)
    for placed in _sound_batches(
        segments, replay_from, end_offset, skips=skips, passes_damage=passes_damage
    ):
        if placed is None:
            sound.clear()
        elif placed.header.is_control:
            if placed.header.is_transactional and placed.header.records_count:
                sound.pop(placed.header.producer_id, None)
        elif placed.header.is_transactional:
            sound.setdefault(placed.header.producer_id, placed.header.base_offset)
    return sound if skips else opened


def _replay(walked: WalkedBatches, opened: dict[int, int], end_offset: int) -> None:
    """Update `opened` with the transactions that `walked` begins and ends."""
    headers = walked.scanned.headers
    headers = headers[headers[:, layout.BASE_OFFSET] < end_offset]
    both = layout.CONTROL_MASK | layout.TRANSACTIONAL_MASK
    is_begun = headers[:, layout.ATTRIBUTES] & both == layout.TRANSACTIONAL_MASK
    begun = headers[is_begun][:, [layout.PRODUCER_ID, layout.BASE_OFFSET]]
    markers = walked.markers[walked.markers[:, MARKER_OFFSET] < end_offset]
    ended = markers[:, [MARKER_PRODUCER_ID, MARKER_OFFSET]]
    if not len(begun) and not len(ended):
        return
    last_end: dict[int, int] = dict(ended.tolist())  # the last of each producer: they are in order
    for producer_id in last_end:
        opened.pop(producer_id, None)
    if len(begun):
        producers, which = np.unique(begun[:, 0], return_inverse=True)
        ends = np.array([last_end.get(each, -1) for each in producers.tolist()], np.int64)
        is_open = begun[:, 1] > ends[which]
        for producer_id, offset in begun[is_open][::-1].tolist():
            if opened.get(producer_id, offset) >= offset:
                opened[producer_id] = offset


def _sound_batches(
    segments: Sequence[Segment],
    start_offset: int,
    end_offset: int,
    *,
    skips: bool,
    passes_damage: bool,
) -> Iterator[PlacedHeader | None]:
    """Sound batches of a range of offsets; None stands for damage that was left out."""
    for segment in from_offset(segments, start_offset):
        with segment.opened() as opened:
            begin = position = position_of(opened, start_offset, passes_damage=passes_damage)
            try:
                for placed in sound_headers(opened, position, skips=skips):
                    if placed.position != position:
                        yield None
                    if placed.header.base_offset >= end_offset:
                        return
                    position = placed.end
                    if placed.header.last_offset >= start_offset:
                        yield placed
                        begin = position
            except CorruptLogError as error:
                sound = opened.headers(begin, error.position)
                if any(each.header.last_offset + 1 >= end_offset for each in sound):
                    return
                raise
            if position < segment.size:
                yield None
