"""The effects of a change, which follow from its decision: data in its intent.

`segmentlog.txn.guard.finish` applies the effects in their order.  A crash may come at any
call, and the next writer then applies all of them again: each can be repeated.

A change is a list of effects, which `writes`, `cluster` and `maintain` choose.  A new effect is a
class here, with its own fields, and a line in `_EFFECTS`.  If it hides a topic from readers,
`Intent.taken_out` has to name the topic, too.
"""

import contextlib
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from segmentlog.errors import CorruptLogError, OptionError, UnsupportedFormatError
from segmentlog.format.names import (
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    SPARSE_INDEXES,
    FileKind,
    FileState,
    parse_segment_file,
    partition_path,
    segment_file_name,
)
from segmentlog.format.topic_config import TopicConfig
from segmentlog.log.checkpoint import read_offsets, write_offsets
from segmentlog.log.listing import list_segments
from segmentlog.log.producer_snapshot import list_snapshots, snapshot_path
from segmentlog.log.swaps import exchange_end
from segmentlog.model import TopicPartition
from segmentlog.store.durable import do_together, remove_file, rename, sync_directory
from segmentlog.store.partitions import put_file_aside, remove_deleted
from segmentlog.store.readable import is_directory, list_names
from segmentlog.txn.settings_file import SettingsFile
from segmentlog.txn.state import State, check_types, renew_stamp
from segmentlog.txn.topics import (
    DelayOf,
    partition_directories,
    put_segments_aside,
    remove_taken_out,
    take_out,
)

if TYPE_CHECKING:
    from segmentlog.txn.guard import Intent, PartitionIntent

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect.  Its fields are JSON: texts, numbers, and lists of them."""

    kind: ClassVar[str]

    def check(self) -> None:
        """Refuse fields that nobody has written, by `TypeError` or `ValueError`."""

    def noted_in(self, state: State) -> State:
        """The state that decides the change, with what it remembers of this effect."""
        return state

    def apply(self, directory: str, intent: "Intent") -> None:
        """Make the effect durable; the change is decided, and its guard stands."""
        raise NotImplementedError

    def undo(self, directory: str) -> None:
        """Remove what the work of an undecided change has left besides appended bytes."""

    def tidy(self, directory: str, delay_of: DelayOf | None) -> None:
        """Remove files that have left their logs, if their delay is known; the guard is gone."""

    def make_room(self, directory: str) -> bool:
        """Free some space on a full disk before the decision; whether there is more now."""
        # A guard, an intent and a state take a few kilobytes. Without them, a full disk would keep
        # out the very commands that empty it. Nothing may go that is missed if the change fails
        # anyway.
        return False

    def free(self, directory: str, intent: "Intent") -> bool:
        """Free what the decided change removes at once, on a full disk; whether it removes any."""
        # The guard would otherwise stay until somebody makes room, and would keep out every
        # command that could make room. New readers take the new bounds from the guard. A reader of
        # the old ones fails with `LogChangedError`.
        return False


@dataclass(frozen=True, slots=True)
class MoveBounds(Effect):
    """The new log starts, high watermarks and recovery points of the intent's partitions."""

    kind = "moveBounds"

    def apply(self, directory: str, intent: "Intent") -> None:
        """Write Kafka's checkpoints."""
        ends = {each.topic_partition: each.new_end for each in intent.partitions}
        news = {LOG_START_CHECKPOINT: intent.new_starts, HIGH_WATERMARK_CHECKPOINT: ends}
        # The recovery point moves only over synced bytes.  All bytes before those of the change
        # are synced by then.  A power cut may lose unsynced bytes, and a loss below the point
        # counts as damage.
        if intent.is_flushed:
            news[RECOVERY_POINT_CHECKPOINT] = ends
        for name, offsets in news.items():
            if offsets:
                write_offsets(directory, name, {**read_offsets(directory, name), **offsets})


