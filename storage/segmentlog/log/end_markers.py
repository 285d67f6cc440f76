"""The end markers of a log's transactions, and the batches that they revoke.

The log itself decides.  A broker keeps aborted transactions in ``.txnindex`` files
(``CleanedTransactionMetadata``, ``TransactionIndex``).  A missing file looks like a file without
aborts, and a broker that starts cleanly does not rebuild it.

Batches are asked for in the order of the log.  If the marker of a batch has not been seen yet, the
log is walked ahead until it is found.  A log without transactions costs nothing.
"""

from collections.abc import Callable, Iterator

import numpy as np

from segmentlog.format.kernels import layout
from segmentlog.format.kernels.memory import Bytes, Int64s
from segmentlog.format.kernels.transactions import (
    COMMIT,
    MARKER_OFFSET,
    MARKER_PRODUCER_ID,
    N_MARKER_COLUMNS,
    flag_aborted,
)
from segmentlog.format.records.scanned_batches import ScannedBatches
from segmentlog.log.batches import WalkedBatches, markers_among
from segmentlog.model import LARGEST_LONG

#: Called for the first batch of a transaction that never ends, with the batches and its row.  It
#: raises an error, or returns `COMMIT` or `ABORT`, by which the whole transaction counts.
TornTransactions = Callable[[ScannedBatches, int], int]


def as_committed(batches: ScannedBatches, row: int) -> int:
    """Count a transaction without an end marker as committed: its records stay."""
    return COMMIT


class EndMarkers:
    """The transactions of one log, whose batches are asked for in the order of the log.

    `walk`: the batches from an offset to the end of the log, to look ahead in.  `torn`: decides
    about transactions that have no end marker in the log.  `least_records`: a batch with fewer
    records needs no marker.  Compaction has to decide about batches that it has emptied earlier,
    too; to a reader they do not matter.
    """

    def __init__(
        self,
        walk: Callable[[int], Iterator[WalkedBatches]],
        torn: TornTransactions = as_committed,
        *,
        least_records: int = 0,
    ) -> None:
        self._walk, self._torn, self._least_records = walk, torn, least_records
        self._markers: Int64s = np.empty((0, N_MARKER_COLUMNS), np.int64)  # by producer and offset
        self._seen_to = -1  # offset up to which markers are known

    def find_aborted(self, batches: ScannedBatches, next_offset: int) -> Bytes:
        """Flag aborted ones of the next batches of the log: uint8 array, shape (n_batches,).

        `next_offset`: offset after the last batch that was read; `batches` may lack that batch.
        Raises `MalformedBatchError` if an end marker cannot be read.
        """
        headers = batches.headers
        is_aborted: Bytes = np.zeros(len(headers), np.uint8)
        seen_to, self._seen_to = self._seen_to, max(self._seen_to, next_offset)
        if not np.bitwise_or.reduce(headers[:, layout.ATTRIBUTES]) & layout.TRANSACTIONAL_MASK:
            return is_aborted
        self._add(markers_among(batches.only(headers[:, layout.BASE_OFFSET] >= seen_to)))
        is_needed = self._markers[:, MARKER_OFFSET] >= headers[0, layout.BASE_OFFSET]
        self._markers = self._markers[is_needed]
        undecided = self._decide(headers, 0, is_aborted)
        if undecided < len(headers):
            self._look_ahead(batches, undecided, is_aborted)
        return is_aborted

    def _look_ahead(self, batches: ScannedBatches, undecided: int, is_aborted: Bytes) -> None:
        """Walk on until each batch is decided, or the log ends."""
        headers = batches.headers
        for walked in self._walk(self._seen_to):
            self._add(walked.markers)
            self._seen_to = max(self._seen_to, walked.next_offset)
            undecided = self._decide(headers, undecided, is_aborted)
            if undecided == len(headers):
                return
        while undecided < len(headers):
            counts_as = self._torn(batches, undecided)
            producer_id = headers[undecided, layout.PRODUCER_ID]
            self._add(np.array([[producer_id, LARGEST_LONG, counts_as]], np.int64))
            undecided = self._decide(headers, undecided, is_aborted)

    def _decide(self, headers: Int64s, begin: int, is_aborted: Bytes) -> int:
        return flag_aborted(headers, begin, self._markers, is_aborted, self._least_records)

    def _add(self, markers: Int64s) -> None:
        if len(markers):
            joined = np.concatenate([self._markers, markers])
            order = np.lexsort((joined[:, MARKER_OFFSET], joined[:, MARKER_PRODUCER_ID]))
            self._markers = joined[order]
