"""The transactions of a log: end markers, the batches that they revoke, and the transaction index.

The log itself decides.  A broker keeps aborted transactions in ``.txnindex`` files
(``CleanedTransactionMetadata``, ``TransactionIndex``).  A missing file looks like a file without
aborts, and a broker that starts cleanly does not rebuild it.

Batches are asked for in the order of the log.  If the marker of a batch has not been seen yet, the
log is walked ahead until it is found.  A log without transactions costs nothing.

The transaction index:

::

     0         2             10             18            26                   34
    +---------+-------------+--------------+-------------+--------------------+
    | version | producer id | first offset | last offset | last stable offset |
    | 0       |             |              |             | after it           |
    +---------+-------------+--------------+-------------+--------------------+

The file has an entry for each abort marker of the segment; the last offset is the marker's.  A
segment without aborts has no such file, so a missing file proves nothing: reads use the markers in
the log.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from segmentlog.errors import CorruptIndexError
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
from segmentlog.store.readable import read_whole

_LARGEST_OFFSET = 2**63 - 1

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
        """Flag batches of aborted transactions: uint8 array, shape (n_batches,).

        `batches`: the next batches of the log; control batches lie whole in their buffer.
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
            self._add(np.array([[producer_id, _LARGEST_OFFSET, counts_as]], np.int64))
            undecided = self._decide(headers, undecided, is_aborted)

    def _decide(self, headers: Int64s, begin: int, is_aborted: Bytes) -> int:
        return flag_aborted(headers, begin, self._markers, is_aborted, self._least_records)

    def _add(self, markers: Int64s) -> None:
        if len(markers):
            joined = np.concatenate([self._markers, markers])
            order = np.lexsort((joined[:, MARKER_OFFSET], joined[:, MARKER_PRODUCER_ID]))
            self._markers = joined[order]


_ENTRY = struct.Struct(">hqqqq")


class AbortedTransaction(NamedTuple):
    """An entry of a ``.txnindex`` file."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def read_transaction_index(path: str) -> Iterator[AbortedTransaction]:
    """Every entry of the file, in its order; no entries if the file is missing.

    Raises `CorruptIndexError` if its length is not a whole number of entries, an entry has another
    version than 0, or its last offset is not above that of the entry before; it is raised after
    the entries before.
    """
    try:
        data = read_whole(path, lambda reason: CorruptIndexError(path, f"it {reason}"))
    except FileNotFoundError:
        return
    left, before = len(data) % _ENTRY.size, -1
    entries = _ENTRY.iter_unpack(data[: len(data) - left])
    for number, (version, *fields) in enumerate(entries):
        if version:
            raise CorruptIndexError(path, f"expected entries of version 0, found {version}")
        entry = AbortedTransaction(*fields)
        if entry.last_offset <= before:
            reason = (
                f"entry {number} has last offset {entry.last_offset}, and the one before has "
                f"{before}: expected offsets that rise"
            )
            raise CorruptIndexError(path, reason)
        before = entry.last_offset
        yield entry
    if left:
        raise CorruptIndexError(
            path, f"its size of {len(data)} bytes is not a multiple of 34, the size of an entry"
        )


def encode_transactions(entries: Iterable[AbortedTransaction]) -> bytes:
    """Bytes of a file with these entries."""
    return b"".join(_ENTRY.pack(0, *each) for each in entries)
