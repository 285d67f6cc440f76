"""Batches of a log that belong to aborted transactions, by the end markers in the log.

A broker takes that from ``.txnindex`` files (``CleanedTransactionMetadata``).  A broker that
starts cleanly does not rebuild a missing one, so the markers decide here.  A log without
transactions costs nothing.
"""

from collections.abc import Sequence

import numpy as np

from segmentlog.kernels import layout
from segmentlog.kernels.memory import Bytes, Int64s
from segmentlog.kernels.transactions import (
    MARKER_OFFSET,
    MARKER_PRODUCER_ID,
    N_MARKER_COLUMNS,
    flag_aborted,
)
from segmentlog.records.scanned_batches import ScannedBatches
from segmentlog.segments.batches import markers_among, walk_batches
from segmentlog.segments.segment import Segment

__all__ = ["DecidedTransactions"]


class DecidedTransactions:
    """The transactions of one log, whose batches are asked for in the order of the log.

    Parameters
    ----------
    segments : all segments of the log, to look ahead in.
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = segments
        self._markers: Int64s = np.empty((0, N_MARKER_COLUMNS), np.int64)
        self._seen_to = -1

    def find_aborted(self, batches: ScannedBatches) -> Bytes:
        """Flag batches of aborted transactions: uint8 array, shape (n_batches,).

        Raises
        ------
        MalformedBatchError
            If an end marker cannot be read.
        """
        headers = batches.headers
        is_aborted: Bytes = np.zeros(len(headers), np.uint8)
        if not np.bitwise_or.reduce(headers[:, layout.ATTRIBUTES]) & layout.TRANSACTIONAL_MASK:
            return is_aborted
        self._add(markers_among(batches.only(headers[:, layout.BASE_OFFSET] >= self._seen_to)))
        self._seen_to = max(self._seen_to, batches.next_offset)
        is_behind = self._markers[:, MARKER_OFFSET] >= headers[0, layout.BASE_OFFSET]
        self._markers = self._markers[is_behind]
        undecided = flag_aborted(headers, 0, self._markers, is_aborted, False)
        if undecided < len(headers):
            self._look_ahead(headers, undecided, is_aborted)
        return is_aborted

    def _add(self, markers: Int64s) -> None:
        if len(markers):
            joined = np.concatenate([self._markers, markers])
            order = np.lexsort((joined[:, MARKER_OFFSET], joined[:, MARKER_PRODUCER_ID]))
            self._markers = joined[order]

    def _look_ahead(self, headers: Int64s, undecided: int, is_aborted: Bytes) -> None:
        """Walk on until each batch is decided, or the log ends.

        Compaction stays below the first open transaction.  A batch without a marker is one of a
        log that something else has changed, and its records count as committed: they stay.
        """
        for walked in walk_batches(self._segments, self._seen_to):
            self._add(walked.markers)
            self._seen_to = walked.next_offset
            undecided = flag_aborted(headers, undecided, self._markers, is_aborted, False)
            if undecided == len(headers):
                return
        flag_aborted(headers, undecided, self._markers, is_aborted, True)
