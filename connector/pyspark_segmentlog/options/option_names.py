"""Names of options: which are known, which are refused, and which are accepted without effect."""

import logging
from collections.abc import Iterable, Mapping

from pyspark_segmentlog.options.option import Option, nearest, refuse_client_option
from segmentlog.errors import OptionError

__all__ = ["check_names", "is_of_reads", "warn_of_unused"]

logger = logging.getLogger(__name__)

#: Options of writes alone.
_OF_WRITES = {
    "topic", "numPartitions", "autoCreateTopics", "includeTimestamp", "includeTimestampType",
    "includeOffset", "deleteRecords", "segment.bytes", "segment.ms", "segment.index.bytes",
    "index.interval.bytes", "max.message.bytes", "compression.type", "message.timestamp.type",
    "flush", "flush.messages", "lockTimeout", "txnAppId", "txnVersion",
}  # fmt: skip

_FORBIDDEN = {
    "auto.offset.reset": "use startingOffsets to say where to start",
    "key.deserializer": "keys come as bytes; use DataFrame operations to decode them",
    "value.deserializer": "values come as bytes; use DataFrame operations to decode them",
    "enable.auto.commit": "nothing is committed; the range of a read is in its options",
    "interceptor.classes": "there is no consumer that could be intercepted",
}

#: Spark up to 4.3 keeps the reader that filters have narrowed for later queries of the same
#: DataFrame, and for both sides of a union or join with itself, and makes no call to Python before
#: the tasks of those read.  So a reader cannot know whose filters it has (SPARK-58551 mends it).
_NO_PUSH_DOWN = (
    "Spark would use the filters of one query for other queries, too, and their rows would be "
    "missing: bound the read by topics (subscribe, assign), offsets (startingOffsets, "
    "endingOffsets, lastRecords) or times (startingTimestamp, endingTimestamp, lastDuration)"
)

#: How like a known name an unknown one is, to be taken for a typing mistake.
_LIKENESS = 0.8


def check_names(raw: Mapping[str, str], table: Iterable[Option]) -> None:
    """Refuse names that would change rows if they were what the user believes.

    These are client options that the ``kafka`` source refuses, options of writes, a push-down of
    filters, and names that are nearly those of an option.

    Raises
    ------
    OptionError
        For the first one.
    """
    names = {option.name.lower(): option.name for option in table}
    of_writes = {each.lower(): each for each in _OF_WRITES}
    for name, value in raw.items():
        lowered = name.lower()
        if lowered in names:
            continue
        if lowered == "filterpushdown":
            raise OptionError("filterPushdown", value, _NO_PUSH_DOWN)
        if lowered.startswith("kafka."):
            refuse_client_option(lowered.removeprefix("kafka."), value, _FORBIDDEN)
        near = nearest(name, [*names.values(), *_OF_WRITES], cutoff=_LIKENESS)
        if near in _OF_WRITES:
            accepted = "it is an option of writes; a read names its topics with subscribe"
            if lowered not in of_writes:
                accepted = f"there is no such option, and {near!r} is one of writes; a read names "
                accepted += "its topics with subscribe"
            raise OptionError(of_writes.get(lowered, name), value, accepted)
        if near:
            accepted = f"there is no such option; did you mean {near!r}?"
            raise OptionError(name, value, accepted)


def warn_of_unused(raw: Mapping[str, str], table: Iterable[Option]) -> None:
    """Say once which of the given options have no effect."""
    used = {option.name.lower() for option in table if option.is_used}
    unused = sorted(name for name in raw if name.lower() not in used)
    if unused:
        logger.warning(
            "options without effect on a batch read of a log directory: %s", ", ".join(unused)
        )


def is_of_reads(name: str, table: Iterable[Option]) -> bool:
    """Whether a read, here or of the ``kafka`` source, has an option of this lower-cased name."""
    return name in {option.name.lower() for option in table}
