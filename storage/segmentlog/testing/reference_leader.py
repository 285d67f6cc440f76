"""A partition leader's checks of producers in plain Python, as reference of `kernels.sequences`.

Written from the rules of ``ProducerStateManager`` and ``ProducerAppendInfo``; it remembers all
batches of a producer's epoch, as this engine does, where a broker remembers five.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

_SEQUENCES = 2**31


class ClientBatch(NamedTuple):
    """A batch of `n_records` records; `producer_id` is -1 without a producer."""

    producer_id: int
    epoch: int
    first: int
    n_records: int

    @property
    def last(self) -> int:
        return (self.first + self.n_records - 1) % _SEQUENCES


@dataclass
class _Entry:
    epoch: int
    batches: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    last: int = -1


class Leader:
    """The leader of one partition."""

    def __init__(self) -> None:
        self.end = 0
        self._entries: dict[int, _Entry] = {}

    def append(self, batch: ClientBatch) -> tuple[str, int, int]:
        """The fate of a batch, and its first and last offset; -1 if it is refused."""
        entry = self._entries.get(batch.producer_id)
        bounds = batch.first, batch.last
        if batch.producer_id >= 0 and entry is not None:
            if entry.epoch == batch.epoch and bounds in entry.batches:
                return "duplicate", *entry.batches[bounds]
            if batch.epoch < entry.epoch:
                return "fenced", -1, -1
            expected = (entry.last + 1) % _SEQUENCES if batch.epoch == entry.epoch else 0
            if batch.first != expected:
                return "out of order", -1, -1
        offsets = self.end, self.end + batch.n_records - 1
        self.end += batch.n_records
        if batch.producer_id >= 0:
            if entry is None or entry.epoch != batch.epoch:
                entry = self._entries[batch.producer_id] = _Entry(batch.epoch)
            entry.batches[bounds] = offsets
            entry.last = batch.last
        return "accepted", *offsets
