"""The copies of a partition on several brokers, and which of them is the log.

A leader writes its epoch into ``leader-epoch-checkpoint`` before it appends, and only one leader
appends in an epoch.  So the log is the copy with the greatest last epoch, and among those with the
same epoch the longest one: it has everything that was committed, unless an unclean election has
defined otherwise, and then its leader has the greatest epoch, too.  Neither the longest copy nor
the one with the greatest high watermark need be the log.  If the cluster's metadata names a
leader, the leader's copy is the log.

By the leader epochs, too, a follower that fetches from a leader finds the end of what they have in
common, and cuts the rest off.  Equal ends prove nothing: two leaders may have given the same
offsets.

Rules: ``ReplicaManager``, ``PartitionRegistration``, ``LeaderEpochFileCache.endOffsetFor``,
KIP-101, KIP-279, KIP-966 (eligible leader replicas).
"""

import bisect
import contextlib
import os
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from segmentlog.errors import (
    CorruptCheckpointError,
    CorruptLogError,
    LogDirectoryError,
    UnsupportedFormatError,
)
from segmentlog.format.names import LEADER_EPOCH_CHECKPOINT
from segmentlog.format.records.header import BatchHeader
from segmentlog.log.checkpoint import read_leader_epochs
from segmentlog.log.segment import Segment
from segmentlog.reads.log import Log

#: The columns of a partition in the cluster's metadata (`segmentlog.reads.cluster_image`).
Registration = Mapping[str, Any]


_UNKNOWN = (-1, -1)


class EpochEnds(NamedTuple):
    """The leader epochs of a copy, and its bounds."""

    #: each epoch and the offset at which it began, both ascending
    starts: Sequence[tuple[int, int]]
    log_start: int  # the log start offset
    log_end: int  # the log end offset

    @property
    def last_epoch(self) -> int:
        """The epoch of the last leader, or -1."""
        return self.starts[-1][0] if self.starts else -1

    def end_of(self, epoch: int) -> tuple[int, int]:
        """The greatest known epoch that is not above `epoch`, and its end; (-1, -1) for none.

        The end of an epoch is the start of the next one.  An epoch before all others has the start
        of the first one for its end, and an epoch after all others is not known.
        """
        if not self.starts or epoch > self.last_epoch:
            return _UNKNOWN
        if epoch == self.last_epoch:
            return epoch, self.log_end
        after = bisect.bisect_right(self.starts, epoch, key=lambda each: each[0])
        return (self.starts[after - 1][0] if after else epoch), self.starts[after][1]

    def cut(self, end: int) -> "EpochEnds":
        """The copy without the offsets at and after `end`."""
        starts = [each for each in self.starts if each[1] < end]
        return EpochEnds(starts, self.log_start, min(end, self.log_end))


def common_end(copy: EpochEnds, log: EpochEnds) -> int:
    """The offset up to which a copy and the log have the same batches.

    If they have nothing in common, it is the greater one of their starts.
    """
    if not copy.starts:
        return copy.log_end
    while copy.starts:
        epoch, end = log.end_of(copy.last_epoch)
        if end < 0:  # this copy has heard of a later leader
            epoch, end = log.last_epoch, log.log_end
        known, own_end = copy.end_of(epoch)
        if known == epoch:
            break
        copy = copy.cut(own_end)  # by one epoch at least
    else:
        end = own_end = 0
    return max(min(end, own_end, copy.log_end), copy.log_start, log.log_start)


