"""Bring a whole log directory to the state that a clean stop would have left.

First, unfinished commits are finished or undone.  Then, without the mark of a clean stop, every
log is recovered as a starting broker recovers it.  Then high watermarks and recovery points are
corrected.  The mark comes last: after a crash before it, the next recovery begins again.

A recovery is a plan of mends (`segmentlog.maintain.health`), each made once those before it are
done; a dry run shows the same mends, and carries none of them out.
"""

import contextlib
import itertools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TypeAlias

from segmentlog.errors import (
    LogDirectoryError,
    SegmentLogError,
)
from segmentlog.format.names import (
    CLEAN_SHUTDOWN_FILE,
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA_FILE,
    DirectoryState,
    partition_path,
)
from segmentlog.log.checkpoint import ReadCheckpoints, known_topic_id
from segmentlog.log.listing import (
    indexes_without_log,
    left_out,
    list_segments,
    not_opened,
    remove_indexes_without_log,
)
from segmentlog.log.segment import Segment, find_log_end
from segmentlog.log.swaps import finish_swaps, has_swaps
from segmentlog.maintain.health.checkpoints import (
    checkpoint_faults,
    entries_that_stay,
    log_start_mend,
)
from segmentlog.maintain.health.faults import is_within
from segmentlog.maintain.health.indexes import times_mend, transactions_mend
from segmentlog.maintain.health.kinds import Fault
from segmentlog.maintain.health.leader_epochs import epochs_mend
from segmentlog.maintain.health.mend import (
    Mend,
    Plan,
    RecoveryKind,
    RecoveryStep,
    Tense,
    Words,
    said,
)
from segmentlog.maintain.health.snapshots import snapshot_faults
from segmentlog.maintain.health.topic_ids import METADATA_TOPIC_ID, KnownId, topic_id_mend
from segmentlog.maintain.salvage import Salvage, plan_salvages, salvage
from segmentlog.maintain.start.directories import BrokerStart
from segmentlog.maintain.start.loading import name_faults
from segmentlog.model import METADATA_TOPIC, TopicPartition
from segmentlog.reads.cluster_image import ClusterMetadata
from segmentlog.reads.listed import LostSegments
from segmentlog.reads.log_directory import open_log_dir
from segmentlog.reads.metadata_log import is_of_a_broker, metadata_path
from segmentlog.store.durable import create_file, do_together, remove_file, sync_directory
from segmentlog.store.partitions import NamedPartition, list_partitions
from segmentlog.store.readable import FileType, is_directory
from segmentlog.store.system_errors import FULL, storage_errors
from segmentlog.txn.change import HeldDirectory
from segmentlog.txn.guard import CommitFate, fate_of, list_guards
from segmentlog.txn.recover_log import RecoveryPlan, first_unsplit, plan_recovery, recover_log
from segmentlog.txn.state import State
from segmentlog.txn.topics import new_topic_id, partition_directories, partitions_there

