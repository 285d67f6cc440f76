"""Names of options: which are known, which are refused, and which are accepted without effect."""

import logging
from collections.abc import Mapping

from pyspark_segmentlog.options.option import Query
from pyspark_segmentlog.options.reference import READ_OPTIONS, WRITE_OPTIONS
from segmentlog.arguments import is_word, nearest, right_word
from segmentlog.declared import SPARK_READ, SPARK_WRITE
from segmentlog.errors import OptionError

logger = logging.getLogger(__name__)

#: By lower-cased name.
_READS = {option.name.lower(): option.name for option in READ_OPTIONS}
_WRITES = {option.name.lower(): option.name for option in WRITE_OPTIONS}

#: Options of tables, and of writes, which a read of records refuses.
_OF_TABLES = {"topic"}

#: Begins the names of settings of clients.  Code may give one set of them to reads and writes.
_CLIENT_PREFIX = "kafka."

#: Options of the ``kafka`` source and sink that mean nothing without a broker, and change no row.
#: Spark adds the name of a query to the options of its sink.
_IGNORED_BY_WRITES = {
    "includeheaders",
    "queryname",
    *(option.name.lower() for option in READ_OPTIONS if not option.used_by),
}

#: Options of Kafka's clients that show a misunderstanding; their other options are not used.
_FORBIDDEN_IN_READS = {
    "auto.offset.reset": "use startingOffsets to choose where the read starts",
    "key.deserializer": "keys come as bytes; use DataFrame operations to decode them",
    "value.deserializer": "values come as bytes; use DataFrame operations to decode them",
    "enable.auto.commit": "a read commits no offsets; its range is given by its options",
    "interceptor.classes": "a read uses no consumer that could be intercepted",
}
_FORBIDDEN_IN_WRITES = {
    "key.serializer": "keys are written as they are; convert them with DataFrame operations",
    "value.serializer": "values are written as they are; convert them with DataFrame operations",
}

#: Spark up to 4.3 uses a reader that filters have narrowed again: for later queries of the same
#: DataFrame, and for both sides of a union or a self-join.  It makes no call to Python before the
#: tasks of these queries read.  So a reader cannot know whose filters it has (SPARK-58551 mends
#: it).
_NO_PUSH_DOWN = (
    "Spark would apply the filters of one query to other queries too, and those queries would "
    "miss rows: bound the read by topics (subscribe, assign), offsets (startingOffsets, "
    "endingOffsets, lastRecords) or times (startingTimestamp, endingTimestamp, lastDuration)"
)

_OF_CALLS = (
    "it is a word of Python's functions or of the command line, and has no meaning in a read: "
    "leave it out"
)

_OF_WRITES = "a read names its topics with subscribe"

_OF_READS = (
    "it is an option of reads; a write names its topic with the option topic, and in SQL a write "
    "is an INSERT INTO a view with that option: CREATE TEMPORARY VIEW sink (key STRING, value "
    "STRING) USING segmentlog OPTIONS (path '/data/logs', topic 'orders')"
)

#: The similarity to a known name above which an unknown name is taken for a typing mistake.  A
#: read has unknown names from code for ``kafka``; a write refuses them all, and only suggests.
_SIMILAR, _SUGGESTED = 0.8, 0.6


def read_names(raw: Mapping[str, str]) -> dict[str, str]:
    """Names of the options that a read may have, by lower-cased names."""
    if any(name.lower() == "table" for name in raw):
        return _READS
    return {lowered: name for lowered, name in _READS.items() if lowered not in _OF_TABLES}


def check_read_names(raw: Mapping[str, str]) -> None:
    """Refuse names that would change rows if they were what the user believes."""
    # These are client options that the ``kafka`` source refuses, options of writes, a push-down of
    # filters, and names that are nearly those of an option.
    reads = read_names(raw)
    used = [
        option.name for option in READ_OPTIONS if option.used_by and option.name.lower() in reads
    ]
    writes_only = [name for lowered, name in _WRITES.items() if lowered not in reads]
    for name, value in raw.items():
        lowered = name.lower()
        if lowered in reads:
            continue
        if lowered == "filterpushdown":
            raise _unknown("filterPushdown", value, _NO_PUSH_DOWN)
        of_writes = [] if lowered.startswith(_CLIENT_PREFIX) else writes_only
        if lowered.startswith(_CLIENT_PREFIX):
            _refuse_client_option(lowered, value, _FORBIDDEN_IN_READS)
        elif lowered in _WRITES:
            raise _unknown(_WRITES[lowered], value, f"it is an option of writes; {_OF_WRITES}")
        elif right := right_word(name, used, SPARK_READ):
            raise _unknown(name, value, f"a read has no such option: {right}")
        elif right := right_word(name, of_writes, SPARK_WRITE):
            accepted = f"it is an option of writes; {_OF_WRITES} (in a write, {right})"
            raise _unknown(name, value, accepted)
        elif is_word(name):
            raise _unknown(name, value, _OF_CALLS)
        near = nearest(name, [*used, *of_writes], _SIMILAR)
        if near in of_writes:
            accepted = (
                f"there is no such option, and {near!r} is an option of writes; {_OF_WRITES}"
            )
            raise _unknown(name, value, accepted)
        if near:
            raise _unknown(name, value, f"there is no such option; did you mean {near!r}?")


def check_write_names(raw: Mapping[str, str]) -> None:
    """Refuse each unknown name: silence would write other rows than the user meant."""
    for name, value in raw.items():
        lowered = name.lower()
        if lowered in _WRITES or lowered in _IGNORED_BY_WRITES:
            continue
        if lowered.startswith(_CLIENT_PREFIX):
            _refuse_client_option(lowered, value, _FORBIDDEN_IN_WRITES)
            continue
        hint = right_word(name, _WRITES.values(), SPARK_WRITE)
        if lowered in _READS or (not hint and right_word(name, _READS.values(), SPARK_READ)):
            raise _unknown(name, value, _OF_READS)
        if not hint:
            near = nearest(name, _WRITES.values(), _SUGGESTED)
            known = f"the options are {', '.join(_WRITES.values())}"
            hint = f"did you mean {near!r}?" if near else known
        raise _unknown(name, value, f"there is no such option; {hint}")


def _unknown(name: str, value: str, accepted: str) -> OptionError:
    error = OptionError(name, value, accepted)
    error.is_unknown = True
    return error


def warn_of_unused(raw: Mapping[str, str], query: Query) -> None:
    """Say once which of the given options have no effect on a query that reads."""
    used = {option.name.lower() for option in READ_OPTIONS if query in option.used_by}
    unused = sorted(name for name in raw if name.lower() not in used)
    if unused:
        logger.warning(
            "options without effect on a %s query of a log directory: %s", query, ", ".join(unused)
        )


def _refuse_client_option(lowered: str, value: str, forbidden: Mapping[str, str]) -> None:
    reason = forbidden.get(lowered.removeprefix(_CLIENT_PREFIX))
    if lowered.startswith(_CLIENT_PREFIX) and reason:
        raise OptionError(lowered, value, f"it is not supported: {reason}")
