"""Move log starts up, in all partitions at once: retention and ``DeleteRecords``.

The order of the durable steps gives this property; each is on the disk before the next begins.

1. The logs are prepared as for an append.  A snapshot keeps the producers that only records below
   the new start tell of.  Nothing of a log has changed for its readers.
2. The guard is made, with the new starts in its intent, and the mark of a clean stop moves into
   it.  No broker starts from here on.
3. A log of which no segment stays begins a new one at its end.  A crash up to the decision is
   undone: the new segment is removed, and the old start holds.
4. ``state`` is renamed from the guard to `segmentlog.state`: **the decision**.  From here on
   readers that open the directory begin at the new starts.  The state remembers which segments
   are to go.
5. `log-start-offset-checkpoint` gets the new starts.  No file has been removed so far.
6. The segments below the starts are renamed, as a broker renames them (``.deleted``), the oldest
   first.  Leader epochs below the start are forgotten.  A reader that has planned to read a file
   finds it under its new name.
7. The mark comes back, and the guard goes: a broker may start.
8. The renamed files are removed ``file.delete.delay.ms`` later, by the next job or the next
   retention.  A starting broker removes them, too.

A crash after the decision is finished by the next writer (`segmentlog.commit.unfinished`).
"""

import logging
import os
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import groupby, pairwise

from segmentlog.append.append import LogAppender, create_segment
from segmentlog.append.prepare import ready_to_append, visible_ends
from segmentlog.commit.decision import decide, finish_decided, stand
from segmentlog.commit.delete_replaced import delete_due, delete_replaced
from segmentlog.commit.guard import Guard, Intent, PartitionIntent, SegmentSizes
from segmentlog.commit.room import drop_indexes, with_room
from segmentlog.commit.state import Replaced, State
from segmentlog.commit.topics import check_partition_path
from segmentlog.commit.unfinished import give_up
from segmentlog.disk.readable import exists
from segmentlog.disk.sync_together import SyncTogether
from segmentlog.errors import LogLockedError, SegmentLogError, SyncFailedError
from segmentlog.layout.checkpoint import ReadCheckpoints
from segmentlog.model import TopicPartition
from segmentlog.names import CLEAN_SHUTDOWN_FILE, partition_path
from segmentlog.producers.producer_state import ProducerStates
from segmentlog.producers.snapshot import list_snapshots
from segmentlog.segments.listing import list_segments
from segmentlog.segments.segment import Segment
from segmentlog.topic_config import TopicConfig

__all__ = ["LogStartMove"]

logger = logging.getLogger(__name__)

ConfigOf = Callable[[str], TopicConfig]


