"""The arguments of public functions: checks of their values, and their words in all dialects.

Each check raises an `OptionError` that names the argument in one sentence.

Spark, Python, the command line, Kafka and kcat have different words for one thing.  A word of one
of them that another one does not take is refused there, and the error names the word that is right
there: a word without effect would give other rows than the user has asked for.
"""

import difflib
import functools
import inspect
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import date, time, timedelta
from enum import Enum, IntEnum, StrEnum
from numbers import Number
from operator import index
from pathlib import PurePath
from types import FunctionType
from typing import (
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    SupportsIndex,
    TypeVar,
    cast,
    overload,
)

from segmentlog.declared import SPARK_READ, SPARK_WRITE, Declared, Words, declared, in_python
from segmentlog.errors import ArgumentError, OptionError
from segmentlog.model import LARGEST_LONG
from segmentlog.read_options import READ_OPTIONS

_Word = TypeVar("_Word", bound=StrEnum)
_A = TypeVar("_A")
_B = TypeVar("_B")
_R = TypeVar("_R")
_Settings = TypeVar("_Settings")
_Fields = ParamSpec("_Fields")
_Taken = ParamSpec("_Taken")

LARGEST_INT = 2**31 - 1


def refused(option: str, value: object, accepted: str) -> OptionError:
    """The error for an argument of a wrong type, which is shown as Python writes it."""
    return OptionError(option, _shown(value), accepted)


_WRITTEN = (str, bytes, Number, type(None), date, time, timedelta, Enum, PurePath, type)


def _shown(value: object) -> str:
    """A value as Python writes it; of an object that is not plain, the name of its type.

    The ``repr`` of a query (a lazy table, a relation of DuckDB) runs it, and shows its rows.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, tuple | list | set | frozenset | Mapping):
        parts = [*value, *(value.values() if isinstance(value, Mapping) else ())]
        is_plain = type(value).__module__ == "builtins" and all(map(_is_written, parts))
    else:
        is_plain = _is_written(value)
    kind = type(value)
    return repr(value) if is_plain else f"<{kind.__module__}.{kind.__qualname__}>"


def _is_written(value: object) -> bool:
    return isinstance(value, _WRITTEN)


def whole_number(
    option: str, value: SupportsIndex, least: int = 0, most: int = LARGEST_LONG, what: str = ""
) -> int:
    """A whole number within bounds, of Python or NumPy; a bool is not one."""
    try:
        number = None if isinstance(value, bool) else index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        accepted = f"give {what or 'a whole number'} from {least} to {most}"
        raise refused(option, value, accepted)
    return number


def instance_of(option: str, value: object, kind: type | tuple[type, ...], accepted: str) -> None:
    """Refuse a value of another type."""
    if not isinstance(value, kind):
        raise refused(option, value, accepted)


_N = TypeVar("_N", bound=IntEnum)


def number_by_word(option: str, value: object, kind: type[_N]) -> _N:
    """A member of an enumeration of numbers, which may be given by its name: ``"zstd"``."""
    if isinstance(value, kind):
        return value
    if isinstance(value, str):
        word = re.sub(r"[^A-Z0-9]", "", value.upper())
        for name, member in kind.__members__.items():
            if name.replace("_", "") == word:
                return member
    words = ", ".join(name.lower() for name in kind.__members__)
    raise refused(option, value, f"give a {kind.__name__}, or one of {words}")


def path_text(option: str, value: object) -> str:
    """A path as text, from a ``str``, ``bytes`` or an ``os.PathLike``."""
    instance_of(option, value, (str, bytes, os.PathLike), "give a path")
    return os.fsdecode(cast("str | bytes | os.PathLike[str]", value))


def path_texts(option: str, values: object) -> list[str]:
    """Several paths as text, in their order; a single path is one."""
    if isinstance(values, str | bytes | os.PathLike):
        return [path_text(option, values)]
    if not isinstance(values, Iterable) or is_frame(values):
        raise refused(option, values, "give a path, or several")
    return [path_text(option, each) for each in values]


def seconds(option: str, value: object) -> float:
    """A duration in seconds, from 0 to infinity."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise refused(option, value, "give seconds, 0 or more")
    return value


