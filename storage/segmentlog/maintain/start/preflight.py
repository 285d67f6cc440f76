"""The start of a broker, decided from its disks before it happens.

First come the checks of whole directories (`segmentlog.maintain.start.directories`), then the
loading of each log (`LogStart`), and then the first minute, in which retention acts.

Rules: ``LogLoader``, ``UnifiedLog``, ``ProducerStateManager``; they were compared with brokers
(``tests/interop/test_broker_start.py``).
"""

import contextlib
import itertools
import os
import struct
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from segmentlog.arguments import one_dialect, topic_names
from segmentlog.cluster.directory_settings import DirectorySettings
from segmentlog.errors import (
    CorruptCheckpointError,
    CorruptIndexError,
    CorruptLogError,
    LogDirectoryError,
    OptionError,
    SegmentLogError,
    UnsupportedFormatError,
)
from segmentlog.format.kernels import layout
from segmentlog.format.names import (
    CLEAN_SHUTDOWN_FILE,
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    DirectoryState,
    FileKind,
    FileState,
    parse_segment_file,
)
from segmentlog.format.records.header import parse_header
from segmentlog.log.checkpoint import read_leader_epochs, read_offsets, read_properties
from segmentlog.log.damage import is_good_batch
from segmentlog.log.indexes import read_transaction_index
from segmentlog.log.listing import list_segments
from segmentlog.log.producer_snapshot import list_snapshots, read_snapshot, snapshot_path
from segmentlog.log.segment import LogEnd, Segment, find_log_end
from segmentlog.maintain.retain import plan_retention
from segmentlog.maintain.start.directories import BrokerStart
from segmentlog.maintain.start.steps import StartAction, StartStep, epochs_step, is_of_a_broker
from segmentlog.model import LEAST_LONG, METADATA_TOPIC, TopicPartition
from segmentlog.reads.log_directory import open_log_dir
from segmentlog.store.partitions import NamedPartition, list_partitions
from segmentlog.store.paths import local_path, why_not_there
from segmentlog.store.readable import exists, is_directory, list_names, open_file, read_whole
from segmentlog.store.system_errors import in_words, storage_errors

_LEAST_LENGTH = 14  #: of a message of magic 0, after its offset and length; less is damage
_LOG_OVERHEAD = 12  #: bytes of an offset and a length
_PEEKED = 17  #: bytes that have to be there before a broker looks at a length
_HEAD = struct.Struct(">qi")
_WINDOW_BYTES = 1 << 20
_MOST_LOOKED_AT = 1000  #: batches of a segment
_NUMBERED = tuple(f".{kind}" for kind in FileKind)


