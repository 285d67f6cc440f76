"""A broker's log directories: their topic-partitions and checkpoints."""

import contextlib
import difflib
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from segmentlog.arguments import instance_of, whole_number
from segmentlog.commit.guard import list_guards
from segmentlog.commit.state import STATE_FILE
from segmentlog.disk.contract import FileType
from segmentlog.disk.paths import readable_path, why_not_there
from segmentlog.disk.readable import exists, is_file, list_names, survey
from segmentlog.disk.remote.location import is_url
from segmentlog.disk.remote.requests import side_by_side
from segmentlog.disk.system_errors import storage_errors
from segmentlog.errors import (
    CorruptCheckpointError,
    LogDirectoryError,
    UnknownTopicOrPartitionError,
)
from segmentlog.layout.checkpoint import read_offsets
from segmentlog.layout.metadata import read_meta_properties
from segmentlog.layout.partitions import NamedPartition, list_partitions
from segmentlog.logs.log import Log
from segmentlog.logs.summary import html_table
from segmentlog.model import (
    INTERNAL_TOPICS,
    IsolationLevel,
    OnCorruptBatch,
    ReadUpTo,
    TopicPartition,
)
from segmentlog.names import (
    CLEAN_SHUTDOWN_FILE,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    META_PROPERTIES_FILE,
    RECOVERY_POINT_CHECKPOINT,
    parse_partition_directory,
    partition_path,
)
from segmentlog.reads.collector import without_collector
from segmentlog.reads.moment import Census

__all__ = ["LogDirectory", "MissingPartition", "open_log_dir", "report_missing"]

logger = logging.getLogger(__name__)

_MOST_SHOWN = 20  # partitions, in a notebook
_MOST_NAMED = 5  # partitions that a warning lists before it says "and … more"


class MissingPartition(NamedTuple):
    """A partition that had records by a checkpoint, and whose directory is gone.

    Attributes
    ----------
    topic_partition : its topic and number.
    high_watermark : its entry in the checkpoint; above 0.
    checkpoint : path of the ``replication-offset-checkpoint`` that names it.
    """

    topic_partition: TopicPartition
    high_watermark: int
    checkpoint: str

    @property
    def reason(self) -> str:
        """The promise that is broken, for messages."""
        promised = f"its high watermark is {self.high_watermark} in {self.checkpoint}"
        return f"{promised}, and its log is gone"


def report_missing(
    missing: Sequence[MissingPartition], option: str, *, fail_on_data_loss: bool
) -> None:
    """Refuse a read of topics that lack partitions, or log what it leaves out.

    Parameters
    ----------
    missing : the partitions of the topics that are read.
    option : how the caller asks for the rest, such as ``failOnDataLoss=false``.
    fail_on_data_loss : whether they are an error.

    Raises
    ------
    UnknownTopicOrPartitionError
        If there are any, and this is an error.
    """
    if not missing:
        return
    first, more = missing[0], len(missing) - 1
    if fail_on_data_loss:
        also = f" (and {more} more partitions)" if more else ""
        hint = (
            f"{first.reason}{also}: put it back, or read the directory that it was moved to as "
            f"well; {option} reads the other partitions"
        )
        directory = os.path.dirname(first.checkpoint)
        raise UnknownTopicOrPartitionError(*first.topic_partition, directory, hint)
    for each in missing[:_MOST_NAMED]:
        logger.warning(
            "%s is left out, because of %s: %s", each.topic_partition, option, each.reason
        )
    if more >= _MOST_NAMED:
        logger.warning("%d more partitions are left out", len(missing) - _MOST_NAMED)


