"""What an option is, declared once: its sentence, its default, its bounds and its words.

A class lists the options of an operation.  Each of its fields is one option: its name and its type
are as Python has them, and all else that a user is told of it is its `Declared`::

    class RetryOptions(TypedDict, total=False):
        n_retries: Annotated[int | None, Declared("how often it is tried", least=1)]

The arguments of Python's functions (`segmentlog.arguments.takes`), the flags of commands, Spark's
options, and the tables of the documents are made of these fields.

In a sentence, ``{name}`` is another option, and a word between backticks is a value or a column.
An option with one word in all dialects needs no more than its sentence: a class may have that in
the section ``Parameters`` of its docstring, and its `Declared` only what is beside it.
"""

import inspect
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, fields, is_dataclass
from datetime import datetime
from enum import StrEnum
from functools import cache
from types import FunctionType
from typing import Any, NamedTuple, TypeVar, cast, get_args, get_origin

from segmentlog.model import LARGEST_LONG

_Options = TypeVar("_Options")

#: Places that take words, beside functions (``read``) and commands (``segmentlog cat``).
SPARK_READ, SPARK_WRITE = "a read", "a write"

_SECTION = re.compile("    (?:Parameters|Attributes)\n    ----------\n")
_ENTRY = re.compile(r"^    (\w[\w, ]*) : ((?:.|\n     )*)", re.MULTILINE)
_VALUE, _NAME = re.compile("`([^`]*)`"), re.compile("{([a-z0-9_]+)}")


class Words(NamedTuple):
    """The words of one thing, where they are not the same word in the spelling of each dialect."""

    names: str  # the words that may be the right one somewhere, the better ones first
    also: str = ""  # words that are asked for, and that no answer names
    #: by place, what to do there instead of giving one of the names; "" for all other places
    ways: Mapping[str, str] = {}


class Declared(NamedTuple):
    """What there is to know of an option, beside its name and its type."""

    sentence: str = ""  # its meaning; begins in lower case, and ends without a full stop
    default: Any = None
    #: a whole number that is allowed, and no smaller one
    least: int = 0
    most: int = LARGEST_LONG  # and no larger one
    unit: str = ""  # of a number: ``bytes``
    idea: str = ""  # what it is about, in a few words, for the table of words
    #: its word in Spark; "" for the same word, as Spark spells it
    spark: str = ""
    is_row_of_spark: bool = True  # whether Spark has the same values; else the connector has a row
    shown_default: str = ""  # as references and help texts show it; "" for `default`
    accepts: str = ""  # what it accepts as text, if its type does not say so
    flags: str = ""  # its words on the command line; "" for the same word, as flags are spelled
    metavar: str = ""  # what stands after its flag
    help: str = ""  # of its flag, if other words are better there; "" for its first sentence
    words: Words | None = None
    #: a value that changes something, for tests and examples; "" if its type shows one
    example: Any = ""
    # Of the field:
    name: str = ""
    #: an enumeration of words, `bool`, `int`, `float`; `datetime` for a time, `os.PathLike` for a
    #: path; `list` for several texts, and `dict` for names with values; `FunctionType` for what is
    #: called; `object` for all else
    kind: type = object
    annotation: Any = None  # its type, as Python's signatures show it

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
        text = _VALUE.sub(lambda found: value(found[1]), self.sentence)
        return _NAME.sub(lambda found: name(found[1]), text)


def declared(options: Callable[..., object], **defaults: object) -> dict[str, Declared]:
    """The options of a class, or of a function, by their names and in their order.

    `defaults`: of an operation that has others than the declaration.  A dataclass and a function
    have their own.
    """
    if is_dataclass(options):
        defaults = {each.name: each.default for each in fields(options)} | defaults
    elif not isinstance(options, type):
        parameters = inspect.signature(options).parameters.values()
        defaults = {each.name: each.default for each in parameters} | defaults
    sentences = _sentences(options)
    found = {}
    for name, hint in _of_bases(options, inspect.get_annotations).items():
        if hint is KW_ONLY:  # a mark, and no field
            continue
        option = _field(name, hint, sentences.get(name))
        if name in defaults and defaults[name] is not option.default:
            option = option._replace(default=defaults[name])
        found[name] = option
    return found


