"""``segmentlog.analyze``: what is in the topics of log directories."""

import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, NamedTuple, Unpack

from segmentlog.analysis import report
from segmentlog.analysis.findings import findings_of
from segmentlog.analysis.retention import Forecast
from segmentlog.arguments import instance_of, one_of, takes, topic_names
from segmentlog.declared import Declared, those_of
from segmentlog.errors import OptionError, SegmentLogError
from segmentlog.kafka_tables.open_table import table
from segmentlog.model import (
    INTERNAL_TOPICS,
    METADATA_TOPIC,
    OffsetRange,
    ReadUpTo,
    TopicPartition,
    ValueFrame,
)
from segmentlog.operation_options import BytesOptions, ClusterOptions, settings_of
from segmentlog.read_options import READ_OPTIONS, DecodeOptions, TierOptions
from segmentlog.reads.choose import missing_of, partitions_of
from segmentlog.reads.log import Log
from segmentlog.reads.log_directory import LogDirectory, open_log_dir
from segmentlog.store.paths import tiered_paths

if TYPE_CHECKING:
    from segmentlog.analysis.fields import FieldScan
    from segmentlog.analysis.scan_partition import ScannedPart, ScannedPartition

_NO_RETENTION = report.RetentionForecast("", -1, -1, "unknown", 0, 0, None, 0)
_SCHEMAS = "_schemas"
_MOST_KEY_BYTES = 256  #: of a key that is shown

_Path = str | os.PathLike[str]


class AnalysisOptions(ClusterOptions, total=False):
    """How partitions are analyzed.

    Parameters
    ----------
    settings : of all these topics, by Kafka's names (``retention.ms``); they come before those of
        the directory.  They decide what retention will remove.
    show_keys : whether the heaviest keys are read again, and their bytes shown.  Otherwise the
        result has no byte of a key or a value.
    """

    settings: Annotated[Mapping[str, str] | None, settings_of("retention.ms")]
    read_up_to: Annotated[ReadUpTo | str, READ_OPTIONS["read_up_to"]]
    show_keys: Annotated[
        bool,
        Declared(
            help="Show the heaviest keys, and not only their hashes. Nothing else of a record is "
            "ever shown, except the names of headers."
        ),
    ]


class PlanOptions(AnalysisOptions, TierOptions, total=False):
    """Those of `plan_analysis`.

    Parameters
    ----------
    show_values : whether the least and the largest texts of decoded fields are shown, and not only
        those of numbers and times.
    """

    decode: Annotated[
        str | Collection[str] | None,
        READ_OPTIONS["decode"]._replace(
            help="Also show the fields of decoded values, of keys, or of both: how many are null "
            "or distinct, and their ranges. Records are then read twice."
        ),
    ]
    decode_schemas: Annotated[str | os.PathLike[str] | None, READ_OPTIONS["decode_schemas"]]
    decode_frame: Annotated[ValueFrame | str | None, READ_OPTIONS["decode_frame"]]
    show_values: Annotated[
        bool,
        Declared(
            help="With --decode: show the least and the largest texts of fields, too, and not "
            "only those of numbers and times."
        ),
    ]


class AnalyzeOptions(PlanOptions, BytesOptions, total=False):
    """Those of `segmentlog.analyze`."""

    use_threads: Annotated[bool, Declared("whether several threads read", default=True)]


