"""A broker's log directories: their topic-partitions and checkpoints."""

import contextlib
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Annotated, Unpack

from segmentlog.arguments import (
    class_of_one_dialect,
    instance_of,
    nearest,
    one_of,
    takes,
    whole_number,
)
from segmentlog.declared import Declared
from segmentlog.errors import (
    CorruptCheckpointError,
    LogDirectoryError,
    OptionError,
    SegmentLogError,
    UnknownTopicOrPartitionError,
)
from segmentlog.format.names import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    DirectoryState,
    is_renamed_directory,
    parse_partition_directory,
)
from segmentlog.log.checkpoint import read_meta_properties
from segmentlog.masking import with_plain_buckets
from segmentlog.model import (
    INTERNAL_TOPICS,
    IsolationLevel,
    OnCorruptBatch,
    ReadUpTo,
    TopicPartition,
)
from segmentlog.read_options import TierOptions
from segmentlog.reads.choose import MOST_NAMED, MissingPartition, Told, news
from segmentlog.reads.log import Log, log_start_beyond
from segmentlog.reads.snapshot import DirectorySnapshot, without_collector
from segmentlog.reads.summary import html_table
from segmentlog.store.other_systems import refuse_other_systems
from segmentlog.store.partitions import logs_in, misnamed
from segmentlog.store.paths import opened_path, plain_path, tiered_paths, why_not_there
from segmentlog.store.readable import (
    exists,
    is_file,
    is_url,
    list_entries,
    log_identity,
    survey,
)
from segmentlog.store.remote.requests import side_by_side
from segmentlog.store.system_errors import storage_errors
from segmentlog.txn.guard import list_guards
from segmentlog.txn.state import OF_LOG_DIRECTORIES, State

logger = logging.getLogger(__name__)

_MOST_NAMES = 1_000  # of a wrong path that are looked at for a message
_MOST_SHOWN = 20  # partitions, in a notebook

#: The option that reads beyond the high watermark, in the words of Python and the command line.
TO_LOG_END = "read_up_to='logEnd' (--read-up-to logEnd)"

_BEYOND = "beyond the high watermark"
_LOST = "whose segments are gone"
_BETWEEN = "between two segments, or before the first,"
_UNDECIDED = "after the first open transaction"

#: Offsets that `LogDirectory.end_offsets` does not read, in words, and what one can do about it.
_NOT_READ = {
    _BEYOND: "; {} reads them",
    _LOST: "; data loss does not fail this read",
    _BETWEEN: ": segments are gone whose indexes are there; put them back",
    _UNDECIDED: ": it was neither committed nor aborted",
}


