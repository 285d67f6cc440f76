"""Bring a whole log directory to the state that a clean stop would have left.

First, unfinished commits are finished or undone.  Then, without the mark of a clean stop, every
log is recovered as a starting broker recovers it.  Then high watermarks and recovery points are
corrected.  The mark comes last: after a crash before it, the next recovery begins again.
"""

import contextlib
import os
from collections.abc import Callable, Iterator

from segmentlog.commit.guard import list_guards
from segmentlog.commit.state import State
from segmentlog.commit.unfinished import Fate, fate_of, recover_commits
from segmentlog.disk.contract import FileType
from segmentlog.disk.durable import create_file, sync_directory
from segmentlog.disk.readable import exists
from segmentlog.disk.system_errors import storage_errors
from segmentlog.errors import SegmentLogError
from segmentlog.layout.checkpoint import ReadCheckpoints, read_offsets, write_offsets
from segmentlog.layout.partitions import list_partitions
from segmentlog.model import TopicPartition
from segmentlog.names import (
    CLEAN_SHUTDOWN_FILE,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    DirectoryState,
)
from segmentlog.recovery.recover_log import (
    RecoveryPlan,
    plan_recovery,
    recover_log,
)
from segmentlog.recovery.swaps import finish_swaps, has_swaps
from segmentlog.segments.listing import list_segments
from segmentlog.segments.log_end import find_log_end
from segmentlog.segments.orphans import indexes_without_log, remove_indexes_without_log
from segmentlog.segments.segment import Segment

__all__ = ["DirectoryRecovery", "plan_log"]


