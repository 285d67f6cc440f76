"""What the schemas of all formats have in common.

A schema comes from a registry that anybody may have filled, and so does a value.  The bounds here
hold for all formats.
"""

import sys
from importlib import import_module
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from segmentlog.decoding.payloads import Payloads
from segmentlog.errors import OptionError

#: The option of an error that `needed` raises.
OF_PACKAGE = "schemas"

#: Levels of types within each other; packages and Arrow call themselves for each.
MOST_LEVELS = 32

#: Fields in all levels: types that are used twice at each level would be billions.
MOST_FIELDS = 10_000

#: What packages, and Arrow, raise for schemas and values that they cannot take.
FAILS = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    EOFError,
    OverflowError,
    AttributeError,
    RecursionError,
    MemoryError,
    pa.ArrowException,
)


#: To a field: names, and None for the items of a list or the entries of a map.
Steps: TypeAlias = tuple[str | None, ...]


class UnusableSchemaError(ValueError):
    """A schema that is not one of its format, or that Arrow cannot hold; the text says why."""


class ValueSchema(Protocol):
    """A schema of a format.  `type`: of the column of its values."""

    type: pa.DataType

    def decode(self, values: Payloads, reader: Any, causes: dict[int, str]) -> pa.Array:  # noqa: ANN401
        """Values of this schema as a column of the type of `reader`; null where there is a cause.

        `reader`: a schema of the same format.  `causes`: gets why a value cannot be decoded, by
        its number in `values`.
        """


def needed(package: str) -> Any:  # noqa: ANN401 - packages without types
    """A package of the extra."""
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        name = package.partition(".")[0]
        # Of Spark, the worker may lack what the driver has: which Python it is, is not obvious.
        missing = f"the package {name} decodes it, and is missing in {sys.executable}"
        accepted = f"{missing}: pip install 'pyspark-segmentlog[schemas]'"
        raise OptionError(OF_PACKAGE, name, accepted) from error


def checked(values: pa.Array) -> pa.Array:
    """Values of which all are possible: texts are UTF-8, and times are within a day."""
    values.validate(full=True)
    return values
