"""Whether the transactions of a log were committed or aborted, by the offset of a record.

A consumer's offsets that are committed in a transaction count after its end marker in the same
partition.  A scan does not show to which batch a record belongs, so the headers of batches are
walked once.  Nothing is an object of Python for a batch or a record.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from segmentlog.errors import CorruptLogError
from segmentlog.format.kernels import layout
from segmentlog.format.kernels.memory import Int64s
from segmentlog.log.segment import Segment
from segmentlog.reads.listed import retry_if_relisted
from segmentlog.reads.log import Log

if TYPE_CHECKING:
    from segmentlog.log.batches import WalkedBatches


class Fate(IntEnum):
    """The state of the transaction that a record belongs to."""

    OUTSIDE = 0
    COMMITTED = 1
    ABORTED = 2
    OPEN = 3


class Fates(NamedTuple):
    """The batches of transactions of a log, in order; each array has shape (n_batches,)."""

    #: bounds of the batches
    base_offsets: Int64s
    last_offsets: Int64s
    producer_ids: Int64s  # of their producers
    fates: Int64s  # of their transactions, as in `Fate`
    end_offset: int  # of the log when it was walked; nothing is known about later records

    def of(self, offsets: Int64s) -> tuple[Int64s, Int64s]:
        """Fates and producer ids of records; -1 is the producer id outside of transactions.

        `offsets`: int64 array, shape (n_records,), below `end_offset`.
        """
        if not len(self.base_offsets):
            return np.zeros(len(offsets), np.int64), np.full(len(offsets), -1, np.int64)
        batch = np.searchsorted(self.base_offsets, offsets, side="right") - 1
        is_inside = (batch >= 0) & (offsets <= self.last_offsets[batch])
        return (
            np.where(is_inside, self.fates[batch], Fate.OUTSIDE),
            np.where(is_inside, self.producer_ids[batch], -1),
        )


@retry_if_relisted
def transaction_fates(log: Log, *, skips: bool = False) -> Fates:
    """The fates of all transactions of a log, to its end.

    `skips`: whether damage is left out with a warning.  It may have been the end marker of any
    transaction that is open before it: such a transaction counts as open.  Raises
    `CorruptLogError` if a header is damaged; `LogChangedError` if a broker has replaced files
    again and again.
    """
    from segmentlog.log.batches import walk_batches  # the compiled kernels load here

    end_offset = log.log_end_offset
    try:
        walked = _walk(walk_batches(log.untorn_segments, log.log_start_offset))
        # A flipped bit may hide a marker, or the rest of a segment.  Checksums show that.
        is_whole = walked.next_offset >= end_offset
        is_sound = not skips or (is_whole and not len(walked.batches))
    except CorruptLogError:
        if not skips:
            raise
        is_sound = False
    damaged: list[int] = []
    if not is_sound:
        walked = _walk(_sound_batches(log.untorn_segments, damaged))
    return _decided(walked, np.array(damaged, np.int64), end_offset)


class _Walked(NamedTuple):
    """Batches of transactions (producer id, base and last offset), and end markers."""

    batches: Int64s
    markers: Int64s
    next_offset: int


def _walk(walk: Iterable["WalkedBatches"]) -> _Walked:
    from segmentlog.format.kernels.transactions import N_MARKER_COLUMNS

    begun: list[Int64s] = [np.empty((0, 3), np.int64)]
    ended: list[Int64s] = [np.empty((0, N_MARKER_COLUMNS), np.int64)]
    wanted = [layout.PRODUCER_ID, layout.BASE_OFFSET, layout.LAST_OFFSET]
    both = layout.CONTROL_MASK | layout.TRANSACTIONAL_MASK
    next_offset = 0
    for walked in walk:
        next_offset = walked.next_offset
        headers = walked.scanned.headers
        is_begun = headers[:, layout.ATTRIBUTES] & both == layout.TRANSACTIONAL_MASK
        if is_begun.any():
            begun.append(headers[is_begun][:, wanted])
        if len(walked.markers):
            ended.append(walked.markers.copy())
    return _Walked(np.concatenate(begun), np.concatenate(ended), next_offset)


def _sound_batches(segments: Sequence[Segment], damaged: list[int]) -> Iterator["WalkedBatches"]:
    """Batches with right checksums; offsets that follow damage are added to `damaged`."""
    from segmentlog.log.batches import walk_file
    from segmentlog.log.damage import sound_headers

    for segment in segments:
        with segment.opened() as opened:
            end, next_offset = 0, segment.base_offset
            for placed in sound_headers(opened, skips=True):
                if placed.position != end:
                    damaged.append(placed.header.base_offset)
                end, next_offset = placed.end, placed.header.last_offset + 1
                yield from walk_file(segment.path, opened.file, placed.position, end)
            if end < segment.size:
                damaged.append(next_offset)


def _decided(walked: _Walked, damaged: Int64s, end_offset: int) -> Fates:
    """The fates of batches, by the first end marker of their producer after them."""
    from segmentlog.format.kernels.transactions import (
        COMMIT,
        MARKER_OFFSET,
        MARKER_PRODUCER_ID,
        MARKER_TYPE,
    )

    batches, markers, _ = walked
    fates = np.full(len(batches), Fate.OPEN, np.int64)
    for producer_id in np.unique(batches[:, 0]).tolist():
        own = np.flatnonzero(batches[:, 0] == producer_id)
        ends = markers[markers[:, MARKER_PRODUCER_ID] == producer_id]
        which = np.searchsorted(ends[:, MARKER_OFFSET], batches[own, 1])
        has_ended = which < len(ends)
        own, which = own[has_ended], which[has_ended]
        # The first marker may have been in the damage.
        n_before = np.searchsorted(damaged, batches[own, 2], side="right")
        is_known = n_before == np.searchsorted(damaged, ends[which, MARKER_OFFSET], side="right")
        kinds = np.where(ends[which, MARKER_TYPE] == COMMIT, Fate.COMMITTED, Fate.ABORTED)
        fates[own] = np.where(is_known, kinds, Fate.OPEN)
    return Fates(batches[:, 1], batches[:, 2], batches[:, 0], fates, end_offset)
