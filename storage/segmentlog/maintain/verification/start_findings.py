"""The actions of a starting broker, as findings; and the things that earlier stops have left.

A step that removes or hides records is an error; other steps cost time, or less than records.
"""

import os
from collections.abc import Collection, Iterator, Mapping

from segmentlog.cluster.broker_start import BrokerStart, StartAction, StartStep, is_of_a_broker
from segmentlog.errors import CorruptCheckpointError, LogDirectoryError
from segmentlog.format.names import (
    CLEAN_SHUTDOWN_FILE,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    DirectoryState,
    FileState,
    parse_segment_file,
)
from segmentlog.log.checkpoint import read_offsets
from segmentlog.log.listing import list_segments
from segmentlog.maintain.verification.findings import Finding, FindingKind, Severity
from segmentlog.maintain.verification.log_start import LogStart
from segmentlog.model import METADATA_TOPIC, TopicPartition
from segmentlog.store.partitions import NamedPartition, list_partitions
from segmentlog.store.readable import exists, is_directory, list_names

_KINDS: Mapping[StartAction, tuple[Severity, FindingKind]] = {
    StartAction.REFUSE: (Severity.ERROR, FindingKind.START_REFUSED),
    StartAction.OFFLINE: (Severity.ERROR, FindingKind.START_OFFLINE),
    StartAction.UNSERVED: (Severity.ERROR, FindingKind.START_OFFLINE),
    StartAction.STRAY: (Severity.ERROR, FindingKind.START_STRAY),
    StartAction.EMPTY: (Severity.ERROR, FindingKind.START_EMPTIES),
    StartAction.TRUNCATE: (Severity.ERROR, FindingKind.START_TRUNCATES),
    StartAction.SPLIT: (Severity.WARNING, FindingKind.START_SPLITS),
    StartAction.REBUILD: (Severity.WARNING, FindingKind.START_REBUILDS),
    StartAction.DROP: (Severity.WARNING, FindingKind.START_DROPS),
    StartAction.MISSING: (Severity.WARNING, FindingKind.START_WITHOUT_LOG),
    StartAction.RECOVER: (Severity.NOTE, FindingKind.NOT_CLEANLY_STOPPED),
    StartAction.DELETE: (Severity.NOTE, FindingKind.LEFTOVERS),
    StartAction.KEEP: (Severity.NOTE, FindingKind.LEFTOVERS),
    StartAction.UNKNOWN: (Severity.NOTE, FindingKind.START_UNKNOWN),
}


def as_finding(step: StartStep) -> Finding:
    """A step of a start as a finding."""
    severity, kind = _KINDS[step.action]
    where = (step.topic, step.partition, step.path, -1, step.offset)
    return Finding(severity, kind, *where, step.message, step.end_offset)


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
    sizes = [loading.log(each.topic_partition, each.path).bytes_to_recover for each in logs]
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
        except LogDirectoryError:  # which is reported where the log is loaded
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
