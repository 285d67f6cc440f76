"""Bring a whole log directory to the state that a clean stop would have left.

First, unfinished commits are finished or undone.  Then, without the mark of a clean stop, every
log is recovered as a starting broker recovers it.  Then high watermarks and recovery points are
corrected.  The mark comes last: after a crash before it, the next recovery begins again.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

from segmentlog.errors import (
    CorruptCheckpointError,
    CorruptLogError,
    LogDirectoryError,
    SegmentLogError,
    UnsupportedFormatError,
)
from segmentlog.format.messages.reader import uuid_text
from segmentlog.format.names import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_CHECKPOINT,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_CHECKPOINT,
    DirectoryState,
    partition_path,
)
from segmentlog.log.checkpoint import (
    ReadCheckpoints,
    read_offsets,
    read_topic_id,
    readable_offsets,
    write_offsets,
)
from segmentlog.log.index_builder import rebuild_indexes
from segmentlog.log.leader_epochs import EpochStarts
from segmentlog.log.listing import (
    SegmentFiles,
    indexes_without_log,
    left_out,
    list_segments,
    not_opened,
    remove_indexes_without_log,
)
from segmentlog.log.segment import Segment, find_log_end
from segmentlog.log.swaps import finish_swaps, has_swaps, is_zeros, keep_segment, keep_tail
from segmentlog.log.walk import find_good_end
from segmentlog.maintain.recover import RecoveryKind, RecoveryStep
from segmentlog.maintain.salvage import plan_salvages, salvage
from segmentlog.maintain.start.directories import BrokerStart
from segmentlog.maintain.start.steps import METADATA_TOPIC_ID
from segmentlog.model import LARGEST_LONG, METADATA_TOPIC, TopicPartition
from segmentlog.reads.cluster_image import RECORDS, fold
from segmentlog.reads.log_directory import open_log_dir
from segmentlog.reads.metadata_log import (
    Snapshot,
    is_whole,
    list_metadata_snapshots,
    metadata_path,
    read_metadata,
)
from segmentlog.store.durable import create_file, do_together, remove_file, sync_directory
from segmentlog.store.partitions import NamedPartition, list_partitions
from segmentlog.store.readable import FileType, exists, is_directory, status_of
from segmentlog.store.system_errors import FULL, storage_errors
from segmentlog.txn.change import HeldDirectory
from segmentlog.txn.guard import Fate, fate_of, list_guards
from segmentlog.txn.recover_log import (
    RecoveryPlan,
    first_unsplit,
    plan_recovery,
    recover_log,
)
from segmentlog.txn.state import State
from segmentlog.txn.topics import write_topic_id

_METADATA = TopicPartition(METADATA_TOPIC, 0)
#: The checkpoints at the top of a log directory, and what is done without their entries.
_WITHOUT = {
    RECOVERY_POINT_CHECKPOINT: "all bytes of all logs are read, unless they were cleanly stopped",
    LOG_START_CHECKPOINT: "other logs begin with their first segment, and records that "
    "DeleteRecords has deleted there may be seen again",
    HIGH_WATERMARK_CHECKPOINT: "reads of other logs end at their log ends, until a broker has "
    "agreed with its replicas on a high watermark",
    CLEANER_OFFSET_CHECKPOINT: "compaction begins again with the first segment of each log",
}
_MOST_RANGES = 5  #: of offsets, that a message names

_TOGETHER = 64  #: logs that are planned, and then recovered together; a report follows each time


class DirectoryRecovery:
    """Recovers a log directory, or says what it would do if no file may be changed.

    `held`: the log directory; its changes may be unfinished.  `interval_bytes`: bytes of log
    between index entries (``index.interval.bytes``).  `progress`: called with the name of each
    log's directory when it begins with it.  `salvages`: whether good batches after bad ones are
    kept.
    """

    def __init__(
        self,
        held: HeldDirectory,
        interval_bytes: int,
        progress: Callable[[str], object] = lambda _: None,
        metadata: str | None = None,
        *,
        salvages: bool = False,
    ) -> None:
        self._held = held
        self._directory = held.directory
        self._interval_bytes = interval_bytes
        self._dry_run = not held.may_write
        self._progress = progress
        self._metadata = metadata
        self._salvages = salvages
        self._mark = os.path.join(held.directory, CLEAN_SHUTDOWN_FILE)
        self._ends: dict[TopicPartition, int] = {}
        self._synced_to: dict[TopicPartition, int] = {}
        self._full: list[OSError] = []  # the error of a full disk: it ends the recovery
        self._is_whole = True
        self._mended: set[str] = set()  # files that a broker would not start with

    def run(self) -> Iterator[RecoveryStep]:
        """Recover, and return each step once it is done.

        A log that cannot be recovered is not changed, and the directory stays without the mark of
        a clean stop.
        """
        yield from self._guards()
        if self._dry_run and list_guards(self._directory):
            return  # the logs are still as before the undo or the finish
        mended: dict[str, Mapping[TopicPartition, int]] = {}
        yield from self._checkpoints(mended)
        self._known = ReadCheckpoints(self._directory, mended)
        yield from self._metadata_log()
        is_clean = self._held.is_clean
        # A broker recovers the log of the cluster's metadata at each start, by other rules.
        partitions = [
            each for each in list_partitions(self._directory)
            if is_directory(each.path) and not each.is_metadata
            and each.state != DirectoryState.DELETE
        ]  # fmt: skip
        current = {each.topic_partition for each in partitions if each.is_current}
        for begin in range(0, len(partitions), _TOGETHER):
            logs = [_OneLog(each) for each in partitions[begin : begin + _TOGETHER]]
            for log in logs:
                self._prepare(log, is_clean=is_clean)
            self._recover([(log, log.plan) for log in logs if log.plan is not None])
            for log in logs:
                yield from log.steps
                self._is_whole &= not log.has_failed
                # The entries of checkpoints are those of a `-future` copy only where it is alone.
                has_entries = log.is_current or log.topic_partition not in current
                if not (log.is_served and has_entries) or log.end_offset is None:
                    continue
                self._ends[log.topic_partition] = log.end_offset
                if log.plan is not None:
                    self._synced_to[log.topic_partition] = log.end_offset
            if self._full:  # the other logs would fail, too, each with a line of its own
                raise self._full[0]
        yield from self._high_watermarks()
        yield from self._close()

    def _checkpoints(
        self, mended: dict[str, Mapping[TopicPartition, int]]
    ) -> Iterator[RecoveryStep]:
        """Make the damaged checkpoints at the top readable again; `mended` takes their entries.

        The damaged bytes stay beside them, and the entries of whole lines are used, except where
        none at all do less harm than wrong ones: a lost recovery point only costs time.
        """
        for name, without in _WITHOUT.items():
            try:
                read_offsets(self._directory, name)
            except CorruptCheckpointError as error:
                is_kept = name in {HIGH_WATERMARK_CHECKPOINT, LOG_START_CHECKPOINT}
                found = readable_offsets(self._directory, name) if is_kept else {}
                mended[name] = found
                self._mended.add(error.path)
                message = f"{name}, line {error.line}: {error.reason}; "
                kept: tuple[str, ...] = ()
                if not self._dry_run:
                    if not is_zeros(error.path, 0):
                        kept = (os.path.basename(keep_tail(error.path, 0)),)
                    write_offsets(self._directory, name, found)
                if is_kept:
                    entries = f"{len(found)} entr{'y' if len(found) == 1 else 'ies'}"
                    would = "would be" if self._dry_run else "were"
                    message += f"{entries} in whole lines {would} kept; "
                message += without + (f"; the damaged file is kept as {kept[0]}" if kept else "")
                step = self._step(RecoveryKind.CHECKPOINT_MENDED, message)
                yield step._replace(kept=kept)

    def _metadata_log(self) -> Iterator[RecoveryStep]:
        """Mend the files beside the log of the cluster's metadata, and put snapshots aside.

        A broker recovers the log itself at each start, by rules of its own.
        """
        path = metadata_path(self._directory)
        if path is None:
            return
        log = _OneLog(NamedPartition(_METADATA, path, DirectoryState.CURRENT, FileType.DIRECTORY))
        with log.failing(self._full):
            self._put_snapshots_aside(log)
            self._leader_epochs(log, None, 0)
            self._topic_id(log)
        self._is_whole &= not log.has_failed
        yield from log.steps

    def _put_snapshots_aside(self, log: "_OneLog") -> None:
        damaged = []
        for snapshot in reversed(list_metadata_snapshots(log.path)):
            if _is_good(snapshot):
                break
            damaged.append(snapshot)
        else:
            snapshot = None
        if not damaged:
            return
        segments = list_segments(log.path)
        begin = segments[0].base_offset if segments else 0
        end = find_log_end(Segment(segments[-1], is_sealed=False)).offset if segments else 0
        names = ", ".join(os.path.basename(each.path) for each in damaged)
        self._mended.update(each.path for each in damaged)
        # The log must have all that the damaged snapshot had and the older one lacks.
        reaches = (0 if snapshot is None else snapshot.end_offset) >= begin
        if not reaches or end < damaged[0].end_offset:
            reason = (
                f"its snapshot {names} is damaged, and its log from offset {begin} to {end} does "
                "not join an older one: copy the directory from another controller or broker"
            )
            raise LogDirectoryError(log.path, reason)
        kept: tuple[str, ...] = ()
        if not self._dry_run:
            self._begin()
            kept = tuple(os.path.basename(keep_segment(each.path)) for each in damaged)
            sync_directory(log.path)
        older = (
            "the log is whole from its begin"
            if snapshot is None
            else (f"{os.path.basename(snapshot.path)} and the log have the same records")
        )
        does = f"would put {names} aside" if self._dry_run else f"put {names} aside"
        log.add(RecoveryKind.SNAPSHOT_PUT_ASIDE, f"{does}, which is damaged: {older}", kept)

    @cached_property
    def _topic_ids(self) -> Mapping[str, str]:
        """Topic ids by name, from the cluster's metadata; none without it."""
        path = metadata_path(self._metadata or self._directory)
        if path is None:
            return {}
        topics = fold(read_metadata(path, RECORDS["topics"])).tables["topics"]
        return {row["topic"]: uuid_text(topic_id) for topic_id, row in topics.items()}

    def _topic_id(self, log: "_OneLog") -> None:
        """Write the topic id of a log whose ``partition.metadata`` is damaged or missing."""
        error = None
        try:
            if read_topic_id(log.path) is not None:
                return
        except CorruptCheckpointError as found:
            error = found
        is_of_metadata = log.topic_partition == _METADATA
        topic_id = (
            METADATA_TOPIC_ID if is_of_metadata else self._topic_ids.get(log.topic_partition.topic)
        )
        if topic_id is None:
            if error is not None:
                reason = (
                    f"{error.reason}, and there is no metadata of a cluster that has its topic id"
                )
                remedy = (
                    "name the log directory with __cluster_metadata-0 (--metadata), or restore "
                    "the file from another replica"
                )
                raise CorruptCheckpointError(error.path, error.line, reason, remedy)
            return
        self._mended.add(os.path.join(log.path, PARTITION_METADATA_FILE))
        if not self._dry_run:
            write_topic_id(log.path, topic_id)
            sync_directory(log.path)
        why = "it was missing" if error is None else error.reason
        does = "would write" if self._dry_run else "wrote"
        log.add(
            RecoveryKind.TOPIC_ID_WRITTEN,
            f"{does} partition.metadata with topic id {topic_id} of the cluster's metadata: {why}",
        )

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

    def _prepare(self, log: "_OneLog", *, is_clean: bool) -> None:
        """Plan the recovery of a log; finish its compaction, and mend the files beside it."""
        if self._full:
            log.has_failed = True
            return
        self._progress(log.name)
        point = self._known.points.offsets.get(log.topic_partition, 0)
        log_start = self._known.starts.get(log.topic_partition, 0)
        committed_to = self._known.high_watermarks.offsets.get(log.topic_partition, -1)
        with log.failing(self._full):
            # A broker reads what is linked, and would trust a mark for it.
            if log.is_link:
                reason = (
                    "is a symbolic link: replace the link by its target, moved or mounted there"
                )
                raise LogDirectoryError(log.path, reason)
            for path, _, why in (*left_out(log.path), *not_opened(log.path)):
                raise LogDirectoryError(path, why)
            if not self._dry_run and has_swaps(log.path):
                self._begin()
                finish_swaps(log.path)
            if self._salvages and self._salvage(log, log_start, committed_to) and self._dry_run:
                return  # a plan would read the log as it is now
            plan = plan_log(log.path, point, log_start, committed_to, is_clean=is_clean)
            self._orphans(log)
            if plan is not None and plan.log_start < log_start:
                self._lower_log_start(log, log_start, plan.end_offset)
                log_start = plan.log_start
            self._leader_epochs(log, plan, log_start)
            self._lost_times(log, plan, log_start)
            if plan is None:
                active = Segment(list_segments(log.path)[-1], is_sealed=False)
                log.end_offset = find_log_end(active, committed_to, warns=False).offset
            log.plan = plan
        with log.failing(self._full):
            if log.is_current and not log.has_failed:
                self._topic_id(log)

    def _orphans(self, log: "_OneLog") -> None:
        """Remove index files without a log, the last sign of the loss of their segments."""
        n = len(indexes_without_log(log.path))
        if not n:
            return
        lost = open_log_dir(log.path).log(*log.topic_partition).lost_segments
        if not self._dry_run:
            remove_indexes_without_log(log.path)
        does = "would remove" if self._dry_run else "removed"
        log.add(
            RecoveryKind.INDEXES_REMOVED,
            "; ".join([f"{does} {n} index file{'s' * (n > 1)} without a log", *map(str, lost)]),
        )
        if lost:
            log.steps[-1] = log.steps[-1]._replace(
                end_offset=lost[0].start_offset, cut_to=lost[-1].end_offset
            )

    def _lower_log_start(self, log: "_OneLog", log_start: int, end: int) -> None:
        if not self._dry_run:
            starts = dict(read_offsets(self._directory, LOG_START_CHECKPOINT))
            del starts[log.topic_partition]
            write_offsets(self._directory, LOG_START_CHECKPOINT, starts)
        does = "would be" if self._dry_run else "was"
        log.add(
            RecoveryKind.LOG_START_LOWERED,
            f"its log start {log_start} lies beyond its high watermark and its log end {end}, and "
            f"a broker would delete all its records: the log start {does} removed from "
            f"{LOG_START_CHECKPOINT}, and the log begins with its first segment",
        )

    def _lost_times(self, log: "_OneLog", plan: RecoveryPlan | None, log_start: int) -> None:
        """Build indexes of times again that are missing, or end in zeros.

        A starting broker does not, where the index of offsets is there.  Retention then goes by
        the time of the file, or by 1970.
        """
        segments = (
            [Segment(each, is_sealed=False) for each in list_segments(log.path)]
            if plan is None
            else plan.segments[: plan.first]  # the planned recovery builds those of the others
        )
        ends = [*(each.base_offset for each in segments[1:]), LARGEST_LONG]
        n_built = 0
        for each, end in zip(segments, ends, strict=False):
            # Without an index of offsets, the start builds all three, that of transactions, too.
            if not (each.size and end > log_start and exists(each.offset_index_path)):
                continue
            if exists(each.time_index_path) and not each.has_zeroed_times():
                continue
            # `verify` names the damage: where nothing has to be read, it is no failure here.  The
            # other index leads around the damage.
            with contextlib.suppress(CorruptLogError, UnsupportedFormatError):
                if (bad := find_good_end(each, end).error) is not None:
                    raise bad
                if not self._dry_run:
                    rebuild_indexes(each, self._interval_bytes)
                n_built += 1
        if n_built:
            n = f"{n_built} segment{'s' if n_built > 1 else ''}"
            does = "would build" if self._dry_run else "built"
            log.add(
                RecoveryKind.INDEXES_BUILT,
                f"{does} the indexes of {n} again: those of times were missing, or ended in "
                "zeros, by which retention would delete the segments",
            )

    def _leader_epochs(self, log: "_OneLog", plan: RecoveryPlan | None, log_start: int) -> None:
        """Build the leader epochs of a log again if they are lost; a planned recovery does it."""
        epochs = EpochStarts(log.path, warns=False)
        files = list_segments(log.path)
        segments = (
            [Segment(each, is_sealed=False, is_active=each is files[-1]) for each in files]
            if plan is None
            else plan.segments[: plan.last + 1]
        )
        wrong = None if plan is None else epochs.contradiction_in(segments[plan.first :])
        if wrong is None and not epochs.are_lost(segments):
            return
        epochs.forget()
        # Before anything is cut: a damaged header ends the recovery of this log.
        epochs.follow_all(segments if plan is None else segments[: plan.first])
        if not self._dry_run and (plan is None or wrong is not None):
            epochs.truncate_from_start(log_start)
            epochs.write()  # the planned recovery adds those of the segments that it reads
        self._mended.add(os.path.join(log.path, LEADER_EPOCH_CHECKPOINT))
        why = "it had no entries" if epochs.error is None else epochs.error.reason
        if wrong is not None:
            why = "the batch at offset {} has epoch {}, but the file has {} there".format(*wrong)
        does = "would build" if self._dry_run else "built"
        log.add(
            RecoveryKind.LEADER_EPOCHS_BUILT,
            f"{does} {LEADER_EPOCH_CHECKPOINT} again from its batches: {why}",
        )

    def _salvage(self, log: "_OneLog", log_start: int, committed_to: int) -> bool:
        """Leave out the bad bytes before good batches; whether there are any."""
        found = list(plan_salvages(log.path, log_start, committed_to))
        if not found:
            return False
        kept: list[str] = []
        if not self._dry_run:
            self._begin()
            kept = [os.path.basename(path) for each in found
                    for path in salvage(each, self._interval_bytes)]  # fmt: skip
        ranges = [f"[{a}, {b})" for each in found for a, b in each.left_out if a < b]
        offsets = ", ".join(ranges[:_MOST_RANGES])
        offsets += f" and {len(ranges) - _MOST_RANGES} more" * (len(ranges) > _MOST_RANGES)
        n_bytes = sum(end - begin for each in found for begin, end in each.bad)
        were, are = ("would be", "would be") if self._dry_run else ("were", "are")
        n_saved = sum(each.n_saved for each in found)
        message = f"{n_bytes} bad bytes {were} left out, and with them offsets {offsets or 'none'}"
        message += f"; {n_saved} records after them {are} kept"
        message += f"; the bad bytes are in {', '.join(kept)}" if kept else ""
        log.add(RecoveryKind.LOG_SALVAGED, message)
        log.steps[-1] = log.steps[-1]._replace(n_bytes=n_bytes, kept=tuple(kept))
        return True

    def _recover(self, planned: Sequence[tuple["_OneLog", RecoveryPlan]]) -> None:
        """Recover some logs, or only say how in a dry run.

        Their syncs are made together: no log has to be on the disk before another.
        """

        def recover(each: tuple[_OneLog, RecoveryPlan]) -> None:
            log, plan = each
            if self._full:
                log.has_failed = True
                return
            steps = log.result(plan, dry_run=False)
            with log.failing(self._full):
                kept = tuple(map(os.path.basename, recover_log(plan, self._interval_bytes)))
                if kept:
                    message = f"{steps[-1].message}; kept in {', '.join(kept)}"
                    steps[-1] = steps[-1]._replace(message=message, kept=kept)
                log.steps += steps
                log.end_offset = plan.end_offset

        if self._dry_run:
            for log, plan in planned:
                log.steps += log.result(plan, dry_run=True)
                log.end_offset = plan.end_offset
        elif planned:
            self._begin()
            do_together(recover, planned)

    def _begin(self) -> None:
        """Take the mark away: it must not vouch for what a crash may leave."""
        with contextlib.suppress(FileNotFoundError):
            remove_file(self._mark)
            sync_directory(self._directory)

    def _high_watermarks(self) -> Iterator[RecoveryStep]:
        """Lower high watermarks and ends of compacted parts to the ends of their logs."""
        promised = dict(self._known.high_watermarks.offsets)
        if not self._dry_run:
            self._held.lower_to(self._ends, self._known)
        does = "would lower" if self._dry_run else "lowered"
        for each, end in self._ends.items():
            if (before := promised.get(each, end)) > end:
                message = (
                    f"{each}: {does} its high watermark from {before} to {end}, the log end: "
                    "acknowledged records are missing"
                )
                path = partition_path(self._directory, each)
                kind = RecoveryKind.HIGH_WATERMARK_LOWERED
                yield RecoveryStep(kind, *each, path, message, end, before)

    def _close(self) -> Iterator[RecoveryStep]:
        """Move recovery points, and put the mark of a clean stop in place."""
        points = self._known.points
        if not self._dry_run and {**points.offsets, **self._synced_to} != points.offsets:
            points.put(self._synced_to)
            points.write()
        if not self._is_whole:
            return
        # The mark would tell a user that a broker may start, and a broker to read nothing.
        start = BrokerStart([self._directory], metadata_directory=self._metadata)
        harm = [
            each for each in start.steps()
            if each.has_harm and each.path.startswith(self._directory)
            and not (self._dry_run and each.path in self._mended)
        ]  # fmt: skip
        why = "would not be" if self._dry_run else "not"
        why += " marked as cleanly stopped" if not self._held.is_clean else " ready for a start"
        for each in harm:
            message = f"{why}: {each.path}: {each.message}"
            yield RecoveryStep(
                RecoveryKind.NOT_MARKED, each.topic, each.partition, each.path, message
            )
        if harm or self._dry_run or self._held.is_clean:
            return
        os.close(create_file(self._mark))
        sync_directory(self._directory)
        yield self._step(RecoveryKind.MARKED_CLEAN, "marked the directory as cleanly stopped")


