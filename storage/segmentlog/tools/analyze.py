"""``segmentlog analyze``: what is in the topics of a directory, as a table, as JSON, as a page."""

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

from segmentlog.analysis.analyze import PlanOptions, analyze_plan, plan_analysis
from segmentlog.analysis.report import (
    Analysis,
    DecodedFigures,
    FieldFigures,
    TopicFigures,
    TopicReport,
    no_subject,
)
from segmentlog.model import ReadUpTo
from segmentlog.store.durable import OutputFile
from segmentlog.store.paths import readable_path
from segmentlog.store.readable import exists, is_url
from segmentlog.tools import arguments
from segmentlog.tools.analyze_beside import beside
from segmentlog.tools.analyze_page import decoded_in_words, page
from segmentlog.tools.output import (
    aligned,
    as_given,
    byte_text,
    count_text,
    counted,
    escape,
    percent,
    time_cell,
    write_json,
)
from segmentlog.tools.progress import progress
from segmentlog.tools.usage import write_not_in_use

_MOST_SHOWN = 20  #: partitions of a topic, and findings


@arguments.command(
    "segmentlog analyze /var/lib/kafka -o report.html",
    "segmentlog analyze /var/lib/kafka orders --partitions",
    "segmentlog analyze /var/lib/kafka orders --decode",
    "segmentlog analyze /var/lib/kafka --json | jq '.topics[] | {topic, figures: .figures.keys}'",
)
@arguments.tiered
@arguments.flags(
    PlanOptions,
    "show_keys",
    "decode",
    "decode_schemas",
    "decode_frame",
    "show_values",
    "read_up_to",
    "settings",
    "metadata",
    "server_properties",
    read_up_to=ReadUpTo.LOG_END,
)
def analyze(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DIR [TOPIC…]",
            help="Log directories, and after them the topics, as with --topic: what is neither a "
            "path nor a URL is a topic. With --remote-storage, DIR may be left out.",
        ),
    ] = None,
    topic: arguments.Topics = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write a page of HTML for a browser. It needs no other file, and loads nothing.",
        ),
    ] = None,
    partitions: Annotated[
        bool, typer.Option("--partitions", help="Also list the partitions of each topic.")
    ] = False,
    *,
    given: dict[str, Any],
    json: Annotated[bool, arguments.json_option("Print one JSON object.")] = False,
    tier: arguments.Tier,
) -> None:
    """Find out what is in topics: sizes, codecs, keys, formats, clocks, gaps; what to change.

    All records are read once, and the memory does not grow with them. Distinct keys and the
    heaviest keys are kept in sketches, whose errors are shown; what zstd would save, formats and
    headers are measured on a sample. The exit status is 1 if something could not be read: the
    report names it, and has everything else.
    """
    directories, topics = _directories_and_topics(paths or (), topic or ())
    plan = plan_analysis(
        *tier.beside(directories, fail_on_data_loss=False), topics=topics, **given
    )
    n_partitions = sum(map(len, plan.topics.values()))
    with progress("analyze", plan.n_bytes) as bar:
        found = analyze_plan(plan, on_bytes=bar.advance, on_topic=bar.name)
    shown = [as_given(each, directories) if directories else each for each in found.paths]
    if output is not None:
        with OutputFile("--output", output) as file, progress("page", None, is_bytes=False):
            file.file.write(page(found, shown, beside(plan, shown)).encode("utf-8"))
            file.finish()
            file.publish()
    if json:
        write_json(found.to_json() | {"paths": shown})
    else:
        sys.stdout.write(_table(found.topics))
        if partitions:
            for each in found.topics:
                sys.stdout.write(f"\n{escape(each.topic)}\n{_partitions(each)}")
        _write_decoded(found)
        _write_findings(found)
        sys.stdout.write(f"\n{counted(topics=len(found.topics), partitions=n_partitions)}\n")
    write_not_in_use(plan.directory, topics)
    for problem in found.problems:
        sys.stderr.write(f"{escape(problem)}\n")
    if not found.is_sound:
        raise typer.Exit(arguments.PROBLEM)


def _directories_and_topics(
    given: Sequence[str], named: Sequence[str]
) -> tuple[list[str], list[str]]:
    """The arguments that are paths, and those after them that are names of topics."""
    directories = list(given)
    topics: list[str] = []
    while directories and len(directories) > 1 and _is_topic(directories[-1]):
        topics.insert(0, directories.pop())
    return directories, [*named, *topics]


def _is_topic(text: str) -> bool:
    return not is_url(text) and os.sep not in text and not exists(readable_path(text))


def _table(found: Iterable[TopicReport]) -> str:
    """A line for each topic."""
    names = ["topic", "partitions", *_NAMES]
    rows = [
        [escape(each.topic), f"{len(each.partitions):,}", *_cells(each.figures)] for each in found
    ]
    return _fitted(names, rows, [False, True, *_RIGHT])


