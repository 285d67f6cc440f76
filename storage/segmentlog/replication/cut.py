"""Cut a copy of a log where it leaves the log, and keep the bytes that are cut off."""

from segmentlog.logs.log import Log
from segmentlog.recovery.recover_log import GoodEnd, RecoveryPlan, recover_log
from segmentlog.topic_config import TopicConfig

__all__ = ["cut", "plan_cut"]


def cut(log: Log, end: int) -> list[str]:
    """Cut a log at an offset at which a batch begins; the caller holds the lock.

    It is cut as a recovery cuts it: durably, and with indexes, producers and leader epochs as if
    the batches had never come.

    Parameters
    ----------
    log : as it is; it is not used afterwards.
    end : the offset; the log then ends there.

    Returns
    -------
    kept : the ``.broken`` files that hold the bytes that were cut off.
    """
    return recover_log(plan_cut(log, end), TopicConfig().index_interval_bytes)


def plan_cut(log: Log, end: int) -> RecoveryPlan:
    """The recovery that cuts a log at an offset; see `cut`."""
    segments = log.segments
    below = [i for i, each in enumerate(segments) if each.base_offset < end]
    start = log.log_start_offset
    if not below or end <= start:
        none = GoodEnd(0, end)
        return RecoveryPlan(log.path, end, end, segments, 0, -1, none, log.log_end_offset, 0)
    last = below[-1]
    placed = segments[last].find(end)
    position = segments[last].size if placed is None else placed.position
    good = GoodEnd(position, end)
    return RecoveryPlan(
        log.path, start, end, segments, last, last, good, log.log_end_offset, last + 1
    )