_METADATA = TopicPartition(METADATA_TOPIC, 0)
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
        self._progress = progress
        self._metadata = metadata
        self._salvages = salvages
        #: carries plans out, or only shows them
        self._run: _Runs = _Carried() if held.may_write else _Shown()
        self._mark = os.path.join(held.directory, CLEAN_SHUTDOWN_FILE)
        self._ends: dict[TopicPartition, int] = {}
        self._synced_to: dict[TopicPartition, int] = {}
        self._full: list[OSError] = []  # the error of a full disk: it ends the recovery
        self._is_whole = True
        self._was_clean = held.is_clean
        self._mended: set[str] = set()  # files that a broker would not start with
        self._new_ids: dict[str, KnownId] = {}  # of topics of which no partition has one

    def run(self) -> Iterator[RecoveryStep]:
        """Recover, and return each step once it is done.

        A log that cannot be recovered is not changed, and the directory stays without the mark of
        a clean stop.
        """
        commits = _EndOfCommits(self._held)
        yield from self._run.steps(commits)
        if not self._run.goes_on_after(commits):
            return  # the logs are still as before the undo or the finish
        # A change may have removed its guard, and failed before that was synced: a power cut would
        # bring the guard back, and no broker would start.
        self._run.quietly(lambda: sync_directory(self._directory))
        self._was_clean = self._held.is_clean  # a mend that takes the mark away is no unclean stop
        mended: dict[str, Mapping[TopicPartition, int]] = {}
        for fault in checkpoint_faults(self._directory, is_only=True):
            if fault.mend is not None:
                self._mended.add(fault.path)
                name = os.path.basename(fault.path)
                mended[name] = entries_that_stay(self._directory, name)
                yield from self._run.steps(fault.mend())
        self._known = ReadCheckpoints(self._directory, mended)
        yield from self._metadata_log()
        # A broker recovers the log of the cluster's metadata at each start, by other rules.  With
        # a log in the copies of a dead mirror, the topic would have too few partitions.
        there = {*partitions_there(self._directory, self._known.high_watermarks.offsets)}
        partitions = [
            each
            for each in list_partitions(self._directory)
            if is_directory(each.path)
            and not each.is_metadata
            and each.state != DirectoryState.DELETE
            and (not each.is_current or each.topic_partition in there)
        ]
        current = {each.topic_partition for each in partitions if each.is_current}
        for begin in range(0, len(partitions), _TOGETHER):
            logs = [_OneLog(each) for each in partitions[begin : begin + _TOGETHER]]
            for log in logs:
                self._prepare(log, is_clean=self._was_clean)
            planned = [each for each in logs if each.plan is not None]
            if planned:
                self._run.quietly(self._begin)
                self._run.together(self._recover, planned)
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
        yield from self._run.steps(self._lowered())
        self._run.quietly(self._move_points)
        if self._is_whole:
            yield from self._close()

    def _metadata_log(self) -> Iterator[RecoveryStep]:
        """Mend the files beside the log of the cluster's metadata, and put snapshots aside.

        A broker recovers the log itself at each start, by rules of its own.
        """
        path = metadata_path(self._directory)
        if path is None:
            return
        log = _OneLog(NamedPartition(_METADATA, path, DirectoryState.CURRENT, FileType.DIRECTORY))
        with log.failing(self._full):
            for mend in (
                *self._snapshots(log),
                *self._leader_epochs(log, None, 0),
                *self._topic_id(log),
            ):
                log.steps += self._run.steps(mend)
        self._is_whole &= not log.has_failed
        yield from log.steps

    def _snapshots(self, log: "_OneLog") -> Iterator[Mend]:
        """Put damaged snapshots aside, if an older one and the log have the same records."""
        for fault in snapshot_faults(log.path):
            if fault.mend is not None:
                self._run.quietly(self._begin)
                yield fault.mend()
            elif fault.has_harm:
                raise LogDirectoryError(fault.path, f"{fault.evidence}; {fault.remedy}")
            self._mended.add(fault.path)

    def _known_id(self, log: "_OneLog") -> KnownId | None:
        """The id of a log, by the metadata of a cluster, or by its topic if it has no segment."""
        topic = log.topic_partition.topic
        if log.topic_partition == _METADATA:
            found: str | None = METADATA_TOPIC_ID
        else:
            found = self._topic_ids.get(topic)
        if found is not None:
            return KnownId(found, f"topic id {found} of the cluster's metadata")
        committed_to = self._known.high_watermarks.offsets.get(log.topic_partition, 0)
        is_begun = log.plan is not None and not log.plan.segments and not committed_to
        if not is_begun or is_of_a_broker(self._directory):
            return None
        # A writer has died while it made the partition.  With a segment and without an id, no
        # later writer could tell the topic from another one of its name.
        if topic in self._new_ids:
            return self._new_ids[topic]
        paths = [path for _, path in partition_directories(self._directory, topic)]
        if other := next(filter(None, map(known_topic_id, paths)), None):
            return KnownId(other, f"topic id {other} of its other partitions")
        return self._new_ids.setdefault(topic, KnownId(new_topic_id(), "a new topic id"))

    @cached_property
    def _topic_ids(self) -> Mapping[str, str]:
        """Topic ids by name, from the cluster's metadata; none without it."""
        return ClusterMetadata([self._metadata or self._directory]).topic_ids

    def _topic_id(self, log: "_OneLog") -> Iterator[Mend]:
        """Write the topic id of a log whose ``partition.metadata`` is damaged or missing."""
        step = log.step(RecoveryKind.TOPIC_ID_WRITTEN)
        mend = topic_id_mend(step, log.name, lambda: self._known_id(log))
        if mend is not None:
            self._mended.add(os.path.join(log.path, PARTITION_METADATA_FILE))
            yield mend

    def _prepare(self, log: "_OneLog", *, is_clean: bool) -> None:
        """Plan the recovery of a log; finish its compaction, and mend the files beside it."""
        if self._full:
            log.has_failed = True
            return
        self._progress(log.name)
        with log.failing(self._full):
            for mend in self._of_log(log, is_clean=is_clean):
                log.steps += self._run.steps(mend)
                if not self._run.goes_on_after(mend):
                    return
        with log.failing(self._full):
            if log.is_current and not log.has_failed:
                for mend in self._topic_id(log):
                    log.steps += self._run.steps(mend)

    def _of_log(self, log: "_OneLog", *, is_clean: bool) -> Iterator[Mend]:
        """What mends the files of a log; at the end, its plan is known."""
        point = self._known.points.offsets.get(log.topic_partition, 0)
        log_start = self._known.starts.get(log.topic_partition, 0)
        committed_to = self._known.high_watermarks.offsets.get(log.topic_partition, -1)
        # A broker reads what is linked, and would trust a mark for it.
        if log.is_link:
            reason = "is a symbolic link: replace the link by its target, moved or mounted there"
            raise LogDirectoryError(log.path, reason)
        for path, _, why in (*left_out(log.path), *not_opened(log.path)):
            raise LogDirectoryError(path, why)
        if has_swaps(log.path):
            yield Mend([], lambda: self._end_swaps(log.path))
        if self._salvages:
            found = list(plan_salvages(log.path, log_start, committed_to))
            if found:
                yield self._salvage(log, found)
        plan = plan_log(log.path, point, log_start, committed_to, is_clean=is_clean)
        if plan is not None and plan.n_cut_bytes and log.is_current:
            end = plan.end_offset
            yield Mend([], lambda: self._held.forget_cut(log.topic_partition, end))
        yield from _orphans(log)
        if plan is not None and plan.log_start < log_start:
            yield log_start_mend(
                self._directory,
                log.step(RecoveryKind.LOG_START_LOWERED),
                log.name,
                log_start,
                plan.end_offset,
            )
            log_start = plan.log_start
        yield from self._leader_epochs(log, plan, log_start)
        yield from self._wrong_indexes(log, plan, log_start)
        if plan is None:
            active = Segment(list_segments(log.path)[-1], is_sealed=False)
            log.end_offset = find_log_end(active, committed_to, warns=False).offset
        log.plan = plan

    def _end_swaps(self, path: str) -> None:
        self._begin()
        finish_swaps(path)

    def _wrong_indexes(
        self, log: "_OneLog", plan: RecoveryPlan | None, log_start: int
    ) -> Iterator[Mend]:
        """Build wrong indexes again; a planned recovery builds those that it reads."""
        files = () if plan else list_segments(log.path)
        segments = plan.segments if plan else [Segment(each, is_sealed=False) for each in files]
        n_trusted = plan.first if plan else len(segments)
        step = log.step(RecoveryKind.INDEXES_BUILT)
        for mend in (
            times_mend(step, log.name, segments[:n_trusted], log_start, self._interval_bytes),
            transactions_mend(step, log.name, segments, n_trusted, self._interval_bytes),
        ):
            if mend is not None:
                yield mend

    def _leader_epochs(
        self, log: "_OneLog", plan: RecoveryPlan | None, log_start: int
    ) -> Iterator[Mend]:
        """Build the leader epochs of a log again if they are lost; a planned recovery does it."""
        files = list_segments(log.path)
        segments = (
            [Segment(each, is_sealed=False, is_active=each is files[-1]) for each in files]
            if plan is None
            else plan.segments[: plan.last + 1]
        )
        mend = epochs_mend(
            log.step(RecoveryKind.LEADER_EPOCHS_BUILT),
            log.name,
            segments,
            log_start,
            None if plan is None else plan.first,
        )
        if mend is not None:
            self._mended.add(os.path.join(log.path, LEADER_EPOCH_CHECKPOINT))
            yield mend

    def _salvage(self, log: "_OneLog", found: Sequence[Salvage]) -> Mend:
        """Leave out the bad bytes before good batches."""

        def leave_out() -> list[str]:
            self._begin()
            if log.is_current:
                lost = [(a, b) for each in found for a, b in each.left_out if a < b]
                self._held.forget_lost(log.topic_partition, lost)
            return [path for each in found for path in salvage(each, self._interval_bytes)]

        ranges = [f"[{a}, {b})" for each in found for a, b in each.left_out if a < b]
        offsets = ", ".join(ranges[:_MOST_RANGES])
        offsets += f" and {len(ranges) - _MOST_RANGES} more" * (len(ranges) > _MOST_RANGES)
        n_bytes = sum(end - begin for each in found for begin, end in each.bad)
        n_saved = sum(each.n_saved for each in found)
        words = (
            f"{n_bytes} bad bytes ",
            Tense("were", "would be"),
            f" left out, and with them offsets {offsets or 'none'}; {n_saved} records after them ",
            Tense("are", "would be"),
            " kept",
        )
        mend = log.mend(
            log.step(RecoveryKind.LOG_SALVAGED)._replace(n_bytes=n_bytes),
            words,
            leave_out,
            "; the bad bytes are in ",
        )
        mend.hides = True  # a plan would read the log as it was
        return mend

    def _recover(self, log: "_OneLog") -> None:
        """Recover a planned log."""
        if self._full:
            log.has_failed = True
            return
        plan = log.plan
        assert plan is not None  # noqa: S101 - the caller has chosen such logs
        with log.failing(self._full):
            log.steps += self._run.steps(
                Mend(
                    log.result(plan), lambda: recover_log(plan, self._interval_bytes), "; kept in "
                )
            )
            log.end_offset = plan.end_offset

    def _begin(self) -> None:
        """Take the mark away: it must not vouch for what a crash may leave."""
        with contextlib.suppress(FileNotFoundError):
            remove_file(self._mark)
            sync_directory(self._directory)

    def _lowered(self) -> Mend:
        """Lower high watermarks and ends of compacted parts to the ends of their logs."""
        steps = list[tuple[RecoveryStep, Words]]()
        for each, end in self._ends.items():
            if (before := self._known.high_watermarks.offsets.get(each, end)) > end:
                words = (
                    f"{each}: ",
                    Tense("lowered", "would lower"),
                    f" its high watermark from {before} to {end}, the log end" + _MISSING,
                )
                path = partition_path(self._directory, each)
                kind = RecoveryKind.HIGH_WATERMARK_LOWERED
                steps.append((RecoveryStep(kind, *each, path, "", end, before), words))
        return Mend(steps, lambda: self._held.lower_to(self._ends, self._known))

    def _move_points(self) -> None:
        points = self._known.points
        if {**points.offsets, **self._synced_to} != points.offsets:
            points.put(self._synced_to)
            points.write()

    def _close(self) -> Iterator[RecoveryStep]:
        """Put the mark of a clean stop in place, unless a start would end or lose logs."""
        # The mark would tell a user that a broker may start, and a broker to read nothing.
        start = BrokerStart([self._directory], metadata_directory=self._metadata)
        names = (
            name_faults(each.topic_partition, each.path)
            for each in start.loading(self._directory).served()
        )
        harm = self._run.left(
            [
                each
                for each in itertools.chain(start.faults(), *names)
                if each.has_harm and is_within(each.path, self._directory)
            ],
            self._mended,
        )
        why: Words = (
            Tense("not", "would not be"),
            " ready for a start" if self._was_clean else " marked as cleanly stopped",
        )
        for each in harm:
            step = RecoveryStep(RecoveryKind.NOT_MARKED, each.topic, each.partition, each.path, "")
            mend = Mend([(step, (*why, f": {each.path}: {each.as_step().message}"))], lambda: None)
            yield from self._run.steps(mend)
        if self._held.is_clean:
            return
        mark = _mark(self._directory, self._mark)
        if not harm:
            yield from self._run.last(mark)
        elif self._was_clean:  # every log is as a clean stop leaves it
            self._run.quietly(mark.act)


