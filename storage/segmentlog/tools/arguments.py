"""Commands as modules declare them, and the arguments and options that they share."""

import functools
import inspect
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any, NamedTuple, TypeAlias, cast, get_args

import typer
from typer.core import TyperCommand

import segmentlog
from segmentlog.arguments import nearest, right_word
from segmentlog.declared import Declared, declared
from segmentlog.errors import OptionError, SegmentLogError
from segmentlog.model import LARGEST_LONG, OnCorruptBatch, RemoteStorageLayout
from segmentlog.read_options import SourceOptions
from segmentlog.store.paths import readable_path, tiered_paths
from segmentlog.store.readable import exists, is_directory
from segmentlog.times import A_TIME, epoch_milliseconds
from segmentlog.tools.commands import READS, TABLE, convert_if_needed

#: Exit status of a command that has read something damaged or missing.
PROBLEM = 1


class _Parsed(TyperCommand):
    """A command that answers an unknown option with the right one.

    typer guesses by spelling alone: also options that delete.
    """

    def get_help_option(self, ctx: Any) -> Any:  # noqa: ANN401 - the same
        return convert_if_needed(super().get_help_option(ctx))

    @property
    def deletes(self) -> bool:
        """Whether it deletes records, and so asks before it does."""
        return any("--yes" in each.opts for each in self.params)

    @property
    def flags(self) -> list[str]:
        """The flags that its help shows."""
        shown = [each for each in self.params if not getattr(each, "hidden", False)]
        return [name for each in shown for name in each.opts if name.startswith("-")]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - no public name
        typed = [*args]
        if any("--decode" in each.opts for each in self.params):
            args = _with_value(args)
        try:
            return super().parse_args(ctx, args)
        except _UsageError as error:
            if not hasattr(error, "possibilities"):  # not an unknown option
                error.message += self._for_each(typed)
                raise
            given = error.option_name
            hint = right_word(given, self.flags, f"segmentlog {self.name}")
            if not hint:
                near = nearest(given, {*self.flags} - _NEVER_GUESSED)
                hint = f"did you mean {near!r}?" if near else _elsewhere(given, ctx)
            error.possibilities = []
            error.message += f"; {hint}" if hint else ""
            raise

    def _for_each(self, args: Sequence[str]) -> str:
        """How to change several directories, if a command of one was given more."""
        given = [each for each in args if os.path.sep in each and exists(readable_path(each))]
        if len(given) < 2 or not any(each.name == "directory" for each in self.params):
            return ""
        if self.deletes:
            return ": it changes one directory, whose lock it holds; run it for each of them"
        lines = "; ".join(f"segmentlog {self.name} {shlex.quote(each)}" for each in given)
        return f": it changes one directory, whose lock it holds; run it for each: {lines}"


def _with_value(args: Sequence[str]) -> list[str]:
    """The arguments, with ``value`` after each ``--decode`` that no column follows."""
    found: list[str] = []
    for at, each in enumerate(args):
        found.append(each)
        after = args[at + 1] if at + 1 < len(args) else ""
        if each == "--decode" and not {*after.split(",")} <= {"key", "value"}:
            found.append("value")
    return found


def _elsewhere(given: str, ctx: Any) -> str:  # noqa: ANN401 - typer has no public name for it
    """The commands that only read, and that have an option."""
    commands = ctx.parent.command.commands if ctx.parent else {}
    having = [name for name in TABLE[READS] if given in commands[name].flags]
    return f"it is an option of {', '.join(having)}" if having else ""


#: What typer raises for a wrong command line.
_UsageError: Any = typer.BadParameter.__bases__[0]

#: Options that let records go; nobody is led to them by a similar name.
_NEVER_GUESSED = {"--yes", "-y", "--purge", "--remove", "--roll", "--before", "--offset"}


class Command(NamedTuple):
    """A command of ``segmentlog``: its docstring is its help, its parameters are its options."""

    run: Callable[..., None]
    examples: Sequence[str]  # command lines, at the end of its help

    def for_typer(self, group: str) -> TyperCommand:
        """The command as typer runs it, in a group of the help."""
        app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
        kinds = {}
        for name, each in inspect.signature(self.run).parameters.items():
            kinds[name], *options = get_args(each.annotation)
            for option in options if kinds[name] is bool else ():
                # Of a switch whose option has no name, typer would also make one to switch it off.
                # It takes a name without a default as the default.
                if option.default is ... and not option.param_decls:
                    option.param_decls = (f"--{name.replace('_', '-')}",)
        epilog = "\n\n".join(["Examples:", *self.examples])
        name = self.run.__name__.replace("_", "-")
        app.command(name, cls=_Parsed, rich_help_panel=group, epilog=epilog)(self.run)
        made = cast("TyperCommand", typer.main.get_command(app))
        for parameter in made.params:
            convert_if_needed(parameter, kinds.get(parameter.name))
        return made