@class_of_one_dialect()
class LogDirectory:
    """One or several log directories, only to read: no lock is taken, nothing is written.

    `open_log_dir` makes it.  It shows one moment; `refresh` returns a later one.

    Parameters
    ----------
    paths : absolute paths of log directories, partition directories or ``.log`` files.
    before : the same paths at an earlier moment.
    snapshots : of the directories of these paths, by path, if they are known.
    """

    def __init__(
        self,
        paths: Iterable[str],
        before: "LogDirectory | None" = None,
        snapshots: Mapping[str, DirectorySnapshot] | None = None,
    ) -> None:
        self.paths = tuple(paths)
        self._places: dict[TopicPartition, tuple[str, str]] = {}  # log directory, and path
        #: All places of each partition that several directories hold.
        self._copies: dict[TopicPartition, list[tuple[str, str]]] = {}
        self._misnamed: dict[TopicPartition, LogDirectoryError] = {}
        self._left_out: dict[TopicPartition, str] = {}  # the reasons
        self._logs: dict[TopicPartition, Log] = {}
        #: Partitions whose logs have not changed since the `refresh` that made this object: their
        #: bounds and ends are those of the earlier object.
        self.unmoved: Collection[TopicPartition] = ()
        self._listed: set[TopicPartition] = set()  # since the last look at their ends
        self._snapshots = dict(snapshots or {})
        self._whole: list[DirectorySnapshot] = []
        self._resolved = [*map(_resolve, self.paths)]
        self._is_remote = any(map(is_url, self.paths))
        #: other texts than before, if another log was found where this process knew one
        self.identities = [log_identity(each) for each in self.paths]
        # A path with the name of a partition may become one, or cease to be one.
        self._names_one = any(
            only or parse_partition_directory(os.path.basename(parent))
            for parent, only in self._resolved
        )
        for parent, only in self._resolved:
            snapshot = self._snapshots.get(parent) or DirectorySnapshot(parent)
            self._snapshots[parent] = snapshot
            if not only:
                self._whole.append(snapshot)
        if (
            before is not None
            and self._resolved == before._resolved
            and all(
                snapshot.partitions is before._snapshots[path].partitions
                for path, snapshot in self._snapshots.items()
            )
        ):
            self._places, self._copies = before._places, before._copies
            self._misnamed = before._misnamed
            return
        for path, (parent, only) in zip(self.paths, self._resolved, strict=True):
            found = {only: path} if only else _partitions_in(self._snapshots[parent])
            for topic_partition, place in found.items():
                self._add(topic_partition, parent, place)
                if not only and (fault := misnamed(place, topic_partition)):
                    self._misnamed[topic_partition] = fault

    def __repr__(self) -> str:
        return self._counted(self._places)

    def _counted(self, partitions: Collection[TopicPartition]) -> str:
        counted = (
            f"topics={len({each.topic for each in partitions})}, partitions={len(partitions)}"
        )
        if n_missing := len(self.missing_partitions()):
            counted += f", missing={n_missing}"
        return f"LogDirectory({with_plain_buckets(', '.join(map(repr, self.paths)))}, {counted})"

    def __iter__(self) -> Iterator[Log]:
        """The logs of all topics but brokers' own, by topic and partition; `log` opens others."""
        for topic, partitions in self.topics().items():
            for partition in partitions:
                yield self.log(topic, partition)

    def __len__(self) -> int:
        """Number of the logs that iteration yields."""
        return sum(map(len, self.topics().values()))

    def __bool__(self) -> bool:
        """True: a directory without logs is a directory, too."""
        return True

    def _repr_html_(self) -> str:
        shown = [
            each
            for each in self.topic_partitions()
            if each.topic not in INTERNAL_TOPICS and each not in self._copies
        ]
        try:
            logs = [self.log(*each) for each in shown[:_MOST_SHOWN]]
        except CorruptCheckpointError as error:
            return html_table(f"{self!r}: {error}", [], len(shown))
        title = self._counted(shown)
        if n_hidden := len(self._places) - len(shown):
            title += f"; not shown: {n_hidden:,} in brokers' topics or held twice"
        return html_table(title, logs, len(shown) - len(logs))

    def _add(self, topic_partition: TopicPartition, parent: str, path: str) -> None:
        known = self._places.get(topic_partition)
        if known is None:
            self._places[topic_partition] = (parent, path)
            return
        if os.path.realpath(path) == os.path.realpath(known[1]):
            raise _held_twice(topic_partition, known[1], path)  # the directory is named twice
        # Directories of two brokers may both hold `__consumer_offsets-0`.  This does not affect a
        # read of other topics.
        self._copies.setdefault(topic_partition, [known]).append((parent, path))

    def topic_partitions(self) -> list[TopicPartition]:
        """All topic-partitions, internal topics too, sorted by topic and partition."""
        return sorted(self._places)

    def topics(self, *, internal: bool = False) -> dict[str, list[int]]:
        """Partitions of each topic, sorted; brokers' own topics only when `internal`."""
        topics: dict[str, list[int]] = {}
        for topic, partition in self.topic_partitions():
            if internal or topic not in INTERNAL_TOPICS:
                topics.setdefault(topic, []).append(partition)
        return topics

    def missing_partitions(self, topics: Collection[str] | None = None) -> list[MissingPartition]:
        """Partitions whose records a checkpoint promises, and whose directory is gone.

        A broker holds only its own replicas, so gaps among the numbers mean nothing.

        Parameters
        ----------
        topics : names of topics; by default all but brokers' own, which copies often leave out.
        """
        return [
            each
            for each in self._missing
            if (
                each.topic_partition.topic not in INTERNAL_TOPICS
                if topics is None
                else each.topic_partition.topic in topics
            )
        ]

    @cached_property
    def _missing(self) -> list[MissingPartition]:
        return sorted(
            MissingPartition(
                each,
                end,
                os.path.join(snapshot.path, HIGH_WATERMARK_CHECKPOINT),
                snapshot.in_place_of(each),
            )
            for snapshot in self._whole
            for each, end in snapshot.missing().items()
            if each not in self._places and each not in self._left_out
        )

    def partitions_not_in_use(self) -> dict[str, list[str]]:
        """By topic, the renamed directories of partitions that have no other directory here.

        A broker renames the directory of a partition that is deleted (``-delete``), that the
        cluster does not assign to it (``-stray``), or that is being moved here (``-future``).
        """
        found: dict[str, list[str]] = {}
        for each in (each for snapshot in self._whole for each in snapshot.renamed()):
            if each.topic_partition not in self._places:
                found.setdefault(each.topic_partition.topic, []).append(each.path)
        return dict(sorted(found.items()))

    def where_renamed(self, topic: str, partition: int = -1) -> str:
        """For messages: the renamed directories of a partition, or of a whole topic; or empty."""
        found = [
            each
            for snapshot in self._whole
            for each in snapshot.renamed()
            if is_renamed_directory(each.name, topic)
            and partition in (-1, each.topic_partition.partition)
        ]
        if not found:
            return ""
        shown = ", ".join(each.path for each in found[:MOST_NAMED])
        more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
        if all(each.state is DirectoryState.FUTURE for each in found):
            way = "to read them, open each of these directories"
        else:
            way = (
                "segmentlog.undelete (segmentlog undelete) restores the topic, and each of these "
                "directories can be opened and read"
            )
        warning = (
            "a broker removes -delete directories a minute after the deletion, or after its start "
            "(log.segment.delete.delay.ms): "
            if any(each.state is DirectoryState.DELETE for each in found)
            else ""
        )
        return f"its logs are still in {shown}{more}; {warning}{way}"

    @property
    def log_directories(self) -> list[str]:
        """Paths of the local log directories that were opened as a whole, without their tier."""
        return [each.path for each in self._whole if not is_url(each.path)]

    def _directories_of(self, topic_partition: TopicPartition) -> list[str]:
        """The log directories that hold a partition; several hold copies of it."""
        places = self._copies.get(topic_partition) or [self._places[topic_partition]]
        return [parent for parent, _ in places]

    def log(self, topic: str, partition: int) -> Log:
        """The log of one topic-partition; the same object each time.

        Raises
        ------
        UnknownTopicOrPartitionError
            If the directories do not hold it.
        OptionError
            If an argument is not the name of a topic, or not the number of a partition.
        LogDirectoryError
            If two of them hold it: nothing shows which of the two is the log; if the name of its
            directory has zeros before the number.
        CorruptCheckpointError
            If a checkpoint beside it cannot be read.
        """
        instance_of("topic", topic, str, "give the name of a topic")
        topic_partition = TopicPartition(topic, whole_number("partition", partition, -1))
        if topic_partition not in self._logs:
            if topic_partition not in self._places:
                raise self._unknown(topic, partition)
            if topic_partition in self._misnamed:
                raise self._misnamed[topic_partition]
            self._logs[topic_partition] = self._chosen(topic_partition)
        return self._logs[topic_partition]

    def _chosen(self, topic_partition: TopicPartition) -> Log:
        """The log of a partition that these directories hold."""
        if topic_partition in self._copies:
            (_, first), *_, (_, last) = self._copies[topic_partition]
            raise _held_twice(topic_partition, first, last)
        log = self._open(topic_partition, *self._places[topic_partition])
        self._warn_of_a_start_elsewhere(log)
        return log

    def _warn_of_a_start_elsewhere(self, log: Log) -> None:
        """Say that a log was moved by hand, and that records that were deleted are read again.

        They are what a broker serves.  The entry may also be of a topic that was deleted, so it
        must not hide records.
        """
        own = os.path.dirname(log.path)
        for each in self._whole if len(self._whole) > 1 else ():
            starts = each.log_starts
            if each.path == own or isinstance(starts, CorruptCheckpointError):
                continue
            if (found := starts.get(log.topic_partition, 0)) <= log.log_start_checkpoint:
                continue
            with contextlib.suppress(SegmentLogError, OSError):  # a read of the log reports that
                if (begin := log.log_start_offset) < found:
                    logger.warning(
                        "%s: records from offset %d up to %d are read, but %s has the log start "
                        "%d: if the log was moved from there, they were deleted; write the line "
                        "'%s %d %d' into %s (and raise the count in its second line)",
                        log.path,
                        begin,
                        found,
                        os.path.join(each.path, LOG_START_CHECKPOINT),
                        found,
                        *log.topic_partition,
                        found,
                        os.path.join(own, LOG_START_CHECKPOINT),
                    )

    def _state_of(self, parent: str) -> State:
        """The state of one of the log directories, at the moment at which it was opened."""
        return self._snapshots[parent].state.decoded()

    def _open(
        self, topic_partition: TopicPartition, parent: str, path: str, high_watermark: int = -1
    ) -> Log:
        """The log at one place.  A high watermark that is given overrides the checkpoint."""
        # Checkpoints do not name a renamed directory: they may have the bounds of a topic that was
        # made again with the same name.
        if path in self.paths:  # others are in use
            named = parse_partition_directory(path.removeprefix(parent).strip("/").split("/")[0])
            if named is not None and named[1] is not DirectoryState.CURRENT:
                return self.log_without_checkpoints(topic_partition)
        snapshot = self._snapshots[parent]
        start, end = snapshot.bounds(topic_partition)
        promised = snapshot.high_watermarks
        known = promised if isinstance(promised, CorruptCheckpointError) else end
        return Log(
            topic_partition,
            path,
            log_start_checkpoint=start,
            high_watermark_checkpoint=known if high_watermark < 0 else high_watermark,
            snapshot=snapshot,
            is_file=None if path in self.paths else False,
            noted=self._listed,
        )

    def log_without_checkpoints(self, topic_partition: TopicPartition) -> Log:
        """A log as its files alone show it, for work that a damaged checkpoint does not end."""
        _, path = self._places[topic_partition]
        return Log(topic_partition, path, is_file=None if path in self.paths else False)

    @property
    def corrupt_checkpoints(self) -> list[CorruptCheckpointError]:
        """The checkpoints beside the partitions that cannot be read, each with its error."""
        return [error for each in self._snapshots.values() for error in each.corrupt_checkpoints]

    def refresh(self, *, log_ends: bool = False) -> "LogDirectory":
        """The directories as they are now; this object, if nothing has changed.

        The result equals what `open_log_dir` returns for the same paths at this moment.  Logs that
        have not changed keep their lists of segments and the ends that were looked up.

        Parameters
        ----------
        log_ends : whether to look at the files of every log that was opened as well, with a call
            of ``stat`` for its directory and one for its active segment.  A read with
            ``readUpTo=logEnd`` needs that.

        Notes
        -----
        Without `log_ends`, a refresh looks at the top of each log directory alone: at the names in
        it, at the checkpoints, and at the state of the last commit.  This look shows every commit
        of `segmentlog`, every new or removed partition, and every high watermark and log start
        that a broker writes.  It does not show three changes that a running broker makes:

        - records beyond the high watermark in its checkpoint, which a read to the high watermark
          does not return;
        - new segments;
        - segments that retention removes from a log whose high watermark stays where it is.  The
          log then keeps its earlier `Log.log_start_offset`.  A read of the removed records fails
          with `LogChangedError`, as if they had been removed after the directory was opened.

        A log without a high watermark, or whose files end before its high watermark, is looked at
        in any case: the end of its files is the end of the log.  So a copy without checkpoints
        takes two calls for each partition.  At a URL, everything is requested from the store
        again.

        A time of a file proves nothing until the clock of the file system has moved on.  For about
        a second after a change, each refresh reads names and checkpoints, and compares them.  A
        partition that was removed and made again is recognized by the inode of its directory.  If
        the file system has given it the earlier inode, and its high watermark is the earlier one,
        `log_ends` recognizes it, or a read does by the topic id.

        Raises
        ------
        LogDirectoryError
            If a path is no longer one of a log directory.
        CorruptCheckpointError
            If a commit is unfinished, and its intent or the state cannot be read.
        StorageError
            If a directory cannot be read.
        """
        if self._is_remote:
            return open_log_dir(*self.paths)
        with storage_errors():
            try:
                snapshots = {path: each.refresh() for path, each in self._snapshots.items()}
                is_same = all(snapshots[path] is each for path, each in self._snapshots.items())
                may_differ = self._names_one or not is_same
                if may_differ and self._resolved != [*map(_resolve, self.paths)]:
                    return LogDirectory(self.paths)
            except (OSError, LogDirectoryError):
                return LogDirectory(self.paths)  # or its error
            moved = self._moved(log_ends=log_ends)
            if is_same and not moved:
                return self
            with without_collector():
                newer = LogDirectory(self.paths, self, snapshots)
                newer._keep(self, moved)
            return newer

    def _moved(self, *, log_ends: bool) -> set[TopicPartition]:
        """Logs whose files are not as they were listed, among those that have to be looked at."""
        if log_ends:
            logs = [*self._logs.items()]
            return {each for each, log in logs if not log.is_as_listed()}
        uncertain = set()
        # Other threads add to it, and look at it, too.  A set that had 10,000 entries takes 70 µs
        # to say that it has none left.
        for each in [*self._listed] if self._listed else ():
            if not self._is_uncertain(each):
                self._listed.discard(each)
                if not self._is_uncertain(each):
                    continue
                self._listed.add(each)  # it was listed again meanwhile
            uncertain.add(each)
        return {each for each in uncertain if not self._logs[each].is_as_listed()}

    def _is_uncertain(self, topic_partition: TopicPartition) -> bool:
        """Whether a log may change without a trace at the top: in a commit, or by its files."""
        parent, _ = self._places[topic_partition]
        return (
            topic_partition in self._snapshots[parent].unfinished
            or not self._logs[topic_partition].ends_at_its_high_watermark
        )

    def _keep(self, before: "LogDirectory", moved: Collection[TopicPartition]) -> None:
        """Take over the logs of an earlier moment, but for those that have changed since."""
        gone = {*moved, *self._copies}
        if self._places is not before._places:
            was, now = before._places, self._places
            gone |= {each for each in before._logs if was[each] != now.get(each)}
        for path, earlier in before._snapshots.items():
            moved_in = self._snapshots[path].moved_since(earlier)
            if moved_in is None:
                moved_in = {each for each in before._logs if before._places[each][0] == path}
            gone |= moved_in
        listed, kept = [*before._listed], before._logs.copy()
        for each in gone:
            kept.pop(each, None)
        # Of ten thousand logs, a poll moves few: no step for each of the others takes a look-up.
        others: dict[TopicPartition, Log | None] = {}
        for each, log in kept.items():
            found = log._in_later(self._snapshots, self._listed)
            if found is not log:
                others[each] = found
        for each, other in others.items():
            kept.pop(each) if other is None else kept.update({each: other})
        self._logs, self.unmoved = kept, frozenset(kept)
        self._listed.update(each for each in listed if each in kept)

    def _unknown(self, topic: str, partition: int) -> SegmentLogError:
        where = ", ".join(map(plain_path, self.paths))
        for left_out, reason in self._left_out.items():
            if left_out.topic == topic and partition in (-1, left_out.partition):
                return UnknownTopicOrPartitionError(topic, partition, where, reason)
        for each in self._missing:
            if each.topic_partition == (topic, partition):
                return UnknownTopicOrPartitionError(topic, partition, where, each.reason)
        topics = self.topics(internal=True)
        if topic in topics:
            if partition < 0:
                return OptionError("partition", str(partition), "give a number from 0")
            hint = f"it has partitions {', '.join(map(str, topics[topic]))}"
            if renamed := self.where_renamed(topic, partition):
                hint += f"; {renamed}"
            return UnknownTopicOrPartitionError(topic, partition, where, hint)
        if renamed := self.where_renamed(topic):
            return UnknownTopicOrPartitionError(topic, -1, where, renamed)
        near = nearest(topic, topics)
        hint = f"did you mean {near!r}?" if near else _held(sorted(self.topics()))
        return UnknownTopicOrPartitionError(topic, -1, where, hint)

    @without_collector()
    def end_offsets(
        self,
        topic_partitions: Iterable[TopicPartition],
        read_up_to: ReadUpTo = ReadUpTo.HIGH_WATERMARK,
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        on_corrupt_batch: OnCorruptBatch = OnCorruptBatch.FAIL,
        *,
        told: Told = None,
        fail_on_data_loss: bool = True,
        to_log_end: str = TO_LOG_END,
    ) -> dict[TopicPartition, int]:
        """`Log.end_offset` of several partitions, and one warning about what lies beyond.

        A crashed broker's high watermarks are up to five seconds old, so whole batches may lie
        after them; ``read_up_to="logEnd"`` reads these batches, too.  Records beyond the last
        stable offset are held back by open transactions.

        Parameters
        ----------
        told : what a reader that follows the logs was told at earlier calls: only what has
            changed is a warning.  It will read the records beyond the high watermark, and those of
            a transaction unless this stays open from call to call.
        to_log_end : the option that reads to the log end, in the caller's words.
        """
        read_up_to = one_of("read_up_to", read_up_to, ReadUpTo)
        isolation_level = one_of("isolation_level", isolation_level, IsolationLevel)
        on_corrupt_batch = one_of("on_corrupt_batch", on_corrupt_batch, OnCorruptBatch)
        chosen = list(topic_partitions)
        if any(map(is_url, self.paths)):
            side_by_side(lambda each: self.log(*each).log_end_offset, chosen)
        ends: dict[TopicPartition, int] = {}
        short: dict[TopicPartition, str] = {}
        not_read = {where: dict[TopicPartition, str]() for where in _NOT_READ}
        for topic_partition in chosen:
            log = self.log(*topic_partition)
            end = log.end_offset(read_up_to, fail_on_data_loss=fail_on_data_loss, warns=False)
            reasons = (log.short_of_high_watermark(read_up_to), log_start_beyond(log))
            short[topic_partition] = "; ".join(filter(None, reasons))
            reads_all = read_up_to == ReadUpTo.LOG_END
            gone = None if fail_on_data_loss and not reads_all else log.lost_offsets
            if gone and not (reads_all and short[topic_partition]):
                not_read[_LOST][topic_partition] = f"[{gone.start_offset}, {gone.end_offset})"
            if not is_url(log.path):
                not_read[_BETWEEN][topic_partition] = ", ".join(
                    f"[{each.start_offset}, {each.end_offset})" for each in log.lost_segments
                )
            if end < log.log_end_offset and told is None:
                not_read[_BEYOND][topic_partition] = f"{log.log_end_offset - end} from {end}"
            ends[topic_partition] = end
            if isolation_level == IsolationLevel.READ_COMMITTED:
                ends[topic_partition] = stable = log.last_stable_offset(
                    read_up_to, on_corrupt_batch, fail_on_data_loss=fail_on_data_loss
                )
                if stable < end and _stays(told, topic_partition, stable):
                    held = f"{end - stable} " if told is None else ""
                    not_read[_UNDECIDED][topic_partition] = f"{held}from {stable}"

        for where, offsets in not_read.items():
            if found := [f"{each}: {offsets[each]}" for each in news(where, offsets, told)]:
                more = len(found) - MOST_NAMED
                logger.warning(
                    "%s: offsets %s are not read (%s%s)%s",
                    ", ".join(self.paths),
                    where,
                    ", ".join(found[:MOST_NAMED]),
                    f", and {more} more partitions" if more > 0 else "",
                    _NOT_READ[where].format(to_log_end),
                )
        for each in news("short", short, told):
            logger.warning("%s: %s", self.log(*each).path, short[each])
        return ends

    @property
    def whole(self) -> "LogDirectory":
        """The log directories of the paths that name partitions or files of them."""
        parents = dict.fromkeys(_resolve(path)[0] for path in self.paths)
        return self if [*parents] == [*self.paths] else LogDirectory([*parents])

    @property
    def unfinished_commits(self) -> list[str]:
        """Paths of the present guards, of running or of crashed writers.

        No broker starts on a directory with a guard.
        """
        parents = dict.fromkeys(_resolve(path)[0] for path in self.paths)
        return [guard.path for parent in parents for guard in list_guards(parent)]

    @property
    def cluster_id(self) -> str | None:
        """Cluster id from ``meta.properties``, or None."""
        return self._meta("cluster.id")

    @property
    def node_id(self) -> int | None:
        """Node id (in old directories: broker id) from ``meta.properties``, or None."""
        number = self._meta("node.id") or self._meta("broker.id")
        return int(number) if number and number.isdecimal() else None

    def meta_properties(self) -> list[Mapping[str, str]]:
        """The ``meta.properties`` of the log directory of each path; empty without the file."""
        return [read_meta_properties(parent) for parent, _ in map(_resolve, self.paths)]

    def _meta(self, key: str) -> str | None:
        return next((each[key] for each in self.meta_properties() if key in each), None)