class LogStartMove:
    """Moves the starts of some logs; the caller holds the lock, and has recovered.

    Parameters
    ----------
    directory : the log directory.
    partitions : whose logs are prepared.
    config_of : the configuration of a topic.

    Raises
    ------
    LogDirectoryError
        If a log is damaged, or this user may not write to it; nothing is changed then.
    """

    def __init__(
        self, directory: str, partitions: Iterable[TopicPartition], config_of: ConfigOf
    ) -> None:
        self._directory = directory
        self._config_of = config_of
        self._was_clean = exists(os.path.join(directory, CLEAN_SHUTDOWN_FILE))
        self._ready: dict[TopicPartition, tuple[SegmentSizes, int]] = {}
        known = ReadCheckpoints(directory)
        for topic, group in groupby(sorted(partitions), key=lambda each: each.topic):
            of_topic = list(group)
            for each in of_topic:
                check_partition_path(partition_path(directory, each))
            self._ready |= ready_to_append(
                directory, of_topic, config_of(topic), is_clean=self._was_clean, flush=True,
                known=known,
            )  # fmt: skip
        known.write()

    def commit(
        self,
        starts: Mapping[TopicPartition, int],
        rolls: Collection[TopicPartition] = (),
    ) -> None:
        """Move starts, and remove the segments that lie wholly below them.

        Parameters
        ----------
        starts : the new start of each log, at or below its high watermark.
        rolls : logs that begin a new segment at their end: because no other segment stays, or
            without a new start.  Their active segments have records.

        Raises
        ------
        LogLockedError
            If another writer has committed meanwhile, although the lock should have excluded it.
        CommitInDoubtError
            If the system does not say whether the decision has reached the disk.
        CorruptLogError
            If batches that a snapshot of producers needs cannot be read.
        SyncFailedError, OSError
            If the disk is full or fails; no log start has moved then.
        """
        with_room(lambda: self._commit(starts, rolls), lambda: self._make_room(starts, rolls))

    def _make_room(
        self, starts: Mapping[TopicPartition, int], rolls: Collection[TopicPartition]
    ) -> bool:
        """Drop the indexes of segments that are to go: also of the active one if the log rolls."""
        is_freed = False
        for topic_partition, start in starts.items():
            path = partition_path(self._directory, topic_partition)
            segments = list_segments(path)
            going = [
                segment.base_offset
                for segment, successor in pairwise(segments)
                if successor.base_offset <= start
            ]
            if topic_partition in rolls and segments[-1].base_offset < start:
                going.append(segments[-1].base_offset)
            is_freed = drop_indexes(path, going) or is_freed
        return is_freed

    def _commit(
        self, starts: Mapping[TopicPartition, int], rolls: Collection[TopicPartition]
    ) -> None:
        for topic_partition, start in starts.items():
            path, end = (
                partition_path(self._directory, topic_partition),
                self._ready[topic_partition][1],
            )
            _keep_producers(path, start, end)
        state, token = State.read(self._directory), secrets.token_hex(8)
        replaced = delete_replaced(self._directory, state.replaced, self._delay_of)
        bounds = dict.fromkeys(rolls, -1) | dict(starts)
        intent, guard = self._intend(bounds, state, token), Guard.of_job(self._directory, token)
        syncs = SyncTogether()
        try:
            stand(self._directory, guard, intent)
            for each in intent.partitions:
                if each.topic_partition in rolls:
                    self._roll(each, syncs)
            syncs.finish()
            now_ms = int(time.time() * 1000)
            replaced += [Replaced(*each, start, now_ms) for each, start in starts.items()]
            decide(self._directory, guard, state.next(token, None, (), replaced, now_ms))
        except (SyncFailedError, LogLockedError):
            raise
        except BaseException:
            if State.read(self._directory).token != token:  # an interrupt may follow the decision
                give_up(self._directory, guard, intent)
            raise
        finally:
            syncs.abandon()
        if finish_decided(self._directory, guard, intent):
            try:
                delete_due(self._directory, self._delay_of)
            except (OSError, SegmentLogError) as error:  # decided is decided
                logger.warning("%s: removed segments keep their files: %s", self._directory, error)

    def _delay_of(self, topic: str) -> int:
        return self._config_of(topic).file_delete_delay_ms

    def _intend(self, starts: Mapping[TopicPartition, int], state: State, token: str) -> Intent:
        """The partitions as they are, with their new starts, or -1; no end moves."""
        ends = {each: self._ready[each][1] for each in starts}
        visible = visible_ends(self._directory, ends)
        partitions = [
            PartitionIntent(
                *each, self._ready[each][0], ends[each], visible[each], visible[each], start
            )
            for each, start in starts.items()
        ]
        return Intent(token, state.token, self._was_clean, True, partitions, removes=True)

    def _roll(self, intent: PartitionIntent, syncs: SyncTogether) -> None:
        """Begin a new segment at the end of a log."""
        path = partition_path(self._directory, intent.topic_partition)
        if intent.sizes.base_offset < intent.end_offset <= intent.new_start:
            # The old segment goes: its time index needs no last entry, and may be gone already.
            create_segment(path, intent.end_offset)
            syncs.add_directory(path)
            return
        config = self._config_of(intent.topic)
        appender = LogAppender(path, config, intent.sizes, syncs=syncs)
        try:
            if intent.end_offset > appender.base_offset:  # preparing may have left it no records
                appender.roll(intent.end_offset)
            appender.close()
        except BaseException:
            appender.abandon()
            raise


def _keep_producers(path: str, start: int, end: int) -> None:
    """Write a snapshot at the log end, unless there is one after the new log start.

    Snapshots below the new start go with their segments.  A broker that starts ignores one at the
    log start, too (``ProducerStateManager.truncateAndReload``), and so it forgets the producers of
    a log that is empty; writers here do not.  A log without snapshots has no state to keep: a
    broker that starts on it looks at its batches only after an unclean stop.

    Parameters
    ----------
    path : of the partition's directory.
    start : the new log start.
    end : the log end.
    """
    snapshots = list_snapshots(path)
    if not snapshots or snapshots[0] > start:
        return
    segments = [Segment(each, is_sealed=False) for each in list_segments(path)]
    producers = ProducerStates.load(path, end)
    producers.follow_to(segments, end)
    producers.take_snapshot()
