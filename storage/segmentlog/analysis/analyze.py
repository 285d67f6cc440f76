"""``segmentlog.analyze``: what is in the topics of log directories."""

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from segmentlog.analysis import report
from segmentlog.analysis.findings import findings_of
from segmentlog.analysis.retention import Forecast
from segmentlog.arguments import one_of, topic_names
from segmentlog.dialects import one_dialect
from segmentlog.errors import OptionError, SegmentLogError
from segmentlog.kafka_tables.open_table import table
from segmentlog.model import (
    INTERNAL_TOPICS,
    METADATA_TOPIC,
    OffsetRange,
    ReadUpTo,
    RemoteStorageLayout,
    TopicPartition,
)
from segmentlog.reads.choose import missing_of, partitions_of
from segmentlog.reads.log_directory import LogDirectory, open_log_dir
from segmentlog.store.paths import tiered_paths
from segmentlog.store.system_errors import is_gone, storage_error

if TYPE_CHECKING:
    from segmentlog.analysis.scan_partition import ScannedPartition

_NO_RETENTION = report.RetentionForecast("", -1, -1, "unknown", 0, 0, None, 0)
_SCHEMAS = "_schemas"
_MOST_KEY_BYTES = 256  #: of a key that is shown

_Path = str | os.PathLike[str]


@one_dialect()
def analyze(
    path: _Path | LogDirectory | None = None,
    *more: _Path,
    topics: str | Collection[str] = (),
    settings: Mapping[str, str] | None = None,
    metadata: _Path | None = None,
    server_properties: _Path | None = None,
    read_up_to: ReadUpTo | str = ReadUpTo.HIGH_WATERMARK,
    show_keys: bool = False,
    use_threads: bool = True,
    remote_storage: _Path | None = None,
    remote_storage_layout: RemoteStorageLayout | str | None = None,
    remote_storage_key_file: _Path | None = None,
    on_bytes: Callable[[int], object] = lambda _: None,
) -> report.Analysis:
    """Find out what is in topics: sizes, codecs, keys, formats, clocks, gaps, and what to change.

    ::

        found = segmentlog.analyze("/var/lib/kafka", topics="orders")
        found.topics[0].figures.keys.distinct
        found.to_json()

    All records are read once.  The memory does not grow with the records: distinct keys and the
    heaviest keys are kept in sketches, with a stated error; what zstd would save, formats and
    headers are measured on a sample.  Nothing is changed, and a broker may be running.

    Parameters
    ----------
    path, more : as `open_log_dir` takes them, or one `LogDirectory`; None for a tier alone.
    topics : one name or several; by default all but brokers' own.
    settings : of all these topics, by Kafka's names (``retention.ms``); they come before those of
        the directory.  They decide what retention will remove.
    metadata, server_properties : see `segmentlog.topic_settings`.
    read_up_to : where the newest data ends.
    show_keys : whether the heaviest keys are read again, and their bytes shown.  Otherwise the
        result has no byte of a key or a value.
    use_threads : whether several threads read.
    remote_storage, remote_storage_layout, remote_storage_key_file : a tier; see `open_log_dir`.
    on_bytes : called with the bytes of ``.log`` files done since the last call.

    Returns
    -------
    Analysis
        A plain value.  A partition that is damaged, or cannot be read, is one of its problems; the
        others are analyzed.

    Raises
    ------
    OptionError
        If an argument is not accepted.
    UnknownTopicOrPartitionError
        If one of `topics` is missing.
    LogDirectoryError, CorruptCheckpointError, StorageError
        If a path is not a log directory, or cannot be listed.
    """
    plan = plan_analysis(
        path, *more, topics=topics, settings=settings, metadata=metadata,
        server_properties=server_properties, read_up_to=read_up_to, show_keys=show_keys,
        remote_storage=remote_storage, remote_storage_layout=remote_storage_layout,
        remote_storage_key_file=remote_storage_key_file,
    )  # fmt: skip
    return analyze_plan(plan, on_bytes=on_bytes, use_threads=use_threads)


class AnalysisPlan(NamedTuple):
    """The partitions to analyze, by topic, and how."""

    directory: LogDirectory
    topics: Mapping[str, Sequence[TopicPartition]]
    problems: tuple[str, ...]  # about partitions that are missing
    forecast: Forecast
    read_up_to: ReadUpTo
    show_keys: bool
    now_ms: int

    @property
    def n_bytes(self) -> int:
        """Bytes of the ``.log`` files of all partitions that can be listed."""
        total = 0
        for each in (each for partitions in self.topics.values() for each in partitions):
            try:
                total += self.directory.log(*each).size_bytes
            except (SegmentLogError, OSError):  # the analysis reports it
                continue
        return total


def plan_analysis(
    path: _Path | LogDirectory | None = None,
    *more: _Path,
    topics: str | Collection[str],
    settings: Mapping[str, str] | None,
    metadata: _Path | None,
    server_properties: _Path | None,
    read_up_to: ReadUpTo | str,
    show_keys: bool,
    remote_storage: _Path | None = None,
    remote_storage_layout: RemoteStorageLayout | str | None = None,
    remote_storage_key_file: _Path | None = None,
) -> AnalysisPlan:
    """Choose the partitions; see `analyze` for arguments and errors."""
    names = topic_names("topics", topics)
    forecast = Forecast(settings or {}, metadata, server_properties)
    if isinstance(path, LogDirectory):
        if more or remote_storage is not None:
            accepted = "give a LogDirectory alone; pass all paths to open_log_dir"
            raise OptionError("path", ", ".join(map(str, more)), accepted)
        directory = path
    else:
        given = tiered_paths(
            () if path is None else (path, *more), remote_storage, remote_storage_layout,
            remote_storage_key_file, fail_on_data_loss=False,
        )  # fmt: skip
        directory = open_log_dir(*given)
    missing = missing_of(directory, names)
    chosen: dict[str, list[TopicPartition]] = {}
    for each in partitions_of(directory, names, (), missing):
        if names or each.topic not in INTERNAL_TOPICS | {METADATA_TOPIC}:
            chosen.setdefault(each.topic, []).append(each)
    problems = tuple(f"{each.topic_partition}: {each.reason}" for each in missing)
    return AnalysisPlan(
        directory, chosen, problems, forecast, one_of("read_up_to", read_up_to, ReadUpTo),
        show_keys, time.time_ns() // 10**6,
    )  # fmt: skip


