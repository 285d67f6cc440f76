"""Columns of values that a serializer of a schema registry has framed."""

from pyspark.sql import Column, functions

__all__ = ["payload", "schema_id"]

_FRAME_BYTES = 5


def schema_id(value: Column | str) -> Column:
    """The id of the schema of a value, as ``int``; null if the value is not framed.

    Parameters
    ----------
    value : a binary column, or its name.  A framed value has a byte 0 and four bytes of the id in
        front of its bytes.
    """
    column = _column(value)
    number = functions.conv(functions.hex(functions.substring(column, 2, 4)), 16, 10).try_cast(
        "int"
    )
    return functions.when(_is_framed(column), number)


def payload(value: Column | str) -> Column:
    """The bytes of a value after the id of its schema; null if the value is not framed.

    In front of a message of protobuf, the path to its type in the schema stays.

    Parameters
    ----------
    value : a binary column, or its name.
    """
    column = _column(value)
    return functions.when(
        _is_framed(column), functions.substr(column, functions.lit(_FRAME_BYTES + 1))
    )


def _column(value: Column | str) -> Column:
    return functions.col(value) if isinstance(value, str) else value


def _is_framed(column: Column) -> Column:
    return (functions.octet_length(column) >= _FRAME_BYTES) & (
        functions.hex(functions.substring(column, 1, 1)) == "00"
    )