class DirectoryRecovery:
    """Recovers a log directory, or says what it would do; the caller holds the lock.

    Parameters
    ----------
    directory : the log directory.
    interval_bytes : bytes of log between index entries (``index.interval.bytes``).
    dry_run : whether nothing is changed.
    progress : called with the name of each log's directory when it begins with it.

    Attributes
    ----------
    failed : logs that could not be recovered; they were not changed, and the directory stays
        without the mark of a clean stop.
    cut : logs that have lost whole batches after a bad one, or would lose them.
    """

    def __init__(
        self,
        directory: str,
        interval_bytes: int,
        *,
        dry_run: bool = False,
        progress: Callable[[str], object] = lambda _: None,
    ) -> None:
        self.failed: list[str] = []
        self.cut: list[str] = []
        self._directory = directory
        self._interval_bytes = interval_bytes
        self._dry_run = dry_run
        self._progress = progress
        self._mark = os.path.join(directory, CLEAN_SHUTDOWN_FILE)
        self._ends: dict[TopicPartition, int] = {}

    def run(self) -> Iterator[str]:
        """Recover, and return a sentence for each thing that was done.

        Raises
        ------
        CorruptCheckpointError
            If the checkpoints of the logs' bounds cannot be read.
        """
        yield from self._guards()
        if self._dry_run and list_guards(self._directory):
            return  # the logs are still as before the undo or the finish
        is_clean = exists(self._mark)
        starts = read_offsets(self._directory, LOG_START_CHECKPOINT)
        points = read_offsets(self._directory, RECOVERY_POINT_CHECKPOINT)
        for name, topic_partition, is_served in _partitions(self._directory):
            path = os.path.join(self._directory, name)
            self._progress(name)
            try:
                with storage_errors(path):
                    plan = self._plan(
                        path, points.get(topic_partition, 0), starts.get(topic_partition, 0),
                        is_clean=is_clean,
                    )  # fmt: skip
                    yield from self._orphans(name, path)
                    if plan is None:
                        continue
                    yield from self._recover(name, plan)
            except SegmentLogError as error:
                self.failed.append(name)
                yield f"{name}: not recovered: {error}"
                continue
            if is_served:
                self._ends[topic_partition] = plan.end_offset
        if not self._dry_run:
            yield from self._close()

    def _guards(self) -> Iterator[str]:
        """Finish or undo the commits of writers that are gone."""
        if not self._dry_run:
            yield from recover_commits(self._directory, is_asked=True)
            return
        state = State.read(self._directory)
        for guard in list_guards(self._directory):
            match fate_of(guard, guard.intent(), state):
                case Fate.NOT_BEGUN:
                    yield f"would remove {guard.path}, which had not begun to write"
                case Fate.DECIDED:
                    yield f"would finish the commit of {guard.path}"
                case Fate.UNDECIDED:
                    yield f"would undo the commit of {guard.path}"

    def _plan(
        self, path: str, recovery_point: int, log_start: int, *, is_clean: bool
    ) -> RecoveryPlan | None:
        """The recovery of a log, or None if there is nothing to do."""
        if not self._dry_run and has_swaps(path):
            self._begin()
            finish_swaps(path)
        return plan_log(path, recovery_point, log_start, is_clean=is_clean)

    def _orphans(self, name: str, path: str) -> Iterator[str]:
        """Remove indexes whose segment is gone, also from a cleanly stopped log."""
        dry = self._dry_run
        if n := len(indexes_without_log(path)) if dry else remove_indexes_without_log(path):
            does = "would remove" if dry else "removed"
            yield f"{name}: {does} {n} index file{'s' if n != 1 else ''} without a log"

    def _recover(self, name: str, plan: RecoveryPlan) -> Iterator[str]:
        """Recover one log, or only say how in a dry run."""
        loss, n_read = plan.loss, plan.n_read
        if plan.good_from is not None:
            self.cut.append(name)
        what = f"{n_read} segment{'s' if n_read != 1 else ''} up to offset {plan.end_offset}"
        if self._dry_run:
            yield f"{name}: would build the indexes of {what} again"
            if loss:
                yield f"{name}: {loss.replace('are cut off', 'would be cut off')}"
            return
        self._begin()
        kept = recover_log(plan, self._interval_bytes)
        yield f"{name}: recovered {what}"
        if loss:
            yield f"{name}: {loss}" + (f"; kept in {', '.join(map(_name, kept))}" if kept else "")

    def _begin(self) -> None:
        """Take the mark away: it must not vouch for what a crash may leave."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._mark)
            sync_directory(self._directory)

    def _close(self) -> Iterator[str]:
        """Update the checkpoints, and put the mark of a clean stop in place."""
        if ReadCheckpoints(self._directory).lower_to(self._ends):
            yield "lowered high watermarks to the ends of their logs"
        points = read_offsets(self._directory, RECOVERY_POINT_CHECKPOINT)
        if {**points, **self._ends} != points:
            write_offsets(self._directory, RECOVERY_POINT_CHECKPOINT, {**points, **self._ends})
        if not self.failed and not exists(self._mark):
            os.close(create_file(self._mark))
            sync_directory(self._directory)
            yield "marked the directory as cleanly stopped"


def plan_log(
    path: str, recovery_point: int, log_start: int, *, is_clean: bool
) -> RecoveryPlan | None:
    """The recovery of a log, or None if there is nothing to do.

    Parameters
    ----------
    path, recovery_point, log_start : see `plan_recovery`.
    is_clean : whether the directory has the mark of a clean stop: only the end is looked at.

    Raises
    ------
    UnsupportedFormatError
        If a batch has a format that is newer than this version, and cannot be judged.
    """
    segments = list_segments(path)
    if is_clean and segments:
        active = Segment(segments[-1], is_sealed=False)
        if find_log_end(active, warns=False).position == active.size:
            return None
        recovery_point = active.base_offset
    return plan_recovery(path, recovery_point, log_start)


def _partitions(directory: str) -> list[tuple[str, TopicPartition, bool]]:
    """Name and partition of each directory that a broker recovers, and whether it is served.

    A broker recovers the log of the cluster's metadata at each start, by other rules.
    """
    return [
        (each.name, each.topic_partition, each.state != DirectoryState.STRAY)
        for each in list_partitions(directory)
        if each.type is not FileType.LINK
        and not each.is_metadata
        and each.state != DirectoryState.DELETE
    ]


def _name(path: str) -> str:
    return os.path.basename(path)