class _Directory:
    """One log directory, as it was at the moment when it was opened."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.census = Census(path, self._list)

    def partitions(self) -> Mapping[TopicPartition, str]:
        """Paths of the partition directories that are in use.

        Raises
        ------
        LogDirectoryError
            If the path is not a log directory.
        """
        found = self.census.partitions
        if not found and not self._is_broker_directory():
            reason = (
                "holds neither a directory named <topic>-<partition> nor a broker's files; "
                "name a directory of Kafka's log.dirs, a partition directory or a .log file"
            )
            raise LogDirectoryError(self.path, reason)
        for path in self._links:
            logger.warning("%s is a symbolic link and is left out", path)
        return found

    def missing(self) -> dict[TopicPartition, int]:
        """High watermarks of partitions that are promised, and not there under any name.

        A high watermark of 0 promises nothing: a writer sets it before it makes the partition.  A
        broker leaves the high watermarks of a directory as they are when its last partition goes
        (``ReplicaManager.checkpointHighWatermarks``), but writes recovery points at each deletion
        and each move (``LogManager.asyncDelete``).  So a broker promises the partitions that both
        checkpoints name.
        """
        moment = self.census.opened
        ends = moment.high_watermarks
        if isinstance(ends, CorruptCheckpointError):
            return {}  # a read that needs them reports that
        named = {each.topic_partition for each in self._named}
        absent = {each: end for each, end in ends.items() if end > 0 and each not in named}
        if absent and exists(os.path.join(self.path, META_PROPERTIES_FILE)):
            with contextlib.suppress(CorruptCheckpointError):
                points = read_offsets(self.path, RECOVERY_POINT_CHECKPOINT)
                absent = {each: end for each, end in absent.items() if each in points}
        return {
            each: end
            for each, end in absent.items()
            if each.topic not in moment.gone
            and not any(one.is_deleted_of(each) for one in self._named)
            and not exists(partition_path(self.path, each))  # a broker may have just made it
        }

    def _list(self) -> dict[TopicPartition, str]:
        found, self._links = {}, []
        self._named: Sequence[NamedPartition] = list_partitions(self.path)
        for each in self._named:
            if not each.is_current:
                continue
            if each.type is FileType.LINK:
                self._links.append(each.path)
            elif each.type is FileType.DIRECTORY and not each.is_metadata:
                found[each.topic_partition] = each.path
        return found

    def _is_broker_directory(self) -> bool:
        names = (
            META_PROPERTIES_FILE, HIGH_WATERMARK_CHECKPOINT, LOG_START_CHECKPOINT,
            CLEAN_SHUTDOWN_FILE, STATE_FILE,
        )  # fmt: skip
        return any(exists(os.path.join(self.path, name)) for name in names)


class LogDirectory:
    """One or several log directories, read as they are: no lock is taken, nothing is written.

    `open_log_dir` makes it.  Its listings do not change; open the path again to see more.

    Parameters
    ----------
    paths : absolute paths of log directories, partition directories or ``.log`` files.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self.paths = tuple(paths)
        self._places: dict[TopicPartition, tuple[_Directory, str]] = {}
        self._doubled: dict[TopicPartition, tuple[str, str]] = {}
        self._logs: dict[TopicPartition, Log] = {}
        directories: dict[str, _Directory] = {}
        self._whole: list[_Directory] = []
        for path in self.paths:
            parent, only = _resolve(path)
            if parent not in directories:
                directories[parent] = _Directory(parent)
            directory = directories[parent]
            if not only:
                self._whole.append(directory)
            found = {only: path} if only else directory.partitions()
            for topic_partition, place in found.items():
                self._add(topic_partition, directory, place)

    def __repr__(self) -> str:
        return self._counted(self._places)

    def _counted(self, partitions: Collection[TopicPartition]) -> str:
        counted = (
            f"topics={len({each.topic for each in partitions})}, partitions={len(partitions)}"
        )
        if n_missing := len(self.missing_partitions()):
            counted += f", missing={n_missing}"
        return f"LogDirectory({', '.join(map(repr, self.paths))}, {counted})"

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
            if each.topic not in INTERNAL_TOPICS and each not in self._doubled
        ]
        try:
            logs = [self.log(*each) for each in shown[:_MOST_SHOWN]]
        except CorruptCheckpointError as error:
            return html_table(f"{self!r}: {error}", [], len(shown))
        title = self._counted(shown)
        if n_hidden := len(self._places) - len(shown):
            title += f"; not shown: {n_hidden:,} of brokers' topics, or held twice"
        return html_table(title, logs, len(shown) - len(logs))

    def _add(self, topic_partition: TopicPartition, directory: _Directory, path: str) -> None:
        known = self._places.get(topic_partition)
        if known is not None:
            reason = (
                f"holds partition {topic_partition}, and so does {known[1]}; "
                "a partition has one log: leave one of the two out"
            )
            if os.path.realpath(path) == os.path.realpath(known[1]):
                raise LogDirectoryError(path, reason)  # the same directory is named twice
            # Directories of two brokers may both hold `__consumer_offsets-0`.  A read of other
            # topics is not concerned.
            self._doubled[topic_partition] = (path, reason)
        else:
            self._places[topic_partition] = (directory, path)

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
            if (each.topic_partition.topic not in INTERNAL_TOPICS if topics is None
                else each.topic_partition.topic in topics)
        ]  # fmt: skip

    @cached_property
    def _missing(self) -> list[MissingPartition]:
        return sorted(
            MissingPartition(each, end, os.path.join(directory.path, HIGH_WATERMARK_CHECKPOINT))
            for directory in self._whole
            for each, end in directory.missing().items()
            if each not in self._places
        )

    def log(self, topic: str, partition: int) -> Log:
        """The log of one topic-partition; the same object each time.

        Raises
        ------
        UnknownTopicOrPartitionError
            If the directories do not hold it.
        LogDirectoryError
            If two of them hold it: nothing shows which of the two is the log.
        CorruptCheckpointError
            If a checkpoint beside it cannot be read.
        """
        instance_of("topic", topic, str, "give the name of a topic")
        topic_partition = TopicPartition(topic, whole_number("partition", partition, -1))
        if topic_partition not in self._logs:
            if topic_partition not in self._places:
                raise self._unknown(topic, partition)
            if topic_partition in self._doubled:
                raise LogDirectoryError(*self._doubled[topic_partition])
            directory, path = self._places[topic_partition]
            moment = directory.census.opened
            start, end = moment.bounds(topic_partition)
            promised = moment.high_watermarks
            self._logs[topic_partition] = Log(
                topic_partition,
                path,
                log_start_checkpoint=start,
                high_watermark_checkpoint=(
                    promised if isinstance(promised, CorruptCheckpointError) else end
                ),
                list_files=directory.census.list_partition,
                is_file=None if path in self.paths else False,
            )
        return self._logs[topic_partition]

    def _unknown(self, topic: str, partition: int) -> UnknownTopicOrPartitionError:
        for each in self._missing:
            if each.topic_partition == (topic, partition):
                where = ", ".join(self.paths)
                return UnknownTopicOrPartitionError(topic, partition, where, each.reason)
        topics = self.topics(internal=True)
        if topic in topics:
            hint = f"it has partitions {', '.join(map(str, topics[topic]))}"
            return UnknownTopicOrPartitionError(topic, partition, ", ".join(self.paths), hint)
        near = difflib.get_close_matches(topic, topics, n=1)
        hint = f"did you mean {near[0]!r}?" if near else _held(sorted(self.topics()))
        return UnknownTopicOrPartitionError(topic, -1, ", ".join(self.paths), hint)

    @without_collector()
    def end_offsets(
        self,
        topic_partitions: Iterable[TopicPartition],
        read_up_to: ReadUpTo = ReadUpTo.HIGH_WATERMARK,
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        on_corrupt_batch: OnCorruptBatch = OnCorruptBatch.FAIL,
        *,
        warns: bool = True,
    ) -> dict[TopicPartition, int]:
        """`Log.end_offset` of several partitions, and one warning about what lies beyond.

        A crashed broker's high watermarks are up to five seconds old, so whole batches may lie
        after them; ``readUpTo=logEnd`` reads these batches, too.  Records beyond the last stable
        offset are held back by open transactions.

        Parameters
        ----------
        warns : whether there is a warning; a reader that follows the log will read these records.
        """
        topic_partitions = list(topic_partitions)
        if any(map(is_url, self.paths)):
            side_by_side(lambda each: self.log(*each).log_end_offset, topic_partitions)
        ends: dict[TopicPartition, int] = {}
        beyond, undecided = [], []
        for topic_partition in topic_partitions:
            log = self.log(*topic_partition)
            end = log.end_offset(read_up_to)
            if end < log.log_end_offset:
                beyond.append(f"{topic_partition}: {log.log_end_offset - end} from {end}")
            ends[topic_partition] = end
            if isolation_level == IsolationLevel.READ_COMMITTED:
                ends[topic_partition] = stable = log.last_stable_offset(
                    read_up_to, on_corrupt_batch
                )
                if stable < end:
                    undecided.append(f"{topic_partition}: {end - stable} from {stable}")
        if warns:
            self._warn("beyond the high watermark", beyond, "; readUpTo=logEnd reads them")
            self._warn("after the first open transaction", undecided, ": it was neither committed "
                       "nor aborted")  # fmt: skip
        return ends

    def _warn(self, where: str, found: Sequence[str], remedy: str) -> None:
        """Say once which offsets of which partitions are not read."""
        if found:
            more = len(found) - _MOST_NAMED
            logger.warning(
                "%s: offsets %s are not read (%s%s)%s",
                ", ".join(self.paths),
                where,
                ", ".join(found[:_MOST_NAMED]),
                f", and {more} more partitions" if more > 0 else "",
                remedy,
            )

    @property
    def unfinished_commits(self) -> list[str]:
        """Paths of the guards that stand now, of running or of crashed writers.

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

    def _meta(self, key: str) -> str | None:
        for path in self.paths:
            value = read_meta_properties(_resolve(path)[0]).get(key)
            if value is not None:
                return value
        return None


def _held(topics: list[str]) -> str:
    more = f" and {len(topics) - 5} more" if len(topics) > 5 else ""
    return f"its topics are {', '.join(topics[:5])}{more}" if topics else "it holds no topics"


def _resolve(path: str) -> tuple[str, TopicPartition | None]:
    """Log directory of `path`, and its one requested partition, or None for all.

    A directory is a partition's if its name has the form of one and it holds a ``.log`` file.
    """
    if not exists(path):
        raise LogDirectoryError(path, why_not_there(path))
    if is_file(path):
        if ".log" not in os.path.basename(path):
            raise LogDirectoryError(path, "is a file, but not a .log file of a partition")
        directory = os.path.dirname(path)
        named = parse_partition_directory(os.path.basename(directory))
        lone = TopicPartition(os.path.basename(directory), 0)
        return os.path.dirname(directory), named[0] if named else lone
    parsed = parse_partition_directory(os.path.basename(path))
    if parsed is not None and _holds_log_file(path):
        return os.path.dirname(path), parsed[0]
    return path, None


def _holds_log_file(path: str) -> bool:
    try:
        logs = [name for name in list_names(path) if name.endswith(".log")]
        return any(is_file(os.path.join(path, name)) for name in logs)
    except OSError as error:
        raise LogDirectoryError(path, f"cannot be listed: {error.strerror}") from error


@storage_errors()
@without_collector()
def open_log_dir(path: str | os.PathLike[str], *more: str | os.PathLike[str]) -> LogDirectory:
    """Open one or several of a broker's log directories for reading.

    Parameters
    ----------
    path, more : each a log directory, one partition directory (``…/orders-0``), or one ``.log``
        file; relative paths, ``~`` and URLs (``file:``, ``s3:`` and others) are accepted.

    Raises
    ------
    LogDirectoryError
        If a path is none of these, or is given twice.  `LogDirectory.log` refuses a partition that
        two of them hold.
    StorageError
        If a directory cannot be read.
    """
    paths = [readable_path(each) for each in (path, *more)]
    for each in paths:
        survey(each)
    return LogDirectory(paths)
