"""What an option is, declared once: its sentence, its default, its bounds and its words.

A class lists the options of an operation.  Each of its fields is one option: its name and its type
are as Python has them, and all else that a user is told of it is its `Declared`::

    class RetryOptions(TypedDict, total=False):
        n_retries: Annotated[int | None, Declared("how often it is tried", least=1)]

The arguments of Python's functions (`segmentlog.arguments.takes`), the flags of commands, Spark's
options, and the tables of the documents are made of these fields.

In a sentence, ``{name}`` is another option, and a word between backticks is a value or a column.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar, cast, get_args, get_origin, get_type_hints

_Options = TypeVar("_Options")

#: Places that take words, beside functions (``read``) and commands (``segmentlog cat``).
SPARK_READ, SPARK_WRITE = "a read", "a write"


class Words(NamedTuple):
    """The words of one thing, where they are not the same word in the spelling of each dialect."""

    names: str  # the words that may be the right one somewhere, the better ones first
    also: str = ""  # words that are asked for, and that no answer names
    #: by place, what to do there instead of giving one of the names; "" for all other places
    ways: Mapping[str, str] = {}


class Declared(NamedTuple):
    """What there is to know of an option, beside its name and its type."""

    sentence: str  # its meaning; begins in lower case, and ends without a full stop
    default: Any = None
    #: a whole number that is allowed, and no smaller one
    least: int = 0
    unit: str = ""  # of a number: ``bytes``
    idea: str = ""  # what it is about, in a few words, for the table of words
    #: its word in Spark; "" for the same word, as Spark spells it
    spark: str = ""
    is_row_of_spark: bool = True  # whether Spark has the same values; else the connector has a row
    spark_default: str = ""  # as the reference shows it; "" for `default`
    accepts: str = ""  # what it accepts as text, if its type does not say so
    words: Words | None = None
    #: a value that changes something, for tests and examples; "" if its type shows one
    example: Any = ""
    # Of the field:
    name: str = ""
    kind: type = object  # an enumeration of words, `bool` or `int`; `object` for all else

    @property
    def in_spark(self) -> str:
        """Its word in Spark."""
        first, *rest = self.name.split("_")
        return self.spark or first + "".join(map(str.capitalize, rest))

    @property
    def shown(self) -> Any:  # noqa: ANN401 - each option has its type
        """A value that is not the default."""
        if self.example != "":
            return self.example
        if issubclass(self.kind, StrEnum):
            return next(each for each in self.kind if each != self.default)
        return not self.default if self.kind is bool else max(self.least, 1)

    def said(self, name: Callable[[str], str], value: Callable[[str], str]) -> str:
        """Its sentence, with other options as `name` makes them, and values as `value` does."""
        text = re.sub("`([^`]*)`", lambda found: value(found[1]), self.sentence)
        return re.sub("{([a-z0-9_]+)}", lambda found: name(found[1]), text)


def declared(options: type, **defaults: object) -> dict[str, Declared]:
    """The options of a class by their names, in their order; its other fields are none.

    `defaults`: of an operation that has others than the declaration.
    """
    found = {}
    for name, hint in get_type_hints(options, include_extras=True).items():
        for each in getattr(hint, "__metadata__", ()):
            if isinstance(each, Declared):
                default = defaults.get(name, each.default)
                found[name] = each._replace(name=name, kind=_kind(hint), default=default)
    return found


def those_of(options: type[_Options], given: Mapping[str, object]) -> _Options:
    """The given options that are of a class."""
    names = get_type_hints(options)
    return cast("_Options", {name: value for name, value in given.items() if name in names})


def _kind(hint: object) -> type:
    """What the values of a type are: words, `bool`, `int`; or `object`, for all others."""
    (kinds, *_) = get_args(hint)
    classes: list[type] = [each for each in get_args(kinds) or (kinds,) if each is not type(None)]
    for each in classes:
        if get_origin(each) is None and issubclass(each, StrEnum):
            return each
    is_plain = classes in ([bool], [int])
    return classes[0] if is_plain else object


def in_python(options: Iterable[Declared]) -> str:
    """The options as a section of a docstring in numpydoc's form."""

    def value(text: str) -> str:
        return f"``{text.capitalize() if text in {'true', 'false'} else text}``"

    return "\n".join(
        f"{each.name} : {each.said(lambda name: f'`{name}`', value)}." for each in options
    )