#: Most options are those of several operations, which share one type with its declaration: to make
#: them again for each operation took half of the time of declarations at import.
_fields: dict[tuple[str, int, str | None], tuple[object, Declared]] = {}


def _field(name: str, hint: Any, sentence: str | None) -> Declared:  # noqa: ANN401 - a type
    """One field; `sentence`: its own, if the class has it in its docstring."""
    key = name, id(hint), sentence
    if key not in _fields:
        known = [each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Declared)]
        option, kind = (known[0], hint.__origin__) if known else (Declared(), hint)
        made = option._replace(
            name=name,
            kind=_kind(kind),
            annotation=kind,
            sentence=option.sentence if sentence is None else sentence,
            default=_default(option, kind),
        )
        _fields[key] = hint, made  # the type lives as long as its number is known
    return _fields[key][1]


def nothing(*_: object) -> None:
    """Called where nobody is told of what is done."""


def _default(option: Declared, hint: object) -> Any:  # noqa: ANN401 - each option has its type
    """That of the declaration; without one, a switch is off, and a callable does nothing."""
    if option.default is None and hint is bool:
        return False
    if option.default is None and get_origin(hint) is Callable:
        return nothing
    return option.default


def _sentences(options: Callable[..., object]) -> dict[str, str]:
    """The sentences of the section ``Parameters`` or ``Attributes`` of a docstring, by names."""

    def entries(each: object) -> dict[str, str]:
        _, *sections = _SECTION.split(each.__doc__ or "")
        found: dict[str, str] = {}
        for names, text in _ENTRY.findall(sections[-1]) if sections else ():
            sentence = " ".join(text.split()).removesuffix(".").replace("``", "`")
            found |= dict.fromkeys(names.split(", "), sentence)
        return found

    return _of_bases(options, entries)


def _of_bases(
    options: Callable[..., object], look: Callable[[Any], dict[str, Any]]
) -> dict[str, Any]:
    """What is found in a function, or in a class and its bases."""
    found: dict[str, Any] = {}
    for each in reversed(options.__mro__) if isinstance(options, type) else [options]:
        found |= look(each)
    return found


def those_of(options: type[_Options], given: Mapping[str, object]) -> _Options:
    """The given options that are of a class."""
    names = declared(options)
    return cast("_Options", {name: value for name, value in given.items() if name in names})


@cache
def _kind(hint: object) -> type:
    """What the values of a type are; see `Declared.kind`."""
    classes: list[Any] = [each for each in get_args(hint) or (hint,) if each is not type(None)]
    if datetime in classes:
        return datetime
    origins: set[Any] = {*map(get_origin, classes)}
    if get_origin(hint) is Callable or origins == {Callable}:
        return FunctionType
    if origins & {Collection, Sequence}:
        return list
    if os.PathLike in origins:
        return os.PathLike
    if Mapping in origins:
        return dict
    for each in classes:
        if isinstance(each, type) and issubclass(each, StrEnum):
            return each
    plain: type = classes[0] if classes in ([bool], [int], [float]) else object
    return plain


def in_python(options: Iterable[Declared]) -> str:
    """The options as a section of a docstring in numpydoc's form."""
    return "\n".join(_entry(each.name, each.sentence) for each in options)


@cache  # most options are those of several operations
def _entry(name: str, sentence: str) -> str:
    def value(text: str) -> str:
        return f"``{text.capitalize() if text in {'true', 'false'} else text}``"

    said = Declared(sentence).said(lambda name: f"`{name}`", value)
    return f"{name} : {said}."
