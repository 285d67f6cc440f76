"""The page of ``segmentlog analyze``: one file of HTML, for any browser, wide or narrow.

It has no script, and its policy forbids a browser to load anything.  All text of a log is chosen
by anyone who can write to a topic: `_text` makes it printable, and then escapes it.
"""

import html
from collections.abc import Iterable, Sequence

from segmentlog.analysis.report import (
    Analysis,
    AnalysisFinding,
    DecodedFigures,
    FieldFigures,
    FormatUse,
    HeavyKey,
    PartitionReport,
    SizeCount,
    TopicFigures,
    TopicReport,
    Urgency,
)
from segmentlog.times import iso_time
from segmentlog.tools.analyze_beside import Beside
from segmentlog.tools.output import (
    as_text,
    byte_text,
    count_text,
    counted,
    duration_text,
    escape,
    percent,
)
from segmentlog.tools.page_style import STYLE
from segmentlog.tools.topics import TopicSummary

_MOST_FINDINGS = 30
_MOST_PARTITIONS = 200  #: rows; the JSON has all
_MOST_OPEN = 12  #: topics; with more, they are folded
_MOST_LISTED = 50  #: groups, and settings
_MOST_ROWS = 10  #: of a short list
_SERIES = 6  #: colours of parts
_NONE = "\N{EN DASH}"  #: in the place of a number that there is not
_FEWEST_BARS = 9  #: of a histogram
_N_TIMES = 60  #: pieces of time in the picture of a topic
_LEAST_FRAMED = 0.01  #: of the values: of random ones, 1 in 512 begins as with a schema id

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def page(found: Analysis, paths: Sequence[str], more: Beside | None = None) -> str:
    """The page of an analysis; `paths` are those that were analyzed, as the user gave them.

    `more`: what other commands say about the same directories.
    """
    where = " and ".join(paths)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{_text(where)}: what is in there</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{_head(found, where)}{_damage(found)}{_findings(found)}"
        f"{'' if more is None else _start(more) + _groups(more) + _settings(more)}"
        f"{_overview(found)}{''.join(_topics(found, more))}{_footer(found)}</main>\n</body>\n"
        "</html>\n"
    )


def _text(text: str) -> str:
    """Text of anybody, printable and without a meaning in HTML."""
    return html.escape(escape(text))


def _number(count: int) -> str:
    return f"{count:,}"


def _size(n_bytes: float) -> str:
    """Bytes with a unit, and exactly on demand."""
    return f'<span title="{n_bytes:,.0f} bytes">{byte_text(n_bytes)}</span>'


def _time(time_ms: int | None) -> str:
    if time_ms is None:
        return _NONE
    shown = iso_time(time_ms)
    return f'<time title="{_text(shown)}">{_text(shown[:16].replace("T", " "))}</time>'


def _part(part: int, whole: int) -> str:
    return percent(part / whole) if whole else _NONE


def _head(found: Analysis, where: str) -> str:
    every = [each.figures for each in found.topics]
    n_partitions = sum(len(each.partitions) for each in found.topics)
    tiles = [
        ("topics", _number(len(every))),
        ("partitions", _number(n_partitions)),
        ("records", _number(sum(each.n_records for each in every))),
        ("on disk", _size(sum(each.n_bytes for each in every))),
        ("findings", _number(len(found.findings) + len(found.problems))),
    ]
    shown = "".join(
        f'<div class="card"><b>{value}</b><span class="soft small">{name}</span></div>'
        for name, value in tiles
    )
    when = iso_time(found.analyzed_ms)[:16].replace("T", " ")
    return (
        f'<h1>{_text(where)}</h1>\n<p class="soft">What is in these topics, on {_text(when)} UTC'
        f'</p>\n<div class="tiles">{shown}</div>\n'
    )


def _damage(found: Analysis) -> str:
    """What could not be read, or is gone, before all advice."""
    shown = [
        f'<li><span class="tag problem">problem</span><span class="what">{_text(each)}</span></li>'
        for each in found.problems
    ]
    shown += [_finding(each) for each in found.findings if each.urgency is Urgency.PROBLEM]
    good = "All records could be read, and none is missing."
    return _items("Damaged or missing records", shown, good)


