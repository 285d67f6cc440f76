"""The fate of each batch, as the active producers of a log and its transactions decide it.

The header of an active producer's last batch stays, for its sequence number and its epoch: without
it, the next batch of the producer would be refused (``Cleaner.cleanInto``).
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TypeAlias

import numpy as np

from segmentlog.format.kernels import batch_fates, layout
from segmentlog.format.kernels.batch_fates import judge_batches
from segmentlog.format.kernels.memory import Bytes, Int64s
from segmentlog.format.records.scanned_batches import ScannedBatches
from segmentlog.log.end_markers import EndMarkers
from segmentlog.log.producer_snapshot import ProducerSnapshot
from segmentlog.log.transaction_index import AbortedTransaction

_NO_PRODUCER = -1


#: Judges the batches of one log in their order, as they were scanned: gives their fates, and the
#: aborted transactions that end among them and still have some.
Fates: TypeAlias = Callable[[ScannedBatches], tuple[Bytes, list[AbortedTransaction]]]


def keep_headers(indexed: Sequence[AbortedTransaction]) -> Fates:
    """The fates of an erasure: each header stays, and so does each end marker.

    A batch that loses all its records stays as an empty batch.  A cleaner keeps such a batch only
    for a producer that is active by the clock, or at the end of its range.  Two replicas of a log
    differ in clocks, in producer snapshots and in the borders of segments, and would then differ
    in their batches.

    `indexed`: entries of the log's transaction indexes; they stay as they are.
    """
    by_end = sorted(indexed, key=attrgetter("last_offset"))

    def judge(batches: ScannedBatches) -> tuple[Bytes, list[AbortedTransaction]]:
        headers = batches.headers
        first, end = (
            bisect_left(by_end, offset, key=attrgetter("last_offset"))
            for offset in (int(headers[0, layout.BASE_OFFSET]), batches.next_offset)
        )
        return np.full(len(headers), batch_fates.STAYS_EMPTY, np.uint8), by_end[first:end]

    return judge


class BatchFates:
    """The fates of a compaction (`Fates`).

    `active`: producers that count as active, by their state at the log end.  `indexed`: entries of
    the log's transaction indexes, for the new ones.  `kept_end`: a batch that ends here stays, if
    only empty.  `now_ms`: its time (epoch).
    """

    def __init__(
        self,
        active: Sequence[ProducerSnapshot],
        indexed: Sequence[AbortedTransaction],
        transactions: EndMarkers,
        kept_end: int,
        now_ms: int,
    ) -> None:
        self._indexed = {(each.producer_id, each.last_offset): each for each in indexed}
        self._transactions, self._kept_end, self._now_ms = transactions, kept_end, now_ms
        self._rows: dict[int, int] = {}
        self._producers: Int64s = np.zeros((1, batch_fates.PRODUCER_COLUMNS), np.int64)
        self._first_offsets: dict[int, int] = {}
        self._add([each.producer_id for each in active])
        for each in active:
            row = self._producers[self._rows[each.producer_id]]
            row[batch_fates.LAST_DATA_OFFSET] = each.last_offset
            row[batch_fates.EPOCH], row[batch_fates.IS_ACTIVE] = each.producer_epoch, 1

    def __call__(self, batches: ScannedBatches) -> tuple[Bytes, list[AbortedTransaction]]:
        """Judge the next batches."""
        is_aborted = self._transactions.find_aborted(batches, batches.next_offset)
        headers = batches.headers
        ids = headers[:, layout.PRODUCER_ID]
        rows: Int64s = np.full(len(headers), len(self._producers) - 1, np.int64)
        if (ids != _NO_PRODUCER).any():
            different, which = np.unique(ids, return_inverse=True)
            self._add([each for each in different.tolist() if each not in self._rows])
            last = len(self._producers) - 1
            found = [self._rows.get(each, last) for each in different.tolist()]
            rows = np.array(found, np.int64)[which]
        fates: Bytes = np.empty(len(headers), np.uint8)
        aborts: Int64s = np.empty(len(headers), np.int64)
        begun = headers[is_aborted != 0][:, [layout.PRODUCER_ID, layout.BASE_OFFSET]].tolist()
        n_aborts = judge_batches(
            batches.buf, headers, rows, is_aborted, self._producers,
            self._kept_end, self._now_ms, fates, aborts,
        )  # fmt: skip
        ended = headers[aborts[:n_aborts]][:, [layout.PRODUCER_ID, layout.BASE_OFFSET]].tolist()
        return fates, self._entries(begun, ended)

    def _add(self, ids: Sequence[int]) -> None:
        """Give new producers rows of the table; its last row stands for no producer."""
        new = [each for each in ids if each != _NO_PRODUCER]
        self._rows.update({each: len(self._producers) - 1 + i for i, each in enumerate(new)})
        room: Int64s = np.zeros((len(new), batch_fates.PRODUCER_COLUMNS), np.int64)
        self._producers = np.concatenate([self._producers[:-1], room, self._producers[-1:]])

    def _entries(self, begun: list[list[int]], ended: list[list[int]]) -> list[AbortedTransaction]:
        """Index entries of transactions; an entry that the old index lacks is made again.

        `begun`: producer and base offset of aborted batches.  `ended`: the same for markers after
        some of them.
        """
        entries = []
        both = [*((at, False, of) for of, at in begun), *((at, True, of) for of, at in ended)]
        for offset, is_end, producer_id in sorted(both):
            if not is_end:
                self._first_offsets.setdefault(producer_id, offset)
                continue
            first = self._first_offsets.pop(producer_id)
            stable = min([offset + 1, *self._first_offsets.values()])
            made = AbortedTransaction(producer_id, first, offset, stable)
            entries.append(self._indexed.get((producer_id, offset), made))
        return entries
