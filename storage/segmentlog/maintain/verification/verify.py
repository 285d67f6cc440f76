"""Verify log directories: read everything, and report what does not fit."""

import errno
import itertools
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache
from typing import Unpack

from segmentlog.arguments import partition_numbers, path_text, takes, topic_names
from segmentlog.cluster.replicated import ReplicatedDirectory
from segmentlog.errors import (
    CorruptCheckpointError,
    LogChangedError,
    LogDirectoryError,
    OptionError,
    RemoteSegmentError,
    SegmentLogError,
)
from segmentlog.format.names import (
    LOG_START_CHECKPOINT,
    parse_partition_directory,
)
from segmentlog.log.listing import list_segments
from segmentlog.maintain.health.faults import StartAction
from segmentlog.maintain.health.kinds import Fault, FaultKind
from segmentlog.maintain.start.directories import BrokerStart
from segmentlog.maintain.start.loading import LoadingDirectory
from segmentlog.maintain.start.preflight import directory_faults
from segmentlog.maintain.verification.findings import (
    Finding,
    FindingKind,
    MakeFinding,
    Severity,
    as_finding,
    unfinished_commits,
)
from segmentlog.model import TopicPartition
from segmentlog.operation_options import BytesOptions
from segmentlog.read_options import TierOptions
from segmentlog.reads.choose import MissingPartition, missing_of, partitions_of
from segmentlog.reads.diskless import diskless_partitions, elsewhere
from segmentlog.reads.log import Log, log_start_beyond
from segmentlog.reads.log_directory import LogDirectory, open_log_dir
from segmentlog.reads.metadata_log import is_of_a_broker
from segmentlog.reads.usage import UsageKind, UsedSpace, large_leftovers
from segmentlog.store.partitions import NamedPartition, list_partitions
from segmentlog.store.paths import (
    BucketLocation,
    is_bucket,
    is_tiered,
    opened_path,
    parse_bucket,
    plain_path,
)
from segmentlog.store.readable import FileType, is_directory, is_url
from segmentlog.store.system_errors import storage_errors

#: Batches at which a recovery cuts a log.
_CUT_AT = {FindingKind.CORRUPT_BATCH, FindingKind.UNSUPPORTED_BATCH, FindingKind.TORN_TAIL}


#: Errors that a single log, or an object of a tier, may have, and the others not.
_OF_ONE_LOG = {errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.EIO}


class VerifyOptions(TierOptions, BytesOptions, total=False):
    """Those of `segmentlog.verify`.

    Parameters
    ----------
    records : whether records are also decompressed and parsed.
    producers : whether the sequences of idempotent producers are also checked.
    shallow : whether no batch is read: the commits of a log in an object store are, and its
        objects are looked for.  Other logs have no shallow verification.
    remote_storage, remote_storage_layout, remote_storage_key_file : see `open_log_dir`.  The tier
        is also compared with the broker's list of its segments (``__remote_log_metadata``), if
        the log directory has it, and with the local log where both have an offset.
    on_finding : called with each finding once it is found.
    """

    records: bool
    producers: bool
    shallow: bool
    on_finding: Callable[[Finding], object]


