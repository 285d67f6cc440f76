"""Tables of documents that are made of the code; this script writes them.

They are the public face in `storage/docs/stable.md`, Spark's options in
`connector/docs/options.md`, those of Kafka's clients in `connector/docs/testing.md`, the faults in
`storage/docs/recovery.md`, the steps of commits and compactions in `storage/docs/commit.md` and
`storage/docs/upkeep.md`, the words of a read in `storage/docs/python.md`, the words of calls in
`segmentlog.arguments`, and the pages of `reference.py`: commands, functions, findings and errors.

Names, parameters, options and fields are taken from the code, and fields of JSON from what the
commands print.  So the page and the code can only differ by a change that somebody sees.
"""

import ast
import contextlib
import dataclasses
import enum
import inspect
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet
import reference
import typer
from checklist import with_checklist
from reference import between
from typer.testing import CliRunner
from words import with_calls

import pyspark_segmentlog
import pytest_segmentlog
import segmentlog
from pyspark_segmentlog.options.names import _FORBIDDEN_IN_READS, _FORBIDDEN_IN_WRITES
from pyspark_segmentlog.options.reference import READ_OPTIONS, WRITE_OPTIONS
from pyspark_segmentlog.testing.kafka_clients import CLIENT_OPTIONS, MODELLED, REFUSED
from segmentlog.log.swaps import SwapStep
from segmentlog.maintain.health.kinds import FaultKind
from segmentlog.maintain.verification.findings import OF_START
from segmentlog.read_options import READ_OPTIONS as OF_READS
from segmentlog.testing.kafka_log import KafkaLog
from segmentlog.tools.cli import app
from segmentlog.tools.output import json_fields
from segmentlog.txn.change import ChangeStep
from segmentlog.txn.effects import _EFFECTS

TOP = Path(__file__).parents[2]
PAGE = TOP / "storage" / "docs" / "stable.md"
_NAMES = re.compile(r"^\| `([\w.]+)`", re.MULTILINE)
_BEGIN, _END = "<!-- public face:begin -->\n", "<!-- public face:end -->\n"

#: Command lines that print JSON, in a copy of the examples; `own` is a directory without a broker.
_RUNS = {
    "topics": "topics examples/data --json",
    "usage": "usage examples/data --json",
    "analyze": "analyze examples/data --json",
    "audit": "audit examples/data orders --table rows.parquet --json",
    "clone": "clone own orders orders-v2 --json",
    "describe": "describe examples/data --json",
    "grep": "grep order-58 examples/data --json",
    "cat": "cat examples/data payments -c 1 --json",
    "dump": "dump examples/data --topic orders --records -f jsonl",
    "offsets": "offsets --checkpoint examples/checkpoint examples/data --json",
    "replicas": "replicas examples/brokers/b1 examples/brokers/b2 examples/brokers/b3 --json",
    "compare": "compare examples/data examples/data --json",
    "verify": "verify examples/data --json",
    "preflight": "preflight examples/cluster --json",
    "recover": "recover own --json",
    "reindex": "reindex own --json",
    "retain": "retain own --kafka-defaults --json",
    "compact": "compact own --json",
    "delete-records": "delete-records own --topic orders --before 2100-01-01 --json",
    "erase": "erase own --key order-58 --yes --json",
    "produce": "produce own lines value.txt --json",
    "configure": "configure own --topic orders -s retention.ms=-1 --json",
    "mirror": "mirror examples/data copied --json",
    "placement": "placement examples/data examples/cluster --replication-factor 1 --topic "
    "payments --json",
    "delete-topic": "delete-topic own customers --yes --json",
    "doctor": "doctor --json",
}

#: Commands whose JSON has the fields of a result, and those whose rows are described elsewhere.
_RESULTS: dict[str, type] = {
    "restore": segmentlog.RestoredPartition,
    "undelete": segmentlog.RestoredPartition,
    "sweep": segmentlog.Swept,
    "upgrade": segmentlog.Upgraded,
}
#: Functions that take what `dataset` takes, or most of it.
_OF_DATASETS = {"read", "latest", "audit"}

_TABLES = ("groups", "transactions", "cluster", "schemas", "table")


