"""Arguments and options that commands share."""

import sys
from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

import typer

from segmentlog.errors import OptionError
from segmentlog.times import A_TIME, epoch_milliseconds
from segmentlog.tools.completion import complete_topic
from segmentlog.tools.sinks import Format

__all__ = [
    "OF_THE_MACHINE",
    "PATHS_HELP",
    "READS",
    "WRITES",
    "Ask",
    "IndexInterval",
    "Limit",
    "Output",
    "OutputFormat",
    "Partitions",
    "Paths",
    "Purge",
    "Topics",
    "Yes",
    "asking",
    "examples",
    "is_terminal",
    "kafkas_option",
    "time_option",
]


#: Groups of commands in the help.
READS = "Commands that read"
WRITES = "Commands that write, and take the broker's lock"
OF_THE_MACHINE = "Commands about this machine"


def kafkas_option(instead: str) -> Any:  # noqa: ANN401 - what typer takes for an option
    """An option of Kafka's dump tool that has another name here."""

    def refuse(value: str | bool | None) -> None:
        if value:
            raise typer.BadParameter(instead)

    return typer.Option(hidden=True, callback=refuse)


def examples(*commands: str) -> str:
    """The end of a command's help."""
    return "\n\n".join(["Examples:", *commands])


PATHS_HELP = "Log directories, partition directories or .log files."
Paths = Annotated[list[str], typer.Argument(metavar="DIR", help=PATHS_HELP)]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic", help="Only this topic; may be repeated.", autocompletion=complete_topic
    ),
]


Partitions = Annotated[
    list[int] | None, typer.Option("--partition", help="Only this partition; may be repeated.")
]


def _time(text: str) -> int:
    try:
        return epoch_milliseconds("", text)
    except OptionError as error:
        raise typer.BadParameter(f"{text!r}: {error.accepted}") from None


def time_option(what: str) -> Any:  # noqa: ANN401 - what typer takes for an option
    """An option that takes a time, or a duration before now."""
    forms = f"{A_TIME[0].upper()}{A_TIME[1:]}; or a duration before now such as 2h."
    return typer.Option(help=f"{what} {forms}", parser=_time, metavar="TIME")


OutputFormat = Annotated[Format, typer.Option("--format", "-f", help="arrow is an IPC stream.")]
Output = Annotated[
    str | None, typer.Option("--output", "-o", help="A file that does not exist yet.")
]
Limit = Annotated[
    int | None, typer.Option("--limit", "-n", help="Stop after N records or batches.", min=1)
]


IndexInterval = Annotated[
    int,
    typer.Option(
        "--index-interval-bytes",
        help="Bytes of log from index entry to index entry: the topic's index.interval.bytes.",
        min=0,
        max=2**31 - 1,
    ),
]


Metadata = Annotated[
    str | None,
    typer.Option(
        "--metadata",
        metavar="DIR",
        help="The broker's log directory that holds __cluster_metadata-0, if another one.",
    ),
]
Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask on a terminal before records go.")
]

Purge = Annotated[
    bool,
    typer.Option(
        "--purge",
        help="Remove files that left the logs at once, and not file.delete.delay.ms later.",
    ),
]

#: Asks a question; returns only if it is answered with yes.
Ask: TypeAlias = Callable[[str], object]


def is_terminal() -> bool:
    """Whether somebody can answer."""
    return sys.stdin is not None and sys.stdin.isatty()


def asking(*, yes: bool) -> Ask | None:
    """The question before records go, or None: a script and a timer have no terminal."""
    if yes or not is_terminal():
        return None
    return lambda question: typer.confirm(question, abort=True, err=True)


ServerProperties = Annotated[
    str | None,
    typer.Option(
        "--server-properties", metavar="FILE", help="The broker's static settings, if it has any."
    ),
]