_MISSING = ": acknowledged records are missing"


class _Carried:
    """A recovery that is carried out."""

    def steps(self, plan: Plan) -> list[RecoveryStep]:
        return plan.carry_out()

    def goes_on_after(self, plan: Plan) -> bool:
        """Whether the files are as the rest of the plan takes them."""
        return True

    def quietly(self, act: Callable[[], object]) -> None:
        """Do what no step tells."""
        act()

    def together(self, recover: "Callable[[_OneLog], None]", logs: "Sequence[_OneLog]") -> None:
        """Recover some logs; their syncs are made together: none has to be before another."""
        do_together(recover, logs)

    def left(self, harm: list[Fault], mended: Collection[str]) -> list[Fault]:
        """Of the things that keep a broker from its start, those that are not mended."""
        return harm

    last = steps


class _Shown(_Carried):
    """A dry run: the plan is told, and not carried out."""

    def steps(self, plan: Plan) -> list[RecoveryStep]:
        return plan.shown()

    def goes_on_after(self, plan: Plan) -> bool:
        return not plan.hides

    def quietly(self, act: Callable[[], object]) -> None:
        pass

    def together(self, recover: "Callable[[_OneLog], None]", logs: "Sequence[_OneLog]") -> None:
        for each in logs:
            recover(each)

    def left(self, harm: list[Fault], mended: Collection[str]) -> list[Fault]:
        return [each for each in harm if each.path not in mended]

    def last(self, plan: Plan) -> list[RecoveryStep]:
        """A dry run does not promise the mark."""
        return []