@takes(VerifyOptions)
@storage_errors()
def verify(
    path: str | os.PathLike[str] | LogDirectory | None = None,
    *more: str | os.PathLike[str],
    topics: str | Collection[str] = (),
    partitions: int | Collection[int] = (),
    **options: Unpack[VerifyOptions],
) -> list[Finding]:
    """Read everything and report what does not fit: checksums, indexes, gaps, transactions.

    Nothing is changed.  A directory to which a broker is writing may have findings that are gone a
    moment later.

    Parameters
    ----------
    path, more : as `open_log_dir` takes them, or one `LogDirectory`; None for a tier alone.
    topics, partitions : one or several; by default all, brokers' own topics included.
    **options : those of `VerifyOptions`.

    Returns
    -------
    list of Finding
        Commits of a log in an object store, and objects that they name; the only findings if a
        commit cannot be read.  Unfinished commits, checkpoints that cannot be read, missing
        partitions, logs of the tier that no partition has, and then the findings of each log:
        about its tier, and in the order of its files; at the end large leftovers, if all topics
        are verified.  A log that cannot be listed is a finding.  If the logs are sound, no finding
        has the severity `Severity.ERROR`.

    Raises
    ------
    OptionError
        If an argument is not accepted.
    UnknownTopicOrPartitionError
        If one of `topics` is missing, or has none of `partitions`.
    LogDirectoryError, CorruptCheckpointError, StorageError
        If a path is not a log; if the intent of an unfinished commit cannot be read; if the disk
        or the store fails.
    """
    names = topic_names("topics", topics)
    numbers = partition_numbers(partitions)
    if isinstance(path, LogDirectory):
        if options["remote_storage"] is not None:
            accepted = "the directory was opened without it: give it to open_log_dir"
            raise OptionError("remote_storage", os.fsdecode(options["remote_storage"]), accepted)
        places = _places(path.paths)
    else:
        places = _places(() if path is None else (path, *more))
    if options["shallow"] and not places:
        accepted = "only a log in an object store can be verified without its batches"
        raise OptionError("shallow", str(options["shallow"]), accepted)
    found = list[Finding]()

    def take(findings: Iterator[Finding]) -> None:
        for finding in findings:
            found.append(finding)
            options["on_finding"](finding)

    for place in places:
        from segmentlog.bucket.clients import objects_at
        from segmentlog.maintain.verification.commits import commit_findings  # kernels load here

        take(commit_findings(objects_at(place), place))
    if options["shallow"]:
        return found
    try:
        directory = (
            path
            if isinstance(path, LogDirectory)
            else open_log_dir(
                *(() if path is None else (path, *more)),
                remote_storage=options["remote_storage"],
                remote_storage_layout=options["remote_storage_layout"],
                remote_storage_key_file=options["remote_storage_key_file"],
                fail_on_data_loss=False,  # missing offsets are findings
            )
        )
    except CorruptCheckpointError:
        if {each.kind for each in found} & {FindingKind.COMMIT, FindingKind.CHECKPOINT}:
            return found
        raise
    missing = missing_of(directory, names, numbers)
    chosen = partitions_of(directory, names, numbers, missing)
    loading = cache(LoadingDirectory)  # its checkpoints are read once, not for each log
    take(_of_the_whole(directory, names, numbers, missing, loading))
    take(
        _of_logs(
            directory,
            names,
            numbers,
            chosen,
            loading,
            records=options["records"],
            producers=options["producers"],
            on_bytes=options["on_bytes"],
        )
    )
    if not names and not numbers:
        take(_leftovers(directory))
    return found


def _of_the_whole(
    directory: LogDirectory,
    topics: Collection[str],
    partitions: Collection[int],
    missing: Iterable[MissingPartition],
    loading: Callable[[str], LoadingDirectory],
) -> Iterator[Finding]:
    """Unfinished commits, actions of a starting broker, checkpoints, missing partitions."""
    yield from unfinished_commits(directory.unfinished_commits)
    yield from _of_directories(directory, topics, partitions, loading)
    for bad in directory.corrupt_checkpoints:
        message = f"line {bad.line}: {bad.reason}; {bad.remedy}"
        yield MakeFinding()(FindingKind.CHECKPOINT, bad.path, message)
    known = set()
    for gone in missing:
        known.add(gone.topic_partition)
        message = f"{gone.topic_partition}: {gone.reason}"
        yield MakeFinding(gone.topic_partition)(
            FindingKind.MISSING_PARTITION, gone.checkpoint, message
        )
    for each in itertools.chain.from_iterable(map(_links, directory.paths)):
        topic, partition = where = each.topic_partition
        is_chosen = (not topics or topic in topics) and (not partitions or partition in partitions)
        if is_chosen and where not in known:
            yield MakeFinding(where)(
                FindingKind.UNREADABLE_FILE,
                each.path,
                "a broker serves the log in this directory, but its records are not read here: it "
                "is a symbolic link; replace the link by its target, moved or mounted there",
            )


def _links(directory: str) -> list[NamedPartition]:
    """Links to directories in place of those of partitions."""
    path = plain_path(directory)
    if is_url(path) or not is_directory(path):
        return []
    return [
        each
        for each in list_partitions(path)
        if each.is_current and each.type is FileType.LINK and is_directory(each.path)
    ]