class LogStart:
    """The loading of one log; `log_start` and `recovery_point` are 0 without an entry.

    `is_clean` says whether the log directory has the mark of a clean stop.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        path: str,
        log_start: int,
        recovery_point: int,
        *,
        is_clean: bool,
    ) -> None:
        self._where = topic_partition
        self._path = path
        self.log_start, self.recovery_point = log_start, recovery_point
        self._is_clean = is_clean
        self._segments = [Segment(each, is_sealed=False) for each in list_segments(path)]

    @property
    def has_segments(self) -> bool:
        """Whether there is a ``.log`` file."""
        return bool(self._segments)

    @property
    def paths(self) -> list[str]:
        """The ``.log`` files."""
        return [each.path for each in self._segments]

    @property
    def bytes_to_recover(self) -> int:
        """Bytes of the segments that the broker reads, from the recovery point on."""
        if self._is_clean:
            return 0
        return sum(each.size for each in self._segments[self._first_read :])

    @property
    def _first_read(self) -> int:
        """Number of the first segment that is read after an unclean stop."""
        below = [each for each in self._segments if each.base_offset <= self.recovery_point]
        return max(len(below) - 1, 0)

    def steps(self) -> Iterator[StartStep]:
        """All that goes wrong, and all that is lost; a cut of an unclean log is not among it.

        `segmentlog.maintain.recover_directory.plan_log` finds that cut.
        """
        yield from self._names()
        yield from epochs_step(*self._where, self._path)
        yield from self._indexes()
        if self._segments:
            end = find_log_end(self._segments[-1], warns=False)
            yield from self._zeroed_times(end.offset)
            yield from self._splits(end.offset)
            yield from self._end(end)
        yield from self._what_is_forgotten()

    def _step(
        self,
        action: StartAction,
        path: str,
        reason: str,
        loss: str = "",
        remedy: str = "",
        **numbers: int,
    ) -> StartStep:
        topic, partition = self._where
        return StartStep(action, topic, partition, path, reason, loss, remedy, **numbers)

    def _names(self) -> Iterator[StartStep]:
        """Files whose names begin with no offset: a broker cannot read their numbers."""
        for name in sorted(list_names(self._path)):
            if name.endswith(_NUMBERED) and parse_segment_file(name) is None:
                head = name.partition(".")[0]
                if head.isascii() and head.isdecimal() and int(head) < 1 << 63:
                    continue
                yield self._step(
                    StartAction.REFUSE, os.path.join(self._path, name),
                    "the name begins with no offset", "", "move the file out of the directory",
                )  # fmt: skip

    def _indexes(self) -> Iterator[StartStep]:
        for each in self._segments:
            path = each.transaction_index_path
            try:
                for _ in read_transaction_index(path):
                    pass
            except CorruptIndexError as error:
                if "version" in error.reason and _first_version(path) > 0:
                    yield self._step(
                        StartAction.REFUSE, path, error.reason, "",
                        "segmentlog reindex builds the file again from the log",
                        offset=each.base_offset,
                    )  # fmt: skip
            if not each.size:
                continue
            if not exists(each.offset_index_path):
                yield self._step(
                    StartAction.REBUILD, each.offset_index_path,
                    f"the index is missing: a starting broker reads all {each.size} bytes of the "
                    "segment to build it again",
                    n_bytes=each.size, offset=each.base_offset,
                )  # fmt: skip
            elif not exists(each.time_index_path) and self._is_clean:
                yield self._step(
                    StartAction.DROP, each.time_index_path,
                    "the index of times is missing: a starting broker makes an empty one",
                    "look-ups by time begin at the segment, and retention uses the time of the "
                    "file",
                    "segmentlog recover builds it from the log", offset=each.base_offset,
                )  # fmt: skip

    def _zeroed_times(self, log_end: int) -> Iterator[StartStep]:
        """Indexes of times that end in zeros, and are not built again.

        A broker takes the last entry for the newest time (``LogSegment.largestTimestamp``).
        """
        trusted = self._segments[: None if self._is_clean else self._first_read]
        ends = [*(each.base_offset for each in self._segments[1:]), log_end]
        for each, end in zip(trusted, ends, strict=False):
            if not (each.has_zeroed_times() and exists(each.offset_index_path)):
                continue
            yield self._step(
                StartAction.TRUNCATE, each.time_index_path,
                "the index of times ends in zeros: a broker takes the newest record for one of "
                "1970, and retention deletes the segment half a minute after the start, unless "
                "retention.ms is -1",
                f"offsets [{each.base_offset}, {end}), {each.size} bytes",
                "segmentlog recover builds the index again from the log",
                offset=each.base_offset, end_offset=end, n_bytes=each.size,
            )  # fmt: skip

    def _splits(self, log_end: int) -> Iterator[StartStep]:
        """Segments whose indexes are built again, and cannot hold their offsets."""
        first = len(self._segments) if self._is_clean else self._first_read
        follows = [*(each.base_offset for each in self._segments[1:]), log_end]
        for i, (each, after) in enumerate(zip(self._segments, follows, strict=True)):
            is_read = i >= first or not exists(each.offset_index_path)
            if not is_read or after - each.base_offset <= layout.SEGMENT_OFFSETS:
                continue
            from segmentlog.txn.recover_log import find_good_end  # the compiled kernels load

            end = find_good_end(each, after)
            if bases := [base_offset for _, base_offset in end.splits]:
                yield self._step(
                    StartAction.SPLIT, each.path,
                    "the offsets lie too far from the base offset for an index: a starting broker "
                    f"divides the segment at the offsets {', '.join(map(str, bases))}",
                    "", "segmentlog recover does the same", offset=each.base_offset,
                    n_bytes=each.size,
                )  # fmt: skip
            if end.position < each.size and i >= first:
                return  # the log ends here

    def below_base(self, damaged: Collection[str]) -> Iterator[StartStep]:
        """The first batch below the base offset of its segment, in a segment that is read.

        A broker takes it for one whose offset no index can hold, and finds nothing to split.
        `damaged`: paths of the segments that may have one: no batch of a sound segment lies below.
        """
        from segmentlog.txn.recover_log import find_good_end  # the compiled kernels load here

        first = len(self._segments) if self._is_clean else self._first_read
        for i, each in enumerate(self._segments):
            if each.path not in damaged or (i < first and exists(each.offset_index_path)):
                continue
            try:
                position = find_good_end(each).position
            except UnsupportedFormatError:
                return
            with open_file(each.path) as file:
                while position < each.size:
                    # A broker follows neither the order of the offsets nor their gaps.
                    head = file.read(position, min(layout.HEADER_BYTES, each.size - position))
                    header = parse_header(head.ljust(layout.HEADER_BYTES, b"\0"))
                    size = min(max(header.size_in_bytes, 0), each.size - position)
                    if not is_good_batch(file.read(position, size), 0, LEAST_LONG):
                        if i >= first:
                            return  # the log ends here
                        break
                    if header.last_offset < each.base_offset:
                        yield self._step(
                            StartAction.REFUSE, each.path,
                            f"the batch at byte {position} has offset {header.last_offset}, below "
                            f"the base offset {each.base_offset} of its segment, and the start "
                            "reads this segment",
                            "", "segmentlog recover cuts the log off before the batch"
                            if i >= first
                            else "remove .kafka_cleanshutdown, and run segmentlog recover",
                            offset=header.last_offset,
                        )  # fmt: skip
                        return
                    position += header.size_in_bytes

    def _end(self, end: LogEnd) -> Iterator[StartStep]:
        """The end of the log, as a broker finds it, and the log start."""
        active = self._segments[-1]
        log_end = end.offset
        if self._is_clean:
            position, offset, is_damaged = _end_by_lengths(active)
            if is_damaged:
                yield self._step(
                    StartAction.REFUSE, active.path,
                    f"the length of a batch at byte {position} is below {_LEAST_LENGTH}, and the "
                    "directory is marked as cleanly stopped, so that nothing is recovered",
                    "", "remove .kafka_cleanshutdown, and run segmentlog recover",
                    offset=end.offset,
                )  # fmt: skip
            elif offset < end.offset:
                yield self._step(
                    StartAction.TRUNCATE, active.path,
                    f"a starting broker takes offset {offset} for the end of the log, because the "
                    "directory is marked as cleanly stopped and the end is found by the last "
                    "entry of the index",
                    f"offsets [{offset}, {end.offset}) are not served, and new records get the "
                    "same offsets",
                    "remove .kafka_cleanshutdown, and run segmentlog recover",
                    offset=offset, end_offset=end.offset,
                )  # fmt: skip
                log_end = offset
            elif (left := active.size - end.position) and end.damaged_from is None:
                yield self._step(
                    StartAction.KEEP, active.path,
                    f"a starting broker leaves {left} bytes after the last batch in place, "
                    "because the directory is marked as cleanly stopped",
                    "new records follow these bytes, and cannot be read",
                    "remove .kafka_cleanshutdown, and run segmentlog recover",
                    offset=end.offset, n_bytes=left,
                )  # fmt: skip
        if log_end < self.log_start:
            n_bytes = sum(each.size for each in self._segments)
            first = self._segments[0].base_offset
            yield self._step(
                StartAction.EMPTY, self._path,
                f"the log ends at offset {log_end}, but log-start-offset-checkpoint has "
                f"{self.log_start}: the checkpoint is newer than the log, or the end of the log "
                "is gone",
                f"offsets [{first}, {log_end}), {n_bytes} bytes",
                "put the segments back, or remove the partition's line from the checkpoint (and "
                "lower the count in its second line)",
                offset=first, end_offset=log_end, n_bytes=n_bytes,
            )  # fmt: skip

    def _has_producers(self) -> bool:
        """Whether one of the first batches of the last segments is of an idempotent producer."""
        for each in self._segments[-2:]:
            try:
                for placed in itertools.islice(each.headers(0), _MOST_LOOKED_AT):
                    if placed.header.producer_id >= 0:
                        return True
            except (CorruptLogError, UnsupportedFormatError):  # `verify` names the batch
                continue
        return False

    def _what_is_forgotten(self) -> Iterator[StartStep]:
        """Producers and leader epochs that a cleanly stopped log loses: nothing is read again."""
        if not self._is_clean or not any(each.size for each in self._segments):
            return
        offsets = list_snapshots(self._path)
        for offset in offsets:
            path = snapshot_path(self._path, offset)
            try:
                read_snapshot(path)
            except CorruptIndexError as error:
                yield self._step(
                    StartAction.DROP, path,
                    f"a starting broker removes the snapshot and reads the log instead: "
                    f"{error.reason}",
                    offset=offset,
                )  # fmt: skip
        if not offsets and self._has_producers():
            yield self._step(
                StartAction.DROP, self._path,
                "no producer snapshot is there: a starting broker begins with an empty one",
                "the sequences of idempotent producers, and open transactions: a repeated batch "
                "is then taken for a new one",
                "remove .kafka_cleanshutdown: the start then reads the log",
            )  # fmt: skip
        path = os.path.join(self._path, LEADER_EPOCH_CHECKPOINT)
        try:
            epochs = read_leader_epochs(path)
        except ValueError:  # a step has said so
            return
        if not epochs:
            yield self._step(
                StartAction.DROP, path,
                "no leader epoch is there: a cleanly stopped log does not get them back",
                "the offsets at which followers have to cut their copies off",
                "remove .kafka_cleanshutdown and the partition's recovery point: the start then "
                "reads the log",
            )  # fmt: skip


def _first_version(path: str) -> int:
    """The first version above 0 in a transaction index, or 0."""
    data = read_whole(path, lambda reason: CorruptIndexError(path, reason))
    versions = (struct.unpack_from(">h", data, at)[0] for at in range(0, len(data) - 33, 34))
    return next((each for each in versions if each > 0), 0)


def _end_by_lengths(segment: Segment) -> tuple[int, int, bool]:
    """The end that a broker finds after a clean stop: byte, offset, and whether a length is bad.

    It begins at the last entry of the offset index, and believes lengths and offsets.
    """
    with segment.opened() as opened:
        index = opened.offset_index
        position = index.entry(index.n_entries - 1).position if index.n_entries else 0
        offset, window, begin = segment.base_offset, b"", 0
        while 0 <= position < segment.size - _PEEKED:
            at = position - begin
            if at + 61 > len(window):
                window, begin, at = opened.file.read(position, _WINDOW_BYTES), position, 0
            base, length = _HEAD.unpack_from(window, at)
            if length < _LEAST_LENGTH:
                return position, offset, True
            if position > segment.size - _LOG_OVERHEAD - length:
                break
            is_v2 = window[at + 16] >= 2
            last = struct.unpack_from(">i", window, at + 23)[0] if is_v2 else 0
            offset = base + last + 1
            position += _LOG_OVERHEAD + length
    return position, offset, False


class LoadingDirectory:
    """A log directory whose logs a broker loads: the bounds that its checkpoints give them."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_clean = exists(os.path.join(path, CLEAN_SHUTDOWN_FILE))
        self._points = _offsets(path, RECOVERY_POINT_CHECKPOINT)
        self._starts = _offsets(path, LOG_START_CHECKPOINT)
        self.high_watermarks = _offsets(path, HIGH_WATERMARK_CHECKPOINT)

    def log(self, topic_partition: TopicPartition, path: str) -> LogStart:
        """The loading of one of its logs."""
        point, log_start = (each.get(topic_partition, 0) for each in (self._points, self._starts))
        return LogStart(topic_partition, path, log_start, point, is_clean=self.is_clean)

    def partitions(self) -> list[NamedPartition]:
        """The directories of logs that a broker loads, but for the cluster's metadata."""
        return [
            each
            for each in list_partitions(self.path)
            if not each.is_metadata and is_directory(each.path)
        ]


