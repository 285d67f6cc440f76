"""Columns of keys and values that a serializer of a schema registry has written.

The forms are those of `segmentlog.schema_id`: the id stands before a value, or in a header.
"""

from pyspark.sql import Column, functions

from segmentlog.arguments import one_dialect

_ID_BYTES, _GUID_BYTES = 5, 17
_MOST_INDEXES = 63
_VARINT = "(?:[89A-F][0-9A-F]){0,4}[0-7][0-9A-F]"


@one_dialect()
def schema_id(
    value: Column | str, headers: Column | str | None = None, *, is_key: bool = False
) -> Column:
    """The id of the schema of a value, as ``int``; null if the value is not framed.

    Parameters
    ----------
    value : a binary column, or its name.  A framed value has a byte 0 and four bytes of the id in
        front of its bytes.
    headers : the column of headers (``includeHeaders``), or its name; None if no serializer has
        written ids to headers.  If a record has the header, the header alone counts.
    is_key : whether the value is a key, whose header has another name.
    """
    framed = _column(value)
    if headers is not None:
        framed = functions.coalesce(_last_header(headers, is_key=is_key), framed)
    digits = functions.hex(functions.substring(framed, 2, 4))
    number = functions.conv(digits, 16, 10).try_cast("int")
    return functions.when(_begins(framed, "00", _ID_BYTES), number)


@one_dialect()
def schema_guid(headers: Column | str, *, is_key: bool = False) -> Column:
    """The GUID of a schema in a header, as text; null without one.

    Parameters
    ----------
    headers, is_key : as of `schema_id`.
    """
    found = _last_header(headers, is_key=is_key)
    digits = functions.lower(functions.hex(functions.substring(found, 2, 16)))
    printed = functions.regexp_replace(digits, "^(.{8})(.{4})(.{4})(.{4})", "$1-$2-$3-$4-")
    return functions.when(_begins(found, "01", _GUID_BYTES), printed)


@one_dialect()
def payload(
    value: Column | str,
    headers: Column | str | None = None,
    *,
    is_key: bool = False,
    is_protobuf: bool = False,
) -> Column:
    """The bytes of a value without the id of its schema; null if the value is not framed.

    Parameters
    ----------
    value, headers, is_key : as of `schema_id`.
    is_protobuf : whether the path to the type of the message is left out, too.  It is between
        the id and the message.
    """
    column = _column(value)
    after_id = functions.substr(column, functions.lit(_ID_BYTES + 1))
    rest = functions.when(_begins(column, "00", _ID_BYTES), after_id)
    if is_protobuf:
        rest = _after_path(rest)
    if headers is None:
        return rest
    found = _last_header(headers, is_key=is_key)
    is_named = _begins(found, "00", _ID_BYTES) | _begins(found, "01", _GUID_BYTES)
    return functions.when(found.isNull(), rest).when(is_named, column)


def _after_path(rest: Column) -> Column:
    """The bytes after the path of a protobuf message: a count, followed by that many varints."""
    most_bytes = 1 + 5 * _MOST_INDEXES
    digits = functions.hex(functions.substring(rest, 1, most_bytes))
    first = functions.conv(functions.substring(digits, 1, 2), 16, 10).try_cast("int")
    count = functions.when(first % 2 == 1, first).otherwise(functions.shiftright(first, 1))
    pattern = functions.concat(
        functions.lit(f"^..(?:{_VARINT}){{"), count.cast("string"), functions.lit("}")
    )
    path = functions.regexp_substr(digits, pattern)
    n_bytes = functions.shiftright(functions.length(path), 1)
    return functions.when(count <= _MOST_INDEXES, functions.substr(rest, n_bytes + 1))


def _last_header(headers: Column | str, *, is_key: bool) -> Column:
    """The last header that has the name; null without one."""
    name = "__key_schema_id" if is_key else "__value_schema_id"
    named = functions.filter(_column(headers), lambda each: each["key"] == name)
    return functions.try_element_at(named, functions.lit(-1))["value"]


def _column(value: Column | str) -> Column:
    return functions.col(value) if isinstance(value, str) else value


def _begins(column: Column, byte: str, n_bytes: int) -> Column:
    """Whether values begin with a byte, in hexadecimal, and have some length at least."""
    return (functions.octet_length(column) >= n_bytes) & (
        functions.hex(functions.substring(column, 1, 1)) == byte
    )