_Runs: TypeAlias = _Carried


class _EndOfCommits(Plan):
    """The end of the commits of writers that are gone."""

    def __init__(self, held: HeldDirectory) -> None:
        self._held = held

    @property
    def hides(self) -> bool:
        return bool(list_guards(self._held.directory))

    def shown(self) -> list[RecoveryStep]:
        steps = []
        state = State.read(self._held.directory)
        for guard in list_guards(self._held.directory):
            match fate_of(guard, guard.intent(), state):
                case CommitFate.NOT_BEGUN:
                    message = f"would remove {guard.path}, which had not begun to write"
                case CommitFate.DECIDED:
                    message = f"would finish the commit of {guard.path}"
                case CommitFate.UNDECIDED:
                    message = f"would undo the commit of {guard.path}"
            steps.append(self._step(message))
        return steps

    def carry_out(self) -> list[RecoveryStep]:
        return [self._step(each) for each in self._held.end_changes(is_asked=True)]

    def _step(self, message: str) -> RecoveryStep:
        return RecoveryStep(RecoveryKind.COMMIT_ENDED, "", -1, self._held.directory, message)


def _mark(directory: str, path: str) -> Mend:
    """The mark of a clean stop."""

    def create() -> None:
        os.close(create_file(path))
        sync_directory(directory)

    step = RecoveryStep(RecoveryKind.MARKED_CLEAN, "", -1, directory, "")
    return Mend([(step, ("marked the directory as cleanly stopped",))], create)


