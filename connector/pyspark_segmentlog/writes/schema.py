"""The columns that a write uses: those of Spark's ``kafka`` sink, and those of a restore."""

from pyspark.sql.types import StructType

from segmentlog import ProducerConfig
from segmentlog.errors import ColumnError, OptionError

_TEXT = ("string", "binary")
_HEADERS = "array<struct<key:string,value:binary>>"
_ACCEPTED = {
    "topic": ("string",),
    "key": _TEXT,
    "value": _TEXT,
    "headers": (_HEADERS,),
    "partition": ("int",),
}


_RESTORED = {
    "timestamp": ("timestamp",),
    "timestampType": ("int",),
    "offset": ("bigint",),
}


def check_sink_schema(schema: StructType, topic: str | None, config: ProducerConfig) -> None:
    """Refuse columns that cannot be records, before any task starts; other columns are ignored.

    `topic`: value of the option, which replaces the column.  `config`: decides which other columns
    are used.  Raises `ColumnError` naming the column, its type, and what is accepted;
    `OptionError` if there is no topic.
    """
    needed = ["value"]
    needed += ["timestamp"] * config.use_timestamps
    needed += ["timestampType"] * config.use_timestamp_types
    needed += ["partition", "offset"] * config.use_offsets
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    for name in needed:
        if name not in types:
            raise ColumnError(name, "missing", f"the rows have: {', '.join(types)}")
    if "topic" not in types and topic is None:
        raise OptionError("topic", "", "give the option topic, or rows with a column 'topic'")
    accepted = _ACCEPTED | {name: _RESTORED[name] for name in needed if name in _RESTORED}
    if topic is not None:
        del accepted["topic"]
    for name, found in types.items():
        if name in accepted and found not in accepted[name]:
            wanted = accepted[name]
            remedy = f"it has to be {' or '.join(wanted)}"
            if name != "headers":
                remedy += f': selectExpr("cast({name} as {wanted[0]}) as {name}", …)'
            raise ColumnError(name, found, remedy)