def command(*examples: str) -> Callable[[Callable[..., None]], Command]:
    """A decorator that makes a command of a function; see `Command`."""
    return lambda run: Command(run, examples)


def complete_topic(ctx: typer.Context, incomplete: str) -> list[str]:
    """Topics of the paths before the cursor that begin with `incomplete`; only names are read."""
    # If an option still lacks its value, the arguments before it stay unparsed in `args`.
    directory = ctx.params.get("directory")
    paths = [*(ctx.params.get("paths") or ()), *ctx.args, *([directory] if directory else [])]
    found: set[str] = set()
    for path in paths:
        try:
            found.update(segmentlog.open_log_dir(path).topics(internal=True))
        except (SegmentLogError, OSError):  # no completion is better than a message here
            continue
    return sorted(topic for topic in found if topic.startswith(incomplete))


PATHS_HELP = "Log directories, partition directories or .log files."
Directory = Annotated[str, typer.Argument(metavar="DIR", help="A log directory.")]
Paths = Annotated[list[str], typer.Argument(metavar="DIR", help=PATHS_HELP)]
PathsOrTier = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="DIR", help=f"{PATHS_HELP} With --remote-storage, DIR may be left out."
    ),
]


class Tier(NamedTuple):
    """The options of a command that name a tier."""

    remote_storage: str | None
    remote_storage_layout: RemoteStorageLayout | None
    remote_storage_key_file: str | None

    def beside(self, paths: Sequence[str] | None, *, fail_on_data_loss: bool = True) -> list[str]:
        """The paths of a command, each with the tier if there is one."""
        given = tiered_paths(paths or (), *self, fail_on_data_loss=fail_on_data_loss)
        return [*map(os.fsdecode, given)]


Run: TypeAlias = Callable[..., None]


def flags(options: Callable[..., object], *names: str, **defaults: object) -> Callable[[Run], Run]:
    """Give a command flags of an operation's options, in place of its argument `given`.

    The operation is a function, or the class of its options; the help of a flag is that of the
    option, or its first sentence.  `given` gets their values by name.  `defaults`: of this
    command, where it has others.
    """
    known = declared(options, **defaults)
    chosen = [known[name] for name in names]

    def by_name(given: Sequence[Any]) -> dict[str, Any]:
        return {each.name: _value(each, value) for each, value in zip(chosen, given, strict=True)}

    return _with_flags("given", chosen, by_name)


def _value(option: Declared, given: Any) -> Any:  # noqa: ANN401 - each option has its type
    """What a function takes for the value of a flag."""
    if option.kind is dict:
        return parse_settings(given)
    return (given or option.default) if option.kind is list else given


def tiered(run: Run) -> Run:
    """Give a command the options of a tier in place of its argument `tier`, a `Tier`."""
    chosen = [declared(SourceOptions)[name] for name in Tier._fields]
    return _with_flags("tier", chosen, lambda given: Tier(*given))(run)


def _with_flags(
    argument: str, options: Sequence[Declared], made: Callable[[list[Any]], object]
) -> Callable[[Run], Run]:
    """A decorator that makes an argument of a command of the values of flags."""

    def decorate(run: Run) -> Run:
        @functools.wraps(run)
        def with_options(**given: Any) -> None:  # noqa: ANN401 - the options of any command
            values = [given.pop(each.name) for each in options]
            run(**{argument: made(values)}, **given)

        kind = inspect.Parameter.KEYWORD_ONLY
        added = [
            inspect.Parameter(each.name, kind, default=each.default, annotation=_flag(each))
            for each in options
        ]
        own = [each.replace(kind=kind) for each in inspect.signature(run).parameters.values()]
        at = next(i for i, each in enumerate(own) if each.name == argument)
        shown = [*own[:at], *added, *own[at + 1 :]]
        if argument == "tier":  # in all commands at the end
            shown = [*own[:at], *own[at + 1 :], *added]
        # typer asks for both.
        with_options.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
        with_options.__annotations__ = {each.name: each.annotation for each in shown}
        return with_options

    return decorate


