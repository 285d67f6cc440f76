"""What a page shows beside an analysis: records over time, consumers, settings, a broker's start.

Each of them is what a command of its own shows: `topics`, `groups`, `configure`, `preflight`.  A
page without one of them says why.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import segmentlog
from segmentlog.analysis.analyze import AnalysisPlan
from segmentlog.cluster.directory_settings import DirectorySettings, Source
from segmentlog.errors import SegmentLogError
from segmentlog.format.topic_config import TopicConfig, setting_names, setting_text
from segmentlog.kafka_tables.open_table import table
from segmentlog.model import OnCorruptBatch
from segmentlog.reads.log_directory import LogDirectory
from segmentlog.store.paths import local_path
from segmentlog.tools.kafka_tables import records_behind
from segmentlog.tools.topics import TopicSummary, summarize
from segmentlog.tools.verify import verdict_of

#: Sources of settings that nobody has set.
_NOT_SET = (Source.DEFAULT, Source.UNSEEN, Source.INTERNAL)

_OFFSETS = "__consumer_offsets"


class GroupLag(NamedTuple):
    """How far a group is behind in a topic: in the records of all partitions, and in time."""

    group: str
    topic: str
    n_partitions: int
    n_behind: int
    most_ms: int | None


class OwnSetting(NamedTuple):
    """A setting of a topic that is not Kafka's default."""

    topic: str
    name: str
    value: str
    default: str
    source: str


class Beside(NamedTuple):
    """The answers of other commands; each reason is empty, or says why there is no answer.

    `over_time`: by topic.  `verdict`: the lines of `preflight`.
    """

    over_time: Mapping[str, TopicSummary]
    groups: Sequence[GroupLag]
    groups_reason: str
    settings: Sequence[OwnSetting]
    settings_reason: str
    verdict: Sequence[str]
    verdict_reason: str


_T = TypeVar("_T")


def beside(plan: AnalysisPlan, paths: Sequence[str]) -> Beside:
    """Ask for the directories of an analysis; `paths` are local, or there is no broker's start."""
    request, topics = plan.request, [*plan.topics]
    places = plan.directory.paths

    def over_time() -> dict[str, TopicSummary]:
        return {each.topic: each for each in summarize(plan.directory, topics)}

    def groups() -> list[GroupLag]:
        return _groups(plan.directory, topics)

    def settings() -> list[OwnSetting]:
        read = DirectorySettings.read(
            local_path(places[0]),
            request.settings,
            request.metadata,
            request.server_properties,
            is_optional=True,
            kafka_defaults=True,
        )
        return [each for topic in topics for each in _own(read, topic)]

    def verdict() -> list[str]:
        for each in places:
            local_path(each)  # which refuses a store and a tier
        metadata, static = request.metadata, request.server_properties
        steps = segmentlog.preflight(*paths, metadata=metadata, server_properties=static)
        return [*verdict_of(steps, paths, metadata, static)]

    of_groups, groups_reason = _answered(groups)
    of_settings, settings_reason = _answered(settings)
    of_start, verdict_reason = _answered(verdict)
    return Beside(
        _answered(over_time)[0] or {},  # what cannot be read is a problem of the analysis
        of_groups or (),
        groups_reason,
        of_settings or (),
        settings_reason,
        of_start or (),
        verdict_reason,
    )


def _answered(ask: Callable[[], _T]) -> tuple[_T | None, str]:
    """An answer, or the reason for which there is none."""
    try:
        return ask(), ""
    except (SegmentLogError, OSError) as error:
        return None, str(error)


def _groups(directory: LogDirectory, topics: Sequence[str]) -> list[GroupLag]:
    """The groups that have read these topics, those first that are furthest behind."""
    found = table(directory.whole, "consumer_lag", on_corrupt_batch=OnCorruptBatch.SKIP)

    def place(row: Mapping[str, Any]) -> tuple[str, str]:
        return row["group"], row["topic"]

    rows = sorted((row for row in found.to_pylist() if row["topic"] in topics), key=place)
    made = []
    for (group, topic), each in groupby(rows, place):
        own = [*each]
        behind = sum(max(records_behind(row), 0) for row in own)
        times = [row["lag_ms"] for row in own if row["lag_ms"] is not None]
        made.append(GroupLag(group, topic, len(own), behind, max(times, default=None)))
    return sorted(made, key=lambda each: (-each.n_behind, each.group, each.topic))


def _own(settings: DirectorySettings, topic: str) -> list[OwnSetting]:
    """The settings of a topic that somebody has set to something else than Kafka does."""
    known = TopicConfig()
    defaults = {
        name: setting_text(getattr(known, attribute))
        for name, attribute in setting_names().items()
    }
    return [
        OwnSetting(topic, name, each.value, defaults.get(name, ""), str(each.source))
        for name, each in sorted(settings.of(topic).items())
        if each.source not in _NOT_SET and each.value != defaults.get(name)
    ]