def _offsets(directory: str, name: str) -> Mapping[TopicPartition, int]:
    """The entries of a checkpoint; none if it cannot be read, as for a broker."""
    try:
        return read_offsets(directory, name)
    except (CorruptCheckpointError, OSError):
        return {}


def directory_steps(
    start: BrokerStart, topics: Collection[str] = (), partitions: Collection[int] = ()
) -> Iterator[StartStep]:
    """The actions of a start on whole directories, and the things that earlier stops have left.

    `topics`, `partitions`: whose logs are looked at; all if empty.  The metadata is always looked
    at.
    """

    def is_chosen(step: StartStep) -> bool:
        if not step.topic or step.topic == METADATA_TOPIC:
            return True
        return (not topics or step.topic in topics) and (
            not partitions or step.partition in partitions
        )

    yield from filter(is_chosen, start.steps())
    for path in filter(is_of_a_broker, start.directories):
        loading = LoadingDirectory(path)
        if not loading.is_clean:
            yield _unclean(loading)
        yield from filter(is_chosen, _leftovers(loading))


def _unclean(loading: LoadingDirectory) -> StartStep:
    logs = [
        each
        for each in loading.partitions()
        if each.state in (DirectoryState.CURRENT, DirectoryState.FUTURE)
    ]
    sizes = []
    for each in logs:
        with contextlib.suppress(LogDirectoryError, OSError):  # which is reported with its log
            sizes.append(loading.log(each.topic_partition, each.path).bytes_to_recover)
    return StartStep(
        StartAction.RECOVER, "", -1, loading.path,
        "the directory was not cleanly stopped, or is in use: a starting broker reads "
        f"{sum(sizes)} bytes of {len(logs)} logs from their recovery points on, cuts each log at "
        "its first bad batch, and builds the indexes of these bytes again",
        remedy="segmentlog recover does the same before the start, and keeps what it cuts off",
        n_bytes=sum(sizes),
    )  # fmt: skip