def is_frame(value: object) -> bool:
    """Whether it is a table, such as a frame of pandas, which names its columns if iterated."""
    return hasattr(type(value), "columns")  # of a lazy frame, the attribute would run a query


def texts(option: str, values: object, accepted: str) -> tuple[str, ...]:
    """Several names, in their order; a single text is one name."""
    if isinstance(values, str):
        return (values,)
    if not isinstance(values, Iterable) or is_frame(values):
        raise refused(option, values, accepted)
    names = tuple(values)
    for name in names:
        instance_of(option, name, str, accepted)
    return names


def partition_numbers(values: SupportsIndex | Collection[SupportsIndex]) -> list[int]:
    """Numbers of partitions, in their order; a single number is one of them."""
    numbers = [values] if isinstance(values, SupportsIndex) else values
    is_text = isinstance(numbers, str | bytes | bytearray)
    if is_text or not isinstance(numbers, Collection):
        raise refused("partitions", values, "give the number of a partition, or several")
    return [whole_number("partitions", each, most=LARGEST_INT) for each in numbers]


def topic_names(option: str, values: str | Iterable[str] | None) -> Collection[str]:
    """One name or several, as a collection; empty if none is given."""
    # An empty text is the name of no topic; as none at all, it would stand for all of them.
    return texts(
        option, () if values is None else values, "give the name of a topic, or several names"
    )


def one_of(option: str, value: object, words: type[_Word]) -> _Word:
    """One of a few words, in Kafka's or Spark's spelling."""
    for word in words:
        if isinstance(value, str) and value == word:  # others may compare element by element
            return word
    raise refused(option, value, f"give {' or '.join(map(repr, map(str, words)))}")


class keywords_of(Generic[_Fields, _Settings]):  # noqa: N801 - a decorator
    """Give a function the fields of a dataclass as arguments, in place of its last parameter.

    The arguments that several functions take are listed once, in the dataclass, which these
    functions pass on as one value.
    """

    def __init__(self, settings: Callable[_Fields, _Settings]) -> None:
        self._settings = settings

    @overload
    def __call__(
        self, function: Callable[[_A, _Settings], _R]
    ) -> Callable[Concatenate[_A, _Fields], _R]: ...

    @overload
    def __call__(
        self, function: Callable[[_A, _B, _Settings], _R]
    ) -> Callable[Concatenate[_A, _B, _Fields], _R]: ...

    def __call__(self, function: Callable[..., _R]) -> Callable[..., _R]:
        """The function that users call."""
        signature = inspect.signature(function)
        *own, last = signature.parameters.values()
        settings: Callable[..., _Settings] = self._settings
        known = declared(cast("type", settings))
        fields = [
            each.replace(annotation=known[each.name].annotation)
            for each in inspect.signature(settings).parameters.values()
        ]
        outside = signature.replace(parameters=[*own, *fields])

        @functools.wraps(function)
        def called(*args: object, **kwargs: object) -> _R:
            bound = outside.bind(*args, **kwargs).arguments
            before = {each.name: bound.pop(each.name) for each in own}
            given = {name: checked(known[name], value) for name, value in bound.items()}
            return function(**before, **{last.name: settings(**given)})

        called.__dict__["__signature__"] = outside  # `help` and `inspect.signature` show it
        called.__doc__ = _with_section(function.__doc__ or "", in_python(known.values()))
        return called


def checked(option: Declared, value: Any) -> Any:  # noqa: ANN401 - each option has its type
    """A value of an option, as its declaration has it.

    Raises `OptionError` if it is no such value.  Only words, switches, numbers and functions are
    known here.
    """
    if value is None and option.default is None:
        return None
    if issubclass(option.kind, StrEnum):
        return one_of(option.name, value, option.kind)
    if option.kind is bool:
        return switch(option.name, value)
    if option.kind is int:
        return whole_number(option.name, value, option.least, option.most, option.unit)
    return _called_later(option.name, value) if option.kind is FunctionType else value


