"""The command ``segmentlog``: its commands, in the order of its help, and its exit status.

Exit status: 0 when all is well, 1 when something that was read is damaged or missing, 2 when the
command could not begin: a wrong path or option, a directory that cannot be read.  `recover` ends
with 3 when whole batches were cut off.  `grep` has the exit status of grep: 1 if nothing was
found, 2 after an error.
"""

import logging
import os
import sys
from collections import deque
from contextlib import suppress
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import segmentlog
from segmentlog.tools.commands import Commands, convert_if_needed

_REFUSED, _INTERRUPTED, _PIPE_CLOSED = 2, 130, 141

#: Arguments of functions that are no flags of commands.
_ARGUMENTS = {"path": "DIR", "topic": "TOPIC", "new_topic": "NEW"}

_SIMILAR = 0.7  #: the least similarity to a command that is guessed; one that deletes is no guess

_REPAIR = (
    "segmentlog verify DIR names the damage, segmentlog recover DIR --dry-run shows what a "
    "recovery would do, and segmentlog reindex DIR makes indexes again"
)
_DELETE = "segmentlog --help lists the commands that delete; none of them is guessed"

#: What to do in place of a command that other tools have, by their words for it.
_WAYS = {
    word: way
    for words, way in (
        ("repair fix mend", _REPAIR),
        ("fsck check validate test scrub", "use 'verify'"),
        ("ls list topic get-offsets", "use 'topics'"),
        ("server broker listen proxy gateway", "use 'serve'"),
        ("find search select query filter where", "use 'grep'"),
        ("lag consumers consumer group consumer-groups", "use 'groups'"),
        ("head", "use 'cat' with -c 10 for the first ten records"),
        ("tail", "use 'cat' with -o -10 for the last ten records, and --follow for new ones"),
        ("read show print less more consume console-consumer kcat get fetch", "use 'cat'"),
        ("write append send publish put console-producer", "use 'produce'"),
        ("du df size disk log-dirs space", "use 'usage'"),
        ("info stat status inspect segments", "use 'describe'"),
        ("analyse analysis profile stats statistics report", "use 'analyze'"),
        ("dump-log export hexdump", "use 'dump'"),
        ("cp copy backup sync rsync", "use 'mirror'"),
        ("rename repartition add-partitions alter-partitions", "use 'clone'"),
        ("diff cmp", "use 'compare'"),
        ("prove reconcile complete completeness gaps missing duplicates", "use 'audit'"),
        ("txn tx transaction", "use 'transactions'"),
        ("config configs set alter settings", "use 'configure'; 'describe --settings' shows them"),
        ("schema registry", "use 'schemas'"),
        ("checkpoint checkpoints stream", "use 'offsets'"),
        ("brokers broker metadata quorum metadata-shell acls", "use 'cluster'"),
        ("replica replica-verification", "use 'replicas'"),
        ("reassign-partitions reassign", "use 'placement'"),
        ("index rebuild rebuild-index", "use 'reindex'"),
        ("undrop restore-topic recycle trash", "use 'undelete'"),
        ("delete rm remove del drop clean cleanup purge prune truncate gc expire", _DELETE),
    )
    for word in words.split()
}


_commands = Commands()  # each of them is made once in a process


class _CommandGroup(TyperGroup):
    """Ends every command the same way: one line for an error, none for a closed pipe."""

    def __init__(self, **given: Any) -> None:  # noqa: ANN401 - typer's own arguments
        super().__init__(**given)
        self.commands: Any = _commands

    def get_params(self, ctx: Any) -> Any:  # noqa: ANN401 - the same
        return [*map(convert_if_needed, super().get_params(ctx))]

    def list_commands(self, _: Any) -> list[str]:  # noqa: ANN401 - the same
        return list(self.commands)

    def get_command(self, _: Any, name: str) -> Any:  # noqa: ANN401 - the same
        """What lists show of a command; `resolve_command` finds the one that runs."""
        return self.commands.listed.get(name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - the same
        given = args[0]
        if given not in self.commands and not given.startswith("-"):
            from segmentlog.arguments import nearest  # the help needs none of these modules

            word = given.lower().removeprefix("kafka-").removesuffix(".sh")
            safe = [name for name, each in self.commands.items() if not each.deletes]
            near = nearest(word, safe, _SIMILAR)
            known = "segmentlog --help lists the commands"
            way = _WAYS.get(word) or (f"did you mean {near!r}?" if near else known)
            ctx.fail(f"No such command {given!r}; {way}")
        name, _, rest = super().resolve_command(ctx, args)
        return name, name and self.commands[name], rest

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - typer has no public name for it
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # The text still in the buffer would fail again when Python exits.
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(_PIPE_CLOSED) from None
        except KeyboardInterrupt:
            raise typer.Exit(_INTERRUPTED) from None
        except segmentlog.SegmentLogError as error:
            from segmentlog.arguments import rename

            if isinstance(error, segmentlog.OptionError) and not error.option.isupper():
                command: Any = self.commands[ctx.invoked_subcommand]
                rename(error, command.flags)
                error.option = _ARGUMENTS.get(error.option, error.option)
            _complain(str(error))
        except OSError as error:
            _complain(f"{error.filename or 'input or output'}: {error.strerror or error}")
        else:
            return result


def _complain(message: str) -> None:
    from segmentlog.tools.output import complain

    complain(message)
    raise typer.Exit(_REFUSED)


app = typer.Typer(
    cls=_CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",  # Markdown takes a tenth of the time of the help
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Look into Kafka log directories without a broker, and keep them in order.\n\n"
    "• what is here:  [bold cyan]segmentlog topics /var/lib/kafka[/]\n"
    "• find a record:  [bold cyan]segmentlog grep order-58 /var/lib/kafka[/]\n"
    "• get it back:  [bold cyan]segmentlog cat /var/lib/kafka payments -p 0 -o 58 -c 1[/]\n\n"
    "Commands that write take the broker's lock. All other commands only read, and are safe "
    "beside a running broker.",
)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        sys.stdout.write(f"segmentlog {segmentlog.__version__}\n")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Options of the command itself."""


class _WarningHandler(logging.Handler):
    """Warnings of the library, one line each on standard error, safe to print.

    A command may open a directory several times; what it has just said is not repeated.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._said: deque[str] = deque(maxlen=100)

    def emit(self, record: logging.LogRecord) -> None:
        if (message := record.getMessage()) not in self._said:
            from segmentlog.tools.output import complain

            self._said.append(message)
            complain(message)


def _open_standard_streams() -> None:
    """Open the null device in place of standard streams that are closed, as a daemon has them.

    Python has None in place of such a stream.  `produce` committed its records, and then failed.
    The first file that is opened, perhaps a log, would also get the free descriptor, and with it
    the messages of libraries.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for the whole process
            with suppress(OSError):
                os.fstat(descriptor)
                continue
            os.dup2(getattr(sys, name).fileno(), descriptor)


def main() -> None:
    """Run the command line and exit."""
    _open_standard_streams()
    logging.getLogger("segmentlog").addHandler(_WarningHandler())
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):  # a locale without Unicode still gets every line
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        app(prog_name="segmentlog")
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