def _leftovers(loading: LoadingDirectory) -> Iterator[StartStep]:
    """Logs and files that are no longer served: who removes them, and when."""
    for each in loading.partitions():
        try:
            size = sum(list_segments(each.path).sizes)
        except (LogDirectoryError, OSError):  # which is reported where the log is loaded
            continue
        if each.state == DirectoryState.DELETE:
            yield StartStep(
                StartAction.DELETE, *each.topic_partition, each.path,
                f"a deleted partition with {size} bytes of log: a broker removes it "
                "file.delete.delay.ms after its start",
                n_bytes=size,
            )  # fmt: skip
        elif each.state == DirectoryState.STRAY:
            yield StartStep(
                StartAction.KEEP, *each.topic_partition, each.path,
                f"a stray partition with {size} bytes of log, which an earlier start has put "
                "aside: no broker serves it or removes it",
                remedy="if its records are still needed, see segmentlog restore",
                n_bytes=size,
            )  # fmt: skip
        else:
            names = list_names(each.path)
            broken = [name for name in names if name.endswith(".broken")]
            if broken:
                yield StartStep(
                    StartAction.KEEP, *each.topic_partition, each.path,
                    f"{len(broken)} .broken files keep bytes that a recovery has cut off; a "
                    "broker leaves them",
                )  # fmt: skip
            deleted = [
                name for name in names
                if (parsed := parse_segment_file(name)) and parsed.state == FileState.DELETED
            ]  # fmt: skip
            if deleted:
                yield StartStep(
                    StartAction.DELETE, *each.topic_partition, each.path,
                    f"{len(deleted)} deleted {'file' if len(deleted) == 1 else 'files'} "
                    "(.deleted): a starting broker removes them",
                )  # fmt: skip