def _findings(found: Analysis) -> str:
    shown = [_finding(each) for each in found.findings if each.urgency is not Urgency.PROBLEM]
    return _items("What to change", shown, "Nothing stands out.")


def _items(title: str, shown: Sequence[str], otherwise: str) -> str:
    """A list of findings, or a sentence."""
    if not shown:
        return _section(title, otherwise)
    more = len(shown) - _MOST_FINDINGS
    rest = f'<li class="soft">… and {more:,} more; the JSON has them all</li>' if more > 0 else ""
    rows = "".join(shown[:_MOST_FINDINGS])
    return f'<h2>{title}</h2>\n<ul class="card findings">{rows}{rest}</ul>\n'


def _section(title: str, body: str) -> str:
    return f'<h2>{title}</h2>\n<div class="card">{body}</div>\n'


def _unanswered(reason: str) -> str:
    return f'<p class="soft">Not known: {_text(reason)}</p>'


def _start(more: Beside) -> str:
    """The verdict of `preflight`."""
    title = "Would a broker start with these directories?"
    if not more.verdict:
        return _section(title, _unanswered(more.verdict_reason))
    first, *others = more.verdict
    others.append("segmentlog preflight lists each step of the start.")
    rest = "".join(f'<p class="soft small">{_text(each)}</p>' for each in others)
    return _section(title, f"<p>{_text(first[:1].upper() + first[1:])}</p>{rest}")


def _groups(more: Beside) -> str:
    title = "How far consumers are behind"
    if not more.groups:
        reason = more.groups_reason
        none = "No group has committed an offset in these topics."
        return _section(title, _unanswered(reason) if reason else none)
    most = max(each.n_behind for each in more.groups)
    rows = [
        f'<tr><td class="name">{_text(each.group)}</td><td class="name">{_text(each.topic)}</td>'
        f'<td class="r wideonly">{_number(each.n_partitions)}</td>'
        f'<td class="bar wideonly">{_meter(each.n_behind, most)}</td>'
        f'<td class="r">{_number(each.n_behind)}</td>'
        f'<td class="r">{_NONE if each.most_ms is None else duration_text(each.most_ms)}</td></tr>'
        for each in more.groups
    ]
    heads = (
        '<th>group<th>topic<th class="r wideonly">partitions<th class="wideonly">'
        '<th class="r">records behind<th class="r">time behind'
    )
    return _long_table(title, heads, rows)


def _settings(more: Beside) -> str:
    title = "Settings that differ from Kafka's defaults"
    if not more.settings:
        reason = more.settings_reason
        return _section(title, _unanswered(reason) if reason else "None is known here.")
    rows = [
        f'<tr><td class="name">{_text(each.topic)}</td><td class="name">{_text(each.name)}</td>'
        f"<td>{_text(each.value)}</td><td>{_text(each.default) or _NONE}</td>"
        f'<td class="wideonly soft">{_text(each.source)}</td></tr>'
        for each in more.settings
    ]
    heads = '<th>topic<th>setting<th>value<th>default<th class="wideonly">set in'
    return _long_table(title, heads, rows)


def _long_table(title: str, heads: str, rows: Sequence[str]) -> str:
    n_more = len(rows) - _MOST_LISTED
    rest = f'<p class="soft small">… and {n_more:,} more</p>' if n_more > 0 else ""
    return (
        f'<h2>{title}</h2>\n<div class="card scroll"><table><thead><tr>{heads}</thead>'
        f"<tbody>{''.join(rows[:_MOST_LISTED])}</tbody></table>{rest}</div>\n"
    )


def _finding(each: AnalysisFinding) -> str:
    place = each.topic if each.partition is None else f"{each.topic}, partition {each.partition}"
    gain = f"\N{MINUS SIGN}{_size(each.saved_bytes)}" if each.saved_bytes > 0 else ""
    names = {Urgency.PROBLEM: "problem", Urgency.ADVICE: "advice", Urgency.NOTE: "note"}
    return (
        f'<li><span class="tag {names[each.urgency]}">{names[each.urgency]}</span>'
        f'<span class="what"><b>{_text(place)}</b> {_text(each.text)}</span>'
        f'<span class="gain">{gain}</span></li>'
    )


