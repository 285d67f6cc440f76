"""The start of a broker, decided from its disks before it happens.

First come the checks of whole directories (`segmentlog.maintain.start.directories`), then the
loading of each log (`segmentlog.maintain.start.loading`), and then the first minute, in which
retention acts.

Rules: ``LogLoader``, ``UnifiedLog``, ``ProducerStateManager``; they were compared with brokers
(``tests/interop/test_broker_start.py``).
"""

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, NamedTuple, Unpack

from segmentlog.arguments import takes, topic_names
from segmentlog.cluster.directory_settings import (
    ClusterSettings,
    DirectorySettings,
    read_cluster_settings,
)
from segmentlog.declared import Declared
from segmentlog.errors import (
    LogDirectoryError,
    OptionError,
    SegmentLogError,
)
from segmentlog.format.names import (
    DirectoryState,
    FileState,
    parse_segment_file,
)
from segmentlog.log.checkpoint import read_properties
from segmentlog.log.listing import left_out, list_segments
from segmentlog.maintain.health.faults import StartAction, StartStep
from segmentlog.maintain.health.features import feature_faults, release_of
from segmentlog.maintain.health.kinds import NO_LOG, Fault, FaultKind
from segmentlog.maintain.retain import plan_retention
from segmentlog.maintain.start.directories import BrokerStart
from segmentlog.maintain.start.loading import LoadingDirectory, LogStart
from segmentlog.model import METADATA_TOPIC
from segmentlog.operation_options import OPERATION_OPTIONS, LogOptions, StaticOptions
from segmentlog.reads.listed import EmptiedSegment, LostSegments
from segmentlog.reads.log_directory import LogDirectory, open_log_dir
from segmentlog.reads.metadata_log import is_of_a_broker
from segmentlog.store.other_systems import refuse_other_systems
from segmentlog.store.partitions import NamedPartition, list_partitions
from segmentlog.store.paths import local_path, why_not_there
from segmentlog.store.readable import is_directory, is_file, list_names
from segmentlog.store.system_errors import in_words, storage_errors


def directory_faults(
    start: BrokerStart, topics: Collection[str] = (), partitions: Collection[int] = ()
) -> Iterator[Fault]:
    """The actions of a start on whole directories, and the things that earlier stops have left.

    `topics`, `partitions`: whose logs are looked at; all if empty.  The metadata is always looked
    at.
    """

    def is_chosen(fault: Fault) -> bool:
        if not fault.topic or fault.topic == METADATA_TOPIC:
            return True
        return (not topics or fault.topic in topics) and (
            not partitions or fault.partition in partitions
        )

    yield from filter(is_chosen, start.faults())
    for path in filter(is_of_a_broker, filter(is_directory, start.directories)):
        loading = start.loading(path)
        if not loading.is_clean:
            yield _unclean(loading)
        yield from filter(is_chosen, _leftovers(loading))


def _unclean(loading: LoadingDirectory) -> Fault:
    logs = loading.served()
    sizes = []
    for each in logs:
        with contextlib.suppress(LogDirectoryError, OSError):  # which is reported with its log
            sizes.append(loading.log(each.topic_partition, each.path).bytes_to_recover)
    return FaultKind.UNCLEAN.at(
        NO_LOG,
        loading.path,
        "the directory was not cleanly stopped, or is in use: a starting broker reads "
        f"{sum(sizes)} bytes of {len(logs)} logs from their recovery points on, cuts each log at "
        "its first bad batch, and builds the indexes of these bytes again",
        remedy=f"segmentlog recover {FaultKind.UNCLEAN.value.mend}",
        n_bytes=sum(sizes),
    )


