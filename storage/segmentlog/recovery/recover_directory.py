"""Bring a whole log directory to the state that a clean stop would have left.

First, unfinished commits are finished or undone.  Then, without the mark of a clean stop, every
log is recovered as a starting broker recovers it.  Then high watermarks and recovery points are
corrected.  The mark comes last: after a crash before it, the next recovery begins again.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence

from segmentlog.commit.guard import list_guards
from segmentlog.commit.held import HeldDirectory
from segmentlog.commit.state import State
from segmentlog.commit.unfinished import Fate, fate_of
from segmentlog.disk.contract import FileType
from segmentlog.disk.durable import create_file, sync_directory
from segmentlog.disk.sync_together import do_together
from segmentlog.disk.system_errors import storage_errors
from segmentlog.errors import SegmentLogError
from segmentlog.layout.partitions import NamedPartition, list_partitions
from segmentlog.model import TopicPartition
from segmentlog.names import (
    CLEAN_SHUTDOWN_FILE,
    DirectoryState,
    partition_path,
)
from segmentlog.recovery.recover_log import RecoveryPlan, plan_recovery, recover_log
from segmentlog.recovery.steps import RecoveryKind, RecoveryStep
from segmentlog.recovery.swaps import finish_swaps, has_swaps
from segmentlog.segments.listing import (
    indexes_without_log,
    list_segments,
    remove_indexes_without_log,
)
from segmentlog.segments.log_end import find_log_end
from segmentlog.segments.segment import Segment

__all__ = ["DirectoryRecovery", "plan_log"]

_TOGETHER = 64  #: logs that are planned, and then recovered together; a report follows each time


class DirectoryRecovery:
    """Recovers a log directory, or says what it would do if no file may be changed.

    Parameters
    ----------
    held : the log directory; its changes may be unfinished.
    interval_bytes : bytes of log between index entries (``index.interval.bytes``).
    progress : called with the name of each log's directory when it begins with it.
    """

    def __init__(
        self,
        held: HeldDirectory,
        interval_bytes: int,
        progress: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._held = held
        self._directory = held.directory
        self._interval_bytes = interval_bytes
        self._dry_run = not held.may_write
        self._progress = progress
        self._mark = os.path.join(held.directory, CLEAN_SHUTDOWN_FILE)
        self._ends: dict[TopicPartition, int] = {}
        self._is_whole = True

    def run(self) -> Iterator[RecoveryStep]:
        """Recover, and return each step once it is done.

        A log that cannot be recovered is not changed, and the directory stays without the mark of
        a clean stop.

        Raises
        ------
        CorruptCheckpointError
            If the checkpoints of the logs' bounds cannot be read.
        """
        yield from self._guards()
        if self._dry_run and list_guards(self._directory):
            return  # the logs are still as before the undo or the finish
        is_clean, known = self._held.is_clean, self._held.checkpoints
        starts, points = known.starts, known.points.offsets
        committed = known.high_watermarks.offsets
        partitions = _partitions(self._directory)
        for begin in range(0, len(partitions), _TOGETHER):
            logs = [_Log(each) for each in partitions[begin : begin + _TOGETHER]]
            for log in logs:
                point, start = (each.get(log.topic_partition, 0) for each in (points, starts))
                committed_to = committed.get(log.topic_partition, -1)
                self._prepare(log, point, start, committed_to, is_clean=is_clean)
            self._recover([(log, log.plan) for log in logs if log.plan is not None])
            for log in logs:
                yield from log.steps
                self._is_whole &= not log.has_failed
                if log.is_served and log.plan is not None and not log.has_failed:
                    self._ends[log.topic_partition] = log.plan.end_offset
        yield from self._high_watermarks()
        if not self._dry_run:
            yield from self._close()

    def _guards(self) -> Iterator[RecoveryStep]:
        """Finish or undo the commits of writers that are gone."""
        if not self._dry_run:
            for sentence in self._held.end_changes(is_asked=True):
                yield self._step(RecoveryKind.COMMIT_ENDED, sentence)
            return
        state = State.read(self._directory)
        for guard in list_guards(self._directory):
            match fate_of(guard, guard.intent(), state):
                case Fate.NOT_BEGUN:
                    message = f"would remove {guard.path}, which had not begun to write"
                case Fate.DECIDED:
                    message = f"would finish the commit of {guard.path}"
                case Fate.UNDECIDED:
                    message = f"would undo the commit of {guard.path}"
            yield self._step(RecoveryKind.COMMIT_ENDED, message)

    def _step(self, kind: RecoveryKind, message: str) -> RecoveryStep:
        """A step that concerns the directory."""
        return RecoveryStep(kind, "", -1, self._directory, message)

    def _prepare(
        self,
        log: "_Log",
        recovery_point: int,
        log_start: int,
        committed_to: int,
        *,
        is_clean: bool,
    ) -> None:
        """Plan the recovery of a log; finish its compaction, and remove indexes without a log."""
        self._progress(log.name)
        with log.failing():
            if not self._dry_run and has_swaps(log.path):
                self._begin()
                finish_swaps(log.path)
            plan = plan_log(log.path, recovery_point, log_start, committed_to, is_clean=is_clean)
            dry = self._dry_run
            n = len(indexes_without_log(log.path)) if dry else remove_indexes_without_log(log.path)
            if n:
                does, files = "would remove" if dry else "removed", "file" if n == 1 else "files"
                log.add(RecoveryKind.INDEXES_REMOVED, f"{does} {n} index {files} without a log")
            log.plan = plan

    def _recover(self, planned: Sequence[tuple["_Log", RecoveryPlan]]) -> None:
        """Recover some logs, or only say how in a dry run.

        Their syncs are made together: no log has to be on the disk before another.
        """

        def recover(each: tuple[_Log, RecoveryPlan]) -> None:
            log, plan = each
            steps = log.result(plan, dry_run=False)
            with log.failing():
                kept = tuple(map(os.path.basename, recover_log(plan, self._interval_bytes)))
                if kept:
                    message = f"{steps[-1].message}; kept in {', '.join(kept)}"
                    steps[-1] = steps[-1]._replace(message=message, kept=kept)
                log.steps += steps

        if self._dry_run:
            for log, plan in planned:
                log.steps += log.result(plan, dry_run=True)
        elif planned:
            self._begin()
            do_together(recover, planned)

    def _begin(self) -> None:
        """Take the mark away: it must not vouch for what a crash may leave."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._mark)
            sync_directory(self._directory)

    def _high_watermarks(self) -> Iterator[RecoveryStep]:
        """Lower high watermarks and ends of compacted parts to the ends of their logs."""
        promised = dict(self._held.checkpoints.high_watermarks.offsets)
        if not self._dry_run:
            self._held.checkpoints.lower_to(self._ends)
        does = "would lower" if self._dry_run else "lowered"
        for each, end in self._ends.items():
            if (before := promised.get(each, end)) > end:
                message = f"{each}: {does} its high watermark from {before} to {end}, the log end"
                path = partition_path(self._directory, each)
                kind = RecoveryKind.HIGH_WATERMARK_LOWERED
                yield RecoveryStep(kind, *each, path, message, end, before)

    def _close(self) -> Iterator[RecoveryStep]:
        """Move recovery points, and put the mark of a clean stop in place."""
        points = self._held.checkpoints.points
        if {**points.offsets, **self._ends} != points.offsets:
            points.put(self._ends)
            points.write()
        if self._is_whole and not self._held.is_clean:
            os.close(create_file(self._mark))
            sync_directory(self._directory)
            message = "marked the directory as cleanly stopped"
            yield self._step(RecoveryKind.MARKED_CLEAN, message)