def switch(option: str, value: object) -> bool:
    """Yes or no, of Python or NumPy.

    Raises `OptionError` for another value: Python takes a text such as ``"false"`` as true.
    """
    if type(value).__name__ in {"bool", "bool_"} or (isinstance(value, int) and value in {0, 1}):
        return bool(value)
    raise refused(option, value, "give True or False")


def _called_later(option: str, value: _R) -> _R:
    """What is called in the course of an operation, which has to end well."""
    if not callable(value):
        raise refused(option, value, "give a function")
    return value


def takes(
    options: type, **defaults: object
) -> Callable[[Callable[_Taken, _R]], Callable[_Taken, _R]]:
    """A decorator of a function whose ``**options`` are the declared fields of a class.

    The function gets all of them, checked, and with their defaults.  They stand in its signature,
    and in its docstring in place of the entry ``**options``.  Other keywords are refused, as
    `one_dialect` does it.  `defaults`: of this function, where it has others than the class.
    """
    known = declared(options, **defaults)

    def decorate(function: Callable[_Taken, _R]) -> Callable[_Taken, _R]:
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind != each.VAR_KEYWORD]
        names = {each.name for each in own}

        @functools.wraps(function)
        def called(*args: _Taken.args, **given: _Taken.kwargs) -> _R:
            values = {name: given.pop(name) for name in names & given.keys()}
            for name, option in known.items():
                values[name] = checked(option, given.pop(name, option.default))
            if given:
                raise TypeError  # `one_dialect` says more
            return function(*args, **values)  # type: ignore[arg-type]

        shown = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=option.default,
                annotation=option.annotation,
            )
            for name, option in known.items()
        ]
        called.__dict__["__signature__"] = signature.replace(parameters=[*own, *shown])
        called.__annotations__ = {
            **{name: each for name, each in function.__annotations__.items() if name in names},
            **{name: option.annotation for name, option in known.items()},
            "return": signature.return_annotation,
        }
        called.__doc__ = _with_section(function.__doc__ or "", in_python(known.values()))
        return one_dialect()(called)

    return decorate


def _with_section(doc: str, section: str) -> str:
    """A docstring with entries of options in place of the entry ``**options``."""
    entry = re.search(r"^( *)\*\*options : .*\n(?:\1 .*\n)*", doc, re.MULTILINE)
    if entry is None:
        return doc
    lines = [_wrapped(each, entry[1]) for each in section.splitlines()]
    return "\n".join([doc[: entry.start()].rstrip("\n"), *lines, doc[entry.end() :]])


_WIDTH = 100


@functools.cache  # most options are those of several functions
def _wrapped(text: str, indent: str) -> str:
    lines, line = [], indent  # `textwrap` takes ten times as long, at each import
    for word in text.split():
        if len(line) + len(word) >= _WIDTH:
            lines.append(line.rstrip())
            line = f"{indent}    "
        line += f"{word} "
    return "\n".join([*lines, line.rstrip()])


def refuse_two(first: str, of_first: object, second: str, of_second: object) -> None:
    """Refuse two options for the same bound."""
    if of_first is not None and of_second is not None:
        raise OptionError(second, str(of_second), f"give {first} or {second}, not both")


_Made = TypeVar("_Made")
_BOUND = ("self", "cls")
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _in_reads(way: str) -> dict[str, str]:
    return {SPARK_READ: way}


_WITHOUT_NAME = "give it as the first argument, without a name"