def _leftovers(loading: LoadingDirectory) -> Iterator[Fault]:
    """Logs and files that are no longer served: who removes them, and when."""
    for each in loading.partitions():
        try:
            size = sum(list_segments(each.path).sizes)
        except (LogDirectoryError, OSError):  # which is reported where the log is loaded
            continue
        if each.state == DirectoryState.DELETE:
            yield FaultKind.LEFTOVERS.at(
                each.topic_partition,
                each.path,
                f"a deleted partition with {size} bytes of log: a broker removes it "
                "file.delete.delay.ms after its start",
                action=StartAction.DELETE,
                n_bytes=size,
            )
        elif each.state == DirectoryState.STRAY:
            yield FaultKind.LEFTOVERS.at(
                each.topic_partition,
                each.path,
                f"a stray partition with {size} bytes of log, which an earlier start has put "
                "aside: no broker serves it or removes it",
                remedy="if its records are still needed, see segmentlog restore",
                n_bytes=size,
            )
        else:
            names = list_names(each.path)
            broken = [name for name in names if name.endswith(".broken")]
            if broken:
                yield FaultKind.LEFTOVERS.at(
                    each.topic_partition,
                    each.path,
                    f"{len(broken)} .broken files keep bytes that a recovery has cut off; a "
                    "broker leaves them",
                )
            deleted = [
                name
                for name in names
                if (parsed := parse_segment_file(name)) and parsed.state == FileState.DELETED
            ]
            if deleted:
                yield FaultKind.LEFTOVERS.at(
                    each.topic_partition,
                    each.path,
                    f"{len(deleted)} deleted {'file' if len(deleted) == 1 else 'files'} "
                    "(.deleted): a starting broker removes them",
                    action=StartAction.DELETE,
                )


#: Things that no disk of one broker tells, and that a start may do anyway.
_BEYOND_THESE_DISKS = {
    "truncation to the leader": "a follower cuts its log off at the offset at which it differs "
    "from the log of its leader; segmentlog replicas compares the copies of all brokers",
    "elections": "other brokers may elect another leader, with a new leader epoch",
    "newer metadata": "topics that the controllers have created, deleted or moved since this "
    "broker stopped are not in its copy of the metadata",
}


class PreflightOptions(StaticOptions, LogOptions, total=False):
    """Those of `segmentlog.preflight`.

    Parameters
    ----------
    metadata : the log directory that holds ``__cluster_metadata-0``, if it is none of these; by
        default, ``metadata.log.dir`` of `server_properties`.
    server_properties : the file with the broker's static settings.  Its ``node.id`` is compared
        with the directories, and retention follows its settings.
    kafka_version : the version of Kafka that will start, such as ``4.3``; compared with the
        features of the cluster.
    on_step : called with each step once it is known.
    on_log : called with topic and partition of a log before each look at it.
    """

    metadata: Annotated[
        str | os.PathLike[str] | None,
        OPERATION_OPTIONS["metadata"]._replace(flags="--metadata-dir --metadata"),
    ]
    kafka_version: Annotated[
        str | None, Declared(metavar="VERSION", help="The version of Kafka that will start.")
    ]
    on_step: Callable[[StartStep], object]


