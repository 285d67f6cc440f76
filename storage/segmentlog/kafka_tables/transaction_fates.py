"""Whether the transactions of a log were committed or aborted, by the offset of a record.

A consumer's offsets that are committed in a transaction count after its end marker in the same
partition.  A scan does not show to which batch a record belongs, so that the headers of batches
are walked once.  Nothing is an object of Python for a batch or a record.
"""

import logging
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from segmentlog.errors import CorruptLogError
from segmentlog.kernels import layout
from segmentlog.kernels.memory import Int64s
from segmentlog.kernels.transactions import COMMIT, MARKER_OFFSET, MARKER_PRODUCER_ID, MARKER_TYPE
from segmentlog.logs.log import Log
from segmentlog.segments.batches import walk_batches

__all__ = ["Fate", "Fates", "transaction_fates"]

logger = logging.getLogger(__name__)


class Fate(IntEnum):
    """The state of the transaction that a record belongs to."""

    OUTSIDE = 0
    COMMITTED = 1
    ABORTED = 2
    OPEN = 3


class Fates(NamedTuple):
    """The batches of transactions of a log, in order; each array has shape (n_batches,).

    Attributes
    ----------
    base_offsets, last_offsets : bounds of the batches.
    producer_ids : of their producers.
    fates : of their transactions, as in `Fate`.
    """

    base_offsets: Int64s
    last_offsets: Int64s
    producer_ids: Int64s
    fates: Int64s

    def of(self, offsets: Int64s) -> tuple[Int64s, Int64s]:
        """Fates and producer ids of records; -1 is the producer id outside of transactions.

        Parameters
        ----------
        offsets : int64 array, shape (n_records,).
        """
        if not len(self.base_offsets):
            return np.zeros(len(offsets), np.int64), np.full(len(offsets), -1, np.int64)
        batch = np.searchsorted(self.base_offsets, offsets, side="right") - 1
        is_inside = (batch >= 0) & (offsets <= self.last_offsets[batch])
        return (
            np.where(is_inside, self.fates[batch], Fate.OUTSIDE),
            np.where(is_inside, self.producer_ids[batch], -1),
        )


def transaction_fates(log: Log, *, skips: bool = False) -> Fates:
    """The fates of all transactions of a log, to its end.

    Parameters
    ----------
    skips : whether damage is left out with a warning.  Transactions that it may have ended count
        as open.

    Raises
    ------
    CorruptLogError
        If a header is damaged.
    """
    begun: list[Int64s] = []
    ended: list[Int64s] = []
    wanted = [layout.PRODUCER_ID, layout.BASE_OFFSET, layout.LAST_OFFSET]
    both = layout.CONTROL_MASK | layout.TRANSACTIONAL_MASK
    try:
        for walked in walk_batches(log.untorn_segments, log.log_start_offset):
            headers = walked.scanned.headers
            is_begun = headers[:, layout.ATTRIBUTES] & both == layout.TRANSACTIONAL_MASK
            if is_begun.any():
                begun.append(headers[is_begun][:, wanted])
            if len(walked.markers):
                ended.append(walked.markers.copy())
    except CorruptLogError as error:
        if not skips:
            raise
        logger.warning("%s; transactions that are open there count as open", error)
    batches = np.concatenate(begun) if begun else np.empty((0, 3), np.int64)
    markers = np.concatenate(ended) if ended else np.empty((0, 3), np.int64)
    fates = np.full(len(batches), Fate.OPEN, np.int64)
    for producer_id in np.unique(batches[:, 0]).tolist():
        own = np.flatnonzero(batches[:, 0] == producer_id)
        ends = markers[markers[:, MARKER_PRODUCER_ID] == producer_id]
        # The producer's first marker after a batch decides about the batch.
        which = np.searchsorted(ends[:, MARKER_OFFSET], batches[own, 1])
        has_ended = which < len(ends)
        kinds = ends[which[has_ended], MARKER_TYPE]
        fates[own[has_ended]] = np.where(kinds == COMMIT, Fate.COMMITTED, Fate.ABORTED)
    return Fates(batches[:, 1], batches[:, 2], batches[:, 0], fates)
