"""Move log starts up, in all partitions at once: retention and ``DeleteRecords``.

The steps are those of every change (`segmentlog.txn.change`).  In addition:

- The logs are prepared as for an append.  If the disk is too full for that, they stay as they are,
  and only what lies below the new starts goes: the command is there to free space.
- The work is done under the guard.  A snapshot keeps the producers that only records below the new
  start show.  A log of which no segment stays begins a new one at its end.  An undo removes the
  new segment, and the old start holds.
- The effects are the new log starts in the checkpoint, and then the segments below them, which are
  put aside, the oldest first.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

from segmentlog.errors import SegmentLogError
from segmentlog.format.names import partition_path
from segmentlog.log.listing import list_segments
from segmentlog.log.producers import save_producers
from segmentlog.model import TopicPartition
from segmentlog.store.durable import SyncTogether, do_together
from segmentlog.store.system_errors import FULL, Failures
from segmentlog.txn.change import Change, HeldDirectory
from segmentlog.txn.effects import MoveBounds, PutAside
from segmentlog.txn.guard import PartitionIntent
from segmentlog.txn.topics import check_partition_path
from segmentlog.writes.append import LogAppender, create_segment
from segmentlog.writes.prepare import ReadyLog, as_they_are, ready_to_append, visible_ends

logger = logging.getLogger(__name__)


def first_kept(directory: str, topic_partition: TopicPartition, start: int) -> int:
    """Base offset of the segment that holds a new start: the segments below it go."""
    segments = list_segments(partition_path(directory, topic_partition))
    return max((each.base_offset for each in segments if each.base_offset <= start), default=0)


class LogStartMove:
    """Moves the starts of the logs of `partitions`, in a directory without unfinished changes.

    A log that is damaged, or that this user may not write to, goes to `failures`.  Without them,
    it is an error, and nothing is changed.
    """

    def __init__(
        self,
        held: HeldDirectory,
        partitions: Iterable[TopicPartition],
        failures: Failures | None = None,
    ) -> None:
        self._held = held
        self._directory = held.directory
        self._change = Change.begin(held)
        self._is_ready, self._ready = True, dict[TopicPartition, ReadyLog]()
        partitions = sorted(partitions)

        def prepare(some: Sequence[TopicPartition]) -> None:
            for each in some:
                check_partition_path(partition_path(held.directory, each))
            self._ready |= ready_to_append(held, some, flush=True)

        try:
            try:
                prepare(partitions)  # all together, which is quicker, unless one is refused
            except (SegmentLogError, OSError):
                if failures is None:
                    raise
                for each in partitions:
                    with failures.of(each):
                        prepare([each])
            held.checkpoints.write()
        except OSError as error:
            if error.errno not in FULL:
                raise
            logger.warning("%s: the disk is full, so no log is recovered yet", held.directory)
            held.forget_checkpoints()
            self._is_ready, self._ready = False, as_they_are(held.directory, partitions)
        self.partitions = [*self._ready]

    def commit(
        self,
        starts: Mapping[TopicPartition, int],
        rolls: Collection[TopicPartition] = (),
    ) -> None:
        """Move starts to offsets up to the high watermarks, and remove segments wholly below them.

        Logs of `rolls` begin a new segment at their end: because no other segment stays, or
        without a new start.  Their active segments have records.  An error other than
        `CommitInDoubtError` leaves all log starts as they were.
        """
        bounds = dict.fromkeys(rolls, -1) | dict(starts)
        ends = {each: self._ready[each].end for each in bounds}
        known = self._held.checkpoints.high_watermarks.offsets
        visible = {each: min(known.get(each, end), end) for each, end in ends.items()}
        if self._is_ready:
            visible = visible_ends(self._held, ends)
        partitions = [
            PartitionIntent(
                *each, self._ready[each].sizes, ends[each], visible[each], visible[each], start
            )
            for each, start in bounds.items()
        ]
        segments = [
            (*each, ends[each] if each in rolls else first_kept(self._directory, each, start))
            for each, start in starts.items()
        ]
        self._change.carry_out(
            partitions,
            [MoveBounds(), PutAside(segments)],
            partial(self._prepare, partitions, rolls),
            is_flushed=self._is_ready,
        )

    def _prepare(
        self,
        partitions: Sequence[PartitionIntent],
        rolls: Collection[TopicPartition],
        syncs: SyncTogether,
    ) -> None:
        """Keep producers whose batches go, and begin new segments."""

        def save(each: PartitionIntent) -> None:
            path = partition_path(self._directory, each.topic_partition)
            save_producers(path, each.new_start, each.end_offset)

        do_together(save, [each for each in partitions if each.new_start >= 0])
        for each in partitions:
            if each.topic_partition in rolls:
                self._roll(each, syncs)

    def _roll(self, intent: PartitionIntent, syncs: SyncTogether) -> None:
        """Begin a new segment at the end of a log."""
        path = partition_path(self._directory, intent.topic_partition)
        if intent.sizes.base_offset < intent.end_offset <= intent.new_start:
            # The old segment goes: its time index needs no last entry, and may be gone already.
            create_segment(path, intent.end_offset)
            syncs.add_directory(path)
            return
        config = self._held.config_of(intent.topic)
        appender = LogAppender(path, config, intent.sizes, syncs=syncs)
        try:
            if intent.end_offset > appender.base_offset:  # preparing may have left it no records
                appender.roll(intent.end_offset)
            appender.close()
        except BaseException:
            appender.abandon()
            raise
