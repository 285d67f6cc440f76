"""A broker's settings that are defaults of its topics, under their names in the broker.

Rules: ``ServerTopicConfigSynonyms`` and ``LogConfig``; hours and minutes are those of the broker's
older names: of those that are set, the one with the finest unit counts.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

__all__ = ["Synonym", "topic_defaults"]

_HOUR_MS, _MINUTE_MS = 3_600_000, 60_000


class Synonym(NamedTuple):
    """A broker's name of a topic's setting; its value times `factor` is the topic's."""

    name: str
    factor: int = 1


_SYNONYMS: Mapping[str, tuple[Synonym, ...]] = {
    "segment.bytes": (Synonym("log.segment.bytes"),),
    "segment.ms": (Synonym("log.roll.ms"), Synonym("log.roll.hours", _HOUR_MS)),
    "segment.index.bytes": (Synonym("log.index.size.max.bytes"),),
    "index.interval.bytes": (Synonym("log.index.interval.bytes"),),
    "max.message.bytes": (Synonym("message.max.bytes"),),
    "message.timestamp.type": (Synonym("log.message.timestamp.type"),),
    "compression.type": (Synonym("compression.type"),),
    "flush.messages": (Synonym("log.flush.interval.messages"),),
    "cleanup.policy": (Synonym("log.cleanup.policy"),),
    "retention.ms": (
        Synonym("log.retention.ms"),
        Synonym("log.retention.minutes", _MINUTE_MS),
        Synonym("log.retention.hours", _HOUR_MS),
    ),
    "retention.bytes": (Synonym("log.retention.bytes"),),
    "file.delete.delay.ms": (Synonym("log.segment.delete.delay.ms"),),
    "delete.retention.ms": (Synonym("log.cleaner.delete.retention.ms"),),
    "min.cleanable.dirty.ratio": (Synonym("log.cleaner.min.cleanable.ratio"),),
    "min.compaction.lag.ms": (Synonym("log.cleaner.min.compaction.lag.ms"),),
    "max.compaction.lag.ms": (Synonym("log.cleaner.max.compaction.lag.ms"),),
}


def topic_defaults(broker: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Defaults of topics that a broker's settings give: name, value, and the broker's name.

    Parameters
    ----------
    broker : settings by the broker's names; other settings are ignored.
    """
    for name, synonyms in _SYNONYMS.items():
        for synonym in synonyms:
            text = broker.get(synonym.name, "").strip()
            if not text:
                continue
            if synonym.factor > 1 and text.lstrip("-").isdecimal():
                text = "-1" if int(text) < 0 else str(int(text) * synonym.factor)
            yield name, text, synonym.name
            break
