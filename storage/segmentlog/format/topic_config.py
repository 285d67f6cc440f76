"""Settings of a topic that matter to its logs, under Kafka's names."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from segmentlog.arguments import (
    LARGEST_INT,
    class_of_one_dialect,
    instance_of,
    nearest,
    number_by_word,
    whole_number,
)
from segmentlog.errors import OptionError
from segmentlog.model import (
    INDEX_INTERVAL_BYTES,
    LARGEST_LONG,
    LEAST_LONG,
    MAX_MESSAGE_BYTES,
    Codec,
    TimestampType,
)

_DAY_MS = 24 * 3600 * 1000

#: Least and largest value of each number (``LogConfig``).
_BOUNDS = {
    "segment.bytes": (14, LARGEST_INT),
    "segment.ms": (1, LARGEST_LONG),
    "segment.index.bytes": (4, LARGEST_INT),
    "index.interval.bytes": (0, LARGEST_INT),
    "max.message.bytes": (0, LARGEST_INT),
    "flush.messages": (1, LARGEST_LONG),
    "retention.ms": (-1, LARGEST_LONG),
    "retention.bytes": (-LARGEST_LONG - 1, LARGEST_LONG),
    "local.retention.ms": (-2, LARGEST_LONG),
    "local.retention.bytes": (-2, LARGEST_LONG),
    "file.delete.delay.ms": (0, LARGEST_LONG),
    "delete.retention.ms": (0, LARGEST_LONG),
    "min.compaction.lag.ms": (0, LARGEST_LONG),
    "max.compaction.lag.ms": (1, LARGEST_LONG),
}
_TIMESTAMP_TYPES: dict[str, int | None] = {
    "CreateTime": TimestampType.CREATE_TIME,
    "LogAppendTime": TimestampType.LOG_APPEND_TIME,
}
_COMPRESSION_TYPES: dict[str, Codec | None] = {
    "producer": None,
    "uncompressed": Codec.NONE,
    **{codec.name.lower(): codec for codec in Codec if codec},
}
_POLICIES = {"delete", "compact"}


@class_of_one_dialect()
@dataclass(frozen=True, slots=True)
class TopicConfig:
    """Settings of a topic's logs; the defaults are Kafka's.

    Attributes
    ----------
    segment_bytes, segment_ms : size and age, in record time, at which a segment rolls.
    segment_index_bytes : most bytes of either index.
    index_interval_bytes : bytes of log between two index entries.
    max_message_bytes : most bytes of a batch.
    message_timestamp_type : whether records have the producer's time or the append time.
    compression_type : codec of all batches, or None to leave it to the producer.
    flush_messages : a job with at least this many records is synced, even if its producer does
        not ask for it.
    cleanup_policy : ``delete``, ``compact``, both or neither.
    retention_ms, retention_bytes : age and size beyond which old segments are deleted; no limit if
        negative.
    remote_storage_enable : whether a broker moves segments into its tier.
    local_retention_ms, local_retention_bytes : age and size beyond which a broker then removes
        them from its disk; no limit if -1, those of all retention if -2.
    file_delete_delay_ms : time from the removal of a segment from its log to the removal of its
        files.
    delete_retention_ms : time for which compaction keeps tombstones.
    min_cleanable_dirty_ratio : share of dirty bytes above which a log is compacted.
    min_compaction_lag_ms, max_compaction_lag_ms : least age of a record to be compacted, and the
        age at which a log with a dirty record is compacted in any case.
    given : names of the attributes that were given: they override all other settings of the topic
        and its directory.  By default, they are the attributes that differ from Kafka's
        defaults; `parse` knows them exactly.
    """

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3600 * 1000
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = INDEX_INTERVAL_BYTES
    max_message_bytes: int = MAX_MESSAGE_BYTES
    message_timestamp_type: TimestampType = TimestampType.CREATE_TIME
    compression_type: Codec | None = None
    flush_messages: int = LARGEST_LONG
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    retention_ms: int = 7 * _DAY_MS
    retention_bytes: int = -1
    remote_storage_enable: bool = False
    local_retention_ms: int = -2
    local_retention_bytes: int = -2
    file_delete_delay_ms: int = 60_000
    delete_retention_ms: int = _DAY_MS
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = LARGEST_LONG
    given: frozenset[str] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in _BOUNDS:
            attribute = name.replace(".", "_")
            whole_number(attribute, getattr(self, attribute), LEAST_LONG)
        accepted = "give True or False"
        instance_of("remote_storage_enable", self.remote_storage_enable, bool, accepted)
        if self.compression_type is not None:
            codec = number_by_word("compression_type", self.compression_type, Codec)
            object.__setattr__(self, "compression_type", codec)
        kind = number_by_word("message_timestamp_type", self.message_timestamp_type, TimestampType)
        object.__setattr__(self, "message_timestamp_type", kind)

    @classmethod
    def parse(cls, settings: Mapping[str, str]) -> "TopicConfig":
        """Check settings by their Kafka names, such as ``segment.bytes``.

        Raises
        ------
        OptionError
            For a setting that is unknown, or whose value is not accepted.
        """
        names = setting_names()
        values: dict[str, Any] = {}
        accepted = "give names and values of settings as text: {'retention.ms': '1000'}"
        instance_of("settings", settings, Mapping, accepted)
        for name, text in settings.items():
            instance_of("settings", name, str, accepted)
            instance_of(name, text, str, accepted)
            if name == "flush.ms":
                accepted = "no process syncs between jobs; use flush=commit, which syncs each job"
                raise OptionError(name, text, accepted)
            if name not in names:
                near = nearest(name, names)
                hint = f"did you mean {near!r}?" if near else f"settings are {', '.join(names)}"
                raise OptionError(name, text, f"there is no such topic setting; {hint}")
            values[names[name]] = _value(name, text.strip())
        return cls(**values, given=frozenset(values))

    def above(self, other: "TopicConfig") -> "TopicConfig":
        """Combine two configurations: a value that this one does not give comes from the other."""
        if self.given is None:
            known = TopicConfig()
            given = {
                name
                for name in setting_names().values()
                if getattr(self, name) != getattr(known, name)
            }
        else:
            given = set(self.given)
        return replace(other, given=self.given, **{name: getattr(self, name) for name in given})


#: Settings that mean something with a tier, which only brokers fill.
OF_TIERS = frozenset({"remote.storage.enable", "local.retention.ms", "local.retention.bytes"})


def check_stored(settings: Mapping[str, str]) -> None:
    """Refuse settings that a directory without a broker cannot keep, by `OptionError`."""
    TopicConfig.parse(settings)
    for name in OF_TIERS & settings.keys():
        accepted = "only a broker moves segments into a tier: set it with kafka-configs.sh"
        raise OptionError(name, settings[name], accepted)


def setting_names() -> dict[str, str]:
    """Kafka's name of each setting, and the name of its attribute in `TopicConfig`."""
    names = [each.name for each in fields(TopicConfig) if each.name != "given"]
    return {name.replace("_", "."): name for name in names}