def _overview(found: Analysis) -> str:
    if len(found.topics) < 2:
        return ""
    most = max((each.figures.n_bytes for each in found.topics), default=0)
    rows = []
    for number, each in enumerate(found.topics):
        of_all = each.figures
        saved = of_all.zstd.saved_joined
        rows.append(
            f'<tr><td class="name"><a href="#t{number}">{_text(each.topic)}</a></td>'
            f'<td class="r">{_size(of_all.n_bytes)}</td>'
            f'<td class="bar wideonly">{_meter(of_all.n_bytes, most)}</td>'
            f'<td class="r">{_number(of_all.n_records)}</td>'
            f'<td class="r wideonly">{_number(len(each.partitions))}</td>'
            f'<td class="r wideonly">{_size(of_all.batches.mean_bytes)}</td>'
            f'<td class="wideonly">{_text(_codecs(of_all))}</td>'
            f'<td class="r">{_NONE if saved is None else percent(max(saved, 0))}</td>'
            f'<td class="r wideonly">{_distinct(of_all)}</td></tr>'
        )
    heads = (
        '<th>topic<th class="r">size<th class="wideonly"><th class="r">records'
        '<th class="r wideonly">partitions<th class="r wideonly">batch<th class="wideonly">codec'
        '<th class="r">zstd saves<th class="r wideonly">keys'
    )
    return (
        f'<h2>Topics</h2>\n<div class="card scroll"><table><thead><tr>{heads}</thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>\n"
    )


def _distinct(figures: TopicFigures) -> str:
    return count_text(figures.keys.distinct, figures.keys.distinct_error)


def _codecs(figures: TopicFigures) -> str:
    found = sorted(figures.batches.codecs, key=lambda each: -each.n_bytes)
    return ", ".join(each.codec for each in found) or _NONE


def _meter(part: float, whole: float) -> str:
    width = 100 * part / whole if whole else 0
    return (
        '<svg class="meter" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect width="{width:.2f}" height="8"/></svg>'
    )


def _stack(parts: Sequence[tuple[str, str, int]]) -> str:
    """Parts of a whole: a bar, and what each part is, in words and as a number."""
    total = sum(n for _, _, n in parts)
    at, bars, legend = 0.0, [], []
    for number, (name, shown, n) in enumerate(each for each in parts if each[2]):
        width, colour = 100 * n / total, min(number, _SERIES - 1)
        bars.append(f'<rect class="f{colour}" x="{at:.3f}" width="{width:.3f}" height="14"/>')
        at += width
        legend.append(
            f'<li><span class="dot b{colour}"></span><span class="l">{_text(name)}</span>'
            f'<span class="num">{shown}</span><span class="num soft">{percent(n / total)}</span>'
            "</li>"
        )
    bar = "".join(bars)
    return (
        '<svg class="stack" viewBox="0 0 100 14" preserveAspectRatio="none" aria-hidden="true">'
        f'{bar}</svg><ul class="legend">{"".join(legend)}</ul>'
    )


def _histogram(bars: Sequence[SizeCount]) -> str:
    """Bars of sizes that double; each says its numbers on demand."""
    if not bars:
        return ""
    bars = _at_least(bars)
    shown = [
        (f"{byte_text(each.least)} to {byte_text(each.most)}: {each.count:,}", each.count)
        for each in bars
    ]
    return _bars("sizes", shown, byte_text(bars[0].least), byte_text(bars[-1].most))


def _over_time(summary: TopicSummary) -> str:
    """Records in equal pieces of the time of a topic."""
    first, last = summary.span or (0, 0)
    if last - first < _N_TIMES:
        return f'<p class="soft">All at {_time(first)}, within {duration_text(last - first)}.</p>'
    counts = summary.counts(first, last, _N_TIMES).tolist()
    step = (last - first) / _N_TIMES
    times = [iso_time(round(first + step * n))[:16].replace("T", " ") for n in range(_N_TIMES + 1)]
    shown = [
        (f"{times[n]} to {times[n + 1]}: {count:,.0f}", count) for n, count in enumerate(counts)
    ]
    about = f"{duration_text(round(step))} a bar"
    if summary.is_compacted:
        about += ", by offsets: compaction has removed some of these records"
    bars = _bars("records over time", shown, times[0], times[-1])
    return f'{bars}<p class="soft small">{about}</p>'