class _OneLog:
    """A log that is recovered: its plan, and the steps that were done."""

    def __init__(self, partition: NamedPartition) -> None:
        self.name = partition.name
        self.path = partition.path
        self.topic_partition = partition.topic_partition
        self.is_served = partition.state != DirectoryState.STRAY
        self.is_current = partition.is_current
        self.is_link = partition.type is FileType.LINK
        self.plan: RecoveryPlan | None = None
        self.end_offset: int | None = None  # once it is recovered
        self.steps: list[RecoveryStep] = []
        self.has_failed = False

    def add(self, kind: RecoveryKind, message: str, kept: tuple[str, ...] = ()) -> None:
        """Add a step without numbers."""
        self.steps.append(self._step(kind, message)._replace(kept=kept))

    def result(self, plan: RecoveryPlan, *, dry_run: bool) -> list[RecoveryStep]:
        """The steps of a plan, before it is carried out."""
        what = f"{plan.n_read} segment{'s' if plan.n_read != 1 else ''}"
        what += f" up to offset {plan.end_offset}"
        does = f"would build the indexes of {what} again" if dry_run else f"recovered {what}"
        recovered = self._step(RecoveryKind.LOG_RECOVERED, does)
        steps = [recovered._replace(end_offset=plan.end_offset)]
        for i, parts in plan.splits.items():
            does = "would be split" if dry_run else "was split"
            bases = ", ".join(str(base_offset) for _, base_offset in parts)
            name = os.path.basename(plan.segments[i].path)
            split = f"{name} {does} at the offsets {bases}: its indexes cannot hold its offsets"
            steps.append(self._step(RecoveryKind.SEGMENT_SPLIT, split))
        if not plan.loss:
            return steps
        loss = plan.loss.replace("are cut off", "would be cut off") if dry_run else plan.loss
        cut = self._step(RecoveryKind.LOG_CUT, loss)._replace(
            end_offset=plan.end_offset,
            cut_to=plan.lost_to,
            good_from=-1 if plan.good_from is None else plan.good_from,
            n_bytes=plan.n_cut_bytes,
        )
        if plan.lost is not None:
            cut = cut._replace(
                n_records=plan.lost.n_records,
                first_timestamp=plan.lost.first_ms,
                last_timestamp=plan.lost.last_ms,
            )
        return [*steps, cut]

    def _step(self, kind: RecoveryKind, message: str) -> RecoveryStep:
        return RecoveryStep(kind, *self.topic_partition, self.path, f"{self.name}: {message}")

    @contextlib.contextmanager
    def failing(self, full: list[OSError]) -> Iterator[None]:
        """Note an error as a step: the other logs are recovered.  A full disk goes into `full`."""
        try:
            with storage_errors(self.path):
                yield
        except SegmentLogError as error:
            self.has_failed = True
            if isinstance(error, OSError) and error.errno in FULL:
                full.append(error)
                return
            self.add(RecoveryKind.LOG_FAILED, f"not recovered: {error}")


