"""Kafka's log cleaner in plain Python, one record at a time: slow, short, and easy to check.

It follows ``Cleaner``, ``CleanedTransactionMetadata`` and ``MemoryRecords.filterTo`` as they are
described, and shares no code with the engine.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from compaction.batches import ABORT, APPEND_TIME, COMMIT, HORIZON, TRANSACTIONAL, Batch, encode


class Aborted(NamedTuple):
    """An aborted transaction: its producer, its first offset, and its marker's."""

    producer_id: int
    first_offset: int
    last_offset: int


class Rules(NamedTuple):
    """The rules of a pass."""

    now_ms: int
    most_keys: int = 10**9
    delete_retention_ms: int = 86_400_000
    segment_bytes: int = 1 << 30
    expiration_ms: int = 86_400_000


@dataclass
class PlainLog:
    """A log of batches of magic 2, by segment; the last one is active."""

    segments: dict[int, list[Batch]]
    aborted: list[Aborted] = field(default_factory=list)  # its transaction indexes
    clean_to: int = 0  # its checkpoint

    def append(self, segments: Mapping[int, Sequence[Batch]]) -> None:
        """Add segments after the active one; their transactions are decided here."""
        self.segments.update({base: list(batches) for base, batches in segments.items()})
        opened: dict[int, int] = {}
        known = {each.last_offset for each in self.aborted}
        for batch in self.batches():
            if batch.is_control:
                first = opened.pop(batch.producer_id, None)
                if _kind(batch) == ABORT and first is not None and batch.base_offset not in known:
                    self.aborted.append(Aborted(batch.producer_id, first, batch.base_offset))
            elif batch.attributes & TRANSACTIONAL:
                opened.setdefault(batch.producer_id, batch.base_offset)
        self.aborted.sort(key=lambda each: each.last_offset)

    def batches(self) -> Iterable[Batch]:
        """All of them, in order."""
        return (batch for base in sorted(self.segments) for batch in self.segments[base])

    def clean(self, rules: Rules) -> None:
        """One pass over all but the active segment."""
        end = max(self.segments)
        known, latest = self._map(end, rules.most_keys)
        transactions = _Transactions(self.aborted)
        active = self._active(rules.now_ms - rules.expiration_ms)
        cleaned: dict[int, list[Batch]] = {}
        bases = [base for base in sorted(self.segments) if base < latest + 1]
        for group in self._groups(bases, rules.segment_bytes):
            cleaned[group[0]] = [
                kept
                for base in group
                for batch in self.segments[base]
                for kept in _filtered(batch, transactions, active, known, latest, end, rules)
            ]
        left = {base: batches for base, batches in self.segments.items() if base not in bases}
        reached = max(bases)
        later = [each for each in self.aborted if each.last_offset > self._last(reached)]
        self.segments, self.clean_to = {**cleaned, **left}, latest + 1
        self.aborted = sorted([*transactions.kept, *later], key=lambda each: each.last_offset)

    def _last(self, base: int) -> int:
        later = [each for each in self.segments if each > base]
        return min(later, default=2**62) - 1

    def _groups(self, bases: Sequence[int], most: int) -> list[list[int]]:
        groups: list[list[int]] = []
        size = 0
        for base in bases:
            n_bytes = sum(len(encode(each)) for each in self.segments[base])
            if groups and size + n_bytes <= most:
                groups[-1].append(base)
                size += n_bytes
            else:
                groups.append([base])
                size = n_bytes
        return groups

    def _map(self, end: int, most_keys: int) -> tuple[dict[bytes, int], int]:
        dirty = [each for each in self.aborted if each.last_offset >= self.clean_to]
        transactions = _Transactions(dirty)
        known: dict[bytes, int] = {}
        latest = -1
        bases = sorted(self.segments)
        for base, end_offset in pairwise(bases):
            if end_offset <= self.clean_to:
                continue
            for batch in self.segments[base]:
                if batch.is_control:
                    transactions.read_control(batch)
                elif not transactions.read_data(batch):
                    for record in batch.records:
                        if record.key is None or record.offset < self.clean_to:
                            continue
                        if len(known) >= most_keys:
                            return known, latest
                        known[record.key] = latest = record.offset
                if batch.last_offset >= self.clean_to:
                    latest = batch.last_offset
            latest = min(end_offset, end) - 1
        return known, latest

    def _active(self, since_ms: int) -> dict[int, tuple[int, int]]:
        """Last data offset, or -1, and epoch of each producer that is active at the log end."""
        last: dict[int, tuple[int, int]] = {}
        seen: dict[int, int] = {}
        for batch in self.batches():
            if batch.producer_id < 0 or (batch.is_control and not batch.records):
                continue
            seen[batch.producer_id] = batch.max_ms
            if not batch.is_control:
                last[batch.producer_id] = batch.last_offset, batch.epoch
            elif last.get(batch.producer_id, (-1, -1))[1] != batch.epoch:
                last[batch.producer_id] = -1, batch.epoch
        return {each: found for each, found in last.items() if seen[each] > since_ms}


