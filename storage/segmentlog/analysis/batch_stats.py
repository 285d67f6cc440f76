"""What is kept of the batches of a part of a log: numbers from their headers.

A scan shows its windows of bytes to a `BatchStats` before it decodes them, so nothing is read
twice.  Those of parts that follow each other are added up.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from segmentlog.analysis.sample import Sampler
from segmentlog.format.kernels import layout, status
from segmentlog.format.kernels.memory import Bytes, Int64s
from segmentlog.format.kernels.transactions import (
    ABORT,
    MARKER_OFFSET,
    MARKER_PRODUCER_ID,
    MARKER_TYPE,
    N_MARKER_COLUMNS,
    walk_headers,
)
from segmentlog.format.records.header import ScannedBatches
from segmentlog.log.batches import markers_among
from segmentlog.model import OffsetRange

N_CODECS = 8  #: that three bits can name
N_SIZES = 33  #: by the number of bits of a size
_MOST_PRODUCERS = 1 << 12
_TABLE_ROWS = 1 << 14
_COUNTERS = (
    "n_batches",
    "n_bytes",
    "n_legacy",
    "n_control",
    "control_records",
    "n_empty",
    "n_transactional",
    "n_idempotent",
    "n_append_time",
    "n_commits",
    "n_aborts",
    "aborted_records",
    "batch_records",
)
_ARRAYS = ("codec_batches", "codec_bytes", "sizes")


class BatchStats:
    """Numbers of batches, those that the records of `offsets` are in.

    `sampler`: is shown all of them.  `n_batches` counts control batches, too, and `batch_records`
    does not count their records.
    `sizes` has batches by the number of bits of their size.  `producers` has records by producer
    id.  `open_records` has records of transactions that have no end marker yet, by producer id.
    """

    def __init__(self, offsets: OffsetRange, sampler: Sampler | None = None) -> None:
        self._sampler = sampler
        self._offsets, self._next_offset = offsets, offsets.start_offset
        self.n_waiting = 0
        self.n_batches = self.n_bytes = self.n_legacy = self.n_control = self.n_empty = 0
        self.control_records = self.batch_records = self.n_append_time = 0
        self.n_transactional = self.n_idempotent = 0
        self.n_commits = self.n_aborts = self.aborted_records = 0
        self.codec_batches: Int64s = np.zeros(N_CODECS, np.int64)
        self.codec_bytes: Int64s = np.zeros(N_CODECS, np.int64)
        self.sizes: Int64s = np.zeros(N_SIZES, np.int64)
        self.producers: dict[int, int] = {}
        self.has_more_producers = False
        self.open_records: dict[int, int] = {}
        #: for each producer, whether its first end marker is an abort, and its records before it
        self._first_ends: dict[int, bool] = {}

    @cached_property
    def headers(self) -> Int64s:
        """Rows of `walk_headers`, of which the first `n_waiting` were not yet counted."""
        return np.empty((_TABLE_ROWS, layout.N_HEADER_COLUMNS), np.int64)

    def see(self, path: str, buf: Bytes, begin: int, end: int, file_position: int) -> None:
        """Note the whole batches in ``buf[begin:end]``; bytes that are no batches end the look.

        The scan reports those.  A batch that was seen before is left out: a scan may look up its
        place again.
        """
        while begin < end:
            code, after, n = walk_headers(buf, begin, end, self.headers[self.n_waiting :])
            found = self.headers[self.n_waiting : self.n_waiting + n]
            if n and found[-1, layout.POSITION] + found[-1, layout.SIZE] > end:
                n -= 1
                found = found[:n]
            looks = n and np.bitwise_or.reduce(found[:, layout.ATTRIBUTES]) & layout.CONTROL_MASK
            self.note(path, buf, n, file_position, looks_into=bool(looks))
            if code != status.TABLE_FULL:
                return
            self.finish()
            begin = after

    def note(self, path: str, buf: Bytes, n: int, file_position: int, *, looks_into: bool) -> None:
        """Note `n` more rows of `headers`, of batches in a window.

        The rows wait until there are many, unless their batches have to be looked into.
        """
        found = self.headers[self.n_waiting : self.n_waiting + n]
        if n and self._sampler is not None:
            if self._sampler.is_due:
                self._sampler.see(path, buf, found)
            else:
                self._sampler.skip(int(found[:, layout.SIZE].sum()))
        if n and looks_into:
            self.finish()
            self._count(self._unseen(found), ScannedBatches(path, buf, found, file_position))
        else:
            self.n_waiting += n

    @property
    def samples(self) -> bool:
        """Whether the next window has to be noted while its bytes are there."""
        return self._sampler is not None and self._sampler.is_due

    def finish(self) -> None:
        """Count the batches that wait."""
        if self.n_waiting:
            self._count(self._unseen(self.headers[: self.n_waiting]), None)
            self.n_waiting = 0

    def _unseen(self, headers: Int64s) -> Int64s:
        """The batches of the offsets that were not counted."""
        last = headers[:, layout.LAST_OFFSET]
        if len(headers) > 1 and (last[1:] <= last[:-1]).any():
            headers = headers[last > np.append(-1, np.maximum.accumulate(last)[:-1])]
            last = headers[:, layout.LAST_OFFSET]
        headers = headers[(last >= self._next_offset) & (last < self._offsets.end_offset)]
        if len(headers):
            self._next_offset = int(headers[-1, layout.LAST_OFFSET]) + 1
        return headers

    def _count(self, headers: Int64s, batches: ScannedBatches | None) -> None:
        """Count batches; `batches` has their bytes if these are needed."""
        if not len(headers):
            return
        sizes, counts = headers[:, layout.SIZE], headers[:, layout.RECORDS_COUNT]
        attributes = headers[:, layout.ATTRIBUTES]
        any_of, all_of = np.bitwise_or.reduce(attributes), np.bitwise_and.reduce(attributes)
        n = len(headers)
        self.n_batches += n
        self.n_bytes += int(sizes.sum())
        self.sizes += np.bincount(_bit_lengths(sizes), minlength=N_SIZES)
        self.n_empty += n - int(np.count_nonzero(counts))
        codecs = attributes & layout.CODEC_MASK
        if any_of & layout.LEGACY_MASK:  # its row has no count of records
            n_legacy = int(np.count_nonzero(attributes & layout.LEGACY_MASK))
            self.n_legacy += n_legacy
            self.n_empty -= n_legacy
        if any_of & layout.CODEC_MASK == all_of & layout.CODEC_MASK:
            self.codec_batches[codecs[0]] += n
            self.codec_bytes[codecs[0]] += int(sizes.sum())
        else:
            self.codec_batches += np.bincount(codecs, minlength=N_CODECS)
            self.codec_bytes += np.bincount(codecs, sizes, N_CODECS).astype(np.int64)
        n_records = int(counts.sum())
        if any_of & layout.CONTROL_MASK:
            is_control = attributes & layout.CONTROL_MASK != 0
            n_control = int(counts[is_control].sum())
            self.n_control += int(is_control.sum())
            self.control_records += n_control
            n_records -= n_control
        self.batch_records += n_records
        if any_of & layout.TIMESTAMP_TYPE_MASK:
            self.n_append_time += int(np.count_nonzero(attributes & layout.TIMESTAMP_TYPE_MASK))
        ids = headers[:, layout.PRODUCER_ID]
        if ids.max() >= 0:
            self._count_producers(headers, batches, counts)

    def _count_producers(
        self, headers: Int64s, batches: ScannedBatches | None, counts: Int64s
    ) -> None:
        attributes, ids = headers[:, layout.ATTRIBUTES], headers[:, layout.PRODUCER_ID]
        is_transactional = attributes & layout.TRANSACTIONAL_MASK != 0
        is_data = attributes & layout.CONTROL_MASK == 0
        self.n_transactional += int(np.count_nonzero(is_transactional & is_data))
        is_numbered = is_data & (ids >= 0)
        self.n_idempotent += int(np.count_nonzero(is_numbered))
        self._add_producers(_sums(ids[is_numbered], counts[is_numbered]))
        if not is_transactional.any():
            return
        markers: Int64s = np.empty((0, N_MARKER_COLUMNS), np.int64)
        if batches is not None:
            markers = markers_among(batches._replace(headers=headers))
        base = headers[:, layout.BASE_OFFSET]
        rows = np.flatnonzero(is_transactional & is_data)
        self._count_transactions(ids[rows], base[rows], counts[rows], markers)

    def _count_transactions(
        self, ids: Int64s, offsets: Int64s, counts: Int64s, markers: Int64s
    ) -> None:
        """Add the records of transactions to what is open, or to what the next marker ends."""
        kinds = markers[:, MARKER_TYPE]
        self.n_aborts += int(np.count_nonzero(kinds == ABORT))
        self.n_commits += int(np.count_nonzero(kinds != ABORT))
        # In the order of producers and offsets, a marker has its transaction before it.
        all_ids = np.concatenate([ids, markers[:, MARKER_PRODUCER_ID]])
        places = np.concatenate([offsets, markers[:, MARKER_OFFSET]])
        amounts = np.concatenate([counts, np.zeros(len(markers), np.int64)])
        ends = np.concatenate([np.full(len(ids), -1), kinds])
        order = np.lexsort((places, all_ids))
        all_ids, amounts, ends = all_ids[order], np.cumsum(amounts[order]), ends[order]
        is_end = ends >= 0
        is_last = np.append(all_ids[1:] != all_ids[:-1], True)
        before = 0
        # A step for each transaction, and for each producer that has one open.
        for at in np.flatnonzero(is_end | is_last).tolist():
            producer, amount = int(all_ids[at]), int(amounts[at]) - before
            before = int(amounts[at])
            if is_end[at]:
                self._end(producer, amount, is_abort=bool(ends[at] == ABORT))
            elif amount:
                self.open_records[producer] = self.open_records.get(producer, 0) + amount

    def _end(self, producer: int, amount: int, *, is_abort: bool) -> None:
        amount += self.open_records.pop(producer, 0)
        self._first_ends.setdefault(producer, is_abort)
        if is_abort:
            self.aborted_records += amount

    def _add_producers(self, records: Mapping[int, int]) -> None:
        for producer, n in records.items():
            if producer in self.producers or len(self.producers) < _MOST_PRODUCERS:
                self.producers[producer] = self.producers.get(producer, 0) + n
            else:
                self.has_more_producers = True

    def merge(self, other: "BatchStats") -> None:
        """Add the batches of the part of the log that follows."""
        for name in _COUNTERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in _ARRAYS:
            getattr(self, name)[:] += getattr(other, name)
        self._add_producers(other.producers)
        self.has_more_producers |= other.has_more_producers
        for producer, is_abort in other._first_ends.items():
            self._end(producer, 0, is_abort=is_abort)
        for producer, n in other.open_records.items():
            self.open_records[producer] = self.open_records.get(producer, 0) + n

    def merge_beside(self, other: "BatchStats") -> None:
        """Add the batches of another partition, whose transactions have ends of their own."""
        mine, self.open_records = self.open_records, {}
        self._first_ends.clear()
        ends, other._first_ends = other._first_ends, {}
        self.merge(other)
        other._first_ends = ends
        for producer, n in mine.items():
            self.open_records[producer] = self.open_records.get(producer, 0) + n

    def to_json(self) -> dict[str, Any]:
        """All of it, for another process; `from_json` is the inverse."""
        found: dict[str, Any] = {name: getattr(self, name) for name in _COUNTERS}
        found |= {name: getattr(self, name).tolist() for name in _ARRAYS}
        found["producers"] = [*self.producers.items()]
        found["open_records"] = [*self.open_records.items()]
        return found | {"has_more_producers": self.has_more_producers}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "BatchStats":
        """The inverse of `to_json`, of a whole partition."""
        stats = cls(OffsetRange(0, 0))
        for name in _COUNTERS:
            setattr(stats, name, int(found[name]))
        for name in _ARRAYS:
            getattr(stats, name)[:] = found[name]
        stats.producers = dict(found["producers"])
        stats.open_records = dict(found["open_records"])
        stats.has_more_producers = bool(found["has_more_producers"])
        return stats


def _bit_lengths(sizes: Int64s) -> Int64s:
    found: Int64s = np.frexp(sizes.astype(np.float64))[1].astype(np.int64)
    return found


def _sums(keys: Int64s, amounts: Int64s) -> dict[int, int]:
    found, where = np.unique(keys, return_inverse=True)
    sums: Int64s = np.zeros(len(found), np.int64)
    np.add.at(sums, where, amounts)
    return dict(zip(found.tolist(), sums.tolist(), strict=True))