#: Things that no disk of one broker tells, and that a start may do anyway.
_BEYOND_THESE_DISKS = {
    "truncation to the leader": "a follower cuts its log off at the offset at which it differs "
    "from the log of its leader; segmentlog replicas compares the copies of all brokers",
    "elections": "other brokers may elect another leader, with a new leader epoch",
    "newer metadata": "topics that the controllers have created, deleted or moved since this "
    "broker stopped are not in its copy of the metadata",
}

#: The newest ``metadata.version`` that a release of Kafka takes, by release
#: (``MetadataVersion.LATEST_PRODUCTION``): it also knows later ones, and refuses them.
_FEATURE_LEVELS = {
    (3, 3): 7, (3, 4): 8, (3, 5): 11, (3, 6): 14, (3, 7): 19, (3, 8): 20, (3, 9): 21, (4, 0): 25,
    (4, 1): 27, (4, 2): 29, (4, 3): 30, (4, 4): 33,
}  # fmt: skip


@one_dialect()
@storage_errors()
def preflight(
    path: str | os.PathLike[str],
    *more: str | os.PathLike[str],
    topics: str | Collection[str] = (),
    metadata: str | os.PathLike[str] | None = None,
    server_properties: str | os.PathLike[str] | None = None,
    kafka_version: str | None = None,
    on_step: Callable[[StartStep], object] = lambda _: None,
) -> list[StartStep]:
    """Find out what a starting broker would do with its log directories.  Nothing is changed.

    A broker does not read the logs of a cleanly stopped directory, but for their ends, and neither
    does this function; `verify` does.

    Parameters
    ----------
    path, more : all log directories of one broker.
    topics : the topics whose logs are looked at; by default all.
    metadata : the log directory that holds ``__cluster_metadata-0``, if it is none of these; by
        default, ``metadata.log.dir`` of `server_properties`.
    server_properties : the file with the broker's static settings.  Its ``node.id`` is compared
        with the directories, and retention follows its settings.
    kafka_version : of the broker that will start, such as ``"4.3"``; compared with the
        ``metadata.version`` of the cluster.
    on_step : called with each step once it is known.

    Returns
    -------
    list of StartStep
        In the order of a broker's start.  At the end are the things that these disks do not tell
        (`StartAction.UNKNOWN`).

    Raises
    ------
    OptionError
        If an argument is not accepted.
    LogDirectoryError
        If a path is not a directory.
    CorruptCheckpointError, StorageError
        If `server_properties` or a directory cannot be read.
    """
    names = topic_names("topics", topics)
    level = _level("kafka_version", kafka_version)
    directories = [local_path(each) for each in (path, *more)]
    for each in directories:
        if not is_directory(each):
            raise LogDirectoryError(each, why_not_there(each))
    static: Mapping[str, str] = {}
    if server_properties is not None:
        static = read_properties(local_path(server_properties))
    place = static.get("metadata.log.dir") if metadata is None else metadata
    if place is None and (dirs := static.get("log.dirs") or static.get("log.dir")):
        place = dirs.split(",")[0].strip()  # Kafka's default
    # A dynamic quorum has no list of its voters.
    voters = static.get("controller.quorum.voters", "").split(",")
    is_own = voters[0].strip().partition("@")[0] == static.get("node.id", "").strip()
    is_controller = "controller" in static.get("process.roles", "")
    node_id = static.get("node.id") or static.get("broker.id")
    try:
        number = None if node_id is None else int(node_id)
    except ValueError:
        raise OptionError("node.id", str(node_id), "the number of a node") from None
    start = BrokerStart(
        directories,
        metadata_directory=None if place is None else local_path(place),
        node_id=number,
        is_sole_controller=is_controller and len(voters) == 1 and is_own,
    )

    def steps() -> Iterator[StartStep]:
        first = [*directory_steps(start, names)]  # they read the metadata
        held = {
            each.topic_partition.topic
            for each in itertools.chain.from_iterable(map(list_partitions, directories))
        }
        held.update(row["topic"] for row in _topics(start))
        for name in names:
            if name not in held:
                open_log_dir(*directories).log(name, -1)  # raises, and names the nearest topic
        yield from first
        yield from _version_steps(start, level, kafka_version)
        for each in directories:
            yield from _log_steps(each, names)
        for each in directories:
            yield from _retention(each, names, start.metadata_directory, server_properties)
        if start.image is None:
            yield StartStep(
                StartAction.UNKNOWN, "", -1, directories[0],
                "the cluster's metadata cannot be read here, so that it is not known which "
                "partitions a start would rename to -stray",
                remedy="name the log directory that holds __cluster_metadata-0 (--metadata-dir)",
            )  # fmt: skip
        for name, what in _BEYOND_THESE_DISKS.items():
            yield StartStep(StartAction.UNKNOWN, "", -1, directories[0], f"{name}: {what}")

    found = []
    for step in steps():
        found.append(step)
        on_step(step)
    return found


