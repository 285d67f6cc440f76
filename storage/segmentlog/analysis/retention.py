"""When retention will next remove something from a partition, and how much."""

import os
from collections.abc import Mapping
from functools import cache

from segmentlog.analysis.report import RetentionForecast
from segmentlog.cluster.directory_settings import DirectorySettings, Source
from segmentlog.errors import SegmentLogError
from segmentlog.format.topic_config import TopicConfig
from segmentlog.maintain.retain import plan_retention, spans_of
from segmentlog.reads.log import Log
from segmentlog.store.paths import local_path
from segmentlog.store.readable import status_of

_LAST_MS = 253_402_300_799_999  #: the last time that a calendar has: the end of the year 9999

_SETTINGS = ("cleanup.policy", "retention.ms", "retention.bytes")


class Forecast:
    """The retention of partitions, by the settings of their topics.

    `given`: settings of all these topics, which come before those of the directory.  `metadata`,
    `server_properties`: see `segmentlog.topic_settings`.  Raises `OptionError` if a setting is
    unknown, or has a value that is not accepted.
    """

    def __init__(
        self,
        given: Mapping[str, str],
        metadata: str | os.PathLike[str] | None,
        server_properties: str | os.PathLike[str] | None,
    ) -> None:
        TopicConfig.parse(given)
        self._given, self._metadata, self._static = given, metadata, server_properties
        self._settings = cache(self._read)

    def _read(self, directory: str) -> DirectorySettings:
        """The settings of a log directory; Kafka's defaults where it has none."""
        try:
            place = local_path(directory)
        except SegmentLogError:  # a copy in a store, or a tier, has no settings
            return DirectorySettings(self._given, is_unseen=True)
        return DirectorySettings.read(
            place, self._given, self._metadata, self._static, is_optional=True, kafka_defaults=True
        )

    def of(self, log: Log, now_ms: int) -> RetentionForecast:
        """The retention of one partition at a time (epoch).

        Raises `SegmentLogError` if the settings or the ends of segments cannot be read.
        """
        topic = log.topic_partition.topic
        settings = self._settings(os.path.dirname(log.path))
        config, found = settings.config(topic), settings.of(topic)
        by_source: dict[str, list[str]] = {}
        for name in _SETTINGS:
            by_source.setdefault(
                _WORDS.get(found[name].source, str(found[name].source)), []
            ).append(name)
        source = "; ".join(f"{', '.join(names)}: {where}" for where, names in by_source.items())
        due = plan_retention(log, config, now_ms)
        left = spans_of(log)[len(due) :]
        next_ms, next_bytes = None, 0
        if left and left[0].n_bytes and "delete" in config.cleanup_policy:
            next_ms = self._expires_ms(log, left[0].base_offset, config)
            next_bytes = left[0].n_bytes if next_ms is not None else 0
        return RetentionForecast(
            found["cleanup.policy"].value,
            config.retention_ms,
            config.retention_bytes,
            source,
            len(due),
            sum(each.span.n_bytes for each in due),
            next_ms,
            next_bytes,
        )

    def _expires_ms(self, log: Log, base_offset: int, config: TopicConfig) -> int | None:
        if config.retention_ms < 0:
            return None
        (segment,) = (each for each in log.untorn_segments if each.base_offset == base_offset)
        newest = segment.largest_timestamp()
        if newest < 0:
            newest = status_of(segment.path).modified_ns // 10**6
        expires_ms = newest + config.retention_ms
        return expires_ms if expires_ms <= _LAST_MS else None  # Kafka's largest number is never


_WORDS = {
    Source.CALL: "as given",
    Source.DEFAULT: "Kafka's default, because nothing else is known",
    Source.UNSEEN: "Kafka's default, because nothing else is known",
    Source.TOPIC: "the topic's own",
}
