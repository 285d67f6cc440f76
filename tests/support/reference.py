"""The pages that are made of the code: commands, functions, and what both of them report.

Each command's help, each docstring, and the comments beside the members of an enum become the
region between the marks of a page; `public_face.py` writes the pages.
"""

import dataclasses
import enum
import functools
import importlib
import inspect
import itertools
import re
import textwrap
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import typer

import segmentlog
from segmentlog.audits.audit import FAULTS, FINDINGS
from segmentlog.maintain.verification.findings import SEVERITIES
from segmentlog.tools.cli import app
from segmentlog.tools.commands import TABLE

TOP = Path(__file__).parents[2]
_SECTION = re.compile(r"^(\w+)\n-{3,}\n", re.MULTILINE)
_ENTRY = re.compile(r"^(\S.*?)(?: : (.*))?$")
#: Words of a help that are code, or would be marks of Markdown: commands, settings, options, URLs,
#: names with underscores, stars.
_WORD = re.compile(
    rf"(?<![\w`/-])(segmentlog (?:{'|'.join(itertools.chain(*TABLE.values()))})(?: --[\w-]+)?"
    r"(?: skip)?|\w+=\w+|https://[\w:@]+|--?[a-z][\w-]*|\w*_\w[\w-]*|\*+(?:\.\w+)?|<[\w-]+>)(?![\w`])"
)


def with_commands(text: str) -> str:
    """`storage/docs/commands.md`: the help of each command."""
    return between(text, "commands", _lines(_commands()))


def with_functions(text: str) -> str:
    """`storage/docs/functions.md`: each docstring of the public names, without the errors."""
    return between(text, "functions", _lines(_functions()))


def with_reports(text: str) -> str:
    """`storage/docs/findings.md`: the members of the enums of reports, and the errors."""
    findings = {
        "severity": lambda each: str(SEVERITIES.get(each, segmentlog.Severity.ERROR)),
        "meaning": comments(segmentlog.FindingKind),
        "what to do": lambda each: _plain(each.remedy.partition(": ")[2]),
    }
    files = {
        "files": comments(segmentlog.UsageKind),
        "what removes them": lambda each: _plain(each.removal),
    }
    steps = {"action of the broker": comments(segmentlog.StartAction)}
    mends = {"what was done": comments(segmentlog.RecoveryKind)}
    text = between(text, "findings", table("finding", segmentlog.FindingKind, findings))
    text = between(text, "findings of an audit", _lines(_audited()))
    text = between(text, "steps of a start", table("step", segmentlog.StartAction, steps))
    text = between(text, "steps of a recovery", table("step", segmentlog.RecoveryKind, mends))
    text = between(text, "kinds of files", table("kind", segmentlog.UsageKind, files))
    return between(text, "errors", _lines(_errors()))