@takes(AnalyzeOptions)
def analyze(
    path: _Path | LogDirectory | None = None,
    *more: _Path,
    topics: str | Collection[str] = (),
    **options: Unpack[AnalyzeOptions],
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
    **options : those of `AnalyzeOptions`.

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
    plan = plan_analysis(path, *more, topics=topics, **those_of(PlanOptions, options))
    return analyze_plan(plan, on_bytes=options["on_bytes"], use_threads=options["use_threads"])


class AnalysisRequest(NamedTuple):
    """How partitions are analyzed; it travels to other processes."""

    settings: Mapping[str, str]
    metadata: str | None
    server_properties: str | None
    read_up_to: ReadUpTo
    now_ms: int

    def forecast(self) -> Forecast:
        """The retention of partitions; see `Forecast` for errors."""
        return Forecast(self.settings, self.metadata, self.server_properties)


class AnalysisPlan(NamedTuple):
    """The partitions to analyze, by topic, and how."""

    directory: LogDirectory
    topics: Mapping[str, Sequence[TopicPartition]]
    problems: tuple[str, ...]  # about partitions that are missing
    show_keys: bool
    request: AnalysisRequest
    fields: "FieldScan | None" = None  # what is to be decoded

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the directories."""
        return tuple(self.directory.paths)

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions of all topics, in their order."""
        return [each for partitions in self.topics.values() for each in partitions]

    @property
    def n_bytes(self) -> int:
        """Bytes of the ``.log`` files of all partitions that can be listed."""
        return sum(_size_of(self.directory, each) for each in self.partitions)


def _size_of(directory: LogDirectory, each: TopicPartition) -> int:
    try:
        return directory.log(*each).size_bytes
    except (SegmentLogError, OSError):  # the analysis reports it
        return 0


@takes(PlanOptions)
def plan_analysis(
    path: _Path | LogDirectory | None = None,
    *more: _Path,
    topics: str | Collection[str] = (),
    **options: Unpack[PlanOptions],
) -> AnalysisPlan:
    """Choose the partitions; see `analyze` for arguments and errors."""
    names = topic_names("topics", topics)
    settings = options["settings"]
    instance_of("settings", settings, (Mapping, type(None)), "give names of settings and values")
    request = AnalysisRequest(
        settings or {},
        None if options["metadata"] is None else os.fsdecode(options["metadata"]),
        None
        if options["server_properties"] is None
        else os.fsdecode(options["server_properties"]),
        one_of("read_up_to", options["read_up_to"], ReadUpTo),
        time.time_ns() // 10**6,
    )
    request.forecast()  # refuses wrong settings
    if isinstance(path, LogDirectory):
        if more or options["remote_storage"] is not None:
            accepted = "give a LogDirectory alone; pass all paths to open_log_dir"
            raise OptionError("path", ", ".join(map(str, more)), accepted)
        directory = path
    else:
        given = tiered_paths(
            () if path is None else (path, *more),
            options["remote_storage"],
            options["remote_storage_layout"],
            options["remote_storage_key_file"],
            fail_on_data_loss=False,
        )
        directory = open_log_dir(*given)
    missing = missing_of(directory, names)
    chosen: dict[str, list[TopicPartition]] = {}
    for each in partitions_of(directory, names, (), missing):
        if names or each.topic not in INTERNAL_TOPICS | {METADATA_TOPIC}:
            chosen.setdefault(each.topic, []).append(each)
    problems = tuple(f"{each.topic_partition}: {each.reason}" for each in missing)
    fields = _field_scan(directory, options)
    return AnalysisPlan(directory, chosen, problems, options["show_keys"], request, fields)


def _field_scan(directory: LogDirectory, options: PlanOptions) -> "FieldScan | None":
    """What reads the fields of topics, if that is asked for."""
    if options["decode"] is None:
        for name in ("decode_schemas", "decode_frame", "show_values"):
            if given := options[name]:
                raise OptionError(name, str(given), "it belongs to decode, which is not given")
        return None
    from segmentlog.analysis.fields import FieldScan

    decodes = those_of(DecodeOptions, options)
    decodes["decode_subject"] = decodes["decode_version"] = None  # each topic has its own
    return FieldScan(directory, decodes, shows_values=options["show_values"])


def analyze_plan(
    plan: AnalysisPlan,
    on_bytes: Callable[[int], object] = lambda _: None,
    on_topic: Callable[[str], object] = lambda _: None,
    *,
    use_threads: bool = True,
) -> report.Analysis:
    """Analyze the partitions of a plan; `on_topic` is called with each topic before its scan."""
    scanner = _Scanner(plan.directory, plan.request, on_bytes, use_threads=use_threads)

    decoded = dict[str, tuple[report.DecodedFigures, ...]]()

    def groups() -> Iterator[_ScannedGroup]:
        for topic, partitions in plan.topics.items():
            on_topic(topic)
            group = scanner.group(topic, [each.partition for each in partitions])
            if plan.fields is not None:
                decoded[topic] = tuple(plan.fields.of_topic(topic, group.logs))
            yield group

    found = _whole_report(plan, groups(), scanner.schemas)
    topics = tuple(replace(each, decoded=decoded.get(each.topic, ())) for each in found.topics)
    return replace(found, topics=topics)


class AnalysisTask(NamedTuple):
    """Some partitions of one topic, which a process analyzes that has the same directories."""

    paths: tuple[str, ...]
    topic: str
    partitions: tuple[int, ...]
    request: AnalysisRequest


def tasks_of(plan: AnalysisPlan, most: int) -> list[AnalysisTask]:
    """The partitions of a plan in about `most` tasks of similar sizes, in their order.

    A partition is not divided, and a task has partitions of one topic.
    """
    sizes = {each: _size_of(plan.directory, each) for each in plan.partitions}
    wanted = max(1, sum(sizes.values()) // most)
    n_wanted = max(1, len(sizes) // most)
    tasks = list[AnalysisTask]()
    for topic, partitions in plan.topics.items():
        taken, n_bytes = list[int](), 0
        for each in partitions:
            if taken and (n_bytes + sizes[each] > wanted and len(taken) >= n_wanted):
                tasks.append(AnalysisTask(plan.paths, topic, tuple(taken), plan.request))
                taken, n_bytes = [], 0
            taken.append(each.partition)
            n_bytes += sizes[each]
        tasks.append(AnalysisTask(plan.paths, topic, tuple(taken), plan.request))
    return tasks


def run_task(task: AnalysisTask) -> str:
    """What is in the partitions of a task, as JSON for `report_of_tasks`."""
    scanner = _Scanner(open_log_dir(*task.paths), task.request, use_threads=False)
    group = scanner.group(task.topic, task.partitions)
    reports = report.as_json(group.reports)
    return json.dumps({"topic": task.topic, "part": group.part.to_json(), "reports": reports})


def report_of_tasks(plan: AnalysisPlan, outcomes: Iterable[str]) -> report.Analysis:
    """The report of a plan, from the outcomes of `tasks_of` it, in their order.

    Raises `ValueError` if an outcome was not made by `run_task`.
    """
    from segmentlog.analysis.scan_partition import ScannedPart

    def groups() -> Iterator[_ScannedGroup]:
        for text in outcomes:
            found = json.loads(text)
            reports = tuple(
                report.from_json(report.PartitionReport, each) for each in found["reports"]
            )
            yield _ScannedGroup(found["topic"], ScannedPart.from_json(found["part"]), reports)

    schemas = partial(_schemas, plan.directory)
    return _whole_report(plan, groups(), schemas)


class _ScannedGroup(NamedTuple):
    """Some partitions of a topic that were scanned, and all of them as one part.

    `logs`: those that could be read, with the offsets that were; not those of other processes.
    """

    topic: str
    part: "ScannedPart"
    reports: tuple[report.PartitionReport, ...]
    logs: tuple[tuple[Log, OffsetRange], ...] = ()


class _Scanner:
    """Scans partitions of a directory."""

    def __init__(
        self,
        directory: LogDirectory,
        request: AnalysisRequest,
        on_bytes: Callable[[int], object] = lambda _: None,
        *,
        use_threads: bool,
    ) -> None:
        self._directory, self._request = directory, request
        self._on_bytes, self._use_threads = on_bytes, use_threads
        self._forecast = request.forecast()
        #: reads the schemas of a registry once
        self.schemas = cache(partial(_schemas, directory))

    def group(self, topic: str, partitions: Iterable[int]) -> _ScannedGroup:
        """Scan partitions of a topic."""
        from segmentlog.analysis.figures import figures
        from segmentlog.analysis.scan_partition import ScannedPart, scan_partitions

        whole, reports = ScannedPart(self._request.now_ms), list[report.PartitionReport]()
        logs = list[tuple[Log, OffsetRange]]()
        for found in scan_partitions(
            self._directory,
            [TopicPartition(topic, each) for each in partitions],
            self._request.now_ms,
            self._request.read_up_to,
            self._on_bytes,
            use_threads=self._use_threads,
        ):
            retention, problems = self._retention(topic, found)
            of_one = figures(found.part, retention, self.schemas())
            reports.append(
                report.PartitionReport(
                    found.partition, *found.offsets, found.n_not_read, of_one, problems
                )
            )
            whole.merge_beside(found.part)
            if found.log is not None:
                logs.append((found.log, found.offsets))
        return _ScannedGroup(topic, whole, tuple(reports), tuple(logs))

    def _retention(
        self, topic: str, found: "ScannedPartition"
    ) -> tuple[report.RetentionForecast, tuple[str, ...]]:
        """What retention will remove from a partition, and the problems of both."""
        from segmentlog.analysis.scan_partition import told

        if found.log is None:
            return _NO_RETENTION, found.problems
        try:
            return self._forecast.of(found.log, self._request.now_ms), found.problems
        except (SegmentLogError, OSError) as error:
            problem = told(error, TopicPartition(topic, found.partition))
            more = () if problem in found.problems else (problem,)
            return _NO_RETENTION, (*found.problems, *more)


def _whole_report(
    plan: AnalysisPlan,
    groups: Iterable[_ScannedGroup],
    schemas: Callable[[], Mapping[int, tuple[str, str]]],
) -> report.Analysis:
    """The report of all topics, from their partitions, in their order."""
    topics = tuple(
        _topic_report(plan, topic, found, schemas())
        for topic, found in groupby(groups, key=lambda each: each.topic)
    )
    return report.Analysis(report.VERSION, plan.paths, plan.request.now_ms, topics, plan.problems)


def _topic_report(
    plan: AnalysisPlan,
    topic: str,
    groups: Iterable[_ScannedGroup],
    schemas: Mapping[int, tuple[str, str]],
) -> report.TopicReport:
    from segmentlog.analysis.figures import figures, sum_retention
    from segmentlog.analysis.scan_partition import ScannedPart

    whole, partitions = ScannedPart(plan.request.now_ms), list[report.PartitionReport]()
    for each in groups:
        whole.merge_beside(each.part)
        partitions += each.reports
    retention = sum_retention(each.figures.retention for each in partitions)
    of_all = figures(whole, retention, schemas)
    if plan.show_keys:
        shown = tuple(_with_key(plan, topic, each) for each in of_all.keys.heaviest)
        of_all = replace(of_all, keys=replace(of_all.keys, heaviest=shown))
    found_out = findings_of(topic, of_all, partitions)
    return report.TopicReport(topic, of_all, tuple(partitions), found_out)


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