def setting_text(value: object) -> str:
    """A value of a `TopicConfig`, as Kafka writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    for words in (_TIMESTAMP_TYPES, _COMPRESSION_TYPES):
        for word, meaning in words.items():
            if meaning is value:
                return word
    return ",".join(sorted(value)) if isinstance(value, frozenset) else str(value)


def _value(name: str, text: str) -> int | float | frozenset[str] | None:
    if name == "cleanup.policy":
        words = frozenset(each.strip() for each in text.split(",")) - {""}
        if not words <= _POLICIES:
            raise OptionError(name, text, "give delete, compact, or both with a comma")
        return words
    if name == "min.cleanable.dirty.ratio":
        if re.fullmatch(r"[0-9]*\.?[0-9]+|[0-9]+\.", text) is None or not float(text) <= 1:
            raise OptionError(name, text, "give a number from 0 to 1")
        return float(text)
    if name == "remote.storage.enable":
        if text.lower() not in {"true", "false"}:
            raise OptionError(name, text, "give true or false")
        return text.lower() == "true"
    for meanings, setting in (
        (_TIMESTAMP_TYPES, "message.timestamp.type"),
        (_COMPRESSION_TYPES, "compression.type"),
    ):
        if name == setting:
            if text not in meanings:
                raise OptionError(name, text, f"give {' or '.join(meanings)}")
            return meanings[text]
    least, most = _BOUNDS[name]
    if re.fullmatch(r"-?[0-9]{1,19}", text) is None or not least <= int(text) <= most:
        raise OptionError(name, text, f"give a number from {least} to {most}")
    return int(text)
