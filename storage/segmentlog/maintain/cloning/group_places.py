"""Where groups stand in a clone, so that they skip nothing and repeat as little as possible.

A group has read each partition of the source up to some offset.  In each partition of the clone,
it goes on at the first record that it has not read.  Of the records after that one, it reads those
that it knows once more: it has one place in a partition, and not one for each old partition.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from segmentlog.format.kernels.memory import Int32s, Int64s
from segmentlog.maintain.cloning.settings import ClonedGroup
from segmentlog.writes.stager import group_rows


class GroupPlaces:
    """The places of groups in the rows of one task.

    `offsets`: int64 array, shape (n_groups, n_source): the next offset of each group in each
    partition of the source.  `n_target`: partitions of the clone.

    `first`: int64 array, shape (n_groups, n_target): the number of the first row of a partition
    that the group has not read, counted in the task; -1 for none.  `n_read`: number of rows that
    it has read, of the same shape.  `counts`: int64 array, shape (n_target,): all rows.
    """

    def __init__(self, offsets: Int64s, n_target: int) -> None:
        self._offsets = offsets
        self._n_source = offsets.shape[1]
        self.counts: Int64s = np.zeros(n_target, np.int64)
        self.first: Int64s = np.full((len(offsets), n_target), -1, np.int64)
        self.n_read: Int64s = np.zeros((len(offsets), n_target), np.int64)

    def numbers(self, targets: Int32s) -> Int64s:
        """The number of each row within its new partition; int64 array, shape (n_rows,).

        The rows are counted by `add`.
        """
        order, starts = group_rows(targets, len(self.counts))
        numbers: Int64s = np.empty(len(targets), np.int64)
        lengths = np.diff(starts)
        numbers[order] = np.arange(len(order)) + np.repeat(self.counts - starts[:-1], lengths)
        return numbers

    def add(self, partitions: Int32s, offsets: Int64s, targets: Int32s, numbers: Int64s) -> None:
        """Take rows, in their order."""
        counts = np.bincount(targets, minlength=len(self.counts))
        self.counts += counts
        if not len(self._offsets) or not len(targets):
            return
        order, starts = group_rows(partitions, self._n_source)
        there = np.flatnonzero(np.diff(starts))
        least, most = offsets[order[starts[there]]], offsets[order[starts[there + 1] - 1]]
        of_groups = self._offsets[:, there]
        has_read_all = (of_groups > most).all(axis=1)
        has_read_none = (of_groups <= least).all(axis=1)
        self.n_read[has_read_all] += counts
        if has_read_none.any():
            self._go_on(np.flatnonzero(has_read_none), targets, numbers)
        for group in np.flatnonzero(~(has_read_all | has_read_none)).tolist():
            is_read = offsets < self._offsets[group][partitions]
            self.n_read[group] += np.bincount(targets[is_read], minlength=len(self.counts))
            self._go_on(np.array([group]), targets[~is_read], numbers[~is_read])

    def _go_on(self, groups: NDArray[np.int64], targets: Int32s, numbers: Int64s) -> None:
        """Note the first of these rows in each partition, for groups that have no place there."""
        known = self.first[groups]
        if (known >= 0).all():
            return
        there, at = np.unique(targets, return_index=True)
        found = known[:, there]
        known[:, there] = np.where(found < 0, numbers[at], found)
        self.first[groups] = known


class GroupsOfTask(NamedTuple):
    """The result of `GroupPlaces` of one task."""

    counts: Int64s
    first: Int64s
    n_read: Int64s


def places_of_groups(
    tasks: Sequence[GroupsOfTask], groups: Collection[str]
) -> tuple[Int64s, list[ClonedGroup]]:
    """The place of each group in each partition, and what the groups repeat.

    `tasks`: in the order in which their rows follow each other.  Returns the number of the row in
    its partition; int64 array, shape (n_groups, n_target).
    """
    counts = np.cumsum([each.counts for each in tasks], axis=0)
    ends = counts[-1]
    places: Int64s = np.broadcast_to(ends, (len(groups), len(ends))).copy()
    for task, end in zip(reversed(tasks), reversed(counts), strict=True):
        begins = end - task.counts
        places = np.where(task.first >= 0, begins + task.first, places)
    n_read = np.sum([each.n_read for each in tasks], axis=0)
    # A group has read every record before its place.
    repeated = (n_read - places).sum(axis=1)
    found = zip(groups, n_read.sum(axis=1).tolist(), repeated.tolist(), strict=True)
    return places, [ClonedGroup(*each) for each in found]


def group_table(
    committed: Collection[tuple[str, int, int]], starts: Mapping[int, int], n_source: int
) -> tuple[list[str], Int64s]:
    """Names of groups, and the offset of each in each partition of the source.

    A group that has committed nothing in a partition has read nothing there: wherever it would
    begin by itself, it skips no record so.

    `committed`: group, partition and offset.  `starts`: log start of each partition.
    """
    names = sorted({group for group, _, _ in committed})
    numbers = {name: number for number, name in enumerate(names)}
    first = [starts.get(partition, 0) for partition in range(n_source)]
    offsets: Int64s = np.tile(np.array(first, np.int64), (len(names), 1))
    for group, partition, offset in committed:
        if partition < n_source:
            offsets[numbers[group], partition] = offset
    return names, offsets