def analyze_plan(
    plan: AnalysisPlan,
    on_bytes: Callable[[int], object] = lambda _: None,
    on_topic: Callable[[str], object] = lambda _: None,
    *,
    use_threads: bool = True,
) -> report.Analysis:
    """Analyze the partitions of a plan; `on_topic` is called with each topic before its scan."""
    scan = partial(
        scan_one, plan.directory, now_ms=plan.now_ms, read_up_to=plan.read_up_to,
        forecast=plan.forecast, on_bytes=on_bytes, use_threads=use_threads,
    )  # fmt: skip

    def reports() -> Iterator[report.TopicReport]:
        for topic, partitions in plan.topics.items():
            on_topic(topic)
            yield topic_report(plan, topic, ((each, *scan(each)) for each in partitions))

    return whole_report(plan, reports())


def scan_one(
    directory: LogDirectory,
    each: TopicPartition,
    now_ms: int,
    read_up_to: ReadUpTo,
    forecast: Forecast,
    on_bytes: Callable[[int], object] = lambda _: None,
    *,
    use_threads: bool,
) -> "tuple[ScannedPartition, report.RetentionForecast]":
    """What is in a partition; an error that ends its scan is one of its problems."""
    from segmentlog.analysis.scan_partition import Part, ScannedPartition, scan_partition

    retention, problems = _NO_RETENTION, list[str]()
    try:
        log = directory.log(*each)
        found = scan_partition(log, now_ms, read_up_to, on_bytes, use_threads=use_threads)
        problems += found.problems
    except (SegmentLogError, OSError) as error:
        problems.append(_told(error, each))
        return ScannedPartition(Part(now_ms), OffsetRange(0, 0), tuple(problems)), retention
    try:
        retention = forecast.of(log, now_ms)
    except (SegmentLogError, OSError) as error:
        if _told(error, each) not in problems:
            problems.append(_told(error, each))
    return found._replace(problems=tuple(problems)), retention


def _told(error: SegmentLogError | OSError, each: TopicPartition) -> str:
    if isinstance(error, SegmentLogError):
        return str(error)
    if is_gone(error):
        return f"{each} was removed while it was analyzed"
    return str(storage_error(error))


def topic_report(
    plan: AnalysisPlan,
    topic: str,
    scanned: "Iterator[tuple[TopicPartition, ScannedPartition, report.RetentionForecast]]",
) -> report.TopicReport:
    """The report of a topic, from the partitions that were scanned, in their order."""
    from segmentlog.analysis.figures import figures, sum_retention
    from segmentlog.analysis.scan_partition import Part

    whole, partitions = Part(plan.now_ms), list[report.PartitionReport]()
    schemas = _schemas(plan.directory)
    for each, found, retention in scanned:
        of_one = figures(found.part, retention, schemas)
        partitions.append(
            report.PartitionReport(each.partition, *found.offsets, of_one, found.problems)
        )
        whole.merge_beside(found.part)
    retention = sum_retention(each.figures.retention for each in partitions)
    of_all = figures(whole, retention, schemas)
    if plan.show_keys:
        shown = tuple(_with_key(plan, topic, each) for each in of_all.keys.heaviest)
        of_all = replace(of_all, keys=replace(of_all.keys, heaviest=shown))
    found_out = findings_of(topic, of_all, partitions)
    return report.TopicReport(topic, of_all, tuple(partitions), found_out)


def whole_report(plan: AnalysisPlan, reports: Iterator[report.TopicReport]) -> report.Analysis:
    """The report of all topics."""
    return report.Analysis(
        report.VERSION, tuple(plan.directory.paths), plan.now_ms, tuple(reports), plan.problems
    )


def _with_key(plan: AnalysisPlan, topic: str, each: report.HeavyKey) -> report.HeavyKey:
    """One of the heaviest keys with its bytes, if its record is still there."""
    try:
        log = plan.directory.log(topic, each.partition)
        rows = log.scan(each.offset, each.offset + 1, columns=["key"], use_threads=False)
        (key,) = (row for batch in rows for row in batch.column(0).to_pylist())
    except (SegmentLogError, OSError, ValueError):  # it was deleted
        return each
    return replace(each, key=key[:_MOST_KEY_BYTES])


def _schemas(directory: LogDirectory) -> dict[int, tuple[str, str]]:
    """Type and subject of each schema of a registry, if its topic is in the directory."""
    if _SCHEMAS not in directory.topics(internal=True):
        return {}
    try:
        found = table(directory, "schemas", on_corrupt_batch="skip")
    except (SegmentLogError, OSError):  # the ids are shown without them
        return {}
    rows = found.select(["id", "schema_type", "subject"]).to_pylist()
    return {
        row["id"]: (row["schema_type"] or "", row["subject"] or "") for row in rows if row["id"]
    }