def tables() -> str:
    """The tables of the page, in Markdown."""
    sections = {
        "Python: `segmentlog`": ("name", "parameters, fields, members or methods", _python),
        "Python: `pyspark_segmentlog`": ("name", "parameters", _spark),
        "pytest": ("fixture", "parameters", _fixtures),
        "Commands": ("command", "arguments and options", _commands),
        "JSON": ("command", "fields of its lines", _json),
        "Environment": ("variable", "read by", _environment),
    }
    text = ""
    for title, (first, second, rows) in sections.items():
        text += f"\n### {title}\n\n| {first} | {second} |\n|---|---|\n"
        text += "".join(f"| `{name}` | {shown} |\n" for name, shown in rows())
    return f"{text}\n"


def with_options(text: str) -> str:
    """`connector/docs/options.md` with a row for each option; a new one follows the last."""
    left = [*READ_OPTIONS, *WRITE_OPTIONS]
    head = r"(\| option \| default \| accepted \| meaning \|\n\|---\|---\|---\|---\|\n)"
    tables = re.compile(head + r"((?:\| `.*\n)*)")
    known = {name for _, rows in tables.findall(text) for name in _NAMES.findall(rows)}

    def rows_of(found: re.Match[str]) -> str:
        own, rows = {*_NAMES.findall(found[2])}, found[1]
        while left and (left[0].name in own or left[0].name not in known):
            name, *cells = left.pop(0)[:4]
            rows += f"| `{name}` | {' | '.join(cells)} |\n"
        return rows

    made = tables.sub(rows_of, text)
    assert not left, f"no table has a place for {left[0].name}"
    return made


def with_words(text: str) -> str:
    """`storage/docs/python.md` with a row for each option of reads; a new one follows the last."""
    functions: dict[str, Any] = {"dataset": segmentlog.dataset}
    functions |= {
        name: each
        for name in sorted({*segmentlog.__all__} - _OF_DATASETS)
        if inspect.isfunction(each := getattr(segmentlog, name))
    }
    functions |= {"Log.scan": segmentlog.Log.scan, "ProducerConfig": segmentlog.ProducerConfig}
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    place = 0
    for name, option in OF_READS.items():
        words = [name, *(option.words.names.split() if option.words else ())]
        flags = [f"--{each.replace('_', '-')}" for each in words]
        cells = [
            [option.in_spark],
            [
                f"{each}({word})"
                for each, function in functions.items()
                for word in inspect.signature(function).parameters
                if word in words
            ],
            [
                f"{each} {flag}"
                for each, command in commands.items()
                for one in command.params
                for flag in one.opts
                if flag in flags
            ],
        ]
        row = f"| {' | '.join([option.idea, *map(_named, cells)])} |\n".replace("|  |", "| |")
        old = re.search(rf"^\| {re.escape(option.idea)} \|.*\n", text, re.MULTILINE)
        begin, end = old.span() if old else (place, place)
        text = text[:begin] + row + text[end:]
        place = begin + len(row)
    return text


def with_faults(text: str) -> str:
    """`storage/docs/recovery.md` with what a starting broker notices, and what mends it."""
    heads = "fault", "a starting broker (`preflight`)", "a finding of `verify`"
    table = f"| {' | '.join(heads)} | `segmentlog recover` |\n|---|---|---|---|\n"
    for each in FaultKind:
        fault, action, mend, after = each.value
        mends = "; ".join(filter(None, (mend, after))) or "—"
        table += f"| {fault} | `{action}` | `{OF_START[action]}` | {mends} |\n"
    return between(text, "faults", table)


def with_tests(text: str) -> str:
    """`connector/docs/testing.md` with the calls of a `KafkaLog`, and the options of clients."""
    calls = "| call | what it does |\n|---|---|\n"
    for name, call in vars(KafkaLog).items():
        if inspect.isfunction(call) and name[0] != "_":
            given = ", ".join([*inspect.signature(call).parameters][1:])
            said = (inspect.getdoc(call) or "").partition("\n\n")[0]
            calls += f"| `{name}({given})` | {said} |\n"
    return with_client_options(between(text, "calls", calls))