def plan_log(
    path: str, recovery_point: int, log_start: int, committed_to: int = -1, *, is_clean: bool
) -> RecoveryPlan | None:
    """The recovery of a log, or None if there is nothing to do.

    `is_clean`: whether the directory has the mark of a clean stop: only the end is looked at.
    Raises `UnsupportedFormatError` if a batch has a format that is newer than this version, and
    cannot be judged.
    """
    segments = list_segments(path)
    if is_clean and segments:
        active = Segment(segments[-1], is_sealed=False)
        end = find_log_end(active, committed_to, warns=False)
        if (
            end.position == active.size
            and end.offset >= log_start
            and first_unsplit([Segment(each, is_sealed=False) for each in segments], end.offset)
            is None
        ):
            return None
        recovery_point = active.base_offset
    return plan_recovery(path, recovery_point, log_start, committed_to)


def _is_good(snapshot: Snapshot) -> bool:
    """Whether all batches of a snapshot of the metadata are sound, and the last is its footer.

    Raises `OSError` if it cannot be read, and `UnsupportedFormatError` if it has a newer format:
    then nothing shows that it is damaged.
    """
    files = SegmentFiles(0, snapshot.path, status_of(snapshot.path).size)
    return find_good_end(Segment(files, is_sealed=True)).error is None and is_whole(snapshot)
