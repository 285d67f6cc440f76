"""The bodies by name, and the parts that most of them use."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from segmentlog.errors import SegmentLogError
from twins.world import World


class Body(NamedTuple):
    """One job, and whether it is left to the slow tests."""

    run: Callable[[World], Any]
    is_slow: bool


#: All bodies by their names, which are names of topics, too.
BODIES: dict[str, Body] = {}


def body(
    *, slow: bool = False, name: str = ""
) -> Callable[[Callable[[World], Any]], Callable[[World], Any]]:
    """Add a function to the bodies."""

    def add(run: Callable[[World], Any]) -> Callable[[World], Any]:
        BODIES[(name or run.__name__).replace("_", "-")] = Body(run, slow)
        return run

    return add


def rows(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """Sorted rows, with bytes as text; by default without the time."""
    chosen = columns or tuple(each for each in frame.columns if each != "timestamp")
    found = [tuple(_text(each) for each in row) for row in frame.select(*chosen).collect()]
    return sorted(found, key=repr)


def texts(frame: DataFrame) -> list[Any]:
    """The sorted values of the rows."""
    return [value for (value,) in rows(frame, "value")]


def _text(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("latin-1")
    if isinstance(value, list | tuple):
        return [_text(each) for each in value]
    return value


def refused(act: Callable[[], Any]) -> tuple[str, str]:
    """The class of an error, and the first line of its message."""
    try:
        act()
    except PySparkException as error:
        lines: Sequence[str] = [each for each in str(error).splitlines() if each.strip()]
        return type(error).__name__, lines[0].strip()
    except SegmentLogError as error:  # of the plugin alone
        return type(error).__name__, str(error)
    except Py4JJavaError as error:  # an exception of the JVM that pyspark does not know
        return type(error).__name__, str(error.java_exception.getClass().getName())
    return "", "nothing was refused"
