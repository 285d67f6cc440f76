"""``read_committed``: find the start of undecided transactions.

The producers' state is read from the newest snapshot and updated from the headers after it, as a
starting broker does (``ProducerStateManager``).  A flipped bit in a header may make a batch look
like the beginning of a transaction, or hide an end marker.  A read would then end there without an
error.  So if a transaction is open, the checksums of all batches from its beginning on are
verified.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from segmentlog.errors import CorruptLogError, UnsupportedFormatError
from segmentlog.format.kernels import layout
from segmentlog.format.kernels.transactions import MARKER_OFFSET, MARKER_PRODUCER_ID
from segmentlog.log.batches import WalkedBatches, walk_batches
from segmentlog.log.segment import OpenSegment, PlacedHeader, Segment
from segmentlog.log.sound_headers import position_of, sound_headers
from segmentlog.reads.partition import Partition


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
    id.  Raises `CorruptLogError` or `UnsupportedFormatError` if a batch that may have ended a
    transaction is damaged.
    """
    start_offset = segments[0].base_offset if segments else 0
    found = partition.snapshot(start_offset, end_offset)
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
        return _replayed(
            segments, log_start_offset, {}, end_offset, skips=skips, passes_damage=True
        )


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
    last_end: dict[int, int] = dict(
        ended.tolist()
    )  # the last marker of each producer, as the markers are in order
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
    for i, segment in enumerate(segments):
        if i + 1 < len(segments) and segments[i + 1].base_offset <= start_offset:
            continue
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
                if _reaches(opened, begin, error.position, end_offset):
                    return
                raise
            if position < segment.size:
                yield None


def _reaches(opened: OpenSegment, position: int, damage: int, end_offset: int) -> bool:
    """Whether the sound batches before byte `damage` reach `end_offset`."""
    return any(
        placed.header.last_offset + 1 >= end_offset for placed in opened.headers(position, damage)
    )
