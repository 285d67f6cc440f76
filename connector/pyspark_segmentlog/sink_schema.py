"""The columns that a write takes: those of Spark's ``kafka`` sink, and ``timestamp``."""

from pyspark.sql.types import StructType

from segmentlog.errors import OptionError

__all__ = ["check_sink_schema"]

_TEXT = ("string", "binary")
_HEADERS = "array<struct<key:string,value:binary>>"
_ACCEPTED = {
    "topic": ("string",),
    "key": _TEXT,
    "value": _TEXT,
    "headers": (_HEADERS,),
    "partition": ("int",),
}


def check_sink_schema(schema: StructType, topic: str | None, *, with_timestamps: bool) -> None:
    """Refuse columns that cannot be records, before any task starts; others are ignored.

    Parameters
    ----------
    schema : of the rows.
    topic : the option, which stands in for the column.
    with_timestamps : whether the column ``timestamp`` is to be taken.

    Raises
    ------
    OptionError
        Naming the column, its type, and what is accepted.
    """
    accepted = dict(_ACCEPTED)
    if with_timestamps:
        accepted["timestamp"] = ("timestamp",)
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    if "value" not in types:
        raise OptionError("value", ", ".join(types), "the rows need a column 'value'")
    if "topic" not in types and topic is None:
        raise OptionError("topic", "", "give the option topic, or rows with a column 'topic'")
    for name, found in types.items():
        if name in accepted and found not in accepted[name]:
            raise OptionError(name, found, f"the column has to be {' or '.join(accepted[name])}")
