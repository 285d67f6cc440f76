"""The names that `segmentlog` exports are those that its functions return or take."""

import dataclasses
import inspect
import operator
import re
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from types import GenericAlias
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import typer
from typer.testing import CliRunner

import segmentlog
from pyspark_segmentlog.options.read_options import ReadOptions
from pyspark_segmentlog.options.reference import READ_OPTIONS, WRITE_OPTIONS
from segmentlog.tools.cli import app
from segmentlog.writes.writer import ArrowRows

TOP = Path(__file__).parents[2]
DATA = str(TOP / "examples" / "data")

#: Names that modules import for type checkers alone.
NAMES = {
    "pa": pa,
    "pc": pc,
    "LogDataset": segmentlog.LogDataset,
    "Appended": segmentlog.Appended,
    "ArrowRows": ArrowRows,
}

#: Exported classes whose methods only the engine calls, and the attributes that users read.
INNER = {"Segment": "base_offset, size and path", "LogDataset": "what pyarrow.dataset.Dataset has"}

#: Attributes of exported objects that annotations of functions do not show.
ATTRIBUTES = {"Appended": "LogWriter.appended", "ErrorCode": "SegmentLogError.code"}


def exported() -> dict[str, Any]:
    """The exported functions and classes, without errors."""
    found = {name: getattr(segmentlog, name) for name in segmentlog.__all__}
    return {
        name: value
        for name, value in found.items()
        if not (inspect.isclass(value) and issubclass(value, BaseException))
    }


def public_functions() -> Iterator[Callable[..., Any]]:
    """The exported functions, and the public methods and properties of the exported classes."""
    for name, value in exported().items():
        if not inspect.isclass(value):
            yield value
        elif name not in INNER:
            for own, member in vars(value).items():
                function = getattr(member, "fget", None) or getattr(member, "__func__", member)
                if own[0] != "_" and inspect.isfunction(function):
                    yield inspect.unwrap(function)


def classes_of(hint: Any) -> Iterator[type]:
    """The classes of the engine that an annotation names."""
    is_class = isinstance(hint, type) and not isinstance(hint, GenericAlias)
    if is_class and hint.__module__.partition(".")[0] == "segmentlog":
        yield hint
    for part in typing.get_args(hint):
        for each in part if isinstance(part, list) else [part]:
            yield from classes_of(each)


def hints() -> Iterator[tuple[str, type]]:
    """Types of results (by the name ``return``) and of parameters, and of the fields of values."""
    for function in public_functions():
        for name, hint in typing.get_type_hints(function, localns=NAMES).items():
            yield from ((name, each) for each in classes_of(hint))
    for value in filter(inspect.isclass, exported().values()):
        if dataclasses.is_dataclass(value) or hasattr(value, "_fields"):
            for hint in typing.get_type_hints(value, localns=NAMES).values():
                yield from (("return", each) for each in classes_of(hint))


@pytest.mark.addition("public name")
def test_results_of_public_functions_are_exported() -> None:
    """A user can name the type of each result, and of each field of it."""
    returned = {each.__name__ for name, each in hints() if name == "return"}

    assert {"Segment", "LogEnd", "LogDataset", "Source", "Reason"} <= returned
    assert set() == returned - set(segmentlog.__all__)


@pytest.mark.addition("public name")
def test_types_without_a_public_function_are_not_exported() -> None:
    """The annotations show a use of each exported class."""
    used = {each.__name__ for _, each in hints()} | set(ATTRIBUTES)
    classes = {name for name, value in exported().items() if inspect.isclass(value)}

    assert set() == classes - used


def rows() -> list[list[str]]:
    """The cells of the table of the three ways in, without its head."""
    text = (TOP / "storage" / "docs" / "python.md").read_text()
    (table,) = re.findall(r"<!-- three ways:begin -->(.*)<!-- three ways:end -->", text, re.DOTALL)
    return [line.strip()[1:-1].split("|") for line in table.strip().splitlines()[2:]]


def column(number: int) -> list[str]:
    """The names of a column of the table."""
    return [name for row in rows() for name in re.findall(r"`([^`]+)`", row[number])]


def test_the_options_of_spark_in_the_table_are_those_of_the_parser() -> None:
    """Each name is an option that has an effect."""
    known = {option.name for option in (*READ_OPTIONS, *WRITE_OPTIONS) if option.used_by}

    assert len(column(1)) > 20
    assert set() == set(column(1)) - known


def test_the_arguments_of_python_in_the_table_are_those_of_the_functions() -> None:
    """Each argument is a parameter of the public function beside it."""
    for name in column(2):
        function, argument = name.rstrip(")").split("(")
        found = operator.attrgetter(function)(segmentlog)

        assert argument in inspect.signature(found).parameters, name