def _partitions(report: TopicReport) -> str:
    rows = [
        [str(each.partition), *_cells(each.figures)] for each in report.partitions[:_MOST_SHOWN]
    ]
    text = _fitted(["partition", *_NAMES], rows, [True, *_RIGHT])
    n_more = len(report.partitions) - _MOST_SHOWN
    return text + (f"… and {n_more:,} more; --json has them all\n" if n_more > 0 else "")


def _fitted(names: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]) -> str:
    """A table; on a narrow terminal in several parts, each of which begins with the first column.

    A terminal would break each of its lines in the middle of a cell.
    """
    most = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    parts, taken = list[list[int]](), 0
    for column, width in enumerate(widths[1:], 1):
        if not parts or taken + 2 + width > most:
            parts.append([0])
            taken = widths[0]
        parts[-1].append(column)
        taken += 2 + width
    return "\n".join(
        aligned(
            [names[each] for each in part],
            [[row[each] for each in part] for row in rows],
            [right[each] for each in part],
        )
        for part in parts
    )


def _write_decoded(found: Analysis) -> None:
    """The fields of each decoded column, and a line about those that have no schema."""
    without = list[str]()
    for each in found.topics:
        for column in each.decoded:
            if column.reason == no_subject(each.topic, column.column):
                without.append(f"{each.topic}-{column.column}")
                continue
            sys.stdout.write(f"\n{escape(f'{each.topic}: {decoded_in_words(column)}')}\n")
            if column.fields:
                sys.stdout.write(_fields(column))
    if without:
        shown, n_more = ", ".join(without[:_MOST_SHOWN]), len(without) - _MOST_SHOWN
        more = f" and {n_more:,} more" if n_more > 0 else ""
        sys.stdout.write(
            f"\nnot decoded, because no schema has the subject: {escape(shown)}{more}\n"
        )


def _fields(found: DecodedFigures) -> str:
    """A line for each field of decoded keys or values."""
    names = ["field", "type", "null", "distinct", "least", "largest", "longest"]
    rows = [[escape(cell) for cell in _field_cells(each)] for each in found.fields]
    text = _fitted(names, rows, [False, False, True, True, False, False, True])
    n_more = found.n_other_fields
    return text + (f"… and {n_more:,} more, which are not looked at\n" if n_more else "")


def _field_cells(each: FieldFigures) -> list[str]:
    n_values = each.n_values - each.n_null
    return [
        each.name,
        each.type,
        percent(each.n_null / each.n_values) if each.n_values else "-",
        count_text(each.distinct, each.distinct_error),
        *("-" if end is None else str(end) for end in (each.least, each.largest)),
        byte_text(each.most_bytes) if n_values and each.is_text else "-",
    ]


_NAMES = (
    "records",
    "bytes",
    "codec",
    "batch",
    "zstd saves",
    "distinct keys",
    "null keys",
    "tombstones",
    "value",
    "format",
    "from",
    "to",
)
_RIGHT = (True, True, False, True, True, True, True, True, True, False, False, False)


def _cells(figures: TopicFigures) -> list[str]:
    batches, keys, values, clocks = figures.batches, figures.keys, figures.values, figures.clocks
    n_values = figures.n_records - values.n_null
    codecs = sorted(batches.codecs, key=lambda each: -each.n_bytes)
    saved = figures.zstd.saved_joined
    return [
        f"{figures.n_records:,}",
        f"{figures.n_bytes:,}",
        "+".join(each.codec for each in codecs) or "-",
        byte_text(batches.mean_bytes) if batches.n_batches else "-",
        "-" if saved is None else percent(max(saved, 0)),
        count_text(keys.distinct, keys.distinct_error),
        percent(keys.n_null / figures.n_records) if figures.n_records else "-",
        percent(values.n_tombstones / figures.n_records) if figures.n_records else "-",
        byte_text(values.n_bytes / n_values) if n_values else "-",
        "+".join(each.format for each in figures.formats.values) or "-",
        time_cell(clocks.least_ms),
        time_cell(clocks.largest_ms),
    ]


def _write_findings(found: Analysis) -> None:
    findings = found.findings
    if not findings:
        return
    sys.stdout.write("\n")
    for each in findings[:_MOST_SHOWN]:
        place = each.topic if each.partition is None else f"{each.topic}-{each.partition}"
        saved = f" (saves about {byte_text(each.saved_bytes)})" if each.saved_bytes else ""
        sys.stdout.write(f"{each.urgency:7} {escape(place)}: {escape(each.text)}{saved}\n")
    if len(findings) > _MOST_SHOWN:
        sys.stdout.write(f"… and {len(findings) - _MOST_SHOWN:,} more; --json has them all\n")