def _orphans(log: "_OneLog") -> Iterator[Mend]:
    """Remove index files without a log, the last sign of the loss of their segments."""
    n = len(indexes_without_log(log.path))
    if not n:
        return
    lost: Sequence[LostSegments] = ()
    if list_segments(log.path):  # else a writer died while it made the partition
        lost = open_log_dir(log.path).log(*log.topic_partition).lost_segments
    step = log.step(RecoveryKind.INDEXES_REMOVED)
    if lost:
        step = step._replace(end_offset=lost[0].start_offset, cut_to=lost[-1].end_offset)
    what = "; ".join([f" {n} index file{'s' * (n > 1)} without a log", *map(str, lost)])

    def remove() -> None:
        remove_indexes_without_log(log.path)

    yield log.mend(step, (Tense("removed", "would remove"), what), remove)


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

    def step(self, kind: RecoveryKind) -> RecoveryStep:
        """A step without its message and its numbers."""
        return RecoveryStep(kind, *self.topic_partition, self.path, "")

    def mend(
        self,
        step: RecoveryStep,
        words: Words,
        act: Callable[[], Iterable[str] | None],
        says_kept: str = "",
    ) -> Mend:
        """What is told as one step."""
        return Mend([(step, self._words(*words))], act, says_kept)

    def _words(self, *words: str | Tense) -> Words:
        return (f"{self.name}: ", *words)

    def result(self, plan: RecoveryPlan) -> list[tuple[RecoveryStep, Words]]:
        """The steps of a plan."""
        what = f"{plan.n_read} segment{'s' if plan.n_read != 1 else ''}"
        what += f" up to offset {plan.end_offset}"
        read = Tense(f"recovered {what}", f"would build the indexes of {what} again")
        recovered = self.step(RecoveryKind.LOG_RECOVERED)._replace(end_offset=plan.end_offset)
        steps: list[tuple[RecoveryStep, Words]] = [(recovered, self._words(read))]
        for i, parts in plan.splits.items():
            bases = ", ".join(str(base_offset) for _, base_offset in parts)
            split = self._words(
                os.path.basename(plan.segments[i].path),
                Tense(" was", " would be"),
                f" split at the offsets {bases}: its indexes cannot hold its offsets",
            )
            steps.append((self.step(RecoveryKind.SEGMENT_SPLIT), split))
        if plan.n_cut_bytes:
            cut = self.step(RecoveryKind.LOG_CUT)._replace(
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
            loss = plan.cut
            are = Tense(" are cut off", " would be cut off")
            steps.append((cut, self._words(loss.what, are, loss.why)))
        return steps

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
            message = said(self._words(f"not recovered: {error}"), is_done=True)
            self.steps.append(self.step(RecoveryKind.LOG_FAILED)._replace(message=message))


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