def with_client_options(text: str) -> str:
    """The page with what each option of Kafka's clients does in a test."""
    refused = {*REFUSED, *_FORBIDDEN_IN_READS, *_FORBIDDEN_IN_WRITES}
    effects = {
        "modelled": MODELLED,
        "refused": refused,
        "no effect": {*CLIENT_OPTIONS} - MODELLED - refused,
    }
    table = "| effect | options |\n|---|---|\n"
    for effect, names in effects.items():
        table += f"| {effect} | {_named([f'kafka.{each}' for each in sorted(names)])} |\n"
    return between(text, "client options", table)


def with_examples(text: str) -> str:
    """`examples/README.md` with what each example says of itself; a new one follows the last."""
    examples, kinds = TOP / "examples", (".py", ".sql", ".ipynb")
    files = sorted(each.name for each in examples.iterdir() if each.suffix in kinds)
    links = re.findall(r"^\| \[(.+?)\]\((.+?)\)", text, re.MULTILINE)
    links += [(each, each) for each in files if (each, each) not in links]
    table = "| example | shows | after |\n|---|---|---|\n"
    for name, target in links:
        said = _says(examples / target)
        shows = re.split(r"\.\s|\.$|\n\n", said)[0].replace("\n", " ")
        needs = " ".join((re.findall(r"pip install ([^&`]+)", said) or ["."])[0].split())
        table += f"| [{name}]({target}) | {shows} | `pip install {needs}` |\n"
    return between(text, "examples", table)


def _says(example: Path) -> str:
    text = example.read_text()
    if example.suffix == ".ipynb":
        title, _, said = "".join(json.loads(text)["cells"][0]["source"]).partition("\n\n")
        return f"{title.strip('# ')}: {said}"
    if example.suffix == ".sql":
        return " ".join(re.findall(r"^-- (.*)", text, re.MULTILINE)[:2])
    return ast.get_docstring(ast.parse(text)) or ""


def with_change_steps(text: str) -> str:
    """`storage/docs/commit.md` with the steps of a change, and the effects that one can have."""
    effects = "| effect | what follows from the decision |\n|---|---|\n"
    for kind, effect in _EFFECTS.items():
        effects += f"| `{kind}` | {(effect.__doc__ or '').partition('.')[0]} |\n"
    return between(between(text, "steps", _steps(ChangeStep)), "effects", effects)


def with_upkeep(text: str) -> str:
    """`storage/docs/upkeep.md` with the steps of a compaction, and what an erasure may leave."""
    said = {"what it is, and what removes it": reference.comments(segmentlog.CopyKind)}
    copies = reference.table("kind", segmentlog.CopyKind, said)
    return between(between(text, "steps", _steps(SwapStep)), "copies", copies)


def _steps(kind: type[enum.Enum]) -> str:
    rows = [f"| {each.name.lower()} | {each.value} |\n" for each in kind]
    return f"| step | what is done |\n|---|---|\n{''.join(rows)}"


#: Pages beside that of the public face, and what they have of the code.
PAGES = {
    TOP / ".github" / "CONTRIBUTING.md": with_checklist,
    TOP / "connector" / "docs" / "options.md": with_options,
    TOP / "examples" / "README.md": with_examples,
    TOP / "connector" / "docs" / "testing.md": with_tests,
    TOP / "storage" / "docs" / "commit.md": with_change_steps,
    TOP / "storage" / "docs" / "python.md": with_words,
    TOP / "storage" / "docs" / "recovery.md": with_faults,
    TOP / "storage" / "docs" / "upkeep.md": with_upkeep,
    TOP / "storage" / "segmentlog" / "arguments.py": with_calls,
} | reference.PAGES


def shown() -> str:
    """What the page has in their place."""
    return PAGE.read_text().partition(_BEGIN)[2].partition(_END)[0]


def _named(names: Sequence[str]) -> str:
    return ", ".join(f"`{each}`" for each in names)


def _parameters(function: Callable[..., Any]) -> str:
    marks: dict[object, str] = {
        inspect.Parameter.VAR_POSITIONAL: "*",
        inspect.Parameter.VAR_KEYWORD: "**",
    }
    found = inspect.signature(function).parameters.values()
    return _named([f"{marks.get(each.kind, '')}{each.name}" for each in found])