class Copy:
    """A partition's files in one log directory.

    `log`: the log as that directory alone shows it.  `broker`: the properties in its
    ``meta.properties``.
    """

    def __init__(self, log: Log, directory: str, broker: Mapping[str, str]) -> None:
        self.log, self.directory, self._broker = log, directory, broker

    def __repr__(self) -> str:
        return f"Copy({self.log.path!r})"

    @property
    def node_id(self) -> int | None:
        """Id of the broker, from ``meta.properties``; None without that file."""
        number = self._broker.get("node.id") or self._broker.get("broker.id")
        return int(number) if number and number.isdecimal() else None

    @property
    def directory_id(self) -> str | None:
        """Id of the log directory, from ``meta.properties``; None in directories before KRaft."""
        return self._broker.get("directory.id")

    @cached_property
    def epochs(self) -> EpochEnds:
        """Leader epochs, from the checkpoint, and from batches with later epochs than it has."""
        start, end = self.log.log_start_offset, self.log.log_end_offset
        path = os.path.join(self.log.path, LEADER_EPOCH_CHECKPOINT)
        try:
            starts = [
                each for each in read_leader_epochs(path, takes_newer=True) if each[1] <= end
            ]
        except CorruptCheckpointError:
            starts = []
        return EpochEnds([*starts, *self._later_epochs(starts)], start, end)

    def _later_epochs(self, starts: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """The epochs that only batches have: a copy of files may have an old checkpoint, or none.

        Epochs rise: a segment is walked only if the next one does not begin with the same epoch.
        """
        last_epoch, begun = starts[-1] if starts else (-1, self.log.log_start_offset)
        segments = self.log.untorn_segments
        end = self.log.log_end_offset
        ends = (deque(_headers(each, each.floor_position(end)), 1) for each in reversed(segments))
        last = next((each[0] for each in ends if each), None)
        if last is None or last.leader_epoch <= last_epoch:
            if last is not None and not starts:  # of before the epochs
                yield 0, begun
            return
        firsts = [next(_headers(each, 0), None) for each in segments[1:]]
        for segment, following in zip(segments, [*firsts, last], strict=True):
            if following is not None and following.leader_epoch <= last_epoch:
                continue
            next_offset = segment.base_offset
            for header in _headers(segment, 0):
                if header.leader_epoch > last_epoch:
                    last_epoch = header.leader_epoch
                    yield last_epoch, max(begun, next_offset)
                next_offset = header.last_offset + 1
        if last.leader_epoch > last_epoch:  # damage hides where it begins
            yield last.leader_epoch, max(begun, next_offset)

    @property
    def rank(self) -> tuple[int, int]:
        """The last epoch and the log end offset: the log has the greatest."""
        return self.epochs.last_epoch, self.epochs.log_end

    def common_end(self, log: "Copy") -> int:
        """The offset up to which this copy has the batches of the log."""
        return self.epochs.log_end if self is log else common_end(self.epochs, log.epochs)


def _headers(segment: Segment, position: int) -> Iterator[BatchHeader]:
    """The headers of a segment up to its first damage."""
    with contextlib.suppress(CorruptLogError, UnsupportedFormatError):
        for placed in segment.headers(position):
            yield placed.header


def choose(
    copies: Sequence[Copy], registration: Registration | None
) -> tuple[Copy, str, str | None]:
    """The copy that is the log, the reason, and a warning or None.

    `copies`: of one topic id and partition; at least one.  `registration`: the partition in the
    cluster's metadata, if that is known.
    """
    best = max(copies, key=lambda each: each.rank)
    by_epoch = f"its last leader epoch is {best.rank[0]}, and its log end offset {best.rank[1]}"
    if len(copies) == 1:
        by_epoch = "no other directory has a copy"
    # A copy of the metadata may be older than an election that the logs have seen.
    if registration is None or best.rank[0] > registration["leader_epoch"]:
        return best, by_epoch, None
    nodes, role = _preferred(registration)
    # Copies of these brokers; in the log directories that the metadata names, if some are there.
    directories = registration.get("directories") or ()
    assigned = dict(zip(registration["replicas"], directories, strict=False))
    held = [each for each in copies if each.node_id in nodes]
    exact = [
        each
        for each in held
        if each.node_id is not None and assigned.get(each.node_id) == each.directory_id
    ]
    if held:
        found = max(exact or held, key=lambda each: each.rank)
        return found, f"broker {found.node_id} is {role}, by the cluster's metadata", None
    # An election without a winner begins an epoch, too.
    last_epoch = registration["leader_epoch"] - (registration["leader"] < 0)
    if not nodes or best.rank[0] >= last_epoch:
        return best, by_epoch, None
    missing = ", ".join(map(str, nodes))
    warning = (
        f"the copy of broker {missing}, which is {role} since epoch {last_epoch} by the cluster's "
        f"metadata, is not in these directories; the last epoch of the best copy is {best.rank[0]}"
    )
    return best, by_epoch, warning


def _preferred(registration: Registration) -> tuple[Collection[int], str]:
    """Brokers whose copy is the log, and the role that makes it so.

    When the last broker in sync is fenced, and the cluster has eligible leader replicas, no broker
    is in sync.
    """
    if registration["leader"] >= 0:
        return [registration["leader"]], "the leader"
    roles = {
        "isr": "in sync",
        "eligible_leader_replicas": "an eligible leader",
        "last_known_elr": "the last known leader",
    }
    for column, role in roles.items():
        if registration[column]:
            return registration[column], role
    return (), ""


def refuse_two_clusters(brokers: Mapping[str, Mapping[str, str]], remedy: str) -> None:
    """Refuse log directories of two clusters, given the ``meta.properties`` of each."""
    clusters: dict[str, str] = {}
    for directory, properties in brokers.items():
        if cluster := properties.get("cluster.id"):
            clusters.setdefault(cluster, directory)
    if len(clusters) > 1:
        (first, path_of_it), (second, other) = [*clusters.items()][:2]
        reason = f"belongs to cluster {second}, and {path_of_it} to cluster {first}: {remedy}"
        raise LogDirectoryError(other, reason)