@dataclass(frozen=True, slots=True)
class PutAside(Effect):
    """Segments below the log starts leave their logs, renamed as a broker does it."""

    kind = "putAside"
    #: topic, partition, and the base offset of the first segment that stays
    segments: Sequence[tuple[str, int, int]]

    def check(self) -> None:
        """Refuse a topic that leads out of the log directory: files outside would be renamed."""
        for each in self.segments:
            check_types(each, (str, int, int))
            check_topic_path(each[0])

    def noted_in(self, state: State) -> State:
        """The next job removes the files of these topics once they are due."""
        return state.with_files_aside(topic for topic, _, _ in self.segments)

    def apply(self, directory: str, intent: "Intent") -> None:
        """Rename the files; leader epochs below the log start are forgotten."""
        starts = intent.new_starts

        def put(each: tuple[TopicPartition, str, int]) -> None:
            topic_partition, path, below = each
            put_segments_aside(path, below, starts.get(topic_partition, below))

        do_together(put, self._paths(directory))

    def tidy(self, directory: str, delay_of: DelayOf | None) -> None:
        """Remove the files that are due: all of them with a ``file.delete.delay.ms`` of 0."""
        if delay_of is not None:
            for topic_partition, path, below in self._paths(directory):
                remove_deleted(path, delay_of(topic_partition.topic), below=below)

    def make_room(self, directory: str) -> bool:
        """Drop the indexes of the segments that go, and their snapshots of producers."""
        # If the change fails anyway, these segments stay as a broker knows them from a crash:
        # readers scan them without an index, and `segmentlog reindex` and brokers build it again
        # (``LogLoader.recoverSegment``).
        return True in [_drop_derived(path, below) for _, path, below in self._paths(directory)]

    def free(self, directory: str, intent: "Intent") -> bool:
        """Remove the files without the delay that readers have otherwise."""
        with contextlib.suppress(OSError):  # it renames first, and then takes some bytes, too
            self.apply(directory, intent)
        self.tidy(directory, lambda _: 0)
        return True

    def _paths(self, directory: str) -> Iterable[tuple[TopicPartition, str, int]]:
        for topic, partition, below in self.segments:
            topic_partition = TopicPartition(topic, partition)
            path = partition_path(directory, topic_partition)
            if is_directory(path):  # or else its topic was deleted
                yield topic_partition, path, below


@dataclass(frozen=True, slots=True)
class KeepProducers(Effect):
    """Snapshots of producers at the new log ends, because batches of producers were appended."""

    kind = "keepProducers"

    def apply(self, directory: str, intent: "Intent") -> None:
        """Write snapshots."""
        from segmentlog.log.producers import keep_producers  # the kernels load here

        def keep(each: "PartitionIntent") -> None:
            path = partition_path(directory, each.topic_partition)
            if not is_directory(path):  # its topic was deleted
                return
            try:
                keep_producers(path, each.new_end)
            # A log that cannot be read is only a warning: the check before the change has read it,
            # so it was damaged since, and no writer could go on if this change stayed unfinished.
            except (CorruptLogError, UnsupportedFormatError) as error:
                logger.warning("%s: no snapshot of its producers is written: %s", path, error)

        do_together(keep, intent.partitions)


@dataclass(frozen=True, slots=True)
class TakeOut(Effect):
    """A topic leaves the directory, with its settings and its numbered writes."""

    kind = "takeOut"
    topic: str

    def check(self) -> None:
        """Refuse what is not the name of a topic."""
        check_types((self.topic,), (str,))
        check_topic_path(self.topic)

    def noted_in(self, state: State) -> State:
        """Readers that have opened the directory recognize the deletion."""
        return state.without(self.topic)

    def apply(self, directory: str, intent: "Intent") -> None:
        """Rename the partitions; their entries in checkpoints and the settings go."""
        take_out(directory, self.topic)
        # A reader that listed names meanwhile may find no guard any more, but finds a new stamp.
        renew_stamp(directory)

    def tidy(self, directory: str, delay_of: DelayOf | None) -> None:
        """Remove the renamed directories; a starting broker removes those that are left."""
        remove_taken_out(directory, self.topic)

    def make_room(self, directory: str) -> bool:
        """Drop the indexes of all segments of the topic, and old snapshots of producers."""
        paths = [path for _, path in partition_directories(directory, self.topic)]
        return True in [_drop_derived(path) for path in paths]

    def free(self, directory: str, intent: "Intent") -> bool:
        """Remove the directories that are renamed already."""
        remove_taken_out(directory, self.topic)
        return True