def _of_logs(
    directory: LogDirectory,
    topics: Collection[str],
    partitions: Collection[int],
    chosen: Iterable[TopicPartition],
    loading: Callable[[str], LoadingDirectory],
    *,
    records: bool,
    producers: bool,
    on_bytes: Callable[[int], object],
) -> Iterator[Finding]:
    """The findings of each log, about its tier first."""
    reported = {*map(str, directory.corrupt_checkpoints)}
    tiers = None
    if is_tiered(directory.paths[0]):
        from segmentlog.maintain.verification.tier import TierCheck  # the kernels load here

        tiers = TierCheck(with_records=records)
        yield from tiers.unknown_logs(directory.paths, topics, partitions)
    for each in chosen:
        log = directory.log_without_checkpoints(each)
        try:
            log = directory.log(*each)
        except SegmentLogError as error:
            if str(error) not in reported:
                yield _unreadable(log, error)
                continue
        if tiers is not None:
            yield from _or_unreadable(log, reported, tiers.findings(log))
        of_log = _of_log(log, loading, records=records, producers=producers, on_bytes=on_bytes)
        yield from _or_unreadable(log, reported, of_log)
        found = diskless_partitions([os.path.dirname(log.path)])
        if each in found:
            yield MakeFinding(each)(
                FindingKind.DISKLESS, log.path, elsewhere(found[each], log.log_end_offset)
            )


def _places(paths: Iterable[str | os.PathLike[str]]) -> list[BucketLocation]:
    """The logs in object stores among some paths."""
    opened = (opened_path(each) for each in paths if "://" in path_text("path", each))
    return [parse_bucket(each)[0] for each in opened if is_bucket(each)]


def _of_directories(
    directory: LogDirectory,
    topics: Collection[str],
    partitions: Collection[int],
    loading: Callable[[str], LoadingDirectory],
) -> Iterator[Finding]:
    """The actions of a starting broker on whole log directories."""
    paths = [
        each
        for each in map(plain_path, directory.paths)
        if not is_url(each)
        and is_directory(each)
        # A partition, and not a log directory with such a name.
        and not (
            parse_partition_directory(os.path.basename(each)) is not None
            and not is_of_a_broker(each)
            and list_segments(each)
        )
    ]
    # The directories of several brokers are not those of one start.
    together = (
        [[each] for each in paths] if isinstance(directory, ReplicatedDirectory) else [paths]
    )
    for each in filter(None, together):
        for fault in directory_faults(BrokerStart(each, loading=loading), topics, partitions):
            if fault.action == StartAction.UNKNOWN and fault.topic:
                place = TopicPartition(fault.topic, fault.partition)
                yield MakeFinding(place)(FindingKind.UNREADABLE_FILE, fault.path, fault.evidence)
            else:
                yield as_finding(fault)


def _of_start(log: Log, loading: Callable[[str], LoadingDirectory]) -> list[Fault]:
    """The faults that a starting broker notices; missing indexes have findings of their own."""
    path = plain_path(log.path)
    parent = os.path.dirname(path)
    if is_url(path) or not is_directory(path) or not is_of_a_broker(parent):
        return []
    faults = loading(parent).log(log.topic_partition, path).faults()
    missing = {FaultKind.INDEX_GONE, FaultKind.TIMES_GONE}
    return [each for each in faults if each.kind not in missing]


def _or_unreadable(
    log: Log, reported: Collection[str], findings: Iterator[Finding]
) -> Iterator[Finding]:
    """Findings about a log; what ends them is one, too, unless its text was `reported`.

    A failure of the whole disk or store is not a finding.
    """
    try:
        yield from findings
    except OSError as error:
        if error.errno not in _OF_ONE_LOG:
            raise
        yield _unreadable(log, error)
    except SegmentLogError as error:
        if str(error) not in reported:
            yield _unreadable(log, error)


def _unreadable(log: Log, error: OSError | SegmentLogError) -> Finding:
    path, reason = getattr(error, "path", log.path), str(error)
    if isinstance(error, OSError):
        path, reason = error.filename or log.path, error.strerror or reason
    message = f"{reason}; the log is not verified to its end"
    return MakeFinding(log.topic_partition)(FindingKind.UNREADABLE_FILE, path, message)