def _stays(told: Told, topic_partition: TopicPartition, stable: int) -> bool:
    """Whether a transaction is open that was open at the last call; always without one."""
    if told is None:
        return True
    key = "last stable offset", topic_partition
    was, told[key] = told.get(key), str(stable)
    return was == str(stable)


def _held_twice(topic_partition: TopicPartition, first: str, path: str) -> LogDirectoryError:
    reason = (
        f"holds partition {topic_partition}, and so does {first}; a partition has one log: leave "
        "out one of the two directories"
    )
    return LogDirectoryError(path, reason)


def _held(topics: list[str]) -> str:
    more = f" and {len(topics) - 5} more" if len(topics) > 5 else ""
    return f"its topics are {', '.join(topics[:5])}{more}" if topics else "it holds no topics"


def _partitions_in(snapshot: DirectorySnapshot) -> Mapping[TopicPartition, str]:
    """Paths of the partitions in use in a log directory."""
    path = snapshot.path
    is_known = snapshot.partitions or snapshot.renamed() or _is_log_directory(path)
    if not is_known:
        refuse_other_systems(path)
        named = []  # brokers often keep their logs one level down
        if not is_url(path):
            for name in sorted(entry.name for entry in list_entries(path))[:_MOST_NAMES]:
                with contextlib.suppress(OSError):  # lost+found is root's
                    if _is_log_directory(os.path.join(path, name)):
                        named.append(name)
        also = f"; in it, these are log directories: {', '.join(named)}" if named else ""
        reason = (
            "holds neither a directory named <topic>-<partition> nor a broker's files; "
            f"name a directory of Kafka's log.dirs, a partition directory or a .log file{also}"
        )
        raise LogDirectoryError(path, reason)
    for link in snapshot.links:
        logger.warning("%s is a symbolic link and is left out", link)
    return snapshot.partitions


