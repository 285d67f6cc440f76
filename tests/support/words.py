"""The words of Python and of the command line: arguments of public functions, and flags.

`with_calls` writes those that mean nothing in a query into `segmentlog.arguments`.
"""

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from inspect import signature
from types import FunctionType
from typing import Any

from typer.main import get_command

import pyspark_segmentlog
import segmentlog
from pyspark_segmentlog.options.reference import READ_OPTIONS, WRITE_OPTIONS
from segmentlog.arguments import means_something, spelled
from segmentlog.arrow_dataset.log_dataset import LogFragment
from segmentlog.arrow_dataset.log_scanner import LogScanner
from segmentlog.polars import scan_log
from segmentlog.testing.kafka_log import KafkaCluster, KafkaLog, Transaction
from segmentlog.tools.cli import app

COMMANDS: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
FLAGS = sorted(
    {
        flag
        for each in COMMANDS.values()
        for one in each.params
        for flag in one.opts
        if flag.startswith("-")
    }
)
CONFIGS = (segmentlog.ProducerConfig, segmentlog.TopicConfig, segmentlog.Producer)


def classes() -> Iterator[type]:
    """The public classes with methods, their bases, and those that only their methods return."""
    public = [getattr(segmentlog, name) for name in segmentlog.__all__]
    found = [each for each in public if inspect.isclass(each) and not issubclass(each, Exception)]
    for each in (*found, LogFragment, LogScanner, KafkaCluster, KafkaLog, Transaction):
        yield from (base for base in each.__mro__ if base.__module__.startswith("segmentlog."))


CLASSES = [*dict.fromkeys(classes())]


def functions() -> Iterator[Callable[..., object]]:
    """The public functions."""
    for module in (segmentlog, pyspark_segmentlog):
        for name in module.__all__:
            found = getattr(module, name)
            # The options of `pyspark_segmentlog.read` and `count` are those of a read of Spark.
            # The others take a session alone, or nothing, before the engine is loaded.
            if (
                inspect.isfunction(found)
                and name not in {"register", "sail_session"}
                and not (name in {"count", "read"} and module is pyspark_segmentlog)
            ):
                yield found


FUNCTIONS: dict[str, Any] = {
    f"{each.__module__}.{each.__name__}": each for each in (*functions(), scan_log, *CONFIGS)
}


def arguments(function: Any) -> set[str]:
    """Names of the arguments that a caller may write."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = signature(function).parameters
    return {each.name for each in parameters.values() if each.kind in named} - {"self"}


METHODS: dict[str, tuple[type, Any]] = {
    f"{owner.__name__}.{name}": (owner, getattr(owner, name))
    for owner in CLASSES
    for name, found in vars(owner).items()
    if not name.startswith("_") and isinstance(found, FunctionType | classmethod)
}
ARGUMENTS = sorted(
    set().union(*map(arguments, [*FUNCTIONS.values(), *(each for _, each in METHODS.values())]))
)


_BLOCK = re.compile(r'(_OF_CALLS = frozenset\(\n    """\n)(.*?)(    """)', re.DOTALL)


def with_calls(text: str) -> str:
    """`segmentlog/arguments.py` with the words that mean nothing in a query."""
    of_spark = {spelled(each.name) for each in (*READ_OPTIONS, *WRITE_OPTIONS)}
    of_flags = [each[2:].replace("-", "_") for each in FLAGS if each.startswith("--")]
    words = {
        each
        for each in (*ARGUMENTS, *of_flags)
        if spelled(each) not in of_spark and not means_something(each)
    }
    made = textwrap.indent(textwrap.fill(" ".join(sorted(words)), 95), "    ")
    return _BLOCK.sub(lambda found: f"{found[1]}{made}\n{found[3]}", text)