def _flag(option: Declared) -> Any:  # noqa: ANN401 - what typer takes for an option
    """An option of a command, with the first sentence of its declaration as help."""
    text = option.said(lambda name: f"--{name.replace('_', '-')}", str).partition(". ")[0]
    text = text.removeprefix("whether ").removeprefix("to ")
    text = f"{text if option.sentence[:1] == '`' else text[:1].upper() + text[1:]}."
    help_text = option.help or text
    names = option.flags.split() or [f"--{option.name.replace('_', '-')}"]
    if option.kind is datetime:
        return Annotated[int | None, time_option(help_text)]
    is_path = option.kind is os.PathLike
    default = option.shown_default.strip("`") or True
    shown: dict[str, Any] = {
        "metavar": option.metavar or ("PATH" if is_path else None),
        "show_default": default,
    }
    kind: Any = str if is_path or option.kind is object else option.kind
    if kind in {list, dict}:
        completion = complete_topic if option.name == "topic" else None
        return Annotated[
            list[str] | None,
            typer.Option(
                *names, help=help_text, metavar=option.metavar or None, autocompletion=completion
            ),
        ]
    if kind is float or (kind is int and (option.least > 0 or option.most < LARGEST_LONG)):
        shown |= {"min": option.least}
        shown |= {"max": option.most} if option.most < LARGEST_LONG else {}
    if kind is bool:
        shown = {}
    return Annotated[
        kind if option.default is not None else kind | None,
        typer.Option(*names, help=help_text, **shown),
    ]


Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic", help="Only this topic; may be repeated.", autocompletion=complete_topic
    ),
]
Topic = Annotated[
    str | None,
    typer.Argument(
        metavar="TOPIC",
        help="The topic; may be left out if the directory has only one topic.",
        autocompletion=complete_topic,
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


def json_option(what: str) -> Any:  # noqa: ANN401 - the same
    """The option for programs, which shows `what`."""
    return typer.Option("--json", help=what)


JsonLines = Annotated[bool, json_option("Print one JSON object per line.")]
AsJson = Annotated[bool, json_option("One JSON object per line; the last object is the summary.")]

OnDamage = Annotated[
    OnCorruptBatch,
    typer.Option(
        "--on-corrupt-batch",
        help="What becomes of a partition with damage: fail shows nothing of it, skip shows what "
        "its other batches say, which may be out of date. The exit status is 1 in both cases.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--setting", "-s", metavar="NAME=VALUE", help="A topic setting; may be repeated."
    ),
]
Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Delete records without asking on a terminal.")
]


def refuse_one_file(offsets: str | None, offset_map: str | None) -> None:
    """Refuse ``--offsets`` and ``--offset-map`` that lead to one file."""
    if offsets and offset_map and os.path.realpath(offsets) == os.path.realpath(offset_map):
        message = "the two names lead to one file: give two files"
        raise typer.BadParameter(message, param_hint="--offsets, --offset-map")


def refuse_swapped(name: str, given: str, path: str, usage: str) -> None:
    """Refuse a path that does not exist, if another argument is a directory.

    Raises `OptionError` if the two arguments are probably swapped; it shows `usage`.
    """
    try:
        is_swapped = is_directory(readable_path(given)) and not exists(readable_path(path))
    except (SegmentLogError, OSError):
        return
    if is_swapped:
        raise OptionError(name, given, f"give the arguments in this order: {usage}")


def parse_settings(given: Sequence[str] | None) -> dict[str, str]:
    """Settings as ``retention.ms=86400000``."""
    settings = {}
    for text in given or ():
        name, sign, value = text.partition("=")
        if not sign:
            raise OptionError("setting", text, "give a name and a value: retention.ms=86400000")
        settings[name.strip()] = value
    return settings


#: Asks a question; returns only if it is answered with yes.
Ask: TypeAlias = Callable[[str], object]


def is_terminal() -> bool:
    """Whether a person can answer a question."""
    return sys.stdin is not None and sys.stdin.isatty()


def asking(*, yes: bool) -> Ask | None:
    """The question before records go, or None: a script and a timer have no terminal."""
    if yes or not is_terminal():
        return None
    return lambda question: typer.confirm(question, abort=True, err=True)