def _is_log_directory(path: str) -> bool:
    return any(exists(f"{path}/{name}") for name in OF_LOG_DIRECTORIES)


def _resolve(path: str) -> tuple[str, TopicPartition | None]:
    """Log directory of `path`, and its one requested partition, or None for all."""
    # A directory is a partition's if its name has the form of one and it holds a ``.log`` file.
    if not exists(path):
        raise LogDirectoryError(path, why_not_there(path))
    if is_file(path):
        refuse_other_systems(path)
        if ".log" not in os.path.basename(path):
            raise LogDirectoryError(path, "is a file, but not a .log file of a partition")
        directory = os.path.dirname(path)
        named = parse_partition_directory(os.path.basename(directory))
        lone = TopicPartition(os.path.basename(directory), 0)
        return os.path.dirname(directory), named[0] if named else lone
    parsed = parse_partition_directory(os.path.basename(path))
    if parsed is not None:
        try:
            if any(is_file(os.path.join(path, name)) for name in logs_in(path)):
                return os.path.dirname(path), parsed[0]
        except OSError as error:
            raise LogDirectoryError(path, f"cannot be listed: {error.strerror}") from error
    return path, None


class OpenOptions(TierOptions, total=False):
    """Those of `segmentlog.open_log_dir`.

    Parameters
    ----------
    fail_on_data_loss : whether offsets that are missing between two segments of the tier are an
        error, or are left out with a warning.
    """

    fail_on_data_loss: Annotated[bool, Declared(default=True)]