class _Log:
    """A log that is recovered: its plan, and the steps that were done.

    Parameters
    ----------
    partition : its directory.
    """

    def __init__(self, partition: NamedPartition) -> None:
        self.name = partition.name
        self.path = partition.path
        self.topic_partition = partition.topic_partition
        self.is_served = partition.state != DirectoryState.STRAY
        self.plan: RecoveryPlan | None = None
        self.steps: list[RecoveryStep] = []
        self.has_failed = False

    def add(self, kind: RecoveryKind, message: str) -> None:
        """Add a step without numbers."""
        self.steps.append(self._step(kind, message))

    def result(self, plan: RecoveryPlan, *, dry_run: bool) -> list[RecoveryStep]:
        """The steps of a plan, before it is carried out."""
        what = f"{plan.n_read} segment{'s' if plan.n_read != 1 else ''}"
        what += f" up to offset {plan.end_offset}"
        does = f"would build the indexes of {what} again" if dry_run else f"recovered {what}"
        recovered = self._step(RecoveryKind.LOG_RECOVERED, does)
        recovered = recovered._replace(end_offset=plan.end_offset)
        if not plan.loss:
            return [recovered]
        loss = plan.loss.replace("are cut off", "would be cut off") if dry_run else plan.loss
        cut = self._step(RecoveryKind.LOG_CUT, loss)._replace(
            end_offset=plan.end_offset,
            cut_to=plan.lost_to,
            good_from=-1 if plan.good_from is None else plan.good_from,
            n_bytes=plan.n_cut_bytes,
        )
        return [recovered, cut]

    def _step(self, kind: RecoveryKind, message: str) -> RecoveryStep:
        return RecoveryStep(kind, *self.topic_partition, self.path, f"{self.name}: {message}")

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        """Note an error as a step: the other logs are recovered."""
        try:
            with storage_errors(self.path):
                yield
        except SegmentLogError as error:
            self.has_failed = True
            self.add(RecoveryKind.LOG_FAILED, f"not recovered: {error}")


def plan_log(
    path: str, recovery_point: int, log_start: int, committed_to: int = -1, *, is_clean: bool
) -> RecoveryPlan | None:
    """The recovery of a log, or None if there is nothing to do.

    Parameters
    ----------
    path, recovery_point, log_start, committed_to : see `plan_recovery`.
    is_clean : whether the directory has the mark of a clean stop: only the end is looked at.

    Raises
    ------
    UnsupportedFormatError
        If a batch has a format that is newer than this version, and cannot be judged.
    """
    segments = list_segments(path)
    if is_clean and segments:
        active = Segment(segments[-1], is_sealed=False)
        if find_log_end(active, committed_to, warns=False).position == active.size:
            return None
        recovery_point = active.base_offset
    return plan_recovery(path, recovery_point, log_start, committed_to)


def _partitions(directory: str) -> list[NamedPartition]:
    """The logs that a broker recovers.

    A broker recovers the log of the cluster's metadata at each start, by other rules.
    """
    return [
        each
        for each in list_partitions(directory)
        if each.type is not FileType.LINK
        and not each.is_metadata
        and each.state != DirectoryState.DELETE
    ]