def _topics(start: BrokerStart) -> Iterable[Mapping[str, str]]:
    """The topics of the cluster, as far as they are known."""
    return start.image.tables.get("topics", {}).values() if start.image else ()


def _level(option: str, version: str | None) -> int | None:
    """The newest ``metadata.version`` of a release; None without one, or if it is not known."""
    if version is None:
        return None
    try:
        release = tuple(map(int, version.split(".")[:2]))
    except ValueError:
        release = ()
    if len(release) != 2:
        raise OptionError(option, version, "a version of Apache Kafka, such as 4.3 or 3.9.1")
    if release < min(_FEATURE_LEVELS):
        raise OptionError(option, version, "a version with KRaft: 3.3 or later")
    return _FEATURE_LEVELS.get(release)


def _version_steps(
    start: BrokerStart, level: int | None, version: str | None
) -> Iterator[StartStep]:
    """A broker that is older than the metadata."""
    features = start.image.tables.get("features", {}) if start.image else {}
    found = features.get("metadata.version", {}).get("feature_level")
    if level is None or found is None or found <= level:
        return
    yield StartStep(
        StartAction.REFUSE, "", -1, str(start.metadata_directory),
        f"the cluster's metadata.version is {found}, but Kafka {version} knows versions up to "
        f"{level}",
        remedy="start a broker of a later version",
    )  # fmt: skip