#: Things whose words in the dialects differ by more than their spelling.
_MEANINGS = (
    *(option.words for option in READ_OPTIONS.values() if option.words),
    Words("limit max_count --count", "max_messages head -c -n -m", {
        SPARK_READ: "take rows of the DataFrame: df.limit(10); or give 'lastRecords'",
        "read": "give 'last' for the last records, or take dataset(…).head(10)",
        "latest": "take rows of the table: latest(…).slice(0, 10)",
        "dataset": "take dataset(…).head(10)",
    }),
    Words("subscribe topics topic -t", "subscribePattern"),
    Words("partitions partition -p", "assign", {
        SPARK_READ: "give 'assign', with the topic: {\"orders\": [0]}",
        SPARK_WRITE: "give 'numPartitions' for a new topic, or a column 'partition'",
        "read": "give 'filter': pyarrow.compute.field('partition') == 0",
        "dataset": "give a filter to its scanner: pyarrow.compute.field('partition') == 0",
    }),
    Words("path paths", "files directory directories logs", {"": _WITHOUT_NAME}),
    Words("preserve", "", dict.fromkeys(("read", "dataset"), "give 'include_headers'")),
    Words("kafka.compression.type codec", "compression compression.codec -z"),
    Words("level", "kafka.compression.gzip.level kafka.compression.lz4.level "
          "kafka.compression.zstd.level", {
        SPARK_WRITE: "give 'kafka.compression.zstd.level', or that of gzip or lz4"}),
    Words("lockTimeout lock_timeout_seconds"),
    Words("overwrite", "deleteRecords", {
        SPARK_WRITE: 'give mode("overwrite"), which needs deleteRecords=true'}),
    Words("includeTimestamp use_timestamps"),
    Words("includeTimestampType use_timestamp_types"),
    Words("includeOffset use_offsets"),
    Words("settings --setting", "topic_config"),
    Words("config", "codec level batch_size buffer_memory max_request_size use_timestamps "
          "use_timestamp_types use_offsets flush", {
        "open_writer": "give it in 'config', a ProducerConfig"}),
    Words("checkpoint checkpointLocation", "",
          _in_reads("give checkpoint:PATH as 'startingOffsets', or as 'endingOffsets'")),
    Words("schema_ids --schema-id"),
    Words("key_schema_ids --key-schema-id"),
    Words("table", "name"),
    Words("columns", "", _in_reads(
        "select columns of the DataFrame: df.select('offset', 'value'); or name them in "
        "pyspark_segmentlog.read(spark, path, columns)")),
    Words("filter key", "keys value values pattern fixed_strings ignore_case key_file where",
          _in_reads("filter the DataFrame: df.where(\"key = 'order-58'\")")),
    Words("order", "", _in_reads("sort the DataFrame: df.orderBy('timestamp')")),
    Words("internal", "", _in_reads("name internal topics with 'subscribe'")),
    Words("follow", "exits -e", _in_reads("use spark.readStream")),
    Words("on_failure on_finding", "", _in_reads("give 'onCorruptBatch'")),
    Words("format", "output_format -f"),
    Words("json", "as_json -J"),
    Words("metadata --metadata-dir"),
    Words("records", "print_data_log"),
    Words("group", "", _in_reads("read the table 'group_offsets'")),
    Words("-b", "bootstrap_server", {"": "there is no broker: give its log directory"}),
    Words("-G", "", {"": "cat reads a topic: give -t; segmentlog groups shows groups"}),
    Words("-L", "", {"": "segmentlog topics and segmentlog cluster show what kcat lists"}),
    Words("-P", "", {"": "segmentlog produce writes records"}),
    Words("-Q", "", {"segmentlog cat": "give -o @TIME"}),
    Words("-X", "", {"segmentlog cat": "give --isolation-level for isolation.level; there is "
          "no client that could have other settings"}),
    Words("deserialize -s"),
    Words("-d -v -F -m", "", {"segmentlog cat": "there is no client: leave it out"}),
)  # fmt: skip