@takes(PreflightOptions)
@storage_errors()
def preflight(
    path: str | os.PathLike[str] | None = None,
    *more: str | os.PathLike[str],
    topics: str | Collection[str] = (),
    **options: Unpack[PreflightOptions],
) -> list[StartStep]:
    """Find out what a starting broker would do with its log directories.  Nothing is changed.

    A broker does not read the logs of a cleanly stopped directory, but for their ends, and neither
    does this function; `verify` does.

    Parameters
    ----------
    path, more : all log directories of one broker; by default, those that `server_properties`
        names.
    topics : the topics whose logs are looked at; by default all.
    **options : those of `PreflightOptions`.

    Returns
    -------
    list of StartStep
        In the order of a broker's start.  At the end are the things that these disks do not tell
        (`StartAction.UNKNOWN`).

    Raises
    ------
    OptionError
        If an argument is not accepted, or if no log directory is named.
    LogDirectoryError
        If none of the paths is a directory.
    CorruptCheckpointError, StorageError
        If `server_properties` or a directory cannot be read.
    """
    names = topic_names("topics", topics)
    release = release_of("kafka_version", options["kafka_version"])
    static = BrokerSettings.read(options["server_properties"])
    directories = [local_path(each) for each in (path, *more) if each is not None]
    if directories and not any(map(is_directory, directories)):
        raise LogDirectoryError(directories[0], why_not_there(directories[0]))
    directories = directories or list(static.log_dirs)
    for each in directories:
        refuse_other_systems(each)
    if not directories:
        accepted = "the log directories of a broker, or server_properties with log.dirs"
        raise OptionError("path", "", accepted)
    place = (
        static.metadata_log_dir if options["metadata"] is None else local_path(options["metadata"])
    )
    start = BrokerStart(
        directories,
        metadata_directory=place,
        node_id=static.node_id,
        is_sole_controller=static.is_sole_controller,
        is_kraft=static.is_kraft or (release is not None and release >= (4, 0)),
        is_all=True,
    )

    def faults() -> Iterator[Fault]:
        first = [*directory_faults(start, names)]  # they read the metadata
        there = [
            each
            for each in directories
            if is_directory(each) and (is_of_a_broker(each) or list_partitions(each))
        ]
        held = {
            each.topic_partition.topic
            for each in itertools.chain.from_iterable(map(list_partitions, there))
        }
        held.update(row["topic"] for row in _topics(start))
        for name in names:
            if name not in held:
                open_log_dir(*there).log(name, -1)  # raises, and names the nearest topic
        yield from first
        yield from feature_faults(
            str(start.metadata_directory or directories[0]),
            start.features,
            release,
            options["kafka_version"],
        )
        for each in there:
            yield from map(
                start.settled, _log_faults(start.loading(each), names, options["on_log"])
            )
        cluster_at = cache(read_cluster_settings)  # once for all directories
        for each in there:
            yield from _retention(
                each,
                names,
                start.metadata_directory,
                options["server_properties"],
                cluster_at,
                options["on_log"],
            )
        if start.image is None:
            yield FaultKind.METADATA_UNREAD.at(
                NO_LOG,
                directories[0],
                "the cluster's metadata cannot be read here, so that it is not known which "
                "partitions a start would rename to -stray",
                remedy="name the log directory that holds __cluster_metadata-0 (--metadata-dir)",
            )
        if not start.is_alone:
            for name, what in _BEYOND_THESE_DISKS.items():
                yield FaultKind.ELSEWHERE.of(directories[0], f"{name}: {what}")

    found = []
    for fault in faults():
        found.append(step := fault.as_step())
        options["on_step"](step)
    return found


class BrokerSettings(NamedTuple):
    """What a broker's static settings say about its start; nothing without them."""

    log_dirs: Sequence[str] = ()
    metadata_log_dir: str | None = None
    node_id: int | None = None
    is_sole_controller: bool = False
    is_kraft: bool = False

    @classmethod
    def read(cls, path: str | os.PathLike[str] | None) -> "BrokerSettings":
        """The settings in a ``server.properties``."""
        if path is None:
            return cls()
        static = read_properties(local_path(path))
        dirs = static.get("log.dirs") or static.get("log.dir") or ""
        log_dirs = [local_path(each.strip()) for each in dirs.split(",") if each.strip()]
        metadata = static.get("metadata.log.dir")
        # A dynamic quorum has no list of its voters.
        voters = static.get("controller.quorum.voters", "").split(",")
        number = static.get("node.id") or static.get("broker.id")
        is_own = voters[0].strip().partition("@")[0] == static.get("node.id", "")
        roles = static.get("process.roles", "")
        try:
            node_id = None if number is None else int(number)
        except ValueError:
            raise OptionError("node.id", str(number), "the number of a node") from None
        return cls(
            log_dirs,
            local_path(metadata) if metadata else next(iter(log_dirs), None),  # Kafka's default
            node_id,
            "controller" in roles and len(voters) == 1 and is_own,
            bool(roles),
        )