def _log_steps(directory: str, topics: Collection[str]) -> Iterator[StartStep]:
    from segmentlog.maintain.recover_directory import plan_log  # the compiled kernels load here

    loading = LoadingDirectory(directory)
    for each in loading.partitions():
        is_served = each.state in (DirectoryState.CURRENT, DirectoryState.FUTURE)
        if not is_served or (topics and each.topic_partition.topic not in topics):
            continue
        try:
            log = loading.log(each.topic_partition, each.path)
            yield from log.steps()
            promised = loading.high_watermarks.get(each.topic_partition, 0)
            if promised > 0 and not log.has_segments:
                yield StartStep(
                    StartAction.MISSING, *each.topic_partition, each.path,
                    "the directory has no segment: a starting broker begins an empty log",
                    f"all records up to the high watermark {promised}",
                    "put the segments back from a backup or another replica before the start",
                    offset=0, end_offset=promised,
                )  # fmt: skip
        except (LogDirectoryError, OSError) as error:
            yield _undecided(each, error)
            continue
        if loading.is_clean:
            yield from log.below_base(log.paths)
            continue
        try:
            plan = plan_log(each.path, log.recovery_point, log.log_start, is_clean=False)
        except (SegmentLogError, OSError) as error:
            yield _undecided(each, error)
            continue
        yield StartStep(
            StartAction.RECOVER, *each.topic_partition, each.path,
            f"a starting broker reads {log.bytes_to_recover} bytes from the recovery point on",
            n_bytes=log.bytes_to_recover,
        )  # fmt: skip
        if plan is not None and plan.n_cut_bytes:
            yield from log.below_base([each.path for each in plan.segments[plan.n_reached - 1 :]])
        if plan is not None and plan.loss:
            committed_to = loading.high_watermarks.get(each.topic_partition, -1)
            reason, remedy = f"a starting broker cuts the log off at offset {plan.end_offset}", (
                "segmentlog recover does the same, and keeps the bytes"
            )  # fmt: skip
            if committed_to > plan.end_offset:
                reason += f", below its high watermark {committed_to}: acknowledged records go"
                remedy += "; another replica may have these records"
            if plan.good_from is not None:
                remedy = (
                    "restore the damaged file from another replica; segmentlog recover "
                    "--on-corrupt-batch skip keeps the good batches after the damage"
                )
            yield StartStep(
                StartAction.TRUNCATE, *each.topic_partition, each.path, reason, plan.loss, remedy,
                offset=plan.end_offset, end_offset=max(plan.lost_to, committed_to),
                n_bytes=plan.n_cut_bytes,
            )  # fmt: skip