def _kind(marker: Batch) -> int | None:
    if not marker.records:
        return None
    return int.from_bytes((marker.records[0].key or b"")[2:4], "big")


class _Transactions:
    def __init__(self, aborted: Iterable[Aborted]) -> None:
        self._waiting = sorted(aborted, key=lambda each: each.first_offset)
        self._aborting: dict[int, list[Aborted | bool]] = {}
        self._committing: set[int] = set()
        self.kept: list[Aborted] = []

    def _consume(self, offset: int) -> None:
        while self._waiting and self._waiting[0].first_offset <= offset:
            each = self._waiting.pop(0)
            self._aborting.setdefault(each.producer_id, [each, False])

    def read_control(self, batch: Batch) -> bool:
        """Whether the marker may be removed."""
        self._consume(batch.last_offset)
        kind = _kind(batch)
        if kind is None:
            return True
        if kind == ABORT:
            found = self._aborting.pop(batch.producer_id, None)
            if found is not None and found[1]:
                assert isinstance(found[0], Aborted)
                self.kept.append(found[0])
                return False
            return True
        if kind == COMMIT:
            is_seen = batch.producer_id in self._committing
            self._committing.discard(batch.producer_id)
            return not is_seen
        return False

    def read_data(self, batch: Batch) -> bool:
        """Whether the batch is of an aborted transaction."""
        self._consume(batch.last_offset)
        if not batch.attributes & TRANSACTIONAL:
            return False
        if batch.producer_id in self._aborting:
            self._aborting[batch.producer_id][1] = True
            return True
        self._committing.add(batch.producer_id)
        return False


def _filtered(
    batch: Batch,
    transactions: _Transactions,
    active: Mapping[int, tuple[int, int]],
    known: Mapping[bytes, int],
    latest: int,
    end: int,
    rules: Rules,
) -> list[Batch]:
    """The remaining part of a batch; empty if nothing of it stays."""
    horizon = batch.horizon_ms
    if batch.is_control:
        may_go = transactions.read_control(batch)
        drops = may_go and horizon is not None and horizon <= rules.now_ms
    else:
        may_go = drops = transactions.read_data(batch)
    stays = batch.last_offset + 1 == end
    if batch.producer_id >= 0 and batch.producer_id in active:
        last, epoch = active[batch.producer_id]
        if last >= 0:
            stays = stays or batch.last_offset == last
        else:
            stays = stays or (batch.is_control and batch.epoch == epoch)
    keeps_tombstones = horizon is None or rules.now_ms < horizon
    kept = [
        each
        for each in batch.records
        if not drops
        and (
            batch.is_control
            or each.offset > latest
            or (
                each.key is not None
                and each.offset >= known.get(each.key, -1)
                and (each.value is not None or keeps_tombstones)
            )
        )
    ]
    if not kept:
        bits = batch.attributes & ~(HORIZON | 7)
        return [batch._replace(records=(), attributes=bits, base_ms=-1)] if stays else []
    has_tombstone = any(each.value is None for each in kept)
    is_new = horizon is None and (has_tombstone or (may_go and batch.is_control))
    if len(kept) == len(batch.records) and not is_new:
        return [batch]
    if is_new:
        horizon = rules.now_ms + rules.delete_retention_ms
    max_ms = max(each.timestamp_ms for each in kept)
    if batch.attributes & APPEND_TIME:
        max_ms = batch.max_ms
    base_ms = kept[0].timestamp_ms if horizon is None else horizon
    bits = batch.attributes | (HORIZON if horizon is not None else 0)
    return [batch._replace(records=tuple(kept), attributes=bits, base_ms=base_ms, max_ms=max_ms)]