class Followed(NamedTuple):
    """A partition that follows a log elsewhere: what leaves its directory, and what comes."""

    topic: str
    partition: int
    #: the bounds afterwards
    start: int
    end: int
    high_watermark: int
    #: the end of the compacted part afterwards; -1 if no part is known to be compacted
    cleaned_to: int
    below: int  # segments below this offset leave the log
    first: int  # segments from this offset on leave the log; -1 if none leaves and none comes
    #: names of the files of new segments, which stand there as ``.cleaned`` files
    segments: Sequence[str]
    files: Sequence[str]  # names of other files, which stand there as ``.tmp`` files
    removed: Sequence[str]  # names of files that are removed
    cut: Sequence[int]  # see `exchange_end`; empty for None

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def oldest_log(self) -> str:
        """The name of the first new ``.log`` file; empty without one."""
        return min((each for each in self.segments if each.endswith(".log")), default="")

    def follow(self, path: str) -> None:
        """Let files leave and come in the partition's directory; it can be repeated."""
        # Indexes before the segment that they belong to has grown are those of its beginning.
        for name in self.removed:
            remove_file(os.path.join(path, name), missing_ok=True)
        for name in self.files:
            full = os.path.join(path, name)
            with contextlib.suppress(FileNotFoundError):  # done before a crash
                rename(f"{full}.tmp", full)
        sync_directory(path)
        if self.first >= 0:
            cut = (self.cut[0], self.cut[1], self.cut[2]) if self.cut else None
            exchange_end(path, self.first, self.segments, cut)
        older = [
            (each.offset, name)
            for name in list_names(path)
            if (each := parse_segment_file(name)) is not None
            and each.state is FileState.LIVE
            and each.kind is not FileKind.SNAPSHOT
            and each.offset < self.below
        ]
        for _, name in sorted(older):
            put_file_aside(path, name)
        if self.below > 0:  # an earlier attempt may have renamed all, and failed before the sync
            sync_directory(path)


@dataclass(frozen=True, slots=True)
class Follow(Effect):
    """Partitions get the segments, small files and bounds of the logs that they follow."""

    kind = "follow"
    partitions: Sequence[Sequence[Any]]  # each a `Followed`, or a list of its fields

    def check(self) -> None:
        """Refuse names that lead out of the partitions."""
        for each in self.partitions:
            followed = Followed(*each)
            check_types(followed[:8], (str, *[int] * 7))
            check_topic_path(followed.topic)
            lists = followed.segments, followed.files, followed.removed, followed.cut
            check_types(lists, (list,) * 4)
            names = [*followed.segments, *followed.files, *followed.removed]
            check_types((*names, *followed.cut), (str,) * len(names) + (int,) * len(followed.cut))
            if len(followed.cut) not in {0, 3} or any(os.sep in name for name in names):
                raise ValueError(f"{each!r} does not describe a partition")

    def noted_in(self, state: State) -> State:
        """The next job removes the files of these topics once they are due."""
        return state.with_files_aside(each.topic for each in self.followed())

    def apply(self, directory: str, intent: "Intent") -> None:
        """Exchange files, and then write Kafka's checkpoints."""
        followed = self.followed()

        def follow(each: Followed) -> None:
            path = partition_path(directory, each.topic_partition)
            if is_directory(path):  # or else its topic was deleted
                each.follow(path)

        do_together(follow, followed)
        for name, offsets in (
            (LOG_START_CHECKPOINT, {each.topic_partition: each.start for each in followed}),
            # Segments that came may be dirty where the old ones were clean.
            (
                CLEANER_OFFSET_CHECKPOINT,
                {each.topic_partition: each.cleaned_to for each in followed},
            ),
            (
                HIGH_WATERMARK_CHECKPOINT,
                {each.topic_partition: each.high_watermark for each in followed},
            ),
            (RECOVERY_POINT_CHECKPOINT, {each.topic_partition: each.end for each in followed}),
        ):
            before = read_offsets(directory, name)
            after = {each: at for each, at in {**before, **offsets}.items() if at >= 0}
            if after != before:
                write_offsets(directory, name, after)

    def undo(self, directory: str) -> None:
        """Remove small files; segments that stand beside the log wait for the next attempt."""
        for each in self.followed():
            path = partition_path(directory, each.topic_partition)
            for name in each.files:
                remove_file(os.path.join(path, f"{name}.tmp"), missing_ok=True)

    def tidy(self, directory: str, delay_of: DelayOf | None) -> None:
        """Remove the files that are due."""
        if delay_of is not None:
            for each in self.followed():
                path = partition_path(directory, each.topic_partition)
                remove_deleted(path, delay_of(each.topic))

    def followed(self) -> list[Followed]:
        """The partitions."""
        return [Followed(*each) for each in self.partitions]


