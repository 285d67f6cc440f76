"""Brokers for the replicas of new partitions, by the rule of Kafka's controller.

Replicas are spread over racks first, then over the brokers of a rack, and brokers that are not
fenced come before those that are.  A broker without a rack is in a rack of its kind.  Partition
after partition, the first rack and the first broker of each rack move on by one, and once there
were as many partitions as brokers that are not fenced, all lists are shuffled.

The controller begins each list at a random place, so nobody can compute a placement that it has
chosen.  With the same random numbers, the placement here is that of the controller.

Rules: ``StripedReplicaPlacer``, KIP-36, KIP-500.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from segmentlog.errors import OptionError

#: Returns a random number that is at least 0 and below its argument.
NextInt = Callable[[int], int]


class PlacedBroker(NamedTuple):
    """A broker that may get replicas."""

    node_id: int
    rack: str | None = None  # its rack, or None
    #: whether it does not take part: it gets replicas last, and never the first one
    is_fenced: bool = False


def place_replicas(
    brokers: Iterable[PlacedBroker], n_partitions: int, replication_factor: int, next_int: NextInt
) -> list[list[int]]:
    """The brokers of each partition of a new topic; the first one is the preferred leader.

    `brokers`: of the cluster, in the order in which the controller lists them.
    `replication_factor`: number of replicas of each partition.  `next_int`: returns a random
    number that is at least 0 and below its argument.  Raises `OptionError` if there are fewer
    brokers than replicas; if all brokers are fenced.
    """
    racks = _Racks(brokers, next_int)
    if not 1 <= replication_factor <= racks.n_brokers:
        accepted = f"the cluster has {racks.n_brokers} brokers, and each takes one replica"
        raise OptionError("replication_factor", str(replication_factor), accepted)
    if not racks.n_unfenced:
        accepted = "all brokers are fenced, and a leader must not be"
        raise OptionError("replication_factor", str(replication_factor), accepted)
    return [racks.place(replication_factor) for _ in range(n_partitions)]


class _Brokers:
    """Brokers of one rack in a circle."""

    def __init__(self, brokers: Iterable[int], next_int: NextInt) -> None:
        self.brokers = sorted(brokers)
        self._offset = next_int(len(self.brokers)) if self.brokers else 0
        self._n_taken, self._epoch = 0, 0

    def next(self, epoch: int) -> int | None:
        """The next broker for the partition of an epoch, or None if all were taken."""
        if not self.brokers:
            return None
        if self._epoch != epoch:
            self._epoch, self._n_taken = epoch, 0
            self._offset = (self._offset + 1) % len(self.brokers)
        if self._n_taken >= len(self.brokers):
            return None
        found = self.brokers[(self._n_taken + self._offset) % len(self.brokers)]
        self._n_taken += 1
        return found


class _Racks:
    """All racks in a circle (``RackList``)."""

    def __init__(self, brokers: Iterable[PlacedBroker], next_int: NextInt) -> None:
        self._next_int = next_int
        members: dict[str | None, list[PlacedBroker]] = {}
        for each in brokers:
            members.setdefault(each.rack, []).append(each)
        self.n_brokers = sum(map(len, members.values()))
        self.n_unfenced = sum(not each.is_fenced for rack in members.values() for each in rack)
        #: The brokers of each rack that are not fenced, and those that are.
        self._racks: dict[str | None, tuple[_Brokers, _Brokers]] = {}
        # Each rack takes its random numbers in the order of Kafka's map.
        for name in _in_order_of_a_hash_map([*members]):
            fenced, unfenced = (
                _Brokers(
                    (each.node_id for each in members[name] if each.is_fenced is is_fenced),
                    next_int,
                )
                for is_fenced in (True, False)
            )
            self._racks[name] = unfenced, fenced
        self._names = sorted(
            members, key=lambda each: (each is not None, (each or "").encode("utf-16-be"))
        )
        self._offset = next_int(len(self._names)) if self._names else 0
        self._epoch = 0

    def place(self, replication_factor: int) -> list[int]:
        """The brokers of the next partition."""
        if self._epoch == self.n_unfenced > 1:
            self._shuffle(self._names)
            for unfenced, fenced in self._racks.values():
                self._shuffle(fenced.brokers)
                self._shuffle(unfenced.brokers)
            self._epoch = 0
        n_racks = len(self._names)
        self._offset %= n_racks
        first = self._offset
        while (leader := self._rack(first)[0].next(self._epoch)) is None:
            first = (first + 1) % n_racks
        brokers, at, is_left_out = [leader], self._offset, True
        while len(brokers) < replication_factor:
            found = None
            if at == first and is_left_out:
                is_left_out = False  # the rack of the leader is left out once
            else:
                unfenced, fenced = self._rack(at)
                found = unfenced.next(self._epoch)
                found = fenced.next(self._epoch) if found is None else found
            at = (at + 1) % n_racks
            if found is not None:
                brokers.append(found)
        self._epoch += 1
        self._offset += 1
        return brokers

    def _rack(self, at: int) -> tuple[_Brokers, _Brokers]:
        return self._racks[self._names[at]]

    def _shuffle(self, items: list[Any]) -> None:
        """``Collections.shuffle``."""
        for i in range(len(items), 1, -1):
            at = self._next_int(i)
            items[i - 1], items[at] = items[at], items[i - 1]


def _in_order_of_a_hash_map(names: Sequence[str | None]) -> list[str | None]:
    """The names in the order in which ``HashMap<Optional<String>, …>`` yields them."""

    def spread(name: str | None) -> int:
        """``String.hashCode``, with its high bits spread to the low ones as by ``HashMap``."""
        found, units = 0, (name or "").encode("utf-16-be")
        for i in range(0, len(units), 2):
            found = (31 * found + int.from_bytes(units[i : i + 2], "big")) & 0xFFFFFFFF
        return found ^ found >> 16

    n_bins = 16
    while len(names) > n_bins * 3 // 4:
        n_bins *= 2
    return sorted(names, key=lambda name: spread(name) % n_bins)