def _of_log(
    log: Log,
    loading: Callable[[str], LoadingDirectory],
    *,
    records: bool,
    producers: bool,
    on_bytes: Callable[[int], object],
) -> Iterator[Finding]:
    """The findings of a log, and the loss by a recovery if it has bad batches."""
    # The compiled kernels load here.
    from segmentlog.maintain.verification.commits import extents_of
    from segmentlog.maintain.verification.verify_log import LogCheck

    extents = extents_of(log) if is_bucket(log.path) else {}
    faults = _of_start(log, loading)
    tails = [each for each in faults if each.action == StartAction.KEEP]
    yield from (as_finding(each) for each in faults if each not in tails)
    parent = os.path.dirname(log.path)
    damaged: dict[FindingKind, set[str]] = {}  # paths of segments
    is_misnamed = False  # perhaps: the first batch of a segment is not read
    try:
        # The start of a broker has a finding about it.
        has_start = not is_url(log.path) and is_of_a_broker(parent)
        if not has_start and (reason := log_start_beyond(log)):
            path = os.path.join(parent, LOG_START_CHECKPOINT)
            yield MakeFinding(log.topic_partition)(FindingKind.CHECKPOINT, path, reason)
        for finding in LogCheck(
            log,
            with_records=records,
            with_producers=producers,
            extents=extents,
            progress=on_bytes,
        ).findings():
            if finding.kind in _CUT_AT:
                damaged.setdefault(finding.kind, set()).add(finding.path)
                is_misnamed |= finding.position == 0
            if tails and finding.path == tails[0].path and finding.position >= log.end.position:
                # No start removes the tail, and what is written after it cannot be read.
                message = f"{finding.message}; {tails[0].as_step().message}"
                yield finding._replace(message=message, severity=Severity.ERROR)
                continue
            yield finding
    except LogChangedError as error:
        message = f"{error}; the log is not verified to its end"
        yield MakeFinding(log.topic_partition)(FindingKind.VANISHED_SEGMENT, log.path, message)
        return
    except RemoteSegmentError as error:
        yield MakeFinding(log.topic_partition)(
            FindingKind.REMOTE_SEGMENT,
            error.path,
            f"{error.reason}; {error.remedy}; the log cannot be joined with its tier, and is not "
            "verified",
        )
        return
    if damaged and has_start:
        start = loading(parent).log(log.topic_partition, log.path)
        yield from map(as_finding, start.below_base(set().union(*damaged.values())))
    if is_misnamed or damaged.keys() - {FindingKind.TORN_TAIL}:
        yield from _would_lose(log, loading)


def _would_lose(log: Log, loading: Callable[[str], LoadingDirectory]) -> Iterator[Finding]:
    """The whole batches that a recovery would cut off."""
    from segmentlog.maintain.recover_directory import plan_log  # the compiled kernels load here

    directory = os.path.dirname(log.path)
    if is_url(log.path) or not is_directory(log.path):
        return
    found = loading(directory)
    try:
        start = found.log(log.topic_partition, log.path)
        committed_to = found.high_watermarks.get(log.topic_partition, -1)
        plan = plan_log(
            log.path, start.recovery_point, start.log_start, committed_to, is_clean=found.is_clean
        )
    except LogDirectoryError as error:
        yield MakeFinding(log.topic_partition)(
            FindingKind.UNREADABLE_FILE, error.path, f"it {error.reason}"
        )
        return
    except SegmentLogError:  # recovery leaves such a log as it is
        return
    if plan is None or plan.lost is None:
        return
    way_out = f"{plan.lost.n_records} good records lie after the damage, and segmentlog recover "
    way_out += "--on-corrupt-batch skip keeps them"
    yield MakeFinding(log.topic_partition)(
        FindingKind.RECOVERY_CUT,
        log.path,
        f"recovery would cut off {plan.cut.what}{plan.cut.why}; {way_out}",
        offset=plan.end_offset,
        end_offset=plan.lost_to,
    )


def _leftovers(directory: LogDirectory) -> Iterator[Finding]:
    """A note for each kind of leftovers, if they are large; its path is the largest place."""
    by_kind: dict[UsageKind, list[UsedSpace]] = {}
    # Those of a broker have a note each, which says what the broker does with them.
    paths = [each for each in directory.log_directories if not is_of_a_broker(plain_path(each))]
    for used in large_leftovers(paths):
        by_kind.setdefault(used.kind, []).append(used)
    for kind, found in by_kind.items():
        n_bytes = sum(used.n_bytes for used in found)
        more = f", the largest of {len(found)} places" if len(found) > 1 else ""
        yield MakeFinding()(
            FindingKind.LEFTOVERS,
            found[0].path,
            f"{kind} files take {n_bytes:,} bytes and are part of no log{more}; removed by: "
            f"{kind.removal}",
        )