def with_floors(text: str) -> str:
    """`storage/README.md`: the floors of the engine, with the first sentences of the packages."""
    contracts = tomllib.loads((TOP / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = (
        each["layers"]
        for each in contracts["contracts"]
        if each.get("containers") == ["segmentlog"]
    )
    rows = []
    for layer in layers:
        for place, name in enumerate(layer.split(" | ")):
            said = inspect.getdoc(importlib.import_module(f"segmentlog.{name}")) or ""
            first = said.partition("\n")[0].partition(".  ")[0].replace("``", "")
            rows.append(f"{' ' if place else '-'} {name:17}  {first.rstrip('.:')}")
    made = "\n".join(rows)
    return between(text, "floors", f"\n```\n{made}\n```\n\n")


def between(text: str, region: str, made: str) -> str:
    """A page with what is made of the code between the marks of a region."""
    begin, end = f"<!-- {region}:begin -->\n", f"<!-- {region}:end -->\n"
    before, found, rest = text.partition(begin)
    assert found, f"the page lacks {begin}"
    return f"{before}{begin}{made}{end}{rest.partition(end)[2]}"


def _lines(made: Iterator[str]) -> str:
    return "\n" + "\n".join(made).strip() + "\n\n"


# Commands.


#: An option of so many commands is described once, at the end.
_SEVERAL = 3


def _commands() -> Iterator[str]:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    rows = {name: dict(_rows(each)) for name, each in commands.items()}
    counts = Counter(itertools.chain.from_iterable(each.items() for each in rows.values()))
    shared = {row for row, n in counts.items() if n >= _SEVERAL and row[0].startswith("`-")}
    variants = Counter(each for each, _ in shared)
    shared = {row for row in shared if variants[row[0]] == 1}
    for group, names in TABLE.items():
        yield f"## {group}\n"
        for name in names:
            yield f"### `{name}`\n\n{_plain(commands[name].help)}\n\n{_HEAD}"
            yield from (
                f"| {each} | {text} |"
                for each, text in rows[name].items()
                if (each, text) not in shared
            )
            also = [each for each in rows[name].items() if each in shared]
            if also:
                words = ", ".join(each.partition(",")[0].partition(" ")[0] for each, _ in also)
                yield f"| {words} | [as in other commands](#options-of-several-commands) |"
            _, *examples = commands[name].epilog.split("\n\n")
            yield "\n```\n" + "\n".join(examples) + "\n```\n"
    yield f"## Options of several commands\n\n{_HEAD}"
    yield from (f"| {each} | {text} |" for each, text in sorted(shared))


_HEAD = "| argument or option | meaning |\n|---|---|"


def _rows(command: Any) -> Iterator[tuple[str, str]]:
    """The arguments and options of a command, each with its meaning."""
    kinds = inspect.signature(command.callback).parameters
    for each in command.params:
        if getattr(each, "hidden", False) or not each.help:
            continue
        is_option = each.opts[0].startswith("-")
        metavar = each.metavar or ("" if is_option else each.name.upper())
        words = ", ".join(map(_code, each.opts)) if is_option else ""
        shown = " ".join(filter(None, [words, f"`{metavar}`" if metavar else ""]))
        meaning = _plain(each.help).replace("\n", " ")
        if values := next(_members(kinds[each.name].annotation), ""):
            meaning += f" One of {values}."
        default = each.default.value if isinstance(each.default, enum.Enum) else each.default
        if default and default is not True and not callable(default):
            meaning += f" By default {_code(str(default).encode('unicode_escape').decode())}."
        yield shown.replace("|", "\\|"), meaning


def _members(annotation: Any) -> Iterator[str]:
    """The values of an enum, in a sentence; of an annotation that has one."""
    if inspect.isclass(annotation) and issubclass(annotation, enum.Enum):
        yield ", ".join(_code(str(each.value)) for each in annotation)
    elif not isinstance(annotation, str):
        for each in get_args(annotation):
            yield from _members(each)


def _plain(text: str) -> str:
    """The text of a help in Markdown: words that would be marks of it are code."""
    parts = re.split(r"(`[^`]*`)", text.strip())
    return "".join(
        each if each.startswith("`") else _WORD.sub(r"`\1`", each).replace("|", "\\|")
        for each in parts
    )


def _code(text: str) -> str:
    return f"`{text}`"


# Python.

_PROPERTIES = (property, functools.cached_property)

#: Classes with methods that a user calls.
_WITH_METHODS = ("LogDirectory", "Log", "LogDataset", "LogWriter", "ReplicatedDirectory", "Server")


def _functions() -> Iterator[str]:
    public = {name: getattr(segmentlog, name) for name in sorted(segmentlog.__all__)}
    classes = {name: each for name, each in public.items() if inspect.isclass(each)}
    errors = {name for name, each in classes.items() if issubclass(each, BaseException)}
    yield "## Functions\n"
    for name, each in public.items():
        if inspect.isfunction(each):
            yield from _described("###", f"segmentlog.{name}", each)
    yield "## Objects with methods\n"
    for name in _WITH_METHODS:
        yield f"### `{name}`\n\n{_markdown(inspect.getdoc(classes[name]))}\n"
        for method, member in _own(classes[name]):
            if not isinstance(member, _PROPERTIES):
                yield from _described("####", f"{name}.{method}", member)
            else:
                yield f"#### `{name}.{method}`\n\n{_markdown(inspect.getdoc(member))}\n"
    yield "## Options and results\n"
    for name, each in classes.items():
        if name in errors or name in _WITH_METHODS:
            continue
        yield f"### `{name}`\n\n{_markdown(inspect.getdoc(each))}\n"
        if issubclass(each, enum.Enum):
            yield ", ".join(_code(str(one.value)) for one in each) + "\n"
            continue
        fields = [*getattr(each, "_fields", ())]
        if dataclasses.is_dataclass(each):
            fields = [one.name for one in dataclasses.fields(each)]
        if fields:
            yield f"Fields: {', '.join(map(_code, fields))}.\n"
        for member_name, member in _own(each):
            if member_name not in fields:
                first = (inspect.getdoc(member) or "").partition("\n\n")[0]
                call = "" if isinstance(member, _PROPERTIES) else "()"
                yield f"- `{member_name}{call}`: {_markdown(first)}"
        yield ""


def _own(kind: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class, those of its bases in segmentlog, too."""
    found: dict[str, Any] = {}
    for each in kind.__mro__:
        if each.__module__.partition(".")[0] == "segmentlog":
            found = {**vars(each), **found}
    for name, member in sorted(found.items()):
        plain = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        is_shown = inspect.isroutine(plain) or isinstance(plain, _PROPERTIES)
        if name[0] != "_" and is_shown and inspect.getdoc(plain):
            yield name, plain


def _described(head: str, name: str, function: Callable[..., Any]) -> Iterator[str]:
    yield f"{head} `{name.rpartition('segmentlog.')[2]}`\n"
    parameters, star = [], False
    for each in inspect.signature(function).parameters.values():
        if each.name in ("self", "cls"):
            continue
        if each.kind is each.KEYWORD_ONLY and not star:
            parameters.append("*")
        star = star or each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        mark = "*" * ((each.kind is each.VAR_POSITIONAL) + 2 * (each.kind is each.VAR_KEYWORD))
        parameters.append(mark + each.name + _default(each.default))
    call = textwrap.wrap(
        f"{name}({', '.join(parameters)})", 88, subsequent_indent=" " * 4, break_on_hyphens=False
    )
    yield "\n".join(["```", *call, "```\n"])
    yield f"{_markdown(inspect.getdoc(function))}\n"


def _default(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return ""
    value = value.value if isinstance(value, enum.Enum) else value
    is_plain = value is None or isinstance(value, bool | int | float | str | tuple)
    return f"={value!r}" if is_plain else "=…"


def _markdown(text: str | None) -> str:
    """A docstring in the form of numpy as Markdown."""
    lead, *sections = _SECTION.split(text or "")
    made = [_paragraphs(lead)]
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        if title == "Notes":
            made.append(_paragraphs(body))
        else:
            made.append(f"**{title}**\n\n" + "\n".join(_entries(body)))
    return "\n\n".join(each.strip() for each in made)


def _paragraphs(text: str) -> str:
    """Text with its blocks of code in fences."""
    text = re.sub(
        r"^::\n\n((?:(?: {4}.*)?\n)+)",
        lambda block: f"```\n{inspect.cleandoc(block[1])}\n```\n\n",
        f"{text}\n",
        flags=re.MULTILINE,
    )
    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(each if each.startswith("```") else _spans(each) for each in parts)


def _entries(text: str) -> Iterator[str]:
    """A list of parameters, results or errors: names, and the text that is indented below."""
    entry = ""
    for line in text.strip().splitlines():
        found = _ENTRY.match(line)
        if line.startswith(" ") or not found:
            entry += f" {line.strip()}" if line.strip() else ""
            continue
        if entry:
            yield _spans(entry)
        names = ", ".join(_code(each) for each in found[1].strip("`").split(", "))
        entry = f"- {names}: {found[2] or ''}".rstrip()
    yield _spans(entry)


def _spans(text: str) -> str:
    return re.sub(r"``(.+?)``", r"`\1`", text, flags=re.DOTALL)


# What commands and functions report.


def table(word: str, kind: type[enum.StrEnum], columns: Mapping[str, Callable[[Any], str]]) -> str:
    """A row for each member."""
    rows = [f"| {' | '.join([word, *columns])} |", f"|---|{'---|' * len(columns)}"]
    rows += [
        f"| {' | '.join([_code(each), *(of(each) for of in columns.values())])} |" for each in kind
    ]
    return _lines(iter(rows))


def comments(kind: type[enum.StrEnum]) -> Callable[[Any], str]:
    """The comment of a member: beside it, or in the lines above."""
    found, said = {}, ""
    for line in inspect.getsource(kind).splitlines():
        code, _, comment = line.partition("#: ")
        said += f" {comment.strip()}" * bool(comment)
        if member := re.match(r' *[A-Z_]+ = "(.+)"', code):
            found[member[1]], said = said.strip(), ""
    assert all(found[each.value] for each in kind), found
    return lambda each: _spans(found[each.value])


def _audited() -> Iterator[str]:
    """The findings of an audit, as the docstring of its result says them."""
    yield "| finding | a fault | offsets |\n|---|---|---|"
    (_, _, body) = _SECTION.split(inspect.getdoc(segmentlog.AuditedPartition) or "")
    said = dict(re.findall(r"- `(\w+)`: (.*)", "\n".join(_entries(body))))
    for name in FINDINGS:
        words = name.split("_")
        shown = words[0] + "".join(each.title() for each in words[1:])
        yield f"| `{shown}` | {'yes' if name in FAULTS else 'no'} | {said[name]} |"


def _errors() -> Iterator[str]:
    yield "| error | its bases | its fields | meaning |\n|---|---|---|---|"
    for name in sorted(segmentlog.__all__):
        each = getattr(segmentlog, name)
        if not (inspect.isclass(each) and issubclass(each, BaseException)):
            continue
        bases = [one.__name__ for one in each.__bases__ if one.__name__[0] != "_"]
        names: list[str] = []
        for one in reversed(each.__mro__):
            if issubclass(one, segmentlog.SegmentLogError):
                names += inspect.get_annotations(one)
        fields = [one for one in dict.fromkeys(names) if one != "code" and one[0] != "_"]
        meaning = re.sub(r"\s*\n\s*", " ", _markdown(inspect.getdoc(each)))
        cells = [", ".join(map(_code, bases)), ", ".join(map(_code, fields)), meaning]
        yield f"| `{name}` | {' | '.join(cells)} |"


#: What `public_face.py` does with each page.
PAGES = {
    TOP / "storage" / "README.md": with_floors,
    TOP / "storage" / "docs" / "commands.md": with_commands,
    TOP / "storage" / "docs" / "findings.md": with_reports,
    TOP / "storage" / "docs" / "functions.md": with_functions,
}