#: Words of functions and commands that mean nothing in a query; ``tests/support/public_face.py``
#: writes them.
_OF_CALLS = frozenset(
    """
    access_log advertise all as as_topic assigned base_sequence batches before_offset bind
    cleanup_policy color column condition damage dedupe_buffer_bytes delete_retention_ms
    deleted_before delimiter dry_run end exact explain expression file_delete_delay_ms finding
    findings frame given hash_user id ids indices interval is_key is_protobuf kafka_defaults
    kafka_version keep_offsets key_delimiter kind leave_out_partitions leave_out_replicas left
    lines load_factor local_retention_bytes local_retention_ms log_ends log_slice longest_job_days
    longest_read_days mask mask_credentials max_bytes max_compaction_lag_ms
    min_cleanable_dirty_ratio min_compaction_lag_ms missing most_ranges n_bytes n_offsets new_topic
    next_int notes now_ms null null_keys num_rows offset_column offset_map offsets on_bytes on_kept
    on_log on_partition on_phase on_records on_rows on_segment on_step one_segment
    open_transactions other output own partition_column placement policy position producer
    producer_epoch producer_expiration_ms producer_id producers progress purge ranges
    read_committed regexp remote_storage_enable remove renamed replication_factor retention_bytes
    retention_ms right right_dataset roll rows schema schemas server_properties shallow show_keys
    show_values skips sorting source spark spill_directory subject target_metadata timestamps
    tls_certificate tls_key to to_log_end told topic_column topic_partition topic_partitions
    transform unbuffered up_to_offset use_threads used_by users version warns yes
    """.replace("_", "").split()
)


def spelled(word: str) -> str:
    """A word as all dialects spell it: `isolation_level`, ``--isolation-level``, both of Kafka's.

    One letter after a dash is a flag of kcat, and remains as it is.
    """
    if re.fullmatch("-[A-Za-z]", word):
        return word
    return re.sub("[-_.]", "", word.lower().removeprefix("kafka."))


def _words(meaning: Words) -> set[str]:
    return {spelled(word) for word in f"{meaning.names} {meaning.also}".split()}


def means_something(word: str) -> bool:
    """Whether a word has a meaning in a query."""
    key = spelled(word)
    return key.startswith("-") or any(key in _words(each) for each in _MEANINGS)


def is_word(word: str) -> bool:
    """Whether a word is one of a dialect."""
    return spelled(word) in _OF_CALLS or means_something(word)


def right_word(word: str, taken: Iterable[str], place: str) -> str:
    """What to give in place of a word that is not taken, as the end of a sentence; or nothing."""
    key = spelled(word)
    known = {spelled(each): each for each in reversed([*taken])}  # the first of two has it
    if key in known:
        return f"give {known[key]!r}"
    for meaning in _MEANINGS:
        if key not in _words(meaning):
            continue
        if place in meaning.ways:
            return meaning.ways[place]
        for name in meaning.names.split():
            if spelled(name) in known:
                return f"give {known[spelled(name)]!r}"
        if "" in meaning.ways:
            return meaning.ways[""]
    return ""


def nearest(word: str, names: Iterable[str], similarity: float = 0.6) -> str | None:
    """The name for which a misspelled word is probably meant; None if none is near.

    A word with a dot may be any setting of Kafka's clients, so its dots count.
    """
    key = str.lower if "." in word else spelled
    known = {key(each): each for each in names}
    near = difflib.get_close_matches(key(word), known, n=1, cutoff=similarity)
    return known[near[0]] if near else None


def rename(error: OptionError, taken: Iterable[str]) -> None:
    """Let an error of a lower floor name an option as the place does that has taken it."""
    if type(error) is not OptionError or error.is_unknown:  # others name columns, or a function
        return
    known = {spelled(each): each for each in reversed([*taken])}
    key = spelled(error.option)
    alike = [each.names.split() for each in _MEANINGS if key in map(spelled, each.names.split())]
    names = [error.option, *(name for names in alike for name in names)]
    if error.option not in known.values():
        error.option = next(
            (known[spelled(n)] for n in names if spelled(n) in known), error.option
        )
    # "(kafka_defaults=True, --kafka-defaults)" has both words, for an error that nobody renames.
    error.accepted = re.sub(
        "[a-z_]+(?:=True)?, (--[a-z-]+)",
        lambda found: found[1] if found[1] in known.values() else found[0],
        error.accepted,
    )
    error.accepted = re.sub(
        "[a-z]+(?:_[a-z]+)+", lambda found: known.get(spelled(found[0]), found[0]), error.accepted
    )
    error.accepted = re.sub(
        "(?<=it belongs to )[a-z_]+",
        lambda found: known.get(spelled(found[0]), found[0]),
        error.accepted,
    )
    error.args = (error.option, error.value, error.accepted)