def _topics(start: BrokerStart) -> Iterable[Mapping[str, str]]:
    """The topics of the cluster, as far as they are known."""
    return start.image.tables.get("topics", {}).values() if start.image else ()


def _log_faults(
    loading: LoadingDirectory, topics: Collection[str], on_log: Callable[[str], object]
) -> Iterator[Fault]:
    opened = open_log_dir(loading.path)
    for each in loading.served(topics):
        on_log(str(each.topic_partition))
        try:
            log = loading.log(each.topic_partition, each.path)
            yield from log.faults()
            if log.not_opened:
                continue
            yield from _gone(loading, each, log, opened)
        except (LogDirectoryError, OSError) as error:
            yield _undecided(each, error)
            continue
        if loading.is_clean:
            yield from _below_watermark(loading, each, log, log.log_end)
            yield from log.below_base(log.paths)
        else:
            yield from _recovered(loading, each, log)


def _gone(
    loading: LoadingDirectory, each: NamedPartition, log: LogStart, opened: LogDirectory
) -> Iterator[Fault]:
    """Segments that are not there, and whose last sign a start removes."""
    lost_segments: Sequence[LostSegments] = ()
    # A future replica has no such log, and a fault has a step of its own.
    with contextlib.suppress(SegmentLogError):
        lost_segments = opened.log(*each.topic_partition).lost_segments
    for lost in lost_segments:
        if isinstance(lost, EmptiedSegment):  # a start leaves its files as they are
            continue
        yield FaultKind.SEGMENTS_GONE.at(
            each.topic_partition,
            each.path,
            f"{lost}: a starting broker removes the index, the only sign of the loss",
            remedy="put the segment back from another replica or a backup first",
            offset=lost.start_offset,
            end_offset=lost.end_offset,
        )
    promised = loading.high_watermarks.get(each.topic_partition, 0)
    # A broker follows links that readers leave out.
    is_empty = not log.has_segments and not any(is_file(at) for at, *_ in left_out(each.path))
    if promised > 0 and is_empty:
        yield FaultKind.NO_SEGMENT.at(
            each.topic_partition,
            each.path,
            "the directory has no segment: a starting broker begins an empty log",
            f"all records up to the high watermark {promised}",
            "put the segments back from a backup or another replica before the start",
            offset=0,
            end_offset=promised,
        )


def _recovered(loading: LoadingDirectory, each: NamedPartition, log: LogStart) -> Iterator[Fault]:
    """The recovery of a log without a clean stop: what is read, and what is cut off."""
    from segmentlog.maintain.recover_directory import plan_log  # the compiled kernels load here

    try:
        plan = plan_log(each.path, log.recovery_point, log.log_start, is_clean=False)
    except (SegmentLogError, OSError) as error:
        yield _undecided(each, error)
        return
    yield FaultKind.RECOVERED.at(
        each.topic_partition,
        each.path,
        f"a starting broker reads {log.bytes_to_recover} bytes from the recovery point on",
        n_bytes=log.bytes_to_recover,
    )
    if plan is not None:
        bad = plan.segments[plan.n_reached - 1 :] if plan.n_cut_bytes else ()
        # Segments without an index are read, too, also below the recovery point.
        read = [*plan.segments[: plan.first], *plan.copies, *bad]
        yield from log.below_base([each.path for each in read])
    if plan is None or not plan.loss:
        end = log.log_end if plan is None else plan.end_offset
        yield from _below_watermark(loading, each, log, end)
        return
    committed_to = loading.high_watermarks.get(each.topic_partition, -1)
    reason = f"a starting broker cuts the log off at offset {plan.end_offset}"
    remedy = "segmentlog recover does the same, and keeps the bytes"
    if committed_to > plan.end_offset:
        reason += f", below its high watermark {committed_to}: acknowledged records go"
        remedy += "; another replica may have these records"
    if plan.good_from is not None:
        remedy = (
            "restore the damaged file from another replica; segmentlog recover "
            "--on-corrupt-batch skip keeps the good batches after the damage"
        )
    yield FaultKind.BAD_BATCH.at(
        each.topic_partition,
        each.path,
        reason,
        plan.loss,
        remedy,
        offset=plan.end_offset,
        end_offset=max(plan.lost_to, committed_to),
        n_bytes=plan.n_cut_bytes,
    )