def _described(value: Any) -> str:
    if not inspect.isclass(value):
        return _parameters(value)
    if issubclass(value, BaseException):
        code = getattr(value, "code", None)
        names = inspect.get_annotations(value)
        fields = [each for each in names if each != "code" and not each.startswith("_")]
        return "; ".join(filter(None, [f"code `{code}`" if code else "", _named(fields)]))
    if issubclass(value, enum.Enum):
        return _named([str(each.value) for each in value])
    own = [
        name
        for each in value.__mro__
        if each.__module__.partition(".")[0] == "segmentlog"
        for name, member in vars(each).items()
        if name[0] != "_" and (inspect.isroutine(member) or isinstance(member, property))
    ]
    fields = [*getattr(value, "_fields", ())]
    if dataclasses.is_dataclass(value):
        fields = [each.name for each in dataclasses.fields(value)]
    return _named([*fields, *sorted({*own} - {*fields})])


def _python() -> Iterator[tuple[str, str]]:
    for name in sorted(segmentlog.__all__):
        yield name, _described(getattr(segmentlog, name))


def _spark() -> Iterator[tuple[str, str]]:
    for name in sorted(pyspark_segmentlog.__all__):
        value = getattr(pyspark_segmentlog, name)
        yield name, 'the format `"segmentlog"`' if inspect.isclass(value) else _parameters(value)


def _fixtures() -> Iterator[tuple[str, str]]:
    for name, value in sorted(vars(pytest_segmentlog).items()):
        if type(value).__name__ == "FixtureFunctionDefinition":
            yield name, ""


def _commands() -> Iterator[tuple[str, str]]:
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        found = []
        for each in command.params:
            is_option = each.opts[0].startswith("-")
            metavar = str(each.metavar or each.name.upper())
            spelled = [*each.opts, *each.secondary_opts] if is_option else [metavar]
            if not getattr(each, "hidden", False):
                found.append(" ".join(f"`{one}`" for one in spelled))
        yield name, ", ".join(found)


def _json() -> Iterator[tuple[str, str]]:
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        for name in ("brokers", "checkpoint", "cluster", "data"):
            shutil.copytree(TOP / "examples" / name, Path("examples", name))
        segmentlog.mirror("examples/data", to="own")
        Path("value.txt").write_text("a\n")
        pyarrow.parquet.write_table(segmentlog.read("examples/data", "orders"), "rows.parquet")
        for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
            if name in _RUNS:
                yield name, _named(sorted(_fields_of(_RUNS[name])))
            elif name in _RESULTS:
                result = _RESULTS[name]
                fields = dict.fromkeys(result._fields)  # type: ignore[attr-defined]
                yield name, _named(sorted(json_fields(result(**fields))))
            elif name in _TABLES:
                yield name, "the columns of its [tables](tables.md)"
            elif any("--json" in each.opts for each in command.params):
                raise AssertionError(name)


def _fields_of(line: str) -> set[str]:
    done = CliRunner().invoke(app, line.split())
    assert done.exit_code in (0, 1), (line, done.output)
    fields: set[str] = set()
    for each in done.stdout.splitlines():
        if each.startswith("{"):
            fields |= {*json.loads(each)}
    assert fields, (line, done.output)
    return fields


def _environment() -> Iterator[tuple[str, str]]:
    places: dict[str, set[str]] = {}
    for package in ("storage/segmentlog", "storage/kernel_compiler", "connector"):
        for path in sorted((TOP / package).rglob("*.py")):
            for name in re.findall(r"\"(SEGMENTLOG_[A-Z_]+)\"", path.read_text()):
                places.setdefault(name, set()).add(package.rpartition("/")[2])
    for name in sorted(places):
        yield name, ", ".join(sorted(places[name]))


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(_BEGIN)
    PAGE.write_text(f"{before}{_BEGIN}{tables()}{_END}{rest.partition(_END)[2]}")
    for page, made in PAGES.items():
        page.write_text(made(page.read_text()))
    sys.exit(0)