@takes(OpenOptions)
@storage_errors()
@without_collector()
def open_log_dir(
    *path: str | os.PathLike[str],
    **options: Unpack[OpenOptions],
) -> LogDirectory:
    """Open one or several of a broker's log directories for reading.

    Parameters
    ----------
    path : each a log directory, one partition directory (``…/orders-0``), or one ``.log`` file;
        relative paths, ``~`` and URLs (``file:``, ``s3:`` and others) are accepted.
    **options : those of `OpenOptions`.

    Raises
    ------
    LogDirectoryError
        If a path is none of these, or is given twice.  `LogDirectory.log` refuses a partition that
        two of them hold.
    OptionError
        If there is no path and no tier, or an option of the tier is not accepted.
    RemoteSegmentError
        If an object of the tier is missing or damaged; when its partition is listed.
    CorruptCheckpointError
        If a commit is unfinished, and its intent or the state cannot be read.
    StorageError
        If a directory cannot be read.
    """
    given = tiered_paths(
        path,
        options["remote_storage"],
        options["remote_storage_layout"],
        options["remote_storage_key_file"],
        fail_on_data_loss=options["fail_on_data_loss"],
    )
    paths = [opened_path(each) for each in given]
    for each in paths:
        survey(each)
    return LogDirectory(paths)


def open_without_listing(path: str) -> LogDirectory:
    """Open a log directory of which few logs are wanted, or none.

    `open_log_dir` also lists each log whose end only its files show; here, a log is listed when it
    is asked for.  So what is done partition by partition does not list all of them each time.
    """
    path = opened_path(path)
    survey(path)
    parent, _ = _resolve(path)
    snapshot = DirectorySnapshot(parent, lists_unbounded=False)
    return LogDirectory([path], snapshots={parent: snapshot})