def _bars(what: str, bars: Sequence[tuple[str, float]], first: str, last: str) -> str:
    """A picture of numbers, each with its words; `first` and `last` are below its ends."""
    most, width = max(count for _, count in bars) or 1, 100 / len(bars)
    shown = []
    for number, (words, count) in enumerate(bars):
        height = max(60 * count / most, 1.0 if count else 0.0)
        shown.append(
            f'<rect x="{number * width + width * 0.06:.3f}" y="{60 - height:.3f}" '
            f'width="{width * 0.88:.3f}" height="{height:.3f}">'
            f"<title>{_text(words)}</title></rect>"
        )
    return (
        '<svg class="hist" viewBox="0 0 100 60" preserveAspectRatio="none" role="img" '
        f'aria-label="{what} from {_text(first)} to {_text(last)}">{"".join(shown)}</svg>'
        f'<div class="axis"><span>{_text(first)}</span><span>{_text(last)}</span></div>'
    )


def _at_least(bars: Sequence[SizeCount]) -> Sequence[SizeCount]:
    """The bars, with empty ones on both sides if they are few: one bar says nothing."""
    bars = list(bars)
    while len(bars) < _FEWEST_BARS:
        bars.append(SizeCount(bars[-1].most + 1, 2 * bars[-1].most + 1, 0))
        if bars[0].least > 1 and len(bars) < _FEWEST_BARS:
            bars.insert(0, SizeCount(bars[0].least // 2, bars[0].least - 1, 0))
    return bars


def _list(rows: Iterable[tuple[str, str]]) -> str:
    """Names and values, which are HTML."""
    return (
        "<dl>"
        + "".join(f"<dt>{_text(name)}</dt><dd>{value}</dd>" for name, value in rows)
        + "</dl>"
    )


def _panel(title: str, body: str, *, is_wide: bool = False) -> str:
    wide = " wide" * is_wide
    return f'<div class="panel{wide}"><h3>{title}</h3>{body}</div>'


def _topics(found: Analysis, more: Beside | None) -> Iterable[str]:
    is_folded = len(found.topics) > _MOST_OPEN
    for number, each in enumerate(found.topics):
        of_all = each.figures
        head = (
            f'<h2>{_text(each.topic)}</h2><span class="soft">{counted(records=of_all.n_records)}, '
            f"{_size(of_all.n_bytes)}, {counted(partitions=len(each.partitions))}</span>"
        )
        summary = None if more is None else more.over_time.get(each.topic)
        panels = "".join(_panels(each, summary))
        body = f'<div class="panels">{panels}{_partitions(each)}</div>'
        if is_folded:
            yield (
                f'<details class="card topic" id="t{number}"><summary>{head}</summary>{body}'
                "</details>\n"
            )
        else:
            yield (
                f'<section class="card topic" id="t{number}"><div class="head">{head}</div>{body}'
                "</section>\n"
            )


def _panels(report: TopicReport, summary: TopicSummary | None) -> Iterable[str]:
    of_all = report.figures
    if summary is not None and summary.span is not None:
        yield _panel("Records over time", _over_time(summary), is_wide=True)
    if not of_all.n_bytes and not of_all.n_records:
        yield _panel("Empty", '<p class="soft">There is no batch in this topic.</p>')
    else:
        yield _panel("Batches and compression", _batches(of_all))
        yield _panel("Keys", _keys(of_all))
        yield _panel("Values", _values(of_all))
        yield _panel("What the bytes are", _formats(of_all))
        yield _panel("Times and producers", _clocks(of_all))
    yield _panel("What is left, and what goes next", _offsets(of_all))
    for each in report.decoded:
        yield _panel(f"Fields of {each.column}s", _fields(each), is_wide=True)


def _fields(found: DecodedFigures) -> str:
    """A row for each field of decoded keys or values."""
    words = f'<p class="soft small">{_text(decoded_in_words(found))}</p>'
    if not found.fields:
        return words
    rows = "".join(
        f'<tr><td class="name">{_text(each.name)}</td>'
        f'<td class="wideonly soft">{_text(each.type)}</td>'
        f'<td class="r">{_part(each.n_null, each.n_values)}</td>'
        f'<td class="r">{count_text(each.distinct, each.distinct_error)}</td>'
        f'<td class="r">{_end(each, each.least)}</td><td class="r">{_end(each, each.largest)}</td>'
        "</tr>"
        for each in found.fields
    )
    heads = (
        '<th>field<th class="wideonly">type<th class="r">null<th class="r">distinct'
        '<th class="r">least<th class="r">largest'
    )
    n_more = found.n_other_fields
    rest = f'<p class="soft small">… and {n_more:,} more fields</p>' if n_more else ""
    return (
        f'<div class="scroll"><table><thead><tr>{heads}</thead><tbody>{rows}</tbody></table>'
        f"</div>{words}{rest}"
    )


def _end(each: FieldFigures, value: object) -> str:
    """An end of the range of a field; of a text that is not shown, its length."""
    if value is not None:
        return f"<code>{_text(str(value))}</code>"
    is_long = each.is_text and each.n_values > each.n_null
    return f"up to {byte_text(each.most_bytes)}" if is_long else _NONE


def decoded_in_words(found: DecodedFigures) -> str:
    """How much of the keys or values of a topic was decoded, and why the rest was not."""
    if found.reason:
        return f"the {found.column} is not decoded: {found.reason}"
    words = [f"{found.column} of {counted(records=found.n_records)}"]
    if found.n_null:
        words.append(f"{found.n_null:,} null")
    if found.n_undecodable:
        causes = "; ".join(found.causes)
        words.append(f"{found.n_undecodable:,} that cannot be decoded ({causes})")
    return ", ".join(words)


_CODECS = {"none": "not compressed"}


def _batches(figures: TopicFigures) -> str:
    batches, zstd = figures.batches, figures.zstd
    codecs = sorted(batches.codecs, key=lambda each: -each.n_bytes)
    stack = _stack(
        [
            (_CODECS.get(each.codec, each.codec), _size(each.n_bytes), each.n_bytes)
            for each in codecs
        ]
    )
    n_data = batches.n_batches - batches.n_control_batches
    rows = [
        ("batches", _number(batches.n_batches)),
        ("mean size", _size(batches.mean_bytes)),
        ("records in a batch", f"{figures.n_records / n_data:,.1f}" if n_data > 0 else _NONE),
        ("taken by their headers", _part(batches.header_bytes, batches.n_bytes)),
    ]
    if batches.n_empty:
        rows.append(("emptied by compaction", _number(batches.n_empty)))
    if batches.n_legacy:
        rows.append(("messages of magic 0 or 1", _number(batches.n_legacy)))
    if zstd.saved is not None and zstd.saved_joined is not None:
        sampled = f"sampled {byte_text(zstd.sampled_bytes)}"
        rows += [
            ("zstd would save", f'<span title="{sampled}">{percent(max(zstd.saved, 0))}</span>'),
            ("zstd, batches of 128 KiB", percent(max(zstd.saved_joined, 0))),
        ]
    return stack + '<div class="gap"></div>' + _list(rows) + _histogram(batches.sizes)


def _keys(figures: TopicFigures) -> str:
    keys = figures.keys
    distinct = count_text(keys.distinct, keys.distinct_error)
    if keys.distinct_error:
        distinct += f' <span class="soft">± {percent(keys.distinct_error)}</span>'
    rows = [("distinct", distinct)]
    if figures.n_records:
        rows.append(("records without one", _part(keys.n_null, figures.n_records)))
    n_keys = figures.n_records - keys.n_null
    if n_keys:
        rows += [("mean size", _size(keys.n_bytes / n_keys)), ("largest", _size(keys.largest))]
    return _list(rows) + _heaviest(keys.heaviest)


def _heaviest(keys: Sequence[HeavyKey]) -> str:
    if not keys:
        return ""
    most = keys[0].share
    rows = "".join(
        f'<tr><td>{_key(each)}</td><td class="bar">{_meter(each.share, most)}</td>'
        f'<td class="r" title="{each.n_records:,} to {each.most_records:,} records">'
        f"{percent(each.share)}</td></tr>"
        for each in keys[:_MOST_ROWS]
    )
    return (
        f'<table class="keys"><thead><tr><th>heaviest<th><th class="r">share</thead>{rows}</table>'
    )


def _key(each: HeavyKey) -> str:
    if each.key is None:
        return (
            f'<code title="hash of a key of {each.n_bytes:,} bytes; a record with it: partition '
            f'{each.partition}, offset {each.offset}">#{each.id[:10]}</code>'
        )
    return f"<code>{_text(as_text(each.key))}</code>"


def _values(figures: TopicFigures) -> str:
    values = figures.values
    n_values = figures.n_records - values.n_null
    rows = [
        ("mean size", _size(values.n_bytes / n_values) if n_values else _NONE),
        ("largest", _size(values.largest)),
        ("null", _part(values.n_null, figures.n_records)),
        ("tombstones", _part(values.n_tombstones, figures.n_records)),
    ]
    return _list(rows) + _histogram(values.sizes)


_FORMATS = {
    "registry": "with a schema id",
    "json": "JSON",
    "text": "text",
    "compressed": "compressed by itself",
    "binary": "binary",
}


def _formats(figures: TopicFigures) -> str:
    formats, headers = figures.formats, figures.headers
    shown = []
    for what, found in (("Values", formats.values), ("Keys", formats.keys)):
        if found:
            shown.append(f'<p class="soft small">{what}</p>{_format_stack(found)}')
    n_framed = sum(each.n_records for each in formats.schema_ids) + formats.n_other_ids
    if n_framed < _LEAST_FRAMED * (figures.n_records - figures.values.n_null):
        if n_framed:
            chance = f"{n_framed:,} values begin as with a schema id, probably by chance"
            shown.append(f'<p class="soft small">{chance}</p>')
    elif formats.schema_ids:
        rows = [
            (f"schema {each.id}{_described(each.type, each.subject)}", _number(each.n_records))
            for each in formats.schema_ids[:_MOST_ROWS]
        ]
        shown.append(f'<div class="gap"></div>{_list(rows)}')
        n_more = len(formats.schema_ids) - _MOST_ROWS
        if n_more > 0:
            shown.append(f'<p class="soft small">and {n_more:,} more schema ids</p>')
    sampled = formats.sampled_records
    if sampled:
        rows = [
            ("with headers", _part(headers.n_with_headers, sampled)),
            ("headers in a record", f"{headers.n_headers / sampled:,.1f}"),
            ("bytes of headers", percent(headers.share)),
        ]
        rows += [
            (f"header {each.name}", percent(each.share)) for each in headers.names[:_MOST_ROWS]
        ]
        shown.append(f'<div class="gap"></div>{_list(rows)}')
        n_more = len(headers.names) - _MOST_ROWS
        if n_more > 0:
            shown.append(f'<p class="soft small">and {n_more:,} more names of headers</p>')
        shown.append(
            f'<p class="soft small source">from a sample of {counted(records=sampled)}</p>'
        )
    return "".join(shown) or '<p class="soft">No record was sampled.</p>'


def _described(kind: str, subject: str) -> str:
    described = ", ".join(filter(None, (kind.capitalize() if kind != "JSON" else kind, subject)))
    return f" ({described})" if described else ""


def _format_stack(found: Sequence[FormatUse]) -> str:
    return _stack([(_FORMATS.get(each.format, each.format), "", each.n_records) for each in found])


def _clocks(figures: TopicFigures) -> str:
    clocks, producers = figures.clocks, figures.producers
    rows = [
        ("oldest record", _time(clocks.least_ms)),
        ("newest record", _time(clocks.largest_ms)),
        ("out of order", _part(clocks.n_back, figures.n_records)),
    ]
    if clocks.most_back_ms:
        rows.append(("… by at most", duration_text(clocks.most_back_ms)))
    for name, n in (
        ("in the future", clocks.n_in_future),
        ("before 2000", clocks.n_before_2000),
        ("without a time", clocks.n_without),
    ):
        if n:
            rows.append((name, f'<b class="advice">{_number(n)}</b>'))
    if producers.n_idempotent_batches:
        more = "more than " if producers.has_more else ""
        rows.append(("producer ids", f"{more}{_number(producers.n_producers)}"))
    if producers.n_committed or producers.n_aborted:
        rows += [
            ("transactions committed", _number(producers.n_committed)),
            ("transactions aborted", _number(producers.n_aborted)),
            ("aborted records", _part(producers.n_aborted_records, figures.n_records)),
        ]
    if producers.n_open:
        rows.append(("open transactions", f'<b class="advice">{_number(producers.n_open)}</b>'))
    return _list(rows)


def _offsets(figures: TopicFigures) -> str:
    offsets, retention = figures.offsets, figures.retention
    parts = [
        ("records", offsets.n_records),
        ("removed by compaction", offsets.n_removed),
        ("deleted before the start", offsets.n_deleted),
        ("markers of brokers", offsets.n_markers),
        ("in lost segments", offsets.n_lost),
        ("unreadable", offsets.n_unreadable),
    ]
    stack = _stack([(name, _number(n), n) for name, n in parts])
    if not any(n for _, n in parts):
        stack = '<p class="soft">No offset was ever used.</p>'
    limits = []
    if "delete" in retention.policy:
        if retention.retention_ms >= 0:
            limits.append(duration_text(retention.retention_ms))
        if retention.retention_bytes >= 0:
            limits.append(f"{byte_text(retention.retention_bytes)} a partition")
    rows = [
        ("cleanup policy", _text(retention.policy or _NONE)),
        ("kept for", " or ".join(limits) or "ever"),
    ]
    if retention.n_due_segments:
        rows.append(("due now", f"<b>{_size(retention.due_bytes)}</b>"))
    if retention.next_ms is not None:
        rows += [("next removal", _time(retention.next_ms)), ("", _size(retention.next_bytes))]
    source = f'<p class="soft small source">{_text(retention.source)}</p>'
    return f'{stack}<div class="gap"></div>{_list(rows)}{source}'


def _partitions(report: TopicReport) -> str:
    partitions = report.partitions
    if len(partitions) < 2 and not report.problems:
        return ""
    most = max(each.figures.n_bytes for each in partitions)
    rows = "".join(_partition(each, most) for each in partitions[:_MOST_PARTITIONS])
    more = len(partitions) - _MOST_PARTITIONS
    rest = (
        f'<p class="soft small">… and {more:,} more; the JSON has them all</p>' if more > 0 else ""
    )
    heads = (
        '<th>partition<th class="r">size<th><th class="r">records<th class="r wideonly">batch'
        '<th class="r wideonly">keys<th class="r wideonly">from<th class="r wideonly">to'
    )
    is_open = " open" if len(partitions) <= _MOST_OPEN else ""
    return (
        f'<details class="rows panel wide"{is_open}><summary>{len(partitions):,} partitions'
        f'</summary><div class="scroll"><table><thead><tr>{heads}</thead><tbody>{rows}</tbody>'
        f"</table></div>{rest}</details>"
    )


def _partition(each: PartitionReport, most: int) -> str:
    of_one = each.figures
    mark = ' <span class="tag problem" title="it could not be read as a whole"></span>'
    return (
        f"<tr><td>{each.partition}{mark if each.problems else ''}</td>"
        f'<td class="r">{_size(of_one.n_bytes)}</td>'
        f'<td class="bar">{_meter(of_one.n_bytes, most)}</td>'
        f'<td class="r">{_number(of_one.n_records)}</td>'
        f'<td class="r wideonly">{_size(of_one.batches.mean_bytes)}</td>'
        f'<td class="r wideonly">{_distinct(of_one)}</td>'
        f'<td class="r wideonly">{_time(of_one.clocks.least_ms)}</td>'
        f'<td class="r wideonly">{_time(of_one.clocks.largest_ms)}</td></tr>'
    )


def _footer(found: Analysis) -> str:
    error = max((each.figures.keys.distinct_error for each in found.topics), default=0.0)
    about = (
        f"Counts after a ~ are estimates: 95 of 100 are nearer than {percent(error)}. "
        if error
        else ""
    )
    return (
        f"<footer>{about}What zstd would save, formats and headers are measured on a sample. "
        "Made by segmentlog analyze.</footer>\n"
    )