def test_the_options_of_the_command_line_in_the_table_are_those_of_the_commands() -> None:
    """Each option belongs to the command before it; an argument is in capital letters."""
    commands = typer.main.get_command(app).commands
    for name in column(3):
        command, option = name.split()
        known = {each for parameter in commands[command].params for each in parameter.opts}

        assert option in {each if each[0] == "-" else each.upper() for each in known}, name


def spelled(name: str) -> str:
    """An option or argument as Python spells it, in the singular: `num_partition`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[.-]", "_", name.removeprefix("kafka.").lstrip("-"))
    return words.lower().rstrip("s")


def names(cell: str) -> set[str]:
    """The options or arguments of a cell, without their commands or functions."""
    return {
        spelled(re.split(r"[ (]", each)[-1].rstrip(")")) for each in re.findall("`(.+?)`", cell)
    }


def arguments(functions: tuple[str, ...]) -> set[str]:
    """The arguments of public functions."""
    found = (operator.attrgetter(each)(segmentlog) for each in functions)
    return {spelled(each) for function in found for each in inspect.signature(function).parameters}


def test_python_and_the_command_line_have_the_same_names() -> None:
    """If an idea has one option on the command line, Python's argument has its name."""
    for _, _, python, command_line in rows():
        if len(names(command_line)) == 1:
            assert names(command_line) <= names(python)


#: The functions that a command calls, or whose work it does, if they do not have its name.
CALLED = {
    "cat": ("dataset",),
    "cluster": ("table",),
    "configure": ("alter_settings",),
    "describe": ("open_log_dir", "topic_settings"),
    "doctor": (),
    "dump": ("dataset", "Log.scan"),
    "grep": ("dataset",),
    "groups": ("table",),
    "offsets": ("checkpoint_offsets",),
    "placement": ("propose_placement",),
    "produce": ("open_writer", "ProducerConfig"),
    "schemas": ("table",),
    "topics": ("open_log_dir",),
    "transactions": ("table",),
}

#: The functions that the connector calls, or whose work it does.
CALLED_BY_SPARK = ("dataset", "table", "open_writer", "ProducerConfig")

#: Options of Spark that are arguments, too, but are not in the table, and the reason.
LEFT_OUT = {"path": "every function and every command begins with it"}


@pytest.mark.addition("command")
def test_the_table_has_each_option_of_a_command_that_is_an_argument() -> None:
    """A row has the option and the argument, of this command or of another one."""
    known = {each for row in rows() for each in names(row[2]) & names(row[3])}
    for name, command in typer.main.get_command(app).commands.items():
        options = {spelled(each) for one in command.params for each in one.opts if each[0] == "-"}
        shared = options & arguments(CALLED.get(name, (name.replace("-", "_"),)))

        assert set() == shared - known, name


@pytest.mark.addition("option of Spark or of writes")
def test_the_table_has_each_option_of_spark_that_is_an_argument() -> None:
    """A row has the option and the argument."""
    known = {each for row in rows() for each in names(row[1]) & names(row[2])}
    options = {spelled(each.name) for each in (*READ_OPTIONS, *WRITE_OPTIONS) if each.used_by}

    assert set(LEFT_OUT) == (options & arguments(CALLED_BY_SPARK)) - known


@pytest.mark.parametrize(
    "take",
    [
        pytest.param(
            lambda given: ReadOptions.parse({"path": "/d", "startingTimestamp": given}), id="spark"
        ),
        pytest.param(lambda given: segmentlog.read(DATA, "orders", since=given), id="python"),
        pytest.param(
            segmentlog.open_log_dir(DATA).log("orders", 0).offset_for_timestamp, id="log"
        ),
    ],
)
def test_a_time_in_seconds_is_refused(take: Callable[[str], object]) -> None:
    """The message has the time that was probably meant, in every function."""
    with pytest.raises(segmentlog.OptionError, match="give 1760000000000 or 2025-10-09T08:53:20Z"):
        take("1760000000")


@pytest.mark.addition("public name")
def test_public_functions_take_no_time_as_bare_milliseconds() -> None:
    """A parameter that is a `Time` refuses a time in seconds, but a bare number cannot.

    `compact` takes a duration and its own clock as numbers.
    """
    taken = {
        f"{function.__name__} {name}"
        for function in public_functions()
        for name in inspect.signature(function).parameters
        if name.endswith("_ms")
    }

    assert {"compact producer_expiration_ms", "compact now_ms"} == taken


def test_a_time_in_seconds_is_refused_by_a_command() -> None:
    """The message is that of the functions."""
    done = CliRunner().invoke(app, ["dump", DATA, "--since", "1760000000"])

    assert 2 == done.exit_code
    assert "1760000000000" in done.stderr