def _undecided(each: NamedPartition, error: SegmentLogError | OSError) -> StartStep:
    return StartStep(
        StartAction.UNKNOWN, *each.topic_partition, each.path,
        f"the start of this log cannot be decided: {in_words(error)}",
    )  # fmt: skip


def _retention(
    directory: str,
    topics: Collection[str],
    metadata_directory: str | None,
    server_properties: str | os.PathLike[str] | None,
) -> Iterator[StartStep]:
    """Segments that are due: a broker removes them half a minute after its start."""
    try:
        settings = DirectorySettings.read(
            directory, None, metadata_directory, server_properties, kafka_defaults=True
        )
    except SegmentLogError as error:
        yield StartStep(
            StartAction.UNKNOWN, "", -1, directory,
            f"the segments that retention removes are not known, because the settings of topics "
            f"cannot be read: {error}",
        )  # fmt: skip
        return
    now_ms = int(time.time() * 1000)
    opened = open_log_dir(directory)
    for each in opened.topic_partitions():
        if topics and each.topic not in topics:
            continue
        try:
            log = opened.log(*each)
            expired = plan_retention(log, settings.config(each.topic), now_ms)
        except (SegmentLogError, OSError) as error:
            yield StartStep(
                StartAction.UNKNOWN, *each, os.path.join(directory, str(each)),
                f"the segments that retention removes are not known: {in_words(error)}",
            )  # fmt: skip
            continue
        if not expired:
            continue
        n_bytes = sum(removed.span.n_bytes for removed in expired)
        first, end = expired[0].span.base_offset, expired[-1].span.end_offset
        why = ", ".join(sorted({removed.reason for removed in expired}))
        if server_properties is None:
            why += "; by Kafka's defaults, where the cluster's metadata has no setting"
        yield StartStep(
            StartAction.DELETE, *each, log.path,
            f"retention ({why}) removes {len(expired)} "
            f"segment{'s' * (len(expired) > 1)} half a minute after the start",
            f"offsets [{first}, {end}), {n_bytes} bytes",
            "to keep them, set log.retention.ms=-1 and log.retention.bytes=-1 in "
            "server.properties before the start; segmentlog table configs lists the topics that "
            "have settings of their own",
            offset=first, end_offset=end, n_bytes=n_bytes,
        )  # fmt: skip