@dataclass(frozen=True, slots=True)
class AlterSettings(Effect):
    """Settings of a topic that come with its records, such as those of a clone."""

    kind = "alterSettings"
    topic: str
    settings: Mapping[str, str]  # by Kafka's names; settings that are not named stay

    def check(self) -> None:
        """Refuse settings that no reader of the file would accept."""
        check_types((self.topic, self.settings), (str, dict))
        check_types((*self.settings.values(),), (str,) * len(self.settings))
        try:
            TopicConfig.parse(self.settings)
        except OptionError as error:
            raise ValueError(str(error)) from None

    def apply(self, directory: str, intent: "Intent") -> None:
        """Replace the file of settings."""
        known = SettingsFile.read(directory)
        after = self.altered(known)
        if after != known:
            after.write(directory)

    def altered(self, known: SettingsFile) -> SettingsFile:
        """The contents of the file of settings, with these."""
        return known.altered(self.topic, self.settings)


_EFFECTS: Mapping[str, type[Effect]] = {
    each.kind: each
    for each in (MoveBounds, PutAside, KeepProducers, TakeOut, Follow, AlterSettings)
}


def encode_effects(effects: Iterable[Effect]) -> list[dict[str, Any]]:
    """Effects as JSON."""
    return [{"kind": each.kind, **asdict(each)} for each in effects]


def decode_effects(found: Iterable[Mapping[str, Any]]) -> list[Effect]:
    """The inverse; `KeyError`, `TypeError` or `ValueError` for one that is malformed."""
    effects = []
    for each in found:
        effect = _EFFECTS[each["kind"]](**{name: each[name] for name in each if name != "kind"})
        effect.check()
        effects.append(effect)
    return effects


def check_topic_path(topic: str) -> None:
    """Refuse a topic that leads out of the log directory."""
    if os.sep in topic:
        raise ValueError(f"{topic!r} is not a topic")


def _drop_derived(path: str, below: int | None = None) -> bool:
    """Remove files of segments below an offset that can be built again; whether there were any."""
    # These are their offset and time indexes, and all snapshots of producers but the newest, which
    # a broker builds again from the batches.
    old = [each for each in list_snapshots(path)[1:] if below is None or each < below]
    for offset in old:
        remove_file(snapshot_path(path, offset))
    is_freed = bool(old)
    for segment in list_segments(path):
        if below is not None and segment.base_offset >= below:
            break
        for kind in SPARSE_INDEXES:
            with contextlib.suppress(FileNotFoundError):
                remove_file(os.path.join(path, segment_file_name(segment.base_offset, kind)))
                is_freed = True
    return is_freed