def one_dialect(*others: str) -> Callable[[Callable[_Taken, _R]], Callable[_Taken, _R]]:
    """A decorator: the error for an unknown keyword names the function, and the right argument.

    A keyword that is a switch, or a function, by its default takes nothing else.  `others`:
    keywords that the function passes on, if it takes any.
    """

    def decorate(function: Callable[_Taken, _R]) -> Callable[_Taken, _R]:
        checks = _checks(function)

        @functools.wraps(function)
        def called(*args: _Taken.args, **kwargs: _Taken.kwargs) -> _R:
            try:
                for name in checks.keys() & kwargs.keys():
                    kwargs[name] = checks[name](name, kwargs[name])
                return function(*args, **kwargs)
            except (OptionError, TypeError) as error:
                parameters = inspect.signature(function).parameters.values()
                own = [each.name for each in parameters if each.kind in _BY_NAME]
                passed = others if _takes_any(function) else ()
                taken = [each for each in dict.fromkeys((*own, *passed)) if each not in _BOUND]
                unknown = [name for name in kwargs if name not in taken]
                # `path=` of a function with `*path` is no TypeError where its options are any.
                if unknown and (isinstance(error, TypeError) or not _takes_any(function)):
                    raise _unknown_argument(function, unknown[0], taken) from None
                if isinstance(error, OptionError):
                    rename(error, taken)
                    _name_by_value(
                        error, inspect.signature(function).bind_partial(*args, **kwargs)
                    )
                raise

        return called

    return decorate


def _checks(function: Callable[..., object]) -> dict[str, Callable[[str, object], object]]:
    """Checks of arguments whose default is a switch or a function.

    A whole signature would take longer to make.
    """
    function = inspect.unwrap(function)
    if not inspect.isfunction(function):
        return {}
    code, defaults = function.__code__, function.__defaults__ or ()
    by_place = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    found = dict(zip(by_place, defaults, strict=True)) | (function.__kwdefaults__ or {})
    return {
        name: switch if type(default) is bool else _called_later
        for name, default in found.items()
        if type(default) is bool or (callable(default) and not isinstance(default, type))
    }


def _takes_any(function: Callable[..., object]) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(each.kind == each.VAR_KEYWORD for each in parameters)


def class_of_one_dialect(*others: str) -> Callable[[type[_Made]], type[_Made]]:
    """A decorator of a class: its constructor and public methods are as `one_dialect` makes them.

    `others`: keywords that those methods pass on which take any.
    """

    def decorate(made: type[_Made]) -> type[_Made]:
        for name, found in [*vars(made).items()]:
            if name.startswith("_") and name != "__init__":
                continue
            if isinstance(found, classmethod):
                setattr(made, name, classmethod(one_dialect(*others)(found.__func__)))
            elif inspect.isfunction(found) and (others or not _takes_any(found)):
                setattr(made, name, one_dialect(*others)(found))
        return made

    return decorate


def _name_by_value(error: OptionError, given: inspect.BoundArguments) -> None:
    """Name the argument that has the refused value: a path has several names, for example."""
    arguments = dict(given.arguments)
    if (error.value and arguments.get(error.option) is None) or error.option == "path":
        shown = {name: _shown(value) for name, value in arguments.items()}
        alike = [name for name, text in shown.items() if text == error.value]
        if len(alike) == 1 and type(error) is OptionError:
            error.option = alike[0]
            error.args = (error.option, *error.args[1:])


def _unknown_argument(
    function: Callable[..., object], name: str, taken: list[str]
) -> ArgumentError:
    called = function.__name__
    if called == "__init__":
        called = function.__qualname__.partition(".")[0]
    near = nearest(name, taken)
    parameter = inspect.signature(function).parameters.get(name)
    if parameter is not None and parameter.kind == parameter.VAR_POSITIONAL:
        return ArgumentError(name, "", f"{called}() takes no such argument: give it by position")
    hint = right_word(name, taken, called) or (near and f"did you mean {near!r}?")
    hint = hint or (f"its arguments are {', '.join(taken)}" if taken else "it takes no keyword")
    return ArgumentError(name, "", f"{called}() takes no such argument: {hint}")