def _below_watermark(
    loading: LoadingDirectory, each: NamedPartition, log: LogStart, end: int
) -> Iterator[Fault]:
    """Acknowledged records that are gone already, and whose offsets new records would get."""
    committed_to = loading.high_watermarks.get(each.topic_partition, -1)
    if not each.is_current or not log.has_segments or end < log.log_start or end >= committed_to:
        return
    yield FaultKind.BELOW_WATERMARK.at(
        each.topic_partition,
        each.path,
        f"the log ends at offset {end}, below its high watermark {committed_to}: a starting "
        "broker takes this for the end, and new records get the offsets of those that are gone",
        f"offsets [{end}, {committed_to}), which were acknowledged",
        "put the files back from another replica or a backup before the start",
        offset=end,
        end_offset=committed_to,
        n_bytes=0,
    )


def _undecided(each: NamedPartition, error: SegmentLogError | OSError) -> Fault:
    return FaultKind.UNREAD.at(
        each.topic_partition,
        each.path,
        f"the start of this log cannot be decided: {in_words(error)}",
    )


def _retention(
    directory: str,
    topics: Collection[str],
    metadata_directory: str | None,
    server_properties: str | os.PathLike[str] | None,
    cluster_at: Callable[[str], ClusterSettings],
    on_log: Callable[[str], object],
) -> Iterator[Fault]:
    """Segments that are due: a broker removes them half a minute after its start."""
    try:
        settings = DirectorySettings.read(
            directory,
            None,
            metadata_directory,
            server_properties,
            kafka_defaults=True,
            cluster_at=cluster_at,
        )
    except SegmentLogError as error:
        yield FaultKind.EXPIRED.at(
            NO_LOG,
            directory,
            f"the segments that retention removes are not known, because the settings of topics "
            f"cannot be read: {error}",
            action=StartAction.UNKNOWN,
        )
        return
    now_ms = int(time.time() * 1000)
    opened = open_log_dir(directory)
    for each in opened.topic_partitions():
        if topics and each.topic not in topics:
            continue
        on_log(str(each))
        try:
            log = opened.log(*each)
            expired = plan_retention(log, settings.config(each.topic), now_ms)
        except (SegmentLogError, OSError) as error:
            yield FaultKind.EXPIRED.at(
                each,
                os.path.join(directory, str(each)),
                f"the segments that retention removes are not known: {in_words(error)}",
                action=StartAction.UNKNOWN,
            )
            continue
        if not expired:
            continue
        n_bytes = sum(removed.span.n_bytes for removed in expired)
        first, end = expired[0].span.base_offset, expired[-1].span.end_offset
        why = ", ".join(sorted({removed.reason for removed in expired}))
        if server_properties is None:
            why += "; by Kafka's defaults, where the cluster's metadata has no setting"
        yield FaultKind.EXPIRED.at(
            each,
            log.path,
            f"retention ({why}) removes {len(expired)} "
            f"segment{'s' * (len(expired) > 1)} half a minute after the start",
            f"offsets [{first}, {end}), {n_bytes} bytes",
            "to keep them, set log.retention.ms=-1 and log.retention.bytes=-1 in "
            "server.properties before the start; segmentlog table configs lists the topics that "
            "have settings of their own",
            offset=first,
            end_offset=end,
            n_bytes=n_bytes,
        )
