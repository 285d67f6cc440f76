"""Settings of a topic that matter to writers of its logs, under Kafka's names."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from segmentlog.errors import OptionError
from segmentlog.model import MAX_MESSAGE_BYTES, Codec, TimestampType

__all__ = ["TopicConfig"]

_LARGEST_INT = 2**31 - 1
_LARGEST_LONG = 2**63 - 1

#: Least and largest value of each number (``LogConfig``).
_BOUNDS = {
    "segment.bytes": (14, _LARGEST_INT),
    "segment.ms": (1, _LARGEST_LONG),
    "segment.index.bytes": (4, _LARGEST_INT),
    "index.interval.bytes": (0, _LARGEST_INT),
    "max.message.bytes": (0, _LARGEST_INT),
    "flush.messages": (1, _LARGEST_LONG),
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


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """Settings of a topic's logs; the defaults are Kafka's.

    Attributes
    ----------
    segment_bytes, segment_ms : size and age, in record time, at which a segment rolls.
    segment_index_bytes : most bytes of either index.
    index_interval_bytes : bytes of log from index entry to index entry.
    max_message_bytes : most bytes of a batch.
    message_timestamp_type : whether records have the producer's time or the append time.
    compression_type : codec of all batches, or None to leave it to the producer.
    flush_messages : number of records from which a job is synced, even if its producer does not
        ask for it.
    """

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3600 * 1000
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    max_message_bytes: int = MAX_MESSAGE_BYTES
    message_timestamp_type: TimestampType = TimestampType.CREATE_TIME
    compression_type: Codec | None = None
    flush_messages: int = _LARGEST_LONG

    @classmethod
    def parse(cls, settings: Mapping[str, str]) -> "TopicConfig":
        """Check settings by their Kafka names, such as ``segment.bytes``.

        Raises
        ------
        OptionError
            For a setting that is unknown, or whose value is not accepted.
        """
        names = {field.name.replace("_", "."): field.name for field in fields(cls)}
        values: dict[str, Any] = {}
        for name, text in settings.items():
            if name == "flush.ms":
                raise OptionError(name, text, "nobody is there to sync between jobs; flush=commit "
                                  "syncs each of them")  # fmt: skip
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"settings are {', '.join(names)}"
                raise OptionError(name, text, f"there is no such topic setting; {hint}")
            values[names[name]] = _value(name, text.strip())
        return cls(**values)


def _value(name: str, text: str) -> int | None:
    """The value of a setting: a number, or the meaning of a word."""
    for words, setting in (
        (_TIMESTAMP_TYPES, "message.timestamp.type"),
        (_COMPRESSION_TYPES, "compression.type"),
    ):
        if name == setting:
            if text not in words:
                raise OptionError(name, text, f"give {' or '.join(words)}")
            return words[text]
    least, most = _BOUNDS[name]
    if re.fullmatch(r"[0-9]{1,19}", text) is None or not least <= int(text) <= most:
        raise OptionError(name, text, f"give a number from {least} to {most}")
    return int(text)
